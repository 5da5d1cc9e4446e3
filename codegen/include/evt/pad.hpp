// Padded copies of convolution operands that CUTLASS cannot read directly: packed, with zeros after the channels of a
// pixel, and before and after the pixels of a row.
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

/// Copy a tensor [outer][slices][rows][pixels][channels] with contiguous channels to the packed
/// [outer][slices][rows][padded_pixels][padded_channels]. `before` pixels of zeros precede a row's pixels. Stores have
/// `Vector` elements, which divide padded_channels.
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

/// The number of vectors of a row that a warp stores at a time.
constexpr int kPadVectors = 32 * 8;

template <class Job>
CUTLASS_HOST_DEVICE int64_t vectors_of_row(Job const& job) {
  return job.padded_pixels * (job.padded_channels / Job::kVector);
}

template <class Job>
CUTLASS_HOST_DEVICE int64_t pieces_of_row(Job const& job) {
  return (vectors_of_row(job) + kPadVectors - 1) / kPadVectors;
}

}  // namespace detail

template <class Element, int Vector>
inline int64_t finish_blocks(PadJob<Element, Vector> const& job) {
  constexpr int64_t kMostBlocks = 1 << 20;
  int64_t const pieces = job.outer * job.slices * job.rows * detail::pieces_of_row(job);
  int64_t const blocks = (pieces + kFinishThreads / 32 - 1) / (kFinishThreads / 32);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

/// One warp per piece of a row.
template <class Element, int Vector>
CUTLASS_DEVICE void finish(PadJob<Element, Vector> const& job) {
  using Values = cutlass::AlignedArray<Element, Vector, PadJob<Element, Vector>::kBytes>;
  constexpr int kWarps = kFinishThreads / 32;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int64_t const of_pixel = job.padded_channels / Vector;
  int64_t const of_row = detail::vectors_of_row(job), pieces_of_row = detail::pieces_of_row(job);
  int64_t const pieces = job.outer * job.slices * job.rows * pieces_of_row;
  int64_t const step = int64_t(gridDim.x) * kWarps;
  for (int64_t piece = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; piece < pieces; piece += step) {
    int64_t const row = piece / pieces_of_row, slice = row / job.rows, outer = slice / job.slices;
    int64_t const start = (piece - row * pieces_of_row) * detail::kPadVectors + lane;
    Element const* __restrict__ const from = job.from + outer * job.stride_outer +
                                             (slice - outer * job.slices) * job.stride_slice +
                                             (row - slice * job.rows) * job.stride_row;
    Values* __restrict__ const to = reinterpret_cast<Values*>(job.to) + row * of_row;
#pragma unroll 4
    for (int i = 0; i < detail::kPadVectors; i += 32) {
      int64_t const place = start + i;
      int64_t const padded_pixel = of_pixel == 1 ? place : place / of_pixel;
      int64_t const pixel = padded_pixel - job.before, channel = (place - padded_pixel * of_pixel) * Vector;
      int64_t const left = pixel >= 0 && pixel < job.pixels ? job.channels - channel : 0;
      Element const* const first = from + pixel * job.stride_pixel + channel;
      Values values;
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < Vector; ++c) {
        values[c] = c < left ? first[c] : Element(0);
      }
      if (place < of_row) to[place] = values;
    }
  }
}

}  // namespace evt

#endif  // EVT_PAD_HPP
