#ifndef EVT_EPILOGUE_MATRIX_HPP
#define EVT_EPILOGUE_MATRIX_HPP

// Matrices with any strides. A thread moves their elements one by one.

#include <cstdint>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// Stride holds the strides of rows, columns and batches.
template <class Pointer, class Stride>
struct MatrixArguments {
  Pointer ptr = nullptr;
  Stride stride = {};
};

template <class Lanes, class Pointer, class Stride>
struct MatrixState : State<Lanes, MatrixArguments<Pointer, Stride>> {
  using State<Lanes, MatrixArguments<Pointer, Stride>>::State;

  CUTLASS_DEVICE auto& at(typename Lanes::At const& at, int i) const {
    auto const& [ptr, stride] = this->arguments;
    return Lanes::element(ptr, stride, Lanes::tensor_row(ptr, stride, this->lanes.batch(), this->lanes.row(at, i)),
                          this->lanes.column(at, i));
  }
};

template <class Element, class Stride>
struct MatrixLoad {
  using Arguments = MatrixArguments<Element const*, Stride>;

  template <class Lanes>
  struct On : MatrixState<Lanes, Element const*, Stride> {
    using MatrixState<Lanes, Element const*, Stride>::MatrixState;

    struct Fetched {
      Element values[Lanes::kFragments][Lanes::kSize];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      CUTLASS_PRAGMA_UNROLL
      for (int f = 0; f < Lanes::kFragments; ++f) {
        auto const at = Lanes::at(step, f);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          Element const* const from = &this->at(at, i);  // outside of the branch: elements share parts of their addresses
          if (this->lanes.has(at, i)) fetched.values[f][i] = *from;
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      return Lanes::template loaded<Element, Lanes::kSize>(
          [&](int i) { return fetched.values[Lanes::fragment(at)][i]; });
    }
  };
};

template <class Element, class Stride>
struct MatrixStore {
  using Arguments = MatrixArguments<Element*, Stride>;

  template <class Lanes>
  struct On : MatrixState<Lanes, Element*, Stride> {
    using MatrixState<Lanes, Element*, Stride>::MatrixState;

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      auto const converted = Lanes::template stored<Element>(input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Lanes::kSize; ++i) {
        if (this->lanes.has(at, i)) this->at(at, i) = converted[i];
      }
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_MATRIX_HPP
