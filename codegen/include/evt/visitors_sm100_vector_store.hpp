#ifndef EVT_VISITORS_SM100_VECTOR_STORE_HPP
#define EVT_VISITORS_SM100_VECTOR_STORE_HPP

// Stores of values that do not vary over rows, columns or both, as those of visitors_3x_vector_store.hpp, for the
// CUTLASS 3.x kernels of sm100 and sm103.

#include "evt/visitors_3x_vector_store.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

// Stores a value for every column (Kept 1), for every row (Kept 0), or one (Kept -1), and passes its input through.
template <class Element, int Kept>
struct VectorStore : Node<fusion::VectorStoreArguments<Element>> {
  static_assert(Kept >= -1 && Kept <= 1, "nothing, M or N");

  using Base = Node<fusion::VectorStoreArguments<Element>>;
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
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      int const n = tile.column(step_n);
      bool const is_first = (Kept == 0 || tile.m == 0) && (Kept == 1 || n == 0);
      if (is_first && (tile.l == 0 || params.stride_l != 0)) {
        Element* const to = params.ptr + tile.l * params.stride_l;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < (Kept == 1 ? FragmentSize : 1); ++i) {
          if (i < tile.valid(step_n)) {
            int const place = Kept == 0 ? tile.m : Kept == 1 ? n + i : 0;
            to[place * params.stride] = evt::convert<Element>(ElementInput(input[i]));
          }
        }
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    return Callbacks<KernelTile>(KernelTile(args), *this->params_ptr);
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_VECTOR_STORE_HPP
