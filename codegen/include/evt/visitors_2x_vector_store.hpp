#ifndef EVT_VISITORS_2X_VECTOR_STORE_HPP
#define EVT_VISITORS_2X_VECTOR_STORE_HPP

// Stores of values that are constant over rows, columns or both, for the CUTLASS 2.x kernels. The thread with the first
// row or column of the problem writes each element once.

#include <cstdint>

#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

template <class Element>
struct VectorStoreArguments {
  Element* ptr = nullptr;
  int64_t stride = 0;    // between elements
  int64_t stride_l = 0;  // 0: one result for all batches, written by the first batch
};

// Store one value per column (Kept 1), one per row (Kept 0), or one in all (Kept -1). Return the input.
template <class ThreadMap, class Element, int Kept>
struct VectorStore : PlainNode<VectorStoreArguments<Element>> {
  static_assert(Kept >= -1 && Kept <= 1, "Kept is nothing, M or N");

  using PlainNode<VectorStoreArguments<Element>>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;
    VectorStoreArguments<Element> const* arguments;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_, VectorStoreArguments<Element> const* arguments_)
        : tile(tile_), arguments(arguments_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      int const m = tile.m(row, step), n = tile.n(column);
      bool const is_first = (Kept == 0 || m == 0) && (Kept == 1 || n == 0);
      bool const has_batch = tile.l == 0 || arguments->stride_l != 0;
      if (is_first && has_batch && m < tile.extent_m) {
        Element* const to = arguments->ptr + tile.l * arguments->stride_l;
        if constexpr (Kept == 1) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < FragmentSize; ++i) {
            if (n + i < tile.extent_n) {
              to[(n + i) * arguments->stride] = evt::convert<Element>(ElementInput(input[i]));
            }
          }
        } else {
          to[(Kept == 0 ? m : 0) * arguments->stride] = evt::convert<Element>(ElementInput(input[0]));
        }
      }
      return input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_VECTOR_STORE_HPP
