// Prints the tiles that evt::halo::choose finds for the problems on the standard input: a problem of 15 numbers in the
// order of evt::halo::Problem in a line, then the pixels, the channels of a plane, the bytes of an element, whether it is
// a volume, its taps along the depth, whether it has windows, whether thread blocks share tiles, and whether TMA moves C or
// D. With each, the taps of a run, how many thread blocks share a tile, the boxes in flight, and the bytes of shared
// memory up to the last one that an instruction reads. With an argument, that many multiprocessors, instead: whether
// consumers are paired, whether filters stay, the boxes in flight, the runs of filters in flight, and the thread blocks.

#include <cstdio>
#include <cstdlib>

#include "evt/halo_geometry.hpp"

/// The end of what instructions read of the last box, from the beginning of the first: eight rows of a plane's bytes each.
int end_of_reads(evt::halo::Problem const& problem, evt::halo::Class const& kernel, evt::halo::Geometry const& made) {
  evt::halo::Taps const taps = evt::halo::taps_of(problem, made.pitch);
  int end = 0;
  for (int i = 0; i < taps.number; ++i) {
    int const last = taps.tap[i].shift() + (kernel.pixels / 8 - 1) * made.next_eight() + 7;
    end = std::max(end, (made.stages - 1) * made.stage_bytes + last * kernel.pixel_bytes + kernel.plane_bytes);
  }
  return end;
}

/// Print what the number of multiprocessors decides.
void print_work(evt::halo::Problem const& problem, evt::halo::Class const& kernel, int multiprocessors) {
  evt::halo::Geometry made = evt::halo::choose(problem, kernel);
  evt::halo::pair(problem, kernel, multiprocessors, made);
  evt::halo::stream_filters(problem, kernel, multiprocessors, made);
  int const blocks = evt::halo::ceil_div(problem.filters, evt::halo::kFilters * (made.paired ? 2 : 1));
  int const grid = evt::halo::grid_of(made.tiles(problem) * blocks, blocks, multiprocessors, made.resident);
  std::printf("%d %d %d %d %d\n", made.paired, made.resident, made.stages, made.slabs, grid);
}

int main(int argc, char** argv) {
  evt::halo::Problem p;
  int pixels, channels, element_bytes, volume, windows, shared, staged;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d", &p.images, &p.height, &p.width,
                    &p.channels, &p.filters, &p.filter_height, &p.filter_width, &p.output_height, &p.output_width,
                    &p.pad_height, &p.pad_width, &p.stride_height, &p.stride_width, &p.dilation_height,
                    &p.dilation_width, &pixels, &channels, &element_bytes, &volume, &p.filter_depth, &windows,
                    &shared, &staged) == 23) {
    int const bytes = channels * element_bytes;
    evt::halo::Class const kernel{pixels, channels, bytes, staged != 0, volume != 0,
                                   windows ? evt::halo::kWindowBytes : bytes, shared != 0};
    if (windows) p = evt::halo::over_windows(p, kernel);
    if (argc > 1) {
      print_work(p, kernel, std::atoi(argv[1]));
      continue;
    }
    evt::halo::Geometry made = evt::halo::choose(p, kernel);
    if (made.stages > 0 && (!shared || evt::halo::split_over_cluster(p, kernel, made))) {
      std::printf("%d %d %d %d %d %d %d %d %d %d %d\n", made.images, made.rows, made.columns, made.pitch, made.sum_pitch,
                  made.box_rows, made.tiles_high * made.tiles_wide, made.run, made.blocks, made.stages, end_of_reads(p, kernel, made));
    } else {
      std::printf("none\n");
    }
  }
  return 0;
}
