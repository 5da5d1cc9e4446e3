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

#include "evt/convert.hpp"

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

// An n-ary function of the elements. Functor has `Parameters`, a cute::tuple of its parameter types, `Result`, and a
// static `apply`. Operands are converted to the parameter types, and the result to ElementOutput.
template <class Functor, class ElementOutput = typename Functor::Result>
struct Apply : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class ElementAccumulator, class... ElementInputs, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementOutput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
        cutlass::Array<ElementInputs, FragmentSize> const&... inputs) {
      static_assert(sizeof...(ElementInputs) == cute::tuple_size<typename Functor::Parameters>::value,
                    "one operand for every parameter");
      return call<FragmentSize>(cute::make_seq<sizeof...(ElementInputs)>{}, inputs...);
    }

   private:
    template <int FragmentSize, int... Index, class... Inputs>
    CUTLASS_DEVICE static auto call(cute::seq<Index...>, Inputs const&... inputs) {
      using Parameters = typename Functor::Parameters;
      return each<FragmentSize>(evt::convert_array<cute::tuple_element_t<Index, Parameters>>(inputs)...);
    }

    template <int FragmentSize, class... Converted>
    CUTLASS_DEVICE static auto each(Converted const&... operands) {
      return evt::convert_array<ElementOutput>(evt::generate_array<typename Functor::Result, FragmentSize>(
          [&](int i) { return Functor::apply(operands[i]...); }));
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const&) {
    return Callbacks{};
  }
};

namespace detail {

// The Index-th of the arguments.
template <int Index, class First, class... Rest>
CUTLASS_DEVICE auto const& pick(First const& first, Rest const&... rest) {
  if constexpr (Index == 0) {
    return first;
  } else {
    return pick<Index - 1>(rest...);
  }
}

}  // namespace detail

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
      return visit_from(accumulator, fragment, step_m, step_n);
    }

   private:
    // Visit the operation after the given values, and all later operations.
    template <class Accumulator, class... Values>
    CUTLASS_DEVICE auto visit_from(Accumulator const& accumulator, int fragment, int step_m, int step_n,
                                   Values const&... values) {
      constexpr int kOp = sizeof...(Values);
      using Edges = cute::tuple_element_t<kOp, EdgeTuple>;
      auto const value = visit_one<kOp>(Edges{}, accumulator, fragment, step_m, step_n, values...);
      if constexpr (kOp + 1 == sizeof...(Ops)) {
        return value;
      } else {
        return visit_from(accumulator, fragment, step_m, step_n, values..., value);
      }
    }

    template <int Op, int... Edges, class Accumulator, class... Values>
    CUTLASS_DEVICE auto visit_one(cute::seq<Edges...>, Accumulator const& accumulator, int fragment, int step_m,
                                  int step_n, Values const&... values) {
      static_assert(((Edges < Op) && ...), "an operand comes before its user");
      return cute::get<Op>(this->callbacks_tuple)
          .visit(accumulator, fragment, step_m, step_n, detail::pick<Edges>(values...)...);
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
