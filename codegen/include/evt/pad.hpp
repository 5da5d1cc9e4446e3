// Padded copies of convolution operands that a kernel cannot read directly: packed, with zeros after the channels of a
// pixel, and before and after the pixels of a row.
#ifndef EVT_PAD_HPP
#define EVT_PAD_HPP

#include <cstdint>

#include "cutlass/cutlass.h"

#include "evt/finish.hpp"

namespace evt {

template <int Multiple>
CUTLASS_HOST_DEVICE constexpr int64_t rounded_up(int64_t count) {
  return (count + Multiple - 1) / Multiple * Multiple;
}

/// Copy a tensor [outer][slices][rows][pixels][channels] with contiguous channels to the packed
/// [outer][slices][rows][padded_pixels][padded_channels]. `before` pixels of zeros precede a row's pixels. Stores have
/// `Vector` elements, which divide padded_channels. Loads have `Access` elements, which divide the channels and Vector. A
/// row of the copy has less than 2^32 vectors.
template <class Element_, int Vector, int Access = 1>
struct PadJob {
  using Element = Element_;
  static constexpr int kVector = Vector, kAccess = Access;
  static constexpr int kBytes = Vector * static_cast<int>(sizeof(Element));
  static_assert((kBytes & (kBytes - 1)) == 0 && kBytes <= 16, "a vector is one access");
  static_assert(Vector % Access == 0, "a vector is loaded by whole accesses");

  Element const* from;
  Element* to;
  int64_t outer, slices, rows, pixels, channels;
  int64_t stride_outer, stride_slice, stride_row, stride_pixel;
  int64_t before, padded_pixels, padded_channels;
};

namespace detail {

/// The vectors that a lane loads before it stores them, and the vectors of a warp.
constexpr int kPadOfLane = 4, kPadVectors = 32 * kPadOfLane;

template <class Element, int Count>
struct alignas(Count * sizeof(Element)) Padded {
  Element values[Count];
};

template <class Job>
CUTLASS_HOST_DEVICE int64_t vectors_of_row(Job const& job) {
  return job.padded_pixels * (job.padded_channels / Job::kVector);
}

template <class Job>
CUTLASS_HOST_DEVICE int64_t pieces_of_row(Job const& job) {
  return (vectors_of_row(job) + kPadVectors - 1) / kPadVectors;
}

}  // namespace detail

#if !defined(EVT_DEVICE_PASS)
template <class Element, int Vector, int Access>
inline int64_t finish_blocks(PadJob<Element, Vector, Access> const& job) {
  constexpr int64_t kMostBlocks = 1 << 20;
  int64_t const pieces = job.outer * job.slices * job.rows * detail::pieces_of_row(job);
  int64_t const blocks = (pieces + kFinishThreads / 32 - 1) / (kFinishThreads / 32);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}
#endif

/// One warp per piece of a row.
template <class Element, int Vector, int Access>
CUTLASS_DEVICE void finish(PadJob<Element, Vector, Access> const& job) {
  using Loaded = detail::Padded<Element, Access>;
  constexpr int kWarps = kFinishThreads / 32, kAccesses = Vector / Access;
  using Values = detail::Padded<Loaded, kAccesses>;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t const of_pixel = static_cast<uint32_t>(job.padded_channels / Vector);
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
    Values values[detail::kPadOfLane] = {};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < detail::kPadOfLane; ++i) {
      uint32_t const place = static_cast<uint32_t>(start + 32 * i), padded_pixel = place / of_pixel;
      int64_t const pixel = int64_t(padded_pixel) - job.before, channel = (place - padded_pixel * of_pixel) * Vector;
      int64_t const left = pixel >= 0 && pixel < job.pixels ? job.channels - channel : 0;
      Element const* const first = from + pixel * job.stride_pixel + channel;
      CUTLASS_PRAGMA_UNROLL
      for (int access = 0; access < kAccesses; ++access) {
        if (access * Access < left) values[i].values[access] = reinterpret_cast<Loaded const*>(first)[access];
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < detail::kPadOfLane; ++i) {
      if (start + 32 * i < of_row) to[start + 32 * i] = values[i];
    }
  }
}

}  // namespace evt

#endif  // EVT_PAD_HPP
