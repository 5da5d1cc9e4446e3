#ifndef EVT_KIT_DIVISOR_HPP
#define EVT_KIT_DIVISOR_HPP

// Division by numbers that the host knows, without a division instruction, which GPUs lack.

#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {
namespace kit {

/// Divides numbers from 0 to 2^31 - 1.
struct FastDivisor {
  uint32_t multiplier = 0;  // 2^shift / divisor, rounded up
  int shift = 0;

#if !defined(EVT_DEVICE_PASS)
  static FastDivisor of(int divisor) {
    int shift = 31;
    while ((int64_t(1) << (shift - 31)) < divisor) ++shift;
    uint64_t const power = uint64_t(1) << shift;
    return {uint32_t((power + divisor - 1) / divisor), shift};
  }
#endif

  CUTLASS_HOST_DEVICE int quotient(int number) const { return int(uint64_t(uint32_t(number)) * multiplier >> shift); }
};

/// Divides numbers below 2^15, in two instructions.
struct SmallDivisor {
  uint32_t multiplier = 0;  // 2^31 / divisor, rounded up; 0: quotients are 0

#if !defined(EVT_DEVICE_PASS)
  static SmallDivisor of(int divisor) { return {((1u << 31) + divisor - 1) / divisor}; }
#endif

  CUTLASS_HOST_DEVICE int quotient(int number) const { return int(uint64_t(uint32_t(2 * number)) * multiplier >> 32); }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_DIVISOR_HPP
