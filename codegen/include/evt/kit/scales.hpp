#ifndef EVT_KIT_SCALES_HPP
#define EVT_KIT_SCALES_HPP

// Factors of A and B that are constant over blocks of k. They multiply the sums of a stage when these are promoted.

#include <cstdint>
#include <type_traits>

#include "evt/element.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/step.hpp"

namespace evt {
namespace kit {

/// The values of successive stages, which share words.
template <class Element, int Stages>
struct RunOf {
  using Word = std::conditional_t<(Stages * sizeof(Element) < 4), uint16_t, uint32_t>;
  static constexpr int kOfWord = int(sizeof(Word) / sizeof(Element)), kBits = 8 * int(sizeof(Element));
  Word words[Stages / kOfWord];

  CUTLASS_DEVICE Element get(int stage) const {
    uint32_t const bits = words[stage / kOfWord] >> stage % kOfWord * kBits;
    return reinterpret_cast<Element const&>(bits);
  }
};
template <class Element>
struct RunOf<Element, 1> {
  Element element;
  CUTLASS_DEVICE Element get(int) const { return element; }
};

/// An input of a factor: a value for each OuterBlock rows or columns and for each DepthBlock elements of k. The stride
/// along a mode that it lacks is 0.
template <class Element_, int OuterBlock, int DepthBlock>
struct BlockValues {
  using Element = Element_;
  struct Params {
    Element const* pointer;
    int64_t outer, depth, group;  // strides
  };

  /// The values of a row or column.
  using Place = Element const*;
  CUTLASS_DEVICE static Place place(Params const& params, int outer, int group) {
    return params.pointer + outer / OuterBlock * params.outer + group * params.group;
  }

  template <int Stages>
  using Run = RunOf<Element, Stages>;

  /// Whether the values of Stages stages of Depth elements are aligned neighbours in memory, from each such number on.
  template <int Depth, int Stages>
  CUTLASS_DEVICE static bool are_neighbours(Params const& params) {
    uint64_t const bits = reinterpret_cast<uint64_t>(params.pointer) / sizeof(Element) | params.outer | params.group;
    return DepthBlock == Depth && params.depth == 1 && bits % Stages == 0;
  }

  /// Load the values of the stages from k on, which are neighbours if there are several.
  template <int Stages>
  CUTLASS_DEVICE static void load(Run<Stages>& to, Params const& params, Place place, int k) {
    if constexpr (Stages == 1) {
      to.element = place[k / DepthBlock * params.depth];
    } else {
      using Word = typename Run<Stages>::Word;
      auto const from = static_cast<Word const*>(__builtin_assume_aligned(place + k / DepthBlock, sizeof(to)));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < int(sizeof(to) / sizeof(Word)); ++i) to.words[i] = from[i];
    }
  }
};

/// The factor of an operand that has none.
struct NoFactor {
  static constexpr bool kFromMinuend = false;
  struct Params {};
  struct Place {};
  template <int Stages>
  struct Loaded {};
  CUTLASS_DEVICE static Place place(Params const&, int, int) { return {}; }
  template <int Depth, int Stages>
  CUTLASS_DEVICE static bool are_neighbours(Params const&) {
    return true;
  }
  template <int Stages>
  CUTLASS_DEVICE static void load(Loaded<Stages>&, Params const&, Place, int) {}
  template <int Stages>
  CUTLASS_DEVICE static float value(Loaded<Stages> const&, int) {
    return 1.0f;
  }
};

/// Zero points of B, which are subtracted from its elements when these are converted to type To. Adds: they are added.
/// Minuend, if not 0: they are bytes, and the conversion adds Minuend minus the zero point; see Packed.
template <class Values, class To, bool Adds = false, int Minuend = 0>
struct ZeroPoints : Values {
  static constexpr bool kFromMinuend = Minuend != 0;
  /// Return the zero point of a loaded stage twice.
  template <class Loaded>
  CUTLASS_DEVICE static uint32_t word(Loaded const& loaded, int stage) {
    float const point = Values::value(loaded, stage), value = kFromMinuend ? Minuend - point : Adds ? -point : point;
    uint32_t two;
    element::store_two(To{}, two, value, value);
    return two;
  }
};

/// The factors of A and B, and the zero points of B. OfRows, OfColumns: whether A's factor varies over the rows of a tile,
/// and B's over the columns.
template <class A_, class B_, bool OfRows, bool OfColumns, class Zeros_ = NoFactor>
struct Scales {
  using A = A_;
  using B = B_;
  using Zeros = Zeros_;
  static constexpr bool kMultiply = !std::is_same_v<A, NoFactor> || !std::is_same_v<B, NoFactor>;
  static constexpr bool kHasZeros = !std::is_same_v<Zeros, NoFactor>, kExist = kMultiply || kHasZeros;
  static constexpr bool kZerosFromMinuend = Zeros::kFromMinuend;
  static constexpr bool kOfRows = OfRows, kOfColumns = OfColumns;
  struct Params {
    typename A::Params a;
    typename B::Params b;
    typename Zeros::Params zeros;
  };
};
using NoScales = Scales<NoFactor, NoFactor, false, false>;

/// The factors of a stage in shared memory: one for each row, four of a step for each quad of lanes together, and one
/// for each column; or one for the tile. ByRows: one for each row, in order, and one for 16 to 64 columns, which share a
/// factor wherever a tile begins. Pairs: blocks have the first or the second columns of 64 pairs, and share a factor if
/// there is one for each block.
template <class Scales, int Rows, int Columns, bool ByRows, int Pairs>
struct ScaleTile {
  static constexpr bool kExists = Scales::kExist, kOfRows = Scales::kOfRows, kOfColumns = Scales::kOfColumns;
  static constexpr int kSteps = ceil_div(Rows, kStepPixels);
  static constexpr int kRowsBytes = kOfRows ? 4 * kSteps * kStepPixels : 0;
  // Columns that share a factor, and their number.
  static constexpr int kAlike = !ByRows ? 1 : Columns % kFilters == 0 ? kFilters : Columns & -Columns;
  static constexpr int kColumns = Columns / kAlike;
  static constexpr int kColumnsBytes = kOfColumns ? ceil_div(kColumns, 4) * 16 : 0;
  static constexpr int kFactorsBytes = !Scales::kMultiply ? 0 : kOfRows || kOfColumns ? kRowsBytes + kColumnsBytes : 16;
  static constexpr int kBytes = kFactorsBytes + (Scales::kHasZeros ? 4 * Columns : 0);
  // Rows and columns of a lane of the warp that loads factors, and the stages that it loads ahead.
  static constexpr int kRowsOfLane = kOfRows ? ceil_div(Rows, 32) : 1, kColumnsOfLane = kOfColumns ? ceil_div(kColumns, 32) : 1;
  static constexpr int kZerosOfLane = Scales::kHasZeros ? Columns / 32 : 1;
  static constexpr int kOfLane = kRowsOfLane + kColumnsOfLane + Scales::kHasZeros * kZerosOfLane;
  /// The loads in flight, of a stage or of a run of stages. A load takes as long as a run of short stages, so there are two
  /// or more. Tiles by rows have registers for two runs.
  CUTLASS_HOST_DEVICE static constexpr int ahead_of(int run) {
    return kOfLane > 8 || (ByRows && run > 1) ? 2 : kOfLane > 5 && run == 1 ? 3 : kOfLane > 2 || run > 1 ? 4 : 8;
  }

  static_assert(!ByRows || kOfRows, "a thread has two rows and many columns");

  /// The place of a row: lanes `row % 8 / 2` of each four have rows 2q, 2q + 1, 2q + 8 and 2q + 9 of a step.
  CUTLASS_DEVICE static uint32_t place_of_row(int row) {
    if constexpr (ByRows) return 4 * row;
    return 4 * (row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2);
  }
  CUTLASS_DEVICE static uint32_t place_of_column(int number) { return kRowsBytes + 4 * number; }
  CUTLASS_DEVICE static uint32_t place_of_zero(int column) { return kFactorsBytes + 4 * column; }
  /// The number of a column of the matrix in the blocks.
  CUTLASS_DEVICE static int number_of(int column) {
    if constexpr (Pairs == 0 || ByRows) {
      return column;
    } else {
      int const pair = column % 128 / (2 * Pairs) * Pairs + column % Pairs;
      return column / 128 * 128 + column / Pairs % 2 * 64 + pair;
    }
  }

  /// The places of a lane's rows and columns of a tile.
  struct Places {
    typename Scales::A::Place a[kRowsOfLane];
    typename Scales::B::Place b[kColumnsOfLane];
    typename Scales::Zeros::Place zeros[kZerosOfLane];
  };

  /// The values that a lane has loaded for a run of stages.
  template <int Run>
  struct Loaded {
    typename Scales::A::template Loaded<Run> a[kRowsOfLane];
    typename Scales::B::template Loaded<Run> b[kColumnsOfLane];
    typename Scales::Zeros::template Loaded<Run> zeros[kZerosOfLane];
  };

  /// Find the places of a tile. Beyond the matrix they are the last ones.
  CUTLASS_DEVICE static void find(
      Places& places, typename Scales::Params const& params, int row, int rows, int column, int columns, int group) {
    int const lane = threadIdx.x % 32;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) {
      places.a[i] = Scales::A::place(params.a, min(kOfRows ? row + lane + 32 * i : row, rows - 1), group);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kColumnsOfLane; ++i) {
      places.b[i] = Scales::B::place(params.b, min(kOfColumns ? column + (lane + 32 * i) * kAlike : column, columns - 1), group);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kZerosOfLane; ++i) {
      places.zeros[i] = Scales::Zeros::place(params.zeros, min(column + lane + 32 * i, columns - 1), group);
    }
  }

  /// Whether a lane can load the values of a run of stages of Depth elements at once.
  template <int Depth, int Run>
  CUTLASS_DEVICE static bool are_neighbours(typename Scales::Params const& params) {
    return Scales::A::template are_neighbours<Depth, Run>(params.a) &&
           Scales::B::template are_neighbours<Depth, Run>(params.b) &&
           Scales::Zeros::template are_neighbours<Depth, Run>(params.zeros);
  }

  /// Load the factors of a run of stages from k on.
  template <int Run>
  CUTLASS_DEVICE static void load(Loaded<Run>& to, typename Scales::Params const& params, Places const& places, int k) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) Scales::A::load(to.a[i], params.a, places.a[i], k);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kColumnsOfLane; ++i) Scales::B::load(to.b[i], params.b, places.b[i], k);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kZerosOfLane; ++i) Scales::Zeros::load(to.zeros[i], params.zeros, places.zeros[i], k);
  }

  /// Store a stage's factors in its place. The factor of an operand that is constant over a tile is part of the other one's.
  template <int Run>
  CUTLASS_DEVICE static void store(uint32_t to, Loaded<Run> const& loaded, int stage) {
    int const lane = threadIdx.x % 32;
    float const of_a = kOfRows ? 1.0f : Scales::A::value(loaded.a[0], stage);
    float const of_b = kOfColumns ? 1.0f : Scales::B::value(loaded.b[0], stage);
    if constexpr (kOfRows) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i) {
        int const row = lane + 32 * i;
        if (Rows % 32 == 0 || row < Rows) {
          store_shared_float(to + place_of_row(row), Scales::A::value(loaded.a[i], stage) * of_b);
        }
      }
    }
    if constexpr (kOfColumns) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kColumnsOfLane; ++i) {
        if (kColumns % 32 == 0 || lane + 32 * i < kColumns) {
          store_shared_float(to + place_of_column(number_of(lane + 32 * i)), Scales::B::value(loaded.b[i], stage) * of_a);
        }
      }
    }
    if constexpr (Scales::kMultiply && !kOfRows && !kOfColumns) {
      if (lane == 0) store_shared_float(to, of_a * of_b);
    }
    if constexpr (Scales::kHasZeros) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kZerosOfLane; ++i) {
        store_shared(to + place_of_zero(lane + 32 * i), Scales::Zeros::word(loaded.zeros[i], stage));
      }
    }
  }

  /// Load the zero points of a thread's columns g and g + 8, of the 16 columns that its warp has from `column` on.
  CUTLASS_DEVICE static void load_zeros(uint32_t (&to)[2], uint32_t from, int column) {
    int const thread = threadIdx.x % kWarpGroup, first = column + thread / 32 * 16 + thread % 32 / 4;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; ++i) to[i] = load_shared_word(from + place_of_zero(first + 8 * i));
  }

  /// The factors of a thread's sums: for each of its two rows, of columns that share a factor.
  struct OfSums {
    static constexpr int kEach = kOfColumns ? kColumns : 1;
    float values[2][kEach];

    /// Return the factor of a sum of WGMMA's.
    CUTLASS_DEVICE float of_sum(int i) const { return values[i / 2 % 2][kOfColumns ? i / (kAlike / 2) : 0]; }
  };

  /// The factors of a thread's rows g and g + 8, of the 16 rows that its warp has from `first` on, and of its columns.
  struct OfThread {
    static constexpr int kWholeFours = kOfColumns ? kColumns / 4 * 4 : 0;
    float rows[2], columns[kColumns];

    CUTLASS_DEVICE void load(uint32_t from, int first) {
      int const thread = threadIdx.x % kWarpGroup, row = first + thread / 32 * 16 + thread % 32 / 4;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) rows[i] = load_shared_float(from + place_of_row(row + 8 * i));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWholeFours; i += 4) {
        load_shared(reinterpret_cast<uint32_t (&)[4]>(columns[i]), from + place_of_column(i));
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = kWholeFours; i < (kOfColumns ? kColumns : 0); ++i) {
        columns[i] = load_shared_float(from + place_of_column(i));
      }
    }

    /// Return the factor of a sum of WGMMA's.
    CUTLASS_DEVICE float of_sum(int i) const {
      float const of_row = rows[i / 2 % 2];
      return kOfColumns ? of_row * columns[i / (kAlike / 2)] : of_row;
    }

    /// Return the factors of its sums.
    CUTLASS_DEVICE OfSums of_sums() const {
      OfSums found;
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < OfSums::kEach; ++i) {
          found.values[row][i] = kOfColumns ? multiply_here(rows[row], columns[i]) : rows[row];
        }
      }
      return found;
    }
  };

  /// The factors of a thread's columns g and g + 8, of the 16 columns that its warp has from `column` on.
  struct OfColumns {
    float values[2] = {1.0f, 1.0f};

    CUTLASS_DEVICE void load(uint32_t from, int column) {
      int const thread = threadIdx.x % kWarpGroup, first = column + thread / 32 * 16 + thread % 32 / 4;
      if constexpr (Scales::kMultiply && !kOfRows && !kOfColumns) values[0] = values[1] = load_shared_float(from);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < (kOfColumns ? 2 : 0); ++i) values[i] = load_shared_float(from + place_of_column(first + 8 * i));
    }
  };

  /// Add the sums of a stage, times their factors, to the first accumulators of a block of 64 columns. The rows of the sums
  /// begin with a step.
  template <int All, int Sums>
  CUTLASS_DEVICE static void add(
      float (&accumulators)[All], float const (&partial)[Sums], uint32_t from, OfColumns const& columns, int first_step = 0) {
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < ceil_div(Sums, fragment::kElements); ++step) {
      uint32_t of_rows[4];
      if constexpr (kOfRows) load_shared(of_rows, from + 64 * (first_step + step) + threadIdx.x % 4 * 16);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kElements; ++i) {
        int const j = fragment::kElements * step + i;
        if (j >= Sums) break;
        float sum = partial[j];
        if constexpr (kOfRows && kOfColumns) sum *= columns.values[i / 2 % 2];
        float const factor = kOfRows ? __uint_as_float(of_rows[i / 4 * 2 + i % 2]) : columns.values[i / 2 % 2];
        accumulators[j] += sum * factor;
      }
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_SCALES_HPP
