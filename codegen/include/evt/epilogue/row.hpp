#ifndef EVT_EPILOGUE_ROW_HPP
#define EVT_EPILOGUE_ROW_HPP

// Neighbours of a row in memory. Accesses are vectorized if all elements are inside of the tensor and the address is
// aligned, and scalar otherwise.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cutlass/cutlass.h"

namespace evt {
namespace epilogue {

/// The vector access of Size neighbours: kCount accesses of kBytes.
template <class Element, int Size>
struct Neighbours {
  static constexpr int kTotal = Size * int(sizeof(Element));
  static constexpr int kBytes = kTotal % 16 == 0 ? 16 : kTotal & -kTotal;
  static constexpr int kCount = kTotal / kBytes;
  using Access = std::conditional_t<
      kBytes == 16, uint4,
      std::conditional_t<kBytes == 8, uint2,
                         std::conditional_t<kBytes == 4, uint32_t,
                                            std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;

  CUTLASS_DEVICE static bool allows(void const* address) {
    return Size == 1 || reinterpret_cast<uintptr_t>(address) % kBytes == 0;
  }

  CUTLASS_DEVICE static void load(Element (&to)[Size], Element const* from) {
    Access accesses[kCount];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      accesses[i] = reinterpret_cast<Access const*>(from)[i];
    }
    std::memcpy(to, accesses, kTotal);
  }

  CUTLASS_DEVICE static void store(Element* to, Element const (&from)[Size]) {
    Access accesses[kCount];
    std::memcpy(accesses, from, kTotal);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      reinterpret_cast<Access*>(to)[i] = accesses[i];
    }
  }
};

/// Load the first `valid` of Size neighbours; the others are zeros.
template <class Element, int Size>
CUTLASS_DEVICE void load_row(Element (&to)[Size], Element const* from, int valid) {
  if (valid >= Size && Neighbours<Element, Size>::allows(from)) {
    Neighbours<Element, Size>::load(to, from);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      to[i] = i < valid ? from[i] : Element{};
    }
  }
}

/// Store the first `valid` of Size neighbours.
template <class Element, int Size>
CUTLASS_DEVICE void store_row(Element* to, Element const (&from)[Size], int valid) {
  if (valid >= Size && Neighbours<Element, Size>::allows(to)) {
    Neighbours<Element, Size>::store(to, from);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      if (i < valid) {
        to[i] = from[i];
      }
    }
  }
}

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_ROW_HPP
