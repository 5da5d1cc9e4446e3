// PyTorch's own formulas on one float, operation by operation, for numerics="eager". The header has the functions whose
// C++ in functions.hpp has other bits. nvcc contracts the same multiply-adds in PyTorch's CUDA kernels.
#ifndef EVT_FUNCTIONS_EAGER_HPP
#define EVT_FUNCTIONS_EAGER_HPP

#include "evt/functions.hpp"
#include "evt/rounded.hpp"

namespace evt::fn::eager {

EVT_HOST_DEVICE float erf(float x) { return ::erff(x); }
EVT_HOST_DEVICE float sinc(float x) {
  float const angle = 3.14159265358979324f * x;
  return x == 0.0f ? 1.0f : ::sinf(angle) / angle;
}
EVT_HOST_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
EVT_HOST_DEVICE float silu(float x) { return x / (1.0f + ::expf(-x)); }
EVT_HOST_DEVICE float gelu(float x) { return x * 0.5f * (1.0f + ::erff(x * 0.707106781186547524f)); }
EVT_HOST_DEVICE float gelu_slope(float x) {
  float const cdf = 0.5f * (1.0f + ::erff(x * 0.707106781186547524f));
  return cdf + x * (::expf(-0.5f * x * x) * 0.398942280401432678f);
}
EVT_HOST_DEVICE float gelu_tanh(float x) {
  float const inner = 0.797884560802865356f * ::fmaf(0.044715f, x * x * x, x);
  return 0.5f * x * (1.0f + ::tanhf(inner));
}
EVT_HOST_DEVICE float gelu_tanh_slope(float x) {
  float const square = x * x;
  float const tanh = ::tanhf(0.797884560802865356f * (x + 0.044715f * (square * x)));
  float const right = 0.5f * x * (1.0f - tanh * tanh) * (0.797884560802865356f * (1.0f + 3.0f * 0.044715f * square));
  return 0.5f * (1.0f + tanh) + right;
}
EVT_HOST_DEVICE float mish(float x) { return x * ::tanhf(::log1pf(::expf(x))); }
EVT_HOST_DEVICE float hardsigmoid(float x) { return clamp(rounded::sum(x, 3.0f), 0.0f, 6.0f) * (1.0f / 6.0f); }
EVT_HOST_DEVICE float softplus(float x, float beta, float threshold) {
  float const z = x * beta;
  return z > threshold ? x : ::log1pf(::expf(z)) / beta;
}
EVT_HOST_DEVICE float logsigmoid(float x) { return (x < 0.0f ? x : 0.0f) - ::log1pf(::expf(-::fabsf(x))); }
EVT_HOST_DEVICE float elu(float x, float alpha) { return x > 0.0f ? x : ::expm1f(x) * alpha; }
EVT_HOST_DEVICE float celu(float x, float alpha) {
  return x > 0.0f ? x : ::expm1f(x * float(1.0 / double(alpha))) * alpha;
}
EVT_HOST_DEVICE float selu(float x) {
  return x > 0.0f ? x * 1.05070098735548049f : ::expm1f(x) * (1.67326324235437728f * 1.05070098735548049f);
}
EVT_HOST_DEVICE float logaddexp(float x, float y) {
  return x == y && ::fabsf(x) == INFINITY ? x : ::fmaxf(x, y) + ::log1pf(::expf(-::fabsf(x - y)));
}

}  // namespace evt::fn::eager

#endif  // EVT_FUNCTIONS_EAGER_HPP
