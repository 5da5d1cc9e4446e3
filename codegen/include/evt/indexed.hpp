#ifndef EVT_INDEXED_HPP
#define EVT_INDEXED_HPP

// Tensors with indexed rows or columns: gathered by loads, scattered by stores. An index below zero or beyond the
// tensor's extent loads zero and skips the store.

#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"

namespace evt {

// Rows or columns in order.
struct InOrder {
  CUTLASS_DEVICE int64_t operator()(int, int i) const { return i; }
};

// Rows or columns selected by an index.
template <class Integer>
struct At {
  Integer const* index = nullptr;
  int64_t stride_l = 0;
  int64_t extent = 0;

  // Negative if the index is out of range.
  CUTLASS_DEVICE int64_t operator()(int l, int i) const {
    int64_t const place = int64_t(index[l * stride_l + i]);
    return place < extent ? place : -1;
  }
};

namespace detail {

// The vector access of Size neighbours: kCount accesses of kBytes, if the address is aligned.
template <class Element, int Size>
struct Neighbours {
  static constexpr int kTotal = Size * int(sizeof(Element));
  static constexpr int kBytes = kTotal % 16 == 0 ? 16 : kTotal & -kTotal;
  static constexpr int kCount = kTotal / kBytes;
  using Access = cute::uint_bit_t<8 * kBytes>;

  CUTLASS_DEVICE static bool allows(void const* address) { return reinterpret_cast<uintptr_t>(address) % kBytes == 0; }
};

}  // namespace detail

// Element is const for loads. Stride holds the strides of rows, columns and batches.
template <class Element, class Rows, class Columns, class Stride>
struct Indexed {
  using Value = cute::remove_const_t<Element>;

  Element* ptr = nullptr;
  Stride stride = {};
  Rows rows = {};
  Columns columns = {};

  // Whether columns are contiguous in memory, or have stride 0.
  using ColumnStride = cute::tuple_element_t<1, Stride>;
  static constexpr bool kNeighbours = cute::is_same_v<Columns, InOrder> && cute::is_same_v<ColumnStride, cute::_1>;
  static constexpr bool kAlike = cute::is_same_v<Columns, InOrder> && cute::is_same_v<ColumnStride, cute::_0>;

  // The tensor's row for a row of the problem; null if the index is out of range.
  CUTLASS_DEVICE Element* row(int l, int m, int extent_m) const {
    int64_t const place = m < extent_m ? rows(l, m) : -1;
    return place < 0 ? nullptr
                     : ptr + int64_t(l) * int64_t(cute::get<2>(stride)) + place * int64_t(cute::get<0>(stride));
  }

  // Load elements of a row, from column n of the problem on. Elements outside of the tensor are zeros.
  template <int Size>
  CUTLASS_DEVICE void load(Value (&to)[Size], Element* row, int l, int n, int extent_n) const {
    using Neighbours = detail::Neighbours<Value, Size>;
    if constexpr (kAlike) {
      Value const value = row != nullptr ? *row : Value(0);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Size; ++i) {
        to[i] = value;
      }
      return;
    }
    if constexpr (kNeighbours) {
      if (row != nullptr && n + Size <= extent_n && Neighbours::allows(row + n)) {
        typename Neighbours::Access accesses[Neighbours::kCount];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Neighbours::kCount; ++i) {
          accesses[i] = reinterpret_cast<typename Neighbours::Access const*>(row + n)[i];
        }
        std::memcpy(to, accesses, Neighbours::kTotal);
        return;
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      int64_t const place = column(row, l, n + i, extent_n);
      to[i] = place < 0 ? Value(0) : row[place * int64_t(cute::get<1>(stride))];
    }
  }

  // Store elements of a row, from column n of the problem on, if they are inside of the tensor.
  template <int Size>
  CUTLASS_DEVICE void store(Value const (&from)[Size], Element* row, int l, int n, int extent_n) const {
    using Neighbours = detail::Neighbours<Value, Size>;
    if constexpr (kNeighbours) {
      if (row != nullptr && n + Size <= extent_n && Neighbours::allows(row + n)) {
        typename Neighbours::Access accesses[Neighbours::kCount];
        std::memcpy(accesses, from, Neighbours::kTotal);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Neighbours::kCount; ++i) {
          reinterpret_cast<typename Neighbours::Access*>(row + n)[i] = accesses[i];
        }
        return;
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      int64_t const place = column(row, l, n + i, extent_n);
      if (place >= 0) {
        row[place * int64_t(cute::get<1>(stride))] = from[i];
      }
    }
  }

 private:
  CUTLASS_DEVICE int64_t column(Element const* row, int l, int n, int extent_n) const {
    return row != nullptr && n < extent_n ? columns(l, n) : -1;
  }
};

}  // namespace evt

#endif  // EVT_INDEXED_HPP
