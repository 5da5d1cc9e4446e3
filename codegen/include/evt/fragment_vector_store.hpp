#ifndef EVT_FRAGMENT_VECTOR_STORE_HPP
#define EVT_FRAGMENT_VECTOR_STORE_HPP

// Stores of values that do not vary over rows, columns or both, in the epilogue of a kernel of ours: each is written
// once, by the thread that has it in the first row or column of the matrix.

#include <cstdint>

#include "evt/fragment.hpp"

namespace evt {
namespace fragment {

/// A value for every column (Kept 1), for every row (Kept 0), or one (Kept -1).
template <class T, int Kept>
struct VectorStore {
  static_assert(Kept >= -1 && Kept <= 1, "nothing, rows or columns");

  struct Params {
    T* pointer;
    int64_t stride;
  };

  Params const& params;
  Tile tile;

  CUTLASS_DEVICE VectorStore(Params const& params, Tile const& tile) : params(params), tile(tile) {}

  template <class Value>
  CUTLASS_DEVICE void put(Value value, int i, Places const& places) const {
    int const row = places.row(i), column = tile.column(i);
    bool const is_first = (Kept == 0 || row == 0) && (Kept == 1 || column == 0);
    if (!is_first || !tile.has(i) || !places.has(i)) return;
    int64_t const place = Kept == 0 ? row : Kept == 1 ? column : 0;
    element::store(params.pointer[place * params.stride], value);
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_VECTOR_STORE_HPP
