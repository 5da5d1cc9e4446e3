#ifndef EVT_KIT_GEMM_HPP
#define EVT_KIT_GEMM_HPP

// A persistent, warp-specialised matrix product for sm90, in clusters that share their loads.
//
// The product is transposed: M of WGMMA are columns of D, N are rows. A consumer has up to three blocks of 64 columns.
// Warp group 0 produces: warp 0 loads stages of A and B by TMA, warps 1 and 2 move C and D, one for each consumer. Warp
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
// Splits of k: the CTAs of a cluster multiply parts of k of one tile. Once all have multiplied, each sends its partial
// sums to the CTAs that complete them, through the stages' shared memory, and completes some rows itself. The order of
// addition is fixed.
//
// Consumers by stages have the same columns, and every other stage of a tile each. They split k as the CTAs of a cluster do,
// so that few columns keep many SMs busy.
//
// Filters of another type than the rows of A are converted in registers, from which WGMMA takes its operand A. Consumers
// convert a stage while they multiply the one before.
//
// Factors of A and B that are constant over blocks of k multiply the sums of a stage when these are promoted. Warp 3
// loads them, stages ahead.
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
// places stages in shared memory, and gives a CTA its tiles. Here are the roles of the warps. A consumer multiplies by
// gemm_multiplication.hpp, and completes its tiles by gemm_completion.hpp.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/fragment.hpp"
#include "evt/kit/gemm_completion.hpp"
#include "evt/kit/gemm_multiplication.hpp"
#include "evt/kit/gemm_params.hpp"
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
  using Filters = typename Traits::Filters;
  using Lanes = typename Traits::Lanes;

  static constexpr int MaxThreadsPerBlock = Traits::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = Traits::kResident;
  static constexpr int SharedStorageSize = Traits::kSharedOfCta;
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
#endif

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Storage const storage(shared_memory);
    int const group = canonical_warp_idx_sync() / (kWarpGroup / 32);
    int const rank = Traits::kClusterSize == 1 ? 0 : block_rank_in_cluster();
    initialize(params, storage);
    __syncthreads();
    if constexpr (Traits::kClusterSize > 1) cluster_arrive_relaxed();
    if constexpr (Traits::kClusterSize > 1 && !kMeetsLate) cluster_wait();
    pdl::wait_for_kernel_before();
    if constexpr (Traits::kGrouped) tabulate(params, storage);
    if (group == 0) {
      if constexpr (kMovesRegisters) warpgroup_reg_dealloc<kProducerRegisters>();
      int const warp = canonical_warp_idx_sync();
      if (Traits::Scaled::kExists && warp == 3) {
        load_scales(params, storage, rank);
      } else if (elect_one_sync()) {
        if (warp == 0) load(params, storage, rank);
        if (Traits::kStaged && warp >= 1 && warp <= Traits::kRings) move_parts(params, storage, rank, warp - 1);
      }
      __syncwarp();
    } else {
      if constexpr (kMovesRegisters) warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, storage, rank, group - 1);
    }
#endif
  }

 private:
  CUTLASS_DEVICE static void initialize(Params const& params, Storage const& storage) {
    constexpr int kWarps = kWarpGroup / 32;
    int const warp = canonical_warp_idx_sync();
    if (!elect_one_sync()) return;
    if (warp == 0) {
      prefetch_tma_descriptor(params.a);
      prefetch_tma_descriptor(params.b);
      if (Traits::kDual) prefetch_tma_descriptor(params.partner);
    }
    if (Traits::kLoadsSource && warp == 1) prefetch_tma_descriptor(params.source);
    if (Traits::kStoresDestination && warp == 2) prefetch_tma_descriptor(params.destination);
    // A CTA sends to the CTAs of its row and of its column of the cluster.
    constexpr int kReceivers = Traits::kClusterColumns + Traits::kClusterRows - 1;
    for (int i = warp; i < Traits::kStages; i += Traits::kThreads / 32) {
      barrier_init(storage.full(i), Traits::Scaled::kExists ? 1 + Traits::kLaneArrivals : 1);
      barrier_init(storage.empty(i), (kReceivers - 1 + Traits::kLaneArrivals) * kWarps * Traits::kOfStage);
    }
    if (warp < Traits::kConsumers) {
      barrier_init(storage.order(warp), kWarps);
      barrier_init(storage.order_of_epilogues(warp), kWarps);
      if constexpr (Traits::kSplits > 1) {
        if (warp == 0) barrier_init(storage.multiplied(), Traits::kSplits * Traits::kConsumers * kWarps);
        barrier_init(storage.exchanged(warp), 1);
        arrive_and_expect_tx(storage.exchanged(warp), Traits::kSplits * Traits::kSumsBytes);
      }
    }
    for (int i = warp; i < Traits::kRings * Traits::kBuffers; i += Traits::kThreads / 32) {
      barrier_init(storage.ready(0, i), 1);
      barrier_init(storage.written(0, i), kWarps);
    }
    fence_barrier_init();
  }

  CUTLASS_DEVICE static int first_work() { return blockIdx.x / Traits::kClusterSize; }
  CUTLASS_DEVICE static int next_work() { return gridDim.x / Traits::kClusterSize; }
  CUTLASS_DEVICE static int work_of(Params const& params, Storage const& storage) {
    int const row_clusters = Traits::kGrouped ? storage.first_cluster(params.groups) : params.row_clusters;
    return row_clusters * params.column_clusters * (Traits::kBatched ? params.batches : 1);
  }

  /// Tabulate the groups. Ends that descend or exceed the rows give empty groups.
  CUTLASS_DEVICE static void tabulate(Params const& params, Storage const& storage) {
    constexpr int kTall = Traits::kPixels * Traits::kClusterRows;
    for (int i = threadIdx.x; i <= params.groups; i += Traits::kThreads) {
      storage.end_of(i) = i == 0 ? 0 : min(max(params.ends[i - 1], 0), params.rows);
    }
    __syncthreads();
    if (canonical_warp_idx_sync() == 0) {
      int const lane = threadIdx.x % 32;
      int before = 0;
      for (int first = 0; first <= params.groups; first += 32) {
        int const group = first + lane;
        bool const exists = group < params.groups;
        int const clusters =
            exists ? ceil_div(max(storage.end_of(group + 1) - storage.end_of(group), 0), kTall) : 0;
        int sum = clusters;
        CUTLASS_PRAGMA_UNROLL
        for (int distance = 1; distance < 32; distance *= 2) {
          int const other = __shfl_up_sync(0xffffffffu, sum, distance);
          if (lane >= distance) sum += other;
        }
        if (group <= params.groups) storage.first_cluster(group) = before + sum - clusters;
        before += __shfl_sync(0xffffffffu, sum, 31);
      }
    }
    __syncthreads();
  }

  /// Load the stages of all tiles.
  CUTLASS_DEVICE static void load(Params const& params, Storage const& storage, int rank) {
    constexpr int kColumnRanks = Traits::kClusterColumns, kRowRanks = Traits::kClusterRows;
    constexpr int kRowsLoaded = Traits::kPixels / kColumnRanks, kBlocksLoaded = Traits::kColumnBlocks / kRowRanks;
    int const first_rank = rank / Traits::kMulticast * Traits::kMulticast, within = rank - first_rank;
    int const across = within % kColumnRanks, down = within / kColumnRanks;
    uint16_t const same_rows = ((1 << kColumnRanks) - 1) << (first_rank + down * kColumnRanks);
    uint16_t same_columns = 0;
    for (int i = 0; i < kRowRanks; ++i) same_columns |= 1 << (first_rank + i * kColumnRanks + across);
    int const missing = kRowsLoaded - Traits::loaded_rows(params.rows);
    int const bytes = Traits::kStageBytes - missing * Traits::kBoxes * Traits::kRowBytes;
    PipelineState state;
    for (int number = first_work(); number < work_of(params, storage); number += next_work()) {
      Work const work(params, storage, number, rank);
      int const row = work.row + across * kRowsLoaded;
      CachePolicy const policy = work.reads_once ? kEvictFirst : kEvictNormal;
      int const of_b = Traits::kBatched ? work.group * params.b_step : work.group;
      for (int block = work.first_block; block < work.first_block + work.k_blocks; ++block) {
        barrier_wait(storage.empty(state.index), state.phase ^ 1);
        uint32_t const full = storage.full(state.index);
        arrive_and_expect_tx(full, bytes);
        uint32_t const rows = storage.rows(state.index) + across * kRowsLoaded * Traits::kRowBytes;
        uint32_t const columns = storage.columns(state.index) + Traits::filters_of(0, down * kBlocksLoaded);
        CUTLASS_PRAGMA_UNROLL
        for (int box = 0; box < Traits::kBoxes; ++box) {
          int const k = block * Depth + box * Traits::kBoxDepth;
          load_matrix<kColumnRanks, Traits::kBatched>(rows + box * Traits::kRowsBytes, params.a, full, same_rows,
                                                      kEvictNormal, k, row, work.group * params.a_step);
          if (box >= Traits::kBoxesOfFilters) continue;
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kBlocksLoaded; ++i) {
            int const column = work.column + (down * kBlocksLoaded + i) * kFilters;
            uint32_t const to = columns + Traits::filters_of(box, i);
            if constexpr (Traits::kPaired) {
              int const number = column / kFilters, pair = number / Traits::kMembers * kFilters;
              int const member = number % Traits::kMembers;
              if constexpr (Traits::kDual) {
                CUtensorMap const& map = member == 0 ? params.b : params.partner;
                load_box<kRowRanks>(to, map, full, same_columns, policy, k, pair);
              } else if constexpr (Traits::kPairs == 1) {
                load_box<kRowRanks>(to, params.b, full, same_columns, policy, k, pair, member, of_b);
              } else {
                int const run = pair / Traits::kPairs;
                load_box<kRowRanks>(to, params.b, full, same_columns, policy, k, 0, run, member, of_b);
              }
            } else if constexpr (Conversion::kPacked) {
              load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, same_columns, policy,
                                                     block * Filters::kLength, column / Filters::kOfTile, of_b);
            } else if constexpr (Mma::kTransposed) {
              load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, same_columns, policy, column, k, of_b);
            } else {
              load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, same_columns, policy, k, column, of_b);
            }
          }
        }
        state.advance_once(1, Traits::kStages);
      }
    }
    if constexpr (Traits::kMulticast > 1) {
      // Other CTAs release the last stages, too. Their arrivals must not come after the end of this CTA.
      for (int i = 0; i < Traits::kStages; ++i) {
        barrier_wait(storage.empty(state.index), state.phase ^ 1);
        state.advance_once(1, Traits::kStages);
      }
    }
  }

  /// Load the factors of the stages of all tiles, of several stages at once where they are neighbours.
  CUTLASS_DEVICE static void load_scales(Params const& params, Storage const& storage, int rank) {
    constexpr int kRun = Traits::kRun;
    if constexpr (kRun > 1) {
      bool const whole = params.k_blocks % (kRun * Traits::kSplits) == 0;  // all CTAs have whole runs
      if (whole && Traits::Scaled::template are_neighbours<Depth, kRun>(params.scales)) {
        return load_runs<kRun>(params, storage, rank);
      }
    }
    load_runs<1>(params, storage, rank);
  }

  /// Load the factors of runs of stages. They wait in registers for the release of a stage.
  template <int Run>
  CUTLASS_DEVICE static void load_runs(Params const& params, Storage const& storage, int rank) {
    using Scaled = typename Traits::Scaled;
    constexpr int kAhead = Scaled::ahead_of(Run);
    typename Scaled::template Loaded<Run> ahead[kAhead];
    int number = first_work(), block = 0, runs = 0;
    if (number >= work_of(params, storage)) return;
    int const end = work_of(params, storage);
    Work work(params, storage, number, rank);
    typename Scaled::Places places;
    Scaled::find(places, params.scales, work.row, work.end, work.column, params.columns, work.group);
    auto const load_next = [&](int i) {
      if (number >= end) return;
      Scaled::load(ahead[i], params.scales, places, (work.first_block + block) * Depth);
      ++runs;
      block += Run;
      if (block < work.k_blocks) return;
      block = 0;
      number += next_work();
      if (number >= end) return;
      work = Work(params, storage, number, rank);
      Scaled::find(places, params.scales, work.row, work.end, work.column, params.columns, work.group);
    };
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAhead; ++i) load_next(i);
    PipelineState state;
    while (true) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (runs-- == 0) return;
        CUTLASS_PRAGMA_UNROLL
        for (int stage = 0; stage < Run; ++stage) {
          barrier_wait(storage.empty(state.index), state.phase ^ 1);
          Scaled::store(storage.scales(state.index), ahead[i], stage);
          barrier_arrive(storage.full(state.index));
          state.advance_once(1, Traits::kStages);
        }
        load_next(i);
      }
    }
  }

  template <int Receivers, class... Coordinates>
  CUTLASS_DEVICE static void load_box(
      uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, CachePolicy policy,
      Coordinates... coordinates) {
    if constexpr (Receivers > 1) {
      tma_load_multicast(to, map, barrier, receivers, coordinates...);
    } else {
      tma_load(to, map, barrier, policy, coordinates...);
    }
  }

  /// Load a box of a matrix, of a group or batch if there are many.
  template <int Receivers, bool Many>
  CUTLASS_DEVICE static void load_matrix(
      uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, CachePolicy policy, int c0, int c1,
      int number) {
    if constexpr (Many) {
      load_box<Receivers>(to, map, barrier, receivers, policy, c0, c1, number);
    } else {
      load_box<Receivers>(to, map, barrier, receivers, policy, c0, c1);
    }
  }

  /// Load C into the buffers of a ring, and store D.
  CUTLASS_DEVICE static void move_parts(Params const& params, Storage const& storage, int rank, int ring) {
    int const first_row = Traits::first_row_of(rank) + Traits::row_of_consumer(ring);
    if (first_row >= Traits::kPixels) return;  // this CTA completes nothing of a split tile
    auto const column_of = [&](Work const& work, int part) {
      int const column = work.column + Traits::first_block_of(ring) * kFilters;
      return column / Traits::kMembers + part / Traits::kPartsOfBlock * kFilters;
    };
    auto const row_of = [&](Work const& work, int part) {
      return work.row + first_row + part % Traits::kPartsOfBlock * Traits::kPartRows;
    };
    auto const rows_of = [](int part) {
      return part % Traits::kPartsOfBlock == Traits::kPartsOfBlock - 1 ? Traits::kLastRows : Traits::kPartRows;
    };
    auto const prepare = [&](Work const& work, int part, int index) {
      uint32_t const ready = storage.ready(ring, index);
      if constexpr (Traits::kLoadsSource) {
        arrive_and_expect_tx(ready, rows_of(part) * Traits::kEpilogueRow);
        for (int first = 0; first < rows_of(part); first += Traits::kBoxRows) {
          load_matrix<1, Traits::kBatched>(storage.buffer(ring, index) + first * Traits::kEpilogueRow, params.source, ready,
                                           0, kEvictNormal, column_of(work, part), row_of(work, part) + first,
                                           work.group * params.c_step);
        }
      } else {
        barrier_arrive(ready);
      }
    };
    int number = first_work();
    if (number >= work_of(params, storage)) return;
    Work work(params, storage, number, rank);
    for (int i = 0; i < Traits::kBuffers; ++i) prepare(work, i, i);
    PipelineState state;
    while (true) {
      number += next_work();
      bool const is_last = number >= work_of(params, storage);
      Work const next = is_last ? work : Work(params, storage, number, rank);
      for (int part = 0; part < Traits::kParts; ++part) {
        barrier_wait(storage.written(ring, state.index), state.phase);
        if constexpr (Traits::kStoresDestination) {
          for (int first = 0; first < rows_of(part); first += Traits::kBoxRows) {
            store(params, storage.buffer(ring, state.index) + first * Traits::kEpilogueRow, column_of(work, part),
                  row_of(work, part) + first, work);
          }
          tma_store_arrive();
          tma_store_wait();
        }
        int const later = part + Traits::kBuffers;
        if (later < Traits::kParts) {
          prepare(work, later, state.index);
        } else if (!is_last) {
          prepare(next, later - Traits::kParts, state.index);
        }
        state.advance_once(1, Traits::kBuffers);
      }
      if (is_last) return;
      work = next;
    }
  }

  /// Store a part of D. In groups, its rows before `end` are the last ones of dimension 1, which TMA cuts off.
  CUTLASS_DEVICE static void store(Params const& params, uint32_t buffer, int column, int row, Work const& work) {
    if constexpr (Traits::kGrouped) {
      int const rows = min(work.end - row, Traits::kPartRows);
      if (rows > 0) tma_store(params.destination, buffer, column, Traits::kPartRows - rows, row + rows);
    } else if constexpr (Traits::kBatched) {
      tma_store(params.destination, buffer, column, row, work.group);
    } else {
      tma_store(params.destination, buffer, column, row);
    }
  }

  /// Multiply and complete the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, Storage const& storage, int rank, int consumer) {
    PipelineState state, buffer;
    int stride = next_work(), first = first_work();
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
    uint32_t phase = 0;
    for (int number = first; number < work_of(params, storage); number += stride, phase ^= 1) {
      Work const work(params, storage, number, rank);
      int const rows = work.end - work.row;
      typename Multiplication::Sums accumulators;
      CUTLASS_PRAGMA_UNROLL
      for (auto& block : accumulators) {
        CUTLASS_PRAGMA_UNROLL
        for (auto& each : block) each = 0;
      }
      if constexpr (Traits::kByRows) {
        Multiplication::multiply(storage, rank, consumer, work.k_blocks, rows, state, accumulators);
        Completion::complete_rows(params, storage, work, consumer, buffer, accumulators[0],
                                  IndicesTo<Traits::kColumns / Lanes::kStrip>{});
        continue;
      }
      int const column = work.column + Traits::first_block_of(consumer) * kFilters;
      // Vectors are loaded before they are needed, for all blocks.
      int const row = work.row + Traits::first_row_of(rank);
      auto const columns = [&](int block) { return Completion::columns_of(params, work, rank, column, block, row); };
      typename Completion::Epilogues epilogues(params.epilogue, columns);
      if constexpr (Traits::kPingpong) barrier_wait(storage.order(consumer), phase);
      if constexpr (Traits::kByStages) {
        int const stages = (work.k_blocks + 1 - consumer) / 2;
        if (stages > 0) Multiplication::multiply(storage, rank, consumer, stages, rows, state, accumulators);
      } else {
        Multiplication::multiply(storage, rank, consumer, work.k_blocks, rows, state, accumulators);
      }
      if constexpr (Traits::kSplits > 1) {
        if constexpr (kMeetsLate) cluster_wait();
        Completion::exchange_and_complete(storage, work, rank, consumer, epilogues, accumulators);
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
          Completion::complete_parts(storage, consumer, buffer, epilogue, accumulators[block], work.row, work.end);
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
