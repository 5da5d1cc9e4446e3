#ifndef EVT_KIT_GEMM_HPP
#define EVT_KIT_GEMM_HPP

// A persistent, warp-specialised matrix product for sm90, in clusters that share their loads.
//
// The product is transposed: M of WGMMA are columns of D, N are rows. A consumer has up to three blocks of 64 columns.
// Warp group 0 produces: warp 0 loads stages of A and B by TMA, warps 1 and 2 move C, D and further matrices. Warp
// groups 1 and 2 consume. Cooperating consumers share the rows of a tile, each with its columns. Pingpong consumers have
// a tile each: one multiplies while the other computes its epilogue, and ordered barriers pass the tensor cores on.
//
// Consumers by rows are not transposed: M of WGMMA are 64 rows of a consumer, N all columns of the tile. A thread then has
// two rows, and reads two factors of rows for a stage instead of one for each two sums.
//
// The tiles of a cluster's CTAs are neighbours. CTAs with the same rows share the rows of A, and CTAs with the same columns
// the rows of B: each loads a part and sends it to all (TMA multicast). A stage is free once the consumers of all
// receivers have released it.
//
// Splits of k: the CTAs of a cluster multiply parts of k of one tile. Each sends its partial sums to the CTAs that complete
// them, and may complete some rows itself. The order of addition is fixed. See gemm_exchange.hpp.
//
// Consumers by stages have the same columns, and every other stage of a tile each. They split k as the CTAs of a cluster do,
// so that few columns keep many SMs busy.
//
// Filters of another type than the rows of A are converted in registers, from which WGMMA takes its operand A. Consumers
// convert a stage while they multiply the one before. If sums are promoted, and registers do not hold the sums of two
// stages, WGMMA multiplies half of a tile's rows at a time. The sums of one half are promoted while it multiplies the
// other half. Packed filters have no halves: one consumer converts and promotes while the other one multiplies.
//
// Factors of A and B that are constant over blocks of k multiply the sums of a stage when these are promoted. Warp 3
// loads them, stages ahead.
//
// The buffers load C of the next tile while D of a tile is stored. A single loaded matrix waits for the first stage of a
// CTA, which it would delay. Cooperating consumers keep C of their last parts in registers from the middle of a tile on.
//
// Pairs of columns: one block has the first columns of 64 pairs, the other block the second ones. So a thread has both
// columns of a pair, and D has a block of 64 columns for both.
//
// Tiles are computed in bands of rows, so that the tiles of a wave read few rows of A and of B from L2.
//
// Groups: consecutive rows of A and D have a matrix B each. The ends of the groups are in device memory. Each CTA tabulates
// the tiles of the groups before its first tile. A tile has rows of one group. It loads rows beyond the group's end, whose
// results it does not store.
//
// Batches: a product for each, of matrices that are any strides apart. Batches may share a matrix.
//
// gemm_traits.hpp has the types and constants of a product. gemm_params.hpp makes the kernel's parameters. gemm_work.hpp
// places stages in shared memory, and gives a CTA its tiles. Here are the roles of the warps. gemm_producer.hpp loads and
// stores. A consumer multiplies by gemm_multiplication.hpp, and completes its tiles by gemm_completion.hpp.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/fragment.hpp"
#include "evt/kit/gemm_completion.hpp"
#include "evt/kit/gemm_exchange.hpp"
#include "evt/kit/gemm_multiplication.hpp"
#include "evt/kit/gemm_params.hpp"
#include "evt/kit/gemm_producer.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/scales.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace kit {

/// A matrix product with an epilogue of fragment.hpp.
template <class Mma, class Epilogue, int Depth, class Tile, class Scales = NoScales, class Conversion = AsStored<Mma>>
struct Gemm {
  using Traits = GemmTraits<Mma, Epilogue, Depth, Tile, Scales, Conversion>;
  using Arguments = GemmArguments<Traits>;
  using Params = GemmParams<Traits>;
  using Storage = GemmStorage<Traits>;
  using Work = GemmWork<Traits>;
  using Multiplication = GemmMultiplication<Traits>;
  using Completion = GemmCompletion<Traits>;
  using Producer = GemmProducer<Traits>;
  using Lanes = typename Traits::Lanes;

  static constexpr int MaxThreadsPerBlock = Traits::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = Traits::kResident;
  static constexpr int SharedStorageSize = kSharedBytes;  // at most: see get_shared_bytes
  static constexpr int kProducerRegisters = Scales::kExist ? 56 : 40, kConsumerRegisters = Scales::kExist ? 224 : 232;
  static constexpr bool kMovesRegisters = !Traits::kByWarps;  // warps that multiply by themselves need few
  // Whether the CTAs of a cluster meet when they exchange sums, not before they load.
  static constexpr bool kMeetsLate = Traits::kClusterSize > 1 && Traits::kMulticast == 1;
  // Consumers wait forever for registers that producers do not give back. A thread is launched with a multiple of 8.
  static_assert(kProducerRegisters + Traits::kConsumers * kConsumerRegisters <=
                    (1 + Traits::kConsumers) * (65536 / Traits::kThreads / 8 * 8),
                "the registers that the CTA was launched with");

#if !defined(EVT_DEVICE_PASS)
  static bool can_implement(Arguments const& arguments) { return to_underlying_arguments(arguments).encoded; }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    return GemmHost<Traits>::params(arguments);
  }

  /// The tiles of rows and the strips that reductions keep parts of.
  static fragment::Tiles tiles(Arguments const& arguments) { return GemmHost<Traits>::tiles(arguments); }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const&) { return dim3(Traits::kClusterSize); }
  static dim3 get_block_shape() { return dim3(Traits::kThreads); }

  /// The shared memory of a CTA: all of an SM's if each CTA has an SM. CTAs of the kernel before, which still run, would
  /// make some of them share an SM. Clusters of four leave SMs idle. plan/gemm.py has this rule, too.
  static int get_shared_bytes(Params const& params, int multiprocessors) {
    bool const shares = params.grid > (Traits::kClusterSize < 4 ? multiprocessors : multiprocessors * 10 / 11);
    return shares ? Traits::kSharedOfCta : SharedStorageSize;
  }
#endif

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Storage const storage(shared_memory);
    int const group = canonical_warp_idx_sync() / (kWarpGroup / 32);
    int const rank = Traits::kClusterSize == 1 ? 0 : block_rank_in_cluster();
    initialize(params, storage, rank);
    __syncthreads();
    if constexpr (Traits::kClusterSize > 1) cluster_arrive_relaxed();
    if constexpr (Traits::kClusterSize > 1 && !kMeetsLate) cluster_wait();
    pdl::wait_for_kernel_before();
    if constexpr (Traits::kGrouped) tabulate_groups(params, storage);
    if (group == 0) {
      if constexpr (kMovesRegisters) warpgroup_reg_dealloc<kProducerRegisters>();
      int const warp = canonical_warp_idx_sync();
      if (Traits::Scaled::kExists && warp == 3) {
        Producer::load_scales(params, storage, rank);
      } else if (Traits::kUnaligned && warp >= 1 && warp <= Traits::kRings) {
        Producer::move_parts(params, storage, rank, warp - 1);
      } else if (elect_one_sync()) {
        if (warp == 0) Producer::load(params, storage, rank);
        if (Traits::kStaged && !Traits::kUnaligned && warp >= 1 && warp <= Traits::kRings) Producer::move_parts(params, storage, rank, warp - 1);
      }
      __syncwarp();
    } else {
      if constexpr (kMovesRegisters) warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, storage, rank, group - 1);
    }
#endif
  }

 private:
  CUTLASS_DEVICE static void initialize(Params const& params, Storage const& storage, int rank) {
    constexpr int kWarps = kWarpGroup / 32;
    int const warp = canonical_warp_idx_sync();
    if (!elect_one_sync()) return;
    if (warp == 0) {
      prefetch_tma_descriptor(params.a);
      prefetch_tma_descriptor(params.b);
      if (Traits::kDual) prefetch_tma_descriptor(params.partner);
      if (Traits::kLoadsFewColumns && params.columns % Traits::kBlockColumns != 0) prefetch_tma_descriptor(params.last);
    }
    if constexpr (!Traits::kUnaligned) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Traits::kLoads; ++i) {
        if (warp == 1) prefetch_tma_descriptor(params.loads[i]);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Traits::kStores; ++i) {
        if (warp == 2) prefetch_tma_descriptor(params.stores[i]);
      }
    }
    // A CTA sends to the CTAs of its row and of its column of the cluster.
    constexpr int kReceivers = Traits::kClusterColumns + Traits::kClusterRows - 1;
    for (int i = warp; i < Traits::kStages; i += Traits::kThreads / 32) {
      barrier_init(storage.full(i), Traits::Scaled::kExists ? 1 + Traits::kLaneArrivals : 1);
      barrier_init(storage.empty(i), (kReceivers - 1 + Traits::kLaneArrivals) * kWarps * Traits::kOfStage);
    }
    if (warp < Traits::kConsumers) {
      barrier_init(storage.order(warp), kWarps);
      barrier_init(storage.order_of_epilogues(warp), kWarps);
      if (warp == 0) barrier_init(storage.begun(), 1);
      if constexpr (Traits::kSplits > 1) GemmExchange<Traits>::initialize(storage, rank, warp);
    }
    for (int i = warp; i < Traits::kRings * Traits::kBuffers; i += Traits::kThreads / 32) {
      barrier_init(storage.ready(0, i), 1);
      barrier_init(storage.written(0, i), kWarps * Traits::kPartArrivals);
    }
    fence_barrier_init();
  }

  /// Multiply and complete the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, Storage const& storage, int rank, int consumer) {
    PipelineState state, buffer;
    int stride = Work::step(), first = Work::first_number();
    if constexpr (Traits::kPingpong) {
      if (consumer == 1) {
        if (threadIdx.x % 32 == 0) {
          barrier_arrive(storage.order(0));
          if constexpr (Traits::kStaged) barrier_arrive(storage.order_of_epilogues(0));
        }
        advance<Traits::kStages>(state, params.k_blocks);
        if constexpr (Traits::kStaged) advance<Traits::kBuffers>(buffer, Traits::kParts);
        first += stride;
      }
      stride *= 2;
    }
    if constexpr (Traits::kByStages) state.advance_once(consumer, Traits::kStages);
    if constexpr (Traits::kLoadsLate) {
      if (consumer == 0 && threadIdx.x % kWarpGroup == 0 && first < Work::count(params, storage)) {
        barrier_wait(storage.full(0), 0);  // this consumer releases the stage later: its phase stays
        barrier_arrive(storage.begun());
      }
      __syncwarp();
    }
    uint32_t phase = 0;
    for (int number = first; number < Work::count(params, storage); number += stride, phase ^= 1) {
      Work const work(params, storage, number, rank);
      int const rows = work.end - work.row;
      typename Multiplication::Sums accumulators;
      CUTLASS_PRAGMA_UNROLL
      for (auto& block : accumulators) {
        CUTLASS_PRAGMA_UNROLL
        for (auto& each : block) each = 0;
      }
      if constexpr (Traits::kByRows) {
        multiply_rows(params, storage, work, rank, consumer, state, buffer, accumulators);
        continue;
      }
      int const column = work.column + Traits::first_block_of(consumer) * kFilters;
      // Vectors are loaded before they are needed, for all blocks.
      int const row = work.row + Traits::first_row_of(rank);
      auto const columns = [&](int block) { return Completion::columns_of(params, work, rank, column, block, row); };
      typename Completion::Epilogues epilogues(params.epilogue, columns);
      if constexpr (Traits::kLoadsBits) {
        auto const place_of = [&](int i) { return row + i < work.end ? row + i : -1; };
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) epilogues.each[block].begin_tile(place_of);
      }
      typename Completion::Kept kept;
      typename Completion::Beginnings const beginnings(params.loads, row);
      if constexpr (Traits::kPingpong) barrier_wait(storage.order(consumer), phase);
      if constexpr (Traits::kByStages) {
        int const stages = (work.k_blocks + 1 - consumer) / 2;
        if (stages > 0) Multiplication::multiply(storage, rank, consumer, stages, rows, state, accumulators, [] {});
      } else {
        Multiplication::multiply(storage, rank, consumer, work.k_blocks, rows, state, accumulators,
                                 [&] { Completion::keep_parts(storage, consumer, buffer, kept, beginnings); });
      }
      if constexpr (Traits::kSplits > 1) {
        if constexpr (kMeetsLate) cluster_wait();
        Completion::exchange_and_complete(storage, work, rank, consumer, epilogues, accumulators, beginnings);
        if (Traits::kByStages && consumer > 0) return;
      }
      if constexpr (Traits::kPingpong) {
        advance<Traits::kStages>(state, params.k_blocks);
        if constexpr (Traits::kStaged) barrier_wait(storage.order_of_epilogues(consumer), phase);
      }
      if constexpr (Traits::kPaired && Traits::kSplits == 1) {
        Completion::complete_pairs(storage, consumer, buffer, epilogues, accumulators, work.row, work.end);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        Epilogue& epilogue = epilogues.each[block];
        if (block > 0) epilogue.follow(epilogues.each[0]);
        if constexpr (!Traits::kPaired && Traits::kSplits == 1) {
          Completion::complete_parts(storage, consumer, block, buffer, epilogue, accumulators[block], work.row, work.end, beginnings,
                                     kept);
        }
        epilogue.finish(columns(block));
      }
      if constexpr (Traits::kPingpong && Traits::kStaged) {  // consumers share the buffers
        advance<Traits::kBuffers>(buffer, Traits::kParts);
        if (threadIdx.x % 32 == 0) barrier_arrive(storage.order_of_epilogues(1 - consumer));
      }
      if constexpr (Traits::kSplits > 1) return;  // a cluster has one tile
    }
  }

  /// Multiply and complete a tile of a consumer by rows. It has the vectors of many columns, and loads them while it
  /// multiplies the last stage if registers hold them.
  CUTLASS_DEVICE static void multiply_rows(Params const& params, Storage const& storage, Work const& work, int rank,
                                           int consumer, PipelineState& state, PipelineState& buffer,
                                           typename Multiplication::Sums& accumulators) {
    auto const prepare = [&] { return typename Completion::OfRows(params, work, consumer); };
    if constexpr (Completion::kPreparesEarly) {
      auto const strips = Multiplication::multiply_rows(storage, rank, consumer, work.k_blocks, state, accumulators, prepare);
      Completion::complete_rows(params, storage, work, consumer, buffer, accumulators[0], strips);
    } else {
      Multiplication::multiply(storage, rank, consumer, work.k_blocks, work.end - work.row, state, accumulators, [] {});
      Completion::complete_rows(params, storage, work, consumer, buffer, accumulators[0], prepare());
    }
  }

  /// Advance beyond the stages or buffers of the other consumer.
  template <int Stages>
  CUTLASS_DEVICE static void advance(PipelineState& state, int by) {
    state.phase ^= by / Stages & 1;
    state.advance_once(by % Stages, Stages);
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_HPP
