#ifndef EVT_VISITORS_2X_FIRST_HPP
#define EVT_VISITORS_2X_FIRST_HPP

// Reductions of values with fewer columns than the kernel, for the CUTLASS 2.x kernels. Several columns hold each
// value, and one of them is counted.

#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

// The input in the first Distance of every Width columns, and zeros in the others.
template <class ThreadMap, int Width, int Distance>
struct FirstColumns : PlainNode<NoArguments> {
  using PlainNode<NoArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int, int, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      int const first = tile.n(column);
      return evt::generate_array<ElementInput, FragmentSize>([&](int i) -> ElementInput {
        return (first + i) % Width < Distance ? ElementInput(input[i]) : ElementInput(0);
      });
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape));
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_FIRST_HPP
