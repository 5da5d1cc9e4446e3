#ifndef EVT_VISITORS_SM100_KEY_HPP
#define EVT_VISITORS_SM100_KEY_HPP

// The node of visitors_3x_key.hpp for the CUTLASS 3.x kernels of sm100 and sm103.

#include <cstdint>

#include "evt/place.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

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
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      using Value = evt::detail::Reduced<ElementInput>;
      auto const values = evt::convert_array<Value>(input);
      return evt::generate_array<int64_t, FragmentSize>([&](int i) {
        return key_of<Least>(Value(values[i]), Mode == 0 ? tile.m : tile.column(step_n) + i);
      });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    return Callbacks<KernelTile>(KernelTile(args));
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_KEY_HPP
