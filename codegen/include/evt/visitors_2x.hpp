#ifndef EVT_VISITORS_2X_HPP
#define EVT_VISITORS_2X_HPP

// Epilogue visitors for the CUTLASS 2.x tensor-op kernels: the common base of evt's nodes, and the nodes without
// tensors (Apply, Graph, Index).
//
// A node's callbacks see the output tile as the thread map partitions it. In every step of the epilogue a thread has
// kRows x kColumns fragments of kVector neighbouring columns. A row of the tile belongs to the lanes of one warp. All
// lanes of a warp take part in every visit, so that they may shuffle.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/gemm_coord.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/threadblock/default_thread_map_tensor_op.h"
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"

#include "evt/convert.hpp"

namespace evt {
namespace threadblock {

using cutlass::epilogue::threadblock::detail::EmptyCallbacks;
using cutlass::epilogue::threadblock::detail::VisitorImpl2x;

// The places of a thread's fragments in the problem, in closed form.
template <class ThreadMap>
struct Tile {
  using Base = typename ThreadMap::Base;
  static constexpr int kVector = ThreadMap::kElementsPerAccess;      // columns of a fragment
  static constexpr int kLanes = Base::Detail::kAccessWidth;          // lanes of a row
  static constexpr int kLaneRows = Base::Detail::kAccessRows;        // rows of an access of a warp
  static constexpr int kColumns = Base::Iterations::kColumn;         // fragments of a thread in a row
  static constexpr int kRows = Base::Iterations::kRow;               // rows of a thread in a step
  static constexpr int kSteps = Base::Count::kRow;
  static constexpr int kStepRows = Base::Shape::kRow;                // rows of a group in a step
  static constexpr int kWarpRows = Base::Detail::kWarpsRemainingForRows;
  static constexpr int kGroups = Base::Shape::kGroup;
  static constexpr int kWarps = kWarpRows * kGroups;
  static constexpr int kTileM = kGroups * kSteps * kStepRows;
  static constexpr int kTileN = kVector * kLanes * kColumns;

  static_assert(kLanes * kLaneRows == 32 && (kLanes & (kLanes - 1)) == 0, "a warp must access whole rows");
  static_assert(kLaneRows * kRows * kWarpRows == kStepRows, "the warps of a group must divide its rows");
  static_assert(kTileN == Base::Shape::kColumn, "a row must belong to one warp");
  static_assert(Base::Count::kGroup == 1 && Base::Count::kCluster == 1 && Base::Shape::kCluster == 1,
                "a thread map of a tensor-op epilogue");
  static_assert(Base::kThreads == 32 * kWarps, "every warp must have rows");

  int m0, n0, l;            // of the thread's first element
  int extent_m, extent_n;   // of the problem
  int lane;                 // the thread's index among the kLanes of a row
  int warp;

  template <class ProblemShape>
  CUTLASS_DEVICE Tile(cutlass::gemm::GemmCoord const& tile, int thread_idx, ProblemShape const& problem_shape)
      : l(tile.k()),
        extent_m(int(cute::get<0>(problem_shape))),
        extent_n(int(cute::get<1>(problem_shape))),
        lane(thread_idx % kLanes),
        warp(thread_idx / 32) {
    int const group = warp / kWarpRows;
    m0 = tile.m() * kTileM + group * (kSteps * kStepRows) + (warp % kWarpRows) * (kLaneRows * kRows) +
         thread_idx % 32 / kLanes;
    n0 = tile.n() * kTileN + lane * kVector;
  }

  CUTLASS_DEVICE int m(int row, int step) const { return m0 + row * kLaneRows + step * kStepRows; }
  CUTLASS_DEVICE int n(int column) const { return n0 + column * (kVector * kLanes); }  // of a fragment's first element
  CUTLASS_DEVICE bool has_row(int row, int step) const { return m(row, step) < extent_m; }
};

// The common base of nodes without shared memory and workspace. Params are the Arguments.
template <class Arguments_>
struct PlainNode {
  using Arguments = Arguments_;
  using Params = Arguments;

  struct SharedStorage {};

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
    return arguments;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  Params const* params_ptr;

  CUTLASS_HOST_DEVICE
  PlainNode() : params_ptr(nullptr) {}

  CUTLASS_HOST_DEVICE
  PlainNode(Params const& params, SharedStorage const&) : params_ptr(&params) {}
};

struct NoArguments {};

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

// The value of lane `source` of the warp, of any type that can be copied.
template <class T>
CUTLASS_DEVICE T shuffle(T const& value, int source) {
  constexpr int kWords = (int(sizeof(T)) + 3) / 4;
  uint32_t words[kWords] = {};
  std::memcpy(words, &value, sizeof(T));
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kWords; ++i) {
    words[i] = __shfl_sync(0xffffffffu, words[i], source);
  }
  T result;
  std::memcpy(&result, words, sizeof(T));
  return result;
}

// The vector access of Size neighbours in memory: kCount accesses of kBytes, if the address is aligned.
template <class Element, int Size>
struct RowAccess {
  static constexpr int kTotal = Size * int(sizeof(Element));
  static constexpr int kBytes = kTotal < 16 ? kTotal : 16;
  static constexpr int kCount = kTotal / kBytes;
  static_assert((kTotal & (kTotal - 1)) == 0, "fragment sizes must be powers of two");

  using Access = cute::conditional_t<
      kBytes == 16, uint4,
      cute::conditional_t<kBytes == 8, uint2, cute::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;
  Access accesses[kCount];

  CUTLASS_DEVICE static bool allows(void const* address) {
    return Size > 1 && reinterpret_cast<uintptr_t>(address) % kBytes == 0;
  }
};

// Load Size neighbours. Neighbours from `count` on are outside and become zeros.
template <class Element, int Size>
CUTLASS_DEVICE void load_row(cutlass::Array<Element, Size>& values, Element const* from, int count) {
  using Row = RowAccess<Element, Size>;
  if (count >= Size && Row::allows(from)) {
    Row row;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Row::kCount; ++i) {
      row.accesses[i] = reinterpret_cast<typename Row::Access const*>(from)[i];
    }
    std::memcpy(&values, &row, Row::kTotal);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      values[i] = i < count ? from[i] : Element(0);
    }
  }
}

// Store Size neighbours. Neighbours from `count` on are outside.
template <class Element, int Size>
CUTLASS_DEVICE void store_row(Element* to, cutlass::Array<Element, Size> const& values, int count) {
  using Row = RowAccess<Element, Size>;
  if (count >= Size && Row::allows(to)) {
    Row row;
    std::memcpy(&row, &values, Row::kTotal);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Row::kCount; ++i) {
      reinterpret_cast<typename Row::Access*>(to)[i] = row.accesses[i];
    }
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      if (i < count) {
        to[i] = values[i];
      }
    }
  }
}

}  // namespace detail

// An n-ary function of the elements. Functor has `Parameters`, a cute::tuple of its parameter types, `Result`, and a
// static `apply`. Operands are converted to the parameter types and the result to ElementOutput.
template <class Functor, class ElementOutput = typename Functor::Result>
struct Apply : VisitorImpl2x<> {
  using VisitorImpl2x<>::VisitorImpl2x;

  struct Callbacks : EmptyCallbacks {
    template <class ElementAccumulator, class... ElementInputs, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementOutput, FragmentSize> visit(
        int, int, int, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
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
      return visit_from(step, row, column, fragment, accumulator);
    }

   private:
    // Visit the operation after the given values, and all later operations.
    template <class Accumulator, class... Values>
    CUTLASS_DEVICE auto visit_from(int step, int row, int column, int fragment, Accumulator const& accumulator,
                                   Values const&... values) {
      constexpr int kOp = sizeof...(Values);
      using Edges = cute::tuple_element_t<kOp, EdgeTuple>;
      auto const value = visit_one<kOp>(Edges{}, step, row, column, fragment, accumulator, values...);
      if constexpr (kOp + 1 == sizeof...(Ops)) {
        return value;
      } else {
        return visit_from(step, row, column, fragment, accumulator, values..., value);
      }
    }

    template <int Op, int... Edges, class Accumulator, class... Values>
    CUTLASS_DEVICE auto visit_one(cute::seq<Edges...>, int step, int row, int column, int fragment,
                                  Accumulator const& accumulator, Values const&... values) {
      static_assert(((Edges < Op) && ...), "an operand comes before its user");
      return cute::get<Op>(this->callbacks_tuple)
          .visit(step, row, column, fragment, accumulator, detail::pick<Edges>(values...)...);
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    auto callbacks = VisitorImpl2x<Ops...>::get_callbacks(tile, thread_idx, problem_shape);
    return Callbacks<decltype(callbacks)>(cute::move(callbacks));
  }
};

// A leaf: the coordinate of every element along the kernel's rows (Mode 0), columns (1) or batch (2).
template <class ThreadMap, int Mode>
struct Index : PlainNode<NoArguments> {
  static_assert(Mode >= 0 && Mode <= 2, "Mode is M, N or L");

  using PlainNode<NoArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<int32_t, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      int const first = Mode == 0 ? tile.m(row, step) : Mode == 1 ? tile.n(column) : tile.l;
      return evt::generate_array<int32_t, FragmentSize>([&](int i) { return Mode == 1 ? first + i : first; });
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape));
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_HPP
