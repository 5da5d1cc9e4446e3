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

  /// Keep the sums of a consumer in shared memory, once all consumers have read the stages.
  CUTLASS_DEVICE static void keep(Storage const& storage, Consumer const& consumer, OfConsumer const& sums) {
    int const first_column = Tile::kHasWindow ? consumer.tap_row * Tile::kTapColumns * kBlock : 0;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions; ++i) {
        int const column = first_column + i * Tile::kGroup * kBlock;
        keep(storage, consumer.part, (consumer.first_block + block) * kBlock, column, sums[block][i]);
      }
    }
  }

  /// Write a consumer's sums as partial sums of the cluster.
  CUTLASS_DEVICE static void write(
      Params const& params, Output const& output, Consumer const& consumer, OfConsumer const& sums) {
    constexpr int kEights = kBlock / 8;
    typename Sums::Params const& combined = params.combined;
    int const thread = threadIdx.x % kWarpGroup, lane = thread % 32;
    int const row = output.filter + consumer.first_block * kBlock + thread / 32 * 16 + lane / 4;
    int const of_tap = ceil_div(params.channels, kBlock);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Tile::kChannelBlocks; ++i) {
      int const number = output.block + i, tap = number / of_tap, channel = (number - tap * of_tap) * kBlock + lane % 4 * 2;
      if (tap >= params.taps_high * params.taps_wide) break;
      float* const column = params.sums + tap * params.channels + channel;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Tile::kBlocks; ++block) {
        CUTLASS_PRAGMA_UNROLL
        for (int half = 0; half < 2; ++half) {
          int const here = row + block * kBlock + half * 8;
          float* const to = column + (int64_t(output.partial) * combined.rows + here) * combined.columns;
          CUTLASS_PRAGMA_UNROLL
          for (int eight = 0; eight < kEights; ++eight) {
            float const* const from = &sums[block][i / Tile::kGroup][(i % Tile::kGroup * kEights + eight) * 4 + half * 2];
            if (here < combined.rows && channel + eight * 8 < params.channels) {
              *reinterpret_cast<float2*>(to + eight * 8) = make_float2(from[0], from[1]);
            }
          }
        }
      }
    }
  }

  /// Complete the tile together with the other CTAs of the cluster that share it, by the warps of all consumers.
  CUTLASS_DEVICE static void complete(
      Params const& params, Storage const& storage, Work const& work, Output const& output, int warp) {
    constexpr int kOfBlock = kBlock / kTileColumns, kStrips = Tile::kClass.sum_columns() / kTileColumns;
    constexpr int kTiles = Tile::kFilterBlocks * kBlock / kTileRows * kStrips, kAll = Tile::kConsumers * kWarps;
    typename Sums::Params const& combined = params.combined;
    int const lane = threadIdx.x % 32;
    for (int number = work.rank * kAll + warp; number < kTiles; number += params.ranks * kAll) {
      int const down = number / kStrips, across = number - down * kStrips;
      int const first_row = output.filter + down * kTileRows;
      // A strip without channels is completed, too: its parts of reductions are added.
      int const strip = strip_of(params, output, across / kOfBlock, across % kOfBlock);
      if (strip < 0 || first_row >= params.filters) continue;
      float2 sums[fragment::kRows] = {};
      uint32_t const from = storage.sum(0, down * kTileRows + lane % Lanes::kRows,
                                        across * kTileColumns + lane / Lanes::kRows * 2);
      auto const place_of = [&](int rank) {
        return kit::set_block_rank(from, rank * params.neighbours + work.neighbour);
      };
      if (params.ranks == 1) {
        add<1>(storage, [&](int) { return from; }, sums);
      } else if (params.ranks == 2) {
        add<2>(storage, place_of, sums);
      } else {
        for (int rank = 0; rank < params.ranks; rank += kAtATime) {
          add<kAtATime>(storage, [&](int i) { return place_of(rank + i); }, sums);
        }
      }
      fragment::Tile const tile = combined.tile(first_row / kTileRows, strip);
      int const row = first_row + lane % Lanes::kRows;
      if (combined.splits == 1) {
        Sums::visit(combined, tile, row, sums);
      } else {
        Sums::write(combined, params.sums, output.partial, tile, row, sums);
      }
    }
  }

 private:
  static constexpr int kAtATime = 4;  // CTAs of a large cluster whose sums are loaded before they are added

  /// The strip of a part of a CTA's block of channels; -1 for a block beyond the gradient.
  CUTLASS_DEVICE static int strip_of(Params const& params, Output const& output, int block, int part) {
    constexpr int kOfBlock = kBlock / kTileColumns;
    if constexpr (Tile::kHasWindow) {
      int const y = output.tap_row + block / Tile::kTapColumns, x = output.tap_column + block % Tile::kTapColumns;
      bool const is_tap = y < params.taps_high && x < params.taps_wide;
      int const tap = y * params.taps_wide + x;
      return is_tap ? tap * params.combined.strips_of_tap() + output.block * kOfBlock + part : -1;
    } else {
      int const strip = (output.block + block) * kOfBlock + part;
      return strip < params.combined.strips ? strip : -1;
    }
  }

  /// Keep the sums of an instruction in shared memory.
  CUTLASS_DEVICE static void keep(
      Storage const& storage, int part, int first_row, int first_column, float const (&sums)[Mma::kPixels / 2]) {
    int const thread = threadIdx.x % kWarpGroup, lane = thread % 32;
    uint32_t const to = storage.sum(part, first_row + thread / 32 * 16 + lane / 4, first_column + lane % 4 * 2);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Mma::kPixels / 8; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint32_t const place = to + (8 * half * (Tile::kClass.sum_columns() + kRowPadding) + 8 * i) * 4;
        kit::store_shared(place, make_float2(sums[4 * i + 2 * half], sums[4 * i + 2 * half + 1]));
      }
    }
  }

  /// Add the sums of all parts of some CTAs, all loaded before the first is added. `place_of` returns the address of a
  /// thread's sum in a CTA.
  template <int Number, class PlaceOf>
  CUTLASS_DEVICE static void add(Storage const& storage, PlaceOf const& place_of, float2 (&sums)[fragment::kRows]) {
    float2 loaded[Number][Tile::kParts][fragment::kRows];
    CUTLASS_PRAGMA_UNROLL
    for (int number = 0; number < Number; ++number) {
      uint32_t const from = place_of(number);
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < Tile::kParts; ++part) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          uint32_t const place = storage.sum(part, i * Lanes::kRows, 0) - storage.stages;
          loaded[number][part][i] = kit::load_cluster(from + place);
        }
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int number = 0; number < Number; ++number) {
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < Tile::kParts; ++part) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          sums[i].x += loaded[number][part][i].x;
          sums[i].y += loaded[number][part][i].y;
        }
      }
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_COMPLETION_HPP
