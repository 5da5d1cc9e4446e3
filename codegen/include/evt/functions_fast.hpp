// Fast-math variants of the functions, on one float, by the special function unit. They are used on request alone.
// Comments state the error on the device, where denormal results become zero. An `ulp` is an ulp of the result. The
// intrinsics' bounds come from the CUDA programming guide and the PTX manual. On the host the variants equal the
// functions.
#ifndef EVT_FUNCTIONS_FAST_HPP
#define EVT_FUNCTIONS_FAST_HPP

#include "evt/functions.hpp"

#ifdef __CUDA_ARCH__
#define EVT_FAST(INTRINSIC, EXACT) INTRINSIC
#else
#define EVT_FAST(INTRINSIC, EXACT) EXACT
#endif

namespace evt::fn::fast {

// Relative error 2^-11.
EVT_HOST_DEVICE float tanh(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  asm("tanh.approx.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return fn::tanh(x);
#endif
}

// 2 ulp if 2^-126 <= |y| <= 2^126; 0 (NaN for an infinite x) beyond.
EVT_HOST_DEVICE float div(float x, float y) { return EVT_FAST(__fdividef(x, y), x / y); }

// 1 ulp.
EVT_HOST_DEVICE float rcp(float x) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return fn::rcp(x);
#endif
}

// 1 ulp.
EVT_HOST_DEVICE float sqrt(float x) {
#ifdef __CUDA_ARCH__
  asm("sqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return fn::sqrt(x);
#endif
}

// Relative error 2^-22.4; infinite for a denormal x.
EVT_HOST_DEVICE float rsqrt(float x) {
#ifdef __CUDA_ARCH__
  asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return fn::rsqrt(x);
#endif
}

// 2 ulp.
EVT_HOST_DEVICE float exp2(float x) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return fn::exp2(x);
#endif
}

// 2 + 1.173 |x| ulp.
EVT_HOST_DEVICE float exp(float x) { return EVT_FAST(__expf(x), fn::exp(x)); }

// Absolute error 2^-21.4 (log), 2^-22 (log2), 2^-24 (log10) if 0.5 <= x <= 2, else 3 ulp; -inf for a denormal x.
EVT_HOST_DEVICE float log(float x) { return EVT_FAST(__logf(x), fn::log(x)); }
EVT_HOST_DEVICE float log2(float x) { return EVT_FAST(__log2f(x), fn::log2(x)); }
EVT_HOST_DEVICE float log10(float x) { return EVT_FAST(__log10f(x), fn::log10(x)); }

// Absolute error 2^-21.1 if |x| <= pi; beyond, about 2^-22 |x|. tan is the quotient of the two.
EVT_HOST_DEVICE float sin(float x) { return EVT_FAST(__sinf(x), fn::sin(x)); }
EVT_HOST_DEVICE float cos(float x) { return EVT_FAST(__cosf(x), fn::cos(x)); }
EVT_HOST_DEVICE float tan(float x) { return EVT_FAST(__tanf(x), fn::tan(x)); }

// exp2(y * log2(x)): 2 + |y log2(x)| ulp, plus a relative 2^-22 |y| if 0.5 <= x <= 2. NaN if x < 0.
EVT_HOST_DEVICE float pow(float x, float y) { return EVT_FAST(__powf(x, y), fn::pow(x, y)); }

// Absolute error 2^-20.
EVT_HOST_DEVICE float logaddexp(float x, float y) {
  return max(x, y) + log(1.0f + exp(x == y ? 0.0f : -abs(x - y)));
}
EVT_HOST_DEVICE float logsigmoid(float x) { return detail::at_most(x, 0.0f) - log(1.0f + exp(-abs(x))); }

// Absolute error 2^-20 / |beta|.
EVT_HOST_DEVICE float softplus(float x, float beta, float threshold) {
  return x * beta > threshold ? x : div(log(1.0f + exp(x * beta)), beta);
}

// Absolute error 2^-21 |alpha|: exp(x) - 1 cancels near 0. celu adds the rounding of x / alpha, 2^-22 |alpha|.
EVT_HOST_DEVICE float elu(float x, float alpha) { return x < 0.0f ? alpha * (exp(x) - 1.0f) : x; }
EVT_HOST_DEVICE float celu(float x, float alpha) { return x < 0.0f ? alpha * (exp(x * (1.0f / alpha)) - 1.0f) : x; }
EVT_HOST_DEVICE float selu(float x) {
  return x < 0.0f ? fma(1.75809934f, exp(x), -1.75809934f) : 1.05070099f * x;
}

// Absolute error 2^-12 (sigmoid), 2^-12 |x| (silu, gelu_tanh). Results for x < 0 vanish up to that error alone. gelu is
// replaced by gelu_tanh: 2^-11 more.
EVT_HOST_DEVICE float sigmoid(float x) { return fma(0.5f, tanh(0.5f * x), 0.5f); }
EVT_HOST_DEVICE float silu(float x) {
  float half = 0.5f * x;
  return fma(half, tanh(half), half);
}
EVT_HOST_DEVICE float gelu_tanh(float x) {
  float half = 0.5f * x;
  return fma(half, tanh(x * fma(0.0356774081f, x * x, 0.797884561f)), half);
}
EVT_HOST_DEVICE float gelu(float x) { return gelu_tanh(x); }

// 10 + 2 |x| ulp if x > -80.
EVT_HOST_DEVICE float mish(float x) {
  float e = exp(detail::at_most(x, 20.0f)), n = e * (e + 2.0f);
  return x * detail::quotient(n, n + 2.0f);
}

// 3 ulp if |x| < 2^126; 0 beyond.
EVT_HOST_DEVICE float softsign(float x) { return div(x, 1.0f + abs(x)); }

// Absolute error 2^-11.
EVT_HOST_DEVICE float tanhshrink(float x) { return x - tanh(x); }

}  // namespace evt::fn::fast

#undef EVT_FAST

#endif  // EVT_FUNCTIONS_FAST_HPP
