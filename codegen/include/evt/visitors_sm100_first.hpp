#ifndef EVT_VISITORS_SM100_FIRST_HPP
#define EVT_VISITORS_SM100_FIRST_HPP

// The node of visitors_3x_first.hpp for the CUTLASS 3.x kernels of sm100 and sm103.

#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

// The input in the first Distance of every Width columns, zeros in the others. Sub-tiles have whole Widths.
template <int Width, int Distance>
struct FirstColumns : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize % Width == 0, "the columns of a value are within a sub-tile");
      return evt::generate_array<ElementInput, FragmentSize>([&](int i) -> ElementInput {
        return i % Width < Distance ? ElementInput(input[i]) : ElementInput(0);
      });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    [[maybe_unused]] Tile const tile(args);  // that the fragment is a row
    return Callbacks{};
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_FIRST_HPP
