#ifndef EVT_KIT_DEPTHWISE_FILTER_HPP
#define EVT_KIT_DEPTHWISE_FILTER_HPP

// The filter of the kernel of depthwise.hpp, and the pixels of a thread, at compile time.

#include "cutlass/cutlass.h"
#include "evt/kit/depthwise_geometry.hpp"

namespace evt {
namespace depthwise {

/// A filter, and the rows and columns of pixels of a thread's unit. Backwards: a gradient, with reversed taps.
template <int Height, int Width, int StrideHeight, int StrideWidth, int DilationHeight, int DilationWidth, int Rows,
          int Columns, bool Backwards>
struct Filter {
  static constexpr int kHeight = Height, kWidth = Width, kTaps = Height * Width;
  static constexpr int kStrideHeight = StrideHeight, kStrideWidth = StrideWidth;
  static constexpr int kDilationHeight = DilationHeight, kDilationWidth = DilationWidth;
  static constexpr int kRows = Rows, kColumns = Columns, kPixels = Rows * Columns;
  static constexpr bool kBackwards = Backwards;
  static constexpr FilterShape kShape{Height,         Width,         StrideHeight, StrideWidth,
                                      DilationHeight, DilationWidth, Rows,         Columns};
  static constexpr int kInputRows = kShape.input_rows(), kInputColumns = kShape.input_columns();

#if !defined(EVT_DEVICE_PASS)
  static bool is_of(Problem const& problem) {
    Axis const &height = problem.height, &width = problem.width;
    return height.taps == kHeight && width.taps == kWidth && height.stride == kStrideHeight &&
           width.stride == kStrideWidth && height.dilation == kDilationHeight && width.dilation == kDilationWidth;
  }
#endif
};

}  // namespace depthwise
}  // namespace evt

#endif  // EVT_KIT_DEPTHWISE_FILTER_HPP
