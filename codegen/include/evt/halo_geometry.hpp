#ifndef EVT_HALO_GEOMETRY_HPP
#define EVT_HALO_GEOMETRY_HPP

// How the kernel of halo.hpp cuts a convolution into tiles, and what of them is in shared memory.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cutlass/cutlass.h"
#include "evt/descriptor.hpp"

namespace evt {
namespace halo {

constexpr int kFilters = 64;       // of a tile, M of WGMMA
constexpr int kMostTaps = 64;      // of a filter
constexpr int kMostStages = 8;     // of the input
constexpr int kEnoughStages = 5;   // of a product whose filters stay
constexpr int kWideners = 3;       // warps that load boxes of few channels, each in stages of its own
constexpr int kMostSlabs = 64;     // of the filters
constexpr int kRuns[] = {3, 5, 1};  // of taps, the best first
constexpr int kSharedBytes = 232448;
constexpr int kBarrierBytes = 8 * (2 * kMostStages + 2 * kMostSlabs + 8);
constexpr int kMostBlocks = 8;     // of a cluster, on every GPU
constexpr int kMultiprocessors = 132;  // of most GPUs; parts of reductions are counted before it is known which one it is
constexpr int kWindowBytes = 16;   // of a pixel that is a part of windows: of as many as a step of the stride has
constexpr int kLargestBox = 256;   // of TMA, in any dimension
constexpr int kEight = 8;          // pixels that follow one another in an operand; how far the next are is its stride
constexpr int kAlignment = 1024;   // of swizzled memory
constexpr int kWarpGroup = 128;
constexpr int kStepPixels = 16;    // of the accumulator, for which a thread computes the epilogue at a time

CUTLASS_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
CUTLASS_HOST_DEVICE constexpr int aligned_bytes(int bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

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

/// A convolution as its caller knows it.
struct Problem {
  int images, height, width, channels, filters;
  int filter_height, filter_width, output_height, output_width;
  int pad_height, pad_width, stride_height, stride_width, dilation_height, dilation_width;
  // Of a volume, a stack of slices, each of which is an image.
  int depth = 1, filter_depth = 1, output_depth = 1, pad_depth = 0, stride_depth = 1, dilation_depth = 1;
  int window = 1;  // pixels of a row that one tap multiplies, each of kWindowBytes; their channels follow one another

  /// The images of the output.
  int slices() const { return images * output_depth; }
  /// The planes of so many channels that are multiplied for each of them.
  int planes(int of_channels) const { return ceil_div(channels, of_channels) * filter_depth; }
  /// How far the taps reach beyond a tile, in pixels of a box.
  int halo_height() const { return (filter_height - 1) * dilation_height / stride_height; }
  int halo_width() const { return (filter_width - 1) * dilation_width / stride_width + window - 1; }
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

/// How a tile lies in shared memory.
struct Geometry {
  int images = 1;             // in a tile; several only if they are whole
  int rows = 0, columns = 0;  // of output pixels
  int pitch = 0;              // pixels from one row of the input to the next
  int sum_pitch = 0;          // of the accumulator, and of C and D: `pitch`, or kEight if each eight pixels are a row
  int box_rows = 0;           // from one image to the next
  int guard = 0;              // pixels of zeros after the last row of a box
  int tiles_high = 0, tiles_wide = 0;
  int stages = 0, stage_bytes = 0;
  int run = 1;                    // of taps whose filters are loaded together
  int slabs = 0, slab_bytes = 0;  // of the filters of a run
  int blocks = 1;          // of a cluster, which share a tile: each multiplies some planes, and completes some of the pixels
  int exchange_bytes = 0;  // for the sums that they give each other
  bool paired = false;    // the consumers share a tile of pixels, each with a block of filters, and take no turns
  bool resident = false;  // the filters of a block stay in shared memory
  int handover = 0;       // the run of a tile after which a consumer passes the turn on
  int epilogue_bytes = 0;  // for one consumer

  int tiles(Problem const& problem) const { return ceil_div(problem.slices(), images) * tiles_high * tiles_wide; }
  /// Pixels of shared memory, without the guard.
  CUTLASS_HOST_DEVICE int box_pixels() const { return images * box_rows * pitch; }
  /// Of C and D; with several images also what is between them.
  CUTLASS_HOST_DEVICE int stored_pixels() const { return (images > 1 ? images * box_rows : rows) * sum_pitch; }
  /// What the accumulator needs, from the first pixel to the last.
  int pixels() const { return ((images - 1) * box_rows + rows - 1) * sum_pitch + columns; }
  /// From eight pixels of a tap's operand to the next.
  int next_eight() const { return sum_pitch == pitch ? kEight : pitch; }
};

/// What a kernel has at compile time.
struct Class {
  int pixels;       // of the accumulator
  int plane;        // channels of a plane
  int plane_bytes;  // that a tap multiplies for each pixel
  bool staged;      // C or D are moved by TMA, through shared memory
  bool volume = false;
  int pixel_bytes = plane_bytes;  // of a pixel in a box
  bool shared = false;            // whether thread blocks share tiles; each then has one consumer

  int consumers() const { return shared ? 1 : 2; }
  bool has_windows() const { return pixel_bytes < plane_bytes; }
};

/// A convolution in whose rows of windows there is one tap for each row of the filter.
inline Problem over_windows(Problem problem, Class const& kernel) {
  problem.window = kernel.plane_bytes / kWindowBytes;
  problem.channels = kernel.plane;
  problem.width = problem.output_width + problem.window - 1;
  problem.filter_width = problem.stride_width = problem.dilation_width = 1;
  problem.pad_width = 0;
  return problem;
}

/// How the planes of a slice of the output follow one another: those of channels, for each tap along the depth.
struct Depth {
  int planes;  // of channels
  int taps, output, pad, stride, dilation;

  static Depth of(Problem const& problem, int plane) {
    return {ceil_div(problem.channels, plane), problem.filter_depth, problem.output_depth,
            problem.pad_depth,                 problem.stride_depth, problem.dilation_depth};
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
  uint32_t starts[kMostTaps];
  Tap tap[kMostTaps];

  /// Read the filter backwards: what one tap multiplied, the opposite one does.
  void reverse(Problem const& problem) {
    for (int i = 0; i < number; ++i) {
      Tap const& now = tap[i];
      tap[i] = Tap::of(now.shift(), problem.filter_width - 1 - now.x(), problem.filter_height - 1 - now.y(), now.enters());
    }
  }

  /// The boxes of which the taps of two runs are, one after the other: the second must be loaded before the first is
  /// given back.
  int boxes_of_two_runs(int length) const {
    int most = 1;
    for (int begin = 0; begin < number; begin += length) {
      int boxes = 1;
      for (int i = 1; i < 2 * length; ++i) boxes += tap[(begin + i) % number].enters();
      most = std::max(most, boxes);
    }
    return most;
  }
};

inline Taps taps_of(Problem const& problem, int pitch) {
  Taps result;
  for (int y0 = 0; y0 < problem.stride_height; ++y0) {
    for (int x0 = 0; x0 < problem.stride_width; ++x0) {
      bool enters = true;
      for (int y = 0; y < problem.filter_height; ++y) {
        for (int x = 0; x < problem.filter_width; ++x) {
          int const down = y * problem.dilation_height, right = x * problem.dilation_width;
          if (down % problem.stride_height != y0 || right % problem.stride_width != x0) continue;
          if (enters) {
            result.starts[result.groups++] =
                uint32_t(uint16_t(x0 - problem.pad_width)) | uint32_t(uint16_t(y0 - problem.pad_height)) << 16;
          }
          int const shift = down / problem.stride_height * pitch + right / problem.stride_width;
          result.tap[result.number++] = Tap::of(shift, x, y, enters);
          enters = false;
        }
      }
    }
  }
  return result;
}

/// Along a dimension, the smallest distance between two tiles' first output pixels whose inputs lie one after the other.
/// A tile of the whole dimension may end before the pixels that its last taps reach: those then are the first ones of
/// the next tile, and must be zeros like them.
inline int shared_pitch(int output, int halo, int stride, int pad, int size) {
  int const reach = output + halo;
  for (int pitch = output; pitch < reach; ++pitch) {
    bool const zeros_after = pitch * stride - pad >= size;
    bool const zeros_before = (reach - 1 - pitch) * stride - pad < 0;
    if (zeros_after && zeros_before) return pitch;
  }
  return reach;
}

/// The pitch of rows of `columns` output pixels. Taps of several groups share no padding: each group has its own.
inline int pitch_of(Problem const& problem, int columns) {
  if (columns < problem.output_width || taps_of(problem, columns).groups > 1) return columns + problem.halo_width();
  return shared_pitch(problem.output_width, problem.halo_width(), problem.stride_width, problem.pad_width,
                      problem.width);
}

/// The rows from one image of a tile to the next.
inline int rows_of_image(Problem const& problem) {
  if (taps_of(problem, problem.output_width).groups > 1) return problem.output_height + problem.halo_height();
  return shared_pitch(problem.output_height, problem.halo_height(), problem.stride_height, problem.pad_height,
                      problem.height);
}

/// Return the run after which a consumer passes the turn on: the last one, or the one before where a run is a single tap,
/// too short to hide the turn; no multiplication is then missing between two tiles. A barrier tells one phase from the one
/// before it only. So the other consumer may begin when what was in its first slots before is known to have been loaded.
inline int handover_of(Problem const& problem, Class const& kernel, Taps const& taps, Geometry const& made) {
  int const runs = taps.number / made.run, planes = problem.planes(kernel.plane);
  int const steps = runs * planes;
  int handover = std::max(0, steps - (made.run == 1 ? 2 : 1));
  for (; handover + 1 < steps; ++handover) {
    int boxes = handover / runs * taps.groups;  // that are known to be loaded
    for (int i = 0; i < (handover % runs + 1) * made.run; ++i) boxes += taps.tap[i].enters();
    bool const has_slabs = made.resident || steps - handover <= made.slabs;
    if (has_slabs && planes * taps.groups - boxes < made.stages) break;
  }
  return handover;
}

/// What the instruction reads beyond a box, to multiply it in vain: in bytes, from the last box on.
inline int read_beyond(Class const& kernel, Geometry const& made) {
  int const pixels = kernel.pixels - made.pixels();
  return (made.sum_pitch == made.pitch ? pixels : pixels / kEight * made.pitch) * kernel.pixel_bytes;
}

/// Fit stages of the input, and filters of runs of `length` taps, into shared memory. Return whether the fewest fit.
inline bool fit(Problem const& problem, Class const& kernel, Taps const& taps, int length, Geometry& made,
                bool may_stay = true) {
  made.run = length;
  made.slab_bytes = length * kFilters * kernel.plane_bytes;
  int const left = kSharedBytes - 2 * kAlignment - aligned_bytes(kBarrierBytes) -
                   kernel.consumers() * made.epilogue_bytes - made.exchange_bytes;
  int const multiple = kernel.has_windows() ? kWideners : 1;
  int const fewest_stages = ceil_div(std::max(2, taps.boxes_of_two_runs(length)), multiple) * multiple;
  // Boxes are the first in shared memory, out of which nothing may be read.
  int const readable = kSharedBytes - kAlignment - read_beyond(kernel, made);
  int const most_stages = std::min(kMostStages, readable / made.stage_bytes);
  if (most_stages < fewest_stages) return false;
  int const planes = ceil_div(problem.planes(kernel.plane), made.blocks), both = made.paired ? 2 : 1;
  int const needed = both * taps.number / length * planes;
  int const resident_left = left - needed * made.slab_bytes;
  int const stages_beside = std::min(most_stages, resident_left / made.stage_bytes) / multiple * multiple;
  // The filters of a product take the room of boxes, of which a tile needs one for each plane.
  int const enough_stages = taps.number == 1 && !kernel.shared ? std::min(planes, kEnoughStages) : fewest_stages;
  made.resident = may_stay && needed <= kMostSlabs && stages_beside >= std::max(fewest_stages, enough_stages);
  if (made.resident) {
    made.slabs = needed;
    made.stages = stages_beside;
  } else if (kernel.has_windows()) {
    return false;
  } else {
    int const fewest_slabs = std::min(3 * both, needed);
    auto const slabs_beside = [&](int stages) {
      return (left - stages * made.stage_bytes) / made.slab_bytes / both * both;
    };
    if (left < fewest_stages * made.stage_bytes || slabs_beside(fewest_stages) < fewest_slabs) return false;
    made.stages = fewest_stages;
    // A product of matrices takes one of each at a time; several taps take the filters of nine at a time. A box of so many
    // taps lasts while the next one is loaded: what is left is for more filters.
    constexpr int kManyTaps = 9;
    auto const enough_slabs = [&](int stages) {
      return taps.number == 1 ? both * stages : std::max(fewest_slabs, kManyTaps / length);
    };
    int const useful_stages = taps.groups == 1 ? 1 + ceil_div(kManyTaps, taps.number) : kMostStages;
    while (made.stages < std::min(useful_stages, most_stages) && left >= (made.stages + 1) * made.stage_bytes &&
           slabs_beside(made.stages + 1) >= enough_slabs(made.stages + 1)) {
      ++made.stages;
    }
    made.slabs = std::min(kMostSlabs, slabs_beside(made.stages));
  }
  made.handover = handover_of(problem, kernel, taps, made);
  return true;
}

/// Return the geometry of tiles of images x rows x columns, of kEight columns with each eight pixels a row; without
/// stages where they do not fit.
inline Geometry arrange(Problem const& problem, Class const& kernel, int images, int rows, int columns, bool eights) {
  Geometry made;
  made.images = images;
  made.rows = rows;
  made.columns = columns;
  made.pitch = eights ? kEight + problem.halo_width() : pitch_of(problem, columns);
  made.sum_pitch = eights ? kEight : made.pitch;
  int const reach = rows + problem.halo_height();
  made.box_rows = images > 1 ? rows_of_image(problem) : reach;
  made.guard = (reach - made.box_rows) * made.pitch + columns + problem.halo_width() - made.pitch;
  made.tiles_high = ceil_div(problem.output_height, rows);
  made.tiles_wide = ceil_div(problem.output_width, columns);
  bool const is_moved = kernel.has_windows() || ((made.pitch - 1) * problem.stride_width < kLargestBox &&
                                                 (made.box_rows - 1) * problem.stride_height < kLargestBox);
  // C and D are moved by TMA, whatever the input is by.
  if (made.pixels() > kernel.pixels || made.sum_pitch > kLargestBox || !is_moved) return made;
  made.stage_bytes = aligned_bytes((made.box_pixels() + made.guard) * kernel.pixel_bytes);
  // The thread blocks that share a tile get what is left: the planner takes it to be the same for all epilogues.
  if (kernel.staged || kernel.shared) {
    made.epilogue_bytes = aligned_bytes(std::max(kernel.pixels, made.stored_pixels()) * 128);
  }
  Taps const taps = taps_of(problem, made.pitch);
  for (int run : kRuns) {
    if (taps.number % run == 0 && fit(problem, kernel, taps, run, made)) break;
  }
  return made;
}

/// Return the geometry with the fewest tiles, and of those with the least loaded; without stages where there is none.
/// Rows or columns that are not 0 are taken as they are.
inline Geometry choose(Problem const& problem, Class const& kernel, int given_rows = 0, int given_columns = 0) {
  Geometry best;
  int64_t least = INT64_MAX;
  auto const consider = [&](Geometry const& made) {
    if (made.stages == 0) return false;
    int64_t const tiles = (int64_t(made.tiles_high) * made.tiles_wide << 20) / made.images;
    int64_t const score = tiles + made.box_pixels() / made.images;
    if (score < least) {
      least = score;
      best = made;
    }
    return true;
  };
  auto const consider_rows = [&](int most, int columns, bool eights) {  // return whether any fit
    most = std::min(problem.output_height, std::max(most, 1));
    for (int high = ceil_div(problem.output_height, most); high <= problem.output_height; ++high) {
      int const rows = given_rows ? given_rows : ceil_div(problem.output_height, high);
      if (consider(arrange(problem, kernel, 1, rows, columns, eights))) return true;  // fewer rows make more tiles
      if (given_rows) break;
    }
    return false;
  };
  auto const consider_images = [&](int pitch, int columns, bool eights) {
    for (int images = kernel.pixels / (rows_of_image(problem) * pitch) + 1; images > 1; --images) {
      if (consider(arrange(problem, kernel, images, problem.output_height, columns, eights))) break;
    }
  };
  int const wide = std::min(problem.output_width, kernel.pixels);
  for (int across = ceil_div(problem.output_width, wide); across <= problem.output_width; ++across) {
    int const columns = given_columns ? given_columns : ceil_div(problem.output_width, across);
    bool const fits = consider_rows((kernel.pixels - columns) / pitch_of(problem, columns) + 1, columns, false);
    if (given_columns || columns * 8 < kernel.pixels || columns <= 8) break;
    if (fits && problem.output_height == 1) break;  // fewer columns of a single row make more tiles
  }
  if (given_columns == 0 || given_columns == kEight) consider_rows(kernel.pixels / kEight, kEight, true);
  if (given_rows || given_columns || kernel.volume) return best;
  consider_images(pitch_of(problem, problem.output_width), problem.output_width, false);
  if (problem.output_width <= kEight) consider_images(kEight, kEight, true);
  return best;
}

/// Let both consumers multiply the same pixels, where the tensor cores else wait for them: with few taps for each box and
/// many channels, if that takes hardly more waves of tiles.
inline void pair(Problem const& problem, Class const& kernel, int multiprocessors, Geometry& made) {
  constexpr int kManyPlanes = 4;
  Taps const taps = taps_of(problem, made.pitch);
  int const tiles = made.tiles(problem), pairs = tiles * ceil_div(problem.filters, 2 * kFilters);
  bool const waits = (taps.number == 1 || taps.groups > 1) && problem.channels >= kManyPlanes * kernel.plane;
  if (!waits || problem.filters <= kFilters) return;
  int const waves = ceil_div(tiles * ceil_div(problem.filters, kFilters), multiprocessors);
  int const waves_of_pairs = 2 * ceil_div(pairs, multiprocessors);
  if (waves_of_pairs - waves > waves / 8) return;
  Geometry paired = made;
  paired.paired = true;
  if (fit(problem, kernel, taps, made.run, paired)) made = paired;
}

/// The thread blocks for so many items. Where filters stay, they are a multiple of the blocks of filters, so that each
/// keeps to one of them.
inline int grid_of(int items, int filter_blocks, int multiprocessors, bool resident) {
  int const most = std::max(multiprocessors / filter_blocks, 1) * filter_blocks;
  return std::min(items, resident ? most : multiprocessors);
}

/// Load the filters of a product for each tile where fewer thread blocks, each with filters that stay, have more waves of
/// tiles.
inline void stream_filters(Problem const& problem, Class const& kernel, int multiprocessors, Geometry& made) {
  Taps const taps = taps_of(problem, made.pitch);
  if (!made.resident || taps.number > 1 || kernel.has_windows()) return;
  int const blocks = ceil_div(problem.filters, made.paired ? 2 * kFilters : kFilters);
  int const items = made.tiles(problem) * blocks, grid = grid_of(items, blocks, multiprocessors, true);
  int const waves = ceil_div(items, multiprocessors);
  int const waves_of_resident = ceil_div(items, grid) * ceil_div(grid, multiprocessors);
  if (waves_of_resident - waves <= waves / 16) return;
  Geometry streamed = made;
  if (fit(problem, kernel, taps, made.run, streamed, false)) made = streamed;
}

/// What thread blocks that share a tile take, in clock cycles: fits to measurements on an H200.
struct Cycles {
  static constexpr int kBetween = 2950;
  static constexpr int kStep = 235;  // of a run of taps, at least
  static constexpr int kExchangePerBlock = 180, kExchangePerStep = 790;  // with the epilogue
  static constexpr int kLeftOver = 28;
  static constexpr int kLineBytes = 128, kEighthsACycle = 5;  // of lines of L2, that TMA loads
  static constexpr int kReadBytes = 128, kWrittenBytes = 213;  // of shared memory, that an instruction reads, and beside it

  int planes;  // of a tile
  int plane;   // what one takes
  int steps;   // of the epilogue

  static Cycles of(Problem const& problem, Class const& kernel, Geometry const& geometry) {
    Taps const taps = taps_of(problem, geometry.pitch);
    int const instructions = taps.number * (kernel.plane_bytes / hopper::kDepthBytes);
    int const multiplied = instructions * kernel.pixels / 2;
    int const rows = taps.groups * geometry.box_pixels() + taps.number * kFilters;
    int const loaded = rows * lines_of_eight(problem, kernel) / kEighthsACycle;
    int const read = instructions * (kFilters + kernel.pixels) * hopper::kDepthBytes, written = rows * kernel.plane_bytes;
    int const memory = read / kReadBytes + written / kWrittenBytes;
    int const computed = std::max(multiplied, taps.number / geometry.run * kStep);
    return {problem.planes(kernel.plane), together(computed, loaded, memory), ceil_div(kernel.pixels, kStepPixels)};
  }

  /// How long takes what is done at the same time: little longer than the longest, if the rest is shorter.
  static int together(double a, double b, double c) { return int(std::sqrt(std::sqrt(fourth(a) + fourth(b) + fourth(c)))); }
  static double fourth(double x) { return (x * x) * (x * x); }

  /// The lines of L2 that eight pixels touch, or eight filters of a tap, if they are dense.
  static int lines_of_eight(Problem const& problem, Class const& kernel) {
    int const stride = problem.channels * (kernel.plane_bytes / kernel.plane);
    int const loaded = std::min(stride, kernel.plane_bytes);
    int lines = 0;
    for (int i = 0; i < 8; ++i) lines += ceil_div(stride % kLineBytes * i % kLineBytes + loaded, kLineBytes);
    return lines;
  }

  /// Of so many tiles, each shared by so many thread blocks.
  int64_t all(int tiles, int blocks) const {
    // The multiprocessors of a cluster are neighbours: of some groups of them, a few are left over.
    int64_t const waves = ceil_div(tiles * blocks, kMultiprocessors - kMultiprocessors * (blocks - 1) / kLeftOver);
    return waves * (kBetween + blocks * kExchangePerBlock + ceil_div(steps, blocks) * kExchangePerStep +
                    int64_t(ceil_div(planes, blocks)) * plane);
  }
};

/// Let thread blocks share each tile, as many as are the fastest. Return whether shared memory has room for the sums that
/// they give each other, and whether each has a plane.
inline bool split_over_cluster(Problem const& problem, Class const& kernel, Geometry& made) {
  int const tiles = made.tiles(problem) * ceil_div(problem.filters, kFilters);
  Cycles const cycles = Cycles::of(problem, kernel, made);
  Taps const taps = taps_of(problem, made.pitch);
  Geometry const alone = made;
  for (int blocks = 2; blocks <= std::min(kMostBlocks, cycles.planes); blocks *= 2) {
    Geometry shared = alone;
    shared.blocks = blocks;
    // Who completes steps of a tile gets their sums from everyone.
    shared.exchange_bytes = blocks * ceil_div(cycles.steps, blocks) * kStepPixels * kFilters * 4;
    bool const fits = fit(problem, kernel, taps, made.run, shared);
    if (fits && (made.blocks == 1 || cycles.all(tiles, blocks) < cycles.all(tiles, made.blocks))) made = shared;
  }
  return made.blocks > 1;
}

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_GEOMETRY_HPP
