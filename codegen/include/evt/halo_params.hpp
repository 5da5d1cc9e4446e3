#ifndef EVT_HALO_PARAMS_HPP
#define EVT_HALO_PARAMS_HPP

// What the host makes of a convolution for the kernel: Arguments become Params, with the maps of TMA.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include <cuda.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/halo_taps.hpp"
#include "evt/halo_traits.hpp"
#include "evt/halo_windows.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

using Lanes = fragment::LanesOfWgmma;

template <class Traits>
struct Arguments {
  Problem problem;
  void const* a;
  int64_t a_strides[Traits::kDimensions + 1];  // of images, of a volume its slices, rows and pixels
  void const* b;
  int64_t b_strides[Traits::kDimensions + 1];  // of filters, or channels where they are transposed, and the same of taps
  void const* c;
  int64_t c_stride;  // of pixels
  void* d;
  int64_t d_stride;
  typename Traits::Epilogue::Params epilogue;
  int multiprocessors;
  int rows, columns;  // of a tile; 0: the best
};

/// Operands of few channels, which TMA does not move.
template <class Traits>
struct Narrow {
  typename Traits::Widened::Element const *a, *b;
  int64_t a_image, a_row, b_filter, b_row;  // strides, in elements
  int a_pixel, b_pixel;
  int height, width, filter_width, pad;
  BoxDivisor by_pitch, by_box_rows;
};

template <class Traits>
struct Params {
  CUtensorMap input, filters, source, destination;
  typename Traits::Epilogue::Params epilogue;
  Taps taps;
  Geometry geometry;
  int images, output_height, output_width, filter_count;
  int stride_height, stride_width;
  int planes, filter_blocks, items;  // of a pair of consumers both blocks of filters are one
  Divisor by_filter_blocks, by_tiles_wide, by_tiles_high, by_blocks;
  int steps_per_block;              // of a shared tile, that a thread block completes
  typename Traits::Destination* d;  // where a shared tile is stored
  int64_t d_stride;
  int grid;
  int source_bytes;  // of a tile of C
  uint32_t input_layout;  // the upper word of its descriptors
  Narrow<Traits> narrow;
  bool stores_rows;  // a row of pixels at a time: what lies between the rows of a tile belongs to its neighbours
  bool encoded;
  Depth depth;
};

/// Return the convolution that tiles are made of.
template <class Traits>
Problem problem_of(Arguments<Traits> const& arguments) {
  return Traits::kWindows ? over_windows(arguments.problem, Traits::kClass) : arguments.problem;
}

/// Return the geometry, whatever the number of SMs; without input stages if there is none.
template <class Traits>
Geometry geometry_of(Arguments<Traits> const& arguments) {
  return geometry_of(problem_of(arguments), Traits::kClass, arguments.rows, arguments.columns);
}

/// The strips of 16 filters in whole blocks of them.
CUTLASS_HOST_DEVICE int strips_of(int filters) { return ceil_div(filters, kFilters) * (kFilters / Lanes::kStrip); }

/// The tiles of rows, and the strips, into which reductions are parted; of a shared tile, each block has a part.
template <class Traits>
fragment::Tiles tiles(Arguments<Traits> const& arguments) {
  Problem const& problem = arguments.problem;
  Geometry const geometry = geometry_of(arguments);
  return {geometry.tiles(problem.slices()) * geometry.cluster_size, strips_of(problem.filters)};
}

/// Whether windows are what a convolution needs: a row of taps is in one, and the next begins kWindowBytes later.
template <class Traits>
bool has_its_windows(Arguments<Traits> const& arguments) {
  Problem const& problem = arguments.problem;
  constexpr int kLargestStep = 8;  // of TMA's boxes, and of those of windows
  return problem.channels == Traits::kWindowChannels && problem.width.stride == Traits::kStrideWidth &&
         problem.width.dilation == 1 && problem.height.stride <= kLargestStep &&
         problem.width.taps * (kWindowBytes / Traits::kStrideWidth) <= Traits::kPlaneBytes;
}

/// Whether the elements of a box, and of a row of taps, are so near to each other that 32 bits have the distance.
template <class Traits>
bool has_near_pixels(Arguments<Traits> const& arguments, Geometry const& geometry) {
  auto const &a = arguments.a_strides, &b = arguments.b_strides;
  int64_t const rows = int64_t(geometry.box_rows) * arguments.problem.height.stride;
  int64_t const pixels = geometry.input_pitch * Traits::kStrideWidth;
  int64_t const of_box = (geometry.images - 1) * std::abs(a[0]) + rows * std::abs(a[1]) + pixels * std::abs(a[2]);
  return std::max(of_box, Traits::kPlaneBytes * std::abs(b[2])) <= INT32_MAX;
}

template <class Traits>
Narrow<Traits> narrow_of(Arguments<Traits> const& arguments, Geometry const& geometry) {
  using Pointer = typename Traits::Widened::Element const*;
  Problem const& problem = arguments.problem;
  auto const &a = arguments.a_strides, &b = arguments.b_strides;
  return {static_cast<Pointer>(arguments.a), static_cast<Pointer>(arguments.b), a[0], a[1], b[0], b[1],
          int(a[2]), int(b[2]), problem.height.size, problem.width.size, problem.width.taps, problem.width.pad,
          BoxDivisor::of(geometry.input_pitch), geometry.images > 1 ? BoxDivisor::of(geometry.box_rows) : BoxDivisor{}};
}

template <class T>
constexpr CUtensorMapDataType map_type() {
  return std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

template <class Traits>
auto input_of(Arguments<Traits> const& arguments, Geometry const& geometry) {
  Problem const& problem = arguments.problem;
  auto const& strides = arguments.a_strides;
  int const columns = (geometry.input_pitch - 1) * problem.width.stride + 1;
  int const rows = (geometry.box_rows - 1) * problem.height.stride + 1;
  if constexpr (Traits::kVolume) {
    return hopper::Tensor<5>{Traits::Mma::kType, Traits::Mma::kElementBytes, arguments.a,
                             {problem.channels, problem.width.size, problem.height.size, problem.depth.size,
                              problem.images},
                             {strides[3], strides[2], strides[1], strides[0]},
                             {Traits::kPlane, columns, rows, 1, 1},
                             {problem.width.stride, problem.height.stride}, Traits::kPlaneBytes};
  } else {
    return hopper::Tensor<4>{Traits::Mma::kType, Traits::Mma::kElementBytes, arguments.a,
                             {problem.channels, problem.width.size, problem.height.size, problem.images},
                             {strides[2], strides[1], strides[0]},
                             {Traits::kPlane, columns, rows, geometry.images},
                             {problem.width.stride, problem.height.stride}, Traits::kPlaneBytes};
  }
}

template <class Traits>
auto filters_of(Arguments<Traits> const& arguments) {
  using Filters = typename Traits::Filters;
  Problem const& problem = arguments.problem;
  auto const& strides = arguments.b_strides;
  int const along = Traits::Mma::kTransposed ? problem.filters : problem.channels;
  int const rows = Traits::Mma::kTransposed ? problem.channels : problem.filters;
  if constexpr (Traits::kVolume) {
    return hopper::Tensor<5>{Traits::Mma::kType, Traits::Mma::kElementBytes, arguments.b,
                             {along, rows, problem.width.taps, problem.height.taps, problem.depth.taps},
                             {strides[0], strides[3], strides[2], strides[1]},
                             {Filters::kLength, Filters::kRows, 1, 1, 1}, {1, 1}, Filters::kRowBytes};
  } else {
    return hopper::Tensor<4>{Traits::Mma::kType, Traits::Mma::kElementBytes, arguments.b,
                             {along, rows, problem.width.taps, problem.height.taps},
                             {strides[0], strides[2], strides[1]},
                             {Filters::kLength, Filters::kRows, 1, 1}, {1, 1}, Filters::kRowBytes};
  }
}

template <class Traits>
bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
  Problem const& problem = arguments.problem;
  Geometry const& geometry = params.geometry;
  bool done = false;
  if constexpr (Traits::kWindows) {
    done = has_near_pixels(arguments, geometry);
  } else {
    done = input_of(arguments, geometry).encode(params.input) && filters_of(arguments).encode(params.filters);
  }
  auto const image = [&](CUtensorMapDataType type, void const* pointer, int64_t stride, int columns, int rows,
                         int images) {
    int64_t const row = stride * problem.width.output;
    return hopper::Tensor<4>{type, 2, pointer,
                             {problem.filters, problem.width.output, problem.height.output, problem.slices()},
                             {stride, row, row * problem.height.output},
                             {kFilters, columns, rows, images}, {1, 1}, Traits::kEpilogueRow};
  };
  int const rows = geometry.images > 1 ? geometry.box_rows : geometry.rows;
  if constexpr (Traits::kLoadsSource) {
    CUtensorMapDataType const type = map_type<typename Traits::Source>();
    done = done && image(type, arguments.c, arguments.c_stride, geometry.accumulator_pitch, rows, geometry.images)
                       .encode(params.source);
  }
  if constexpr (Traits::kStoresDestination && Traits::kShared) {
    constexpr int kStored = sizeof(uint4);  // bytes at a time
    done = done && reinterpret_cast<uintptr_t>(arguments.d) % kStored == 0 &&
           arguments.d_stride * sizeof(typename Traits::Destination) % kStored == 0;
  } else if constexpr (Traits::kStoresDestination) {
    CUtensorMapDataType const type = map_type<typename Traits::Destination>();
    done = done && (params.stores_rows
                        ? image(type, arguments.d, arguments.d_stride, geometry.columns, 1, 1)
                        : image(type, arguments.d, arguments.d_stride, geometry.accumulator_pitch, rows, geometry.images))
                       .encode(params.destination);
  }
  return done;
}

template <class Traits>
Params<Traits> to_underlying_arguments(Arguments<Traits> const& arguments) {
  Problem const problem = problem_of(arguments);
  Params<Traits> params{};
  Geometry const& geometry = params.geometry =
      scheduled(problem, Traits::kClass, geometry_of(arguments), arguments.multiprocessors);
  params.epilogue = arguments.epilogue;
  params.taps = taps_of(problem, geometry.input_pitch);
  if (Traits::Mma::kTransposed) params.taps.reverse(problem);
  params.images = problem.slices();
  params.output_height = problem.height.output;
  params.output_width = problem.width.output;
  params.filter_count = problem.filters;
  params.stride_height = problem.height.stride;
  params.stride_width = problem.width.stride;
  params.planes = problem.channel_blocks(Traits::kPlane);
  params.depth = Depth::of(problem, Traits::kPlane);
  params.filter_blocks = ceil_div(problem.filters, kFilters * (geometry.cooperative ? 2 : 1));
  params.items = geometry.tiles(problem.slices()) * params.filter_blocks;
  params.grid = grid_of(params.items, params.filter_blocks, arguments.multiprocessors, geometry.resident);
  if (Traits::kShared) params.grid = params.items * geometry.cluster_size;  // of which each has one tile
  params.by_filter_blocks = Divisor::of(params.filter_blocks);
  params.by_tiles_wide = Divisor::of(geometry.tiles_wide);
  params.by_tiles_high = Divisor::of(geometry.tiles_high);
  params.by_blocks = Divisor::of(geometry.cluster_size);
  params.steps_per_block = ceil_div(Traits::kSteps, geometry.cluster_size);
  params.d = static_cast<typename Traits::Destination*>(arguments.d);
  params.d_stride = arguments.d_stride;
  params.input_layout = hopper::operand_layout(Traits::kPixelBytes, geometry.next_eight());
  params.stores_rows = geometry.accumulator_pitch > geometry.columns && geometry.tiles_wide > 1;
  params.source_bytes = geometry.stored_pixels() * Traits::kEpilogueRow;
  if constexpr (Traits::kWindows) params.narrow = narrow_of(arguments, geometry);
  params.encoded = encode(arguments, params);
  return params;
}

template <class Traits>
bool can_implement(Arguments<Traits> const& arguments) {
  constexpr int kMostPadding = 32767;
  Problem const problem = problem_of(arguments);
  return (!Traits::Mma::kTransposed || problem.depth.stride * problem.height.stride * problem.width.stride == 1) &&
         problem.height.taps * problem.width.taps <= kMaxTaps &&
         std::min(problem.height.pad, problem.width.pad) >= 0 &&
         std::max(problem.height.pad, problem.width.pad) <= kMostPadding &&
         (!Traits::kWindows || has_its_windows(arguments)) && geometry_of(arguments).input_stages > 0 &&
         to_underlying_arguments(arguments).encoded;
}

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_PARAMS_HPP
