#ifndef EVT_KIT_DEPTHWISE_UNITS_HPP
#define EVT_KIT_DEPTHWISE_UNITS_HPP

// The places of CTAs and threads of the kernel of depthwise.hpp: in the output, and in shared memory.

#include "evt/kit/depthwise_filter.hpp"
#include "evt/fragment.hpp"

namespace evt {
namespace depthwise {

/// The lanes that have the elements of a step: see fragment.hpp. The lanes of a row have one unit.
using Lanes = fragment::Lanes<kPairs, 1, false>;

/// A thread block's tile: its first channel and pixel.
template <class Filter>
struct Tile {
  int number, channel, image, row, column;

  CUTLASS_DEVICE Tile(Geometry const& geometry, int block) {
    number = block / geometry.channel_blocks;
    channel = (block - number * geometry.channel_blocks) * kChannels;
    int const of_row = number / geometry.tiles_wide, group = of_row / geometry.tiles_high;
    column = (number - of_row * geometry.tiles_wide) * geometry.columns * Filter::kColumns;
    row = (of_row - group * geometry.tiles_high) * geometry.rows * Filter::kRows;
    image = group * geometry.images;
  }
};

/// A thread's pair of channels, and its first pixel in the tile.
template <class Filter>
struct Unit {
  int pair, image, row, column;
  bool exists;  // the warp's other unit may be the tile's last one

  CUTLASS_DEVICE Unit(Geometry const& geometry, int thread) {
    int const number = thread / 32 * Lanes::kRows + thread % Lanes::kRows, of_row = number / geometry.columns;
    pair = thread % 32 / Lanes::kRows;
    image = of_row / geometry.rows;
    row = (of_row - image * geometry.rows) * Filter::kRows;
    column = (number - of_row * geometry.columns) * Filter::kColumns;
    exists = image < geometry.images;
  }

  /// The beginning of the unit's input in shared memory.
  CUTLASS_DEVICE int input(Geometry const& geometry) const {
    int const pixel = (image * geometry.box_rows + row * Filter::kStrideHeight) * geometry.box_columns +
                      column * Filter::kStrideWidth;
    return (exists ? pixel * kChannels : 0) + 2 * pair;
  }

  /// The beginning of the unit's C in shared memory.
  CUTLASS_DEVICE int source(Geometry const& geometry) const {
    int const of_row = (image * geometry.rows * Filter::kRows + row) * geometry.columns;
    return (exists ? (of_row * Filter::kColumns + column) * kChannels : 0) + 2 * pair;
  }
};

/// A thread's pixels in the output.
template <class Filter>
struct Pixels {
  int first;          // the matrix row of the first pixel
  int width;          // of the output
  int rows, columns;  // pixels inside of the output, from the first on

  CUTLASS_DEVICE Pixels(Problem const& problem, int image, int row, int column)
      : first((image * problem.height.output + row) * problem.width.output + column),
        width(problem.width.output),
        rows(image < problem.images ? problem.height.output - row : 0),
        columns(problem.width.output - column) {}

  CUTLASS_DEVICE bool has(int i) const {
    return i < Filter::kPixels && i / Filter::kColumns < rows && i % Filter::kColumns < columns;
  }
  /// The matrix row of pixel i, or -1 outside of the output.
  CUTLASS_DEVICE int place(int i) const {
    return has(i) ? first + i / Filter::kColumns * width + i % Filter::kColumns : -1;
  }
};

}  // namespace depthwise
}  // namespace evt

#endif  // EVT_KIT_DEPTHWISE_UNITS_HPP
