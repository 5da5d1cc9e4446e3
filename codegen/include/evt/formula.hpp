// The start of a formula's translation unit, which NVRTC compiles without any other header: the names of the standard
// library and of CUTLASS that functors use. Rounding equals convert.hpp's bit for bit.
#ifndef EVT_FORMULA_HPP
#define EVT_FORMULA_HPP

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define CUTLASS_HOST_DEVICE __device__ __forceinline__
#define EVT_HOST_DEVICE __device__ __forceinline__

namespace std {
__device__ __forceinline__ bool signbit(float x) { return __float_as_int(x) < 0; }
__device__ __forceinline__ bool signbit(double x) { return __double_as_longlong(x) < 0; }
}  // namespace std

namespace cutlass {
struct half_t {};
struct bfloat16_t {};
struct tfloat32_t {};
struct float_e4m3_t {};
struct float_e5m2_t {};
}  // namespace cutlass
#endif

namespace evt {
namespace rounding {

#if defined(__CUDA_ARCH__)
CUTLASS_HOST_DEVICE uint32_t bits(float x) { return __float_as_uint(x); }
CUTLASS_HOST_DEVICE float of_bits(uint32_t x) { return __uint_as_float(x); }

CUTLASS_HOST_DEVICE float of_half(uint16_t x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}

CUTLASS_HOST_DEVICE float rounded(cutlass::half_t, float x) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return of_half(half);
}

CUTLASS_HOST_DEVICE float rounded(cutlass::bfloat16_t, float x) {
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return of_bits(uint32_t(half) << 16);
}

CUTLASS_HOST_DEVICE float rounded(cutlass::tfloat32_t, float x) {
#if __CUDA_ARCH__ >= 900
  uint32_t word;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
#else
  uint32_t word = bits(x);
  word = x != x ? 0x7fffffffu : word + 0xfffu + (word >> 13 & 1u);
#endif
  return of_bits(word & ~0x1fffu);
}

CUTLASS_HOST_DEVICE int32_t integer(float x) { return __float2int_rn(x); }  // saturates, NaN becomes 0
CUTLASS_HOST_DEVICE int32_t integer(double x) { return x != x ? 0 : __double2int_rn(x); }  // saturates, but not NaN
#endif

// An FP8 value without FP8 instructions: clamp, then round the mantissa of a normal number, or add and subtract a number
// whose last place is the spacing of denormals.
template <int Mantissa, int LeastExponent>
CUTLASS_HOST_DEVICE float rounded_fp8(float x, float largest) {
  constexpr int kDropped = 23 - Mantissa;
  constexpr uint32_t kMask = (1u << kDropped) - 1;
  uint32_t const word = bits(x) & 0x7fffffffu, sign = bits(x) & 0x80000000u;
  uint32_t const near = (word + (kMask >> 1) + (word >> kDropped & 1u)) & ~kMask;
  float const spaced = of_bits(uint32_t(127 + 23 + LeastExponent - Mantissa) << 23);
  float const denormal = (of_bits(word) + spaced) - spaced;
  bool const normal = word >= uint32_t(127 + LeastExponent) << 23;
  uint32_t const result = word > bits(largest) ? bits(largest) : normal ? near : bits(denormal);
  return of_bits(x != x ? 0x7fffffffu : result | sign);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
CUTLASS_HOST_DEVICE float rounded(cutlass::float_e4m3_t, float x) {
  uint16_t two;
  uint32_t halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(two & 0xff)));
  return of_half(uint16_t(halves));
}

CUTLASS_HOST_DEVICE float rounded(cutlass::float_e5m2_t, float x) {
  uint16_t two;
  uint32_t halves;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(two & 0xff)));
  return of_half(uint16_t(halves));
}
#else
CUTLASS_HOST_DEVICE float rounded(cutlass::float_e4m3_t, float x) { return rounded_fp8<3, -6>(x, 448.0f); }
CUTLASS_HOST_DEVICE float rounded(cutlass::float_e5m2_t, float x) { return rounded_fp8<2, -14>(x, 57344.0f); }
#endif

CUTLASS_HOST_DEVICE int32_t integer(int32_t x) { return x; }
CUTLASS_HOST_DEVICE int32_t integer(bool x) { return x; }
CUTLASS_HOST_DEVICE int32_t within(int32_t x, int32_t lower, int32_t upper) {
  return x < lower ? lower : x > upper ? upper : x;
}

CUTLASS_HOST_DEVICE int32_t rounded(int8_t, int32_t x) { return within(x, -128, 127); }
CUTLASS_HOST_DEVICE int32_t rounded(uint8_t, int32_t x) { return within(x, 0, 255); }
CUTLASS_HOST_DEVICE int32_t rounded(int32_t, int32_t x) { return x; }

// A value as the number that is rounded to a type.
template <class To, class From>
CUTLASS_HOST_DEVICE float operand(To, From x) { return float(x); }
template <class From>
CUTLASS_HOST_DEVICE int32_t operand(int8_t, From x) { return integer(x); }
template <class From>
CUTLASS_HOST_DEVICE int32_t operand(uint8_t, From x) { return integer(x); }
template <class From>
CUTLASS_HOST_DEVICE int32_t operand(int32_t, From x) { return integer(x); }

}  // namespace rounding

/// Round x to a stored type, and return it in that type's compute type: float for floats, int32_t for integers.
template <class To, class From>
CUTLASS_HOST_DEVICE auto round_to(From x) {
  return rounding::rounded(To{}, rounding::operand(To{}, x));
}

}  // namespace evt

#endif  // EVT_FORMULA_HPP
