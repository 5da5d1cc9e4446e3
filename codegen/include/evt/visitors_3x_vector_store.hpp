#ifndef EVT_VISITORS_3X_VECTOR_STORE_HPP
#define EVT_VISITORS_3X_VECTOR_STORE_HPP

// Stores of values that do not vary over rows, columns or both, for the CUTLASS 3.x kernels: each element is written
// once, by the thread that has it in the first row or column of the problem.

#include <cstdint>

#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

template <class Element>
struct VectorStoreArguments {
  Element* ptr = nullptr;
  int64_t stride = 0;    // from element to element
  int64_t stride_l = 0;  // 0: there is one for all batches, which the first of them writes
};

// Stores a value for every column (Kept 1), for every row (Kept 0), or one (Kept -1), and passes its input through.
template <class Element, int Kept>
struct VectorStore : Node<VectorStoreArguments<Element>> {
  static_assert(Kept >= -1 && Kept <= 1, "nothing, M or N");

  using Base = Node<VectorStoreArguments<Element>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;
    Params const& params;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      int const m = tile.row(step_m), n = tile.column(step_n);
      bool const is_first = (Kept == 0 || m == 0) && (Kept == 1 || n == 0);
      if (is_first && (tile.l == 0 || params.stride_l != 0)) {
        Element* const to = params.ptr + tile.l * params.stride_l;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          int const row = detail::row_of(i), column = detail::column_of(i);
          bool const is_kept = (Kept == 0 || row == 0) && (Kept == 1 || column == 0);
          if (is_kept && m + row < tile.extent_m && n + column < tile.extent_n) {
            int const place = Kept == 0 ? m + row : Kept == 1 ? n + column : 0;
            to[place * params.stride] = evt::convert<Element>(ElementInput(input[i]));
          }
        }
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    return Callbacks<cute::remove_cv_t<decltype(tile)>>(tile, *this->params_ptr);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_VECTOR_STORE_HPP
