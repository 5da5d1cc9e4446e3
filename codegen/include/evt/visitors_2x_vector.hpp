#ifndef EVT_VISITORS_2X_VECTOR_HPP
#define EVT_VISITORS_2X_VECTOR_HPP

// Row and column broadcasts for the CUTLASS 2.x kernels. Unlike the stock broadcasts, they support pointers with
// element alignment and any extents. Arguments select a vector or a single value at run time.

#include <cstdint>

#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

template <class Element>
struct VectorArguments {
  Element const* ptr = nullptr;
  Element value = Element(0);  // the value of all elements if ptr is null
  int64_t stride = 0;          // 1: a vector; 0: a single value in memory
  int64_t stride_l = 0;
};

// A row broadcast: value[l, n], one element per column.
template <class ThreadMap, class Element>
struct VectorOrScalarRow : PlainNode<VectorArguments<Element>> {
  using PlainNode<VectorArguments<Element>>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    using Place = Tile<ThreadMap>;

    Place tile;
    VectorArguments<Element> const* arguments;
    cutlass::Array<Element, Place::kVector> values[Place::kColumns];

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, VectorArguments<Element> const* arguments_) : tile(tile_), arguments(arguments_) {}

    CUTLASS_DEVICE void begin_epilogue() {
      Element const* const first = arguments->ptr + tile.l * arguments->stride_l;
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < Place::kColumns; ++column) {
        if (arguments->ptr == nullptr) {
          values[column].fill(arguments->value);
        } else if (arguments->stride == 0) {
          values[column].fill(*first);
        } else {
          detail::load_row(values[column], first + tile.n(column), tile.extent_n - tile.n(column));
        }
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        int, int, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      return values[column];
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

// A column broadcast: value[l, m], one element per row.
template <class ThreadMap, class Element>
struct VectorOrScalarCol : PlainNode<VectorArguments<Element>> {
  using PlainNode<VectorArguments<Element>>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    using Place = Tile<ThreadMap>;

    Place tile;
    VectorArguments<Element> const* arguments;
    Element values[Place::kSteps][Place::kRows];

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, VectorArguments<Element> const* arguments_) : tile(tile_), arguments(arguments_) {}

    CUTLASS_DEVICE void begin_epilogue() {
      Element const* const first = arguments->ptr + tile.l * arguments->stride_l;
      int64_t const stride = arguments->stride;
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < Place::kSteps; ++step) {
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < Place::kRows; ++row) {
          bool const load = arguments->ptr != nullptr && tile.has_row(row, step);
          values[step][row] = load ? first[tile.m(row, step) * stride] : arguments->value;
        }
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        int step, int row, int, int, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      Element const value = values[step][row];
      return evt::generate_array<Element, FragmentSize>([&](int) { return value; });
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_VECTOR_HPP
