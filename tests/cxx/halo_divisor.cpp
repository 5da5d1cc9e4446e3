// Prints number / divisor by evt::halo::Divisor for each pair on the standard input.

#include <cstdio>

#include "evt/halo_taps.hpp"

int main() {
  int number, divisor;
  while (std::scanf("%d %d", &number, &divisor) == 2) {
    std::printf("%d\n", evt::halo::Divisor::of(divisor).quotient(number));
  }
  return 0;
}
