#ifndef EVT_EPILOGUE_LANES_SM90_HPP
#define EVT_EPILOGUE_LANES_SM90_HPP

// The lanes of CUTLASS 3.x's kernels for sm90.
//
// The epilogue visits the CTA's tile in sub-tiles (step_m, step_n), step_m first. A thread has one fragment of each
// sub-tile in WGMMA's layout: rows 0 and 8, and two neighbouring columns of every eight. The four lanes of a quad have
// the four column pairs of a row. The eight quads of a warp have eight rows, and all warps lie along M.

#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cute/tensor.hpp"

#include "evt/epilogue/reduce.hpp"
#include "evt/epilogue/tile_3x.hpp"
#include "evt/epilogue/types_cutlass.hpp"
#include "evt/epilogue/visitor_3x.hpp"

namespace evt {
namespace sm90 {

using epilogue::Kept;

// The place of fragment element i relative to the thread's first element of a sub-tile.
CUTLASS_HOST_DEVICE constexpr int row_of(int i) { return i / 2 % 2 * 8; }
CUTLASS_HOST_DEVICE constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }

namespace detail {

// Whether CUTLASS partitions a sub-tile as row_of and column_of state.
template <class Layout>
constexpr bool is_wgmma_fragment(Layout const& layout, int size) {
  for (int i = 0; i < size; ++i) {
    auto const coordinate = layout(i);
    if (int(cute::get<0>(coordinate)) != row_of(i) || int(cute::get<1>(coordinate)) != column_of(i)) {
      return false;
    }
  }
  return true;
}

// Transpose four words within the quad: lane i gets word i of every lane.
template <int Words>
CUTLASS_DEVICE void transpose_quad(uint32_t (&rows)[4][Words], int quad_lane) {
  CUTLASS_PRAGMA_UNROLL
  for (int mask = 1; mask <= 2; mask *= 2) {
    bool const upper = (quad_lane & mask) != 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & mask) == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int word = 0; word < Words; ++word) {
          uint32_t const other = upper ? rows[i][word] : rows[i | mask][word];
          uint32_t const received = __shfl_xor_sync(0xffffffffu, other, mask);
          rows[i][word] = upper ? received : rows[i][word];
          rows[i | mask][word] = upper ? rows[i | mask][word] : received;
        }
      }
    }
  }
}

// Elements that the quad transposes. The first index is the unit of four, or the lane; the second is the group.
template <class Element, int Groups, int Units>
struct QuadElements {
  static constexpr int kWords = (Groups * Units * int(sizeof(Element)) + 3) / 4;

  Element elements[4][Groups][Units];

  CUTLASS_DEVICE void transpose(int quad_lane) {
    uint32_t rows[4][kWords] = {};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::memcpy(rows[i], elements[i], sizeof(elements[i]));
    }
    transpose_quad(rows, quad_lane);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::memcpy(elements[i], rows[i], sizeof(elements[i]));
    }
  }
};

// Sixteen bits of a packed array: a thread's part of 32 columns in two rows, four bits per eight columns.
template <int Size>
CUTLASS_DEVICE uint32_t get_bits(cutlass::Array<bool, Size> const& bits, int sixteen) {
  constexpr int kStorageBits = 8 * int(sizeof(typename cutlass::Array<bool, Size>::Storage));
  static_assert(kStorageBits == 16 || kStorageBits == 32, "a multiple of sixteen bits");
  constexpr int kPerWord = kStorageBits / 16;
  return uint32_t(bits.raw_data()[sixteen / kPerWord]) >> (sixteen % kPerWord * 16) & 0xffffu;
}

template <int Size>
CUTLASS_DEVICE cutlass::Array<bool, Size> make_bits(uint32_t const (&sixteens)[Size / 16]) {
  using Storage = typename cutlass::Array<bool, Size>::Storage;
  constexpr int kPerWord = int(sizeof(Storage)) / 2;
  cutlass::Array<bool, Size> bits;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Size / 16; i += kPerWord) {
    uint32_t const upper = kPerWord == 2 ? sixteens[i + kPerWord - 1] << 16 : 0;
    bits.raw_data()[i / kPerWord] = Storage(sixteens[i] | upper);
  }
  return bits;
}

// The two bits of one row out of every four bits, as the two low bits of every byte.
CUTLASS_DEVICE uint32_t spread(uint32_t bits) {
  bits &= 0x3333u;
  bits = (bits | bits << 8) & 0x00330033u;
  return (bits | bits << 4) & 0x03030303u;
}

CUTLASS_DEVICE uint32_t unspread(uint32_t bits) {
  bits &= 0x03030303u;
  bits = (bits | bits >> 4) & 0x00330033u;
  return (bits | bits >> 8) & 0x3333u;
}

}  // namespace detail

// A tile has one part of a reduction to columns; each of its warps has a part of a reduction to one value.
template <class TileShape, class EpilogueTile>
using TileOf = epilogue::Tile3x<int(cute::size<0>(TileShape{})), int(cute::size<1>(TileShape{})), 1,
                                int(cute::size<0>(EpilogueTile{})) / 16>;

// The extents are static, so that offsets are constants.
template <class TileShape, class EpilogueTile>
struct Lanes : epilogue::TypesCutlass, TileOf<TileShape, EpilogueTile> {
  using Tile = TileOf<TileShape, EpilogueTile>;
  using typename Tile::At, typename Tile::Step;
  using Tile::kTileM, Tile::kTileN, Tile::m, Tile::n, Tile::rows, Tile::columns, Tile::thread;

  static constexpr int kStepRows = cute::size<0>(EpilogueTile{});
  static constexpr int kStepColumns = cute::size<1>(EpilogueTile{});
  static constexpr int kStepsM = kTileM / kStepRows;
  static constexpr int kStepsN = kTileN / kStepColumns;
  static constexpr int kSteps = kStepsM * kStepsN;
  static constexpr int kWarps = kStepRows / 16;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSize = kStepRows * kStepColumns / kThreads;

  static_assert(kStepRows % 64 == 0 && kStepColumns % 8 == 0, "a sub-tile must consist of WGMMA tiles");
  static_assert(kTileM % kStepRows == 0 && kTileN % kStepColumns == 0, "sub-tiles must divide the tile");

  template <class... Args>
  CUTLASS_DEVICE explicit Lanes(fusion::ConsumerStoreArgs<Args...> const& args) : Tile(args) {
    using Layout = decltype(cute::take<0, 3>(args.tCcD.layout()));
    static_assert(cute::is_static<Layout>::value, "the layout of a sub-tile must be static");
    static_assert(decltype(cute::size(Layout{}))::value == kSize, "the epilogue tile differs from the kernel's");
    static_assert(detail::is_wgmma_fragment(Layout{}, kSize), "the fragment must have WGMMA's layout");
    static_assert(decltype(cute::size(args.tiled_mma))::value == kThreads, "the warps must lie along M");
  }

  CUTLASS_HOST_DEVICE static constexpr int row_offset(int i) { return row_of(i); }
  CUTLASS_HOST_DEVICE static constexpr int column_offset(int i) { return column_of(i); }

  CUTLASS_DEVICE int row(At const& at, int i) const { return m + at.step_m * kStepRows + row_of(i); }
  CUTLASS_DEVICE int column(At const& at, int i) const { return n + at.step_n * kStepColumns + column_of(i); }

  CUTLASS_DEVICE bool has_row(At const& at, int i) const { return row(at, i) < rows; }
  CUTLASS_DEVICE bool has(At const& at, int i) const { return has_row(at, i) && column(at, i) < columns; }

  CUTLASS_DEVICE int quad_lane() const { return thread % 4; }

  template <int Width>
  CUTLASS_DEVICE int column_within(At const&, int i) const {
    static_assert(kStepColumns % Width == 0, "a sub-tile must hold all columns of a value");
    return (quad_lane() * 2 + column_of(i)) % Width;
  }

  CUTLASS_DEVICE static At step(int i) { return {i % kStepsM, i / kStepsM}; }
  CUTLASS_DEVICE static int number(At const& at) { return at.step_n * kStepsM + at.step_m; }

  /// Call function(i) for the elements whose columns are in the problem. Most tiles are full and need no predicates.
  template <class Function>
  CUTLASS_DEVICE void for_each_column(At const& at, Function const& function) const {
    if (column(at, kSize - 1) < columns) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) {
        function(i);
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) {
        if (column(at, i) < columns) {
          function(i);
        }
      }
    }
  }

  /// slot(i) = Op(slot(i), value i) for the elements whose columns are in the problem.
  template <class Op, int Size, class Values, class Slot>
  CUTLASS_DEVICE void combine(At const& at, Values const& values, Slot const& slot) const {
    for_each_column(at, [&](int i) {
      auto& total = slot(i);
      total = Op::apply(total, values[i]);
    });
  }

  /// Runs of neighbouring columns.
  struct Runs {
    static constexpr int kSize = 2;
  };

  /// A thread's rows in an indexed tensor, two per sub-tile, looked up once per tile.
  template <class Row>
  struct RowTable {
    Row found[kStepsM][2];

    template <class Find>
    CUTLASS_DEVICE void begin(Lanes const& lanes, Find const& find) {
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < kStepsM; ++step) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 2; ++i) {
          found[step][i] = find(lanes.row({step, 0}, 2 * i));
        }
      }
    }

    template <class Find>
    CUTLASS_DEVICE auto of_step(Lanes const&, Step const&, Find const&) const {
      return [this](At const& at, int i) { return found[at.step_m][row_of(i) / 8]; };
    }

    template <class Find>
    CUTLASS_DEVICE Row get(Lanes const&, At const& at, int i, Find const&) const {
      return found[at.step_m][row_of(i) / 8];
    }
  };

  // A thread's fragment holds both members of a pair. A thread's half of a sub-tile's columns has kUnits units. A unit
  // has kUnit elements of one row: one for Block 1, else two neighbours. The lanes of a quad have 4 * kUnit neighbours
  // of a row. Lanes move four units at a time, transposed within the quad: lane u gets the whole of unit u.
  template <int Block>
  struct Pairs {
    static constexpr int kDistance = Block == 1 ? 1 : Block / 2;  // in the fragment
    static constexpr int kUnit = Block == 1 ? 1 : 2;
    static constexpr int kUnits = kSize / 2 / kUnit;
    static constexpr int kRowUnits = kUnits / 2;
    static constexpr int kRuns = kUnits / 4, kRun = 4 * kUnit;
    static_assert(kStepColumns % (2 * Block) == 0, "a sub-tile must hold both members of a pair");
    static_assert(kSize % (2 * kDistance) == 0, "the epilogue tile is too narrow for the block");

    template <bool Second, class Input>
    CUTLASS_DEVICE static auto member(Lanes const&, cutlass::Array<Input, kSize> const& input) {
      return generate<Input, kSize>([&](int i) -> Input { return input[Second ? i | kDistance : i & ~kDistance]; });
    }

    template <class Input>
    CUTLASS_DEVICE static auto other(Lanes const&, cutlass::Array<Input, kSize> const& input) {
      return generate<Input, kSize>([&](int i) -> Input { return input[i ^ kDistance]; });
    }

    CUTLASS_DEVICE static bool is_second(Lanes const&, At const&, int i) { return (i & kDistance) != 0; }

    /// The first fragment element of a unit's pairs.
    CUTLASS_HOST_DEVICE static constexpr int unit_place(int unit) {
      constexpr int kEights = Block == 1 ? 1 : Block / 8;
      int const row = unit / kRowUnits, of_row = unit % kRowUnits;
      int const eight = Block == 1 ? of_row : of_row / kEights * 2 * kEights + of_row % kEights;
      return eight * 4 + row * 2;
    }

    CUTLASS_HOST_DEVICE static constexpr int place(int i) { return unit_place(i / kUnit) + i % kUnit; }

    /// The unit of a run that this lane moves, its row, and its first column within the half.
    CUTLASS_DEVICE static int unit(Lanes const& lanes, int run) { return run * 4 + lanes.quad_lane(); }
    CUTLASS_DEVICE static bool stores(Lanes const&, At const&) { return true; }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const& at, int run) {
      return lanes.row(at, 0) + unit(lanes, run) / kRowUnits * 8;
    }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int run) {
      return (lanes.column(at, 0) - lanes.quad_lane() * 2) / 2 + unit(lanes, run) % kRowUnits * kRun;
    }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int run) {
      return row(lanes, at, run) < lanes.rows ? lanes.columns / 2 - column(lanes, at, run) : 0;
    }

    template <class Element>
    CUTLASS_DEVICE static void gather(Lanes const& lanes, Element (&runs)[kRuns][kRun],
                                      cutlass::Array<Element, kRuns * kRun> const& kept) {
      static_assert(kUnits % 4 == 0, "units must divide evenly among the quad's lanes");
      detail::QuadElements<Element, kRuns, kUnit> quad;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kUnits * kUnit; ++i) {
        quad.elements[i / kUnit % 4][i / kUnit / 4][i % kUnit] = kept[i];
      }
      quad.transpose(lanes.quad_lane());
      CUTLASS_PRAGMA_UNROLL
      for (int run = 0; run < kRuns; ++run) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kRun; ++i) {
          runs[run][i] = quad.elements[i / kUnit][run][i % kUnit];
        }
      }
    }

    template <class Element>
    CUTLASS_DEVICE static auto scatter(Lanes const& lanes, Element const (&runs)[kRuns][kRun]) {
      static_assert(kUnits % 4 == 0, "units must divide evenly among the quad's lanes");
      detail::QuadElements<Element, kRuns, kUnit> quad;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRun * kRuns; ++i) {
        int const of_run = i % kRun, run = i / kRun;
        quad.elements[of_run / kUnit][run][of_run % kUnit] = runs[run][of_run];
      }
      quad.transpose(lanes.quad_lane());
      cutlass::Array<Element, kSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kUnits * kUnit; ++i) {
        int const unit = i / kUnit;
        Element const value = quad.elements[unit % 4][unit / 4][i % kUnit];
        result[place(i)] = value;
        result[place(i) + kDistance] = value;
      }
      return result;
    }
  };

  // Values of a quad: value v belongs to block v / 2 and row v % 2 * 8.
  template <int Width>
  struct Blocks {
    static_assert(Width % 8 == 0 && kStepColumns % Width == 0, "blocks of whole quads' columns, within a sub-tile");
    static constexpr int kLanes = 4, kLaneStride = 1;

    CUTLASS_HOST_DEVICE static constexpr int values_of(int) { return 2 * (kStepColumns / Width); }
    CUTLASS_HOST_DEVICE static constexpr int value_of(int i) { return i / 4 / (Width / 8) * 2 + i / 2 % 2; }
    CUTLASS_HOST_DEVICE static constexpr int block_of(int value) { return value / 2; }
    CUTLASS_HOST_DEVICE static constexpr int place(int value) { return value / 2 * (Width / 2) + value % 2 * 2; }

    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at) {
      return lanes.column(at, 0) - lanes.quad_lane() * 2;
    }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const&, int value) {
      return lanes.quad_lane() == value % 4;
    }
  };

  // A row's 32 columns are one word. Each lane of a quad has two bits of every byte. Word u of a sub-tile has row u % 2
  // * 8 and columns u / 2 * 32 and later; lane u of the quad moves it.
  struct Bits {
    static constexpr int kBytes = 4, kWords = 1, kWordsOfStep = 1;
    static constexpr int kAll = kStepColumns / 32 * 2;  // of a quad
    static constexpr bool kOfTile = true;  // the words of all steps are loaded at the start of a tile
    using Held = epilogue::Nothing;

    CUTLASS_DEVICE static int word(Lanes const& lanes) { return lanes.quad_lane() % kAll; }
    CUTLASS_DEVICE static At at(Step const& step, int) { return step; }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const&) { return lanes.quad_lane() < kAll; }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const& at, int) {
      return lanes.row(at, 0) + word(lanes) % 2 * 8;
    }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int) {
      return lanes.column(at, 0) - lanes.quad_lane() * 2 + word(lanes) / 2 * 32;
    }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int) {
      int const after = lanes.columns - column(lanes, at, 0);
      return row(lanes, at, 0) < lanes.rows ? (after < 32 ? after : 32) : 0;
    }

    template <int Size>
    CUTLASS_DEVICE static void gather(Lanes const& lanes, At const&, uint32_t (&to)[1], Held&,
                                      cutlass::Array<bool, Size> const& bits) {
      static_assert(kStepColumns % 32 == 0 && (kAll == 2 || kAll == 4), "32 or 64 columns");
      uint32_t words[kAll];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAll; ++i) {
        words[i] = detail::spread(detail::get_bits(bits, i / 2) >> (i % 2 * 2)) << (lanes.quad_lane() * 2);
      }
      // Every lane sends the words that other lanes move.
      CUTLASS_PRAGMA_UNROLL
      for (int mask = kAll / 2; mask > 0; mask /= 2) {
        bool const upper = (lanes.quad_lane() & mask) != 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < mask; ++i) {
          uint32_t const mine = upper ? words[i + mask] : words[i];
          uint32_t const other = upper ? words[i] : words[i + mask];
          words[i] = mine | __shfl_xor_sync(0xffffffffu, other, mask);
        }
      }
      if constexpr (kAll == 2) {
        words[0] |= __shfl_xor_sync(0xffffffffu, words[0], 2);
      }
      to[0] = words[0];
    }

    CUTLASS_DEVICE static auto scatter(Lanes const& lanes, At const&, uint32_t const (&from)[1]) {
      static_assert(kStepColumns % 32 == 0 && (kAll == 2 || kAll == 4), "32 or 64 columns");
      uint32_t bits[kAll / 2] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAll; ++i) {
        uint32_t const word = __shfl_sync(0xffffffffu, from[0], i, 4);
        bits[i / 2] |= detail::unspread(word >> (lanes.quad_lane() * 2)) << (i % 2 * 2);
      }
      return detail::make_bits<kSize>(bits);
    }
  };

  template <Kept K, class Op, class Element>
  struct Totals;

  // The warps of a CTA combine their totals in shared memory. They use the epilogue's barriers, and one more at the
  // start of a tile.
  template <class Op, class Element>
  struct Totals<Kept::kColumns, Op, Element> {
    struct SharedStorage {
      Element totals[kWarps][kTileN];
    };

    static constexpr int kColumns = kSize / 2;    // columns of a thread in a sub-tile
    static constexpr int kLeft = kColumns / 8;    // columns that a thread keeps after the shuffles
    static_assert(kColumns % 8 == 0, "columns must divide evenly among the eight lanes of a column");

    SharedStorage& storage;
    Element totals[kColumns];

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage& shared) : storage(shared) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      if (at.step_m == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kColumns; ++i) {
          totals[i] = Op::template identity<Element>();
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        if (lanes.has_row(at, 2 * row)) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kColumns; ++i) {
            totals[i] = Op::apply(totals[i], values[i / 2 * 4 + row * 2 + i % 2]);
          }
        }
      }
    }

    // The eight lanes of a column exchange halves until each lane has the warp's totals of kLeft columns.
    CUTLASS_DEVICE void reduce(Lanes const& lanes, At const& at) {
      if (at.step_m != kStepsM - 1) {
        return;
      }
      int first = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int count = kColumns / 2, mask = 16; mask >= 4; mask /= 2, count /= 2) {
        bool const upper = (lanes.thread % 32 & mask) != 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kColumns / 2; ++i) {
          if (i < count) {
            Element const mine = upper ? totals[i + count] : totals[i];
            Element const other = upper ? totals[i] : totals[i + count];
            totals[i] = Op::apply(mine, shuffle_xor(other, mask));
          }
        }
        first += upper ? count : 0;
      }
      Element* const of_warp = storage.totals[lanes.thread / 32] + at.step_n * kStepColumns + lanes.quad_lane() * 2;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLeft; ++i) {
        int const column = first + i;
        of_warp[column / 2 * 8 + column % 2] = totals[i];
      }
    }

    // After the epilogue's last barrier.
    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      if (!lanes.is_inside()) {
        return;
      }
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < kTileN; first += kThreads) {
        int const column = first + lanes.thread, n = lanes.tile_n * kTileN + column;
        if (column < kTileN && n < lanes.columns) {
          Element total = storage.totals[0][column];
          CUTLASS_PRAGMA_UNROLL
          for (int warp = 1; warp < kWarps; ++warp) {
            total = Op::apply(total, storage.totals[warp][column]);
          }
          write(n, total);
        }
      }
    }
  };

  // A row belongs to one quad.
  template <class Op, class Element>
  struct Totals<Kept::kRows, Op, Element> {
    struct SharedStorage {};

    static constexpr int kRows = 2 * kStepsM;

    Element totals[kRows];

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        totals[i] = Op::template identity<Element>();
      }
    }

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      if constexpr (kByFragment<Op>) {
        Element own[2] = {Op::template identity<Element>(), Op::template identity<Element>()};
        lanes.combine<Op, kSize>(at, values, [&](int i) -> Element& { return own[i / 2 % 2]; });
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          totals[at.step_m * 2 + row] = Op::apply(totals[at.step_m * 2 + row], own[row]);
        }
      } else {
        lanes.combine<Op, kSize>(at, values, [&](int i) -> Element& { return totals[at.step_m * 2 + i / 2 % 2]; });
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        Element const total = reduce_over_lanes<Op, 4>(totals[i]);
        int const m = lanes.row({i / 2, 0}, i % 2 * 2);
        if (lanes.quad_lane() == i % 4 && m < lanes.rows && lanes.is_inside()) {
          write(m, total);
        }
      }
    }
  };

  // Every warp of every tile writes one part.
  template <class Op, class Element>
  struct Totals<Kept::kNothing, Op, Element> {
    struct SharedStorage {};

    Running<Op, Element> total;

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, cutlass::Array<Element, kSize> const& values,
                            Write const&) {
      if constexpr (kByFragment<Op>) {  // one chain: four of moments do not fit beside the accumulators
        lanes.for_each_column(at, [&](int i) { total.add(values[i], lanes.has_row(at, i)); });
      } else {
        Element totals[4];  // one dependency chain for each element of a quadruple
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          totals[i] = Op::template identity<Element>();
        }
        lanes.combine<Op, kSize>(at, values, [&](int i) -> Element& { return totals[i % 4]; });
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; i += 2) {
          if (lanes.has_row(at, i)) {
            total.add(Op::apply(totals[i], totals[i + 1]));
          }
        }
      }
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      Element const all = reduce_over_lanes<Op, 32>(total.total());
      if (lanes.thread % 32 == 0 && lanes.is_inside()) {
        write(0, all);
      }
    }
  };
};

template <class TileShape, class EpilogueTile, class Operation>
using Visitor = epilogue::Visitor3x<Lanes<TileShape, EpilogueTile>, Operation>;

}  // namespace sm90
}  // namespace evt

#endif  // EVT_EPILOGUE_LANES_SM90_HPP
