#ifndef EVT_KIT_GEMM_COMPLETION_HPP
#define EVT_KIT_GEMM_COMPLETION_HPP

// A consumer completes a tile: it exchanges partial sums with the CTAs of a cluster, and computes the epilogue.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/kit/gemm_exchange.hpp"
#include "evt/kit/gemm_params.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/step.hpp"
#include "evt/kit/strips.hpp"

namespace evt {
namespace kit {

/// The completion of a consumer's tiles.
template <class Traits>
struct GemmCompletion {
  using Params = GemmParams<Traits>;
  using Storage = GemmStorage<Traits>;
  using Work = GemmWork<Traits>;
  using Epilogue = typename Traits::Epilogue;
  using Lanes = typename Traits::Lanes;

  /// The epilogues of a consumer's blocks. `columns(block)` gives the columns of a thread.
  template <class Blocks>
  struct EpiloguesOf;
  template <int... Blocks>
  struct EpiloguesOf<Indices<Blocks...>> {
    Epilogue each[sizeof...(Blocks)];

    template <class Columns>
    CUTLASS_DEVICE EpiloguesOf(typename Epilogue::Params const& params, Columns const& columns)
        : each{Epilogue(params, columns(Blocks))...} {}
  };
  using Epilogues = EpiloguesOf<IndicesTo<Traits::kBlocks>>;

  /// The columns of a thread in a block of the consumer whose columns begin at `column`, and the rows from `row` on. A
  /// warp has the strips of its pairs in both blocks one after the other.
  CUTLASS_DEVICE static fragment::Tile columns_of(
      Params const& params, Work const& work, int rank, int column, int block, int row) {
    int const thread = threadIdx.x % kWarpGroup, warp = thread / 32;
    int const strip = column / Lanes::kStrip +
                      (Traits::kPaired ? Traits::kMembers * warp + block : kFilters / Lanes::kStrip * block + warp);
    return {Lanes::column_of_strip(strip) + Lanes::first_of(thread % 32), params.columns,
            work.tile * Traits::kSplits + rank / Traits::kMulticast, strip, Traits::strips_of(params.columns), work.group,
            params.columns, row, work.end};
  }

  /// The tile of a warp of a consumer by rows: 16 rows of a strip of columns.
  CUTLASS_DEVICE static fragment::Tile tile_of_strip(Params const& params, Work const& work, int consumer, int strip) {
    int const warp = threadIdx.x % kWarpGroup / 32, lane = threadIdx.x % 32;
    int const row = Traits::row_of_consumer(consumer) + warp * kStepPixels, number = work.column / Lanes::kStrip + strip;
    return {Lanes::column_of_strip(number) + Lanes::first_of(lane), params.columns,
            work.tile * Traits::kRowTiles + row / kStepPixels, number, Traits::strips_of(params.columns), work.group,
            params.columns, work.row + row, work.end};
  }

  /// C of the last parts of a tile.
  struct Kept {
    uint32_t words[std::max(Traits::kKept, 1)][std::max(Traits::kPartWords, 1)];
  };

  using Beginnings = typename Traits::Staged::Beginnings;

  /// Arrive at the barrier of a part, by a warp or by all of its lanes.
  CUTLASS_DEVICE static void arrive_at_part(uint32_t barrier) {
    if (Traits::kPartArrivals > 1 || threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  /// Keep C of the last parts of a tile, and release its buffers.
  CUTLASS_DEVICE static void keep_parts(
      Storage const& storage, int consumer, PipelineState& buffer, Kept& kept, Beginnings const& beginnings) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Traits::kKept; ++i) {
      barrier_wait(storage.ready(consumer, buffer.index), buffer.phase);
      using Lane = typename EpilogueStep<Traits>::Lane;
      int const warp = threadIdx.x % kWarpGroup / 32;
      EpilogueStep<Traits>::keep(Lane(storage.buffer(consumer, buffer.index), warp, 0, beginnings), kept.words[i]);
      fence_view_async_shared();  // else TMA overwrites words whose load is in flight: an arrival does not wait for it
      __syncwarp();
      arrive_at_part(storage.written(consumer, buffer.index));
      buffer.advance_once(1, Traits::kBuffers);
    }
  }

  /// The epilogues of a consumer by rows, one for each strip of columns.
  struct Strips {
    static constexpr int kNumber = Traits::kColumns / Lanes::kStrip;
    Epilogue each[kNumber];

    CUTLASS_DEVICE Strips(Params const& params, Work const& work, int consumer)
        : Strips(params, work, consumer, IndicesTo<kNumber>{}) {}

   private:
    template <int... Numbers>
    CUTLASS_DEVICE Strips(Params const& params, Work const& work, int consumer, Indices<Numbers...>)
        : each{Epilogue(params.epilogue, tile_of_strip(params, work, consumer, Numbers))...} {}
  };

  /// The epilogue of a consumer by rows that visits the transposed tile: a warp has a strip of 16 rows, and a thread two
  /// rows and four columns of each step of 16 columns.
  struct Transposed {
    Epilogue epilogue;

    CUTLASS_DEVICE Transposed(Params const& params, Work const& work, int consumer)
        : epilogue(params.epilogue, tile_of_rows(params, work, consumer)) {}
  };

  CUTLASS_DEVICE static fragment::Tile tile_of_rows(Params const& params, Work const& work, int consumer) {
    int const warp = threadIdx.x % kWarpGroup / 32, row = work.row + Traits::row_of_consumer(consumer) + warp * kStepPixels;
    return {row + Lanes::first_of(threadIdx.x % 32), work.end, 0, 0, 0, work.group, work.end, work.column, params.columns};
  }

  /// The epilogues of a consumer by rows.
  using OfRows = std::conditional_t<Traits::kTransposed, Transposed, Strips>;

  /// Whether registers hold the epilogues of a consumer by rows while it multiplies the last stage of a tile.
  static constexpr bool kPreparesEarly =
      Traits::kTransposed ? sizeof(Transposed) <= 512 : Traits::kSums <= 80 && sizeof(Strips) <= 96;

  /// Complete the rows of a consumer, block by block of D's columns. A warp has 16 rows of all columns.
  CUTLASS_DEVICE static void complete_rows(Params const& params, Storage const& storage, Work const& work, int consumer,
                                           PipelineState& buffer, typename Traits::Accumulator const (&sums)[Traits::kSums],
                                           Transposed transposed) {
    transposed.epilogue.compute_columns();
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kParts; ++block) {
      int const first = block * Traits::kBlockColumns;
      barrier_wait(storage.ready(consumer, buffer.index), buffer.phase);
      complete<Traits, Traits::kBlockColumns>(transposed.epilogue, GemmRows(work.column, first, params.columns),
                                              sums + first / 2, storage.buffer(consumer, buffer.index));
      hand_over_part(storage, consumer, buffer);
    }
  }

  /// Complete the rows of a consumer, block by block of D's columns. A warp has 16 rows of each strip of columns.
  CUTLASS_DEVICE static void complete_rows(Params const& params, Storage const& storage, Work const& work, int consumer,
                                           PipelineState& buffer, typename Traits::Accumulator const (&sums)[Traits::kSums],
                                           Strips strips) {
    int const row = Traits::row_of_consumer(consumer) + threadIdx.x % kWarpGroup / 32 * kStepPixels;
    Epilogue* const epilogues = strips.each;
    CUTLASS_PRAGMA_UNROLL
    for (auto& epilogue : strips.each) epilogue.compute_columns();
    constexpr int kStrips = Traits::kMembers * Traits::kBlockColumns / Lanes::kStrip;  // of a block of D
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kParts; ++block) {
      int const first = block * kStrips;
      if constexpr (Traits::kStaged) barrier_wait(storage.ready(consumer, buffer.index), buffer.phase);
      complete_strips<Traits, kStrips>(epilogues + first, GemmRows(work.row + row, 0, work.end),
                                       sums + first * fragment::kElements, storage.buffer(consumer, buffer.index));
      if constexpr (Traits::kStaged) hand_over_part(storage, consumer, buffer);
      CUTLASS_PRAGMA_UNROLL
      for (int i = first; i < first + kStrips; ++i) epilogues[i].finish(tile_of_strip(params, work, consumer, i));
    }
  }

  /// Complete rows of both blocks, whose elements at a place are a pair: the first epilogue has the first 8 pairs of a warp.
  template <int Sums>
  CUTLASS_DEVICE static void complete_pairs(
      Storage const& storage, int consumer, PipelineState& buffer, Epilogues& epilogues,
      typename Traits::Accumulator const (&sums)[Traits::kBlocks][Sums], int row, int rows) {
    typename Traits::Accumulator pairs[Traits::kMembers][Sums];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Sums; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < Traits::kMembers; ++half) pairs[half][i] = sums[i / 2 % 2][i / 4 * 4 + 2 * half + i % 2];
    }
    CUTLASS_PRAGMA_UNROLL
    for (auto& epilogue : epilogues.each) epilogue.compute_columns();
    int const ring = Traits::kPingpong ? 0 : consumer;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < Traits::kParts; ++part) {
      int const begin = part * Traits::kPartRows;
      uint32_t const to = storage.buffer(ring, buffer.index);
      if constexpr (Traits::kStaged) barrier_wait(storage.ready(ring, buffer.index), buffer.phase);
      GemmRows const of_part(row, begin, rows);
      if (Traits::kLastRows != Traits::kPartRows && part == Traits::kParts - 1) {
        complete<Traits, Traits::kLastRows>(epilogues.each[0], of_part, pairs[0] + begin / 2, to, 0);
        epilogues.each[1].follow(epilogues.each[0]);
        complete<Traits, Traits::kLastRows>(epilogues.each[1], of_part, pairs[1] + begin / 2, to, 1);
      } else {
        complete<Traits, Traits::kPartRows>(epilogues.each[0], of_part, pairs[0] + begin / 2, to, 0);
        epilogues.each[1].follow(epilogues.each[0]);
        complete<Traits, Traits::kPartRows>(epilogues.each[1], of_part, pairs[1] + begin / 2, to, 1);
      }
      if constexpr (Traits::kStaged) hand_over_part(storage, ring, buffer);
    }
  }

  /// Complete rows of a block, from `row` on, part by part.
  template <int Sums>
  CUTLASS_DEVICE static void complete_parts(Storage const& storage, int consumer, int block, PipelineState& buffer,
                                            Epilogue& epilogue, typename Traits::Accumulator const (&sums)[Sums],
                                            int row, int rows, Beginnings const& beginnings, Kept const& kept = {}) {
    epilogue.compute_columns();
    uint32_t const loaded = storage.loaded(consumer, block);
    if constexpr (Traits::kLoadsBits) {
      consumer_sync(consumer);  // all warps have read the words of the tile before
      auto const place_of = [&](int i) { return row + i < rows ? row + i : -1; };
      epilogue.keep_tile(place_of, loaded, consumer);
    }
    if constexpr (!Traits::kStaged) {
      GemmRows const of_block(row, 0, rows, 0, loaded);
      return complete<Traits, Traits::kCompleted, Traits::kAhead>(epilogue, of_block, sums, 0);
    }
    int const ring = Traits::kPingpong ? 0 : consumer;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < Traits::kPartsOfBlock; ++part) {
      int const first = part * Traits::kPartRows;
      hide_origin(row);  // else addresses of rows stay in registers for the next block, and spill
      if constexpr (Traits::kStaged) barrier_wait(storage.ready(ring, buffer.index), buffer.phase);
      uint32_t const to = storage.buffer(ring, buffer.index), words = storage.words(ring);
      GemmRows const of_part(row, first, rows, words - fragment::kWordBytes * (row + first), loaded);
      bool const is_last = Traits::kLastRows != Traits::kPartRows && part == Traits::kPartsOfBlock - 1;
      if (is_last) {
        complete<Traits, Traits::kLastRows>(epilogue, of_part, sums + first / 2, to, 0, threadIdx.x % kWarpGroup / 32, nullptr,
                                            beginnings);
      } else {
        int const place = block * Traits::kPartsOfBlock + part - (Traits::kParts - Traits::kKept);
        uint32_t const* const words = Traits::kKept > 0 && place >= 0 ? kept.words[place] : nullptr;
        complete<Traits, Traits::kPartRows>(epilogue, of_part, sums + first / 2, to, 0, threadIdx.x % kWarpGroup / 32, words,
                                            beginnings);
      }
      if constexpr (Traits::kStaged) hand_over_part(storage, ring, buffer);
      if constexpr (Traits::kJoinsBits) {
        epilogue.end_part({words, row + first, is_last ? Traits::kLastRows : Traits::kPartRows, rows, consumer,
                           int(threadIdx.x % kWarpGroup)});
      }
    }
  }

  /// Send the partial sums of a split tile to the CTAs that complete them, and complete this CTA's.
  CUTLASS_DEVICE static void exchange_and_complete(
      Storage const& storage, Work const& work, int rank, int consumer, Epilogues& epilogues,
      typename Traits::Accumulator const (&accumulators)[Traits::kBlocks][Traits::kSums], Beginnings const& beginnings) {
    GemmExchange<Traits> const exchange(storage, rank, consumer);
    exchange.send(accumulators);
    int const first = Traits::first_row_of(rank);
    if (first < Traits::kPixels && !(Traits::kByStages && consumer > 0)) {
      typename GemmExchange<Traits>::Completed sums;
      exchange.receive(sums);
      PipelineState buffer;
      int const row = work.row + first;
      if constexpr (Traits::kPaired) {
        complete_pairs(storage, consumer, buffer, epilogues, sums, row, work.end);
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          if (block > 0) epilogues.each[block].follow(epilogues.each[0]);
          complete_parts(storage, consumer, block, buffer, epilogues.each[block], sums[block], row, work.end, beginnings);
        }
      }
    }
    exchange.wait_for_copies();
  }

  /// Let a producer store a part of D.
  CUTLASS_DEVICE static void hand_over_part(Storage const& storage, int ring, PipelineState& buffer) {
    fence_view_async_shared();
    __syncwarp();
    arrive_at_part(storage.written(ring, buffer.index));
    buffer.advance_once(1, Traits::kBuffers);
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_COMPLETION_HPP
