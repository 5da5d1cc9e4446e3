#ifndef EVT_KIT_TAPS_HPP
#define EVT_KIT_TAPS_HPP

// The taps of a convolution in the order of their multiplication, and their filters in shared memory.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "evt/kit/descriptor.hpp"
#include "evt/kit/geometry.hpp"

namespace evt {
namespace kit {

/// The filters of a tap in shared memory, `Columns` of them: a row of channels for each filter, or, transposed, a row of
/// filters for each channel.
template <int ElementBytes, int Channels, bool Transposed, int Columns = kFilters>
struct FilterRows {
  static constexpr int kRows = Transposed ? Channels : Columns;
  static constexpr int kLength = Transposed ? Columns : Channels;
  static constexpr int kRowBytes = swizzled_row(kLength * ElementBytes);
  static constexpr int kBytes = kRows * kRowBytes, kLoadedBytes = kRows * kLength * ElementBytes;
  static constexpr uint32_t kLayout = operand_layout(kRowBytes);
  static constexpr uint32_t kNextK =
      Transposed ? next_k_of_transposed(kRowBytes, ElementBytes) : kit::kNextK;
};

/// Successive blocks of channels.
struct BlockRange {
  int first, number;
};

/// The order of the blocks of a slice of the output: all blocks of channels, for each tap along the depth.
struct Depth {
  int channel_blocks;
  int size, taps, output, pad, stride, dilation;

#if !defined(EVT_DEVICE_PASS)
  static Depth of(Problem const& problem, int channels) {
    Axis const& depth = problem.depth;
    return {ceil_div(problem.channels, channels), depth.size, depth.taps, depth.output, depth.pad, depth.stride,
            depth.dilation};
  }
#endif

  /// The tap of the filters that a tap along the depth multiplies.
  CUTLASS_HOST_DEVICE int tap_of_filters(int tap, bool backwards) const { return backwards ? taps - 1 - tap : tap; }
  /// The slice of the input that a tap reads; it may be outside of the input.
  CUTLASS_HOST_DEVICE int input(int slice, int tap) const { return slice * stride - pad + tap * dilation; }
  /// The blocks that read slices within the input; the last tap's if there are none.
  CUTLASS_HOST_DEVICE BlockRange inside(int slice) const {
    int const start = slice * stride - pad, last = taps - 1;
    int const first = start < 0 ? (dilation - 1 - start) / dilation : 0;
    int const end = start < size ? (size - 1 - start) / dilation : 0;
    int const from = first < last ? first : last, to = end < last ? end : last;
    return {from * channel_blocks, (to < from ? 1 : to - from + 1) * channel_blocks};
  }
};

/// A block of channels, and its tap along the depth of a volume. It advances without a division: a producer's divisions
/// took longer than the multiplication of a tap.
template <bool Volume>
struct DepthBlock {
  int channels, tap = 0;

  CUTLASS_HOST_DEVICE DepthBlock(Depth const& depth, int block) : channels(block) {
    if constexpr (Volume) {
      tap = block / depth.channel_blocks;
      channels = block % depth.channel_blocks;
    }
  }

  CUTLASS_HOST_DEVICE void advance(Depth const& depth) {
    ++channels;
    if (Volume && channels == depth.channel_blocks) {
      channels = 0;
      ++tap;
    }
  }
};

/// A tap of the filter.
struct Tap {
  uint32_t word;

#if !defined(EVT_DEVICE_PASS)
  static Tap of(int shift, int x, int y, bool enters) {
    return {uint32_t(shift) | uint32_t(x) << 16 | uint32_t(y) << 22 | uint32_t(enters) << 31};
  }
#endif

  CUTLASS_HOST_DEVICE int shift() const { return word & 0xffff; }  // pixels from the beginning of its group's box
  CUTLASS_HOST_DEVICE int x() const { return word >> 16 & 0x3f; }
  CUTLASS_HOST_DEVICE int y() const { return word >> 22 & 0x3f; }
  CUTLASS_HOST_DEVICE bool enters() const { return word >> 31; }  // the first tap of its group
};

/// The taps in the order of their groups. `starts` are the places of the groups' boxes, relative to the tile: the
/// column in the lower 16 bits, the row in the upper.
struct Taps {
  int number = 0, groups = 0;
  uint32_t starts[kMaxTaps];
  Tap tap[kMaxTaps];

#if !defined(EVT_DEVICE_PASS)
  /// Read the filter backwards: exchange opposite taps.
  void reverse(Problem const& problem) {
    for (int i = 0; i < number; ++i) {
      Tap const& now = tap[i];
      tap[i] = Tap::of(now.shift(), problem.width.taps - 1 - now.x(), problem.height.taps - 1 - now.y(), now.enters());
    }
  }
#endif
};

#if !defined(EVT_DEVICE_PASS)
inline Taps taps_of(Problem const& problem, int pitch) {
  Taps result;
  for (int y0 = 0; y0 < problem.height.stride; ++y0) {
    for (int x0 = 0; x0 < problem.width.stride; ++x0) {
      bool enters = true;
      for (int y = 0; y < problem.height.taps; ++y) {
        for (int x = 0; x < problem.width.taps; ++x) {
          int const down = y * problem.height.dilation, right = x * problem.width.dilation;
          if (down % problem.height.stride != y0 || right % problem.width.stride != x0) continue;
          if (enters) {
            result.starts[result.groups++] =
                uint32_t(uint16_t(x0 - problem.width.pad)) | uint32_t(uint16_t(y0 - problem.height.pad)) << 16;
          }
          int const shift = down / problem.height.stride * pitch + right / problem.width.stride;
          result.tap[result.number++] = Tap::of(shift, x, y, enters);
          enters = false;
        }
      }
    }
  }
  return result;
}
#endif

/// The residue classes of the output's pixels in the gradient of a convolution with a stride, those with the most taps
/// first. The pixels of a class begin at a row and a column, and are a stride apart.
struct Residues {
  int number = 0;
  int stride_height, stride_width;
  int row[kMaxClasses], column[kMaxClasses];
  int rows[kMaxClasses], columns[kMaxClasses];  // of pixels
  int first_tap[kMaxClasses + 1];

  CUTLASS_HOST_DEVICE BlockRange taps(int residue) const {
    return {first_tap[residue], first_tap[residue + 1] - first_tap[residue]};
  }

#if !defined(EVT_DEVICE_PASS)
  /// The remainder of the output's coordinates that a tap contributes to.
  static int remainder(Axis const& axis, int tap) {
    return (tap * axis.dilation + axis.pad * (axis.stride - 1)) % axis.stride;
  }
  /// The distance of a tap's pixels from the first one of a box.
  static int shift(Axis const& axis, int tap) {
    return (axis.pad - tap * axis.dilation + remainder(axis, tap)) / axis.stride + axis.of_residue().pad;
  }
#endif
};

#if !defined(EVT_DEVICE_PASS)
inline Taps taps_of_residues(Problem const& problem, int pitch, Residues& residues) {
  Axis const &height = problem.height, &width = problem.width;
  Taps result;
  residues.stride_height = height.stride;
  residues.stride_width = width.stride;
  result.groups = 1;
  result.starts[0] = uint32_t(uint16_t(-width.of_residue().pad)) | uint32_t(uint16_t(-height.of_residue().pad)) << 16;
  for (int count = problem.tap_count(); count >= 0; --count) {
    for (int row = 0; row < height.remainders(); ++row) {
      for (int column = 0; column < width.remainders(); ++column) {
        int const first = result.number;
        for (int y = 0; y < height.taps; ++y) {
          for (int x = 0; x < width.taps; ++x) {
            if (Residues::remainder(height, y) != row || Residues::remainder(width, x) != column) continue;
            int const shift = Residues::shift(height, y) * pitch + Residues::shift(width, x);
            result.tap[result.number] = Tap::of(shift, x, y, result.number == first);
            ++result.number;
          }
        }
        if (result.number - first != count) {
          result.number = first;
          continue;
        }
        residues.row[residues.number] = row;
        residues.column[residues.number] = column;
        residues.rows[residues.number] = ceil_div(height.output - row, height.stride);
        residues.columns[residues.number] = ceil_div(width.output - column, width.stride);
        residues.first_tap[residues.number++] = first;
      }
    }
  }
  residues.first_tap[residues.number] = result.number;
  return result;
}
#endif

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_TAPS_HPP
