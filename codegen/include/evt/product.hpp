#ifndef EVT_PRODUCT_HPP
#define EVT_PRODUCT_HPP

// Products without FMA contraction: a * b + c rounds twice, as two PyTorch operations do.

#include "cutlass/cutlass.h"

namespace evt {

CUTLASS_HOST_DEVICE float product(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

CUTLASS_HOST_DEVICE double product(double x, double y) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(x, y);
#else
  return x * y;
#endif
}

}  // namespace evt

#endif  // EVT_PRODUCT_HPP
