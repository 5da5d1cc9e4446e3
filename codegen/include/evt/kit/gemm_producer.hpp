#ifndef EVT_KIT_GEMM_PRODUCER_HPP
#define EVT_KIT_GEMM_PRODUCER_HPP

// The producers of a product. A warp loads stages of A and B, and another one their factors. For each ring of buffers, a
// warp moves parts of C and D.

#include <cstdint>

#include "evt/kit/gemm_params.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// The producers of a CTA.
template <class Traits>
struct GemmProducer {
  using Params = GemmParams<Traits>;
  using Storage = GemmStorage<Traits>;
  using Work = GemmWork<Traits>;
  using Filters = typename Traits::Filters;
  using Staged = typename Traits::Staged;

  /// Load the stages of all tiles.
  CUTLASS_DEVICE static void load(Params const& params, Storage const& storage, int rank) {
    Share const share(rank);
    int const missing = kRowsLoaded - Traits::loaded_rows(params.rows);
    int const bytes = Traits::kStageBytes - missing * Traits::kBoxes * Traits::kRowBytes;
    PipelineState state;
    for (int number = Work::first_number(); number < Work::count(params, storage); number += Work::step()) {
      Work const work(params, storage, number, rank);
      if (Traits::kLoadsFewColumns && work.column + Traits::kColumns > params.columns) {
        load_tile<false>(params, storage, work, share, bytes, state);
      } else {
        load_tile<true>(params, storage, work, share, bytes, state);
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

  /// Load the factors of the stages of all tiles, of Run stages at once where they are neighbours.
  template <int Run = Traits::kRun>
  CUTLASS_DEVICE static void load_scales(Params const& params, Storage const& storage, int rank) {
    if constexpr (Run > 1) {
      bool const whole = params.k_blocks % (Run * Traits::kSplits) == 0;  // all CTAs have whole runs
      if (!whole || !Traits::Scaled::template are_neighbours<Traits::kDepth, Run>(params.scales)) {
        return load_scales<Run / 2>(params, storage, rank);
      }
    }
    load_runs<Run>(params, storage, rank);
  }

  /// Load the epilogue's matrices into the buffers of a ring, and store them: by a thread, or by a warp if they are
  /// unaligned.
  CUTLASS_DEVICE static void move_parts(Params const& params, Storage const& storage, int rank, int ring) {
    int const first_row = Traits::first_row_of(rank) + Traits::row_of_consumer(ring);
    if (first_row >= Traits::kPixels) return;  // this CTA completes nothing of a split tile
    auto const column_of = [&](Work const& work, int part) {
      int const column = work.column + Traits::first_block_of(ring) * kFilters;
      return column / Traits::kMembers + part / Traits::kPartsOfBlock * Traits::kBlockColumns;
    };
    auto const row_of = [&](Work const& work, int part) {
      return work.row + first_row + part % Traits::kPartsOfBlock * Traits::kPartRows;
    };
    auto const rows_of = [](int part) {
      return part % Traits::kPartsOfBlock == Traits::kPartsOfBlock - 1 ? Traits::kLastRows : Traits::kPartRows;
    };
    // The uses of buffers by a tile: C of the last parts, which consumers keep, then C and D of the others, then D of these.
    constexpr int kUses = Traits::kKept + Traits::kParts;
    auto const part_of = [](int use) { return use < Traits::kKept ? Traits::kParts - Traits::kKept + use : use - Traits::kKept; };
    auto const prepare = [&](Work const& work, int use, int index) {
      uint32_t const ready = storage.ready(ring, index);
      if constexpr (Traits::kUnaligned) {
        int const part = use < Traits::kParts ? part_of(use) : 0;
        int const rows = use < Traits::kParts ? min(rows_of(part), work.end - row_of(work, part)) : 0;
        load_rows(IndicesTo<Traits::kLoads>{}, params, storage.buffer(ring, index), ready, rows, column_of(work, part),
                  row_of(work, part));
      } else if (Traits::kLoads > 0 && use < Traits::kParts) {
        constexpr int kRowBytes = Traits::kBlockColumns * Staged::loaded_bytes();
        int const part = part_of(use);
        arrive_and_expect_tx(ready, rows_of(part) * kRowBytes);
        load_boxes(IndicesTo<Traits::kLoads>{}, params, storage.buffer(ring, index), ready, rows_of(part),
                   column_of(work, part), row_of(work, part), work.group);
      } else {
        barrier_arrive(ready);
      }
    };
    int number = Work::first_number();
    if (number >= Work::count(params, storage)) return;
    Work work(params, storage, number, rank);
    if constexpr (Traits::kLoadsLate) barrier_wait(storage.begun(), 0);
    for (int i = 0; i < Traits::kBuffers; ++i) prepare(work, i, i);
    PipelineState state;
    while (true) {
      number += Work::step();
      bool const is_last = number >= Work::count(params, storage);
      Work const next = is_last ? work : Work(params, storage, number, rank);
      for (int use = 0; use < kUses; ++use) {
        barrier_wait(storage.written(ring, state.index), state.phase);
        if (Traits::kStores > 0 && use >= Traits::kKept) {
          int const part = part_of(use);
          store_boxes(IndicesTo<Traits::kStores>{}, params, storage.buffer(ring, state.index), rows_of(part),
                      column_of(work, part), row_of(work, part), work);
          tma_store_arrive();
          tma_store_wait();
        }
        int const later = use + Traits::kBuffers;
        if (later < kUses) {
          prepare(work, later, state.index);
        } else if (!is_last) {
          prepare(next, later - kUses, state.index);
        }
        state.advance_once(1, Traits::kBuffers);
      }
      if (is_last) return;
      work = next;
    }
  }

 private:
  static constexpr int kColumnRanks = Traits::kClusterColumns, kRowRanks = Traits::kClusterRows;
  static constexpr int kRowsLoaded = Traits::kPixels / kColumnRanks, kBlocksLoaded = Traits::kColumnBlocks / kRowRanks;

  /// The share of a CTA in the loads of its cluster: its place along columns and rows, and the CTAs that have the same ones.
  struct Share {
    int across, down;
    uint16_t same_rows, same_columns = 0;

    CUTLASS_DEVICE explicit Share(int rank) {
      int const first = rank / Traits::kMulticast * Traits::kMulticast, within = rank - first;
      across = within % kColumnRanks, down = within / kColumnRanks;
      same_rows = ((1 << kColumnRanks) - 1) << (first + down * kColumnRanks);
      for (int i = 0; i < kRowRanks; ++i) same_columns |= 1 << (first + i * kColumnRanks + across);
    }
  };

  /// Load the stages of a tile. `bytes` are a stage's with all columns. Whole: all columns exist.
  template <bool Whole>
  CUTLASS_DEVICE static void load_tile(
      Params const& params, Storage const& storage, Work const& work, Share const& share, int bytes, PipelineState& state) {
    int const row = work.row + share.across * kRowsLoaded;
    int const first_column = work.column + share.down * kBlocksLoaded * Traits::kBlockColumns;
    CachePolicy const policy = work.reads_once ? kEvictFirst : kEvictNormal;
    int const of_b = Traits::kBatched ? work.group * params.b_step : work.group;
    CUtensorMap const* of_blocks[kBlocksLoaded];  // null for blocks that do not exist
    if constexpr (!Whole) {
      bytes -= min(work.column + Traits::kColumns - params.columns, Traits::kColumns) * Traits::kBoxesOfFilters *
               Filters::kRowBytes;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocksLoaded; ++i) {
        int const left = params.columns - first_column - i * Traits::kBlockColumns;
        of_blocks[i] = left <= 0 ? nullptr : left < Traits::kBlockColumns ? &params.last : &params.b;
      }
    }
    for (int block = work.first_block; block < work.first_block + work.k_blocks; ++block) {
      barrier_wait(storage.empty(state.index), state.phase ^ 1);
      uint32_t const full = storage.full(state.index);
      arrive_and_expect_tx(full, bytes);
      uint32_t const rows = storage.rows(state.index) + share.across * kRowsLoaded * Traits::kRowBytes;
      uint32_t const columns = storage.columns(state.index) + Traits::filters_of(0, share.down * kBlocksLoaded);
      CUTLASS_PRAGMA_UNROLL
      for (int box = 0; box < Traits::kBoxes; ++box) {
        int const k = block * Traits::kDepth + box * Traits::kBoxDepth;
        load_matrix<kColumnRanks, Traits::kBatched>(rows + box * Traits::kRowsBytes, params.a, full, share.same_rows,
                                                    kEvictNormal, k, row, work.group * params.a_step);
        if (box >= Traits::kBoxesOfFilters) continue;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kBlocksLoaded; ++i) {
          int const column = first_column + i * Traits::kBlockColumns;
          uint32_t const to = columns + Traits::filters_of(box, i);
          if constexpr (Traits::kPaired) {
            int const number = column / kFilters, pair = number / Traits::kMembers * kFilters;
            int const member = number % Traits::kMembers;
            if constexpr (Traits::kDual) {
              CUtensorMap const& map = member == 0 ? params.b : params.partner;
              load_box<kRowRanks>(to, map, full, share.same_columns, policy, k, pair);
            } else if constexpr (Traits::kPairs == 1) {
              load_box<kRowRanks>(to, params.b, full, share.same_columns, policy, k, pair, member, of_b);
            } else {
              int const run = pair / Traits::kPairs;
              load_box<kRowRanks>(to, params.b, full, share.same_columns, policy, k, 0, run, member, of_b);
            }
          } else if constexpr (Traits::Conversion::kPacked) {
            load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, share.same_columns, policy,
                                                   block * Filters::kLength, column / Filters::kOfTile, of_b);
          } else if constexpr (Traits::Mma::kTransposed) {
            load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, share.same_columns, policy, column, k, of_b);
          } else if constexpr (Whole) {
            load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, share.same_columns, policy, k, column, of_b);
          } else if (of_blocks[i] != nullptr) {
            load_matrix<kRowRanks, Traits::kManyB>(to, *of_blocks[i], full, share.same_columns, policy, k, column, of_b);
          }
        }
      }
      state.advance_once(1, Traits::kStages);
    }
  }

  /// Load the factors of runs of stages. They wait in registers for the release of a stage.
  template <int Run>
  CUTLASS_DEVICE static void load_runs(Params const& params, Storage const& storage, int rank) {
    using Scaled = typename Traits::Scaled;
    constexpr int kAhead = Scaled::ahead_of(Run);
    typename Scaled::template Loaded<Run> ahead[kAhead];
    int number = Work::first_number(), block = 0, runs = 0;
    if (number >= Work::count(params, storage)) return;
    int const end = Work::count(params, storage);
    Work work(params, storage, number, rank);
    typename Scaled::Places places;
    Scaled::find(places, params.scales, work.row, work.end, work.column, params.columns, work.group);
    auto const load_next = [&](int i) {
      if (number >= end) return;
      Scaled::load(ahead[i], params.scales, places, (work.first_block + block) * Traits::kDepth);
      ++runs;
      block += Run;
      if (block < work.k_blocks) return;
      block = 0;
      number += Work::step();
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

  /// Call `move(address, column, row)` for the boxes of a matrix in a buffer, from its first column and row.
  template <class Element, class Move>
  CUTLASS_DEVICE static void for_each_box(uint32_t buffer, int rows, Move const& move) {
    using Matrix = typename Staged::template Matrix<Element>;
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < Matrix::kBoxes; ++box) {
      for (int row = 0; row < rows; row += Traits::kBoxRows) {
        move(buffer + box * Matrix::kBoxBytes + row * Matrix::kRowBytes, box * Matrix::kBoxColumns, row);
      }
    }
  }

  /// Load a part of the epilogue's matrices, from a row and a column on.
  template <int... Numbers>
  CUTLASS_DEVICE static void load_boxes(Indices<Numbers...>, Params const& params, uint32_t buffer, uint32_t ready, int rows,
                                        int column, int row, int batch) {
    (for_each_box<typename Staged::template Load<Numbers>>(
         buffer + Staged::template kPlace<Numbers>, rows,
         [&](uint32_t to, int right, int down) {
           load_matrix<1, Traits::kBatched>(to, params.loads[Numbers], ready, 0, kEvictNormal, column + right, row + down,
                                            batch * params.load_steps[Numbers]);
         }),
     ...);
  }

  /// The elements of a row of a part from a column on.
  CUTLASS_DEVICE static int columns_of_row(Params const& params, int column) {
    return min(max(params.columns - column, 0), Traits::kBlockColumns);
  }

  /// Call `move(to, from, bytes)` for some rows of a part of an unaligned matrix, a row by a lane: for the blocks that
  /// contain its elements.
  template <int Number, class Move>
  CUTLASS_DEVICE static void for_each_row(
      Params const& params, uint32_t buffer, int rows, int column, int row, Move const& move) {
    constexpr int kBytes = Staged::template kElementBytes<Number>, kPitch = Staged::template kPitch<Number>;
    MovedMatrix const& matrix = params.loads[Number];
    int const columns = columns_of_row(params, column);
    if (columns == 0) return;
    for (int i = threadIdx.x % 32; i < rows; i += 32) {
      uint64_t const from = reinterpret_cast<uint64_t>(matrix.pointer) + ((row + i) * matrix.stride + column) * kBytes;
      uint64_t const begin = from / kCopiedBytes * kCopiedBytes;
      int const bytes = ceil_div(int(from - begin) + columns * kBytes, kCopiedBytes) * kCopiedBytes;
      move(buffer + Staged::template kPlace<Number> + i * kPitch, reinterpret_cast<void const*>(begin), bytes);
    }
  }

  /// Load some rows of a part of unaligned matrices, by a warp.
  template <int... Numbers>
  CUTLASS_DEVICE static void load_rows(Indices<Numbers...>, Params const& params, uint32_t buffer, uint32_t ready, int rows,
                                       int column, int row) {
    int sum = 0;
    auto const add = [&](uint32_t, void const*, int bytes) { sum += bytes; };
    (for_each_row<Numbers>(params, buffer, rows, column, row, add), ...);
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (threadIdx.x % 32 == 0) arrive_and_expect_tx(ready, sum);
    __syncwarp();
    auto const load = [&](uint32_t to, void const* from, int bytes) { tma_load_bulk(to, from, bytes, ready); };
    (for_each_row<Numbers>(params, buffer, rows, column, row, load), ...);
  }

  /// Store a part of the epilogue's matrices.
  template <int... Numbers>
  CUTLASS_DEVICE static void store_boxes(Indices<Numbers...>, Params const& params, uint32_t buffer, int rows, int column,
                                         int row, Work const& work) {
    (for_each_box<typename Staged::template Store<Numbers>>(
         buffer + Staged::template kPlace<Traits::kLoads + Numbers>, rows,
         [&](uint32_t from, int right, int down) {
           store(params.stores[Numbers], from, column + right, row + down, work);
         }),
     ...);
  }

  /// Store a box of a matrix. In groups, its rows before `end` are the last ones of dimension 1, which TMA cuts off.
  CUTLASS_DEVICE static void store(CUtensorMap const& map, uint32_t buffer, int column, int row, Work const& work) {
    if constexpr (Traits::kGrouped) {
      int const rows = min(work.end - row, Traits::kPartRows);
      if (rows > 0) tma_store(map, buffer, column, Traits::kPartRows - rows, row + rows);
    } else if constexpr (Traits::kBatched) {
      tma_store(map, buffer, column, row, work.group);
    } else {
      tma_store(map, buffer, column, row);
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_PRODUCER_HPP
