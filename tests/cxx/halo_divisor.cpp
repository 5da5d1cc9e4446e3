// Prints number / divisor by evt::kit::FastDivisor for each pair on the standard input.

#include <cstdio>

#include "evt/kit/divisor.hpp"

int main() {
  int number, divisor;
  while (std::scanf("%d %d", &number, &divisor) == 2) {
    std::printf("%d\n", evt::kit::FastDivisor::of(divisor).quotient(number));
  }
  return 0;
}
