#ifndef EVT_VISITORS_2X_INTERLEAVE_HPP
#define EVT_VISITORS_2X_INTERLEAVE_HPP

// Interleave two values of column pairs into one value of all columns, for the CUTLASS 2.x kernels: the inverse of Even
// and Odd in visitors_2x_pair.hpp.

#include "evt/visitors_2x_pair.hpp"

namespace evt {
namespace threadblock {

// The first input in the first columns of pairs, and the second input in the second columns, as Elements.
template <class ThreadMap, int Block, class Element>
struct Interleave : PlainNode<NoArguments> {
  using PlainNode<NoArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    template <class ElementAccumulator, class ElementFirst, class ElementSecond, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        int, int, int, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementFirst, FragmentSize> const& first,
        cutlass::Array<ElementSecond, FragmentSize> const& second) {
      using Pairs = detail::PairTile<ThreadMap, Block>;
      auto const x = evt::convert_array<Element>(first);
      auto const y = evt::convert_array<Element>(second);
      bool const is_second = !Pairs::kWithin && (int(threadIdx.x) & Pairs::kLaneDistance) != 0;
      return evt::generate_array<Element, FragmentSize>([&](int i) {
        return (Pairs::kWithin ? (i & Block) != 0 : is_second) ? Element(y[i]) : Element(x[i]);
      });
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, ProblemShape) {
    return Callbacks{};
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_INTERLEAVE_HPP
