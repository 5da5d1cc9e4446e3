#ifndef EVT_VISITORS_2X_INTERLEAVE_HPP
#define EVT_VISITORS_2X_INTERLEAVE_HPP

// Two values of pairs of columns as one value of all columns, for the CUTLASS 2.x kernels: what Even and Odd of
// visitors_2x_pair.hpp take apart.

#include "evt/visitors_2x_pair.hpp"

namespace evt {
namespace threadblock {

// The first input in the places of the first members of pairs, the second one in those of the others, as Elements.
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
