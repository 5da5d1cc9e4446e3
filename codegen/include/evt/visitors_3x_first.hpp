#ifndef EVT_VISITORS_3X_FIRST_HPP
#define EVT_VISITORS_3X_FIRST_HPP

// Values of fewer columns in sums, for the CUTLASS 3.x kernels: each is held in the places of several columns, and is
// to be counted once.

#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

// The input in the first Distance of every Width columns, zeros in the others. Sub-tiles have whole Widths.
template <int Width, int Distance>
struct FirstColumns : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    static_assert(Tile::kStepColumns % Width == 0, "the columns of a value are within a sub-tile");

    int first;  // of the thread's columns in every sub-tile

    CUTLASS_DEVICE
    Callbacks(Tile const& tile) : first(tile.quad_lane() * 2) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      return evt::generate_array<ElementInput, FragmentSize>([&](int i) -> ElementInput {
        return (first + detail::column_of(i)) % Width < Distance ? ElementInput(input[i]) : ElementInput(0);
      });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    return Callbacks<cute::remove_cv_t<decltype(tile)>>(tile);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_FIRST_HPP
