#ifndef EVT_KIT_CONVERTED_HPP
#define EVT_KIT_CONVERTED_HPP

// Filters of 8 or 4 bits in shared memory as fragments of WGMMA's operand A in registers, converted exactly to 16-bit
// floats.

#include <cstdint>
#include <type_traits>

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
    return subtract_two(element::f16{}, __byte_perm(two ^ 0x8080, 0x64646464, 0x4140), 0x64806480);
  }
};
template <>
struct Converter<uint8_t, element::f16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    return subtract_two(element::f16{}, __byte_perm(two, 0x64646464, 0x4140), 0x64006400);
  }
};

/// bf16 has 7 bits: `0x43` above 7 bits is 128 + bits. The sign bit is worth -128: its word is 128 or 256.
template <>
struct Converter<int8_t, element::bf16> {
  CUTLASS_DEVICE static uint32_t convert(uint32_t two) {
    uint32_t const bytes = __byte_perm(two, 0, 0x4140);
    uint32_t const low = masked_or(bytes, 0x007f007f, 0x43004300), high = masked_or(bytes, 0x00800080, 0x43004300);
    return subtract_two(element::bf16{}, low, high);
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
  static constexpr bool kConverts = false, kPacked = false;
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

  /// The elements of a thread, of rows g and g + 8: 4q to 4q + 3 of each 16 of k. A warp multiplies these by the same
  /// elements of the other operand, in any order.
  struct Codes {
    uint32_t words[kInstructions / 2][4];
  };
  CUTLASS_DEVICE static void load_codes(Codes& to, uint32_t block) {
    int const thread = threadIdx.x % kWarpGroup, row = thread / 32 * 16 + thread % 16;
    uint32_t const place = row * RowBytes, swizzle = place >> 7 & (RowBytes / 16 - 1);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kInstructions / 2; ++i) {
      ldmatrix_rows_x4(to.words[i], block + place + (((2 * i + thread % 32 / 16) ^ swizzle) << 4));
    }
  }

  /// Convert a thread's part of instruction k: row g, row g + 8, and the second two elements of both.
  template <bool, bool>
  CUTLASS_DEVICE static void convert(uint32_t (&to)[4], Codes const& codes, uint32_t const (&)[2], int k) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = Converter<From, To>::convert(codes.words[k / 2][k % 2 * 2 + i % 2] >> i / 2 * 16);
  }

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
template <class From, class To_>
struct Converted {
  using To = To_;
  static constexpr bool kConverts = true, kPacked = false;
  static constexpr int kBytes = sizeof(From);
  static constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  template <int RowBytes>
  using Rows = ConvertedRows<From, To, RowBytes>;
};

// Filters of 4 bits, in the layout of `torch._convert_weight_to_int4pack` with 8 inner tiles: for each 8 filters and 128
// elements of k, 16 bytes of each lane of a warp. Lane 4g + q has elements 2q, 2q + 1, 2q + 8 and 2q + 9 of each 16 of
// filter g. A word has eight of them, the even ones in its lower half.

/// The filters of a block in a stage of 128 elements of k. TMA moves them as elements of 16 bits.
struct PackedRows {
  static constexpr int kDepth = 128, kOfTile = 8;     // elements of k, and filters, that are neighbours in memory
  static constexpr int kLength = 256, kTileBytes = 512;
  static constexpr int kRows = kFilters / kOfTile;    // tiles of a block of 64 filters
  static constexpr int kBytes = kRows * kTileBytes;
  static constexpr int kRowBytes = kTileBytes;
  static constexpr uint32_t kLayout = 0, kNextK = 0;  // WGMMA does not read them
};

/// Two whole numbers up to 15 in the lower bits of 16-bit floats whose last bit is 1: above 128 or 1024.
template <class To>
inline constexpr uint32_t kAbove = std::is_same_v<To, element::f16> ? 0x64006400 : 0x43004300;

/// The place of the first four bits behind a 16-bit float's point, and the number that makes such bits, above 128 or 1024,
/// minus the sum of 16 and their value.
template <class To>
inline constexpr int kBehindPoint = std::is_same_v<To, element::f16> ? 6 : 3;
template <class To>
inline constexpr uint32_t kMinusPart = std::is_same_v<To, element::f16> ? 0xa400a400 : 0xbe00be00;

/// Filters of 4 bits that are multiplied as To. Bias: the code of zero.
template <class To_, int Bias>
struct Packed {
  using To = To_;
  static constexpr bool kConverts = true, kPacked = true;
  static constexpr int kBytes = 2;
  static constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

  template <int RowBytes>
  struct Rows {
    struct Fragments {
      uint32_t words[8][4];  // of eight instructions
    };

    /// The codes of filters g and g + 8 of a thread in a stage.
    struct Codes {
      uint32_t words[2][4];
    };
    CUTLASS_DEVICE static void load_codes(Codes& to, uint32_t block) {
      int const lane = threadIdx.x % 32, tile = threadIdx.x % kWarpGroup / 32 * 2;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) load_shared(to.words[i], block + (tile + i) * PackedRows::kTileBytes + lane * 16);
    }

    /// Convert a thread's part of instruction k: word i is of filter i % 2, and has the elements of k from i / 2 * 8 on.
    /// `zeros` are the filters' zero points, twice in a word, if there are any, or FromMinuend: 31 - Bias minus a zero
    /// point, to which code - 31 is added. The words are exact for bytes.
    template <bool HasZeros, bool FromMinuend>
    CUTLASS_DEVICE static void convert(uint32_t (&to)[4], Codes const& codes, uint32_t const (&zeros)[2], int k) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        uint32_t const word = codes.words[i % 2][k / 2], zero = zeros[i % 2];
        int const place = k % 2 * 2 + i / 2;
        if constexpr (FromMinuend) {
          constexpr int kPlace = kBehindPoint<To>;
          int const right = 4 * place - kPlace;
          uint32_t const moved = right < 0 ? word << -right : word >> right;
          uint32_t const inverted = inverted_or(moved, 0x000f000f << kPlace, kAbove<To>);
          to[i] = multiply_add_two(To{}, inverted, kMinusPart<To>, zero);
          continue;
        }
        uint32_t const above = masked_or(word >> 4 * place, 0x000f000f, kAbove<To>);
        uint32_t const two = subtract_two(To{}, above, kAbove<To> | Bias * 0x00010001);
        to[i] = HasZeros ? subtract_two(To{}, two, zero) : two;
      }
    }
  };
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_CONVERTED_HPP
