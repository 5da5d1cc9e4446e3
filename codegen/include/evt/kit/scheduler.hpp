#ifndef EVT_KIT_SCHEDULER_HPP
#define EVT_KIT_SCHEDULER_HPP

// The persistent tile scheduler: the work tiles and blocks of channels of a CTA, and of each of its consumers.

#include "evt/kit/params.hpp"

namespace evt {
namespace kit {

/// A tile of the output, for one block of filters.
struct WorkTile {
  int tile, filter, column, row, image;

  template <class Traits>
  CUTLASS_DEVICE WorkTile(Params<Traits> const& params, int number, int consumer) {
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

/// The work tiles of a CTA, and its blocks of channels of each. A CTA that shares a tile also completes some steps of
/// the epilogue, from `first_step` on: `quads` of four partial sums of each thread, or none.
struct CtaWork {
  int first, stride, rank = 0, first_block = 0, channel_blocks, first_step = 0, quads;

  template <class Traits>
  CUTLASS_DEVICE explicit CtaWork(Params<Traits> const& params)
      : first(blockIdx.x), stride(gridDim.x), channel_blocks(params.channel_blocks), quads(Traits::kQuads) {
    if constexpr (Traits::kShared) {
      first = params.by_cluster_size.quotient(blockIdx.x);
      stride = params.work_tiles;  // a CTA has one
      rank = blockIdx.x - first * params.geometry.cluster_size;
      first_block = params.by_cluster_size.quotient(params.channel_blocks * rank);
      channel_blocks = params.by_cluster_size.quotient(params.channel_blocks * (rank + 1)) - first_block;
      first_step = rank * params.steps_per_cta;
      quads = min(2 * params.steps_per_cta, Traits::kQuads - 2 * first_step);
    }
  }
};

/// Whether the consumers multiply alternately, each another tile.
template <class Traits>
CUTLASS_HOST_DEVICE bool is_pingpong(Params<Traits> const& params) {
  return !Traits::kShared && !params.geometry.cooperative;
}

/// The work tiles of a consumer: pingpong consumers have every second one of the CTA's, cooperating consumers all.
struct ConsumerWork {
  int first, stride;

  template <class Traits>
  CUTLASS_DEVICE ConsumerWork(Params<Traits> const& params, CtaWork const& work, int consumer) {
    bool const pingpong = is_pingpong(params);
    first = work.first + (pingpong ? consumer * work.stride : 0);
    stride = pingpong ? 2 * work.stride : work.stride;
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_SCHEDULER_HPP
