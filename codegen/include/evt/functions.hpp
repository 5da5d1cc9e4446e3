// evt's functions of one element. They equal PyTorch's, including NaN, infinities and denormals, in f32 and f64, and on
// wrapping i32 if PyTorch supports integers. Predicates return bool.
// Self-contained, so that it can be pasted into emitted text. No fast-math; selects instead of branches.
// A zero from max, min and functions built on them has the sign of IEEE 754-2019 and of the hardware: max(-0, +0) = +0
// in either order. (PyTorch's sign depends on the order, the length and the device.)
#ifndef EVT_FUNCTIONS_HPP
#define EVT_FUNCTIONS_HPP

#include <cmath>
#include <cstdint>

#ifndef EVT_HOST_DEVICE
#ifdef __CUDACC__
#define EVT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define EVT_HOST_DEVICE inline
#endif
#endif

namespace evt::detail {

EVT_HOST_DEVICE float quotient(float x, float y) {  // x / y for y in [1, 2^126) or infinite, to 2 ulp: no slow path
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(y));
  return x * y;
#else
  return x / y;
#endif
}
EVT_HOST_DEVICE double quotient(double x, double y) { return x / y; }

EVT_HOST_DEVICE float exp2_flushed(float x) {  // 2^x to 2 ulp; a denormal result is 0 on the device
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return ::exp2f(x);
#endif
}
EVT_HOST_DEVICE double exp2_flushed(double x) { return ::exp2(x); }

// log1p for x in [0, 1], to 2 ulp: CUDA's log1pf branches. A minimax polynomial of log1p(x) / x.
EVT_HOST_DEVICE double log1p_of_unit(double x) { return ::log1p(x); }
EVT_HOST_DEVICE float log1p_of_unit(float x) {
  float p = ::fmaf(-0.0032440247f, x, 0.0198514592f);
  p = ::fmaf(p, x, -0.0569595285f);
  p = ::fmaf(p, x, 0.106036544f);
  p = ::fmaf(p, x, -0.153055921f);
  p = ::fmaf(p, x, 0.196759388f);
  p = ::fmaf(p, x, -0.249541342f);
  p = ::fmaf(p, x, 0.333299637f);
  p = ::fmaf(p, x, -0.499999017f);
  return ::fmaf(p * x, x, x);
}

// The minimum and the maximum of x and a constant; the constant if x is NaN.
EVT_HOST_DEVICE float at_most(float x, float bound) { return ::fminf(x, bound); }
EVT_HOST_DEVICE double at_most(double x, double bound) { return ::fmin(x, bound); }
EVT_HOST_DEVICE float at_least(float x, float bound) { return ::fmaxf(x, bound); }
EVT_HOST_DEVICE double at_least(double x, double bound) { return ::fmax(x, bound); }

EVT_HOST_DEVICE float sin_of_pi(float x) {  // sin(pi * x) for x >= 0
#ifdef __CUDA_ARCH__
  return ::sinpif(x);
#else
  float r = ::remainderf(x, 2.0f);  // exact, in [-1, 1]
  return float(::sin(3.14159265358979324 * (::fabsf(r) > 0.5f ? ::copysignf(1.0f, r) - r : r)));
#endif
}
EVT_HOST_DEVICE double sin_of_pi(double x) {
#ifdef __CUDA_ARCH__
  return ::sinpi(x);
#else
  double r = ::remainder(x, 2.0);
  return ::sin(3.14159265358979324 * (::fabs(r) > 0.5 ? ::copysign(1.0, r) - r : r));
#endif
}

}  // namespace evt::detail

namespace evt::fn {

// i32 arithmetic uses unsigned numbers, whose overflow is defined.
template <class T>
EVT_HOST_DEVICE T add(T x, T y) { return x + y; }
EVT_HOST_DEVICE int32_t add(int32_t x, int32_t y) { return int32_t(uint32_t(x) + uint32_t(y)); }
template <class T>
EVT_HOST_DEVICE T sub(T x, T y) { return x - y; }
EVT_HOST_DEVICE int32_t sub(int32_t x, int32_t y) { return int32_t(uint32_t(x) - uint32_t(y)); }
template <class T>
EVT_HOST_DEVICE T mul(T x, T y) { return x * y; }
EVT_HOST_DEVICE int32_t mul(int32_t x, int32_t y) { return int32_t(uint32_t(x) * uint32_t(y)); }
template <class T>
EVT_HOST_DEVICE T div(T x, T y) { return x / y; }
template <class T>
EVT_HOST_DEVICE T neg(T x) { return -x; }
EVT_HOST_DEVICE int32_t neg(int32_t x) { return int32_t(0u - uint32_t(x)); }
EVT_HOST_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
EVT_HOST_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }
EVT_HOST_DEVICE int32_t fma(int32_t a, int32_t b, int32_t c) { return add(mul(a, b), c); }
EVT_HOST_DEVICE float pow(float x, float y) { return ::powf(x, y); }
EVT_HOST_DEVICE double pow(double x, double y) { return ::pow(x, y); }
EVT_HOST_DEVICE int32_t pow(int32_t x, int32_t y) {  // a fraction is 0
  if (y < 0) return x == 1 || (x == -1 && y % 2 == 0) ? 1 : x == -1 ? -1 : 0;
  uint32_t result = 1, base = uint32_t(x);
  for (; y != 0; y /= 2, base *= base) result *= y % 2 != 0 ? base : 1u;
  return int32_t(result);
}

template <class T>
EVT_HOST_DEVICE T min(T x, T y) { return x != x || x < y || (x == y && std::signbit(x)) ? x : y; }
EVT_HOST_DEVICE float min(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
#else
  return min<float>(x, y);
#endif
}
EVT_HOST_DEVICE int32_t min(int32_t x, int32_t y) { return x < y ? x : y; }
template <class T>
EVT_HOST_DEVICE T max(T x, T y) { return x != x || x > y || (x == y && std::signbit(y)) ? x : y; }
EVT_HOST_DEVICE float max(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
#else
  return max<float>(x, y);
#endif
}
EVT_HOST_DEVICE int32_t max(int32_t x, int32_t y) { return x > y ? x : y; }
template <class T>
EVT_HOST_DEVICE T clamp(T x, T lower, T upper) { return min(max(x, lower), upper); }

EVT_HOST_DEVICE float abs(float x) { return ::fabsf(x); }
EVT_HOST_DEVICE double abs(double x) { return ::fabs(x); }
EVT_HOST_DEVICE int32_t abs(int32_t x) { return x < 0 ? neg(x) : x; }
template <class T>
EVT_HOST_DEVICE T sign(T x) { return T(x > T(0)) - T(x < T(0)); }
template <class T>
EVT_HOST_DEVICE T square(T x) { return mul(x, x); }
// Correctly rounded, without a branch on sm90: threads compute the roots of several elements at the same time.
EVT_HOST_DEVICE float sqrt(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  bool const is_small = x < 0x1p-100f;
  float const scaled = is_small ? x * 0x1p64f : x;
  float const inverse = ::rsqrtf(scaled);  // assembly would hide that the roots of a column are equal
  float const near = scaled * inverse;
  float const found = __fmaf_rn(__fmaf_rn(-near, near, scaled), 0.5f * inverse, near);
  float const placed = is_small ? found * 0x1p-32f : found;
  return x == 0.0f || x == __int_as_float(0x7f800000) ? x : placed;
#else
  return ::sqrtf(x);
#endif
}
EVT_HOST_DEVICE double sqrt(double x) { return ::sqrt(x); }
EVT_HOST_DEVICE float rsqrt(float x) {
#ifdef __CUDA_ARCH__
  return ::rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}
EVT_HOST_DEVICE double rsqrt(double x) {
#ifdef __CUDA_ARCH__
  return ::rsqrt(x);
#else
  return 1.0 / ::sqrt(x);
#endif
}
template <class T>
EVT_HOST_DEVICE T rcp(T x) { return T(1) / x; }
template <class T>
EVT_HOST_DEVICE T lerp(T a, T b, T weight) {  // from the nearer end, as in PyTorch: exact at both ends
  bool near = abs(weight) < T(0.5);
  return fma(near ? weight : weight - T(1), b - a, near ? a : b);
}
template <class T>
EVT_HOST_DEVICE T heaviside(T x, T values) { return x == T(0) ? values : T(x > T(0)); }

// Overloads of a C library function for float and double.
#define EVT_ELEMENTARY(NAME, SINGLE, DOUBLE)                 \
  EVT_HOST_DEVICE float NAME(float x) { return ::SINGLE(x); } \
  EVT_HOST_DEVICE double NAME(double x) { return ::DOUBLE(x); }
#define EVT_ELEMENTARY_2(NAME, SINGLE, DOUBLE)                           \
  EVT_HOST_DEVICE float NAME(float x, float y) { return ::SINGLE(x, y); } \
  EVT_HOST_DEVICE double NAME(double x, double y) { return ::DOUBLE(x, y); }
EVT_ELEMENTARY(exp, expf, exp)
EVT_ELEMENTARY(exp2, exp2f, exp2)
EVT_ELEMENTARY(expm1, expm1f, expm1)
EVT_ELEMENTARY(log, logf, log)
EVT_ELEMENTARY(log1p, log1pf, log1p)
EVT_ELEMENTARY(log2, log2f, log2)
EVT_ELEMENTARY(log10, log10f, log10)
EVT_ELEMENTARY(sin, sinf, sin)
EVT_ELEMENTARY(cos, cosf, cos)
EVT_ELEMENTARY(tan, tanf, tan)
EVT_ELEMENTARY(asin, asinf, asin)
EVT_ELEMENTARY(acos, acosf, acos)
EVT_ELEMENTARY(atan, atanf, atan)
EVT_ELEMENTARY_2(atan2, atan2f, atan2)
EVT_ELEMENTARY(sinh, sinhf, sinh)
EVT_ELEMENTARY(cosh, coshf, cosh)
EVT_ELEMENTARY(tanh, tanhf, tanh)
EVT_ELEMENTARY(asinh, asinhf, asinh)
EVT_ELEMENTARY(acosh, acoshf, acosh)
EVT_ELEMENTARY(atanh, atanhf, atanh)
EVT_ELEMENTARY(erfc, erfcf, erfc)
EVT_HOST_DEVICE double erf(double x) { return ::erf(x); }
// To 2 ulp. CUDA's erff branches, and the other elements of a thread wait for the branch, which slows an epilogue by a
// quarter. Minimax polynomials: erf(x) / x - 1 in x^2, and log2(1 - erf(|x|)), which is 2^-25 at 3.85.
EVT_HOST_DEVICE float erf(float x) {
  float const s = x * x, t = detail::at_most(::fabsf(x), 4.0f);
  float near = fma(-0.000631493982f, s, 0.00505106384f);
  near = fma(near, s, -0.0268025305f);
  near = fma(near, s, 0.112827167f);
  near = fma(near, s, -0.376125723f);
  near = fma(near, s, 0.128379166f);
  near = fma(near, x, x);
  float far = fma(0.000293856312f, t, -0.00449823495f);
  far = fma(far, t, 0.0324885957f);
  far = fma(far, t, -0.150799975f);
  far = fma(far, t, -0.918301702f);
  far = fma(far, t, -1.62744856f);
  far = fma(far, t, -0.000150663996f);
  far = ::copysignf(1.0f - detail::exp2_flushed(far), x);
  return ::fabsf(x) > 0.85f ? far : near;
}
EVT_ELEMENTARY(floor, floorf, floor)
EVT_ELEMENTARY(ceil, ceilf, ceil)
EVT_ELEMENTARY(round, rintf, rint)
EVT_ELEMENTARY(trunc, truncf, trunc)
EVT_ELEMENTARY_2(copysign, copysignf, copysign)
EVT_ELEMENTARY_2(fmod, fmodf, fmod)
EVT_ELEMENTARY_2(hypot, hypotf, hypot)
#undef EVT_ELEMENTARY
#undef EVT_ELEMENTARY_2

EVT_HOST_DEVICE int32_t floor(int32_t x) { return x; }
EVT_HOST_DEVICE int32_t ceil(int32_t x) { return x; }
EVT_HOST_DEVICE int32_t round(int32_t x) { return x; }
EVT_HOST_DEVICE int32_t trunc(int32_t x) { return x; }
template <class T>
EVT_HOST_DEVICE T frac(T x) { return x - trunc(x); }
// Division of an integer by 0 has quotient 0 and the integer as remainder; the least integer divided by -1 is itself.
template <class T>
EVT_HOST_DEVICE T trunc_divide(T x, T y) { return trunc(x / y); }
EVT_HOST_DEVICE int32_t trunc_divide(int32_t x, int32_t y) { return y == 0 ? 0 : y == -1 ? neg(x) : x / y; }
EVT_HOST_DEVICE int32_t fmod(int32_t x, int32_t y) { return sub(x, mul(trunc_divide(x, y), y)); }
template <class T>
EVT_HOST_DEVICE T remainder(T x, T y) {
  T rest = fmod(x, y);
  return rest != T(0) && (y < T(0)) != (rest < T(0)) ? rest + y : rest;
}
template <class T>
EVT_HOST_DEVICE T floor_divide(T x, T y) {  // PyTorch's sequence of operations
  T const rest = fmod(x, y), near = (x - rest) / y;
  T const quotient = rest != T(0) && (rest < T(0)) != (y < T(0)) ? near - T(1) : near;
  T const whole = floor(quotient), nearest = quotient - whole > T(0.5) ? whole + T(1) : whole;
  return y == T(0) ? x / y : quotient == T(0) ? copysign(T(0), x / y) : nearest;
}
EVT_HOST_DEVICE int32_t floor_divide(int32_t x, int32_t y) {
  int32_t const quotient = trunc_divide(x, y), rest = fmod(x, y);
  return y != 0 && rest != 0 && (rest < 0) != (y < 0) ? quotient - 1 : quotient;
}
template <class T>
EVT_HOST_DEVICE T wrap_u8(T x) {
  T const whole = trunc(x);
  return whole - T(256) * floor(whole * T(1.0 / 256));
}
EVT_HOST_DEVICE int32_t wrap_u8(int32_t x) { return int32_t(uint8_t(x)); }
template <class T>
EVT_HOST_DEVICE T wrap_i8(T x) {
  T const rest = wrap_u8(x);
  return rest < T(128) ? rest : rest - T(256);
}
EVT_HOST_DEVICE int32_t wrap_i8(int32_t x) { return int32_t(int8_t(x)); }
template <class T>
EVT_HOST_DEVICE T logaddexp(T x, T y) {  // the difference of two equal infinities is NaN
  return max(x, y) + detail::log1p_of_unit(exp(x == y ? T(-0.0) : -abs(x - y)));
}
template <class T>
EVT_HOST_DEVICE T xlogy(T x, T y) { return x == T(0) && y == y ? T(0) : x * log(y); }
template <class T>
EVT_HOST_DEVICE T logit(T x) { return log(x / (T(1) - x)); }
template <class T>
EVT_HOST_DEVICE T sinc(T x) {
  x = abs(x);
  return x == T(0) ? T(1) : detail::sin_of_pi(x) / (T(3.14159265358979324) * x);
}

template <class T>
EVT_HOST_DEVICE T relu(T x) { return max(x, T(0)); }
template <class T>
EVT_HOST_DEVICE T leaky_relu(T x, T negative_slope) { return x > T(0) ? x : x * negative_slope; }
template <class T>
EVT_HOST_DEVICE T prelu(T x, T weight) { return x > T(0) ? x : x * weight; }
template <class T>
EVT_HOST_DEVICE T rrelu(T x, T lower, T upper) { return x > T(0) ? x : x * ((lower + upper) * T(0.5)); }
template <class T>
EVT_HOST_DEVICE T relu6(T x) { return clamp(x, T(0), T(6)); }
template <class T>
EVT_HOST_DEVICE T threshold(T x, T threshold, T value) { return x <= threshold ? value : x; }
template <class T>
EVT_HOST_DEVICE T elu(T x, T alpha) {  // computed even if not selected: no branch
  T const below = alpha * expm1(detail::at_most(x, T(0)));
  return x < T(0) ? below : x;
}
template <class T>
EVT_HOST_DEVICE T celu(T x, T alpha) {
  T const below = alpha * expm1(detail::at_most(x, T(0)) * (T(1) / alpha));  // alpha is a literal: no division remains
  return x < T(0) ? below : x;
}
template <class T>
EVT_HOST_DEVICE T selu(T x) {
  T const below = T(1.7580993408473769) * expm1(detail::at_most(x, T(0)));
  return x < T(0) ? below : T(1.0507009873554805) * x;
}
template <class T>
EVT_HOST_DEVICE T sigmoid(T x) { return detail::quotient(T(1), T(1) + exp(-x)); }
template <class T>
EVT_HOST_DEVICE T logsigmoid(T x) { return detail::at_most(x, T(0)) - detail::log1p_of_unit(exp(-abs(x))); }
template <class T>
EVT_HOST_DEVICE T silu(T x) { return x * sigmoid(x); }
EVT_HOST_DEVICE float silu(float x) {  // exp(-x) as a power of 2: without the reduction of its argument
  return x * detail::quotient(1.0f, 1.0f + detail::exp2_flushed(x * -1.44269504f));
}
EVT_HOST_DEVICE double gelu(double x) { return 0.5 * x * ::erfc(x * -0.70710678118654752); }
// x * Phi(x) with half the instructions of erf: a minimax polynomial of log2(Phi(-|x|)). The error is 2^-22 of x
// everywhere, and 2^-14 of the result down to x = -5.2. The polynomial falls to -1370 at 16.
EVT_HOST_DEVICE float gelu(float x) {
  float const t = detail::at_most(::fabsf(x), 16.0f);
  float p = fma(-1.00118154e-06f, t, 1.68422139e-05f);
  p = fma(p, t, -7.78805843e-05f);
  p = fma(p, t, -0.000396520481f);
  p = fma(p, t, 0.00739239901f);
  p = fma(p, t, -0.0527117401f);
  p = fma(p, t, -0.459142208f);
  p = fma(p, t, -1.15111256f);
  float const tail = detail::exp2_flushed(fma(p, t, -0.999999881f));
  return x * (x > 0.0f ? 1.0f - tail : tail);
}
EVT_HOST_DEVICE double gelu_slope(double x) {
  double const near = ::fabs(x) < 40.0 ? x : 0.0;  // beyond, the exponential is 0
  return 0.5 * ::erfc(x * -0.70710678118654752) + near * (::exp(-0.5 * x * x) * 0.39894228040143268);
}
// One exponential instead of two, and a minimax polynomial of gelu'(-|x|) / exp(-x * x / 2). The error is 2^-22.
EVT_HOST_DEVICE float gelu_slope(float x) {
  float const t = detail::at_most(::fabsf(x), 16.0f);
  float p = fma(1.63168977e-06f, t, -3.52077805e-05f);
  p = fma(p, t, 0.000339738413f);
  p = fma(p, t, -0.00197462714f);
  p = fma(p, t, 0.00793938991f);
  p = fma(p, t, -0.0243139286f);
  p = fma(p, t, 0.0611548834f);
  p = fma(p, t, -0.132513791f);
  p = fma(p, t, 0.249916792f);
  p = fma(p, t, -0.797878802f);
  float const below = fma(p, t, 0.5f) * detail::exp2_flushed(x * x * -0.72134752f);  // NaN stays NaN
  return x > 0.0f ? 1.0f - below : below;
}
template <class T>
EVT_HOST_DEVICE T gelu_tanh(T x) {  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which is accurate for x < 0
  T const exponent = x * fma(T(-0.1029432395800234874), x * x, T(-2.302208198144324889));
  return x * detail::quotient(T(1), T(1) + detail::exp2_flushed(exponent));
}
// The slope of -|x|, where the sigmoid 1 / (1 + exp(2u)) is accurate; the slopes of x and -x add up to 1.
template <class T>
EVT_HOST_DEVICE T gelu_tanh_slope(T x) {
  T const t = detail::at_most(abs(x), T(16)), square = t * t;
  T const exponent = t * fma(T(0.1029432395800234874), square, T(2.302208198144324889));
  T const gate = detail::quotient(T(1), T(1) + detail::exp2_flushed(exponent));
  T const slope = fma(T(0.21406444881780074), square, T(1.5957691216057307));
  T const below = fma(gate * -(t * slope), T(1) - gate, gate);
  return x > T(0) ? T(1) - below : x == x ? below : x;
}
template <class T>
EVT_HOST_DEVICE T mish(T x) {  // tanh(log1p(e)) = n / (n + 2) with n = e * (e + 2), which is 1 beyond 20
  T e = exp(detail::at_most(x, T(20))), n = e * (e + T(2));
  return x * detail::quotient(n, n + T(2));
}
template <class T>
EVT_HOST_DEVICE T softplus(T x, T beta, T threshold) {
  T const z = x * beta, exact = (detail::at_least(z, T(0)) + detail::log1p_of_unit(exp(-abs(z)))) / beta;
  return z > threshold ? x : exact;
}
template <class T>
EVT_HOST_DEVICE T softsign(T x) { return x / (T(1) + abs(x)); }
template <class T>
EVT_HOST_DEVICE T hardtanh(T x, T min_val, T max_val) { return clamp(x, min_val, max_val); }
template <class T>
EVT_HOST_DEVICE T hardsigmoid(T x) { return clamp(x + T(3), T(0), T(6)) * T(1.0 / 6.0); }
template <class T>
EVT_HOST_DEVICE T hardswish(T x) {  // x propagates a NaN through at_least
  return x * detail::at_most(detail::at_least(x + T(3), T(0)), T(6)) * T(1.0 / 6.0);
}
template <class T>
EVT_HOST_DEVICE T tanhshrink(T x) { return x - tanh(x); }
template <class T>
EVT_HOST_DEVICE T hardshrink(T x, T lambd) { return x >= -lambd && x <= lambd ? T(0) : x; }
template <class T>
EVT_HOST_DEVICE T softshrink(T x, T lambd) {
  return x > lambd ? x - lambd : x < -lambd ? x + lambd : x * T(0);
}

template <class T>
EVT_HOST_DEVICE bool lt(T x, T y) { return x < y; }
template <class T>
EVT_HOST_DEVICE bool le(T x, T y) { return x <= y; }
template <class T>
EVT_HOST_DEVICE bool gt(T x, T y) { return x > y; }
template <class T>
EVT_HOST_DEVICE bool ge(T x, T y) { return x >= y; }
template <class T>
EVT_HOST_DEVICE bool eq(T x, T y) { return x == y; }
template <class T>
EVT_HOST_DEVICE bool ne(T x, T y) { return x != y; }
EVT_HOST_DEVICE bool logical_and(bool x, bool y) { return x && y; }
EVT_HOST_DEVICE bool logical_or(bool x, bool y) { return x || y; }
EVT_HOST_DEVICE bool logical_not(bool x) { return !x; }
template <class T>
EVT_HOST_DEVICE T where(bool condition, T x, T y) { return condition ? x : y; }
template <class T>
EVT_HOST_DEVICE bool isnan(T x) { return x != x; }
template <class T>
EVT_HOST_DEVICE bool isinf(T x) { return abs(x) == T(INFINITY); }
template <class T>
EVT_HOST_DEVICE bool isfinite(T x) { return abs(x) < T(INFINITY); }

}  // namespace evt::fn

#endif  // EVT_FUNCTIONS_HPP
