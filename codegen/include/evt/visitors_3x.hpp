#ifndef EVT_VISITORS_3X_HPP
#define EVT_VISITORS_3X_HPP

// Epilogue visitors for the CUTLASS 3.x kernels of sm90: what every node of ours builds on, and the nodes without
// tensors (Apply, Graph, Index). They are nodes for Sm90EVT as well as for Graph.
//
// The epilogue visits the CTA's tile in sub-tiles (step_m, step_n), step_m first; a thread sees one fragment of each,
// as WGMMA leaves it: rows 0 and 8, and two neighbouring columns out of every eight. The four lanes of a quad hold the
// four pairs of a row's eight columns, the eight quads of a warp eight rows, and all warps lie along M.

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

namespace detail {

// Relative to the thread's first element of a sub-tile, where its element i is.
CUTLASS_HOST_DEVICE constexpr int row_of(int i) { return i / 2 % 2 * 8; }
CUTLASS_HOST_DEVICE constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }

// Whether CUTLASS deals the elements of a sub-tile out as row_of and column_of say.
template <class Layout>
constexpr bool is_wgmma_fragment(Layout const& layout, int size) {
  for (int i = 0; i < size; ++i) {
    auto const coordinate = layout(i);
    if (int(cute::get<0>(coordinate)) != row_of(i) || int(cute::get<1>(coordinate)) != column_of(i)) {
      return false;
    }
  }
  return true;
}

}  // namespace detail

// Where a thread's elements are in the problem. The extents are static, so that offsets fold.
template <class TileShape, class EpilogueTile>
struct Tile {
  static constexpr int kTileM = cute::size<0>(TileShape{});
  static constexpr int kTileN = cute::size<1>(TileShape{});
  static constexpr int kStepRows = cute::size<0>(EpilogueTile{});
  static constexpr int kStepColumns = cute::size<1>(EpilogueTile{});
  static constexpr int kStepsM = kTileM / kStepRows;
  static constexpr int kStepsN = kTileN / kStepColumns;
  static constexpr int kWarps = kStepRows / 16;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kFragment = kStepRows * kStepColumns / kThreads;

  static_assert(kStepRows % 64 == 0 && kStepColumns % 8 == 0, "a sub-tile is made of WGMMA tiles");
  static_assert(kTileM % kStepRows == 0 && kTileN % kStepColumns == 0, "sub-tiles divide the tile");

  int m, n, l;             // of the thread's first element
  int extent_m, extent_n;  // of the problem
  int tile_m, tile_n;
  int thread;

  template <class... Args>
  CUTLASS_DEVICE explicit Tile(ConsumerStoreArgs<Args...> const& args)
      : m(int(cute::get<0>(args.problem_shape_mnkl)) - int(cute::get<0>(args.residue_tCcD))),
        n(int(cute::get<1>(args.problem_shape_mnkl)) - int(cute::get<1>(args.residue_tCcD))),
        l(int(cute::get<3>(args.tile_coord_mnkl))),
        extent_m(int(cute::get<0>(args.problem_shape_mnkl))),
        extent_n(int(cute::get<1>(args.problem_shape_mnkl))),
        tile_m(int(cute::get<0>(args.tile_coord_mnkl))),
        tile_n(int(cute::get<1>(args.tile_coord_mnkl))),
        thread(args.thread_idx) {
    using Layout = decltype(cute::take<0, 3>(args.tCcD.layout()));
    static_assert(cute::is_static<Layout>::value, "the places within a sub-tile are static");
    static_assert(decltype(cute::size(Layout{}))::value == kFragment, "the epilogue tile is not the kernel's");
    static_assert(detail::is_wgmma_fragment(Layout{}, kFragment), "the fragment is not laid out as WGMMA's");
    static_assert(decltype(cute::size(args.tiled_mma))::value == kThreads, "the warps do not lie along M");
  }

  // The first row and column of a sub-tile that the thread has.
  CUTLASS_DEVICE int row(int step_m) const { return m + step_m * kStepRows; }
  CUTLASS_DEVICE int column(int step_n) const { return n + step_n * kStepColumns; }

  // function(i) for the elements whose columns are in the problem. Most tiles have them all: no predicates then.
  template <class Function>
  CUTLASS_DEVICE void for_each_inside(int step_n, Function const& function) const {
    if (column(step_n) + detail::column_of(kFragment - 1) < extent_n) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kFragment; ++i) {
        function(i);
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kFragment; ++i) {
        if (column(step_n) + detail::column_of(i) < extent_n) {
          function(i);
        }
      }
    }
  }

  CUTLASS_DEVICE int lane() const { return thread % 32; }
  CUTLASS_DEVICE int quad_lane() const { return thread % 4; }
  CUTLASS_DEVICE int warp() const { return thread / 32; }

  // A cluster may be given tiles beyond the problem.
  CUTLASS_DEVICE bool is_inside() const { return tile_m * kTileM < extent_m && tile_n * kTileN < extent_n; }
};

template <class... Args>
Tile(ConsumerStoreArgs<Args...> const&)
    -> Tile<decltype(ConsumerStoreArgs<Args...>::tile_shape_mnk), decltype(ConsumerStoreArgs<Args...>::epi_tile)>;

// What nodes with arguments have in common: no workspace, no TMA. Params are the Arguments.
template <class Arguments_>
struct Node {
  using Arguments = Arguments_;
  using Params = Arguments;

  struct SharedStorage {};

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

  CUTLASS_HOST_DEVICE
  Node() {}

  CUTLASS_HOST_DEVICE
  Node(Params const& params, SharedStorage const&) : params_ptr(&params) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(ProducerLoadArgs<Args...> const&) {
    return EmptyProducerLoadCallbacks{};
  }
};

// An n-ary function of the elements. Functor has `Parameters`, a cute::tuple of its parameter types, `Result`, and a
// static `apply`. Operands are converted to the parameter types and the result to ElementOutput.
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

// Ops in topological order; EdgeTuple is a cute::tuple of one cute::seq per op: the indices of its operands. The last
// op is the result. Values keep the element types that their ops give them; nobody needs to read an op's value.
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
    // Visits the op behind those whose values are given, and all that follow.
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

// A visitor for a kernel without D, whose result nobody reads and may be of any type. Element chooses the copies and
// the shared memory of the sub-tiles, as ElementD would.
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

// A leaf: the coordinate of every element, of the kernel's rows (Mode 0), columns (1) or batch (2).
template <int Mode>
struct Index : Sm90VisitorImpl<> {
  static_assert(Mode >= 0 && Mode <= 2, "M, N or L");

  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<int32_t, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      return evt::generate_array<int32_t, FragmentSize>([&](int i) {
        return Mode == 0   ? tile.row(step_m) + detail::row_of(i)
               : Mode == 1 ? tile.column(step_n) + detail::column_of(i)
                           : tile.l;
      });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    return Callbacks<cute::remove_cv_t<decltype(tile)>>(tile);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_HPP
