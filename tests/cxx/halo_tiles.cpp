// Prints the tiles that evt::halo::choose finds for the problems on the standard input: a problem of 15 numbers in the
// order of evt::halo::Problem in a line, then the pixels, the channels of a plane, the bytes of an element, whether it is
// a volume, and its taps along the depth.

#include <cstdio>

#include "evt/halo_geometry.hpp"

int main() {
  evt::halo::Problem p;
  int pixels, channels, element_bytes, volume;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d", &p.images, &p.height, &p.width,
                    &p.channels, &p.filters, &p.filter_height, &p.filter_width, &p.output_height, &p.output_width,
                    &p.pad_height, &p.pad_width, &p.stride_height, &p.stride_width, &p.dilation_height,
                    &p.dilation_width, &pixels, &channels, &element_bytes, &volume, &p.filter_depth) == 20) {
    evt::halo::Class const kernel{pixels, channels, channels * element_bytes, true, volume != 0};
    evt::halo::Geometry const made = evt::halo::choose(p, kernel);
    if (made.stages > 0) {
      std::printf("%d %d %d %d %d %d\n", made.images, made.rows, made.columns, made.pitch, made.box_rows,
                  made.tiles_high * made.tiles_wide);
    } else {
      std::printf("none\n");
    }
  }
  return 0;
}
