#ifndef EVT_DEPTHWISE_HPP
#define EVT_DEPTHWISE_HPP

// A depthwise convolution for sm90: each channel has a filter of its own. There is no matrix product in it, so the
// multiply-adds are those of FFMA, in f32.
//
// A thread block has 32 channels of a tile of pixels. TMA loads its input with the halo that the taps reach, and zeros
// outside of the image, once, and C, if there is one. A thread has two channels and a few rows and columns of pixels, a unit: it loads and converts
// each pixel of its input once and multiplies it by all taps that meet it, which are known at compile time. Its two
// channels are one word of memory, so that a warp moves two pixels of C and D at a time, of 32 channels each.
//
// There are several thread blocks on a multiprocessor: some load while others compute. Those of neighbouring channels come
// after one another, as they share lines of L2.
//
// The gradient of the input, of stride 1, is the same convolution of the output's gradient, by filters read backwards.

#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "evt/depthwise_geometry.hpp"
#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace depthwise {

/// Which lanes of a warp have which elements of a step: see fragment.hpp.
using Lanes = fragment::Lanes<kPairs, 1>;

/// Two neighbouring elements, as numbers.
template <class T>
CUTLASS_DEVICE float2 load_pair(T const* from) {
  uint32_t const word = *reinterpret_cast<uint32_t const*>(from);
  return {element::load_first<T>(word), element::load_second<T>(word)};
}
CUTLASS_DEVICE float2 load_pair(float const* from) { return *reinterpret_cast<float2 const*>(from); }

/// The convolution of Elements, of 16 or 32 bits, by a Filter of depthwise_geometry.hpp, with an Epilogue of fragment.hpp.
template <class Element, class Filter, class Epilogue>
struct Kernel {
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr ElementBytes kElements{sizeof(Element), kLoadsSource ? 2 : 0};
  static constexpr int kSteps = (Filter::kPixels + fragment::kRows - 1) / fragment::kRows;
  static constexpr int kUnits = 2;  // of a warp
  static_assert(Lanes::kRows == kUnits, "a lane of a row is a unit");

  struct Arguments {
    Problem problem;
    void const* a;
    int64_t a_strides[3];  // of images, rows and pixels
    void const* b;
    int64_t b_strides[3];  // of filters, and rows and columns of taps
    void const* c;
    int64_t c_stride;  // of pixels
    void* d;
    int64_t d_stride;
    typename Epilogue::Params epilogue;
  };

  struct Params {
    CUtensorMap input, source;
    Element const* filters;
    int64_t filter_stride, row_stride, tap_stride;
    Destination* d;
    int64_t d_stride;
    typename Epilogue::Params epilogue;
    Problem problem;
    Geometry geometry;
    Memory memory;
    bool encoded;
  };

  static constexpr int MaxThreadsPerBlock = kThreads;
  static constexpr int MinBlocksPerMultiprocessor = kBlocks;
  static constexpr int SharedStorageSize = kSharedBytes;  // at most: see get_shared_bytes

  static Geometry geometry_of(Arguments const& arguments) { return choose<Filter>(arguments.problem, kElements); }

  static bool can_implement(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    return Filter::is_of(problem) && problem.channels == problem.filters && geometry_of(arguments).units() > 0 &&
           geometry_of(arguments).blocks() <= INT32_MAX && to_underlying_arguments(arguments).encoded;
  }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    Problem const& problem = arguments.problem;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    Params params{};
    params.filters = static_cast<Element const*>(arguments.b);
    params.filter_stride = b[0], params.row_stride = b[1], params.tap_stride = b[2];
    params.d = static_cast<Destination*>(arguments.d);
    params.d_stride = arguments.d_stride;
    params.epilogue = arguments.epilogue;
    params.problem = problem;
    Geometry const& geometry = params.geometry = geometry_of(arguments);
    params.memory = Memory::of<Filter>(geometry, kElements);
    hopper::Tensor<4> const input{map_type<Element>(), kElements.a, arguments.a,
                                  {problem.channels, problem.width, problem.height, problem.images},
                                  {a[2], a[1], a[0]},
                                  {kChannels, geometry.box_columns, geometry.box_rows, geometry.images}, {1, 1},
                                  kUnswizzled};
    params.encoded = input.encode(params.input);
    if constexpr (kLoadsSource) {
      int64_t const pixel = arguments.c_stride, row = pixel * problem.output_width;
      hopper::Tensor<4> const source{map_type<Source>(), kElements.c, arguments.c,
                                     {problem.channels, problem.output_width, problem.output_height, problem.images},
                                     {pixel, row, row * problem.output_height},
                                     {kChannels, geometry.columns * Filter::kColumns, geometry.rows * Filter::kRows,
                                      geometry.images},
                                     {1, 1}, kUnswizzled};
      params.encoded = params.encoded && source.encode(params.source);
    }
    return params;
  }

  /// The parts of reductions: each warp has its own, of 32 channels.
  static fragment::Tiles tiles(Arguments const& arguments) {
    Geometry const geometry = geometry_of(arguments);
    return {geometry.tiles * (geometry.threads() / 32), geometry.channel_blocks};
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(static_cast<unsigned>(params.geometry.blocks())); }
  static dim3 get_block_shape(Params const& params) { return dim3(params.geometry.threads()); }
  static int get_shared_bytes(Params const& params) { return params.memory.bytes; }

  CUTLASS_DEVICE void operator()(Params const& params, char* storage) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Geometry const& geometry = params.geometry;
    float* const weights = reinterpret_cast<float*>(storage + params.memory.weights);
    Tile const tile(geometry, blockIdx.x);
    if (threadIdx.x == 0) load(params, tile, hopper::shared_address(storage));
    load_weights(params, weights, tile.channel);
    __syncthreads();
    Unit const unit(geometry, threadIdx.x);
    float2 sums[Filter::kRows][Filter::kColumns] = {};
    hopper::wait(input_loaded(params, hopper::shared_address(storage)), 0);
    multiply(reinterpret_cast<Element const*>(storage) + unit.input(geometry), geometry.box_columns * kChannels,
             weights + 2 * unit.pair, sums);
    if constexpr (kLoadsSource) hopper::wait(source_loaded(params, hopper::shared_address(storage)), 0);
    complete(params, storage + params.memory.source, sums);
#endif
  }

 private:
  /// A thread block's tile: its first channel and pixel.
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
  struct Unit {
    int pair, image, row, column;
    bool exists;  // the warp's other unit may be the tile's last one

    CUTLASS_DEVICE Unit(Geometry const& geometry, int thread) {
      int const number = thread / 32 * kUnits + thread % kUnits, of_row = number / geometry.columns;
      pair = thread % 32 / kUnits;
      image = of_row / geometry.rows;
      row = (of_row - image * geometry.rows) * Filter::kRows;
      column = (number - of_row * geometry.columns) * Filter::kColumns;
      exists = image < geometry.images;
    }

    /// Where its input begins in shared memory.
    CUTLASS_DEVICE int input(Geometry const& geometry) const {
      int const pixel = (image * geometry.box_rows + row * Filter::kStrideHeight) * geometry.box_columns +
                        column * Filter::kStrideWidth;
      return (exists ? pixel * kChannels : 0) + 2 * pair;
    }

    /// Where pixel i of C is in shared memory.
    CUTLASS_DEVICE int source(Geometry const& geometry, int i) const {
      int const of_row = (image * geometry.rows * Filter::kRows + row + i / Filter::kColumns) * geometry.columns;
      return (of_row * Filter::kColumns + column + i % Filter::kColumns) * kChannels + 2 * pair;
    }
  };

  /// Where a thread's pixels are in the output.
  struct Pixels {
    Problem const& problem;
    int image, row, column;  // of the first one

    /// The row of the matrix of pixel i; of one that is outside of it, -1.
    CUTLASS_DEVICE int place(int i) const {
      int const y = row + i / Filter::kColumns, x = column + i % Filter::kColumns;
      bool const has = i < Filter::kPixels && y < problem.output_height && x < problem.output_width && image < problem.images;
      return has ? (image * problem.output_height + y) * problem.output_width + x : -1;
    }
  };

  /// A step of the epilogue: where its elements are, and what is loaded for them.
  struct Step {
    fragment::Places places;
    typename Epilogue::Fetched fetched;
  };

  static constexpr int kUnswizzled = 0;

  template <class T>
  static constexpr CUtensorMapDataType map_type() {
    return std::is_same_v<T, float>          ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
           : std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }

  CUTLASS_DEVICE static uint32_t input_loaded(Params const& params, uint32_t storage) {
    return storage + params.memory.barriers;
  }
  CUTLASS_DEVICE static uint32_t source_loaded(Params const& params, uint32_t storage) {
    return storage + params.memory.barriers + 8;
  }

  /// Have TMA load the tile's input, and C.
  CUTLASS_DEVICE static void load(Params const& params, Tile const& tile, uint32_t storage) {
    Geometry const& geometry = params.geometry;
    uint32_t const of_input = input_loaded(params, storage), of_source = source_loaded(params, storage);
    hopper::init_barrier(of_input, 1);
    hopper::init_barrier(of_source, 1);
    hopper::fence_barriers();
    int const pixels = geometry.images * geometry.box_rows * geometry.box_columns;
    hopper::arrive_and_expect(of_input, pixels * kChannels * kElements.a);
    hopper::load_box(storage, params.input, of_input, tile.channel,
                     tile.column * Filter::kStrideWidth - params.problem.pad_width,
                     tile.row * Filter::kStrideHeight - params.problem.pad_height, tile.image);
    if constexpr (kLoadsSource) {
      hopper::arrive_and_expect(of_source, params.memory.weights - params.memory.source);
      hopper::load_box(storage + params.memory.source, params.source, of_source, tile.channel, tile.column, tile.row,
                       tile.image);
    }
  }

  /// Neighbouring threads have neighbouring taps, which are so in memory; several loads are under way at a time.
  CUTLASS_DEVICE static void load_weights(Params const& params, float* weights, int first_channel) {
    constexpr int kNumber = Filter::kTaps * kChannels, kAtATime = 8;
    for (int first = threadIdx.x; first < kNumber; first += kAtATime * blockDim.x) {
      Element loaded[kAtATime];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kAtATime; ++j) {
        int const i = first + j * blockDim.x, channel = i / Filter::kTaps, tap = i - channel * Filter::kTaps;
        loaded[j] = {};
        if (i < kNumber && first_channel + channel < params.problem.channels) {
          loaded[j] = params.filters[(first_channel + channel) * params.filter_stride +
                                     tap / Filter::kWidth * params.row_stride + tap % Filter::kWidth * params.tap_stride];
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kAtATime; ++j) {
        int const i = first + j * blockDim.x, channel = i / Filter::kTaps, tap = i - channel * Filter::kTaps;
        int const place = Filter::kBackwards ? Filter::kTaps - 1 - tap : tap;
        if (i < kNumber) weights[place * kWeightPitch + channel] = element::load(loaded[j]);
      }
    }
  }

  /// Whether an output of `outputs`, every `stride` inputs, meets an input by one of some taps.
  CUTLASS_HOST_DEVICE static constexpr bool meets(int input, int outputs, int stride, int taps, int dilation) {
    for (int output = 0; output < outputs; ++output) {
      int const reach = input - output * stride;
      if (reach >= 0 && reach % dilation == 0 && reach / dilation < taps) return true;
    }
    return false;
  }

  /// Sum up a thread's pixels, row by row of the input, `pitch` elements apart.
  CUTLASS_DEVICE static void multiply(Element const* input, int pitch, float const* weights,
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
        int const reach = y - row * Filter::kStrideHeight;
        if (reach < 0 || reach % Filter::kDilationHeight != 0 || reach / Filter::kDilationHeight >= Filter::kHeight) continue;
        float const* const taps = weights + reach / Filter::kDilationHeight * Filter::kWidth * kWeightPitch;
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

  /// Compute the epilogue of a thread's pixels. A step's elements are loaded while the one before it is computed.
  CUTLASS_DEVICE static void complete(Params const& params, [[maybe_unused]] char const* source,
                                      float2 (&sums)[Filter::kRows][Filter::kColumns]) {
    int thread = threadIdx.x, block = blockIdx.x;
    asm volatile("" : "+r"(thread), "+r"(block));  // what follows from them takes no registers before
    Tile const of_block(params.geometry, block);
    Unit const unit(params.geometry, thread);
    Pixels const pixels{params.problem, unit.exists ? of_block.image + unit.image : params.problem.images,
                        of_block.row + unit.row, of_block.column + unit.column};
    fragment::Tile const tile{of_block.channel + 2 * unit.pair, params.problem.channels,
                              of_block.number * static_cast<int>(blockDim.x / 32) + thread / 32,
                              of_block.channel / kChannels, params.geometry.channel_blocks, Lanes::kDistance};
    Epilogue epilogue(params.epilogue, tile);
    bool const has = tile.has(0);  // and then the other channel, too: pixels are multiples of 16 bytes
    Step steps[2];
    auto const fetch = [&](int number) {
      Step& step = steps[number % 2];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; ++i) {
        step.places.rows[i] = pixels.place(number * fragment::kRows + i);
      }
      epilogue.fetch(step.fetched, step.places);
    };
    fetch(0);
    CUTLASS_PRAGMA_UNROLL
    for (int number = 0; number < kSteps; ++number) {
      if (number + 1 < kSteps) fetch(number + 1);
      Step const& step = steps[number % 2];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; ++i) {
        int const pixel = number * fragment::kRows + i;
        if (pixel >= Filter::kPixels) break;
        float2 const sum = sums[pixel / Filter::kColumns][pixel % Filter::kColumns];
        float2 c = {};
        if constexpr (kLoadsSource) {
          if (unit.exists) c = load_pair(reinterpret_cast<Source const*>(source) + unit.source(params.geometry, pixel));
        }
        auto const first = epilogue.visit(fragment::element_of(0, i), sum.x, c.x, step.fetched, step.places);
        auto const second = epilogue.visit(fragment::element_of(1, i), sum.y, c.y, step.fetched, step.places);
        if constexpr (kStoresDestination) {
          uint32_t word;
          element::store_two(Destination{}, word, first, second);
          if (has && step.places.rows[i] >= 0) {
            *reinterpret_cast<uint32_t*>(params.d + step.places.rows[i] * params.d_stride + tile.first) = word;
          }
        }
      }
    }
    epilogue.finish(tile);
  }
};

}  // namespace depthwise
}  // namespace evt

#endif  // EVT_DEPTHWISE_HPP
