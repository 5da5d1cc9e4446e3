#ifndef EVT_KIT_SCHEDULER_HPP
#define EVT_KIT_SCHEDULER_HPP

// The persistent tile scheduler: the work tiles and blocks of channels of a CTA, and of each of its consumers.

#include "evt/kit/group_blocks.hpp"
#include "evt/kit/params.hpp"

namespace evt {
namespace kit {

/// A tile of the output, for one block of filters. With groups, `place` is the block's place among them.
struct WorkTile {
  int tile, filter, column, row, image;
  int slice = 0, residue = 0;  // a slice of volumes, a class of pixels
  GroupPlace place;

  template <class Traits>
  CUTLASS_DEVICE WorkTile(Params<Traits> const& params, int number, int consumer) {
    Geometry const& geometry = params.geometry;
    if constexpr (Traits::kResidues) {
      residue = params.operands.by_work_tiles.quotient(number);
      number -= residue * params.operands.work_tiles;
    }
    tile = params.by_filter_blocks.quotient(number);
    int const block = number - tile * params.filter_blocks;
    if constexpr (Traits::kGrouped) {
      place = params.operands.groups.place(block);
      filter = place.slice * params.operands.groups.filters + place.filter;
    } else {
      filter = (geometry.cooperative ? 2 * block + consumer : block) * kFilters;
    }
    int const tile_row = params.by_tiles_wide.quotient(tile), tiles = params.by_tiles_high.quotient(tile_row);
    column = (tile - tile_row * geometry.tiles_wide) * geometry.columns;
    row = (tile_row - tiles * geometry.tiles_high) * geometry.rows;
    if constexpr (Traits::kVolume) {
      int const volumes = tiles / params.depth.output;
      slice = tiles - volumes * params.depth.output;
      image = volumes * geometry.images;
    } else {
      image = tiles * geometry.images;
    }
    if constexpr (Traits::kResidues) tile += residue * params.operands.tiles;
  }
};

/// The blocks of channels and the taps that a CTA multiplies for a work tile, and their stages in both pipelines.
struct TileWork {
  BlockRange blocks, taps;
  int input_stages, filter_stages;
};

/// The work tiles of a CTA. A CTA that shares a tile also completes some steps of the epilogue, from `first_step` on:
/// `quads` of four partial sums of each thread, or none.
struct CtaWork {
  int first, stride, rank = 0, first_step = 0, quads;

  template <class Traits>
  CUTLASS_DEVICE explicit CtaWork(Params<Traits> const& params)
      : first(blockIdx.x), stride(gridDim.x), quads(Traits::kQuads) {
    if constexpr (Traits::kShared) {
      first = params.by_cluster_size.quotient(blockIdx.x);
      stride = params.work_tiles;  // a CTA has one
      rank = blockIdx.x - first * params.geometry.cluster_size;
      first_step = rank * params.steps_per_cta;
      quads = min(2 * params.steps_per_cta, Traits::kQuads - 2 * first_step);
    }
  }

  /// Return the part of a work tile that the CTA multiplies: nothing after the last one.
  template <class Traits>
  CUTLASS_DEVICE TileWork of_tile(Params<Traits> const& params, int number) const {
    if (Traits::kResidues && number >= params.work_tiles) return {};
    BlockRange const range = blocks(params, number);
    BlockRange taps{0, params.taps.number};
    if constexpr (Traits::kResidues) taps = params.operands.residues.taps(WorkTile(params, number, 0).residue);
    int const groups = Traits::kResidues && taps.number == 0 ? 0 : params.taps.groups;
    int const taps_of_stage = Traits::kResidues ? 1 : params.geometry.taps_per_stage;
    return {range, taps, range.number * groups, range.number * taps.number / taps_of_stage};
  }

  /// Return the blocks of channels that the CTA multiplies for a work tile: none outside of a volume.
  template <class Traits>
  CUTLASS_DEVICE BlockRange blocks(Params<Traits> const& params, int number) const {
    BlockRange all{0, params.channel_blocks};
    if constexpr (Traits::kVolume) all = params.depth.inside(WorkTile(params, number, 0).slice);
    if constexpr (Traits::kShared) {
      int const first = params.by_cluster_size.quotient(all.number * rank);
      return {all.first + first, params.by_cluster_size.quotient(all.number * (rank + 1)) - first};
    }
    return all;
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
