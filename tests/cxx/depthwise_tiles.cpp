// Prints the tiles that evt::depthwise::choose finds for the problems on the standard input: 15 numbers in the order of
// evt::depthwise::Problem in a line, then which of the filters below it is, and the bytes of an element of A and of C. With
// each, what the kernel would do: the instructions of a thread and the bytes of shared memory of a thread block of one
// unit, and of the tile.

#include <cstdio>

#include "evt/depthwise_geometry.hpp"

using namespace evt::depthwise;

template <class Filter>
void print(Problem const& problem, ElementBytes elements) {
  Geometry const made = choose<Filter>(problem, elements);
  int const least = Memory::of<Filter>(cut<Filter>(problem, 1, 1, 1), elements).bytes;
  std::printf("%d %d %d %d %d %d %d %lld %d %d %d %d %d\n", made.images, made.rows, made.columns, made.box_rows,
              made.box_columns, made.tiles_high, made.tiles_wide, static_cast<long long>(made.tiles), made.channel_blocks,
              made.threads(), Filter::kInstructions, least, Memory::of<Filter>(made, elements).bytes);
}

int main() {
  Problem p;
  int filter;
  ElementBytes e;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d", &p.images, &p.height, &p.width, &p.channels,
                    &p.filters, &p.filter_height, &p.filter_width, &p.output_height, &p.output_width, &p.pad_height,
                    &p.pad_width, &p.stride_height, &p.stride_width, &p.dilation_height, &p.dilation_width, &filter, &e.a,
                    &e.c) == 18) {
    switch (filter) {
      case 0: print<Filter<3, 3, 1, 1, 1, 1, 2, 7, false>>(p, e); break;
      case 1: print<Filter<7, 7, 1, 1, 1, 1, 4, 7, false>>(p, e); break;
      case 2: print<Filter<5, 3, 2, 1, 1, 2, 1, 8, false>>(p, e); break;
      default: print<Filter<3, 5, 1, 3, 4, 1, 2, 5, true>>(p, e);
    }
  }
  return 0;
}
