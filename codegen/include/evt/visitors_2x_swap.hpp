#ifndef EVT_VISITORS_2X_SWAP_HPP
#define EVT_VISITORS_2X_SWAP_HPP

// The other column of a pair for the CUTLASS 2.x kernels; pairs are as in visitors_2x_pair.hpp.

#include "evt/visitors_2x_pair.hpp"

namespace evt {
namespace threadblock {

// result[i] = the other member of the pair of i.
template <class ThreadMap, int Block>
struct Swap : PlainNode<NoArguments> {
  using PlainNode<NoArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int, int, int, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      using Pairs = detail::PairTile<ThreadMap, Block>;
      if constexpr (Pairs::kWithin) {
        return evt::generate_array<ElementInput, FragmentSize>([&](int i) { return ElementInput(input[i ^ Block]); });
      } else {
        return detail::shuffle(input, int(threadIdx.x % 32) ^ Pairs::kLaneDistance);
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, ProblemShape) {
    return Callbacks{};
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_SWAP_HPP
