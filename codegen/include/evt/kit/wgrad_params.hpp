#ifndef EVT_KIT_WGRAD_PARAMS_HPP
#define EVT_KIT_WGRAD_PARAMS_HPP

// The tile of a CTA, the parameters of the kernel that multiplies, and the CTA's shared memory.

#include <cstdint>

#include <cuda.h>

#include "evt/kit/divisor.hpp"
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
  static constexpr WgradClass kClass{TapRows, TapColumns, kFilterBlocks, ChannelBlocks, Parts, kInstructions};
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
  int share;        // tiles of pixels of a CTA, at most: of one tile of the gradient, or of all
  int column_step;  // columns of the gradient's descriptor from tile to tile: 0 if tiles are a dimension
  int blocks_of_tap;  // of channels
  int gradient_is_packed, input_is_packed;  // their pixels and blocks are dimensions of the descriptor
  kit::FastDivisor by_cluster_size, by_outputs, by_filter_tiles, by_image_pixels, by_output_width;
  kit::FastDivisor by_blocks_of_tap, by_taps_wide, by_tiles, by_share;
  float* sums;
  typename Sums::Params combined;
  bool encoded;

  CUTLASS_HOST_DEVICE int cluster_size() const { return neighbours * ranks; }
};

/// The shared memory of a CTA: stages, and their barriers. Once all stages are multiplied, the CTA's sums are in their
/// place, after the stages through which its parts join.
template <class Tile>
struct WgradStorage {
  static constexpr int kTileRows = Tile::kFilterBlocks * kBlock / wgrad::kTileRows;  // tiles of a strip follow each other
  static constexpr int kTiles = Tile::kClass.sum_tiles(), kTileBytes = kTileSums * 4;

  uint32_t stages, barriers;
  int stage_bytes;

  CUTLASS_DEVICE WgradStorage(WgradGeometry const& geometry, char* storage) : stage_bytes(geometry.stage_bytes) {
    stages = (kit::cast_smem_ptr_to_uint(storage) + kAlignment - 1) / kAlignment * kAlignment;
    barriers = stages + kStagesBytes;
  }
  /// The place of a tile of the CTA's sums.
  CUTLASS_DEVICE uint32_t sums(int strip, int tile_row) const {
    return stages + Tile::kClass.join_bytes() + (strip * kTileRows + tile_row) * kTileBytes;
  }
  CUTLASS_DEVICE uint32_t stage(int index) const { return stages + index * stage_bytes; }
  CUTLASS_DEVICE uint32_t full(int index) const { return barriers + 16 * index; }
  CUTLASS_DEVICE uint32_t empty(int index) const { return barriers + 16 * index + 8; }
  /// The other CTA of a tile has multiplied; and its sums are there.
  CUTLASS_DEVICE uint32_t multiplied() const { return full(kMaxStages); }
  CUTLASS_DEVICE uint32_t exchanged() const { return multiplied() + 8; }
};

/// A tile of the gradient that a CTA computes, and the tiles of pixels over which it sums.
template <class Tile>
struct WgradOutput {
  int filter;
  int block;                // the first block of channels: of each tap of a window, or among the blocks of all taps
  int tap_row, tap_column;  // of a window
  int first, end;           // tiles of pixels
  int unit;                 // the first one, if tiles are streamed
  int partial;              // the partial sums that the cluster writes

  template <class Params>
  CUTLASS_DEVICE WgradOutput(Params const& params, int number, int neighbour) {
    int const rest = params.by_filter_tiles.quotient(number);
    int const tile = (number - rest * params.filter_tiles) * params.neighbours + neighbour;
    filter = tile * Tile::kFilterBlocks * kBlock;
    int const window = Tile::kHasWindow ? rest / params.column_tiles : 0;
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
    cluster = params.by_cluster_size.quotient(blockIdx.x);
    rank = params.neighbours == 1 ? block : block / 2;
    neighbour = block - rank * params.neighbours;
  }

  /// The CTAs of this rank, as receivers of TMA.
  template <class Params>
  CUTLASS_DEVICE uint16_t receivers(Params const& params) const {
    return uint16_t(((1 << params.neighbours) - 1) << rank * params.neighbours);
  }

  /// The CTA's tile, or its part of the first of its streamed tiles.
  template <class Params>
  CUTLASS_DEVICE WgradOutput<Tile> first_output(Params const& params) const {
    if (streams(params)) return part(params, cluster * params.share);
    int const partial = params.by_outputs.quotient(cluster);
    WgradOutput<Tile> found(params, cluster - partial * params.outputs, neighbour);
    found.first = (partial * params.ranks + rank) * params.share;
    found.end = min(found.first + params.share, params.geometry.tiles);
    found.partial = partial;
    return found;
  }

  /// Go on to the CTA's part of the next one of its streamed tiles. Return whether there is one.
  template <class Params>
  CUTLASS_DEVICE bool next_output(Params const& params, WgradOutput<Tile>& output) const {
    if (!streams(params)) return false;
    int const unit = output.unit + output.end - output.first;
    if (unit >= end_of_units(params)) return false;
    output = part(params, unit);
    return true;
  }

 private:
  template <class Params>
  CUTLASS_DEVICE static bool streams(Params const& params) {
    return Tile::kClass.streams() && params.streamed > 0;
  }

  /// The end of the CTA's units of the streamed tiles.
  template <class Params>
  CUTLASS_DEVICE int end_of_units(Params const& params) const {
    return min((cluster + 1) * params.share, params.outputs * params.geometry.tiles);
  }

  /// The CTA's part of the streamed tile that has a unit.
  template <class Params>
  CUTLASS_DEVICE WgradOutput<Tile> part(Params const& params, int unit) const {
    int const tiles = params.geometry.tiles, number = params.by_tiles.quotient(unit);
    WgradOutput<Tile> found(params, number, neighbour);
    found.first = unit - number * tiles;
    found.end = min(tiles, found.first + end_of_units(params) - unit);
    found.unit = unit;
    found.partial = cluster - params.by_share.quotient(number * tiles);
    return found;
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_PARAMS_HPP
