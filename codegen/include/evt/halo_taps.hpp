#ifndef EVT_HALO_TAPS_HPP
#define EVT_HALO_TAPS_HPP

// The taps of a convolution, in the order in which the kernel of halo.hpp multiplies them, and their filters in shared memory.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "evt/descriptor.hpp"
#include "evt/halo_geometry.hpp"

namespace evt {
namespace halo {

/// Divides numbers from 0 to 2^31 - 1 by one that the host knows, without the division that a GPU has no instruction for.
struct Divisor {
  uint32_t multiplier = 0;  // 2^shift / divisor, rounded up
  int shift = 0;

  static Divisor of(int divisor) {
    int shift = 31;
    while ((int64_t(1) << (shift - 31)) < divisor) ++shift;
    uint64_t const power = uint64_t(1) << shift;
    return {uint32_t((power + divisor - 1) / divisor), shift};
  }

  CUTLASS_HOST_DEVICE int quotient(int number) const { return int(uint64_t(number) * multiplier >> shift); }
};

/// How the filters of a tap lie in shared memory: in a row of channels for each filter, or, where they are transposed,
/// in a row of filters for each channel.
template <int ElementBytes, int Plane, bool Transposed>
struct FilterRows {
  static constexpr int kRows = Transposed ? Plane : kFilters;
  static constexpr int kLength = Transposed ? kFilters : Plane;
  static constexpr int kRowBytes = kLength * ElementBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr uint32_t kLayout = hopper::operand_layout(kRowBytes);
  static constexpr uint32_t kNextK =
      Transposed ? hopper::next_k_of_transposed(kRowBytes, ElementBytes) : hopper::kNextK;
};

/// How the planes of a slice of the output follow one another: those of channels, for each tap along the depth.
struct Depth {
  int planes;  // of channels
  int taps, output, pad, stride, dilation;

  static Depth of(Problem const& problem, int plane) {
    return {ceil_div(problem.channels, plane), problem.depth.taps, problem.depth.output,
            problem.depth.pad,                 problem.depth.stride, problem.depth.dilation};
  }

  CUTLASS_HOST_DEVICE int plane_of_channels(int plane) const { return plane % planes; }
  CUTLASS_HOST_DEVICE int tap(int plane) const { return plane / planes; }
  /// The tap whose filters are multiplied.
  CUTLASS_HOST_DEVICE int tap_of_filters(int plane, bool backwards) const {
    return backwards ? taps - 1 - tap(plane) : tap(plane);
  }
  CUTLASS_HOST_DEVICE int volume(int slice) const { return slice / output; }
  /// The slice of the input that a plane is of, which may be outside of it.
  CUTLASS_HOST_DEVICE int input(int slice, int plane) const {
    return slice % output * stride - pad + tap(plane) * dilation;
  }
};

/// A tap of the filter.
struct Tap {
  uint32_t word;

  static Tap of(int shift, int x, int y, bool enters) {
    return {uint32_t(shift) | uint32_t(x) << 16 | uint32_t(y) << 22 | uint32_t(enters) << 31};
  }

  CUTLASS_HOST_DEVICE int shift() const { return word & 0xffff; }  // in pixels, from the beginning of its group's box
  CUTLASS_HOST_DEVICE int x() const { return word >> 16 & 0x3f; }
  CUTLASS_HOST_DEVICE int y() const { return word >> 22 & 0x3f; }
  CUTLASS_HOST_DEVICE bool enters() const { return word >> 31; }   // is the first of its group
};

/// The taps in the order of their groups. `starts` have where a group's box begins, relative to the tile: the column in
/// the lower 16 bits, the row in the upper.
struct Taps {
  int number = 0, groups = 0;
  uint32_t starts[kMaxTaps];
  Tap tap[kMaxTaps];

  /// Read the filter backwards: what one tap multiplied, the opposite one does.
  void reverse(Problem const& problem) {
    for (int i = 0; i < number; ++i) {
      Tap const& now = tap[i];
      tap[i] = Tap::of(now.shift(), problem.width.taps - 1 - now.x(), problem.height.taps - 1 - now.y(), now.enters());
    }
  }
};

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

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_TAPS_HPP
