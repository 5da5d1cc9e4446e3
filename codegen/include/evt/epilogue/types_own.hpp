#ifndef EVT_EPILOGUE_TYPES_OWN_HPP
#define EVT_EPILOGUE_TYPES_OWN_HPP

// The fragments of own kernels: arrays of values in registers. Elements in memory have the types of element.hpp, which
// avoids compiling CUTLASS's type headers.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"

#include "evt/element.hpp"

namespace evt {
namespace epilogue {

/// The strides of rows and columns, in elements.
struct Strides {
  int64_t m, n;
};

struct TypesOwn {
  template <class T, int Size>
  struct Array {
    T values[Size];

    CUTLASS_DEVICE T& operator[](int i) { return values[i]; }
    CUTLASS_DEVICE T const& operator[](int i) const { return values[i]; }
  };

  /// The compute type of reductions of T.
  template <class T>
  using Reduced = std::conditional_t<std::is_same_v<T, bool>, int32_t, T>;

  template <class To, int Size, class Function>
  CUTLASS_DEVICE static Array<To, Size> generate(Function const& function) {
    Array<To, Size> to;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      to[i] = function(i);
    }
    return to;
  }

  template <class To, class From, int Size>
  CUTLASS_DEVICE static Array<To, Size> convert(Array<From, Size> const& from) {
    if constexpr (std::is_same_v<To, bool>) {
      return generate<To, Size>([&](int i) { return from[i] != From(0); });
    } else {
      return generate<To, Size>([&](int i) { return element::in_register<To>(from[i]); });
    }
  }

  /// The type of an element in registers.
  template <class Element>
  using Register = element::Register<Element>;

  template <class Element>
  CUTLASS_DEVICE static Register<Element> in_register(Element const& x) {
    return element::load(x);
  }

  /// Round a value to a stored type.
  template <class Element, class From>
  CUTLASS_DEVICE static Register<Element> rounded(From const& from) {
    return element::round_to<Element>(from);
  }

  /// A value in memory.
  template <class Element, class From>
  CUTLASS_DEVICE static Element convert_one(From const& from) {
    Element to;
    element::store(to, from);
    return to;
  }

  /// A fragment in memory.
  template <class Element, class From, int Size>
  CUTLASS_DEVICE static Array<Element, Size> stored(Array<From, Size> const& from) {
    return generate<Element, Size>([&](int i) { return convert_one<Element>(from[i]); });
  }

  /// Make a fragment of loaded elements: `function(i)` returns element i.
  template <class Element, int Size, class Function>
  CUTLASS_DEVICE static auto loaded(Function const& function) {
    return generate<element::Register<Element>, Size>([&](int i) { return element::load(function(i)); });
  }

  /// A row of a tensor: its number, negative if an index is out of range.
  template <class Element>
  using RowOf = int64_t;

  template <class Element>
  CUTLASS_DEVICE static int64_t tensor_row(Element*, Strides const&, int, int64_t row) {
    return row;
  }

  template <class Element>
  CUTLASS_DEVICE static int64_t make_row(Element*, Strides const&, int, int64_t row) {
    return row;
  }

  CUTLASS_DEVICE static bool is_there(int64_t row) { return row >= 0; }

  template <class Element>
  CUTLASS_DEVICE static Element& element(Element* tensor, Strides const& strides, int64_t row, int64_t column) {
    return tensor[row * strides.m + column * strides.n];
  }

  template <int Mode, int Value, class Stride>
  static constexpr bool is_stride = false;
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_TYPES_OWN_HPP
