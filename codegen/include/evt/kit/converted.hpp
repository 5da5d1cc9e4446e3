#ifndef EVT_KIT_CONVERTED_HPP
#define EVT_KIT_CONVERTED_HPP

// Filters of 8 bits in shared memory as fragments of WGMMA's operand A in registers, converted exactly to 16-bit floats.

#include <cstdint>

#include "evt/element.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// Convert two elements, in the lower bytes of a word, to two elements of type To.
template <class From, class To>
struct Converter;

/// `0x64` above a byte is 1024 + byte in f16, so the codes of signed bytes are 1152 above their values.
template <>
struct Converter<int8_t, element::f16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t const biased = __byte_perm(two ^ 0x8080, 0x64646464, 0x4140);
    uint32_t result;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(result) : "r"(biased), "r"(0x64806480));
    return result;
  }
};
template <>
struct Converter<uint8_t, element::f16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t result;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(result) : "r"(__byte_perm(two, 0x64646464, 0x4140)), "r"(0x64006400));
    return result;
  }
};

/// bf16 has 7 bits: `0x43` above 7 bits is 128 + bits. The sign bit is worth -128: its word is 128 or 256.
template <>
struct Converter<int8_t, element::bf16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t const bytes = __byte_perm(two, 0, 0x4140);
    uint32_t const low = (bytes & 0x007f007f) | 0x43004300, high = (bytes & 0x00800080) | 0x43004300;
    uint32_t result;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(low), "r"(high));
    return result;
  }
};
template <>
struct Converter<uint8_t, element::bf16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t const signed_ = Converter<int8_t, element::bf16>::convert(two ^ 0x8080);
    uint32_t result;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(signed_), "r"(0x43004300));
    return result;
  }
};

template <>
struct Converter<element::e4m3, element::f16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t result;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(uint16_t(two)));
    return result;
  }
};
template <>
struct Converter<element::e5m2, element::f16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) { return __byte_perm(two, 0, 0x1404); }
};
template <class Eight>
struct Converter<Eight, element::bf16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t const halves = Converter<Eight, element::f16>::convert(two);
    uint32_t result;
    element::store_two(element::bf16{}, result, element::load_first<element::f16>(halves),
                       element::load_second<element::f16>(halves));
    return result;
  }
};

/// Filters that are multiplied as they are stored.
template <class Mma>
struct AsStored {
  static constexpr bool kConverts = false;
  static constexpr int kBytes = Mma::kElementBytes;
  static constexpr CUtensorMapDataType kType = Mma::kType;
  template <int RowBytes>
  struct Rows {
    struct Fragments {};
  };
};

/// A block of 64 filters in rows of RowBytes, of `From`, which TMA has swizzled.
template <class From, class To, int RowBytes>
struct ConvertedRows {
  static constexpr int kInstructions = RowBytes / 16;  // of 16 elements of k

  /// A thread's parts of the instructions.
  struct Fragments {
    uint32_t words[kInstructions][4];
  };

  /// Load the fragments of a block that begins at an address: rows g and g + 8, elements 2q, 2q + 1 and 8 more.
  CUTLASS_DEVICE static void load(Fragments& to, uint32_t block) {
    int const thread = threadIdx.x % kWarpGroup, row = thread / 32 * 16 + thread % 32 / 4;
    uint32_t const place = row * RowBytes, swizzle = place >> 7 & (RowBytes / 16 - 1);
    uint32_t const first = block + place + thread % 4 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < kInstructions; ++k) {
      uint32_t const chunk = first + ((k ^ swizzle) << 4);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        to.words[k][i] = Converter<From, To>::convert(load_shared_half(chunk + i % 2 * 8 * RowBytes + i / 2 * 8));
      }
    }
  }
};

/// Filters of type From that are multiplied as To.
template <class From, class To>
struct Converted {
  static constexpr bool kConverts = true;
  static constexpr int kBytes = sizeof(From);
  static constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  template <int RowBytes>
  using Rows = ConvertedRows<From, To, RowBytes>;
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_CONVERTED_HPP
