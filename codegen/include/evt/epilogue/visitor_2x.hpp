#ifndef EVT_EPILOGUE_VISITOR_2X_HPP
#define EVT_EPILOGUE_VISITOR_2X_HPP

// An operation as a node of CUTLASS 2.x's visitor trees.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/gemm_coord.h"

#include "evt/epilogue/traits.hpp"
#include "evt/epilogue/tree_2x.hpp"

namespace evt {
namespace epilogue {

/// An operation on the elements of Lanes. Stores and reductions return their input.
template <class Lanes, class Operation>
struct Visitor2x : threadblock::Node<typename Operation::Arguments,
                                     typename SharedOf<typename Operation::template On<Lanes>>::type> {
  using State = typename Operation::template On<Lanes>;
  using Fetched = FetchedOf<State>;
  using Base = threadblock::Node<typename Operation::Arguments, typename SharedOf<State>::type>;
  using Params = typename Base::Params;
  using Base::Base;

  /// The number of parts per batch that a reduction writes.
  CUTLASS_HOST_DEVICE static int64_t parts(int64_t m, int64_t n) {
    return Lanes::template parts_of_extents<Operation::kKept>(m, n);
  }

  struct Callbacks : threadblock::EmptyCallbacks {
    State state;
    typename Fetched::type fetched[Fetched::kOfTile ? Lanes::kSteps : 1];

    template <class... Shared>
    CUTLASS_DEVICE
    Callbacks(Params const& params, Lanes const& lanes, Shared&... shared) : state(params, lanes, shared...) {}

    CUTLASS_DEVICE void begin_epilogue() {
      if constexpr (Begins<State>::value) {
        state.begin();
      }
      if constexpr (Fetched::kOfTile) {
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < Lanes::kSteps; ++step) {
          state.fetch(fetched[step], step);
        }
      }
    }

    CUTLASS_DEVICE void begin_step(int step) {
      if constexpr (Fetched::kExists && !Fetched::kOfTile) {
        state.fetch(fetched[0], step);
      }
    }

    template <class ElementAccumulator, int FragmentSize, class... Inputs>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int,
                              cutlass::Array<ElementAccumulator, FragmentSize> const&, Inputs const&... inputs) {
      static_assert(FragmentSize == Lanes::kSize, "the thread map differs from the kernel's");
      typename Lanes::At const at{step, row, column};
      if constexpr (Fetched::kExists) {
        return state.visit(at, fetched[Fetched::kOfTile ? step : 0]);
      } else if constexpr (std::is_void_v<decltype(state.visit(at, inputs...))>) {
        state.visit(at, inputs...);
        return first(inputs...);
      } else {
        return state.visit(at, inputs...);
      }
    }

    CUTLASS_DEVICE void end_epilogue() {
      if constexpr (Ends<State>::value) {
        state.end();
      }
    }

   private:
    template <class Input>
    CUTLASS_DEVICE static Input first(Input const& input) {
      return input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape const& problem_shape) {
    Lanes const lanes(tile, thread_idx, problem_shape);
    if constexpr (std::is_constructible_v<State, Params const&, Lanes const&>) {
      return Callbacks(*this->params_ptr, lanes);
    } else {
      return Callbacks(*this->params_ptr, lanes, *this->shared);
    }
  }
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_VISITOR_2X_HPP
