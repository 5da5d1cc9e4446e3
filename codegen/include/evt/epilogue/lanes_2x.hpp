#ifndef EVT_EPILOGUE_LANES_2X_HPP
#define EVT_EPILOGUE_LANES_2X_HPP

// The lanes of CUTLASS 2.x's kernels.
//
// The epilogue visits the CTA's tile as the thread map partitions it. In every step a thread has kRows x kColumns
// fragments of kSize neighbouring columns. A row of the tile belongs to kLanes lanes of one warp. All lanes of a warp
// take part in every visit, so that they may shuffle.

#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/gemm_coord.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/threadblock/default_thread_map_tensor_op.h"

#include "evt/epilogue/reduce.hpp"
#include "evt/epilogue/tile_cutlass.hpp"
#include "evt/epilogue/types_cutlass.hpp"
#include "evt/epilogue/visitor_2x.hpp"

namespace evt {
namespace threadblock {

using epilogue::Kept;

namespace detail {

// The value of lane `source` of the warp, of any type that can be copied.
template <class T>
CUTLASS_DEVICE T shuffle(T const& value, int source) {
  constexpr int kWords = (int(sizeof(T)) + 3) / 4;
  uint32_t words[kWords] = {};
  std::memcpy(words, &value, sizeof(T));
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kWords; ++i) {
    words[i] = __shfl_sync(0xffffffffu, words[i], source);
  }
  T result;
  std::memcpy(&result, words, sizeof(T));
  return result;
}

}  // namespace detail

template <class Base>
using TileOf = epilogue::Tile<Base::Shape::kGroup * Base::Count::kRow * Base::Shape::kRow, Base::Shape::kColumn, 1, 1>;

template <class ThreadMap>
struct Lanes : epilogue::TypesCutlass, TileOf<typename ThreadMap::Base> {
  using Base = typename ThreadMap::Base;
  using Tile = TileOf<Base>;
  using Tile::kTileM, Tile::kTileN, Tile::m, Tile::n, Tile::rows, Tile::columns, Tile::thread;

  static constexpr int kSize = ThreadMap::kElementsPerAccess;        // columns of a fragment
  static constexpr int kLanes = Base::Detail::kAccessWidth;          // lanes of a row
  static constexpr int kLaneRows = Base::Detail::kAccessRows;        // rows of an access of a warp
  static constexpr int kColumns = Base::Iterations::kColumn;         // fragments of a thread in a row
  static constexpr int kRows = Base::Iterations::kRow;               // rows of a thread in a step
  static constexpr int kFragments = kRows * kColumns;
  static constexpr int kSteps = Base::Count::kRow;
  static constexpr int kStepRows = Base::Shape::kRow;                // rows of a group in a step
  static constexpr int kWarpRows = Base::Detail::kWarpsRemainingForRows;
  static constexpr int kGroups = Base::Shape::kGroup;
  static constexpr int kWarps = kWarpRows * kGroups;

  static_assert(kLanes * kLaneRows == 32 && (kLanes & (kLanes - 1)) == 0, "a warp must access whole rows");
  static_assert(kLaneRows * kRows * kWarpRows == kStepRows, "the warps of a group must divide its rows");
  static_assert(kTileN == kSize * kLanes * kColumns, "a row must belong to one warp");
  static_assert(Base::Count::kGroup == 1 && Base::Count::kCluster == 1 && Base::Shape::kCluster == 1,
                "a thread map of a tensor-op epilogue");
  static_assert(Base::kThreads == 32 * kWarps, "every warp must have rows");
  static_assert(ThreadMap::Stages == 1, "one step is in flight");

  struct At {
    int step, row, column;
  };
  using Step = int;

  int lane;  // the thread's index among the kLanes of a row

  template <class ProblemShape>
  CUTLASS_DEVICE Lanes(cutlass::gemm::GemmCoord const& tile, int thread_idx, ProblemShape const& problem_shape)
      : Tile{0,
             0,
             tile.k(),
             int(cute::get<0>(problem_shape)),
             int(cute::get<1>(problem_shape)),
             tile.m(),
             tile.n(),
             thread_idx},
        lane(thread_idx % kLanes) {
    int const group = warp() / kWarpRows;
    m = tile.m() * kTileM + group * (kSteps * kStepRows) + (warp() % kWarpRows) * (kLaneRows * kRows) +
        thread_idx % 32 / kLanes;
    n = tile.n() * kTileN + lane * kSize;
  }

  CUTLASS_HOST_DEVICE static constexpr int row_offset(int) { return 0; }
  CUTLASS_HOST_DEVICE static constexpr int column_offset(int i) { return i; }

  CUTLASS_DEVICE int row_of_step(Step step, int row) const { return m + row * kLaneRows + step * kStepRows; }
  CUTLASS_DEVICE int column_of_tile(int column, int i) const { return n + column * (kSize * kLanes) + i; }

  CUTLASS_DEVICE int row(At const& at, int) const { return row_of_step(at.step, at.row); }
  CUTLASS_DEVICE int column(At const& at, int i) const { return column_of_tile(at.column, i); }

  CUTLASS_DEVICE bool has_row(At const& at, int i) const { return row(at, i) < rows; }
  CUTLASS_DEVICE bool has(At const& at, int i) const { return has_row(at, i) && column(at, i) < columns; }

  CUTLASS_DEVICE int warp() const { return thread / 32; }

  template <int Width>
  CUTLASS_DEVICE int column_within(At const& at, int i) const {
    return column(at, i) % Width;
  }

  CUTLASS_DEVICE static At at(Step step, int fragment) { return {step, fragment / kColumns, fragment % kColumns}; }
  CUTLASS_DEVICE static int fragment(At const& at) { return at.row * kColumns + at.column; }
  CUTLASS_DEVICE static int row_number(At const& at) { return at.row; }
  CUTLASS_DEVICE static int column_number(At const& at) { return at.column; }

  /// slot(i) = Op(slot(i), value i) for the elements whose columns are in the problem.
  template <class Op, int Size, class Values, class Slot>
  CUTLASS_DEVICE void combine(At const& at, Values const& values, Slot const& slot) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      if (column(at, i) < columns) {
        auto& total = slot(i);
        total = Op::apply(total, values[i]);
      }
    }
  }

  /// Runs of neighbouring columns.
  struct Runs {
    static constexpr int kSize = Lanes::kSize;
  };

  /// The rows of an indexed tensor. A load looks up the rows of a step, and a store the row that it visits.
  template <class Row>
  struct RowTable {
    Row current;

    template <class Find>
    CUTLASS_DEVICE void begin(Lanes const&, Find const&) {}

    template <class Find>
    CUTLASS_DEVICE auto of_step(Lanes const& lanes, Step step, Find const& find) const {
      Found found;
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < kRows; ++row) {
        found.rows[row] = find(lanes.row_of_step(step, row));
      }
      return [found](At const& at, int) { return found.rows[at.row]; };
    }

    template <class Find>
    CUTLASS_DEVICE Row get(Lanes const& lanes, At const& at, int i, Find const& find) {
      if (at.column == 0) {  // column 0 is visited first
        current = find(lanes.row(at, i));
      }
      return current;
    }

   private:
    struct Found {
      Row rows[kRows];
    };
  };

  // The members of a pair are in one fragment, or in two lanes of a row.
  template <int Block>
  struct Pairs {
    static constexpr bool kWithin = kSize > Block;
    static constexpr int kDistance = kWithin ? 0 : Block / kSize;  // in lanes
    static constexpr int kRuns = 1, kRun = kWithin ? kSize / 2 : kSize;
    static_assert(kWithin || 2 * kDistance <= kLanes, "the lanes of a row must hold both members of a pair");
    static_assert(!kWithin || Block == 1 || kSize == 2 * Block, "a fragment's values of pairs must be neighbours");

    template <bool Second, class Input>
    CUTLASS_DEVICE static auto member(Lanes const& lanes, cutlass::Array<Input, kSize> const& input) {
      if constexpr (kWithin) {
        return generate<Input, kSize>([&](int i) -> Input { return input[Second ? i | Block : i & ~Block]; });
      } else {
        int const lane = lanes.thread % 32;
        return detail::shuffle(input, Second ? lane | kDistance : lane & ~kDistance);
      }
    }

    template <class Input>
    CUTLASS_DEVICE static auto other(Lanes const& lanes, cutlass::Array<Input, kSize> const& input) {
      if constexpr (kWithin) {
        return generate<Input, kSize>([&](int i) -> Input { return input[i ^ Block]; });
      } else {
        return detail::shuffle(input, lanes.thread % 32 ^ kDistance);
      }
    }

    CUTLASS_DEVICE static bool is_second(Lanes const& lanes, At const&, int i) {
      return kWithin ? (i & Block) != 0 : (lanes.lane & kDistance) != 0;
    }

    CUTLASS_HOST_DEVICE static constexpr int place(int i) { return kWithin && Block == 1 ? 2 * i : i; }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const& at) {
      return kWithin || !is_second(lanes, at, 0);
    }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const& at, int) { return lanes.row(at, 0); }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int) {
      int const n = lanes.column(at, 0);
      return n / (2 * Block) * Block + n % Block;
    }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int) {
      return lanes.has_row(at, 0) ? lanes.columns / 2 - column(lanes, at, 0) : 0;
    }

    template <class Element>
    CUTLASS_DEVICE static void gather(Lanes const&, Element (&runs)[1][kRun],
                                      cutlass::Array<Element, kRun> const& kept) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRun; ++i) {
        runs[0][i] = kept[i];
      }
    }

    template <class Element>
    CUTLASS_DEVICE static auto scatter(Lanes const&, Element const (&runs)[1][kRun]) {
      return generate<Element, kSize>(
          [&](int i) { return runs[0][!kWithin ? i : Block == 1 ? i / 2 : i % Block]; });
    }
  };

  // A fragment belongs to one block.
  template <int Width>
  struct Blocks {
    static constexpr int kLanes = Width / kSize, kLaneStride = 1;
    static_assert(Width % kSize == 0 && kLanes <= Lanes::kLanes, "the lanes of a row must hold a block");

    CUTLASS_HOST_DEVICE static constexpr int values_of(int) { return 1; }
    CUTLASS_HOST_DEVICE static constexpr int value_of(int) { return 0; }
    CUTLASS_HOST_DEVICE static constexpr int block_of(int) { return 0; }
    CUTLASS_HOST_DEVICE static constexpr int place(int) { return 0; }

    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at) { return lanes.column(at, 0); }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const& at, int) {
      return lanes.column(at, 0) % Width == 0;
    }
  };

  // A fragment has whole bytes, or shares one byte with its neighbours.
  struct Bits {
    static constexpr int kSize = Lanes::kSize;
    static constexpr int kBytes = kSize < 8 ? 1 : kSize / 8, kWords = 1, kWordsOfStep = kFragments;
    static constexpr int kSharers = kSize < 8 ? 8 / kSize : 1;
    static constexpr bool kOfTile = false;
    using Held = epilogue::Nothing;
    static_assert(kSize <= 32 && (kSize & (kSize - 1)) == 0, "a fragment's bits must fit into a word");
    static_assert(kSharers <= kLanes, "the lanes of a row must hold a byte");

    CUTLASS_DEVICE static At at(Step step, int word) { return Lanes::at(step, word); }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const&) { return lanes.lane % kSharers == 0; }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const& at, int) { return lanes.row(at, 0); }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int) {
      return lanes.column(at, 0) / (8 * kBytes) * (8 * kBytes);
    }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int) {
      int const after = lanes.columns - column(lanes, at, 0);
      return lanes.has_row(at, 0) ? (after < 8 * kBytes ? after : 8 * kBytes) : 0;
    }

    CUTLASS_DEVICE static void gather(Lanes const& lanes, At const& at, uint32_t (&to)[1], Held&,
                                      cutlass::Array<bool, kSize> const& bits) {
      uint32_t word = (uint32_t(bits.raw_data()[0]) & kAll) << shift(lanes, at);
      CUTLASS_PRAGMA_UNROLL
      for (int mask = 1; mask < kSharers; mask *= 2) {
        word |= __shfl_xor_sync(0xffffffffu, word, mask);
      }
      to[0] = word;
    }

    CUTLASS_DEVICE static auto scatter(Lanes const& lanes, At const& at, uint32_t const (&words)[kWordsOfStep]) {
      cutlass::Array<bool, kSize> bits;
      bits.raw_data()[0] = typename cutlass::Array<bool, kSize>::Storage(words[fragment(at)] >> shift(lanes, at) & kAll);
      return bits;
    }

   private:
    static constexpr uint32_t kAll = 0xffffffffu >> (32 - kSize);

    CUTLASS_DEVICE static int shift(Lanes const& lanes, At const& at) {
      return kSize < 8 ? lanes.column(at, 0) % 8 : 0;
    }
  };

  // A CTA has one tile. Its warps combine their totals in shared memory, so that a part is a tile. The main loop shares
  // this memory; it has ended for all warps before the first step.
  static constexpr bool kKeepsPart = true;  // whether a reduction keeps its part's address in registers

  template <Kept K, class Op, class Element>
  struct Totals;

  template <class Op, class Element>
  struct Totals<Kept::kColumns, Op, Element> {
    struct SharedStorage {
      cutlass::AlignedArray<Element, kWarps * kTileN, 16> totals;
    };

    Element* of_warps;
    Element totals[kColumns][kSize];

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage& shared) : of_warps(shared.totals.data()) {
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize; ++i) {
          totals[column][i] = Op::template identity<Element>();
        }
      }
    }

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      if (lanes.has_row(at, 0)) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize; ++i) {
          totals[at.column][i] = Op::apply(totals[at.column][i], values[i]);
        }
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      bool const stores = lanes.thread % 32 < kLanes;
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize; ++i) {
          Element const total = reduce_over_lanes<Op, kLaneRows, kLanes>(totals[column][i]);
          if (stores) {
            of_warps[lanes.warp() * kTileN + (column * kLanes + lanes.lane) * kSize + i] = total;
          }
        }
      }
      __syncthreads();
      int const first = lanes.tile_n * kTileN;
      for (int n = lanes.thread; n < kTileN && first + n < lanes.columns; n += 32 * kWarps) {
        Element total = of_warps[n];
        CUTLASS_PRAGMA_UNROLL
        for (int warp = 1; warp < kWarps; ++warp) {
          total = Op::apply(total, of_warps[warp * kTileN + n]);
        }
        write(first + n, total);
      }
    }
  };

  // The lanes of a row combine their totals when the row is complete.
  template <class Op, class Element>
  struct Totals<Kept::kRows, Op, Element> {
    struct SharedStorage {};

    Element total;

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const& write) {
      if (at.column == 0) {
        total = Op::template identity<Element>();
      }
      lanes.combine<Op, kSize>(at, values, [&](int) -> Element& { return total; });
      if (at.column + 1 == kColumns) {
        Element const whole = reduce_over_lanes<Op, kLanes>(total);
        if (lanes.lane == 0 && lanes.has_row(at, 0)) {
          write(lanes.row(at, 0), whole);
        }
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const&, Write const&) const {}
  };

  template <class Op, class Element>
  struct Totals<Kept::kNothing, Op, Element> {
    struct SharedStorage {
      cutlass::AlignedArray<Element, kWarps, 16> totals;
    };

    Element* of_warps;
    Element total;

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage& shared)
        : of_warps(shared.totals.data()), total(Op::template identity<Element>()) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      if (lanes.has_row(at, 0)) {
        lanes.combine<Op, kSize>(at, values, [&](int) -> Element& { return total; });
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      Element whole = reduce_over_lanes<Op, 32>(total);
      if (lanes.thread % 32 == 0) {
        of_warps[lanes.warp()] = whole;
      }
      __syncthreads();
      if (lanes.thread == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int warp = 1; warp < kWarps; ++warp) {
          whole = Op::apply(whole, of_warps[warp]);
        }
        write(0, whole);
      }
    }
  };
};

template <class ThreadMap, class Operation>
using Visitor = epilogue::Visitor2x<Lanes<ThreadMap>, Operation>;

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_EPILOGUE_LANES_2X_HPP
