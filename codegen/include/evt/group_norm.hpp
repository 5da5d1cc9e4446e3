#ifndef EVT_GROUP_NORM_HPP
#define EVT_GROUP_NORM_HPP

// A group norm of an image whose channels are neighbours in memory, and SiLU, by one kernel that reads the image once.
//
// The CTAs of a cluster share the pixels of some groups of an image. Each CTA copies its pixels to shared memory, and
// computes the mean of each group and the sum of the squared differences from it. The CTAs then send both to each
// other, and merge them by Chan's formula in the order of their ranks. They apply the norm to the copies.

#include <cstdint>

#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/functions.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace group_norm {

constexpr int kWarp = 32, kVector = 8;

/// The image, its norm and the vectors of channels, which may be null; strides in elements.
template <class Element, class Gain>
struct Params {
  Element const* image;
  Element* to;
  Gain const* gain;
  Gain const* shift;
  int64_t image_stride;
  int64_t pixel_stride;
  int32_t pixels;
  int32_t channels;
  float epsilon;
};

CUTLASS_DEVICE float warp_sum(float x) {
  CUTLASS_PRAGMA_UNROLL
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

/// A norm of groups of `OfGroup` channels, at least eight. A cluster of `Ctas` has `Slice` channels of an image: whole
/// groups, and whole vectors of eight channels. A vector has channels of at most two groups.
template <class Element, class Gain, int OfGroup, int Slice, int Ctas, int Threads, bool IsSilu>
struct Kernel {
  static constexpr int kGroups = Slice / OfGroup, kVectors = Slice / kVector, kRows = Threads / kVectors;
  static constexpr int kWarps = Threads / kWarp;
  static_assert(OfGroup >= kVector && Slice % OfGroup == 0 && Slice % kVector == 0 && kRows > 0);

  /// The memory of a CTA before its copies. `moments` has the mean of each group and the sum of the squared differences
  /// from it, by the pixels of each CTA of the cluster; `all` has the group's mean and 1 / its standard deviation.
  struct alignas(uint4) Shared {
    float sums[2][kWarps][kGroups];
    float2 moments[Ctas][kGroups], all[kGroups];
    uint64_t exchanged;
  };

  /// The elements of a vector.
  union Vector {
    uint4 words;
    Element elements[kVector];
  };

  /// Replace a thread's parts of the groups `first` and `first` + 1 by the sums of all threads' parts. `sums` is scratch.
  static CUTLASS_DEVICE void add(float (&sums)[kWarps][kGroups], int first, float (&parts)[2]) {
    CUTLASS_PRAGMA_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      float const part = (group == first ? parts[0] : 0.0f) + (group == first + 1 ? parts[1] : 0.0f);
      float const sum = warp_sum(part);
      if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp][group] = sum;
    }
    __syncthreads();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; ++i) {
      int const group = min(first + i, kGroups - 1);
      parts[i] = 0.0f;
      CUTLASS_PRAGMA_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) parts[i] += sums[warp][group];
    }
  }

  /// Normalize the pixels of a CTA. The memory has the CTA's pixels behind `Shared`.
  static CUTLASS_DEVICE void run(Params<Element, Gain> const& params, char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    int const rank = kit::block_rank_in_cluster(), thread = threadIdx.x;
    int const row = thread / kVectors, channel = thread % kVectors * kVector;
    int const pixels_of_cta = (params.pixels + Ctas - 1) / Ctas;
    auto const pixels_of = [&](int rank) {
      return min(pixels_of_cta, params.pixels - min(rank * pixels_of_cta, params.pixels));
    };
    int const begin = min(rank * pixels_of_cta, params.pixels), pixels = pixels_of(rank);
    int const channel_of_image = blockIdx.x / Ctas * Slice + channel;
    uint32_t const exchanged = kit::cast_smem_ptr_to_uint(&shared.exchanged);
    if (thread == 0) {
      kit::barrier_init(exchanged, 1);
      kit::fence_barrier_init();
    }
    kit::cluster_arrive_relaxed();
    // The group of the vector's first channel, and the number of its channels in the vector.
    int const group = channel / OfGroup, of_first = min(kVector, (group + 1) * OfGroup - channel);
    uint4* const copies = reinterpret_cast<uint4*>(memory + sizeof(Shared)) + thread % kVectors;
    Element const* const from =
        params.image + blockIdx.y * params.image_stride + begin * params.pixel_stride + channel_of_image;
    int const first_pixel = row < kRows ? row : pixels;
    for (int i = first_pixel; i < pixels; i += kRows) {
      kit::copy_word_async<sizeof(uint4)>(kit::cast_smem_ptr_to_uint(copies + i * kVectors),
                                          from + i * params.pixel_stride, sizeof(uint4));
    }
    float gain[kVector], shift[kVector];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kVector; ++j) {
      gain[j] = params.gain ? element::load(params.gain[channel_of_image + j]) : 1.0f;
      shift[j] = params.shift ? element::load(params.shift[channel_of_image + j]) : 0.0f;
    }
    kit::copies_commit();
    kit::copies_wait<0>();  // a thread reads only its own copies
    float sums[kVector] = {};
#pragma unroll 4
    for (int i = first_pixel; i < pixels; i += kRows) {
      Vector const x = {copies[i * kVectors]};
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kVector; ++j) sums[j] += element::load(x.elements[j]);
    }
    float means[2] = {};
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kVector; ++j) {
      means[0] += j < of_first ? sums[j] : 0.0f;
      means[1] += j < of_first ? 0.0f : sums[j];
    }
    add(shared.sums[0], group, means);
    float const count = float(pixels * OfGroup);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; ++i) means[i] = pixels > 0 ? means[i] / count : 0.0f;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kVector; ++j) sums[j] = 0.0f;
#pragma unroll 4
    for (int i = first_pixel; i < pixels; i += kRows) {
      Vector const x = {copies[i * kVectors]};
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kVector; ++j) {
        float const difference = element::load(x.elements[j]) - (j < of_first ? means[0] : means[1]);
        sums[j] += difference * difference;
      }
    }
    float squares[2] = {};
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kVector; ++j) {
      squares[0] += j < of_first ? sums[j] : 0.0f;
      squares[1] += j < of_first ? 0.0f : sums[j];
    }
    add(shared.sums[1], group, squares);
    // Not beside the initialization: compute-sanitizer takes the two for a race of the warp's lanes.
    if (thread == 0) kit::arrive_and_expect_tx(exchanged, sizeof(shared.moments));
    kit::cluster_wait();  // the barriers of the cluster are initialized
    if (row == 0) {  // the thread of a group's first channel sends the moments of the CTA to the cluster
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        int const first = (group + i) * OfGroup;
        if (channel > first || first >= channel + kVector) continue;
        float2& mine = shared.moments[rank][group + i];
        float2 const moments = make_float2(means[i], squares[i]);
        if constexpr (Ctas == 1) mine = moments;  // a launch without clusters has no st.async
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < (Ctas > 1 ? Ctas : 0); ++block) {
          kit::store_async(kit::set_block_rank(kit::cast_smem_ptr_to_uint(&mine), block), moments,
                           kit::set_block_rank(exchanged, block));
        }
      }
    }
    if constexpr (Ctas == 1) __syncthreads();
    if (thread < kGroups) {
      if constexpr (Ctas > 1) kit::barrier_wait_cluster(exchanged);
      float mean = 0.0f, rest = 0.0f;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Ctas; ++i) mean += shared.moments[i][thread].x * float(pixels_of(i));
      mean /= float(params.pixels);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Ctas; ++i) {
        float2 const of_cta = shared.moments[i][thread];
        float const difference = of_cta.x - mean;
        rest += of_cta.y + float(pixels_of(i) * OfGroup) * difference * difference;
      }
      float const variance = rest / float(params.pixels * OfGroup);
      shared.all[thread] = make_float2(mean, 1.0f / ::sqrtf(variance + params.epsilon));
    }
    __syncthreads();
    pdl::let_next_kernel_begin();
    float2 const first = shared.all[group], second = shared.all[min(group + 1, kGroups - 1)];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kVector; ++j) gain[j] *= j < of_first ? first.y : second.y;
    Element* const to = params.to + (int64_t(blockIdx.y) * params.pixels + begin) * params.channels + channel_of_image;
#pragma unroll 2
    for (int i = first_pixel; i < pixels; i += kRows) {
      Vector x = {copies[i * kVectors]};
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kVector; ++j) {
        float const difference = element::load(x.elements[j]) - (j < of_first ? first.x : second.x);
        float const normed = difference * gain[j] + shift[j];
        element::store(x.elements[j], IsSilu ? fn::silu(normed) : normed);
      }
      *reinterpret_cast<uint4*>(to + int64_t(i) * params.channels) = x.words;
    }
  }
};

}  // namespace group_norm
}  // namespace evt

#endif  // EVT_GROUP_NORM_HPP
