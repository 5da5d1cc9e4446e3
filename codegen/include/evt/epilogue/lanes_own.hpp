#ifndef EVT_EPILOGUE_LANES_OWN_HPP
#define EVT_EPILOGUE_LANES_OWN_HPP

// The lanes of own kernels, and their operations as members of the kernel's epilogue.
//
// A fragment is one element: the epilogue visits the elements of a step in order. Lanes, and the two columns of a
// thread, exchange the elements of a whole step. Warp is a fragment::Lanes: a strip of columns.

#include <cstdint>
#include <type_traits>

#include "evt/epilogue/reduce.hpp"
#include "evt/epilogue/traits.hpp"
#include "evt/epilogue/types_own.hpp"
#include "evt/fragment.hpp"

namespace evt {
namespace own {

using epilogue::Kept;

template <class Lanes, class Op, class Element>
struct RowTotals;

template <class Warp>
struct Lanes : epilogue::TypesOwn {
  static constexpr int kSize = 1;
  static constexpr int kFragments = fragment::kElements;
  static constexpr int kRows = fragment::kRows, kColumns = 2;  // of a step
  static constexpr int kTileRows = Warp::kTileRows;
  /// Whether a step visits both columns of a row before the next row.
  static constexpr bool kRowByRow = Warp::element_of(1, 0) == 1;

  struct At {
    int element;  // of the step
    fragment::Places const& places;
  };
  using Step = fragment::Places;

  fragment::Tile tile;

  CUTLASS_DEVICE explicit Lanes(fragment::Tile const& tile) : tile(tile) {}

  CUTLASS_HOST_DEVICE static constexpr int row_offset(int) { return 0; }
  CUTLASS_HOST_DEVICE static constexpr int column_offset(int) { return 0; }

  CUTLASS_DEVICE static At at(Step const& step, int element) { return {element, step}; }
  CUTLASS_DEVICE static int fragment(At const& at) { return at.element; }
  CUTLASS_DEVICE static int row_number(At const& at) { return Warp::row_of(at.element); }
  CUTLASS_DEVICE static int column_number(At const& at) { return Warp::column_of(at.element); }

  CUTLASS_DEVICE int row(At const& at, int) const { return at.places.rows[row_number(at)]; }
  CUTLASS_DEVICE int column(At const& at, int) const { return column_of_tile(column_number(at), 0); }
  CUTLASS_DEVICE int batch() const { return tile.batch; }
  CUTLASS_DEVICE static int extent_m() { return 0; }  // of each batch; there is one batch
  CUTLASS_DEVICE int extent_n() const { return tile.columns; }
  /// The end of the columns that the tile may store: with groups, of its group.
  CUTLASS_DEVICE int end_n() const { return tile.end; }

  CUTLASS_DEVICE int row_of_step(Step const& step, int row) const { return step.rows[row]; }
  /// The place of a row of a step among all rows of a step, and their number.
  static constexpr int kStepRows = kRows * Warp::kRows;
  CUTLASS_DEVICE static int place_in_step(int row) {
    return fragment::lane() % Warp::kRows * 2 + row / 2 * 2 * Warp::kRows + row % 2;
  }

  /// Values for the rows of a tile, from a function of the row: lane i has rows i, i + 32... Lanes exchange the value of a
  /// row when they visit it. Blocks of other columns follow: they take the exchanged values. These need no registers
  /// beyond the accumulators that the first block has completed.
  template <class T>
  struct RowValues {
    static constexpr int kHeld = (kTileRows + 31) / 32;
    static constexpr int kExchanged = (kTileRows + kStepRows - 1) / kStepRows * kRows;

    T values[kHeld], exchanged[kExchanged];
    bool follows = false;

    template <class Function>
    CUTLASS_DEVICE RowValues(Lanes const& lanes, Function const& function) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        int const row = lanes.tile.row + 32 * i + fragment::lane();
        values[i] = function(row, row < lanes.tile.rows_end);
      }
    }

    CUTLASS_DEVICE void follow(RowValues const& first) {
      follows = true;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kExchanged; ++i) exchanged[i] = first.exchanged[i];
    }

    CUTLASS_DEVICE T get(At const& at) {
      int const first = at.places.number * kStepRows, row = row_number(at);  // constants once loops are unrolled
      T& value = exchanged[at.places.number * kRows + row];
      if (!follows) {
        value = __shfl_sync(0xffffffffu, values[first / 32], first % 32 + place_in_step(row));
      }
      return value;
    }
  };
  CUTLASS_DEVICE int column_of_tile(int column, int) const { return tile.first + Warp::kDistance * column; }

  /// The first column of the warp's strip, and the number of its columns in the tile.
  CUTLASS_DEVICE int first_of_strip() const {
    return tile.first - fragment::lane() / Warp::kRows * (Warp::kDistance == 1 ? 2 : 1);
  }
  CUTLASS_DEVICE int columns_of_strip() const { return max(0, min(tile.end - first_of_strip(), Warp::kStrip)); }

  CUTLASS_DEVICE static bool is_row(int row) { return row >= 0; }
  CUTLASS_DEVICE bool has_row(At const& at, int) const { return row(at, 0) >= 0; }
  CUTLASS_DEVICE bool has_column(int number) const { return column_of_tile(number, 0) < tile.end; }
  CUTLASS_DEVICE bool has(At const& at, int i) const { return has_column(column_number(at)) && has_row(at, i); }

  template <int Width>
  CUTLASS_DEVICE int column_within(At const& at, int i) const {
    return column(at, i) % Width;
  }

  /// slot(i) = Op(slot(i), value i) for the elements whose columns are in the problem.
  template <class Op, int Size, class Values, class Slot>
  CUTLASS_DEVICE void combine(At const& at, Values const& values, Slot const& slot) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      if (has_column(Warp::column_of(at.element + i))) slot(i) = Op::apply(slot(i), values[i]);
    }
  }

  /// Runs of neighbouring columns.
  struct Runs {
    static constexpr int kSize = 1;
  };

  /// The rows of a step in an indexed tensor. Each visit looks them up.
  template <class Row>
  struct RowTable {
    template <class Find>
    CUTLASS_DEVICE void begin(Lanes const&, Find const&) {}

    template <class Find>
    CUTLASS_DEVICE auto of_step(Lanes const& lanes, Step const& step, Find const& find) const {
      Array<Row, kRows> rows;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRows; ++i) rows[i] = find(lanes.row_of_step(step, i));
      return [rows](At const& at, int) { return rows[row_number(at)]; };
    }

    template <class Find>
    CUTLASS_DEVICE Row get(Lanes const& lanes, At const& at, int, Find const& find) const {
      return find(lanes.row(at, 0));
    }
  };

  /// A thread's columns in an indexed tensor, looked up once per tile.
  struct ColumnTable {
    int64_t found[kColumns];

    template <class Find>
    CUTLASS_DEVICE void begin(Lanes const& lanes, Find const& find) {
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < kColumns; ++column) found[column] = find(lanes.column_of_tile(column, 0));
    }

    template <class Find>
    CUTLASS_DEVICE int64_t get(Lanes const&, At const& at, int, Find const&) const {
      return found[column_number(at)];
    }
  };

  // The members of a pair are the two columns of a thread, or belong to two lanes of a warp.
  template <int Block>
  struct Pairs {
    static constexpr int kRuns = 1, kRun = 1;
    static constexpr bool kWithin = Block == Warp::kDistance;
    static constexpr int kLane = (Warp::kDistance == 1 ? Block / 2 : Block) * Warp::kRows;  // distance in lanes
    static_assert(kWithin || (Warp::kDistance <= Warp::kColumns && 2 * Block <= Warp::kStrip),
                  "a warp must have both members of a pair");

    template <bool Second, class Input, int Size>
    CUTLASS_DEVICE static Array<Input, Size> member(Lanes const&, Array<Input, Size> const& input) {
      return generate<Input, Size>([&](int i) -> Input {
        if constexpr (kWithin) {
          return input[Second ? i | Warp::element_of(1, 0) : i & ~Warp::element_of(1, 0)];
        } else {
          int const lane = fragment::lane();
          return Input(__shfl_sync(0xffffffffu, input[i], Second ? lane | kLane : lane & ~kLane));
        }
      });
    }

    template <class Input, int Size>
    CUTLASS_DEVICE static Array<Input, Size> other(Lanes const&, Array<Input, Size> const& input) {
      return generate<Input, Size>([&](int i) -> Input {
        if constexpr (kWithin) {
          return input[i ^ Warp::element_of(1, 0)];
        } else {
          return Input(__shfl_xor_sync(0xffffffffu, input[i], kLane));
        }
      });
    }

    CUTLASS_DEVICE static bool is_second(Lanes const&, At const& at, int) {
      return kWithin ? Warp::column_of(at.element) == 1 : (fragment::lane() & kLane) != 0;
    }

    CUTLASS_HOST_DEVICE static constexpr int place(int) { return 0; }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const& at) { return !is_second(lanes, at, 0); }
    CUTLASS_DEVICE static int row(Lanes const& lanes, At const& at, int) { return lanes.row(at, 0); }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at, int) {
      int const n = lanes.column(at, 0);
      return n / (2 * Block) * Block + n % Block;
    }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int) { return lanes.has(at, 0) ? 1 : 0; }

    template <class Element>
    CUTLASS_DEVICE static void gather(Lanes const&, Element (&runs)[1][1], Array<Element, 1> const& kept) {
      runs[0][0] = kept[0];
    }

    template <class Element>
    CUTLASS_DEVICE static auto scatter(Lanes const&, Element const (&runs)[1][1]) {
      return loaded<Element, 1>([&](int) { return runs[0][0]; });
    }
  };

  // A thread's two columns belong to one block, or to two blocks.
  template <int Width>
  struct Blocks {
    static constexpr bool kApart = Warp::kDistance >= Width;
    static constexpr int kLanes = Warp::kDistance == 1 ? Width / 2 : Warp::kColumns, kLaneStride = Warp::kRows;
    static_assert(Warp::kDistance <= Warp::kColumns && Width <= Warp::kStrip &&
                      (Warp::kDistance == 1 || Width >= Warp::kColumns),
                  "a block is in one warp");

    CUTLASS_HOST_DEVICE static constexpr int values_of(int size) { return kApart || size == 1 ? size : size / 2; }
    CUTLASS_HOST_DEVICE static constexpr int value_of(int i) { return kApart ? i : Warp::row_of(i); }
    CUTLASS_HOST_DEVICE static constexpr int block_of(int) { return 0; }
    CUTLASS_HOST_DEVICE static constexpr int place(int) { return 0; }

    CUTLASS_DEVICE static int column(Lanes const& lanes, At const& at) { return lanes.column(at, 0); }
    CUTLASS_DEVICE static bool stores(Lanes const& lanes, At const& at, int) { return lanes.column(at, 0) % Width == 0; }
  };

  // A warp's strip of 16 or 32 columns is one word of a row. A thread collects the bits of a step, for one or two rows in a
  // register. At the end of the step, the lanes of a row combine theirs. A lane loads the word of one of its rows, and
  // gets the others from lanes that have the same rows.
  struct Bits {
    static constexpr int kBytes = Warp::kStrip / 8, kWords = 1, kWordsOfStep = 1;
    static_assert(Warp::kColumns >= fragment::kRows && Warp::kDistance <= Warp::kColumns, "a lane loads one word");
    static constexpr int kRowsHeld = 32 / Warp::kStrip;  // in a register
    static constexpr bool kOfTile = false, kOfStep = true;

    struct Held {
      uint32_t words[fragment::kRows];
    };

    struct Or {
      CUTLASS_DEVICE static uint32_t apply(uint32_t x, uint32_t y) { return x | y; }
    };

    CUTLASS_DEVICE static At at(Step const& step, int) { return {0, step}; }
    CUTLASS_DEVICE static int row(Lanes const&, At const& at, int) {
      int const number = fragment::lane() / Warp::kRows % fragment::kRows;
      int row = at.places.rows[0];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i < fragment::kRows; ++i) row = number == i ? at.places.rows[i] : row;
      return row;
    }
    CUTLASS_DEVICE static int column(Lanes const& lanes, At const&, int) { return lanes.first_of_strip(); }
    CUTLASS_DEVICE static int valid(Lanes const& lanes, At const& at, int word) {
      return row(lanes, at, word) >= 0 ? lanes.columns_of_strip() : 0;
    }

    /// Hold the bit of an element, as if the lane's first column were that of the strip. The elements come in order.
    CUTLASS_DEVICE static void put(Held& held, At const& at, Array<bool, 1> const& bit) {
      int const row = row_number(at), place = row % kRowsHeld * Warp::kStrip + Warp::kDistance * column_number(at);
      uint32_t const word = bit[0] ? 1u << place : 0u;
      uint32_t& words = held.words[row / kRowsHeld];
      words = place == 0 ? word : words | word;
    }

    /// Call `store(row, first column, word, bits inside of the matrix)` for the rows of a step, in a lane each.
    template <int Rows, class Store>
    CUTLASS_DEVICE static void for_each_row(Lanes const& lanes, Step const& step, Held& held, Store const& store) {
      constexpr int kHeld = Rows / kRowsHeld, kStoring = Warp::kRows * Rows;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kHeld; ++i) held.words[i] <<= lanes.tile.first % Warp::kStrip;
      uint32_t const word = total_of_lane<kHeld, Or>(held.words);
      int const lane = fragment::lane(), half = lane / (Warp::kRows * kHeld) % kRowsHeld;
      int const number = row_of_lane<kHeld>() * kRowsHeld + half;
      int row = step.rows[0];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i < Rows; ++i) row = number == i ? step.rows[i] : row;
      if (lane < kStoring && row >= 0) {
        store(row, lanes.first_of_strip(), word >> half * (Warp::kStrip % 32), lanes.columns_of_strip());
      }
    }

    CUTLASS_DEVICE static auto scatter(Lanes const& lanes, At const& at, uint32_t const (&words)[kWordsOfStep]) {
      int const from = row_number(at) * Warp::kRows + fragment::lane() % Warp::kRows;
      return of_word(lanes, at, __shfl_sync(0xffffffffu, words[0], from));
    }

    /// The bit of an element in the word of its row.
    CUTLASS_DEVICE static Array<bool, 1> of_word(Lanes const& lanes, At const& at, uint32_t word) {
      uint32_t const bit = 1u << lanes.tile.first % Warp::kStrip << Warp::kDistance * column_number(at);
      return {{(word & bit) != 0}};
    }
  };

  // Each tile of rows and each strip of columns writes one part.
  static constexpr bool kKeepsPart = false;  // whether a reduction keeps its part's address in registers

  template <Kept K>
  CUTLASS_HOST_DEVICE static int64_t parts_of(fragment::Tiles const& tiles) {
    return K == Kept::kRows ? tiles.strips : K == Kept::kColumns ? tiles.number : tiles.number * tiles.strips;
  }

  template <Kept K>
  CUTLASS_DEVICE static int64_t parts() {
    return 0;  // of each batch; there is one batch
  }

  template <Kept K>
  CUTLASS_DEVICE int64_t part() const {
    return K == Kept::kRows      ? tile.strip
           : K == Kept::kColumns ? tile.number
                                 : int64_t(tile.number) * tile.strips + tile.strip;
  }

  template <Kept K, class Arguments>
  CUTLASS_DEVICE int64_t kept(Arguments const& arguments) const {
    return arguments.kept;
  }

  /// The number of the row, of the first Rows rows of a step, that a lane completes: see total_of_lane.
  template <int Rows>
  CUTLASS_DEVICE static int row_of_lane() {
    int number = 0, mask = Warp::kRows;
    for (int kept = Rows / 2; kept > 0; kept /= 2, mask *= 2) number += (fragment::lane() & mask) != 0 ? kept : 0;
    return number;
  }

  template <int Rows, class Values>
  CUTLASS_DEVICE static auto of_lane(Values const& values) {
    int const number = row_of_lane<Rows>();
    auto value = values(0);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 1; i < Rows; ++i) value = number == i ? values(i) : value;
    return value;
  }

  /// Combine the totals of the lanes of a row. Each of two lanes keeps half of the rows and gives the other half away,
  /// until it has one row. Then both keep it. So most shuffles serve two rows.
  template <int Rows, class Op, class Element>
  CUTLASS_DEVICE static Element total_of_lane(Element (&totals)[kRows]) {
    int mask = Warp::kRows;
    CUTLASS_PRAGMA_UNROLL
    for (int kept = Rows / 2; kept > 0; kept /= 2, mask *= 2) {
      bool const is_second = (fragment::lane() & mask) != 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kept; ++i) {
        Element const mine = is_second ? totals[kept + i] : totals[i];
        Element const given = is_second ? totals[i] : totals[kept + i];
        totals[i] = Op::apply(mine, shuffle_xor(given, mask));
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (; mask < 32; mask *= 2) totals[0] = Op::apply(totals[0], shuffle_xor(totals[0], mask));
    return totals[0];
  }

  /// Combine a total over the lanes of its row; all of them get the result.
  template <class Op, class Element>
  CUTLASS_DEVICE static Element total_of_row(Element const& total) {
    return reduce_over_lanes<Op, Warp::kColumns, Warp::kRows>(total);
  }

  template <class Write, class Element>
  CUTLASS_DEVICE void write_total(At const& at, Write const& write, Element const& total) const {
    if (fragment::lane() / Warp::kRows == 0 && has_row(at, 0) && tile.exists()) write(row(at, 0), total);
  }

  /// The value of the first lane of each row.
  template <class T>
  CUTLASS_DEVICE static T of_first_lane(T x) {
    return __shfl_sync(0xffffffffu, x, fragment::lane() % Warp::kRows);
  }

  /// Write the total of a lane's row.
  template <int Rows, class Write, class Element>
  CUTLASS_DEVICE void write_row(Step const& step, Write const& write, Element const& total) const {
    int const row = of_lane<Rows>([&](int i) { return row_of_step(step, i); });
    if (fragment::lane() < Rows * Warp::kRows && is_row(row) && tile.exists()) write(row, total);
  }

  template <Kept K, class Op, class Element>
  struct Totals;

  // At the end of a tile, the lanes of a column combine their totals.
  template <class Op, class Element>
  struct Totals<Kept::kColumns, Op, Element> {
    struct SharedStorage {};

    Running<Op, Element> totals[2];

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, Array<Element, 1> const& value, Write const&) {
      totals[column_number(at)].add(value[0], lanes.has_row(at, 0));
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        Element const total = reduce_over_lanes<Op, Warp::kRows>(totals[half].total());
        if (fragment::lane() % Warp::kRows == 0 && lanes.has_column(half)) {
          write(lanes.column_of_tile(half, 0), total);
        }
      }
    }
  };

  template <class Op, class Element>
  struct Totals<Kept::kRows, Op, Element> : RowTotals<Lanes, Op, Element> {
    struct SharedStorage {};

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {}
  };

  // At the end of a tile, the lanes of a warp combine their totals.
  template <class Op, class Element>
  struct Totals<Kept::kNothing, Op, Element> {
    struct SharedStorage {};

    Running<Op, Element> total;

    CUTLASS_DEVICE Totals(Lanes const&, SharedStorage&) {}

    template <class Write>
    CUTLASS_DEVICE void add(Lanes const& lanes, At const& at, Array<Element, 1> const& value, Write const&) {
      if (lanes.has(at, 0)) total.add(value[0]);
    }

    template <class Write>
    CUTLASS_DEVICE void end(Lanes const& lanes, Write const& write) const {
      Element const all = reduce_over_lanes<Op, 32>(total.total());
      if (fragment::lane() == 0 && lanes.tile.exists()) write(0, all);
    }
  };
};

/// The totals of a thread's rows. At the end of a step, the lanes of a row combine them. If a row is complete before the
/// next one begins, they do so at once: fewer totals are in registers. Each warp writes its own part.
template <class Lanes, class Op, class Element>
struct RowTotals {
  using At = typename Lanes::At;
  using Step = typename Lanes::Step;

  Element totals[Lanes::kRows];

  template <class Write>
  CUTLASS_DEVICE void add(
      Lanes const& lanes, At const& at, typename Lanes::template Array<Element, 1> const& value, Write const& write) {
    int const column = Lanes::column_number(at);
    Element const own = lanes.has_column(column) ? value[0] : Op::template identity<Element>();
    Element& total = totals[Lanes::row_number(at)];
    total = column == 0 ? own : Op::apply(total, own);
    if constexpr (Lanes::kRowByRow) {
      if (column == 1) lanes.write_total(at, write, Lanes::template total_of_row<Op>(total));
    }
  }

  template <int Rows, class Write>
  CUTLASS_DEVICE void end_step(Lanes const& lanes, Step const& step, Write const& write) {
    if constexpr (!Lanes::kRowByRow) {
      lanes.template write_row<Rows>(step, write, Lanes::template total_of_lane<Rows, Op>(totals));
    }
  }

  template <class Write>
  CUTLASS_DEVICE void end(Lanes const&, Write const&) const {}
};

/// The values of the elements of a step.
template <class T, int Size>
using Values = epilogue::TypesOwn::Array<T, Size>;

/// An operation in the epilogue of an own kernel. i is the number of an element in a step, a constant once loops are
/// unrolled.
template <class Warp, class Operation>
struct Part {
  using Lanes = own::Lanes<Warp>;
  using At = typename Lanes::At;
  using State = typename Operation::template On<Lanes>;
  using Params = typename Operation::Arguments;
  using Fetched = typename epilogue::FetchedOf<State>::type;

  typename epilogue::SharedOf<State>::type shared;
  State state;

  CUTLASS_DEVICE Part(Params const& params, fragment::Tile const& tile) : state(make(params, Lanes(tile), shared)) {
    if constexpr (epilogue::Begins<State>::value) state.begin();
  }

#if !defined(EVT_DEVICE_PASS)
  /// The number of parts that a reduction writes.
  static int64_t parts(fragment::Tiles const& tiles) { return Lanes::template parts_of<Operation::kKept>(tiles); }
#endif

  CUTLASS_DEVICE void fetch(Fetched& fetched, fragment::Places const& places) const {
    state.fetch(fetched, places);
  }

  /// The value of a leaf, or of an operation on the values of one element.
  template <class... Inputs>
  CUTLASS_DEVICE auto get(int i, fragment::Places const& places, Inputs... inputs) const {
    return state.visit(At{i, places}, one(inputs)...)[0];
  }

  CUTLASS_DEVICE auto get(int i, fragment::Places const& places, Fetched const& fetched) {
    return state.visit(At{i, places}, fetched)[0];
  }

  /// Load the values of a tile, and keep them in shared memory.
  template <class PlaceOf>
  CUTLASS_DEVICE void begin_tile(PlaceOf const& place_of) { state.begin_tile(place_of); }
  CUTLASS_DEVICE auto& held() { return state.held; }
  template <int Elements>
  CUTLASS_DEVICE void mask_words(uint32_t* words, Fetched const& fetched) const {
    state.template mask_words<Elements>(words, fetched);
  }
  template <class PlaceOf>
  CUTLASS_DEVICE void keep_tile(PlaceOf const& place_of, uint32_t words, int consumer) {
    state.keep_tile(place_of, words, consumer);
  }

  CUTLASS_DEVICE void end_part(fragment::PartOfRows const& part) { state.end_part(part); }

  /// Take the values that lanes have exchanged for the first block of columns.
  CUTLASS_DEVICE void follow(Part const& first) { state.follow(first.state); }

  template <class Input>
  CUTLASS_DEVICE void put(Input input, int i, fragment::Places const& places) {
    state.visit(At{i, places}, one(input));
  }

  /// Exchange the values of a step's elements.
  template <class Input, int Size>
  CUTLASS_DEVICE auto exchange(typename Lanes::template Array<Input, Size> const& inputs,
                               fragment::Places const& places) const {
    return state.visit(At{0, places}, inputs);
  }

  /// Complete the rows of a step of N elements.
  template <int N>
  CUTLASS_DEVICE void end_step(fragment::Places const& places) {
    state.template end_step<N / Lanes::kColumns>(places);
  }

  CUTLASS_DEVICE void finish() { state.end(); }

 private:
  CUTLASS_DEVICE static State make(Params const& params, Lanes const& lanes,
                                   typename epilogue::SharedOf<State>::type& shared) {
    if constexpr (std::is_constructible_v<State, Params const&, Lanes const&>) {
      return State(params, lanes);
    } else {
      return State(params, lanes, shared);
    }
  }

  template <class Input>
  CUTLASS_DEVICE static auto one(Input input) {
    return typename Lanes::template Array<Input, 1>{{input}};
  }
};

}  // namespace own
}  // namespace evt

#endif  // EVT_EPILOGUE_LANES_OWN_HPP
