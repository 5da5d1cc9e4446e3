#ifndef EVT_EPILOGUE_VISITOR_3X_HPP
#define EVT_EPILOGUE_VISITOR_3X_HPP

// An operation as a node of CUTLASS 3.x's visitor trees. Lanes belongs to the architecture: lanes_sm90.hpp or
// lanes_sm100.hpp.

#include <cstddef>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"

#include "evt/epilogue/traits.hpp"
#include "evt/epilogue/tree_3x.hpp"

namespace evt {
namespace epilogue {

/// An operation on the elements of Lanes. Stores and reductions return their input.
template <class Lanes, class Operation>
struct Visitor3x : fusion::Node<typename Operation::Arguments,
                                typename SharedOf<typename Operation::template On<Lanes>>::type> {
  using State = typename Operation::template On<Lanes>;
  using Fetched = FetchedOf<State>;
  using Base = fusion::Node<typename Operation::Arguments, typename SharedOf<State>::type>;
  using Params = typename Base::Params;
  using SharedStorage = typename Base::SharedStorage;
  using Base::Base;

  /// The number of parts per batch that a reduction writes.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return Lanes::template parts_of<Operation::kKept>(problem_shape);
  }

  struct Callbacks : fusion::EmptyConsumerStoreCallbacks {
    State state;
    typename Fetched::type fetched[Fetched::kOfTile ? Lanes::kSteps : 1];

    template <class... Shared>
    CUTLASS_DEVICE
    Callbacks(Params const& params, Lanes const& lanes, Shared&... shared) : state(params, lanes, shared...) {}

    /// The threads have read the shared memory of the previous tile.
    CUTLASS_DEVICE bool begin_sync_needed() const { return !std::is_empty_v<SharedStorage>; }

    CUTLASS_DEVICE void begin() {
      if constexpr (Begins<State>::value) {
        state.begin();
      }
      if constexpr (Fetched::kOfTile) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSteps; ++i) {
          state.fetch(fetched[i], Lanes::step(i));
        }
      }
    }

    CUTLASS_DEVICE void begin_loop(int step_m, int step_n) {
      if constexpr (Fetched::kExists && !Fetched::kOfTile) {
        state.fetch(fetched[0], {step_m, step_n});
      }
    }

    template <class ElementAccumulator, int FragmentSize, class... Inputs>
    CUTLASS_DEVICE auto visit(cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
                              Inputs const&... inputs) {
      static_assert(FragmentSize == Lanes::kSize, "a fragment must be a thread's part of a sub-tile");
      typename Lanes::At const at{step_m, step_n};
      if constexpr (Fetched::kExists) {
        return state.visit(at, fetched[Fetched::kOfTile ? Lanes::number(at) : 0]);
      } else if constexpr (std::is_void_v<decltype(state.visit(at, inputs...))>) {
        state.visit(at, inputs...);
        return first(inputs...);
      } else {
        return state.visit(at, inputs...);
      }
    }

    template <class STensor, class SyncFn, class VTensor>
    CUTLASS_DEVICE void reduce(STensor&&, SyncFn const&, int step_m, int step_n, bool, VTensor) {
      if constexpr (!std::is_empty_v<SharedStorage>) {
        state.reduce({step_m, step_n});
      }
    }

    CUTLASS_DEVICE void end() {
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

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::ConsumerStoreArgs<Args...> const& args) {
    Lanes const lanes(args);
    if constexpr (std::is_constructible_v<State, Params const&, Lanes const&>) {
      return Callbacks(*this->params_ptr, lanes);
    } else {
      return Callbacks(*this->params_ptr, lanes, *this->shared);
    }
  }
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_VISITOR_3X_HPP
