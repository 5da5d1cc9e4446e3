#ifndef EVT_HALO_SCHEDULE_HPP
#define EVT_HALO_SCHEDULE_HPP

// What a thread block of the kernel has to do, and what of it a consumer.

#include "evt/halo_taps.hpp"
#include "evt/halo_params.hpp"

namespace evt {
namespace halo {

/// A tile of the output, and a block of filters.
struct Item {
  int tile, filter, column, row, image;

  template <class Traits>
  CUTLASS_DEVICE Item(Params<Traits> const& params, int number, int consumer) {
    Geometry const& geometry = params.geometry;
    tile = params.by_filter_blocks.quotient(number);
    int const block = number - tile * params.filter_blocks;
    filter = (geometry.cooperative ? 2 * block + consumer : block) * kFilters;
    int const tile_row = params.by_tiles_wide.quotient(tile), tiles = params.by_tiles_high.quotient(tile_row);
    column = (tile - tile_row * geometry.tiles_wide) * geometry.columns;
    row = (tile_row - tiles * geometry.tiles_high) * geometry.rows;
    image = tiles * geometry.images;
  }
};

/// What a thread block has to do: every so many items, and of each so many planes. Of a shared item it also completes
/// some steps of the epilogue, from `first_step` on, which have so many `quads` of a thread's sums; some may have none.
struct Part {
  int first, stride, rank = 0, first_plane = 0, planes, first_step = 0, quads;

  template <class Traits>
  CUTLASS_DEVICE explicit Part(Params<Traits> const& params)
      : first(blockIdx.x), stride(gridDim.x), planes(params.planes), quads(Traits::kQuads) {
    if constexpr (Traits::kShared) {
      int const blocks = params.geometry.cluster_size;
      first = params.by_blocks.quotient(blockIdx.x);
      stride = params.items;  // there is one
      rank = blockIdx.x - first * blocks;
      first_plane = params.by_blocks.quotient(params.planes * rank);
      planes = params.by_blocks.quotient(params.planes * (rank + 1)) - first_plane;
      first_step = rank * params.steps_per_block;
      quads = min(2 * params.steps_per_block, Traits::kQuads - 2 * first_step);
    }
  }
};

/// Whether the consumers multiply one after the other, each a tile of its own.
template <class Traits>
CUTLASS_HOST_DEVICE bool takes_turns(Params<Traits> const& params) {
  return !Traits::kShared && !params.geometry.cooperative;
}

/// The items of a consumer: every second one of the thread block's, or all of them.
struct ConsumerItems {
  int first, stride;

  template <class Traits>
  CUTLASS_DEVICE ConsumerItems(Params<Traits> const& params, Part const& part, int consumer) {
    bool const turns = takes_turns(params);
    first = part.first + (turns ? consumer * part.stride : 0);
    stride = turns ? 2 * part.stride : part.stride;
  }
};

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_SCHEDULE_HPP
