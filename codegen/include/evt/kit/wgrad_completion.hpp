#ifndef EVT_KIT_WGRAD_COMPLETION_HPP
#define EVT_KIT_WGRAD_COMPLETION_HPP

// The CTAs of a cluster that share a tile of the gradient add their sums, in a fixed order, and complete the tile: they
// compute the epilogue, or write partial sums for the second kernel.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_multiplication.hpp"
#include "evt/kit/wgrad_params.hpp"
#include "evt/kit/wgrad_sums.hpp"

namespace evt {
namespace wgrad {

template <class Tile, class Mma, class Epilogue>
struct WgradCompletion {
  using Storage = WgradStorage<Tile>;
  using Work = WgradWork<Tile>;
  using Output = WgradOutput<Tile>;
  using Consumer = WgradConsumer<Tile>;
  using Sums = SplitSums<Epilogue>;
  using Params = WgradParams<Sums>;
  using OfConsumer = typename WgradMultiplication<Tile, Mma>::Sums;
  static constexpr int kStripsOfBlock = kBlock / kTileColumns;

  /// Keep the sums of a consumer in shared memory, once all consumers have read the stages.
  CUTLASS_DEVICE static void keep(Storage const& storage, Consumer const& consumer, OfConsumer const& sums) {
    uint32_t const of_lane = threadIdx.x % 32 * 16;
    for_each_tile(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
      uint32_t const to = storage.sums(consumer.part, tile_row, strip) + of_lane;
      kit::store_shared(to, halves[0]);
      kit::store_shared(to + TileOrder::kHalf * 4, halves[1]);
    });
  }

  /// Write a consumer's sums as partial sums of the cluster.
  CUTLASS_DEVICE static void write(
      Params const& params, Output const& output, Consumer const& consumer, OfConsumer const& sums) {
    typename Sums::Params const& combined = params.combined;
    int const first_tile = output.filter / kTileRows, first_strip = output.block * kStripsOfBlock;
    float* const of_lane = params.sums + combined.place(output.partial, first_tile, first_strip) + threadIdx.x % 32 * 4;
    for_each_tile(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
      if ((first_tile + tile_row) * kTileRows >= combined.rows || first_strip + strip >= combined.strips) return;
      float* const to = of_lane + combined.place(0, tile_row, strip);
      *reinterpret_cast<float4*>(to) = halves[0];
      *reinterpret_cast<float4*>(to + TileOrder::kHalf) = halves[1];
    });
  }

  /// Complete the tile together with the other CTAs of the cluster that share it, by the warps of all consumers.
  CUTLASS_DEVICE static void complete(
      Params const& params, Storage const& storage, Work const& work, Output const& output, int warp) {
    constexpr int kAll = Tile::kConsumers * kWarps;
    int const step = params.ranks * kAll, last = kTiles - 1;
    uint32_t const of_lane = storage.sums(0, 0, 0) + TileOrder::place(threadIdx.x % 32) * 4;
    for (int first = work.rank * kAll + warp; first < kTiles; first += kTogether * step) {
      uint32_t tiles[kTogether];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) tiles[i] = of_lane + min(first + i * step, last) * (kTileSums * 4);
      float2 sums[kTogether][fragment::kRows] = {};
      auto const place_of = [&](int i, int rank) {
        return kit::set_block_rank(tiles[i], rank * params.neighbours + work.neighbour);
      };
      if (params.ranks == 1) {
        add<1>(storage, [&](int i, int) { return tiles[i]; }, sums);
      } else if (params.ranks == 2) {
        add<2>(storage, place_of, sums);
      } else {
        add<4>(storage, place_of, sums);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (first + i * step < kTiles) complete_tile(params, output, first + i * step, sums[i]);
      }
    }
  }

 private:
  static constexpr int kStrips = Tile::kClass.sum_columns() / kTileColumns;  // of the CTA
  static constexpr int kTiles = Tile::kFilterBlocks * kBlock / kTileRows * kStrips;
  static constexpr int kTogether = 2;  // tiles whose sums a warp loads before it adds the first ones

  /// Complete a warp's tile of the CTA.
  CUTLASS_DEVICE static void complete_tile(
      Params const& params, Output const& output, int number, float2 const (&sums)[fragment::kRows]) {
    typename Sums::Params const& combined = params.combined;
    int const lane = threadIdx.x % 32, down = number / kStrips, across = number - down * kStrips;
    int const first_row = output.filter + down * kTileRows;
    // A strip without channels is completed, too: its parts of reductions are added.
    int const strip = strip_of(params, output, across / kStripsOfBlock, across % kStripsOfBlock);
    if (strip < 0 || first_row >= params.filters) return;
    int const tile_row = first_row / kTileRows;
    if (combined.splits == 1) {
      Sums::visit(combined, combined.tile(tile_row, strip), first_row + lane % Lanes::kRows, sums);
    } else {
      Sums::write(params.sums + combined.place(output.partial, tile_row, strip) + TileOrder::place(lane), sums);
    }
  }

  /// The strip of a part of a CTA's block of channels; -1 for a block beyond the gradient.
  CUTLASS_DEVICE static int strip_of(Params const& params, Output const& output, int block, int part) {
    if constexpr (Tile::kHasWindow) {
      int const y = output.tap_row + block / Tile::kTapColumns, x = output.tap_column + block % Tile::kTapColumns;
      bool const is_tap = y < params.taps_high && x < params.taps_wide;
      int const tap = y * params.taps_wide + x;
      return is_tap ? tap * params.combined.strips_of_tap() + output.block * kStripsOfBlock + part : -1;
    } else {
      int const strip = (output.block + block) * kStripsOfBlock + part;
      return strip < params.combined.strips ? strip : -1;
    }
  }

  /// Call `function(tile_row, strip, halves)` for each tile of 8 rows and 32 columns of a warp's sums.
  template <class Function>
  CUTLASS_DEVICE static void for_each_tile(Consumer const& consumer, OfConsumer const& sums, Function const& function) {
    constexpr int kStrips = Mma::kPixels / kTileColumns;  // of an instruction
    int const first_strip = Tile::kHasWindow ? consumer.tap_row * Tile::kTapColumns * kStripsOfBlock : 0;
    int const first_row = consumer.first_block * (kBlock / kTileRows) + threadIdx.x % kWarpGroup / 32 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions * kStrips; ++i) {
        float const* const of_strip = sums[block][i / kStrips] + i % kStrips * (kTileColumns / 2);
        CUTLASS_PRAGMA_UNROLL
        for (int lower = 0; lower < 2; ++lower) {
          float const* const from = of_strip + 2 * lower;
          float4 const halves[2] = {make_float4(from[0], from[1], from[4], from[5]),
                                    make_float4(from[8], from[9], from[12], from[13])};
          function(first_row + block * (kBlock / kTileRows) + lower, first_strip + i, halves);
        }
      }
    }
  }

  /// Add the sums of all parts of some CTAs, all loaded before the first is added. `place_of` returns the address of a
  /// thread's sum of a tile in a CTA.
  template <int Ranks, class PlaceOf>
  CUTLASS_DEVICE static void add(
      Storage const& storage, PlaceOf const& place_of, float2 (&sums)[kTogether][fragment::kRows]) {
    constexpr int kSums = Ranks * Tile::kParts;
    float2 loaded[kTogether][kSums][fragment::kRows];
    CUTLASS_PRAGMA_UNROLL
    for (int tile = 0; tile < kTogether; ++tile) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSums; ++i) {
        uint32_t const of_part = storage.sums(i % Tile::kParts, 0, 0) - storage.stages;
        uint32_t const from = place_of(tile, i / Tile::kParts) + of_part;
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < fragment::kRows; ++row) {
          loaded[tile][i][row] = kit::load_cluster(from + row * TileOrder::kRowsApart * 4);
        }
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int tile = 0; tile < kTogether; ++tile) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSums; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < fragment::kRows; ++row) {
          sums[tile][row].x += loaded[tile][i][row].x;
          sums[tile][row].y += loaded[tile][i][row].y;
        }
      }
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_COMPLETION_HPP
