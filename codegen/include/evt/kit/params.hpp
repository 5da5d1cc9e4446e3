#ifndef EVT_KIT_PARAMS_HPP
#define EVT_KIT_PARAMS_HPP

// Arguments of a kernel, and the Params that the host makes of them, with TMA's descriptors.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/descriptor.hpp"
#include "evt/kit/divisor.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/group_blocks.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/taps.hpp"
#include "evt/kit/traits.hpp"

namespace evt {
namespace kit {

using Lanes = fragment::LanesOfWgmma;

template <class Traits>
struct Arguments {
  Problem problem;
  void const* a;
  int64_t a_strides[Traits::kDimensions + 1];  // images, slices of a volume, rows, pixels
  void const* b;
  int64_t b_strides[Traits::kDimensions + 1];  // filters, or channels if transposed; slices, rows and columns of taps
  void const* c;
  int64_t c_stride;  // pixels
  void* d;
  int64_t d_stride;
  typename Traits::Epilogue::Params epilogue;
  int multiprocessors;
  int rows, columns;  // of a tile; 0: the best
  int groups;         // of a main loop with groups
};

template <class Traits>
struct Params {
  CUtensorMap input, filters, source, destination;
  typename Traits::Epilogue::Params epilogue;
  Taps taps;
  Geometry geometry;
  int images, output_height, output_width, filter_count;
  int image_rows;  // of the matrix, from an image to the next
  int stride_height, stride_width;
  int channel_blocks, filter_blocks, work_tiles;  // a pair of cooperating consumers has one of two blocks of filters
  FastDivisor by_filter_blocks, by_tiles_wide, by_tiles_high, by_cluster_size;
  SmallDivisor by_pitch, by_images;  // of the accumulators, and of the images of a tile
  int steps_per_cta;                // of the epilogue of a shared tile
  typename Traits::Destination* d;  // where threads store it
  int64_t d_stride;
  int grid;
  int source_bytes;       // of a tile of C
  uint32_t input_layout;  // the upper word of its descriptors
  typename Traits::Mainloop::Operands operands;
  bool stores_rows;  // a row of pixels at a time: the pixels between the rows of a tile belong to its neighbours
  bool encoded;
  Depth depth;

  /// The classes of pixels, and the descriptors of their C and D.
  CUTLASS_HOST_DEVICE int classes() const {
    if constexpr (Traits::kResidues) {
      return operands.residues.number;
    } else {
      return 1;
    }
  }
  /// The classes that have tiles: all of them, or those with taps if D is 0 in the others.
  CUTLASS_HOST_DEVICE int multiplied_classes() const {
    int number = classes();
    if constexpr (Traits::kKeepsZeros) {
      while (operands.residues.taps(number - 1).number == 0) --number;
    }
    return number;
  }
  CUTLASS_HOST_DEVICE CUtensorMap const& source_of(int residue) const {
    if constexpr (Traits::kResidues) return residue == 0 ? source : operands.source[residue - 1];
    return source;
  }
  CUTLASS_HOST_DEVICE CUtensorMap const& destination_of(int residue) const {
    if constexpr (Traits::kResidues) return residue == 0 ? destination : operands.destination[residue - 1];
    return destination;
  }
};

/// The strips of 16 filters in whole blocks of filters.
CUTLASS_HOST_DEVICE int strips_of(int filters) { return ceil_div(filters, kFilters) * (kFilters / Lanes::kStrip); }

#if !defined(EVT_DEVICE_PASS)
/// Return a volume whose filters are columns along the depth as an image, whose rows are the slices.
template <class Traits>
Arguments<Traits> flattened(Arguments<Traits> arguments) {
  if constexpr (Traits::kVolume) {
    auto& a = arguments.a_strides;
    auto& b = arguments.b_strides;
    if (has_columns(arguments.problem) && a[2] == arguments.problem.width.size * a[3]) {
      arguments.problem = flattened(arguments.problem);
      for (int64_t* strides : {a, b}) {
        strides[2] = strides[1];
        strides[1] = strides[0];
      }
    }
  }
  return arguments;
}

/// Return the convolution that the main loop multiplies.
template <class Traits>
Problem problem_of(Arguments<Traits> const& arguments) {
  return Traits::Mainloop::multiplied(arguments.problem, Traits::kClass, arguments.groups);
}

/// Return the geometry for any number of SMs; without input stages if there is none.
template <class Traits>
Geometry geometry_of(Arguments<Traits> const& arguments) {
  return geometry_of(problem_of(arguments), Traits::kClass, arguments.rows, arguments.columns);
}

/// The tiles of rows and the strips that reductions keep parts of; each CTA of a shared tile has a part.
template <class Traits>
fragment::Tiles tiles(Arguments<Traits> const& arguments) {
  Problem const problem = problem_of(arguments);
  Geometry const geometry = geometry_of(arguments);
  Axis const &height = arguments.problem.height, &width = arguments.problem.width;
  int const classes = Traits::kResidues ? height.remainders() * width.remainders() : 1;
  int64_t const number = geometry.tiles(problem) * classes * geometry.cluster_size;
  if constexpr (Traits::kTapRows) return {number * (kWarpGroup / 32), 1};  // each warp has the strip of other pixels
  return {number, strips_of(problem.filters)};
}

/// The filters of a box of C and D. A row of fewer than 64 is shorter than its place in shared memory.
template <class Traits>
int stored_filters(Arguments<Traits> const& arguments) {
  if constexpr (Traits::kGrouped) {
    return GroupBlocks::of(arguments.problem, Traits::kClass, arguments.groups).step;
  } else {
    return kFilters;
  }
}

template <class T>
constexpr CUtensorMapDataType map_type() {
  return std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/// Encode the TMA descriptors of C and D. Return whether the driver accepts them.
template <class Traits>
bool encode_tiles(Arguments<Traits> const& arguments, Params<Traits>& params) {
  Problem const& problem = arguments.problem;
  Geometry const& geometry = params.geometry;
  auto const image = [&]([[maybe_unused]] int residue, CUtensorMapDataType type, void const* pointer, int64_t stride,
                         int columns, int rows, int images) {
    int64_t const row = stride * problem.width.output, slice = row * problem.height.output;
    if constexpr (Traits::kVolume) {
      return TmaTensor<5>{type, 2, pointer,
                          {problem.filters, problem.width.output, problem.images, problem.height.output,
                           problem.depth.output},
                          {stride, slice * problem.depth.output, row, slice},
                          {kFilters, columns, images, rows, 1}, {1, 1}, Traits::kEpilogueRow};
    } else if constexpr (Traits::kResidues) {
      Residues const& residues = params.operands.residues;
      int const steps_x = residues.stride_width, steps_y = residues.stride_height;
      int64_t const first = residues.row[residue] * row + residues.column[residue] * stride;
      return TmaTensor<4>{type, 2, static_cast<char const*>(pointer) + 2 * first,
                          {problem.filters, residues.columns[residue], problem.images, residues.rows[residue]},
                          {stride * steps_x, slice, row * steps_y}, {kFilters, columns, images, rows}, {1, 1},
                          Traits::kEpilogueRow};
    } else if constexpr (Traits::kGrouped) {
      GroupBlocks const& groups = params.operands.groups;
      return TmaTensor<5>{type, 2, pointer,
                          {groups.filters, problem.width.output, problem.images, problem.height.output,
                           problem.filters / groups.filters},
                          {stride, slice, row, groups.filters},
                          {groups.step, columns, images, rows, 1}, {1, 1}, Traits::kEpilogueRow};
    } else {
      return TmaTensor<4>{type, 2, pointer,
                          {problem.filters, problem.width.output, problem.images, problem.height.output},
                          {stride, slice, row}, {kFilters, columns, images, rows}, {1, 1}, Traits::kEpilogueRow};
    }
  };
  bool done = true;
  int const rows = geometry.rows;
  if constexpr (Traits::kLoadsSource) {
    CUtensorMapDataType const type = map_type<typename Traits::Source>();
    for (int i = 0; i < params.classes(); ++i) {
      done = done && image(i, type, arguments.c, arguments.c_stride, geometry.accumulator_pitch, rows, geometry.images)
                         .encode(const_cast<CUtensorMap&>(params.source_of(i)));
    }
  }
  if constexpr (Traits::kStoresDestination && (Traits::kShared || Traits::kStored > 0)) {
    constexpr int kStored = Traits::kShared ? sizeof(uint4) : Traits::kStored * 2;  // bytes at a time
    done = done && reinterpret_cast<uintptr_t>(arguments.d) % kStored == 0 &&
           arguments.d_stride * sizeof(typename Traits::Destination) % kStored == 0;
  } else if constexpr (Traits::kStoresDestination) {
    CUtensorMapDataType const type = map_type<typename Traits::Destination>();
    int const columns = params.stores_rows ? geometry.columns : geometry.accumulator_pitch;
    for (int i = 0; i < params.classes(); ++i) {
      done = done && image(i, type, arguments.d, arguments.d_stride, columns, params.stores_rows ? 1 : rows,
                           params.stores_rows ? 1 : geometry.images)
                         .encode(const_cast<CUtensorMap&>(params.destination_of(i)));
    }
  }
  return done;
}

template <class Traits>
Params<Traits> to_underlying_arguments(Arguments<Traits> const& arguments) {
  using Mainloop = typename Traits::Mainloop;
  Problem const problem = problem_of(arguments);
  Params<Traits> params{};
  Geometry const& geometry = params.geometry =
      scheduled(problem, Traits::kClass, geometry_of(arguments), arguments.multiprocessors);
  params.epilogue = arguments.epilogue;
  if constexpr (Traits::kResidues) {
    params.taps = taps_of_residues(arguments.problem, geometry.row_pitch(), params.operands.residues);
  } else {
    params.taps = taps_of(problem, geometry.row_pitch());
    if (Mainloop::kBackwards) params.taps.reverse(problem);
  }
  params.images = problem.images;
  params.output_height = Traits::kResidues ? arguments.problem.height.output : problem.height.output;
  params.output_width = Traits::kResidues ? arguments.problem.width.output : problem.width.output;
  params.filter_count = arguments.problem.filters;
  int const pixels = problem.depth.output * params.output_height * params.output_width;
  params.image_rows = pixels * (Traits::kPlanar ? params.filter_count : 1);
  params.stride_height = problem.height.stride;
  params.stride_width = problem.width.stride;
  params.channel_blocks = problem.channel_blocks(Traits::kChannels);
  params.depth = Depth::of(problem, Traits::kChannels);
  params.filter_blocks = ceil_div(problem.filters, kFilters * (geometry.cooperative ? 2 : 1));
  params.work_tiles = geometry.tiles(problem) * params.filter_blocks;
  if constexpr (Traits::kResidues) {
    params.operands.work_tiles = params.work_tiles;
    params.operands.tiles = geometry.tiles(problem);
    params.operands.by_work_tiles = FastDivisor::of(params.work_tiles);
  }
  params.work_tiles *= params.multiplied_classes();
  params.grid = grid_of(params.work_tiles, params.filter_blocks, arguments.multiprocessors, geometry.resident);
  if (Traits::kShared) params.grid = params.work_tiles * geometry.cluster_size;  // each CTA has one tile
  params.by_filter_blocks = FastDivisor::of(params.filter_blocks);
  params.by_tiles_wide = FastDivisor::of(geometry.tiles_wide);
  params.by_tiles_high = FastDivisor::of(geometry.tiles_high);
  params.by_cluster_size = FastDivisor::of(geometry.cluster_size);
  params.by_pitch = SmallDivisor::of(geometry.accumulator_pitch);
  params.by_images = SmallDivisor::of(geometry.images);
  params.steps_per_cta = ceil_div(Traits::kSteps, geometry.cluster_size);
  params.d = static_cast<typename Traits::Destination*>(arguments.d);
  params.d_stride = arguments.d_stride;
  params.input_layout = operand_layout(Traits::kPixelBytes, geometry.next_eight());
  params.stores_rows = geometry.accumulator_pitch > geometry.columns && geometry.tiles_wide > 1;
  params.source_bytes = geometry.stored_pixels() * 2 * stored_filters(arguments);
  params.encoded = Mainloop::encode(arguments, params) && encode_tiles(arguments, params);
  return params;
}

template <class Traits>
bool can_implement(Arguments<Traits> const& arguments) {
  constexpr int kMostPadding = 32767;  // the place of a box is kept in 16 bits
  Problem const problem = problem_of(arguments);
  return (!Traits::Mainloop::kBackwards || problem.depth.stride * problem.height.stride * problem.width.stride == 1) &&
         problem.filters > 0 && (Traits::kResidues || problem.tap_count() <= kMaxTaps) &&
         std::min(problem.height.pad, problem.width.pad) >= 0 &&
         std::max(problem.height.pad, problem.width.pad) <= kMostPadding &&
         Traits::Mainloop::can_implement(arguments) && geometry_of(arguments).input_stages > 0 &&
         to_underlying_arguments(arguments).encoded;
}
#endif

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_PARAMS_HPP
