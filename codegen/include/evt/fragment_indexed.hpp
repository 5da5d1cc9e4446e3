#ifndef EVT_FRAGMENT_INDEXED_HPP
#define EVT_FRAGMENT_INDEXED_HPP

// Gathered inputs and scattered outputs in the epilogue of a kernel of ours. A place below zero or beyond the tensor's
// extent reads as zero and is not stored.

#include <cstdint>

#include "evt/fragment.hpp"

namespace evt {
namespace fragment {

/// Rows or columns in order.
struct InOrder {
  CUTLASS_DEVICE int64_t operator()(int i) const { return i; }
};

/// Rows or columns at the places that an index names: negative where there is no such place.
template <class Integer>
struct At {
  Integer const* index;
  int64_t extent;

  CUTLASS_DEVICE int64_t operator()(int i) const {
    int64_t const place = index[i];
    return place < extent ? place : -1;
  }
};

template <class Pointer, class Rows, class Columns>
struct IndexedParams {
  Pointer pointer;
  int64_t row_stride;
  int64_t column_stride;
  Rows rows;
  Columns columns;
};

/// A tensor's element for a row and a column of the matrix, of which a thread has two columns.
template <class Params>
struct Indexed {
  Params const& params;
  int64_t columns[2];

  CUTLASS_DEVICE Indexed(Params const& params, Tile const& tile) : params(params) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) columns[half] = tile.has(2 * half) ? params.columns(tile.column(2 * half)) : -1;
  }

  /// Where a row of the matrix is in the tensor, or negative.
  CUTLASS_DEVICE int64_t row(int row) const { return row < 0 ? -1 : params.rows(row); }

  CUTLASS_DEVICE bool has(int i, int64_t row) const { return row >= 0 && columns[column_of(i)] >= 0; }
  CUTLASS_DEVICE auto& at(int i, int64_t row) const {
    return params.pointer[row * params.row_stride + columns[column_of(i)] * params.column_stride];
  }
};

template <class T, class Rows, class Columns>
struct Gather {
  using Params = IndexedParams<T const*, Rows, Columns>;

  struct Fetched {
    T values[kElements];
  };

  Indexed<Params> indexed;

  CUTLASS_DEVICE Gather(Params const& params, Tile const& tile) : indexed(params, tile) {}

  CUTLASS_DEVICE void fetch(Fetched& fetched, Places const& places) const {
    int64_t rows[kRows];
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < kRows; ++row) rows[row] = indexed.row(places.rows[row]);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; ++i) {
      int64_t const row = rows[row_of(i)];
      fetched.values[i] = indexed.has(i, row) ? indexed.at(i, row) : T{};
    }
  }

  CUTLASS_DEVICE element::Register<T> get(int i, Fetched const& fetched) const {
    return element::load(fetched.values[i]);
  }
};

template <class T, class Rows, class Columns>
struct Scatter {
  using Params = IndexedParams<T*, Rows, Columns>;

  Indexed<Params> indexed;

  CUTLASS_DEVICE Scatter(Params const& params, Tile const& tile) : indexed(params, tile) {}

  template <class Value>
  CUTLASS_DEVICE void put(Value value, int i, Places const& places) const {
    int64_t const row = indexed.row(places.row(i));
    if (indexed.has(i, row)) element::store(indexed.at(i, row), value);
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_INDEXED_HPP
