#ifndef EVT_KIT_DEPTHWISE_MAINLOOP_HPP
#define EVT_KIT_DEPTHWISE_MAINLOOP_HPP

// The sums of the kernel of depthwise.hpp, from shared memory, and the weights there: numbers of f32, tap by tap.

#include <cstdint>

#include "evt/kit/depthwise_filter.hpp"
#include "evt/element.hpp"

namespace evt {
namespace depthwise {

/// Two neighbouring elements, as numbers.
template <class T>
CUTLASS_DEVICE float2 load_pair(T const* from) {
  uint32_t const word = *reinterpret_cast<uint32_t const*>(from);
  return {element::load_first<T>(word), element::load_second<T>(word)};
}
CUTLASS_DEVICE float2 load_pair(float const* from) { return *reinterpret_cast<float2 const*>(from); }

/// The weights of a tap in shared memory.
template <class Filter>
CUTLASS_DEVICE float* of_tap(float* weights, int tap) {
  return weights + (Filter::kBackwards ? Filter::kTaps - 1 - tap : tap) * kWeightPitch;
}

/// Convert a CTA's packed filters to weights, tap by tap. The sums of channels beyond the last are not stored.
template <class Filter, class Element>
CUTLASS_DEVICE void widen(Element const* filters, float* weights) {
  for (int i = threadIdx.x; i < Filter::kTaps * kChannels; i += blockDim.x) {
    int const tap = i / kChannels, channel = i % kChannels;
    of_tap<Filter>(weights, tap)[channel] = element::load(filters[channel * Filter::kTaps + tap]);
  }
}

/// The layout of filters: the strides of filters, and of rows and columns of taps.
template <class Element>
struct Filters {
  Element const* pointer;
  int64_t stride, row_stride, tap_stride;
};

/// Convert filters with any strides to weights, from `first_filter` on. Neighbouring threads load neighbouring taps,
/// several at a time.
template <class Filter, class Element>
CUTLASS_DEVICE void gather(Filters<Element> const& filters, int first_filter, int number, float* weights) {
  constexpr int kWeights = Filter::kTaps * kChannels, kAtATime = 8;
  for (int first = threadIdx.x; first < kWeights; first += kAtATime * blockDim.x) {
    Element loaded[kAtATime];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kAtATime; ++j) {
      int const i = first + j * blockDim.x, channel = i / Filter::kTaps, tap = i - channel * Filter::kTaps;
      loaded[j] = {};
      if (i < kWeights && first_filter + channel < number) {
        int const row = tap / Filter::kWidth, column = tap % Filter::kWidth;
        loaded[j] = filters.pointer[(first_filter + channel) * filters.stride + row * filters.row_stride +
                                    column * filters.tap_stride];
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kAtATime; ++j) {
      int const i = first + j * blockDim.x, channel = i / Filter::kTaps, tap = i - channel * Filter::kTaps;
      if (i < kWeights) of_tap<Filter>(weights, tap)[channel] = element::load(loaded[j]);
    }
  }
}

/// Whether an output of `outputs`, every `stride` inputs, meets an input by one of some taps.
CUTLASS_HOST_DEVICE constexpr bool meets(int input, int outputs, int stride, int taps, int dilation) {
  for (int output = 0; output < outputs; ++output) {
    int const reach = input - output * stride;
    if (reach >= 0 && reach % dilation == 0 && reach / dilation < taps) return true;
  }
  return false;
}

/// Sum up a thread's pixels, row by row of the input, `pitch` elements apart.
template <class Filter, class Element>
CUTLASS_DEVICE void multiply(Element const* input, int pitch, float const* weights,
                             float2 (&sums)[Filter::kRows][Filter::kColumns]) {
  CUTLASS_PRAGMA_UNROLL
  for (int y = 0; y < Filter::kInputRows; ++y) {
    if (!meets(y, Filter::kRows, Filter::kStrideHeight, Filter::kHeight, Filter::kDilationHeight)) continue;
    float2 values[Filter::kInputColumns];
    CUTLASS_PRAGMA_UNROLL
    for (int x = 0; x < Filter::kInputColumns; ++x) {
      if (meets(x, Filter::kColumns, Filter::kStrideWidth, Filter::kWidth, Filter::kDilationWidth)) {
        values[x] = load_pair(input + y * pitch + x * kChannels);
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < Filter::kRows; ++row) {
      int const reach = y - row * Filter::kStrideHeight, of_row = reach / Filter::kDilationHeight;
      if (reach < 0 || reach % Filter::kDilationHeight != 0 || of_row >= Filter::kHeight) continue;
      float const* const taps = weights + of_row * Filter::kWidth * kWeightPitch;
      CUTLASS_PRAGMA_UNROLL
      for (int tap = 0; tap < Filter::kWidth; ++tap) {
        float2 const weight = *reinterpret_cast<float2 const*>(taps + tap * kWeightPitch);
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < Filter::kColumns; ++column) {
          float2 const value = values[column * Filter::kStrideWidth + tap * Filter::kDilationWidth];
          sums[row][column].x += value.x * weight.x;
          sums[row][column].y += value.y * weight.y;
        }
      }
    }
  }
}

}  // namespace depthwise
}  // namespace evt

#endif  // EVT_KIT_DEPTHWISE_MAINLOOP_HPP
