#ifndef EVT_NARROW_HPP
#define EVT_NARROW_HPP

// Integers of 64 bits are computed in 32.

#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {

/// The i32 nearest to an i64.
CUTLASS_HOST_DEVICE int32_t narrow(int64_t x) {
  return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : int32_t(x);
}

}  // namespace evt

#endif  // EVT_NARROW_HPP
