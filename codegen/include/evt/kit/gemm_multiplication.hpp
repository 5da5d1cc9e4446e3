#ifndef EVT_KIT_GEMM_MULTIPLICATION_HPP
#define EVT_KIT_GEMM_MULTIPLICATION_HPP

// A consumer multiplies the stages of a tile, converts their filters, and adds their sums in f32 where it must.

#include <cstdint>

#include "evt/kit/converted.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_warps.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/scales.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// The multiplications of a consumer.
template <class Traits>
struct GemmMultiplication {
  using Storage = GemmStorage<Traits>;
  using Mma = typename Traits::Mma;
  using Scales = typename Traits::Scales;
  using Scaled = typename Traits::Scaled;
  using Conversion = typename Traits::Conversion;
  using Filters = typename Traits::Filters;
  using Sums = typename Traits::Accumulator[Traits::kBlocks][Traits::kSums];
  using HalfSums = typename Traits::Accumulator[Traits::kBlocks][Mma::kPixels / 2];
  using Fragments = typename Traits::Fragments[Traits::kBlocks];

  /// A stage that is being multiplied, and the descriptors of its operands. Consumers by rows load its factors before:
  /// while WGMMA reads shared memory, other loads take long.
  struct Started {
    int stage;
    uint32_t rows, columns;
    std::conditional_t<Traits::kByRows, typename Scaled::OfThread, std::false_type> factors;
  };

  /// The packed filters of a stage, and their zero points, before they are converted.
  struct PackedStage {
    using Rows = typename Conversion::template Rows<Filters::kRowBytes>;
    typename Rows::Codes codes[Traits::kBlocks];
    uint32_t zeros[Traits::kBlocks][2];

    CUTLASS_DEVICE PackedStage(uint32_t filters, uint32_t scales, int first_block) {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        if constexpr (Scales::kHasZeros) Scaled::load_zeros(zeros[block], scales, (first_block + block) * kFilters);
        Rows::load_codes(codes[block], filters + Traits::filters_of(0, block));
      }
    }

    CUTLASS_DEVICE void convert(Fragments& to) const {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        CUTLASS_PRAGMA_UNROLL
        for (int k = 0; k < Traits::kDepth / 16; ++k) {
          Rows::template convert<Scales::kHasZeros, Scales::kZerosFromMinuend>(to[block].words[k], codes[block], zeros[block], k);
        }
      }
    }
  };

  /// The stages of a tile, as a consumer multiplies them.
  struct Stages {
    Storage const& storage;
    int rank, consumer;
    PipelineState& state;
    int left;  // to be multiplied

    /// Return the factors of a block of a stage.
    CUTLASS_DEVICE typename Scaled::OfColumns factors_of(int stage, int block) const {
      typename Scaled::OfColumns found;
      found.load(storage.scales(stage), (Traits::first_block_of(consumer) + block) * kFilters);
      return found;
    }

    CUTLASS_DEVICE Started wait() const {
      Started found = operands();
      wait_for_operands();
      load_factors(found);
      return found;
    }
    CUTLASS_DEVICE void wait_for_operands() const { barrier_wait(storage.full(state.index), state.phase); }
    CUTLASS_DEVICE Started operands() const {
      int const stage = state.index;
      uint32_t const rows = storage.rows(stage) + Traits::row_of_consumer(consumer) * Traits::kRowBytes;
      uint32_t const columns = storage.columns(stage) + Traits::filters_of(0, Traits::first_block_of(consumer));
      return {stage, operand_descriptor(rows), operand_descriptor(columns)};
    }
    CUTLASS_DEVICE void load_factors(Started& found) const {
      if constexpr (Traits::kByRows) found.factors.load(storage.scales(found.stage), Traits::row_of_consumer(consumer));
    }

    /// Return the factors of a thread's sums by rows.
    CUTLASS_DEVICE static auto factors_of_sums(Started const& started) {
      if constexpr (Traits::kByRows) {
        return started.factors.of_sums();
      } else {
        return started.factors;
      }
    }

    /// Wait for a stage, and convert its filters.
    CUTLASS_DEVICE Started convert(Fragments& fragments) {
      Started const found = wait();
      convert_stage(filters_of(found.stage), fragments, storage.scales(found.stage), Traits::first_block_of(consumer));
      return found;
    }
    CUTLASS_DEVICE uint32_t filters_of(int stage) const {
      return storage.columns(stage) + Traits::filters_of(0, Traits::first_block_of(consumer));
    }
    CUTLASS_DEVICE PackedStage packed_filters_of(int stage) const {
      return {filters_of(stage), storage.scales(stage), Traits::first_block_of(consumer)};
    }

    /// Start the multiplications of a stage. The fragments of its filters stay until the sums are there.
    CUTLASS_DEVICE Started start(Sums& sums, Fragments& fragments) {
      if constexpr (Conversion::kConverts) {
        Started const found = convert(fragments);
        start_converted(found, sums, fragments);
        return found;
      } else {
        Started const found = wait();
        start(found, sums);
        return found;
      }
    }

    /// Start the multiplications of a stage whose filters are converted.
    CUTLASS_DEVICE void start_converted(Started const& found, Sums& sums, Fragments const& fragments) {
      warpgroup_arrive();
      multiply_converted(found.rows, fragments, sums);
      warpgroup_commit_batch();
      next();
    }

    /// Start the multiplications of a stage that is there.
    CUTLASS_DEVICE void start(Started const& found, Sums& sums) {
      warpgroup_arrive();
      multiply_stage(found.rows, found.columns, sums);
      warpgroup_commit_batch();
      next();
    }

    /// Start the multiplications of a half of a stage's rows.
    CUTLASS_DEVICE void start_half(int half, Started const& started, HalfSums& sums, Fragments const& fragments) {
      uint32_t const rows = storage.rows(started.stage) + half * Mma::kPixels * Traits::kRowBytes;
      warpgroup_arrive();
      multiply_converted(operand_descriptor(rows), fragments, sums);
      warpgroup_commit_batch();
    }

    CUTLASS_DEVICE void next() {
      state.advance_once(Traits::kByStages ? Traits::kConsumers : 1, Traits::kStages);
      hand_over_tensor_cores(storage, consumer, --left == 0);
    }

    /// Wait for the sums of a stage while `Pending` later ones are multiplied, and add them.
    template <int Pending>
    CUTLASS_DEVICE void promote(Sums& accumulators, Sums& partial, Started const& started) {
      promote<Pending>(accumulators, partial, started.stage, started.factors);
    }
    template <int Pending, class Factors>
    CUTLASS_DEVICE void promote(Sums& accumulators, Sums& partial, int stage, Factors const& factors) {
      if constexpr (Traits::kByRows) {
        warpgroup_wait<Pending>();
        fence_operands(partial);
        release(storage, rank, stage);
        // Sums of a row together: their factor stays in the operand's latch.
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Traits::kSums / 2; ++i) {
            int const j = i / 2 * 4 + row * 2 + i % 2;
            accumulators[0][j] += partial[0][j] * factors.of_sum(j);
          }
        }
      } else {
        warpgroup_wait<Pending>();
        fence_operands(partial);
        if constexpr (!Scaled::kExists) release(storage, rank, stage);
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          if constexpr (Scaled::kExists) {
            auto const of_columns = factors_of(stage, block);
            Scaled::add(accumulators[block], partial[block], storage.scales(stage), of_columns);
          } else {
            CUTLASS_PRAGMA_UNROLL
            for (int j = 0; j < Traits::kSums; ++j) accumulators[block][j] += partial[block][j];
          }
        }
        if constexpr (Scaled::kExists) release(storage, rank, stage);
      }
    }

    /// Load the factors of a stage, wait for its sums, and add them.
    CUTLASS_DEVICE void promote_last(Sums& accumulators, Sums& partial, int stage) {
      typename Scaled::OfColumns of_columns[Traits::kBlocks];
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) of_columns[block] = factors_of(stage, block);
      warpgroup_wait<0>();
      fence_operands(partial);
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        Scaled::add(accumulators[block], partial[block], storage.scales(stage), of_columns[block]);
      }
      release(storage, rank, stage);
    }

    /// Wait for the sums of a half of a stage's rows while `Pending` other halves are multiplied, and add them.
    template <int Pending>
    CUTLASS_DEVICE void promote_half(int half, Sums& accumulators, HalfSums& partial, Started const& started) {
      constexpr int kSteps = Mma::kPixels / kStepPixels, kSums = Mma::kPixels / 2;
      auto const factors = factors_of(started.stage, 0);
      warpgroup_wait<Pending>();
      fence_operands(partial);
      auto& sums = reinterpret_cast<float (&)[kSums]>(accumulators[0][half * kSums]);
      Scaled::add(sums, partial[0], storage.scales(started.stage), factors, half * kSteps);
      if (half == 1) release(storage, rank, started.stage);
    }
  };

  /// Multiply the stages of a tile by rows. Return the result of `prepare`, which is called while the last stage is
  /// multiplied.
  template <class Prepare>
  CUTLASS_DEVICE static auto multiply_rows(Storage const& storage, int rank, int consumer, int k_blocks,
                                           PipelineState& state, Sums& accumulators, Prepare const& prepare) {
    Stages stages{storage, rank, consumer, state, k_blocks};
    if constexpr (Traits::kPromotesBehind) {
      return promote_behind(stages, accumulators, prepare);
    } else {
      return promote_next(stages, accumulators, prepare);
    }
  }

  /// Multiply the stages of a tile that has `rows`; a CTA has one or more. `keep` is called after half of them, if parts of C
  /// are kept.
  template <class Keep>
  CUTLASS_DEVICE static void multiply(Storage const& storage, int rank, int consumer, int k_blocks, int rows,
                                      PipelineState& state, Sums& accumulators, Keep const& keep) {
    Stages stages{storage, rank, consumer, state, k_blocks};
    if constexpr (Traits::kByWarps) {
      constexpr int kEights = Traits::kPixels / 8;
      if (kEights > 1 && rows > 8) {
        multiply_by_warps<kEights>(stages, accumulators[0]);
      } else {
        multiply_by_warps<1>(stages, accumulators[0]);
      }
    } else if constexpr (Traits::kInHalves) {
      // The sums of a half are added, and filters of the next stage are converted, while the other half is multiplied.
      HalfSums first, second;
      Fragments fragments, others;
      Started now = stages.convert(fragments);
      stages.next();
      stages.start_half(0, now, first, fragments);
      auto const follow = [&](Fragments& of_stage, Fragments& of_next) {
        stages.start_half(1, now, second, of_stage);
        Started const next = stages.convert(of_next);
        stages.next();
        stages.template promote_half<1>(0, accumulators, first, now);
        stages.start_half(0, next, first, of_next);
        stages.template promote_half<1>(1, accumulators, second, now);
        now = next;
      };
      while (stages.left > 1) {
        follow(fragments, others);
        follow(others, fragments);
      }
      auto const finish = [&](Fragments& of_stage) {
        stages.start_half(1, now, second, of_stage);
        stages.template promote_half<1>(0, accumulators, first, now);
        stages.template promote_half<0>(1, accumulators, second, now);
      };
      if (stages.left > 0) {
        follow(fragments, others);
        finish(others);
      } else {
        finish(fragments);
      }
    } else if constexpr (Traits::kPromotes && Traits::kPromotesBehind) {
      promote_behind(stages, accumulators, [] { return false; });
    } else if constexpr (Traits::kPromotes && Conversion::kPacked && Traits::kSplits == 1) {
      promote_packed(stages, accumulators);
    } else if constexpr (Traits::kPromotes && Conversion::kConverts) {
      do {
        Sums partial;
        Fragments fragments;
        Started const started = stages.start(partial, fragments);
        stages.template promote<0>(accumulators, partial, started);
      } while (stages.left > 0);
    } else if constexpr (Traits::kPromotes) {
      promote_next(stages, accumulators, [] { return false; });
    } else {
      int last = -1;
      Fragments fragments, others;
      auto const next = [&](Fragments& of_stage) {
        int const stage = stages.start(accumulators, of_stage).stage;
        warpgroup_wait<1>();
        if (last >= 0) release(storage, rank, last);
        last = stage;
      };
      if constexpr (Conversion::kConverts) {
        while (stages.left > 1) {
          next(fragments);
          next(others);
        }
        if (stages.left > 0) next(fragments);
      } else if constexpr (Traits::kKept > 0) {
        int const half = stages.left / 2;
        while (stages.left > half) next(fragments);
        keep();
        while (stages.left > 0) next(fragments);
      } else {
        do {
          next(fragments);
        } while (stages.left > 0);
      }
      warpgroup_wait<0>();
      fence_operands(accumulators);
      release(storage, rank, last);
    }
  }

  /// Multiply stages: each while the sums of the stage before are added. `prepare` is called before the last wait.
  template <class Prepare>
  CUTLASS_DEVICE static auto promote_behind(Stages& stages, Sums& accumulators, Prepare const& prepare) {
    Sums first, second;
    Fragments of_first, of_second;
    Started one = stages.start(first, of_first);
    while (stages.left > 1) {
      Started const two = stages.start(second, of_second);
      stages.template promote<1>(accumulators, first, one);
      one = stages.start(first, of_first);
      stages.template promote<1>(accumulators, second, two);
    }
    if (stages.left > 0) {
      Started const two = stages.start(second, of_second);
      stages.template promote<1>(accumulators, first, one);
      auto const prepared = prepare();
      stages.template promote<0>(accumulators, second, two);
      return prepared;
    }
    auto const prepared = prepare();
    stages.template promote<0>(accumulators, first, one);
    return prepared;
  }

  /// Multiply stages of packed filters. The sums of a stage delay the next one. While a stage is multiplied, a consumer thus
  /// waits for the next one, and loads its filters. CTAs that split k wait longer for loads than for sums.
  CUTLASS_DEVICE static void promote_packed(Stages& stages, Sums& accumulators) {
    Sums partial;
    Fragments fragments;
    Started now = stages.wait();
    PackedStage packed = stages.packed_filters_of(now.stage);
    while (stages.left > 1) {
      packed.convert(fragments);
      stages.start_converted(now, partial, fragments);
      Started const next = stages.wait();
      packed = stages.packed_filters_of(next.stage);
      stages.promote_last(accumulators, partial, now.stage);
      now = next;
    }
    packed.convert(fragments);
    stages.start_converted(now, partial, fragments);
    stages.promote_last(accumulators, partial, now.stage);
  }

  /// Multiply stages. The sums of a stage delay the next one. While a stage is multiplied, a consumer thus waits for the next
  /// one, and loads its factors and computes its descriptors.
  template <class Prepare>
  CUTLASS_DEVICE static auto promote_next(Stages& stages, Sums& accumulators, Prepare const& prepare) {
    Sums partial;
    stages.wait_for_operands();
    Started now = stages.operands();
    stages.load_factors(now);
    while (stages.left > 1) {
      stages.start(now, partial);
      stages.wait_for_operands();
      Started next = stages.operands();
      auto const factors = Stages::factors_of_sums(now);
      stages.load_factors(next);
      hide_origin(next.rows);  // else they are computed after the sums
      hide_origin(next.columns);
      stages.template promote<0>(accumulators, partial, now.stage, factors);
      now = next;
    }
    stages.start(now, partial);
    auto const prepared = prepare();
    stages.template promote<0>(accumulators, partial, now.stage, Stages::factors_of_sums(now));
    return prepared;
  }

  /// Multiply the stages of a tile by warps, Eights times eight rows.
  template <int Eights>
  CUTLASS_DEVICE static void multiply_by_warps(Stages& stages, float (&accumulators)[Traits::kSums]) {
    using Stage = StageOfWarp<Traits, Eights>;
    int const block = Traits::first_block_of(stages.consumer);
    typename Stage::Chains chains = {};
    CUTLASS_PRAGMA_NO_UNROLL
    while (stages.left > 0) {
      Started const found = stages.wait();
      Stage const loaded(stages.storage, found.stage, block);
      auto const factors = stages.factors_of(found.stage, 0);
      stages.next();
      loaded.multiply(chains);
      if constexpr (Scales::kMultiply) {
        float partial[Stage::kSums];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Stage::kSums; ++i) {
          partial[i] = chains[0][i] + chains[1][i];
          chains[0][i] = chains[1][i] = 0;
        }
        Scaled::add(accumulators, partial, stages.storage.scales(found.stage), factors);
      }
      fence_view_async_shared();  // else TMA overwrites rows whose load is in flight: an arrival does not wait for it
      release(stages.storage, stages.rank, found.stage);
    }
    if constexpr (!Scales::kMultiply) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Stage::kSums; ++i) accumulators[i] = chains[0][i] + chains[1][i];
    }
  }

  /// Multiply a stage: add to the sums, or set them where they are promoted.
  CUTLASS_DEVICE static void multiply_stage(uint32_t rows, uint32_t columns, Sums& sums) {
    constexpr uint32_t kLayoutOfRows = operand_layout(Traits::kRowBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < Traits::kBoxes; ++box) {
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < Traits::kInstructions; ++k) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          int const which = box * Traits::kColumnBlocks + block;
          uint32_t const of_columns = columns + which * (Filters::kBytes >> 4) + k * Filters::kNextK;
          uint32_t const of_rows = rows + box * (Traits::kRowsBytes >> 4) + k * kNextK;
          bool const adds = !Traits::kPromotes || box + k > 0;
          if constexpr (Traits::kByRows) {
            Mma::fma(sums[block], of_rows, of_columns, kLayoutOfRows, Filters::kLayout, adds);
          } else {
            Mma::fma(sums[block], of_columns, of_rows, Filters::kLayout, kLayoutOfRows, adds);
          }
        }
      }
    }
  }

  /// Convert the filters of a stage.
  CUTLASS_DEVICE static void convert_stage(uint32_t filters, Fragments& to, uint32_t scales, int first_block) {
    using Rows = typename Conversion::template Rows<Filters::kRowBytes>;
    if constexpr (Conversion::kPacked) {
      PackedStage(filters, scales, first_block).convert(to);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        Rows::load(to[block], filters + Traits::filters_of(0, block));
      }
    }
  }

  /// Multiply a stage by converted filters: add to the sums, or set them where they are promoted.
  template <class SumsOfRows>
  CUTLASS_DEVICE static void multiply_converted(uint32_t rows, Fragments const& filters, SumsOfRows& sums) {
    constexpr uint32_t kLayoutOfRows = operand_layout(Traits::kRowBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < Traits::kBoxes; ++box) {
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < Traits::kInstructions; ++k) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          uint32_t const (&words)[4] = filters[block].words[box * Traits::kInstructions + k];
          Mma::fma(sums[block], words, rows + box * (Traits::kRowsBytes >> 4) + k * kNextK,
                   kLayoutOfRows, !Traits::kPromotes || box + k > 0);
        }
      }
    }
  }

  /// Let the other pingpong consumer multiply, after a tile's last stage.
  CUTLASS_DEVICE static void hand_over_tensor_cores(Storage const& storage, int consumer, bool is_last) {
    if (Traits::kPingpong && threadIdx.x % 32 == 0 && is_last) barrier_arrive(storage.order(1 - consumer));
  }

  template <class SumsOfRows>
  CUTLASS_DEVICE static void fence_operands(SumsOfRows& sums) {
    CUTLASS_PRAGMA_UNROLL
    for (auto& block : sums) {
      CUTLASS_PRAGMA_UNROLL
      for (auto& each : block) warpgroup_fence_operand(each);
    }
  }

  /// Release a stage: arrive at its barriers in all CTAs that send to this one. Factors come from this CTA, so each lane
  /// that has read them arrives here.
  CUTLASS_DEVICE static void release(Storage const& storage, int rank, int stage) {
    int const lane = threadIdx.x % 32;
    constexpr bool kAllArrive = Traits::kLaneArrivals > 1;
    if constexpr (Traits::kMulticast == 1 || kAllArrive) {
      if (kAllArrive || lane == 0) barrier_arrive(storage.empty(stage));
    }
    if constexpr (Traits::kMulticast > 1) {
      constexpr int kColumnRanks = Traits::kClusterColumns;
      int const within = rank % Traits::kMulticast, sender = rank - within + lane;
      bool const sends = lane / kColumnRanks == within / kColumnRanks || lane % kColumnRanks == within % kColumnRanks;
      bool const arrives = lane < Traits::kMulticast && sends && !(kAllArrive && lane == within);
      if (arrives) barrier_arrive_cluster(set_block_rank(storage.empty(stage), sender));
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_MULTIPLICATION_HPP
