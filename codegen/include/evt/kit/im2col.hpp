#ifndef EVT_KIT_IM2COL_HPP
#define EVT_KIT_IM2COL_HPP

// TMA's im2col mode: a box has some channels of successive output pixels, each at the same tap of the filter. The pixels
// of a box continue in the next row and in the next image. Elements outside of the images are zeros.

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "cutlass/cutlass.h"

namespace evt {
namespace kit {

/// The input pixel that the first tap of a box's first output pixel reads.
struct PixelPlace {
  int channel, column, row, image;
};

/// The distance of a tap from the first one, in input pixels.
struct TapOffset {
  uint16_t columns, rows;
};

CUTLASS_DEVICE void tma_load_pixels(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, PixelPlace const& at, TapOffset const& tap) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(at.channel), "r"(at.column), "r"(at.row),
        "r"(at.image), "h"(tap.columns), "h"(tap.rows)
      : "memory");
}
CUTLASS_DEVICE void tma_load_pixels_multicast(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, PixelPlace const& at, TapOffset const& tap) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;"
      ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(at.channel), "r"(at.column), "r"(at.row),
        "r"(at.image), "h"(tap.columns), "h"(tap.rows), "h"(receivers)
      : "memory");
}

/// Images for TMA's im2col mode. The first tap of output pixels reads every `steps`-th pixel of a rectangle. The rectangle
/// begins `first` after the first pixel of an image, and ends `last` after the last one. Pairs are columns and rows.
struct TmaPixels {
  CUtensorMapDataType type;
  int element_bytes;
  void const* pointer;
  int64_t extents[4];  // channels, columns, rows, images
  int64_t strides[3];  // in elements: columns, rows, images
  int first[2], last[2], steps[2];
  int channels, pixels;  // of a box; its rows of channels are 128 bytes, which are swizzled

#if !defined(EVT_DEVICE_PASS)
  /// Encode the descriptor. Return whether the driver accepts it.
  bool encode(CUtensorMap& map) const {
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, cuuint64_t const*,
                                cuuint64_t const*, int const*, int const*, cuuint32_t, cuuint32_t, cuuint32_t const*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill);
    static Encode const encode_im2col = [] {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &found, 12000, cudaEnableDefault, &result);
      return reinterpret_cast<Encode>(found);
    }();
    if (encode_im2col == nullptr) return false;
    cuuint64_t sizes[4], bytes[3];
    for (int i = 0; i < 4; ++i) sizes[i] = static_cast<cuuint64_t>(extents[i]);
    for (int i = 0; i < 3; ++i) bytes[i] = static_cast<cuuint64_t>(strides[i] * element_bytes);
    // A box of rows that begin within lines would fetch much beyond its own lines.
    CUtensorMapL2promotion const promotion =
        bytes[0] % 128 != 0 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    cuuint32_t const every[4] = {1, static_cast<cuuint32_t>(steps[0]), static_cast<cuuint32_t>(steps[1]), 1};
    return encode_im2col(&map, type, 4, const_cast<void*>(pointer), sizes, bytes, first, last,
                         static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(pixels), every,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }
#endif
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_IM2COL_HPP
