#ifndef EVT_EPILOGUE_MATRIX_HPP
#define EVT_EPILOGUE_MATRIX_HPP

// Matrices with any strides. A thread moves their elements one by one.

#include <cstdint>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

template <class Pointer>
struct MatrixArguments {
  Pointer ptr;
  int64_t stride_m;
  int64_t stride_n;
};

template <class Lanes, class Pointer>
struct MatrixState : State<Lanes, MatrixArguments<Pointer>> {
  using State<Lanes, MatrixArguments<Pointer>>::State;

  CUTLASS_DEVICE auto& at(typename Lanes::At const& at, int i) const {
    return this->arguments
        .ptr[this->lanes.row(at, i) * this->arguments.stride_m + this->lanes.column(at, i) * this->arguments.stride_n];
  }
};

template <class Element>
struct MatrixLoad {
  using Arguments = MatrixArguments<Element const*>;

  template <class Lanes>
  struct On : MatrixState<Lanes, Element const*> {
    using MatrixState<Lanes, Element const*>::MatrixState;

    struct Fetched {
      Element values[Lanes::kFragments][Lanes::kSize];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      CUTLASS_PRAGMA_UNROLL
      for (int f = 0; f < Lanes::kFragments; ++f) {
        auto const at = Lanes::at(step, f);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          if (this->lanes.has(at, i)) fetched.values[f][i] = this->at(at, i);
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      return Lanes::template loaded<Element, Lanes::kSize>(
          [&](int i) { return fetched.values[Lanes::fragment(at)][i]; });
    }
  };
};

template <class Element>
struct MatrixStore {
  using Arguments = MatrixArguments<Element*>;

  template <class Lanes>
  struct On : MatrixState<Lanes, Element*> {
    using MatrixState<Lanes, Element*>::MatrixState;

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Lanes::kSize; ++i) {
        if (this->lanes.has(at, i)) this->at(at, i) = Lanes::template convert_one<Element>(Input(input[i]));
      }
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_MATRIX_HPP
