#ifndef EVT_NARROW_HPP
#define EVT_NARROW_HPP

// Conversion of 64-bit integers to their compute type, i32.

#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {

/// The nearest i32 to an i64.
CUTLASS_HOST_DEVICE int32_t narrow(int64_t x) {
  return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : int32_t(x);
}

}  // namespace evt

#endif  // EVT_NARROW_HPP
