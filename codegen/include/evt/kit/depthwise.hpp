#ifndef EVT_KIT_DEPTHWISE_HPP
#define EVT_KIT_DEPTHWISE_HPP

// A depthwise convolution for sm90: each channel has one filter. There is no matrix product, so the multiply-adds are
// FFMA in f32.
//
// A CTA has 32 channels of a tile of pixels. TMA loads its input once, with the halo that the taps reach and zeros
// outside of the image, its filters, and C, if there is one. A thread has two channels and a unit, a few rows and
// columns of pixels. It loads and converts each pixel of its input once and multiplies it by all taps that read it. The
// taps are known at compile time. Two channels are one word of memory, so that a warp stores two pixels of D at a time.
//
// An SM has several CTAs: some load while others compute. CTAs of neighbouring channels are successive, for they share
// lines of L2.
//
// The gradient of the input, of stride 1, convolves the output's gradient with filters that are read backwards.

#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "evt/kit/depthwise_filter.hpp"
#include "evt/kit/depthwise_mainloop.hpp"
#include "evt/kit/depthwise_units.hpp"
#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace depthwise {

/// The convolution of Elements, of 16 or 32 bits, by a Filter of depthwise_filter.hpp, with an Epilogue: see
/// fragment.hpp.
template <class Element, class Filter, class Epilogue>
struct Kernel {
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr ElementBytes kElements{sizeof(Element), kLoadsSource ? 2 : 0};
  static constexpr int kSteps = (Filter::kPixels + fragment::kRows - 1) / fragment::kRows;

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
    Filters<Element> filters;
    bool packed;  // packed, at an address that TMA accepts
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

#if !defined(EVT_DEVICE_PASS)
  static Geometry geometry_of(Arguments const& arguments) {
    return choose(Filter::kShape, arguments.problem, kElements);
  }

  static bool can_implement(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    return Filter::is_of(problem) && problem.channels == problem.filters && geometry_of(arguments).units() > 0 &&
           geometry_of(arguments).blocks() <= INT32_MAX && to_underlying_arguments(arguments).encoded;
  }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    Problem const& problem = arguments.problem;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    Params params{};
    params.filters = {static_cast<Element const*>(arguments.b), b[0], b[1], b[2]};
    params.packed = has_packed_filters(arguments);
    params.d = static_cast<Destination*>(arguments.d);
    params.d_stride = arguments.d_stride;
    params.epilogue = arguments.epilogue;
    params.problem = problem;
    Geometry const& geometry = params.geometry = geometry_of(arguments);
    params.memory = memory_of(Filter::kShape, geometry, kElements);
    kit::TmaTensor<4> const input{map_type<Element>(), kElements.a, arguments.a,
                                  {problem.channels, problem.width.size, problem.height.size, problem.images},
                                  {a[2], a[1], a[0]},
                                  {kChannels, geometry.box_columns, geometry.box_rows, geometry.images}, {1, 1},
                                  kUnswizzled};
    params.encoded = input.encode(params.input);
    if constexpr (kLoadsSource) {
      int64_t const pixel = arguments.c_stride, row = pixel * problem.width.output;
      kit::TmaTensor<4> const source{map_type<Source>(), kElements.c, arguments.c,
                                     {problem.channels, problem.width.output, problem.height.output, problem.images},
                                     {pixel, row, row * problem.height.output},
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
  static int get_shared_bytes(Params const& params) { return params.memory.size; }
#endif

  CUTLASS_DEVICE void operator()(Params const& params, char* storage) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Geometry const& geometry = params.geometry;
    float* const weights = reinterpret_cast<float*>(storage + params.memory.weights);
    Tile<Filter> const tile(geometry, blockIdx.x);
    if (threadIdx.x == 0) load(params, tile, kit::cast_smem_ptr_to_uint(storage));
    if (params.packed) {
      __syncthreads();
      kit::barrier_wait(filters_loaded(params, kit::cast_smem_ptr_to_uint(storage)), 0);
      widen<Filter>(reinterpret_cast<Element const*>(storage + params.memory.filters), weights);
    } else {
      gather<Filter>(params.filters, tile.channel, params.problem.channels, weights);
    }
    __syncthreads();
    Unit<Filter> const unit(geometry, threadIdx.x);
    float2 sums[Filter::kRows][Filter::kColumns] = {};
    kit::barrier_wait(input_loaded(params, kit::cast_smem_ptr_to_uint(storage)), 0);
    multiply<Filter>(reinterpret_cast<Element const*>(storage) + unit.input(geometry), geometry.box_columns * kChannels,
                     weights + 2 * unit.pair, sums);
    if constexpr (kLoadsSource) kit::barrier_wait(source_loaded(params, kit::cast_smem_ptr_to_uint(storage)), 0);
    complete(params, tile, unit, storage + params.memory.source, sums);
#endif
  }

 private:
  /// A step of the epilogue: the places of its elements, and the values loaded for them.
  struct Step {
    fragment::Places places;
    typename Epilogue::Fetched fetched;
  };

  static constexpr int kUnswizzled = 0;

#if !defined(EVT_DEVICE_PASS)
  template <class T>
  static constexpr CUtensorMapDataType map_type() {
    return std::is_same_v<T, float>          ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
           : std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
#endif

  CUTLASS_DEVICE static uint32_t input_loaded(Params const& params, uint32_t storage) {
    return storage + params.memory.barriers;
  }
  CUTLASS_DEVICE static uint32_t source_loaded(Params const& params, uint32_t storage) {
    return storage + params.memory.barriers + 8;
  }
  CUTLASS_DEVICE static uint32_t filters_loaded(Params const& params, uint32_t storage) {
    return storage + params.memory.barriers + 16;
  }

#if !defined(EVT_DEVICE_PASS)
  static bool has_packed_filters(Arguments const& arguments) {
    constexpr int kAligned = 16;
    auto const& strides = arguments.b_strides;
    return strides[0] == Filter::kTaps && (Filter::kHeight == 1 || strides[1] == Filter::kWidth) &&
           (Filter::kWidth == 1 || strides[2] == 1) && reinterpret_cast<uintptr_t>(arguments.b) % kAligned == 0;
  }
#endif

  /// Have TMA load the tile's filters, its input, and C.
  CUTLASS_DEVICE static void load(Params const& params, Tile<Filter> const& tile, uint32_t storage) {
    Geometry const& geometry = params.geometry;
    uint32_t const of_input = input_loaded(params, storage), of_source = source_loaded(params, storage);
    uint32_t const of_filters = filters_loaded(params, storage);
    kit::barrier_init(of_input, 1);
    kit::barrier_init(of_source, 1);
    kit::barrier_init(of_filters, 1);
    kit::fence_barrier_init();
    if (params.packed) {
      int const channels = min(kChannels, params.problem.channels - tile.channel);
      int const bytes = channels * Filter::kTaps * kElements.a;
      kit::arrive_and_expect_tx(of_filters, bytes);
      kit::tma_load_bulk(storage + params.memory.filters, params.filters.pointer + tile.channel * params.filters.stride,
                         bytes, of_filters);
    }
    int const pixels = geometry.images * geometry.box_rows * geometry.box_columns;
    kit::arrive_and_expect_tx(of_input, pixels * kChannels * kElements.a);
    kit::tma_load(storage, params.input, of_input, tile.channel,
                     tile.column * Filter::kStrideWidth - params.problem.width.pad,
                     tile.row * Filter::kStrideHeight - params.problem.height.pad, tile.image);
    if constexpr (kLoadsSource) {
      kit::arrive_and_expect_tx(of_source, params.memory.filters - params.memory.source);
      kit::tma_load(storage + params.memory.source, params.source, of_source, tile.channel, tile.column, tile.row,
                       tile.image);
    }
  }

  /// Compute the epilogue of a thread's pixels. A step's elements are loaded while the one before it is computed.
  CUTLASS_DEVICE static void complete(Params const& params, Tile<Filter> const& of_block, Unit<Filter> const& unit,
                                      [[maybe_unused]] char const* source,
                                      float2 (&sums)[Filter::kRows][Filter::kColumns]) {
    Pixels<Filter> const pixels(params.problem, unit.exists ? of_block.image + unit.image : params.problem.images,
                                of_block.row + unit.row, of_block.column + unit.column);
    fragment::Tile const tile{of_block.channel + 2 * unit.pair, params.problem.channels,
                              of_block.number * static_cast<int>(blockDim.x / 32) + kit::canonical_warp_idx_sync(),
                              of_block.channel / kChannels, params.geometry.channel_blocks};
    Epilogue epilogue(params.epilogue, tile);
    epilogue.compute_columns();
    bool const has = tile.first < tile.columns;  // and then the other channel, too: pixels are multiples of 16 bytes
    [[maybe_unused]] int64_t const stored = pixels.first * params.d_stride + tile.first;
    [[maybe_unused]] int const first_source = unit.source(params.geometry);
    [[maybe_unused]] int const source_row = params.geometry.columns * Filter::kColumns * kChannels;
    Step steps[2];
    auto const fetch = [&](int number) {
      if constexpr (Epilogue::kPlaces) {
        Step& step = steps[number % 2];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          step.places.rows[i] = pixels.place(number * fragment::kRows + i);
        }
        epilogue.fetch(step.fetched, step.places);
      }
    };
    fetch(0);
    CUTLASS_PRAGMA_UNROLL
    for (int number = 0; number < kSteps; ++number) {
      if (number + 1 < kSteps) fetch(number + 1);
      Step const& step = steps[number % 2];
      float2 c[fragment::kRows] = {};
      if constexpr (kLoadsSource) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          int const pixel = number * fragment::kRows + i;
          if (pixel >= Filter::kPixels) break;
          int const place = pixel / Filter::kColumns * source_row + pixel % Filter::kColumns * kChannels;
          c[i] = load_pair(reinterpret_cast<Source const*>(source) + first_source + place);
        }
      }
      typename Epilogue::Result of_first{};
      auto const sum = [&](int i) {
        int const pixel = number * fragment::kRows + i / 2;
        float2 const two = sums[pixel / Filter::kColumns][pixel % Filter::kColumns];
        return i % 2 == 0 ? two.x : two.y;
      };
      auto const of_source = [&](int i) { return i % 2 == 0 ? c[i / 2].x : c[i / 2].y; };
      auto const store = [&](int i, typename Epilogue::Result value) {
        if constexpr (kStoresDestination) {
          if (i % 2 == 0) {
            of_first = value;
            return;
          }
          int const pixel = number * fragment::kRows + i / 2;
          uint32_t word;
          element::store_two(Destination{}, word, of_first, value);
          if (has && pixels.has(pixel)) {
            int64_t const ahead = int64_t(pixel / Filter::kColumns) * pixels.width + pixel % Filter::kColumns;
            *reinterpret_cast<uint32_t*>(params.d + stored + ahead * params.d_stride) = word;
          }
        }
      };
      constexpr int kLast = Filter::kPixels - (kSteps - 1) * fragment::kRows;  // pixels of the last step
      if (number + 1 < kSteps) {
        epilogue.template visit<2 * fragment::kRows>(sum, of_source, store, step.fetched, step.places);
      } else {
        epilogue.template visit<2 * kLast>(sum, of_source, store, step.fetched, step.places);
      }
    }
    epilogue.finish(tile);
  }
};

}  // namespace depthwise
}  // namespace evt

#endif  // EVT_KIT_DEPTHWISE_HPP
