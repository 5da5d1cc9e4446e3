// The functions of evt on one float: what PyTorch computes in f32, NaN, infinities and denormals included.
// Self-contained, so that it can be pasted into emitted text. No fast-math; selects instead of branches.
// A zero from max, min and what is made of them has the sign which IEEE 754-2019 and the hardware give it:
// max(-0, +0) = +0, whichever comes first. (PyTorch's depends on the order, the length and the device.)
#ifndef EVT_FUNCTIONS_HPP
#define EVT_FUNCTIONS_HPP

#include <cmath>

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
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

}  // namespace evt::detail

namespace evt::fn {

EVT_HOST_DEVICE float add(float x, float y) { return x + y; }
EVT_HOST_DEVICE float sub(float x, float y) { return x - y; }
EVT_HOST_DEVICE float mul(float x, float y) { return x * y; }
EVT_HOST_DEVICE float div(float x, float y) { return x / y; }
EVT_HOST_DEVICE float neg(float x) { return -x; }
EVT_HOST_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
EVT_HOST_DEVICE float pow(float x, float y) { return ::powf(x, y); }
EVT_HOST_DEVICE float min(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
#else
  return x != x || x < y || (x == y && std::signbit(x)) ? x : y;
#endif
}
EVT_HOST_DEVICE float max(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
#else
  return x != x || x > y || (x == y && std::signbit(y)) ? x : y;
#endif
}
EVT_HOST_DEVICE float abs(float x) { return ::fabsf(x); }
EVT_HOST_DEVICE float sign(float x) { return float(x > 0.0f) - float(x < 0.0f); }
EVT_HOST_DEVICE float sqrt(float x) { return ::sqrtf(x); }
EVT_HOST_DEVICE float rsqrt(float x) {
#ifdef __CUDA_ARCH__
  return ::rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}
EVT_HOST_DEVICE float rcp(float x) { return 1.0f / x; }
EVT_HOST_DEVICE float square(float x) { return x * x; }
EVT_HOST_DEVICE float clamp(float x, float lower, float upper) { return min(max(x, lower), upper); }

EVT_HOST_DEVICE float exp(float x) { return ::expf(x); }
EVT_HOST_DEVICE float exp2(float x) { return ::exp2f(x); }
EVT_HOST_DEVICE float expm1(float x) { return ::expm1f(x); }
EVT_HOST_DEVICE float log(float x) { return ::logf(x); }
EVT_HOST_DEVICE float log1p(float x) { return ::log1pf(x); }
EVT_HOST_DEVICE float log2(float x) { return ::log2f(x); }
EVT_HOST_DEVICE float sin(float x) { return ::sinf(x); }
EVT_HOST_DEVICE float cos(float x) { return ::cosf(x); }
EVT_HOST_DEVICE float tanh(float x) { return ::tanhf(x); }
EVT_HOST_DEVICE float erf(float x) { return ::erff(x); }
EVT_HOST_DEVICE float floor(float x) { return ::floorf(x); }
EVT_HOST_DEVICE float ceil(float x) { return ::ceilf(x); }
EVT_HOST_DEVICE float round(float x) { return ::rintf(x); }

EVT_HOST_DEVICE float relu(float x) { return max(x, 0.0f); }
EVT_HOST_DEVICE float leaky_relu(float x, float negative_slope) { return x > 0.0f ? x : x * negative_slope; }
EVT_HOST_DEVICE float relu6(float x) { return clamp(x, 0.0f, 6.0f); }
EVT_HOST_DEVICE float elu(float x, float alpha) { return x < 0.0f ? alpha * ::expm1f(x) : x; }
EVT_HOST_DEVICE float celu(float x, float alpha) {
  return x < 0.0f ? alpha * ::expm1f(x * (1.0f / alpha)) : x;  // alpha is a literal: no division is left
}
EVT_HOST_DEVICE float selu(float x) {
  return x < 0.0f ? 1.7580993408473766f * ::expm1f(x) : 1.0507009873554805f * x;
}
EVT_HOST_DEVICE float sigmoid(float x) { return detail::quotient(1.0f, 1.0f + ::expf(-x)); }
EVT_HOST_DEVICE float logsigmoid(float x) { return ::fminf(x, 0.0f) - ::log1pf(::expf(-::fabsf(x))); }
EVT_HOST_DEVICE float silu(float x) { return x * sigmoid(x); }
EVT_HOST_DEVICE float gelu(float x) { return 0.5f * x * (1.0f + ::erff(x * 0.70710678118654752f)); }
EVT_HOST_DEVICE float gelu_tanh(float x) {  // (1 + tanh(u)) / 2 = sigmoid(2u), which loses nothing where x < 0
  return x * sigmoid(x * ::fmaf(0.071354816272600249f, x * x, 1.5957691216057308f));
}
EVT_HOST_DEVICE float mish(float x) {  // tanh(log1p(e)) = n / (n + 2) with n = e * (e + 2), which is 1 beyond 20
  float e = ::expf(::fminf(x, 20.0f)), n = e * (e + 2.0f);
  return x * detail::quotient(n, n + 2.0f);
}
EVT_HOST_DEVICE float softplus(float x, float beta, float threshold) {
  return x * beta > threshold ? x : ::log1pf(::expf(x * beta)) / beta;
}
EVT_HOST_DEVICE float softsign(float x) { return x / (1.0f + ::fabsf(x)); }
EVT_HOST_DEVICE float hardtanh(float x, float min_val, float max_val) { return clamp(x, min_val, max_val); }
EVT_HOST_DEVICE float hardsigmoid(float x) { return clamp(x + 3.0f, 0.0f, 6.0f) * 0.16666667f; }
EVT_HOST_DEVICE float hardswish(float x) {  // x carries a NaN past fmaxf
  return x * ::fminf(::fmaxf(x + 3.0f, 0.0f), 6.0f) * 0.16666667f;
}
EVT_HOST_DEVICE float tanhshrink(float x) { return x - ::tanhf(x); }

}  // namespace evt::fn

#endif  // EVT_FUNCTIONS_HPP
