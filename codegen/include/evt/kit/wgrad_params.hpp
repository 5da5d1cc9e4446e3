#ifndef EVT_KIT_WGRAD_PARAMS_HPP
#define EVT_KIT_WGRAD_PARAMS_HPP

// The tile of a CTA, the parameters of the kernel that multiplies, and the CTA's shared memory.

#include <cstdint>

#include <cuda.h>

#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"

namespace evt {
namespace wgrad {

constexpr int kWarpGroup = 128, kWarps = kWarpGroup / 32;

/// The part of the gradient that a CTA computes. Consumers share the rows of taps, the filters and the tiles of pixels.
/// A consumer has Blocks blocks of 64 filters. An instruction multiplies Group blocks of 64 channels.
template <int TapRows, int TapColumns, int FilterConsumers, int Blocks, int ChannelBlocks, int Parts, int Group>
struct WgradTile {
  static constexpr int kTapRows = TapRows, kTapColumns = TapColumns, kFilterConsumers = FilterConsumers;
  static constexpr int kBlocks = Blocks, kFilterBlocks = FilterConsumers * Blocks, kChannelBlocks = ChannelBlocks;
  static constexpr int kParts = Parts, kGroup = Group;
  static constexpr int kConsumers = TapRows * FilterConsumers * Parts;
  static constexpr int kThreads = (1 + kConsumers) * kWarpGroup;
  static constexpr int kInstructions = TapColumns * ChannelBlocks / Group;  // of a block of filters
  static constexpr bool kHasWindow = TapRows * TapColumns > 1;
  static constexpr WgradClass kClass{TapRows, TapColumns, kFilterBlocks, ChannelBlocks, Parts};
  static_assert(TapColumns * ChannelBlocks % Group == 0, "instructions have equally many blocks");
  static_assert(!kHasWindow || ChannelBlocks == 1, "the taps of a window share a block of channels");
};

/// The parameters of both kernels. Sums: of the kernel that adds partial sums.
template <class Sums>
struct WgradParams {
  CUtensorMap gradient, input;
  WgradGeometry geometry;
  int filters, channels, taps_high, taps_wide;
  int stride_height, stride_width, dilation_height, dilation_width, pad_height, pad_width;
  int output_height, output_width;
  int filter_tiles, column_tiles, windows_wide, outputs;
  int neighbours, ranks;  // CTAs of a cluster: of several tiles of filters, each with some CTAs
  int splits;
  int streamed;     // clusters that share all tiles of the gradient; 0: a cluster has one tile
  int column_step;  // columns of the gradient's descriptor from tile to tile: 0 if tiles are a dimension
  float* sums;
  typename Sums::Params combined;
  bool encoded;

  CUTLASS_HOST_DEVICE int cluster_size() const { return neighbours * ranks; }
};

/// The shared memory of a CTA: stages, and their barriers.
template <class Tile>
struct WgradStorage {
  uint32_t stages, barriers;
  int stage_bytes;

  CUTLASS_DEVICE WgradStorage(WgradGeometry const& geometry, char* storage) : stage_bytes(geometry.stage_bytes) {
    stages = (kit::cast_smem_ptr_to_uint(storage) + kAlignment - 1) / kAlignment * kAlignment;
    barriers = stages + max(geometry.stages * stage_bytes, Tile::kClass.sum_bytes());
  }
  /// The place of a tile of sums, once all stages are multiplied.
  CUTLASS_DEVICE uint32_t sums(int part, int tile_row, int strip) const {
    constexpr int kTileRowsOfPart = Tile::kFilterBlocks * kBlock / kTileRows;
    constexpr int kStrips = Tile::kClass.sum_columns() / kTileColumns;
    return stages + ((part * kTileRowsOfPart + tile_row) * kStrips + strip) * kTileSums * 4;
  }
  CUTLASS_DEVICE uint32_t stage(int index) const { return stages + index * stage_bytes; }
  CUTLASS_DEVICE uint32_t full(int index) const { return barriers + 16 * index; }
  CUTLASS_DEVICE uint32_t empty(int index) const { return barriers + 16 * index + 8; }
};

/// A tile of the gradient that a CTA computes, and the tiles of pixels over which it sums.
template <class Tile>
struct WgradOutput {
  int filter;
  int block;                // the first block of channels: of each tap of a window, or among the blocks of all taps
  int tap_row, tap_column;  // of a window
  int first, end;           // tiles of pixels
  int partial;              // the partial sums that the cluster writes

  template <class Params>
  CUTLASS_DEVICE WgradOutput(Params const& params, int number, int neighbour) {
    int const rest = number / params.filter_tiles;
    int const tile = (number - rest * params.filter_tiles) * params.neighbours + neighbour;
    filter = tile * Tile::kFilterBlocks * kBlock;
    int const window = rest / params.column_tiles;
    block = (rest - window * params.column_tiles) * Tile::kChannelBlocks;
    tap_row = window / params.windows_wide * Tile::kTapRows;
    tap_column = window % params.windows_wide * Tile::kTapColumns;
  }
};

/// A CTA's place among the CTAs, and its outputs: one tile of the gradient, or parts of the streamed tiles.
template <class Tile>
struct WgradWork {
  int neighbour, rank, cluster;

  template <class Params>
  CUTLASS_DEVICE explicit WgradWork(Params const& params) {
    int const size = params.cluster_size(), block = size == 1 ? 0 : kit::block_rank_in_cluster();
    cluster = blockIdx.x / size;
    rank = block / params.neighbours;
    neighbour = block - rank * params.neighbours;
  }

  /// The CTAs of this rank, as receivers of TMA.
  template <class Params>
  CUTLASS_DEVICE uint16_t receivers(Params const& params) const {
    return uint16_t(((1 << params.neighbours) - 1) << rank * params.neighbours);
  }

  /// The CTA's tile, if tiles are not streamed.
  template <class Params>
  CUTLASS_DEVICE WgradOutput<Tile> output(Params const& params) const {
    int const partial = cluster / params.outputs;
    WgradOutput<Tile> found(params, cluster - partial * params.outputs, neighbour);
    int const split = partial * params.ranks + rank;
    found.first = int(first_unit(split, params.geometry.tiles, params.splits));
    found.end = int(first_unit(split + 1, params.geometry.tiles, params.splits));
    found.partial = partial;
    return found;
  }

  /// Call `function(output)` for the CTA's part of each tile of the gradient.
  template <class Params, class Function>
  CUTLASS_DEVICE void for_each_output(Params const& params, Function const& function) const {
    if (!Tile::kClass.streams() || params.streamed == 0) {
      function(output(params));
      return;
    }
    int64_t const tiles = params.geometry.tiles, units = params.outputs * tiles;
    int64_t const end = first_unit(cluster + 1, units, params.streamed);
    for (int64_t unit = first_unit(cluster, units, params.streamed); unit < end;) {
      int const number = int(unit / tiles);
      WgradOutput<Tile> found(params, number, neighbour);
      found.first = int(unit - number * tiles);
      found.end = int(min(tiles, found.first + end - unit));
      found.partial = cluster - part_of_unit(number * tiles, units, params.streamed);
      function(found);
      unit += found.end - found.first;
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_PARAMS_HPP
