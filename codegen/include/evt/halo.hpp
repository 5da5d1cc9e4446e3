#ifndef EVT_HALO_HPP
#define EVT_HALO_HPP

// A convolution for sm90 that loads each pixel of its input once per tile. An implicit GEMM by TMA's im2col mode loads
// it once for every tap, and for few channels that is what bounds it.
//
// A tile is 64 filters by at most Mma::kPixels output pixels: `rows` rows of `columns` pixels. Its input, with the halo
// that the taps reach, is loaded as a box of pixels, rows of `pitch` pixels one after the other; a pixel is a row of
// shared memory with the channels of one plane. A tap's operand is the same memory, from `shift` pixels later on. So the
// accumulator also has pixels between the rows of the tile, which are not stored. Where a row's padding is zeros, the
// end of one row and the beginning of the next share it. Of a tile of eight columns it has none between rows: WGMMA takes
// eight pixels after one another, and the next eight from wherever the descriptor says, which is the next row.
//
// With a stride s, the taps form groups of those that meet the same pixels of every s: each group has its own box, of
// every s-th pixel. A 1x1 filter is one tap and no halo: a matrix product.
//
// The gradient of the input, of stride 1, is a convolution too: of the output's gradient, by filters that are read
// backwards and transposed, for their columns are the channels that they are contiguous along.
//
// Of few channels, a pixel has 16 bytes in shared memory: so many pixels of the input as a step of the stride has, each
// widened with zeros. The taps of a row are one tap, of a window of pixels: rows of a K-major operand without a swizzle are
// 16 bytes apart, so that they overlap. The window's last pixels may be beyond the filter, which has zeros there; what is
// not finite there makes the product NaN. TMA does not widen: warps 0 to 2 load the input, and all threads the filters, once,
// for they have to stay; warp 3 moves the tiles of both consumers.
//
// A volume is a stack of slices: those of the input that the taps along the depth meet are multiplied one after the
// other, like planes of channels.
//
// The product is transposed: M are the filters, N the pixels. Blocks are persistent. The first warp group loads, if TMA
// does all of it: warp 0 the input, warp 3 the filters, warps 1 and 2 load C and store D for one of the two consumers each.
// The consumers take turns at the tensor cores, each with a tile of its own, so that one multiplies while the other
// computes its epilogue. Filters stay in shared memory where they fit; a block then keeps to one block of 64 filters.
//
// Where there are few tiles of many channels, the thread blocks of a cluster share each of them, in a kernel of its own: a
// thread block has one tile and one consumer, and nobody takes turns. It multiplies some of the planes, gives its sums to
// the thread blocks that complete them, and completes some pixels itself: it adds everyone's sums, always in the same
// order, computes the epilogue, and stores D without TMA, which would store a whole tile.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/descriptor.hpp"
#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/halo_geometry.hpp"
#include "evt/halo_windows.hpp"
#include "evt/hopper.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace halo {

/// The convolution with an Epilogue (see fragment.hpp), by an Mma with kElementBytes, Accumulator, kPixels, kType,
/// kTransposed, which is that of a gradient, and `fma`. Dimensions: 2, of a volume 3. Shared: clusters share tiles.
/// WindowChannels: of a convolution over windows of `Plane` elements, which has such a StrideWidth; else 0.
template <class Mma, int Plane, class Epilogue, int Dimensions, bool Shared = false, int WindowChannels = 0,
          int StrideWidth = 1>
struct Kernel {
  using Accumulator = typename Mma::Accumulator;
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;

  static constexpr int kPixels = Mma::kPixels;
  static constexpr int kPlaneBytes = Plane * Mma::kElementBytes;
  static constexpr bool kWindows = WindowChannels > 0;
  static constexpr int kPixelBytes = kWindows ? kWindowBytes : kPlaneBytes;
  using Widened = FewChannels<Mma::kElementBytes, kWindows ? WindowChannels : 1, StrideWidth>;  // f32 is TF32
  using Filters = FilterRows<Mma::kElementBytes, Plane, Mma::kTransposed>;
  static constexpr int kInstructions = kPlaneBytes / hopper::kDepthBytes;
  static constexpr int kSteps = ceil_div(kPixels, kStepPixels);
  static constexpr int kQuads = kPixels / 8, kQuadBytes = 16;  // four sums of a thread, in half a step
  static constexpr int kEpilogueRow = 2 * kFilters;  // bytes of a pixel of C and D
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr bool kStaged = kLoadsSource || kStoresDestination;
  static constexpr bool kVolume = Dimensions == 3;
  static constexpr Class kClass{kPixels, Plane, kPlaneBytes, kStaged, kVolume, kPixelBytes, Shared};
  static_assert(!kWindows || !(kVolume || Mma::kTransposed), "windows are those of an image that is multiplied forward");
  static_assert(!kWindows || !Shared, "windows are one plane, which thread blocks cannot share");

  static constexpr int kConsumers = Shared ? 1 : 2;
  static constexpr int kThreads = (1 + kConsumers) * kWarpGroup;
  static constexpr int MaxThreadsPerBlock = kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static constexpr int SharedStorageSize = kSharedBytes;
  static constexpr int kProducerRegisters = kWindows ? 104 : 40;
  static constexpr int kConsumerRegisters = kWindows ? 200 : 232;  // of one consumer the compiler's
  static constexpr int kMostPadding = 32767;
  static constexpr int kLargestStep = 8;  // of TMA's boxes, and of those of windows

  struct Arguments {
    Problem problem;
    void const* a;
    int64_t a_strides[Dimensions + 1];  // of images, of a volume its slices, rows and pixels
    void const* b;
    int64_t b_strides[Dimensions + 1];  // of filters (of channels where they are transposed), and the same of taps
    void const* c;
    int64_t c_stride;  // of pixels
    void* d;
    int64_t d_stride;
    typename Epilogue::Params epilogue;
    int multiprocessors;
    int rows, columns;  // of a tile; 0: the best
  };

  /// Operands of few channels, which TMA does not move.
  struct Narrow {
    typename Widened::Element const *a, *b;
    int64_t a_image, a_row, b_filter, b_row;  // strides, in elements
    int a_pixel, b_pixel;
    int height, width, filter_width, pad;
    BoxDivisor by_pitch, by_box_rows;
  };

  struct Params {
    CUtensorMap input, filters, source, destination;
    typename Epilogue::Params epilogue;
    Taps taps;
    Geometry geometry;
    int images, output_height, output_width, filter_count;
    int stride_height, stride_width;
    int planes, filter_blocks, items;  // of a pair of consumers both blocks of filters are one
    Divisor by_filter_blocks, by_tiles_wide, by_tiles_high, by_blocks;
    int steps_per_block;  // of a shared tile, that a thread block completes
    Destination* d;       // where a shared tile is stored
    int64_t d_stride;
    int grid;
    int source_bytes;  // of a tile of C
    uint32_t input_layout;  // the upper word of its descriptors
    Narrow narrow;
    bool stores_rows;  // a row of pixels at a time: what lies between the rows of a tile belongs to its neighbours
    bool encoded;
    Depth depth;
  };

  static bool can_implement(Arguments const& arguments) {
    Problem const problem = problem_of(arguments);
    return (!Mma::kTransposed || problem.stride_depth * problem.stride_height * problem.stride_width == 1) &&
           problem.filter_height * problem.filter_width <= kMostTaps &&
           std::min(problem.pad_height, problem.pad_width) >= 0 &&
           std::max(problem.pad_height, problem.pad_width) <= kMostPadding &&
           (!kWindows || has_its_windows(arguments)) && geometry_of(arguments).stages > 0 &&
           to_underlying_arguments(arguments).encoded;
  }

  /// Whether windows are what a convolution needs: a row of taps is in one, and the next begins kWindowBytes later.
  static bool has_its_windows(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    return problem.channels == WindowChannels && problem.stride_width == StrideWidth && problem.dilation_width == 1 &&
           problem.filter_width * (kWindowBytes / StrideWidth) <= kPlaneBytes && problem.stride_height <= kLargestStep;
  }

  /// Whether the elements of a box, and of a row of taps, are so near to each other that 32 bits have the distance.
  static bool has_near_pixels(Arguments const& arguments, Geometry const& geometry) {
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    int64_t const rows = int64_t(geometry.box_rows) * arguments.problem.stride_height;
    int64_t const pixels = geometry.pitch * StrideWidth;
    int64_t const of_box = (geometry.images - 1) * std::abs(a[0]) + rows * std::abs(a[1]) + pixels * std::abs(a[2]);
    return std::max(of_box, kPlaneBytes * std::abs(b[2])) <= INT32_MAX;
  }

  /// Return the convolution that tiles are made of.
  static Problem problem_of(Arguments const& arguments) {
    return kWindows ? over_windows(arguments.problem, kClass) : arguments.problem;
  }

  /// Return the geometry; without stages where there is none.
  static Geometry geometry_of(Arguments const& arguments) {
    Problem const problem = problem_of(arguments);
    Geometry made = choose(problem, kClass, arguments.rows, arguments.columns);
    if (Shared && made.stages > 0 && !split_over_cluster(problem, kClass, made)) made.stages = 0;
    return made;
  }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    Problem const problem = problem_of(arguments);
    Params params{};
    Geometry& geometry = params.geometry = geometry_of(arguments);
    if (!Shared) pair(problem, kClass, arguments.multiprocessors, geometry);
    params.epilogue = arguments.epilogue;
    params.taps = taps_of(problem, geometry.pitch);
    if (Mma::kTransposed) params.taps.reverse(problem);
    params.images = problem.slices();
    params.output_height = problem.output_height;
    params.output_width = problem.output_width;
    params.filter_count = problem.filters;
    params.stride_height = problem.stride_height;
    params.stride_width = problem.stride_width;
    params.planes = problem.planes(Plane);
    params.depth = Depth::of(problem, Plane);
    params.filter_blocks = ceil_div(problem.filters, kFilters * (geometry.paired ? 2 : 1));
    params.items = geometry.tiles(problem) * params.filter_blocks;
    // With a multiple of the blocks of filters, every thread block keeps to one of them.
    int const most = std::max(arguments.multiprocessors / params.filter_blocks, 1) * params.filter_blocks;
    params.grid = std::min(params.items, geometry.resident ? most : arguments.multiprocessors);
    if (Shared) params.grid = params.items * geometry.blocks;  // of which each has one tile
    params.by_filter_blocks = Divisor::of(params.filter_blocks);
    params.by_tiles_wide = Divisor::of(geometry.tiles_wide);
    params.by_tiles_high = Divisor::of(geometry.tiles_high);
    params.by_blocks = Divisor::of(geometry.blocks);
    params.steps_per_block = ceil_div(kSteps, geometry.blocks);
    params.d = static_cast<Destination*>(arguments.d);
    params.d_stride = arguments.d_stride;
    params.input_layout = hopper::operand_layout(kPixelBytes, geometry.next_eight());
    params.stores_rows = geometry.sum_pitch > geometry.columns && geometry.tiles_wide > 1;
    params.source_bytes = geometry.stored_pixels() * kEpilogueRow;
    if constexpr (kWindows) params.narrow = narrow_of(arguments, geometry);
    params.encoded = encode(arguments, params);
    return params;
  }

  static bool encode(Arguments const& arguments, Params& params) {
    Problem const& problem = arguments.problem;
    Geometry const& geometry = params.geometry;
    bool done = false;
    if constexpr (kWindows) {
      done = has_near_pixels(arguments, geometry);
    } else {
      done = input_of(arguments, geometry).encode(params.input) && filters_of(arguments).encode(params.filters);
    }
    auto const image = [&](CUtensorMapDataType type, void const* pointer, int64_t stride, int columns, int rows,
                           int images) {
      int64_t const row = stride * problem.output_width;
      return hopper::Tensor<4>{type, 2, pointer,
                               {problem.filters, problem.output_width, problem.output_height, problem.slices()},
                               {stride, row, row * problem.output_height},
                               {kFilters, columns, rows, images}, {1, 1}, kEpilogueRow};
    };
    int const rows = geometry.images > 1 ? geometry.box_rows : geometry.rows;
    if constexpr (kLoadsSource) {
      done = done && image(map_type<Source>(), arguments.c, arguments.c_stride, geometry.sum_pitch, rows, geometry.images)
                         .encode(params.source);
    }
    if constexpr (kStoresDestination && Shared) {
      constexpr int kStored = sizeof(uint4);  // bytes at a time
      done = done && reinterpret_cast<uintptr_t>(arguments.d) % kStored == 0 &&
             arguments.d_stride * sizeof(Destination) % kStored == 0;
    } else if constexpr (kStoresDestination) {
      CUtensorMapDataType const type = map_type<Destination>();
      done = done && (params.stores_rows
                          ? image(type, arguments.d, arguments.d_stride, geometry.columns, 1, 1)
                          : image(type, arguments.d, arguments.d_stride, geometry.sum_pitch, rows, geometry.images))
                         .encode(params.destination);
    }
    return done;
  }

  static Narrow narrow_of(Arguments const& arguments, Geometry const& geometry) {
    using Pointer = typename Widened::Element const*;
    Problem const& problem = arguments.problem;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    return {static_cast<Pointer>(arguments.a), static_cast<Pointer>(arguments.b), a[0], a[1], b[0], b[1],
            int(a[2]), int(b[2]), problem.height, problem.width, problem.filter_width, problem.pad_width,
            BoxDivisor::of(geometry.pitch), geometry.images > 1 ? BoxDivisor::of(geometry.box_rows) : BoxDivisor{}};
  }

  static auto input_of(Arguments const& arguments, Geometry const& geometry) {
    Problem const& problem = arguments.problem;
    auto const& strides = arguments.a_strides;
    int const columns = (geometry.pitch - 1) * problem.stride_width + 1;
    int const rows = (geometry.box_rows - 1) * problem.stride_height + 1;
    if constexpr (kVolume) {
      return hopper::Tensor<5>{Mma::kType, Mma::kElementBytes, arguments.a,
                               {problem.channels, problem.width, problem.height, problem.depth, problem.images},
                               {strides[3], strides[2], strides[1], strides[0]},
                               {Plane, columns, rows, 1, 1},
                               {problem.stride_width, problem.stride_height}, kPlaneBytes};
    } else {
      return hopper::Tensor<4>{Mma::kType, Mma::kElementBytes, arguments.a,
                               {problem.channels, problem.width, problem.height, problem.images},
                               {strides[2], strides[1], strides[0]},
                               {Plane, columns, rows, geometry.images},
                               {problem.stride_width, problem.stride_height}, kPlaneBytes};
    }
  }

  static auto filters_of(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    auto const& strides = arguments.b_strides;
    int const along = Mma::kTransposed ? problem.filters : problem.channels;
    int const rows = Mma::kTransposed ? problem.channels : problem.filters;
    if constexpr (kVolume) {
      return hopper::Tensor<5>{Mma::kType, Mma::kElementBytes, arguments.b,
                               {along, rows, problem.filter_width, problem.filter_height, problem.filter_depth},
                               {strides[0], strides[3], strides[2], strides[1]},
                               {Filters::kLength, Filters::kRows, 1, 1, 1}, {1, 1}, Filters::kRowBytes};
    } else {
      return hopper::Tensor<4>{Mma::kType, Mma::kElementBytes, arguments.b,
                               {along, rows, problem.filter_width, problem.filter_height},
                               {strides[0], strides[2], strides[1]},
                               {Filters::kLength, Filters::kRows, 1, 1}, {1, 1}, Filters::kRowBytes};
    }
  }

  template <class T>
  static constexpr CUtensorMapDataType map_type() {
    return std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }

  /// The tiles of rows and of columns, into which reductions are parted; of a shared tile, each block has a part.
  static fragment::Tiles tiles(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    Geometry const geometry = geometry_of(arguments);
    return {geometry.tiles(problem) * geometry.blocks, ceil_div(problem.filters, kFilters)};
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const& params) { return dim3(params.geometry.blocks); }
  static dim3 get_block_shape() { return dim3(kThreads); }

  /// A ring of buffers, as one of those that use it in turn sees it.
  struct Ring {
    int slot = 0;
    uint32_t parity = 0;

    /// Go on by at most as many slots as there are: without a branch.
    CUTLASS_DEVICE void skip(int by, int slots) {
      slot += by;
      bool const wraps = slot >= slots;
      slot = wraps ? slot - slots : slot;
      parity ^= wraps;
    }

    CUTLASS_DEVICE void advance(int by, int slots) {
      slot += by;
      while (slot >= slots) {
        slot -= slots;
        parity ^= 1;
      }
    }
  };

  /// Where everything is in shared memory.
  struct Memory {
    uint32_t stages, slabs, epilogues, exchange, barriers;

    CUTLASS_DEVICE Memory(Geometry const& geometry, char* storage) {
      stages = (hopper::shared_address(storage) + kAlignment - 1) / kAlignment * kAlignment;
      slabs = stages + geometry.stages * geometry.stage_bytes;
      epilogues = slabs + aligned_bytes(geometry.slabs * geometry.slab_bytes);
      exchange = epilogues + kConsumers * geometry.epilogue_bytes;
      barriers = exchange + geometry.exchange_bytes;
    }

    CUTLASS_DEVICE uint32_t stage_full(int stage) const { return barriers + 16 * stage; }
    CUTLASS_DEVICE uint32_t stage_empty(int stage) const { return barriers + 16 * stage + 8; }
    CUTLASS_DEVICE uint32_t slab_full(int slab) const { return barriers + 16 * (kMostStages + slab); }
    CUTLASS_DEVICE uint32_t slab_empty(int slab) const { return barriers + 16 * (kMostStages + slab) + 8; }
    CUTLASS_DEVICE uint32_t of_consumers(int which) const {
      return barriers + 16 * (kMostStages + kMostSlabs) + 8 * which;
    }
    CUTLASS_DEVICE uint32_t turn(int consumer) const { return of_consumers(consumer); }
    CUTLASS_DEVICE uint32_t source_loaded(int consumer) const { return of_consumers(2 + consumer); }
    CUTLASS_DEVICE uint32_t result_written(int consumer) const { return of_consumers(4 + consumer); }
    CUTLASS_DEVICE uint32_t exchanged() const { return of_consumers(6); }
  };

  /// A run of taps of one plane: its operands, and whether they are known to be loaded.
  template <int Length>
  struct Step {
    uint32_t a, b[Length];  // descriptors
    int slab, stage[Length];
    uint32_t slab_parity, stage_parity[Length];
    bool enters[Length];
    bool is_loaded;

    /// `of_stages` is at the box of the tap before the run, or of the first tap of a tile, and is left at the last one.
    CUTLASS_DEVICE Step(Params const& params, Memory const& memory, int run, bool is_first, Ring& of_stages,
                        Ring const& of_slabs)
        : slab(of_slabs.slot), slab_parity(of_slabs.parity) {
      Geometry const& geometry = params.geometry;
      a = hopper::operand_descriptor(memory.slabs + slab * geometry.slab_bytes);
      is_loaded = hopper::has_passed_already(memory.slab_full(slab), slab_parity);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Length; ++i) {
        Tap const tap = params.taps.tap[run + i];
        enters[i] = tap.enters();
        of_stages.skip(enters[i] & !(is_first & i == 0), geometry.stages);
        stage[i] = of_stages.slot;
        stage_parity[i] = of_stages.parity;
        b[i] = hopper::operand_descriptor(memory.stages + stage[i] * geometry.stage_bytes + tap.shift() * kPixelBytes);
        is_loaded &= hopper::has_passed_already(memory.stage_full(stage[i]), stage_parity[i]);
      }
    }

    CUTLASS_DEVICE void wait(Memory const& memory) const {
      if (is_loaded) return;
      hopper::wait(memory.slab_full(slab), slab_parity);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Length; ++i) {
        hopper::wait(memory.stage_full(stage[i]), stage_parity[i]);
      }
    }

    /// Give memory that no tap after these uses back to the producers.
    CUTLASS_DEVICE void release(Memory const& memory, bool keeps_slab, bool leaves_last_stage) const {
      if (threadIdx.x % 32 != 0) return;
      if (!keeps_slab) hopper::arrive(memory.slab_empty(slab));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Length; ++i) {
        if (i + 1 < Length ? enters[i + 1] : leaves_last_stage) hopper::arrive(memory.stage_empty(stage[i]));
      }
    }
  };

  /// A tile of the output, and a block of filters.
  struct Item {
    int tile, filter, column, row, image;

    CUTLASS_DEVICE Item(Params const& params, int number, int consumer) {
      Geometry const& geometry = params.geometry;
      tile = params.by_filter_blocks.quotient(number);
      int const block = number - tile * params.filter_blocks;
      filter = (geometry.paired ? 2 * block + consumer : block) * kFilters;
      int const tile_row = params.by_tiles_wide.quotient(tile), tiles = params.by_tiles_high.quotient(tile_row);
      column = (tile - tile_row * geometry.tiles_wide) * geometry.columns;
      row = (tile_row - tiles * geometry.tiles_high) * geometry.rows;
      image = tiles * geometry.images;
    }
  };

  /// What a thread block has to do: every so many items, and of each so many planes. Of a shared item it also completes
  /// some steps of the epilogue, from `first_step` on, which have so many `quads` of a thread's sums; some may have none.
  struct Part {
    int first, stride, rank = 0, first_plane = 0, planes, first_step = 0, quads = kQuads;

    CUTLASS_DEVICE explicit Part(Params const& params)
        : first(blockIdx.x), stride(gridDim.x), planes(params.planes) {
      if constexpr (Shared) {
        int const blocks = params.geometry.blocks;
        first = params.by_blocks.quotient(blockIdx.x);
        stride = params.items;  // there is one
        rank = blockIdx.x - first * blocks;
        first_plane = params.by_blocks.quotient(params.planes * rank);
        planes = params.by_blocks.quotient(params.planes * (rank + 1)) - first_plane;
        first_step = rank * params.steps_per_block;
        quads = min(2 * params.steps_per_block, kQuads - 2 * first_step);
      }
    }
  };

  /// The items of a consumer: every second one of the thread block's, or all of them.
  struct ConsumerItems {
    int first, stride;

    CUTLASS_DEVICE ConsumerItems(Params const& params, Part const& part, int consumer) {
      bool const turns = takes_turns(params);
      first = part.first + (turns ? consumer * part.stride : 0);
      stride = turns ? 2 * part.stride : part.stride;
    }
  };

  CUTLASS_HOST_DEVICE static bool takes_turns(Params const& params) { return !Shared && !params.geometry.paired; }

  CUTLASS_DEVICE void operator()(Params const& params, char* storage) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Geometry const& geometry = params.geometry;
    Memory const memory(geometry, storage);
    int const group = hopper::warp() / (kWarpGroup / 32);
    set_up(params, memory);
    if constexpr (kWindows) {
      pdl::wait_for_kernel_before();
      widen_filters(params, memory);
    }
    __syncthreads();
    if constexpr (Shared) hopper::arrive_in_cluster();
    if constexpr (!kWindows) pdl::wait_for_kernel_before();
    if (group == 0) {
      if constexpr (!Shared) hopper::give_registers<kProducerRegisters>();
      int const warp = hopper::warp();
      if constexpr (kWindows) {
        if (warp < kWideners) widen_input(params, memory, warp);
      }
      if (hopper::elect()) {
        if (!kWindows && warp == 0) load_input(params, memory);
        if (!kWindows && warp == 3) load_filters(params, memory);
        if constexpr (Shared && kLoadsSource) {
          if (warp == 1) load_source(params, memory);
        }
        if constexpr (kWindows && kStaged) {
          if (warp == 3) move_tiles(params, memory, 0, true);
        } else if constexpr (!Shared && kStaged) {
          if (warp == 1 || warp == 2) move_tiles(params, memory, warp - 1, false);
        }
      }
    } else {
      if constexpr (!Shared) hopper::take_registers<kConsumerRegisters>();
      consume(params, memory, group - 1);
    }
#endif
  }

 private:
  CUTLASS_DEVICE static void set_up(Params const& params, Memory const& memory) {
    Geometry const& geometry = params.geometry;
    int const warp = hopper::warp();
    if (hopper::elect()) {  // all lanes of a warp would initialize barriers one after the other
      prefetch_map(params, warp);
      constexpr int kAllWarps = kThreads / 32, kWarps = kWarpGroup / 32;
      for (int i = warp; i < geometry.stages; i += kAllWarps) {
        hopper::init_barrier(memory.stage_full(i), 1);
        hopper::init_barrier(memory.stage_empty(i), geometry.paired ? 2 * kWarps : kWarps);
      }
      for (int i = warp; i < geometry.slabs; i += kAllWarps) {
        hopper::init_barrier(memory.slab_full(i), 1);
        hopper::init_barrier(memory.slab_empty(i), kWarps);
        if (kWindows) hopper::arrive(memory.slab_full(i));  // before anyone waits for it
      }
      if (warp < kConsumers) hopper::init_barrier(memory.source_loaded(warp), 1);
      if (!Shared && warp < kConsumers) {
        hopper::init_barrier(memory.turn(warp), kWarps);
        hopper::init_barrier(memory.result_written(warp), kWarps);
      }
      if (Shared && warp == 0) {
        Part const part(params);
        hopper::init_barrier(memory.exchanged(), 1);
        int const bytes = geometry.blocks * part.quads * kWarpGroup * kQuadBytes;
        if (bytes > 0) hopper::arrive_and_expect(memory.exchanged(), bytes);
      }
      hopper::fence_barriers();
    }
    if (geometry.guard == 0) return;
    // The pixels after a box, which are read and never loaded.
    int const words = geometry.guard * kPixelBytes / 4;
    for (int stage = 0; stage < geometry.stages; ++stage) {
      uint32_t const end = memory.stages + stage * geometry.stage_bytes + geometry.box_pixels() * kPixelBytes;
      for (int i = threadIdx.x; i < words; i += kThreads) {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(end + i * 4), "r"(0) : "memory");
      }
    }
    hopper::fence_async();
  }

  /// A warp of the producer prefetches a map.
  CUTLASS_DEVICE static void prefetch_map(Params const& params, int warp) {
    if (!kWindows && warp == 0) hopper::prefetch_map(params.input);
    if (!kWindows && warp == 3) hopper::prefetch_map(params.filters);
    if constexpr (kLoadsSource) {
      if (warp == 1) hopper::prefetch_map(params.source);
    }
    if constexpr (kStoresDestination && !Shared) {
      if (warp == 2) hopper::prefetch_map(params.destination);
    }
  }

  /// Load the boxes of all tiles, plane by plane and group by group.
  CUTLASS_DEVICE static void load_input(Params const& params, Memory const& memory) {
    Geometry const& geometry = params.geometry;
    Part const part(params);
    Ring ring;
    int const bytes = geometry.box_pixels() * kPixelBytes;
    for (int number = part.first; number < params.items; number += part.stride) {
      Item const item(params, number, 0);
      for (int plane = part.first_plane; plane < part.first_plane + part.planes; ++plane) {
        for (int group = 0; group < params.taps.groups; ++group) {
          uint32_t const start = params.taps.starts[group];
          int const column = item.column * params.stride_width + int16_t(start);
          int const row = item.row * params.stride_height + int16_t(start >> 16);
          hopper::wait(memory.stage_empty(ring.slot), ring.parity ^ 1);
          uint32_t const full = memory.stage_full(ring.slot);
          hopper::arrive_and_expect(full, bytes);
          uint32_t const to = memory.stages + ring.slot * geometry.stage_bytes;
          if constexpr (kVolume) {
            Depth const& depth = params.depth;
            hopper::load_box(to, params.input, full, depth.plane_of_channels(plane) * Plane, column, row,
                             depth.input(item.image, plane), depth.volume(item.image));
          } else {
            hopper::load_box(to, params.input, full, plane * Plane, column, row, item.image);
          }
          ring.skip(1, geometry.stages);
        }
      }
    }
  }

  /// Load the filters, run by run: once if they stay, else for every tile.
  CUTLASS_DEVICE static void load_filters(Params const& params, Memory const& memory) {
    Geometry const& geometry = params.geometry;
    Part const part(params);
    Ring ring;
    int const consumers = geometry.paired ? 2 : 1;
    for (int number = part.first; number < params.items; number += part.stride) {
      int const filter = Item(params, number, 0).filter, length = geometry.run;
      for (int plane = part.first_plane; plane < part.first_plane + part.planes; ++plane) {
        for (int run = 0; run < params.taps.number; run += length) {
          for (int consumer = 0; consumer < consumers; ++consumer) {
            hopper::wait(memory.slab_empty(ring.slot), ring.parity ^ 1);
            uint32_t const full = memory.slab_full(ring.slot);
            hopper::arrive_and_expect(full, length * Filters::kBytes);
            int const channel = (kVolume ? params.depth.plane_of_channels(plane) : plane) * Plane;
            int const first = filter + consumer * kFilters;
            int const along = Mma::kTransposed ? first : channel, row = Mma::kTransposed ? channel : first;
            for (int i = 0; i < length; ++i) {
              Tap const tap = params.taps.tap[run + i];
              uint32_t const to = memory.slabs + ring.slot * geometry.slab_bytes + i * Filters::kBytes;
              if constexpr (kVolume) {
                int const z = params.depth.tap_of_filters(plane, Mma::kTransposed);
                hopper::load_box(to, params.filters, full, along, row, tap.x(), tap.y(), z);
              } else {
                hopper::load_box(to, params.filters, full, along, row, tap.x(), tap.y());
              }
            }
            ring.skip(1, geometry.slabs);
          }
        }
      }
      if (geometry.resident) break;
    }
  }

  /// Widen the filters of the thread block's one block of them, each row of taps to a swizzled row of shared memory.
  CUTLASS_DEVICE static void widen_filters(Params const& params, Memory const& memory) {
    constexpr int kChunks = kPlaneBytes / kWindowBytes, kOfTap = kFilters * kChunks;
    constexpr int kSwizzle = kPlaneBytes / kWindowBytes - 1;  // of chunks, by the bits of the address from 7 on
    Narrow const& narrow = params.narrow;
    int const filter = Item(params, Part(params).first, 0).filter, chunks = params.taps.number * kOfTap;
    for (int begin = threadIdx.x; begin < chunks; begin += Widened::kInFlight * kThreads) {
      uint32_t loaded[Widened::kInFlight][4];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Widened::kInFlight; ++i) {
        int const chunk = begin + i * kThreads, row = filter + chunk / kChunks % kFilters;
        bool const exists = chunk < chunks && row < params.filter_count;
        int const y = exists ? params.taps.tap[chunk / kOfTap].y() : 0;
        int const x = chunk % kChunks * StrideWidth;
        Widened::load(loaded[i], narrow.b + row * narrow.b_filter + y * narrow.b_row + x * narrow.b_pixel, narrow.b_pixel, x,
                      exists ? narrow.filter_width : 0);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Widened::kInFlight; ++i) {
        int const chunk = begin + i * kThreads;
        uint32_t const to = memory.slabs + chunk * kWindowBytes;
        if (chunk < chunks) hopper::store_words(to ^ (to >> 7 & kSwizzle) * kWindowBytes, loaded[i]);
      }
    }
    hopper::fence_async();
  }

  /// Load the boxes of all tiles, group by group, and widen them: every kWideners-th of them by a warp. The stages are a
  /// multiple of kWideners, so that a warp has some to itself, and misses no phase of theirs.
  CUTLASS_DEVICE static void widen_input(Params const& params, Memory const& memory, int warp) {
    Geometry const& geometry = params.geometry;
    Narrow const& narrow = params.narrow;
    Part const part(params);
    Ring ring;
    int const lane = threadIdx.x % 32, chunks = geometry.box_pixels();
    int turn = warp;  // boxes before the warp's next one
    int const next_image = int(narrow.a_image), next_row = params.stride_height * int(narrow.a_row);
    for (int number = part.first; number < params.items; number += part.stride) {
      Item const item(params, number, 0);
      int const first_column = item.column * StrideWidth - narrow.pad;
      for (int group = 0; group < params.taps.groups; ++group, ring.skip(1, geometry.stages)) {
        if (turn-- > 0) continue;
        turn = kWideners - 1;
        int const first_row = item.row * params.stride_height + int16_t(params.taps.starts[group] >> 16);
        auto const box = narrow.a + item.image * narrow.a_image + first_row * narrow.a_row +
                         int64_t(first_column) * narrow.a_pixel;
        uint32_t const to = memory.stages + ring.slot * geometry.stage_bytes;
        for (int begin = 0; begin < chunks; begin += Widened::kInFlight * 32) {
          uint32_t loaded[Widened::kInFlight][4];
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Widened::kInFlight; ++i) {
            int const chunk = begin + i * 32 + lane, line = narrow.by_pitch.quotient(chunk);
            int const image = narrow.by_box_rows.quotient(line), row = line - image * geometry.box_rows;
            int const column = (chunk - line * geometry.pitch) * StrideWidth;
            bool const exists = chunk < chunks && item.image + image < params.images &&
                                uint32_t(first_row + row * params.stride_height) < uint32_t(narrow.height);
            Widened::load(loaded[i], box + (image * next_image + row * next_row + column * narrow.a_pixel),
                          narrow.a_pixel, first_column + column, exists ? narrow.width : 0);
          }
          if (begin == 0) hopper::wait(memory.stage_empty(ring.slot), ring.parity ^ 1);
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Widened::kInFlight; ++i) {
            int const chunk = begin + i * 32 + lane;
            if (chunk < chunks) hopper::store_words(to + chunk * kWindowBytes, loaded[i]);
          }
        }
        hopper::fence_async();
        __syncwarp();
        if (lane == 0) hopper::arrive(memory.stage_full(ring.slot));
      }
    }
  }

  /// Load C for a thread block that completes steps of a shared tile, which it stores itself.
  CUTLASS_DEVICE static void load_source(Params const& params, Memory const& memory) {
    Part const part(params);
    if (part.quads <= 0) return;
    Item const item(params, part.first, 0);
    uint32_t const loaded = memory.source_loaded(0);
    hopper::arrive_and_expect(loaded, params.source_bytes);
    hopper::load_box(memory.epilogues, params.source, loaded, item.filter, item.column, item.row, item.image);
  }

  /// Load C and store D, in one buffer for a consumer: for the tiles of one, or of both, which take turns.
  CUTLASS_DEVICE static void move_tiles(Params const& params, Memory const& memory, int consumer, bool both) {
    Geometry const& geometry = params.geometry;
    Part const part(params);
    ConsumerItems const items(params, part, consumer);
    int const stride = both ? part.stride : items.stride, ahead = both ? 2 : 1;
    auto const load = [&](int number, int consumer) {
      if (number >= params.items) return;
      uint32_t const loaded = memory.source_loaded(consumer);
      if constexpr (kLoadsSource) {
        Item const item(params, number, consumer);
        uint32_t const buffer = memory.epilogues + consumer * geometry.epilogue_bytes;
        hopper::arrive_and_expect(loaded, params.source_bytes);
        hopper::load_box(buffer, params.source, loaded, item.filter, item.column, item.row, item.image);
      } else {
        hopper::arrive(loaded);
      }
    };
    for (int i = 0; i < ahead; ++i) load(items.first + i * stride, consumer + i);
    for (int i = 0, number = items.first; number < params.items; ++i, number += stride) {
      int const now = both ? i % 2 : consumer;
      hopper::wait(memory.result_written(now), i / ahead % 2);
      if constexpr (kStoresDestination) {
        store(params, Item(params, number, now), memory.epilogues + now * geometry.epilogue_bytes);
        hopper::wait_for_stores_to_read();
      }
      load(number + ahead * stride, now);
    }
  }

  /// Store a tile of D from its buffer. The end of the kernel waits for what is not yet written.
  CUTLASS_DEVICE static void store(Params const& params, Item const& item, uint32_t buffer) {
    Geometry const& geometry = params.geometry;
    if (params.stores_rows) {
      for (int row = 0; row < geometry.rows; ++row) {
        hopper::store_box(params.destination, buffer + row * geometry.sum_pitch * kEpilogueRow, item.filter, item.column,
                          item.row + row, item.image);
      }
    } else {
      hopper::store_box(params.destination, buffer, item.filter, item.column, item.row, item.image);
    }
    hopper::commit_stores();
  }

  /// Multiply a tile in runs of `Length` taps.
  template <int Length>
  CUTLASS_DEVICE static void multiply(Params const& params, Memory const& memory, int consumer, int planes, Ring& stage,
                                      Ring& slab, Accumulator (&accumulators)[kPixels / 2]) {
    Geometry const& geometry = params.geometry;
    constexpr int kMany = Length * kInstructions, kHalf = (kMany - 1) / 2;
    int const steps = planes * params.taps.number / Length;
    bool const leads = threadIdx.x % 32 == 0;
    int run = 0;
    Step<Length> step(params, memory, run, true, stage, slab), last = step;
    for (int i = 0; i < steps; ++i) {
      step.wait(memory);
      hopper::fence_multiplications();
      Step<Length> next = step;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMany; ++j) {
        int const tap = j / kInstructions, k = j % kInstructions;
        Mma::fma(accumulators, step.a + tap * (Filters::kBytes >> 4) + k * Filters::kNextK,
                 step.b[tap] + k * hopper::kNextK, Filters::kLayout, params.input_layout);
        if (j == kHalf) {
          // The memory of the step before is given back halfway, while there is something left to multiply.
          hopper::commit_multiplications();
          hopper::wait_for_multiplications<1>();
          if (i > 0) last.release(memory, geometry.resident, step.enters[0]);
          if (kHalf + 1 < kMany) hopper::fence_multiplications();
        }
        if (j == (kMany > 1)) {
          // What the next step needs is looked up meanwhile, without a branch, after which WGMMA would begin another
          // group: the tensor cores would wait for it between the steps.
          run = run + Length == params.taps.number ? 0 : run + Length;
          slab.skip(!Shared && geometry.paired ? 2 : 1, geometry.slabs);
          bool const ends = i + 1 == steps;
          Ring then = stage;
          next = Step<Length>(params, memory, run, ends, then, slab);
          stage.slot = ends ? stage.slot : then.slot;
          stage.parity = ends ? stage.parity : then.parity;
        }
      }
      if (kHalf + 1 < kMany) hopper::commit_multiplications();
      if (i == geometry.handover && leads && takes_turns(params)) hopper::arrive(memory.turn(1 - consumer));
      last = step;
      step = next;
    }
    hopper::wait_for_multiplications<0>();
    last.release(memory, geometry.resident, true);
  }

  CUTLASS_DEVICE static uint32_t word_of(float sum) { return __float_as_uint(sum); }
  CUTLASS_DEVICE static uint32_t word_of(int sum) { return uint32_t(sum); }
  CUTLASS_DEVICE static Accumulator sum_of(uint32_t word) {
    if constexpr (std::is_same_v<Accumulator, float>) {
      return __uint_as_float(word);
    } else {
      return Accumulator(word);
    }
  }

  /// Give every thread block of the cluster the sums of the steps that it completes: a thread gives its quads to the same
  /// thread there. Then complete this thread block's steps: add what has come from all of them, in their order.
  template <int Blocks>
  CUTLASS_DEVICE static void exchange_and_complete(Params const& params, Memory const& memory, Item const& item,
                                                   Part const& part, Epilogue& epilogue,
                                                   Accumulator (&accumulators)[kPixels / 2]) {
    constexpr int kQuadsOfBlock = 2 * ceil_div(kSteps, Blocks);
    constexpr int kNextQuad = kWarpGroup * kQuadBytes, kNextBlock = kQuadsOfBlock * kNextQuad;
    uint32_t const mine = memory.exchange + threadIdx.x % kWarpGroup * kQuadBytes, exchanged = memory.exchanged();
    hopper::wait_for_arrivals();  // nobody writes to where a thread block is not yet
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kQuads; ++i) {
      int const to = i / kQuadsOfBlock;
      uint32_t quad[4];
      // An accumulator's register must not be sent itself: ptxas would serialise WGMMA (C7514).
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) quad[j] = word_of(accumulators[4 * i + j] + Accumulator(0));
      hopper::send_words(hopper::of_block(mine + part.rank * kNextBlock + i % kQuadsOfBlock * kNextQuad, to), quad,
                         hopper::of_block(exchanged, to));
    }
    if (part.quads <= 0) return;
    uint32_t const address = EpilogueStep::address(memory.epilogues);
    Pixels pixels(params, item, part.first_step * kStepPixels);
    if constexpr (kLoadsSource) hopper::wait(memory.source_loaded(0), 0);
    EpilogueStep now;
    auto const load = [&](int step) {
      now.load(epilogue, pixels, address + step * kStepPixels * kEpilogueRow, is_whole(step));
    };
    load(part.first_step);
    hopper::wait_for_cluster(exchanged);
    for (int i = 0; 2 * i < part.quads; ++i) {
      uint32_t words[2][Blocks][4];
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        CUTLASS_PRAGMA_UNROLL
        for (int from = 0; from < Blocks; ++from) {
          hopper::load_words(words[half][from], mine + from * kNextBlock + (2 * i + half) * kNextQuad);
        }
      }
      int const step = part.first_step + i;
      if (i > 0) load(step);
      Accumulator sums[fragment::kElements];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < fragment::kElements; ++j) {
        sums[j] = sum_of(words[j / 4][0][j % 4]);
        CUTLASS_PRAGMA_UNROLL
        for (int from = 1; from < Blocks; ++from) sums[j] += sum_of(words[j / 4][from][j % 4]);
      }
      now.template compute<fragment::kElements>(epilogue, sums);
      now.store(address + step * kStepPixels * kEpilogueRow, is_whole(step));
      if constexpr (kStoresDestination) {
        __syncwarp();
        store_step(params, item, memory.epilogues, step);
      }
    }
  }

  /// Store a warp's 16 columns of a step's D from the buffer, a lane 8 of a pixel's.
  CUTLASS_DEVICE static void store_step(Params const& params, Item const& item, uint32_t buffer, int step) {
    constexpr int kElements = 8;
    int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
    int const pixel = step * kStepPixels + lane / 2, chunk = 2 * warp + lane % 2;
    int const filter = item.filter + kElements * chunk, columns = params.filter_count - filter;
    int const row = pixel / params.geometry.sum_pitch, column = pixel - row * params.geometry.sum_pitch;
    int const place = pixel < kPixels ? Pixels::place(params, item, row, column) : -1;
    if (place < 0 || columns <= 0) return;
    uint32_t words[4];
    hopper::load_words(words, buffer + pixel * kEpilogueRow + (chunk ^ pixel % 8) * 16);
    Destination* const to = params.d + place * params.d_stride + filter;
    if (columns >= kElements) {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (i < columns) to[i].bits = uint16_t(words[i / 2] >> i % 2 * 16);
      }
    }
  }

  /// Multiply and store the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, Memory const& memory, int consumer) {
    Geometry const& geometry = params.geometry;
    Part const part(params);
    int const length = geometry.run;
    int const steps = part.planes * params.taps.number / length;  // of a tile
    int const stages = part.planes * params.taps.groups;          // that a tile takes
    Ring stage, slab;
    if (geometry.paired) {
      slab.slot = consumer;
    } else if (consumer == 1) {
      if (threadIdx.x % 32 == 0) hopper::arrive(memory.turn(0));
      stage.advance(stages, geometry.stages);
      if (!geometry.resident) slab.advance(steps, geometry.slabs);
    }
    uint32_t parity = 0;
    ConsumerItems const items(params, part, consumer);
    for (int number = items.first; number < params.items; number += items.stride, parity ^= 1) {
      Item const item(params, number, consumer);
      int const thread = threadIdx.x % kWarpGroup;
      fragment::Tile const tile{item.filter + thread / 32 * 16 + thread % 32 / 4, params.filter_count,
                                item.tile * geometry.blocks + part.rank, item.filter / kFilters};
      Epilogue epilogue(params.epilogue, tile);
      Accumulator accumulators[kPixels / 2];
      CUTLASS_PRAGMA_UNROLL
      for (Accumulator& each : accumulators) each = 0;
      if (takes_turns(params)) hopper::wait(memory.turn(consumer), parity);
      switch (length) {
        case 3: multiply<3>(params, memory, consumer, part.planes, stage, slab, accumulators); break;
        case 5: multiply<5>(params, memory, consumer, part.planes, stage, slab, accumulators); break;
        default: multiply<1>(params, memory, consumer, part.planes, stage, slab, accumulators);
      }
      if constexpr (Shared) {
        switch (geometry.blocks) {
          case 2: exchange_and_complete<2>(params, memory, item, part, epilogue, accumulators); break;
          case 4: exchange_and_complete<4>(params, memory, item, part, epilogue, accumulators); break;
          default: exchange_and_complete<kMostBlocks>(params, memory, item, part, epilogue, accumulators);
        }
        epilogue.finish(tile);
        return;
      }
      // On to the consumer's next tile, beyond those that the other one uses in its turn.
      stage.advance(geometry.paired ? 1 : 1 + stages, geometry.stages);
      if (geometry.resident) {
        slab = {geometry.paired ? consumer : 0, 0};
      } else if (!geometry.paired) {
        slab.advance(steps, geometry.slabs);
      }
      if constexpr (kStaged) hopper::wait(memory.source_loaded(consumer), parity);
      complete(params, item, epilogue, accumulators, memory.epilogues + consumer * geometry.epilogue_bytes);
      epilogue.finish(tile);
      if constexpr (kStaged) {
        hopper::fence_async();
        __syncwarp();
        if (thread % 32 == 0) hopper::arrive(memory.result_written(consumer));
      }
    }
  }

  /// The pixels of a thread's four rows of a step, one step after the other.
  struct Pixels {
    Params const& params;
    Item const& item;
    int row, column;  // of the tile, of the first of the next 8 pixels that this thread has

    CUTLASS_DEVICE Pixels(Params const& params, Item const& item, int first) : params(params), item(item) {
      row = first / params.geometry.sum_pitch;
      column = first - row * params.geometry.sum_pitch + threadIdx.x % 4 * 2;
      wrap(row, column);
    }

    CUTLASS_DEVICE void wrap(int& row, int& column) const {
      while (column >= params.geometry.sum_pitch) {
        column -= params.geometry.sum_pitch;
        ++row;
      }
    }

    CUTLASS_DEVICE static int place(Params const& params, Item const& item, int row, int column) {
      Geometry const& geometry = params.geometry;
      int image = item.image;
      if (geometry.images > 1) {
        image += row / geometry.box_rows;
        row %= geometry.box_rows;
      }
      int const y = item.row + row, x = item.column + column;
      bool const has = row < geometry.rows && column < geometry.columns && y < params.output_height &&
                       x < params.output_width && image < min(item.image + geometry.images, params.images);
      return has ? (image * params.output_height + y) * params.output_width + x : -1;
    }

    CUTLASS_DEVICE void next(fragment::Places& places) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; i += 2) {
        places.rows[i] = place(params, item, row, column);
        int next_row = row, next_column = column + 1;
        wrap(next_row, next_column);
        places.rows[i + 1] = place(params, item, next_row, next_column);
        column += 8;
        wrap(row, column);
      }
    }
  };

  /// Of kPixels the last 8 may be half a step.
  CUTLASS_HOST_DEVICE static constexpr bool is_whole(int step) { return (step + 1) * kStepPixels <= kPixels; }

  /// A step of the epilogue: where its elements are, and what is loaded for them.
  struct EpilogueStep {
    fragment::Places places;
    typename Epilogue::Fetched fetched;
    uint32_t words[4];  // of C, then of D

    /// The address of a lane's row of the matrices that ldmatrix and stmatrix move: a pixel, and of its 128 bytes a
    /// swizzled chunk of 16.
    CUTLASS_DEVICE static uint32_t address(uint32_t buffer) {
      int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
      return buffer + (lane % 8 + lane / 16 * 8) * kEpilogueRow + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
    }

    CUTLASS_DEVICE void load(Epilogue const& epilogue, Pixels& pixels, uint32_t from, bool is_whole) {
      if constexpr (Epilogue::kPlaces) {
        pixels.next(places);
        epilogue.fetch(fetched, places);
      }
      if constexpr (kLoadsSource) {
        if (is_whole) {
          hopper::load_matrices(words, from);
        } else {
          hopper::load_two_matrices(words, from);
        }
      }
    }

    template <int Elements>
    CUTLASS_DEVICE void compute(Epilogue& epilogue, Accumulator const* sums) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Elements; i += 2) {
        float sources[2] = {};
        if constexpr (kLoadsSource) {
          sources[0] = element::load_first<Source>(words[i / 2]);
          sources[1] = element::load_second<Source>(words[i / 2]);
        }
        auto const first = epilogue.visit(i, sums[i], sources[0], fetched, places);
        auto const second = epilogue.visit(i + 1, sums[i + 1], sources[1], fetched, places);
        if constexpr (kStoresDestination) element::store_two(Destination{}, words[i / 2], first, second);
      }
    }

    CUTLASS_DEVICE void store(uint32_t to, bool is_whole) const {
      if constexpr (kStoresDestination) {
        if (is_whole) {
          hopper::store_matrices(to, words);
        } else {
          hopper::store_two_matrices(to, words);
        }
      }
    }
  };

  /// Compute the epilogue of a tile. A step's elements are loaded while the one before it is computed.
  CUTLASS_DEVICE static void complete(Params const& params, Item const& item, Epilogue& epilogue,
                                      Accumulator (&accumulators)[kPixels / 2], uint32_t buffer) {
    uint32_t const address = EpilogueStep::address(buffer);
    Pixels pixels(params, item, 0);
    EpilogueStep steps[2];
    auto const load = [&](int step) {
      steps[step % 2].load(epilogue, pixels, address + step * kStepPixels * kEpilogueRow, is_whole(step));
    };
    load(0);
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load(step + 1);
      EpilogueStep& now = steps[step % 2];
      Accumulator const* const sums = accumulators + fragment::kElements * step;
      if (is_whole(step)) {
        now.template compute<fragment::kElements>(epilogue, sums);
      } else {
        now.template compute<fragment::kElements / 2>(epilogue, sums);
      }
      now.store(address + step * kStepPixels * kEpilogueRow, is_whole(step));
    }
  }
};

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_HPP
