// Copies of a convolution's operands that CUTLASS can read where it cannot read the operands themselves: packed, with
// zeros behind the channels of a pixel, and before and behind the pixels of a row.
#ifndef EVT_PAD_HPP
#define EVT_PAD_HPP

#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"

#include "evt/finish.hpp"

namespace evt {

template <int Multiple>
CUTLASS_HOST_DEVICE constexpr int64_t rounded_up(int64_t count) {
  return (count + Multiple - 1) / Multiple * Multiple;
}

/// A tensor [outer][slices][rows][pixels][channels], whose channels are next to each other, becomes the packed
/// [outer][slices][rows][padded_pixels][padded_channels]; `before` pixels of zeros come before a row's own. `Vector`
/// elements, which divide padded_channels, are stored at a time.
template <class Element_, int Vector>
struct PadJob {
  using Element = Element_;
  static constexpr int kVector = Vector;
  static constexpr int kBytes = Vector * static_cast<int>(sizeof(Element));
  static_assert((kBytes & (kBytes - 1)) == 0 && kBytes <= 16, "a vector is one access");

  Element const* from;
  Element* to;
  int64_t outer, slices, rows, pixels, channels;
  int64_t stride_outer, stride_slice, stride_row, stride_pixel;
  int64_t before, padded_pixels, padded_channels;
};

namespace detail {

/// A warp stores this many accesses of a row at a time.
constexpr int kPadAccesses = 32 * 8;

/// Several pixels that have one vector each are stored together, up to 16 bytes, where rows are whole accesses.
template <class Job>
CUTLASS_HOST_DEVICE int pixels_of_access(Job const& job) {
  int const pixels = 16 / Job::kBytes;
  return job.padded_channels == Job::kVector && job.padded_pixels % pixels == 0 ? pixels : 1;
}

template <class Job>
CUTLASS_HOST_DEVICE int64_t accesses_of_row(Job const& job) {
  return job.padded_pixels * (job.padded_channels / Job::kVector) / pixels_of_access(job);
}

template <class Job>
CUTLASS_HOST_DEVICE int64_t pieces_of_row(Job const& job) {
  return (accesses_of_row(job) + kPadAccesses - 1) / kPadAccesses;
}

/// Store `Pixels` pixels of one vector, or a vector of one, at each access of a piece of a row.
template <int Pixels, class Job>
CUTLASS_DEVICE void pad(Job const& job, typename Job::Element const* from, typename Job::Element* to, int first) {
  using Element = typename Job::Element;
  using Values = cutlass::AlignedArray<Element, Pixels * Job::kVector, Pixels * Job::kBytes>;
  int const of_pixel = Pixels > 1 ? 1 : static_cast<int>(job.padded_channels / Job::kVector);
  int const of_row = static_cast<int>(accesses_of_row(job));
#pragma unroll 4
  for (int i = 0; i < kPadAccesses; i += 32) {
    int const place = first + i;
    if (place >= of_row) return;
    int const padded_pixel = of_pixel == 1 ? place * Pixels : place / of_pixel;
    int const channel = (place * Pixels - padded_pixel * of_pixel) * Job::kVector;
    Values values;
    CUTLASS_PRAGMA_UNROLL
    for (int p = 0; p < Pixels; ++p) {
      int64_t const pixel = padded_pixel + p - job.before;
      int64_t const left = pixel >= 0 && pixel < job.pixels ? job.channels - channel : 0;
      Element const* const source = from + pixel * job.stride_pixel + channel;
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < Job::kVector; ++c) {
        values[p * Job::kVector + c] = c < left ? source[c] : Element(0);
      }
    }
    reinterpret_cast<Values*>(to)[place] = values;
  }
}

}  // namespace detail

template <class Element, int Vector>
inline int64_t finish_blocks(PadJob<Element, Vector> const& job) {
  constexpr int64_t kMostBlocks = 1 << 20;
  int64_t const pieces = job.outer * job.slices * job.rows * detail::pieces_of_row(job);
  int64_t const blocks = (pieces + kFinishThreads / 32 - 1) / (kFinishThreads / 32);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

/// A warp for every piece of a row.
template <class Element, int Vector>
CUTLASS_DEVICE void finish(PadJob<Element, Vector> const& job) {
  constexpr int kWarps = kFinishThreads / 32, kMostPixels = 16 / PadJob<Element, Vector>::kBytes;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  bool const together = detail::pixels_of_access(job) > 1;
  int64_t const row_elements = job.padded_pixels * job.padded_channels, pieces_of_row = detail::pieces_of_row(job);
  int64_t const pieces = job.outer * job.slices * job.rows * pieces_of_row;
  int64_t const step = int64_t(gridDim.x) * kWarps;
  for (int64_t piece = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; piece < pieces; piece += step) {
    int64_t const row = piece / pieces_of_row, slice = row / job.rows, outer = slice / job.slices;
    int const first = static_cast<int>(piece - row * pieces_of_row) * detail::kPadAccesses + lane;
    Element const* __restrict__ const from = job.from + outer * job.stride_outer +
                                             (slice - outer * job.slices) * job.stride_slice +
                                             (row - slice * job.rows) * job.stride_row;
    Element* __restrict__ const to = job.to + row * row_elements;
    if (together) {
      detail::pad<kMostPixels>(job, from, to, first);
    } else {
      detail::pad<1>(job, from, to, first);
    }
  }
}

}  // namespace evt

#endif  // EVT_PAD_HPP
