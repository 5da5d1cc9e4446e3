#ifndef EVT_KIT_TMA_HPP
#define EVT_KIT_TMA_HPP

// Copies between global and shared memory by TMA, and the tensors that it copies.

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "cutlass/cutlass.h"

namespace evt {
namespace kit {

// Boxes of tensors of two to five dimensions, the innermost coordinate first.

CUTLASS_DEVICE void prefetch_tma_descriptor(CUtensorMap const& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

CUTLASS_DEVICE void tma_load(uint32_t to, CUtensorMap const& map, uint32_t barrier, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1)
               : "memory");
}
CUTLASS_DEVICE void tma_load(uint32_t to, CUtensorMap const& map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
CUTLASS_DEVICE void tma_load(uint32_t to, CUtensorMap const& map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
CUTLASS_DEVICE void tma_load(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// The order in which L2 evicts the lines of a load.
struct CachePolicy {
  uint64_t bits;
};
inline constexpr CachePolicy kEvictNormal{0x1000000000000000}, kEvictFirst{0x12f0000000000000};

CUTLASS_DEVICE void tma_load(uint32_t to, CUtensorMap const& map, uint32_t barrier, CachePolicy policy, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "l"(policy.bits)
      : "memory");
}
CUTLASS_DEVICE void tma_load(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, CachePolicy policy, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "l"(policy.bits)
      : "memory");
}
CUTLASS_DEVICE void tma_load(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, CachePolicy policy, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy.bits)
      : "memory");
}
CUTLASS_DEVICE void tma_load(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, CachePolicy policy, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
        "l"(policy.bits)
      : "memory");
}

/// Load a box into the same place of several CTAs of a cluster; the bits of `receivers` are their ranks. The barrier of
/// each counts its bytes.
CUTLASS_DEVICE void tma_load_multicast(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "h"(receivers)
      : "memory");
}
CUTLASS_DEVICE void tma_load_multicast(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "h"(receivers)
      : "memory");
}
CUTLASS_DEVICE void tma_load_multicast(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(receivers)
      : "memory");
}
CUTLASS_DEVICE void tma_load_multicast(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
        "h"(receivers)
      : "memory");
}

/// Load contiguous bytes. Their number and both addresses are multiples of 16.
CUTLASS_DEVICE void tma_load_bulk(uint32_t to, void const* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

CUTLASS_DEVICE void tma_store(CUtensorMap const& map, uint32_t from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               ::"l"(reinterpret_cast<uint64_t>(&map)), "r"(from), "r"(c0), "r"(c1)
               : "memory");
}

CUTLASS_DEVICE void tma_store(CUtensorMap const& map, uint32_t from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(reinterpret_cast<uint64_t>(&map)), "r"(from), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}

CUTLASS_DEVICE void tma_store(CUtensorMap const& map, uint32_t from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               ::"l"(reinterpret_cast<uint64_t>(&map)), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

CUTLASS_DEVICE void tma_store(CUtensorMap const& map, uint32_t from, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
               ::"l"(reinterpret_cast<uint64_t>(&map)), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

CUTLASS_DEVICE void tma_store_arrive() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Wait until the committed stores have read their shared memory.
CUTLASS_DEVICE void tma_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// A tensor for TMA, the innermost dimension first and contiguous. `strides` are the other dimensions' strides, in
/// elements; `steps` are the traversal strides from the second dimension on. Elements outside of the tensor are zeros.
template <int Dimensions>
struct TmaTensor {
  CUtensorMapDataType type;
  int element_bytes;
  void const* pointer;
  int64_t extents[Dimensions];
  int64_t strides[Dimensions - 1];
  int box[Dimensions];
  int steps[3];   // 0 counts as 1
  int row_bytes;  // of the box in shared memory: swizzled from 32 bytes on

#if !defined(EVT_DEVICE_PASS)
  /// Encode the descriptor. Return whether the driver accepts it.
  bool encode(CUtensorMap& map) const {
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, cuuint64_t const*,
                                cuuint64_t const*, cuuint32_t const*, cuuint32_t const*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static Encode const encode_tiled = [] {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
      return reinterpret_cast<Encode>(found);
    }();
    if (encode_tiled == nullptr) return false;
    cuuint64_t sizes[Dimensions], bytes[Dimensions - 1];
    cuuint32_t boxes[Dimensions], every[Dimensions];
    for (int i = 0; i < Dimensions; ++i) {
      sizes[i] = static_cast<cuuint64_t>(extents[i]);
      boxes[i] = static_cast<cuuint32_t>(box[i]);
      every[i] = i > 0 && i < 4 && steps[i - 1] > 0 ? static_cast<cuuint32_t>(steps[i - 1]) : 1;
      if (i > 0) bytes[i - 1] = static_cast<cuuint64_t>(strides[i - 1] * element_bytes);
    }
    CUtensorMapSwizzle const swizzle = row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                         : CU_TENSOR_MAP_SWIZZLE_NONE;
    // A box of rows that begin within lines would fetch much beyond its own lines.
    CUtensorMapL2promotion const promotion =
        bytes[0] % 128 != 0 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    return encode_tiled(&map, type, Dimensions, const_cast<void*>(pointer), sizes, bytes, boxes, every,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }
#endif
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_TMA_HPP
