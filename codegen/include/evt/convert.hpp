#ifndef EVT_CONVERT_HPP
#define EVT_CONVERT_HPP

// Conversions between element types, of one value and of arrays. All round to nearest, halves to even.
//   to int8_t, uint8_t, int32_t    saturate; NaN becomes 0
//   to float_e4m3_t, float_e5m2_t  saturate to the largest finite value; NaN stays NaN
//   to bool                        x != 0, so NaN is true; from bool: 0 or 1
//   from double                    to types narrower than float through float
// The types: float, double, half_t, bfloat16_t, tfloat32_t, float_e4m3_t, float_e5m2_t, int8_t, uint8_t, int32_t, bool.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"

namespace evt {
namespace detail {

template <class T, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<T, Others> || ...);

template <class T>
inline constexpr bool is_fp8 = is_one_of<T, cutlass::float_e4m3_t, cutlass::float_e5m2_t>;

// Floats that a float holds exactly.
template <class T>
inline constexpr bool is_narrow_float =
    is_fp8<T> || is_one_of<T, cutlass::half_t, cutlass::bfloat16_t, cutlass::tfloat32_t>;

// Integers that an int32_t holds exactly.
template <class T>
inline constexpr bool is_narrow_integer = is_one_of<T, int8_t, uint8_t, bool>;

template <class T>
inline constexpr bool is_compute = is_one_of<T, float, double, int32_t>;

// The compute type of a type's values.
template <class T>
using Compute = std::conditional_t<
    is_narrow_float<T>, float, std::conditional_t<is_one_of<T, int8_t, uint8_t>, int32_t, T>>;

// The type that values are reduced in: bool is counted.
template <class T>
using Reduced = std::conditional_t<std::is_same_v<T, bool>, int32_t, Compute<T>>;

CUTLASS_HOST_DEVICE int32_t nearest_integer(float x) {
#if defined(__CUDA_ARCH__)
  return __float2int_rn(x);  // saturates, NaN becomes 0
#else
  if (x != x) return 0;
  return x >= 2147483648.0f ? INT32_MAX : x <= -2147483648.0f ? INT32_MIN : int32_t(std::nearbyint(x));
#endif
}

CUTLASS_HOST_DEVICE int32_t nearest_integer(double x) {
#if defined(__CUDA_ARCH__)
  return x != x ? 0 : __double2int_rn(x);  // saturates, but not NaN
#else
  if (x != x) return 0;
  return x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : int32_t(std::nearbyint(x));
#endif
}

CUTLASS_HOST_DEVICE cutlass::tfloat32_t nearest_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return cutlass::NumericConverter<cutlass::tfloat32_t, float>::convert(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = x != x ? 0x7fffffffu : bits + 0xfffu + (bits >> 13 & 1u);
  return cutlass::tfloat32_t::bitcast(bits & ~0x1fffu);
#endif
}

template <class To>
CUTLASS_HOST_DEVICE To from_compute(float x) {
  if constexpr (std::is_same_v<To, cutlass::tfloat32_t>) {
    return nearest_tf32(x);
  } else {
    return To(x);
  }
}

template <class To>
CUTLASS_HOST_DEVICE To saturate(int32_t x) {
  constexpr int32_t kLower = std::is_same_v<To, int8_t> ? -128 : 0;
  constexpr int32_t kUpper = std::is_same_v<To, int8_t> ? 127 : 255;
  return To(x < kLower ? kLower : x > kUpper ? kUpper : x);
}

}  // namespace detail

template <class To, class From>
CUTLASS_HOST_DEVICE To convert(From const& x) {
  constexpr bool kSame = std::is_same_v<To, From>;
  static_assert(kSame || detail::is_compute<To> || detail::is_narrow_float<To> || detail::is_narrow_integer<To>,
                "evt cannot convert to this element type");
  static_assert(kSame || detail::is_compute<From> || detail::is_narrow_float<From> || detail::is_narrow_integer<From>,
                "evt cannot convert from this element type");
  if constexpr (kSame) {
    return x;
  } else if constexpr (detail::is_narrow_float<From>) {
    return convert<To>(float(x));
  } else if constexpr (detail::is_narrow_integer<From>) {
    return convert<To>(int32_t(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (detail::is_narrow_float<To>) {
    return detail::from_compute<To>(float(x));
  } else if constexpr (std::is_same_v<To, int32_t>) {
    return detail::nearest_integer(x);
  } else if constexpr (detail::is_narrow_integer<To>) {
    return detail::saturate<To>(convert<int32_t>(x));
  } else {
    return To(x);
  }
}

/// Round x to a stored type, and return it in that type's compute type: float for floats, int32_t for integers; double
/// and bool stay.
template <class To, class From>
CUTLASS_HOST_DEVICE detail::Compute<To> round_to(From const& x) {
  return convert<detail::Compute<To>>(convert<To>(x));
}

/// {function(0), function(1), ...}. An Array<bool> is packed, one bit per element, and is made a word at a time.
template <class To, int Size, class Function>
CUTLASS_HOST_DEVICE cutlass::Array<To, Size> generate_array(Function const& function) {
  cutlass::Array<To, Size> to;
  if constexpr (std::is_same_v<To, bool>) {
    using Packed = cutlass::Array<bool, Size>;
    constexpr int kBits = 8 * int(sizeof(typename Packed::Storage));
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < int(Packed::kStorageElements); ++word) {
      uint32_t bits = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int bit = 0; bit < kBits; ++bit) {
        if (word * kBits + bit < Size) {
          bits |= uint32_t(bool(function(word * kBits + bit))) << bit;
        }
      }
      to.raw_data()[word] = typename Packed::Storage(bits);
    }
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      to[i] = To(function(i));
    }
  }
  return to;
}

template <class To, class From, int Size>
CUTLASS_HOST_DEVICE cutlass::Array<To, Size> convert_array(cutlass::Array<From, Size> const& from) {
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else if constexpr (detail::is_narrow_float<From> && !std::is_same_v<To, float>) {
    return convert_array<To>(convert_array<float>(from));
  } else if constexpr (detail::is_one_of<To, int8_t, uint8_t> && !std::is_same_v<From, int32_t>) {
    return convert_array<To>(convert_array<int32_t>(from));
  } else {
#if defined(__CUDA_ARCH__)
    // CUTLASS converts these several at a time.
    constexpr bool kWidens = std::is_same_v<To, float> && detail::is_narrow_float<From>;
    constexpr bool kNarrows = std::is_same_v<From, float> &&
                              (detail::is_fp8<To> || detail::is_one_of<To, cutlass::half_t, cutlass::bfloat16_t>);
    constexpr bool kPacks = std::is_same_v<From, int32_t> && detail::is_one_of<To, int8_t, uint8_t>;
    if constexpr (((kWidens || kNarrows) && Size % 2 == 0) || (kPacks && Size % 4 == 0)) {
      return cutlass::NumericArrayConverter<To, From, Size>::convert(from);
    }
#endif
    return generate_array<To, Size>([&](int i) { return convert<To>(From(from[i])); });
  }
}

}  // namespace evt

#endif  // EVT_CONVERT_HPP
