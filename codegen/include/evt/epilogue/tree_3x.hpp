#ifndef EVT_EPILOGUE_TREE_3X_HPP
#define EVT_EPILOGUE_TREE_3X_HPP

// Visitor trees of CUTLASS 3.x: the common base of nodes with arguments, functions of elements (Apply), and operations
// in topological order (Graph). All are nodes for Sm90EVT and for Graph.

#include <cstddef>
#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

#include "evt/epilogue/tree.hpp"

namespace evt {
namespace fusion {

using cutlass::epilogue::fusion::detail::ConsumerStoreArgs;
using cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks;
using cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks;
using cutlass::epilogue::fusion::detail::ProducerLoadArgs;
using cutlass::epilogue::fusion::detail::Sm90VisitorImpl;

struct NoStorage {};

// The common base of nodes with arguments: no workspace, no TMA. Params are the Arguments.
template <class Arguments_, class SharedStorage_ = NoStorage>
struct Node {
  using Arguments = Arguments_;
  using Params = Arguments;

  using SharedStorage = SharedStorage_;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
    return arguments;
  }

  template <class ProblemShape>
  static bool can_implement(ProblemShape const&, Arguments const&) {
    return true;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  Params const* params_ptr = nullptr;
  SharedStorage* shared = nullptr;

  CUTLASS_HOST_DEVICE
  Node() {}

  CUTLASS_HOST_DEVICE
  Node(Params const& params, SharedStorage const& storage)
      : params_ptr(&params), shared(const_cast<SharedStorage*>(&storage)) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(ProducerLoadArgs<Args...> const&) {
    return EmptyProducerLoadCallbacks{};
  }
};

// A function of the elements: see epilogue::apply_to.
template <class Functor, class ElementOutput = typename Functor::Result>
struct Apply : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class ElementAccumulator, class... ElementInputs, int FragmentSize>
    CUTLASS_DEVICE auto visit(cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
                              cutlass::Array<ElementInputs, FragmentSize> const&... inputs) {
      return epilogue::apply_to<Functor, ElementOutput, FragmentSize>(inputs...);
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const&) {
    return Callbacks{};
  }
};

// Operations in topological order. EdgeTuple is a cute::tuple with one cute::seq per operation: the indices of its
// operands. The last operation is the result. Each value keeps the element type of its operation, and a value may be
// unused.
template <class EdgeTuple, class... Ops>
struct Graph : Sm90VisitorImpl<Ops...> {
  static_assert(cute::tuple_size<EdgeTuple>::value == sizeof...(Ops), "one sequence of operands for every op");

  using Sm90VisitorImpl<Ops...>::Sm90VisitorImpl;

  template <class Base>
  struct Callbacks : Base {
    CUTLASS_DEVICE
    Callbacks(Base&& base) : Base(cute::forward<Base>(base)) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE auto visit(cutlass::Array<ElementAccumulator, FragmentSize> const& accumulator, int fragment,
                              int step_m, int step_n) {
      return epilogue::visit_graph<EdgeTuple>(this->callbacks_tuple, [&](auto& node, auto const&... operands) {
        return node.visit(accumulator, fragment, step_m, step_n, operands...);
      });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    auto callbacks = Sm90VisitorImpl<Ops...>::template get_consumer_store_callbacks<ReferenceSrc>(args);
    return Callbacks<decltype(callbacks)>(cute::move(callbacks));
  }
};

// A visitor for a kernel without D. Its result is unused and may have any type. Like ElementD, Element selects the
// copies and the shared memory of the sub-tiles.
template <class Visitor, class Element>
struct WithElement : Visitor {
  using ElementAux = Element;
  using Visitor::Visitor;

  template <class Base>
  struct Callbacks : Base {
    CUTLASS_DEVICE
    Callbacks(Base&& base) : Base(cute::forward<Base>(base)) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const& accumulator, int fragment, int step_m, int step_n) {
      Base::visit(accumulator, fragment, step_m, step_n);
      cutlass::Array<Element, FragmentSize> nothing;
      nothing.clear();
      return nothing;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    auto callbacks = Visitor::template get_consumer_store_callbacks<ReferenceSrc>(args);
    return Callbacks<decltype(callbacks)>(cute::move(callbacks));
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_EPILOGUE_TREE_3X_HPP
