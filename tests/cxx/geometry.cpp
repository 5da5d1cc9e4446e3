// Prints the geometry that a kernel's launcher decides, all of its fields, for each layer on the standard input: "halo", the
// 21 sizes of a problem, the class of a kernel and the number of SMs; or "depthwise", a problem, the shape of a filter and
// the bytes of elements.

#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "evt/kit/depthwise_geometry.hpp"
#include "evt/kit/geometry.hpp"

namespace {

int number() {
  int read = 0;
  if (std::scanf("%d", &read) != 1) std::fprintf(stderr, "a number is missing\n");
  return read;
}

template <class Axis>
Axis axis() {
  int const size = number(), output = number(), taps = number(), stride = number(), dilation = number(), pad = number();
  return Axis{size, output, taps, stride, dilation, pad, number()};
}

template <class Problem, class Axis>
Problem problem() {
  int const images = number(), channels = number(), filters = number();
  Axis const height = axis<Axis>(), width = axis<Axis>();
  return Problem{images, channels, filters, height, width, axis<Axis>()};
}

void print(std::initializer_list<long long> fields) {
  for (long long each : fields) std::printf("%lld ", each);
  std::printf("\n");
}

void halo() {
  using namespace evt::kit;
  Problem const p = problem<Problem, Axis>();
  int const pixels = number(), channels = number(), block_bytes = number(), pixel_bytes = number();
  bool const staged = number(), volume = number(), shared = number(), residues = number();
  bool const grouped = number(), packed = number(), words = number(), by_images = number();
  int const taps = number();
  bool const tap_rows = number(), loads_bits = number();
  KernelClass const kernel{pixels,   channels, block_bytes, pixel_bytes, staged,    volume, shared,
                           residues, grouped,  packed,      words,       by_images, taps,   tap_rows,
                           loads_bits};
  Geometry const g = scheduled(p, kernel, geometry_of(p, kernel), number());
  print({g.images, g.rows, g.columns, g.input_pitch, g.accumulator_pitch, g.box_rows, g.guard, g.tiles_high, g.tiles_wide,
         g.input_stages, g.input_stage_bytes, g.taps_per_stage, g.filter_stages, g.filter_stage_bytes, g.cluster_size,
         g.exchange_bytes, g.cooperative, g.resident, g.handover, g.epilogue_bytes});
}

void depthwise() {
  using namespace evt::depthwise;
  Problem const p = problem<Problem, Axis>();
  int shape[8];
  for (int& each : shape) each = number();
  FilterShape const filter{shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], shape[7]};
  int const a = number();
  Geometry const g = choose(filter, p, ElementBytes{a, number()});
  print({g.images, g.rows, g.columns, g.box_rows, g.box_columns, g.tiles_high, g.tiles_wide, g.tiles, g.channel_blocks});
}

}  // namespace

int main() {
  char kind[16];
  while (std::scanf("%15s", kind) == 1) std::strcmp(kind, "halo") == 0 ? halo() : depthwise();
  return 0;
}
