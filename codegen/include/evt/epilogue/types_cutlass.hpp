#ifndef EVT_EPILOGUE_TYPES_CUTLASS_HPP
#define EVT_EPILOGUE_TYPES_CUTLASS_HPP

// The fragments of CUTLASS's visitors: arrays of any element type.

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cute/tensor.hpp"

#include "evt/convert.hpp"

namespace evt {
namespace epilogue {

struct TypesCutlass {
  template <class T, int Size>
  using Array = cutlass::Array<T, Size>;

  /// The compute type of reductions of T.
  template <class T>
  using Reduced = evt::detail::Reduced<T>;

  template <class To, class From, int Size>
  CUTLASS_DEVICE static cutlass::Array<To, Size> convert(cutlass::Array<From, Size> const& from) {
    return evt::convert_array<To>(from);
  }

  template <class To, class From>
  CUTLASS_DEVICE static To convert_one(From const& from) {
    return evt::convert<To>(from);
  }

  template <class To, int Size, class Function>
  CUTLASS_DEVICE static cutlass::Array<To, Size> generate(Function const& function) {
    return evt::generate_array<To, Size>(function);
  }

  /// The type of an element in registers.
  template <class Element>
  using Register = Element;

  template <class Element>
  CUTLASS_DEVICE static Element in_register(Element const& x) {
    return x;
  }

  /// Round a value to a stored type.
  template <class Element, class From>
  CUTLASS_DEVICE static Element rounded(From const& from) {
    return evt::convert<Element>(from);
  }

  /// A fragment in memory.
  template <class To, class From, int Size>
  CUTLASS_DEVICE static cutlass::Array<To, Size> stored(cutlass::Array<From, Size> const& from) {
    return evt::convert_array<To>(from);
  }

  /// Make a fragment of loaded elements: `function(i)` returns element i.
  template <class Element, int Size, class Function>
  CUTLASS_DEVICE static cutlass::Array<Element, Size> loaded(Function const& function) {
    return evt::generate_array<Element, Size>(function);
  }

  template <int Mode, class Stride>
  CUTLASS_HOST_DEVICE static int64_t stride(Stride const& stride) {
    return int64_t(cute::get<Mode>(stride));
  }

  /// A row of a tensor: its first element, or null if an index is out of range.
  template <class Element>
  using RowOf = Element*;

  template <class Element, class Stride>
  CUTLASS_DEVICE static Element* tensor_row(Element* tensor, Stride const& strides, int l, int64_t row) {
    return tensor + int64_t(l) * stride<2>(strides) + row * stride<0>(strides);
  }

  template <class Element, class Stride>
  CUTLASS_DEVICE static Element* make_row(Element* tensor, Stride const& strides, int l, int64_t row) {
    return row < 0 ? nullptr : tensor_row(tensor, strides, l, row);
  }

  template <class Element>
  CUTLASS_DEVICE static bool is_there(Element* row) {
    return row != nullptr;
  }

  template <class Element, class Stride>
  CUTLASS_DEVICE static Element& element(Element*, Stride const& strides, Element* row, int64_t column) {
    return row[column * stride<1>(strides)];
  }

  template <int Mode, int Value, class Stride>
  static constexpr bool is_stride = cute::is_same_v<cute::tuple_element_t<Mode, Stride>, cute::C<Value>>;
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_TYPES_CUTLASS_HPP
