#ifndef EVT_KIT_DESCRIPTOR_HPP
#define EVT_KIT_DESCRIPTOR_HPP

// WGMMA's descriptors of operands in shared memory: rows of 128, 64 or 32 bytes, one after the other, swizzled by TMA.
// k runs along the rows of a K-major operand; a transposed operand of 16-bit elements has a row for each k. A row of 16
// bytes has no swizzle, and its k continues in the rows after it: windows that overlap.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "evt/kit/geometry.hpp"

namespace evt {
namespace kit {

/// The lower word of an operand's descriptor. It may begin at any row: the swizzle is a function of the address.
CUTLASS_HOST_DEVICE constexpr uint32_t operand_descriptor(uint32_t address) {
  constexpr uint32_t kLeading = 1;  // from 16 bytes of k to the next, without a swizzle
  return (address >> 4 & 0x3fff) | kLeading << 16;
}

/// The upper word: the swizzle, and the stride, in rows, from eight rows to the next eight. These may begin at any row.
CUTLASS_HOST_DEVICE constexpr uint32_t operand_layout(int row_bytes, int next_eight = 8) {
  uint32_t const swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : row_bytes == 32 ? 3 : 0;
  return uint32_t(next_eight * row_bytes >> 4) | swizzle << 30;
}

/// The difference between the lower words of two successive instructions.
inline constexpr uint32_t kNextK = kDepthBytes >> 4;
CUTLASS_HOST_DEVICE constexpr uint32_t next_k_of_transposed(int row_bytes, int element_bytes) {
  return uint32_t(kDepthBytes / element_bytes * row_bytes >> 4);
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_DESCRIPTOR_HPP
