// Copies of a convolution's operands in which CUTLASS can read few channels: packed, with zeros behind the channels, and
// before and behind the pixels of a row.
#ifndef EVT_PAD_HPP
#define EVT_PAD_HPP

#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"

#include "evt/finish.hpp"

namespace evt {

/// The pixels of a padded row, so that a row of so many Channels is whole vectors of 16 bytes.
template <class Element, int Channels>
CUTLASS_HOST_DEVICE constexpr int64_t whole_vectors(int64_t pixels) {
  constexpr int64_t kPixel = Channels * static_cast<int64_t>(sizeof(Element));
  constexpr int64_t kVector = kPixel >= 16 ? 1 : 16 / kPixel;
  return (pixels + kVector - 1) / kVector * kVector;
}

/// A tensor [outer][rows][pixels][channels], whose channels are next to each other, becomes the packed
/// [outer][rows][padded_pixels][Channels]; `before` pixels of zeros come before its own.
template <class Element_, int Channels>
struct PadJob {
  using Element = Element_;
  static constexpr int kChannels = Channels;
  static constexpr int kPixelBytes = Channels * static_cast<int>(sizeof(Element));
  static constexpr int kAlignment = kPixelBytes < 16 ? kPixelBytes : 16;
  using Pixel = cutlass::AlignedArray<Element, Channels, kAlignment>;
  static_assert((kPixelBytes & (kPixelBytes - 1)) == 0, "a pixel is moved by whole accesses");

  Element const* from;
  Element* to;
  int64_t outer, rows, pixels, channels;
  int64_t stride_outer, stride_row, stride_pixel;
  int64_t before, padded_pixels;
};

template <class Element, int Channels>
inline int64_t finish_blocks(PadJob<Element, Channels> const& job) {
  constexpr int64_t kMostBlocks = 1 << 20;
  int64_t const blocks = (job.outer * job.rows + kFinishThreads / 32 - 1) / (kFinishThreads / 32);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

/// A warp for every row.
template <class Element, int Channels>
CUTLASS_DEVICE void finish(PadJob<Element, Channels> const& job) {
  using Pixel = typename PadJob<Element, Channels>::Pixel;
  constexpr int kWarps = kFinishThreads / 32;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int64_t const step = int64_t(gridDim.x) * kWarps;
  for (int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; row < job.outer * job.rows; row += step) {
    int64_t const outer = row / job.rows;
    Element const* const from = job.from + outer * job.stride_outer + (row - outer * job.rows) * job.stride_row;
    Pixel* const to = reinterpret_cast<Pixel*>(job.to) + row * job.padded_pixels;
    for (int64_t place = lane; place < job.padded_pixels; place += 32) {
      int64_t const pixel = place - job.before;
      bool const inside = pixel >= 0 && pixel < job.pixels;
      Pixel values;
      CUTLASS_PRAGMA_UNROLL
      for (int channel = 0; channel < Channels; ++channel) {
        values[channel] = inside && channel < job.channels ? from[pixel * job.stride_pixel + channel] : Element(0);
      }
      to[place] = values;
    }
  }
}

}  // namespace evt

#endif  // EVT_PAD_HPP
