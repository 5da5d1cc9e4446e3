#ifndef EVT_DEPTHWISE_GEOMETRY_HPP
#define EVT_DEPTHWISE_GEOMETRY_HPP

// How the output of a depthwise convolution is cut into the tiles of thread blocks, each of which has several threads'
// pixels: what fits in shared memory, and which of that takes the least time.

#include <algorithm>
#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {
namespace depthwise {

constexpr int kChannels = 32;             // of a thread block
constexpr int kPairs = kChannels / 2;     // a thread has two of them
constexpr int kThreads = 256, kBlocks = 2;  // the most threads of a block, and how many blocks registers are left for
constexpr int kSharedBytes = 232448;      // of a thread block, at most
constexpr int kWeightPitch = kChannels + 2;  // neighbouring taps of a channel, and two of its pairs, are in other banks

CUTLASS_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The sizes of a convolution. Those of filters are what the kernel is made for.
struct Problem {
  int images, height, width, channels, filters;
  int filter_height, filter_width;
  int output_height, output_width;
  int pad_height, pad_width, stride_height, stride_width, dilation_height, dilation_width;
};

/// A filter, and the rows and columns of pixels of a thread's unit. Backwards: of a gradient, whose taps are reversed.
template <int Height, int Width, int StrideHeight, int StrideWidth, int DilationHeight, int DilationWidth, int Rows,
          int Columns, bool Backwards>
struct Filter {
  static constexpr int kHeight = Height, kWidth = Width, kTaps = Height * Width;
  static constexpr int kStrideHeight = StrideHeight, kStrideWidth = StrideWidth;
  static constexpr int kDilationHeight = DilationHeight, kDilationWidth = DilationWidth;
  static constexpr int kRows = Rows, kColumns = Columns, kPixels = Rows * Columns;
  static constexpr bool kBackwards = Backwards;
  static constexpr int kInputRows = (Rows - 1) * StrideHeight + (Height - 1) * DilationHeight + 1;
  static constexpr int kInputColumns = (Columns - 1) * StrideWidth + (Width - 1) * DilationWidth + 1;

  /// About the instructions of a thread: multiply-adds, loads of weights, of pixels and their conversion, the epilogue.
  static constexpr int kInstructions =
      kTaps * (2 * kPixels + Rows) + 3 * kInputRows * kInputColumns + 14 * kPixels + 110;

  static bool is_of(Problem const& problem) {
    return problem.filter_height == kHeight && problem.filter_width == kWidth &&
           problem.stride_height == kStrideHeight && problem.stride_width == kStrideWidth &&
           problem.dilation_height == kDilationHeight && problem.dilation_width == kDilationWidth;
  }
};

/// The bytes of an element of A, and of C, if the kernel loads it itself; else 0.
struct ElementBytes {
  int a, c;
};

/// The tile of a thread block: units, each of which is one thread's pixels, of so many images, rows and columns.
struct Geometry {
  int images, rows, columns;
  int box_rows, box_columns;  // of the input
  int tiles_high, tiles_wide;
  int64_t tiles;
  int channel_blocks;

  int units() const { return images * rows * columns; }
  int threads() const { return static_cast<int>(ceil_div(units() * kPairs, 32)) * 32; }
  int box_pixels() const { return images * box_rows * box_columns; }
  int64_t blocks() const { return tiles * channel_blocks; }
};

/// Where a thread block has what in shared memory, in bytes: its input first.
struct Memory {
  int source, filters, weights, barriers, bytes;

  template <class Filter>
  static Memory of(Geometry const& geometry, ElementBytes elements) {
    constexpr int kAlignment = 128, kBarriers = 3;  // of the boxes that TMA loads
    Memory made{};
    made.source = static_cast<int>(ceil_div(geometry.box_pixels() * kChannels * elements.a, kAlignment)) * kAlignment;
    made.filters = made.source + geometry.units() * Filter::kPixels * kChannels * elements.c;
    made.weights = made.filters + Filter::kTaps * kChannels * elements.a;
    made.barriers = made.weights + Filter::kTaps * kWeightPitch * int(sizeof(float));
    made.bytes = made.barriers + kBarriers * int(sizeof(uint64_t));
    return made;
  }
};

template <class Filter>
Geometry cut(Problem const& problem, int images, int rows, int columns) {
  Geometry made{};
  made.images = images, made.rows = rows, made.columns = columns;
  made.box_rows = (rows - 1) * Filter::kRows * Filter::kStrideHeight + Filter::kInputRows;
  made.box_columns = (columns - 1) * Filter::kColumns * Filter::kStrideWidth + Filter::kInputColumns;
  made.tiles_high = static_cast<int>(ceil_div(problem.output_height, rows * Filter::kRows));
  made.tiles_wide = static_cast<int>(ceil_div(problem.output_width, columns * Filter::kColumns));
  made.tiles = ceil_div(problem.images, images) * made.tiles_high * made.tiles_wide;
  made.channel_blocks = static_cast<int>(ceil_div(problem.channels, kChannels));
  return made;
}

template <class Filter>
bool fits(Geometry const& geometry, ElementBytes elements) {
  constexpr int kLargestBox = 256;  // of TMA, in each dimension
  return geometry.threads() <= kThreads && std::max(geometry.box_rows, geometry.box_columns) <= kLargestBox &&
         Memory::of<Filter>(geometry, elements).bytes <= kSharedBytes;
}

/// About the clock cycles that a convolution takes: as long as a multiprocessor issues the instructions of its thread
/// blocks or moves their pixels, and no less than these take one after the other. A fit to an H200's times of 400 kernels
/// of 14 layers, of which it took ones within 3% of the best.
template <class Filter>
double cycles(Geometry const& geometry, ElementBytes elements) {
  constexpr int kMultiprocessors = 132;  // of most GPUs; parts of reductions are counted before the GPU is known
  constexpr int kSchedulers = 4, kRegisters = 128, kMostRegisters = 65536, kMostThreads = 2048;
  constexpr int kReservedBytes = 1024;                 // of each thread block's shared memory, by CUDA
  constexpr int kAllSharedBytes = kSharedBytes + kReservedBytes;
  constexpr double kIssue = 1.5, kAlone = 5.0;         // cycles of an instruction, of several warps and of one
  constexpr double kLoaded = 36.0, kStored = 10.0;     // bytes a cycle
  constexpr double kLatency = 1500.0, kWeight = 8.0;   // of a thread block's first load; of each weight it converts
  int const threads = geometry.threads();
  double const instructions = Filter::kInstructions + kWeight * Filter::kTaps * kChannels / threads;
  double const issued = threads / 32 * instructions / kSchedulers * kIssue;
  Memory const memory = Memory::of<Filter>(geometry, elements);
  double const loaded = memory.filters / kLoaded;
  double const stored = double(geometry.units()) * Filter::kPixels * kChannels * elements.a / kStored;
  int64_t const busiest = ceil_div(geometry.blocks(), kMultiprocessors);
  int64_t const fitting = std::min({kMostThreads / threads, kMostRegisters / kRegisters / threads,
                                    kAllSharedBytes / (memory.bytes + kReservedBytes)});
  int64_t const resident = std::max<int64_t>(std::min(busiest, fitting), 1);
  double const alone = kLatency + loaded + kAlone * instructions;
  return std::max(busiest * std::max(issued, loaded + stored), double(busiest) / resident * alone);
}

/// Return the fastest geometry; without units where none fits.
template <class Filter>
Geometry choose(Problem const& problem, ElementBytes elements) {
  constexpr int kMost = kThreads / kPairs;
  int const across = static_cast<int>(std::min<int64_t>(ceil_div(problem.output_width, Filter::kColumns), kMost));
  int const down = static_cast<int>(std::min<int64_t>(ceil_div(problem.output_height, Filter::kRows), kMost));
  Geometry best{};
  double least = 0;
  for (int columns = 1; columns <= across; ++columns) {
    for (int rows = 1; rows <= down && rows * columns <= kMost; ++rows) {
      bool const whole =
          columns * Filter::kColumns >= problem.output_width && rows * Filter::kRows >= problem.output_height;
      int const most = whole ? std::min(problem.images, kMost / (rows * columns)) : 1;
      for (int images = 1; images <= most; ++images) {
        Geometry const made = cut<Filter>(problem, images, rows, columns);
        if (!fits<Filter>(made, elements)) continue;
        double const taken = cycles<Filter>(made, elements);
        if (best.units() == 0 || taken < least) best = made, least = taken;
      }
    }
  }
  return best;
}

}  // namespace depthwise
}  // namespace evt

#endif  // EVT_DEPTHWISE_GEOMETRY_HPP
