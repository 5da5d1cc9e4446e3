#ifndef EVT_EPILOGUE_MATRIX_HPP
#define EVT_EPILOGUE_MATRIX_HPP

// Matrices with any strides. A thread moves their elements one by one.

#include <cstdint>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// Load an element if it exists, without a branch: the compiler would wait for each element before the next.
template <class Element>
CUTLASS_DEVICE void load_if(bool exists, Element const* from, Element& to) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Element) == 2) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\nmov.b16 %0, 0;\n@p ld.global.b16 %0, [%2];\n}"
                 : "=h"(reinterpret_cast<uint16_t&>(to))
                 : "r"(int(exists)), "l"(from));
    return;
  } else if constexpr (sizeof(Element) == 4) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\nmov.b32 %0, 0;\n@p ld.global.b32 %0, [%2];\n}"
                 : "=r"(reinterpret_cast<uint32_t&>(to))
                 : "r"(int(exists)), "l"(from));
    return;
  }
#endif
  if (exists) to = *from;
}

/// Store an element if it exists, without a branch: the compiler would move the address into it, which elements share.
template <class Element>
CUTLASS_DEVICE void store_if(bool exists, Element* to, Element const& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Element) == 2) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b16 [%1], %2;\n}"
                 ::"r"(int(exists)), "l"(to), "h"(reinterpret_cast<uint16_t const&>(value))
                 : "memory");
    return;
  } else if constexpr (sizeof(Element) == 4) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}"
                 ::"r"(int(exists)), "l"(to), "r"(reinterpret_cast<uint32_t const&>(value))
                 : "memory");
    return;
  }
#endif
  if (exists) *to = value;
}

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
          if constexpr (Lanes::kSize == 1) {
            load_if(this->lanes.has(at, i), from, fetched.values[f][i]);
          } else {
            if (this->lanes.has(at, i)) fetched.values[f][i] = *from;
          }
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
        if constexpr (Lanes::kSize == 1) {
          store_if(this->lanes.has(at, i), &this->at(at, i), converted[i]);
        } else {
          if (this->lanes.has(at, i)) this->at(at, i) = converted[i];
        }
      }
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_MATRIX_HPP
