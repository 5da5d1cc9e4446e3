#ifndef EVT_ROUNDED_HPP
#define EVT_ROUNDED_HPP

// Arithmetic without FMA contraction. Each operation of PyTorch is a kernel that rounds its result, so a * b + c rounds
// twice. A product inside another function is not contracted with such a sum either.

#include "evt/functions.hpp"

namespace evt::rounded {

EVT_HOST_DEVICE float sum(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(x, y);
#else
  return x + y;
#endif
}

EVT_HOST_DEVICE double sum(double x, double y) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(x, y);
#else
  return x + y;
#endif
}

template <class T>
EVT_HOST_DEVICE T difference(T x, T y) {
  return sum(x, -y);
}

EVT_HOST_DEVICE float product(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

EVT_HOST_DEVICE double product(double x, double y) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(x, y);
#else
  return x * y;
#endif
}

}  // namespace evt::rounded

#endif  // EVT_ROUNDED_HPP
