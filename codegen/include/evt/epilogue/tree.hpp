#ifndef EVT_EPILOGUE_TREE_HPP
#define EVT_EPILOGUE_TREE_HPP

// Functions of elements and operations in topological order: the common part of CUTLASS's visitor trees, 2.x and 3.x.

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cute/tensor.hpp"

#include "evt/convert.hpp"

namespace evt {
namespace epilogue {
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

template <class Functor, class Output, int Size, class... Converted>
CUTLASS_DEVICE auto apply_to_converted(Converted const&... operands) {
  return evt::convert_array<Output>(evt::generate_array<typename Functor::Result, Size>(
      [&](int i) { return Functor::apply(operands[i]...); }));
}

template <class Functor, class Output, int Size, int... Index, class... Inputs>
CUTLASS_DEVICE auto apply_to(cute::seq<Index...>, Inputs const&... inputs) {
  using Parameters = typename Functor::Parameters;
  return apply_to_converted<Functor, Output, Size>(
      evt::convert_array<cute::tuple_element_t<Index, Parameters>>(inputs)...);
}

template <int Op, int... Edges, class Nodes, class Visit, class... Values>
CUTLASS_DEVICE auto visit_node(cute::seq<Edges...>, Nodes& nodes, Visit const& visit, Values const&... values) {
  static_assert(((Edges < Op) && ...), "an operand comes before its user");
  return visit(cute::get<Op>(nodes), pick<Edges>(values...)...);
}

}  // namespace detail

/// Apply an n-ary functor to the elements of fragments. Functor has `Parameters`, a cute::tuple of its parameter types,
/// `Result`, and a static `apply`. Operands are converted to the parameter types, and the result to Output.
template <class Functor, class Output, int Size, class... Inputs>
CUTLASS_DEVICE cutlass::Array<Output, Size> apply_to(cutlass::Array<Inputs, Size> const&... inputs) {
  static_assert(sizeof...(Inputs) == cute::tuple_size<typename Functor::Parameters>::value,
                "one operand for every parameter");
  return detail::apply_to<Functor, Output, Size>(cute::make_seq<sizeof...(Inputs)>{}, inputs...);
}

/// Visit the operations after the given values, and return the last one's value. EdgeTuple has the indices of each
/// operation's operands; `visit(node, operands...)` visits one operation.
template <class EdgeTuple, class Nodes, class Visit, class... Values>
CUTLASS_DEVICE auto visit_graph(Nodes& nodes, Visit const& visit, Values const&... values) {
  constexpr int kOp = sizeof...(Values);
  auto const value = detail::visit_node<kOp>(cute::tuple_element_t<kOp, EdgeTuple>{}, nodes, visit, values...);
  if constexpr (kOp + 1 == cute::tuple_size<EdgeTuple>::value) {
    return value;
  } else {
    return visit_graph<EdgeTuple>(nodes, visit, values..., value);
  }
}

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_TREE_HPP
