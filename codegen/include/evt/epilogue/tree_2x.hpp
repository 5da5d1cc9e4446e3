#ifndef EVT_EPILOGUE_TREE_2X_HPP
#define EVT_EPILOGUE_TREE_2X_HPP

// Visitor trees of CUTLASS 2.x: the common base of nodes with arguments, functions of elements (Apply), and operations
// in topological order (Graph). All are nodes for Sm80EVT and for Graph.

#include <cstddef>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/gemm_coord.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"

#include "evt/epilogue/tree.hpp"

namespace evt {
namespace threadblock {

using cutlass::epilogue::threadblock::detail::EmptyCallbacks;
using cutlass::epilogue::threadblock::detail::VisitorImpl2x;

// The common base of nodes with arguments: no workspace. Params are the Arguments.
template <class Arguments_, class SharedStorage_>
struct Node {
  using Arguments = Arguments_;
  using Params = Arguments;

  using SharedStorage = SharedStorage_;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
    return arguments;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  Params const* params_ptr = nullptr;
  SharedStorage* shared = nullptr;

  CUTLASS_HOST_DEVICE
  Node() {}

  CUTLASS_HOST_DEVICE
  Node(Params const& params, SharedStorage const& storage)
      : params_ptr(&params), shared(const_cast<SharedStorage*>(&storage)) {}
};

// A function of the elements: see epilogue::apply_to.
template <class Functor, class ElementOutput = typename Functor::Result>
struct Apply : VisitorImpl2x<> {
  using VisitorImpl2x<>::VisitorImpl2x;

  struct Callbacks : EmptyCallbacks {
    template <class ElementAccumulator, class... ElementInputs, int FragmentSize>
    CUTLASS_DEVICE auto visit(int, int, int, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
                              cutlass::Array<ElementInputs, FragmentSize> const&... inputs) {
      return epilogue::apply_to<Functor, ElementOutput, FragmentSize>(inputs...);
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, ProblemShape) {
    return Callbacks{};
  }
};

// Operations in topological order. EdgeTuple is a cute::tuple with one cute::seq per operation: the indices of its
// operands. The last operation is the result. Each value keeps the element type of its operation, and a value may be
// unused.
template <class EdgeTuple, class... Ops>
struct Graph : VisitorImpl2x<Ops...> {
  static_assert(cute::tuple_size<EdgeTuple>::value == sizeof...(Ops), "one sequence of operands for every op");

  using VisitorImpl2x<Ops...>::VisitorImpl2x;

  template <class Base>
  struct Callbacks : Base {
    CUTLASS_DEVICE
    Callbacks(Base&& base) : Base(cute::forward<Base>(base)) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int fragment,
                              cutlass::Array<ElementAccumulator, FragmentSize> const& accumulator) {
      return epilogue::visit_graph<EdgeTuple>(this->callbacks_tuple, [&](auto& node, auto const&... operands) {
        return node.visit(step, row, column, fragment, accumulator, operands...);
      });
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    auto callbacks = VisitorImpl2x<Ops...>::get_callbacks(tile, thread_idx, problem_shape);
    return Callbacks<decltype(callbacks)>(cute::move(callbacks));
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_EPILOGUE_TREE_2X_HPP
