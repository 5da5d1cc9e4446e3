#ifndef EVT_VISITORS_3X_INTERLEAVE_HPP
#define EVT_VISITORS_3X_INTERLEAVE_HPP

// Two values of pairs of columns as one value of all columns, for the CUTLASS 3.x kernels: what Even and Odd of
// visitors_3x_pair.hpp take apart.

#include "evt/visitors_3x_pair.hpp"

namespace evt {
namespace fusion {

// The first input in the places of the first members of pairs, the second one in those of the others, as Elements.
template <int Block, class Element>
struct Interleave : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class ElementAccumulator, class ElementFirst, class ElementSecond, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
        cutlass::Array<ElementFirst, FragmentSize> const& first,
        cutlass::Array<ElementSecond, FragmentSize> const& second) {
      constexpr int kDistance = detail::pair_distance<Block>();
      static_assert(FragmentSize % (2 * kDistance) == 0, "the epilogue tile is too narrow for the block");
      auto const x = evt::convert_array<Element>(first);
      auto const y = evt::convert_array<Element>(second);
      return evt::generate_array<Element, FragmentSize>(
          [&](int i) { return (i & kDistance) != 0 ? Element(y[i]) : Element(x[i]); });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    [[maybe_unused]] Tile const tile(args);  // that the fragment is WGMMA's
    return Callbacks{};
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_INTERLEAVE_HPP
