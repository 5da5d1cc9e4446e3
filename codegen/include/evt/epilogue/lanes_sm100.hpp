#ifndef EVT_EPILOGUE_LANES_SM100_HPP
#define EVT_EPILOGUE_LANES_SM100_HPP

// The lanes of CUTLASS 3.x's kernels for sm100 and sm103.
//
// Accumulators are loaded from tensor memory by rows. A sub-tile has the CTA's 128 rows, a thread has one of them, and
// its fragment is the row of the sub-tile. CUTLASS partitions sub-tiles this way if D is row-major. A lane has a whole
// row, so that pairs, blocks and bits need no exchange.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cute/tensor.hpp"

#include "evt/epilogue/reduce.hpp"
#include "evt/epilogue/tile_3x.hpp"
#include "evt/epilogue/types_cutlass.hpp"
#include "evt/epilogue/visitor_3x.hpp"

namespace evt {
namespace sm100 {

using epilogue::Kept;

namespace detail {

// Whether a fragment is one row with its columns in order.
template <class Layout>
constexpr bool is_row_fragment(Layout const& layout, int size) {
  for (int i = 0; i < size; ++i) {
    auto const coordinate = cute::make_arithmetic_tuple(0, 0) + layout(i);
    if (int(cute::get<0>(coordinate)) != 0 || int(cute::get<1>(coordinate)) != i) {
      return false;
    }
  }
  return true;
}

}  // namespace detail

// Each warp of a tile has a part of a reduction over rows, without shared memory.
template <class TileShape, class EpilogueTile>
using TileOf = epilogue::Tile3x<int(cute::size<0>(TileShape{})), int(cute::size<1>(TileShape{})), 4, 4>;

// The extents are static, so that offsets are constants.
template <class TileShape, class EpilogueTile>
struct Lanes : epilogue::TypesCutlass, TileOf<TileShape, EpilogueTile> {
  using Tile = TileOf<TileShape, EpilogueTile>;
  using typename Tile::At, typename Tile::Step;
  using Tile::kTileM, Tile::kTileN, Tile::m, Tile::n, Tile::rows, Tile::columns, Tile::thread;

  static constexpr int kSize = cute::size<1>(EpilogueTile{});  // columns of a sub-tile, and elements of a fragment
  static constexpr int kSteps = kTileN / kSize;

  static_assert(kTileM == 128 && cute::size<0>(EpilogueTile{}) == kTileM, "a thread has a row of every sub-tile");
  static_assert(kTileN % kSize == 0, "sub-tiles must divide the tile");

  template <class... Args>
  CUTLASS_DEVICE explicit Lanes(fusion::ConsumerStoreArgs<Args...> const& args) : Tile(args) {
    using Layout = decltype(cute::take<0, 3>(args.tCcD.layout()));
    static_assert(cute::is_static<Layout>::value, "the layout of a sub-tile must be static");
    static_assert(decltype(cute::size(Layout{}))::value == kSize, "the epilogue tile differs from the kernel's");
    static_assert(detail::is_row_fragment(Layout{}, kSize), "a fragment must be one row, as it is for a row-major D");
  }

  CUTLASS_HOST_DEVICE static constexpr int row_offset(int) { return 0; }
  CUTLASS_HOST_DEVICE static constexpr int column_offset(int i) { return i; }

  CUTLASS_DEVICE int row(At const&, int) const { return m; }
  CUTLASS_DEVICE int column(At const& at, int i) const { return n + at.step_n * kSize + i; }

  CUTLASS_DEVICE bool has_row(At const&, int) const { return m < rows; }
  CUTLASS_DEVICE bool has(At const& at, int i) const { return i < valid(at); }

  template <int Width>
  CUTLASS_DEVICE static int column_within(At const&, int i) {
    static_assert(kSize % Width == 0, "a sub-tile must hold all columns of a value");
    return i % Width;
  }

  /// The number of the sub-tile's columns inside of the problem, or 0 for a row outside of it. It may be negative or
  /// too large.
  CUTLASS_DEVICE int valid(At const& at) const { return m < rows ? columns - column(at, 0) : 0; }

  CUTLASS_DEVICE static At step(int i) { return {0, i}; }
  CUTLASS_DEVICE static int number(At const& at) { return at.step_n; }

  /// slot(i) = Op(slot(i), value i) for the elements whose columns are in the problem.
  template <class Op, int Size, class Values, class Slot>
  CUTLASS_DEVICE void combine(At const& at, Values const& values, Slot const& slot) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      auto& total = slot(i);
      total = column(at, i) < columns ? Op::apply(total, values[i]) : total;
    }
  }

  /// Runs of neighbouring columns.
  struct Runs {
    static constexpr int kSize = Lanes::kSize;
  };

  /// A thread's row in an indexed tensor, looked up once per tile.
  template <class Row>
  struct RowTable {
    Row row;

    template <class Find>
    CUTLASS_DEVICE void begin(Lanes const& lanes, Find const& find) {
      row = find(lanes.m);
    }

    template <class Find>
    CUTLASS_DEVICE auto of_step(Lanes const&, Step const&, Find const&) const {
      return [this](At const&, int) { return row; };
    }

    template <class Find>
    CUTLASS_DEVICE Row get(Lanes const&, At const&, int, Find const&) const {
      return row;
    }
  };

  template <int Block>
  struct Pairs {
    static_assert(kSize % (2 * Block) == 0, "a sub-tile must hold both members of a pair");
    static constexpr int kRuns = 1, kRun = kSize / 2;

    template <bool Second, class Input>
    CUTLASS_DEVICE static auto member(Lanes const&, cutlass::Array<Input, kSize> const& input) {
      return generate<Input, kSize>([&](int i) -> Input { return input[Second ? i | Block : i & ~Block]; });
    }

    template <class Input>
    CUTLASS_DEVICE static auto other(Lanes const&, cutlass::Array<Input, kSize> const& input) {
      return generate<Input, kSize>([&](int i) -> Input { return input[i ^ Block]; });
    }

    CUTLASS_DEVICE static bool is_second(Lanes const&, At const&, int i) { return (i & Block) != 0; }

    /// The first member of pair i of the half in the fragment. The second member is Block elements later.
    CUTLASS_HOST_DEVICE static constexpr int place(int i) { return i / Block * 2 * Block + i % Block; }

    CUTLASS_DEVICE static bool stores(Lanes const&, At const&) { return true; }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const&, int) { return lanes.m; }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int) { return lanes.column(at, 0) / 2; }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int) { return lanes.valid(at) / 2; }

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
      cutlass::Array<Element, kSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRun; ++i) {
        result[place(i)] = runs[0][i];
        result[place(i) + Block] = runs[0][i];
      }
      return result;
    }
  };

  template <int Width>
  struct Blocks {
    static_assert(kSize % Width == 0, "a sub-tile must hold whole blocks");
    static constexpr int kLanes = 1, kLaneStride = 1;

    CUTLASS_HOST_DEVICE static constexpr int values_of(int size) { return size / Width; }
    CUTLASS_HOST_DEVICE static constexpr int value_of(int i) { return i / Width; }
    CUTLASS_HOST_DEVICE static constexpr int block_of(int value) { return value; }
    CUTLASS_HOST_DEVICE static constexpr int place(int value) { return value * Width; }

    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at) { return lanes.column(at, 0); }
    CUTLASS_DEVICE static bool stores(Lanes const&, At const&, int) { return true; }
  };

  struct Bits {
    static constexpr int kBytes = 4, kWords = kSize / 32, kWordsOfStep = kWords;
    static constexpr bool kOfTile = true;  // the words of all steps are loaded at the start of a tile
    using Held = epilogue::Nothing;

    CUTLASS_DEVICE static At at(Step const& step, int) { return step; }
    CUTLASS_DEVICE static bool stores(Lanes const&, At const&) { return true; }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const&, int) { return lanes.m; }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int word) {
      return lanes.column(at, 0) + word * 32;
    }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int word) {
      return min(lanes.valid(at) - word * 32, 32);
    }

    template <int Size>
    CUTLASS_DEVICE static void gather(Lanes const&, At const&, uint32_t (&words)[Size / 32], Held&,
                                      cutlass::Array<bool, Size> const& bits) {
      static_assert(Size % 32 == 0 && sizeof(bits.raw_data()[0]) == 4, "32 bits are one word");
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Size / 32; ++i) {
        words[i] = uint32_t(bits.raw_data()[i]);
      }
    }

    CUTLASS_DEVICE static auto scatter(Lanes const&, At const&, uint32_t const (&words)[kWords]) {
      cutlass::Array<bool, kSize> bits;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        bits.raw_data()[i] = words[i];
      }
      return bits;
    }
  };

  template <Kept K, class Op, class Element>
  struct Totals;

  // The lanes of a warp have its 32 rows. They exchange halves of their columns until each lane has the warp's total of
  // one or a few columns.
  template <class Op, class Element>
  struct Totals<Kept::kColumns, Op, Element> {
    struct SharedStorage {};
    static_assert(kSize % 32 == 0, "all lanes must keep the same number of columns");

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> totals,
                            Write const& write) const {
      if (!(lanes.m < lanes.rows)) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize; ++i) {
          totals[i] = Op::template identity<Element>();
        }
      }
      int first = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int mask = 16, count = kSize / 2; mask > 0; mask /= 2, count /= 2) {
        bool const upper = (lanes.thread % 32 & mask) != 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize / 2; ++i) {
          if (i < count) {
            Element const mine = upper ? totals[i + count] : totals[i];
            Element const other = upper ? totals[i] : totals[i + count];
            totals[i] = Op::apply(mine, shuffle_xor(other, mask));
          }
        }
        first += upper ? count : 0;
      }
      if (lanes.is_inside()) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize / 32; ++i) {
          int const column = lanes.column(at, 0) + first + i;
          if (column < lanes.columns) {
            write(column, totals[i]);
          }
        }
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const&, Write const&) const {}
  };

  // A row belongs to one thread.
  template <class Op, class Element>
  struct Totals<Kept::kRows, Op, Element> {
    struct SharedStorage {};

    Element total;

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) : total(Op::template identity<Element>()) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      lanes.combine<Op, kSize>(at, values, [&](int) -> Element& { return total; });
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      if (lanes.m < lanes.rows && lanes.is_inside()) {
        write(lanes.m, total);
      }
    }
  };

  template <class Op, class Element>
  struct Totals<Kept::kNothing, Op, Element> {
    struct SharedStorage {};

    Element total;

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) : total(Op::template identity<Element>()) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      int const valid = lanes.valid(at);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) {
        total = i < valid ? Op::apply(total, values[i]) : total;
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) {
      total = reduce_over_lanes<Op, 32>(total);
      if (lanes.thread % 32 == 0 && lanes.is_inside()) {
        write(0, total);
      }
    }
  };
};

template <class TileShape, class EpilogueTile, class Operation>
using Visitor = epilogue::Visitor3x<Lanes<TileShape, EpilogueTile>, Operation>;

}  // namespace sm100
}  // namespace evt

#endif  // EVT_EPILOGUE_LANES_SM100_HPP
