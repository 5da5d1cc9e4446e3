// Prints the tiles that evt::halo::choose finds for the problems on the standard input: a problem of 15 numbers in the
// order of evt::halo::Problem in a line, then the pixels, the channels of a plane, the bytes of an element, whether it is
// a volume, its taps along the depth, the pixels of a window, and whether thread blocks share tiles. With each, the taps
// of a run, and how many thread blocks share a tile. Windows that are not the problem's are refused.

#include <cstdio>

#include "evt/halo_geometry.hpp"

int main() {
  evt::halo::Problem p;
  int pixels, channels, element_bytes, volume, shared;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d", &p.images, &p.height, &p.width,
                    &p.channels, &p.filters, &p.filter_height, &p.filter_width, &p.output_height, &p.output_width,
                    &p.pad_height, &p.pad_width, &p.stride_height, &p.stride_width, &p.dilation_height,
                    &p.dilation_width, &pixels, &channels, &element_bytes, &volume, &p.filter_depth, &p.window,
                    &shared) == 22) {
    int const bytes = channels * element_bytes;
    evt::halo::Class const kernel{pixels, channels, bytes, true, volume != 0, bytes / p.window, shared != 0};
    if (!evt::halo::has_its_windows(p, kernel)) {
      std::printf("refused\n");
      continue;
    }
    evt::halo::Geometry made = evt::halo::choose(p, kernel);
    if (made.stages > 0 && (!shared || evt::halo::share(p, kernel, made))) {
      std::printf("%d %d %d %d %d %d %d %d %d\n", made.images, made.rows, made.columns, made.pitch, made.sum_pitch,
                  made.box_rows, made.tiles_high * made.tiles_wide, made.run, made.blocks);
    } else {
      std::printf("none\n");
    }
  }
  return 0;
}
