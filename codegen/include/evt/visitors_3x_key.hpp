#ifndef EVT_VISITORS_3X_KEY_HPP
#define EVT_VISITORS_3X_KEY_HPP

// Values with their places, for reductions of the CUTLASS 3.x kernels that find where an extreme value is.

#include <cstdint>

#include "evt/place.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

// The keys of the input's elements; places are rows (Mode 0) or columns (1).
template <int Mode, bool Least>
struct PlaceKeys : Sm90VisitorImpl<> {
  static_assert(Mode == 0 || Mode == 1, "M or N");

  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<int64_t, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      using Value = evt::detail::Reduced<ElementInput>;
      auto const values = evt::convert_array<Value>(input);
      return evt::generate_array<int64_t, FragmentSize>([&](int i) {
        return key_of<Least>(Value(values[i]), Mode == 0 ? tile.row(step_m) + detail::row_of(i)
                                                         : tile.column(step_n) + detail::column_of(i));
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

#endif  // EVT_VISITORS_3X_KEY_HPP
