#ifndef EVT_QUOTIENT_HPP
#define EVT_QUOTIENT_HPP

// A correctly rounded quotient without a branch, for GPUs whose f64 is fast: quotients of several elements overlap.

#include "evt/functions.hpp"

namespace evt {

/// Return x / y. Take an f64 within 2^-52 of the quotient of two f32 numbers: no f32 number, and no middle of two, lies
/// between both. f64 also holds the quotients that are denormal in f32. An infinite or absent remainder leaves the first
/// approximation: 0, infinity or NaN.
EVT_HOST_DEVICE float quotient(float x, float y) {
#ifdef __CUDA_ARCH__
  double const dividend = x, divisor = y;
  double inverse;  // within 2^-20
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(divisor));
  double const first = dividend * inverse;
  double const second = __fma_rn(__fma_rn(-divisor, first, dividend), inverse, first);
  double const third = __fma_rn(__fma_rn(-divisor, second, dividend), inverse, second);
  return float(::fabs(third) > 0.0 ? third : first);
#else
  return x / y;
#endif
}

}  // namespace evt

#endif  // EVT_QUOTIENT_HPP
