#ifndef EVT_VISITORS_2X_BLOCK_HPP
#define EVT_VISITORS_2X_BLOCK_HPP

// Blocks of columns for the CUTLASS 2.x kernels. BlockReduce reduces each aligned block of 16 or 32 columns. BlockStore
// stores one element per block.

#include <cstdint>

#include "evt/reduce.hpp"
#include "evt/visitors_2x_pair.hpp"

namespace evt {
namespace threadblock {

// result[i] = Op over the aligned block of Width columns that contains i. Columns outside of the problem are skipped.
template <class ThreadMap, class Op, int Width>
struct BlockReduce : PlainNode<NoArguments> {
  using PlainNode<NoArguments>::PlainNode;

  static constexpr int kVector = Tile<ThreadMap>::kVector;
  static_assert(Width % kVector == 0 && Width / kVector <= Tile<ThreadMap>::kLanes, "a block is in the lanes of a row");

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE auto visit(int, int, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
                              cutlass::Array<ElementInput, FragmentSize> const& input) {
      using Element = evt::detail::Reduced<ElementInput>;  // an input is reduced in its compute type
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      Element value = Op::template identity<Element>();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        if (tile.n(column) + i < tile.extent_n) {
          value = Op::apply(value, values[i]);
        }
      }
      value = evt::reduce_over_lanes<Op, Width / kVector>(value);
      cutlass::Array<Element, FragmentSize> result;
      result.fill(value);
      return result;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape));
  }
};

// Store the first element of every block of Width columns, converted to Element, at [l, m, n / Width]. Return the
// input.
template <class ThreadMap, class Element, int Width>
struct BlockStore : PlainNode<RowMajorArguments<Element>> {
  using PlainNode<RowMajorArguments<Element>>::PlainNode;

  static_assert(Width % Tile<ThreadMap>::kVector == 0, "a fragment must lie in one block");

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;
    RowMajorArguments<Element> const* arguments;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_, RowMajorArguments<Element> const* arguments_)
        : tile(tile_), arguments(arguments_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      int const n = tile.n(column);
      if (n % Width == 0 && n < tile.extent_n && tile.has_row(row, step)) {
        Element* const to = arguments->ptr + tile.l * arguments->stride_l + tile.m(row, step) * arguments->stride_m;
        to[n / Width] = evt::convert<Element>(ElementInput(input[0]));
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

#endif  // EVT_VISITORS_2X_BLOCK_HPP
