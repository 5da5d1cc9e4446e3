#ifndef EVT_FRAGMENT_HPP
#define EVT_FRAGMENT_HPP

// What the epilogue of a kernel of ours is made of. It takes a thread's elements of the matrix [m, n] in steps of two
// columns and four rows: element i is in column i / 2 % 2, and in row i / 4 * 2 + i % 2. i is a constant once loops are
// unrolled. Lanes tells which columns and rows the lanes of a warp have.

#include <cstdint>

#include "evt/element.hpp"

namespace evt {
namespace fragment {

constexpr int kElements = 8;  // of a step
constexpr int kRows = 4;

CUTLASS_DEVICE int lane() { return threadIdx.x % 32; }

CUTLASS_HOST_DEVICE constexpr int column_of(int i) { return i / 2 % 2; }
CUTLASS_HOST_DEVICE constexpr int row_of(int i) { return i / 4 * 2 + i % 2; }
CUTLASS_HOST_DEVICE constexpr int element_of(int column, int row) { return row / 2 * 4 + column * 2 + row % 2; }

/// The lanes of a warp: so many of one row have two columns each, `Distance` apart; kRows of the same columns have other
/// rows: lane `column * kRows + row`. A warp's columns are a strip of the matrix, which begins at a multiple of them.
template <int Columns, int Distance>
struct Lanes {
  static constexpr int kColumns = Columns, kRows = 32 / Columns;
  static constexpr int kDistance = Distance;
  static constexpr int kStrip = 2 * Columns;  // columns
};

/// Those of WGMMA: its rows are our columns, as the product is computed transposed.
using LanesOfWgmma = Lanes<8, 8>;

/// The thread's columns, and where its warp's elements are: in which tile of rows, and in which strip of columns, of so
/// many. Reductions keep a result for each of both.
struct Tile {
  int first;
  int columns;  // of the matrix
  int number;
  int strip, strips;
  int distance;

  CUTLASS_DEVICE int column(int i) const { return first + distance * column_of(i); }
  CUTLASS_DEVICE bool has(int i) const { return column(i) < columns; }
  /// Of two blocks of strips that are computed together, the second may be beyond the matrix.
  CUTLASS_DEVICE bool exists() const { return strip < strips; }
};

/// How many tiles there are, and strips.
struct Tiles {
  int64_t number;
  int64_t strips;
};

/// Where the rows of a step are in the matrix; a row that is not there is -1.
struct Places {
  int rows[kRows];

  CUTLASS_DEVICE int row(int i) const { return rows[row_of(i)]; }
  CUTLASS_DEVICE bool has(int i) const { return row(i) >= 0; }
};

/// A value for all elements: at a pointer, or by value where that is null.
template <class T>
struct Scalar {
  struct Params {
    T const* pointer;
    element::Register<T> number;
  };

  element::Register<T> value;

  CUTLASS_DEVICE Scalar(Params const& params, Tile const&)
      : value(params.pointer == nullptr ? element::round_to<T>(params.number) : element::load(*params.pointer)) {}

  CUTLASS_DEVICE element::Register<T> get(int) const { return value; }
};

/// A value for each column, `stride` elements apart: 0 is one value for all.
template <class T>
struct RowVector {
  struct Params {
    T const* pointer;
    int64_t stride;
    element::Register<T> number;  // where there is no pointer
  };

  element::Register<T> values[2];

  CUTLASS_DEVICE RowVector(Params const& params, Tile const& tile) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      values[half] = element::round_to<T>(params.number);
      if (params.pointer != nullptr && tile.has(2 * half)) {
        values[half] = element::load(params.pointer[tile.column(2 * half) * params.stride]);
      }
    }
  }

  CUTLASS_DEVICE element::Register<T> get(int i) const { return values[column_of(i)]; }
};

/// A value for each row.
template <class T>
struct ColumnVector {
  struct Params {
    T const* pointer;
    int64_t stride;
    element::Register<T> number;
  };

  struct Fetched {
    T values[kRows];
  };

  Params const& params;

  CUTLASS_DEVICE ColumnVector(Params const& params, Tile const&) : params(params) {}

  CUTLASS_DEVICE void fetch(Fetched& fetched, Places const& places) const {
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < kRows; ++row) {
      if (params.pointer != nullptr && places.rows[row] >= 0) {
        fetched.values[row] = params.pointer[places.rows[row] * params.stride];
      }
    }
  }

  CUTLASS_DEVICE element::Register<T> get(int i, Fetched const& fetched) const {
    return params.pointer == nullptr ? element::round_to<T>(params.number) : element::load(fetched.values[row_of(i)]);
  }
};

/// The strides of a matrix in global memory, whose elements a thread moves one by one.
template <class Pointer>
struct MatrixParams {
  Pointer pointer;
  int64_t row_stride;
  int64_t column_stride;

  CUTLASS_DEVICE int64_t offset(int i, Tile const& tile, Places const& places) const {
    return places.row(i) * row_stride + tile.column(i) * column_stride;
  }
};

template <class T>
struct MatrixLoad {
  using Params = MatrixParams<T const*>;

  struct Fetched {
    T values[kElements];
  };

  Params const& params;
  Tile tile;

  CUTLASS_DEVICE MatrixLoad(Params const& params, Tile const& tile) : params(params), tile(tile) {}

  CUTLASS_DEVICE void fetch(Fetched& fetched, Places const& places) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (tile.has(i) && places.has(i)) fetched.values[i] = params.pointer[params.offset(i, tile, places)];
    }
  }

  CUTLASS_DEVICE element::Register<T> get(int i, Fetched const& fetched) const {
    return element::load(fetched.values[i]);
  }
};

template <class T>
struct MatrixStore {
  using Params = MatrixParams<T*>;

  Params const& params;
  Tile tile;

  CUTLASS_DEVICE MatrixStore(Params const& params, Tile const& tile) : params(params), tile(tile) {}

  template <class Value>
  CUTLASS_DEVICE void put(Value value, int i, Places const& places) const {
    if (tile.has(i) && places.has(i)) element::store(params.pointer[params.offset(i, tile, places)], value);
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_HPP
