#ifndef EVT_HALO_HPP
#define EVT_HALO_HPP

// A convolution for sm90 that loads each pixel of its input once per tile. An implicit GEMM by TMA's im2col mode loads
// it once for every tap, and for few channels that is what bounds it.
//
// A tile is 64 filters by at most Mma::kPixels output pixels: `rows` rows of `columns` pixels. Its input, with the halo
// that the taps reach, is loaded as a box of pixels, rows of `pitch` pixels one after the other; a pixel is a row of
// shared memory with the channels of one plane. A tap's operand is the same memory, from `shift` pixels later on. So the
// accumulator also has pixels between the rows of the tile, which are not stored. Where a row's padding is zeros, the
// end of one row and the beginning of the next share it.
//
// With a stride s, the taps form groups of those that meet the same pixels of every s: each group has its own box, of
// every s-th pixel. A 1x1 filter is one tap and no halo: a matrix product.
//
// The product is transposed: M are the filters, N the pixels. Blocks are persistent. The first warp group loads: warp 0
// the input, warp 3 the filters, warps 1 and 2 load C and store D for one of the two consumers each. The
// consumers take turns at the tensor cores, each with a tile of its own, so that one multiplies while the other
// computes its epilogue. Filters stay in shared memory where they fit; a block then keeps to one block of 64 filters.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

constexpr int kFilters = 64;       // of a tile, M of WGMMA
constexpr int kMostTaps = 64;      // of a filter
constexpr int kMostStages = 8;     // of the input
constexpr int kMostSlabs = 64;     // of the filters
constexpr int kTurnTaps = 3;       // before the end of a tile that a consumer passes the turn on
constexpr int kRun = 3;            // taps that are loaded together, if they can be
constexpr int kSharedBytes = 232448;
constexpr int kBarrierBytes = 8 * (2 * kMostStages + 2 * kMostSlabs + 6);
constexpr int kAlignment = 1024;   // of swizzled memory
constexpr int kWarpGroup = 128;
constexpr int kThreads = 3 * kWarpGroup;

CUTLASS_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
CUTLASS_HOST_DEVICE constexpr int aligned_bytes(int bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

/// A convolution as its caller knows it.
struct Problem {
  int images, height, width, channels, filters;
  int filter_height, filter_width, output_height, output_width;
  int pad_height, pad_width, stride_height, stride_width, dilation_height, dilation_width;

  /// How far the taps reach beyond a tile, in pixels of a box.
  int halo_height() const { return (filter_height - 1) * dilation_height / stride_height; }
  int halo_width() const { return (filter_width - 1) * dilation_width / stride_width; }
};

/// How a tile lies in shared memory.
struct Geometry {
  int rows = 0, columns = 0;  // of output pixels
  int pitch = 0;              // pixels from one row to the next
  int guard = 0;              // pixels of zeros after the last row of a box
  int box_rows = 0;
  int tiles_high = 0, tiles_wide = 0;
  int stages = 0, stage_bytes = 0;
  int run = 1;                    // of taps whose filters are loaded together: kRun or 1
  int slabs = 0, slab_bytes = 0;  // of the filters of a run
  bool resident = false;  // the filters of a block stay in shared memory
  int handover = 0;       // the run of a tile after which a consumer passes the turn on
  int epilogue_bytes = 0;  // for one consumer

  int tiles(Problem const& problem) const { return problem.images * tiles_high * tiles_wide; }
};

/// What a kernel has at compile time.
struct Class {
  int pixels;       // of the accumulator
  int plane;        // channels of a plane
  int plane_bytes;  // of a pixel
  bool staged;      // C or D are moved through shared memory
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
  Tap tap[kMostTaps];
  uint32_t starts[kMostTaps];

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

/// The smallest pitch of rows of `columns` output pixels. A box whose rows are as wide as the output's may end before
/// the pixels that its last taps reach: those then are the first ones of the next row, and must be zeros like them.
inline int pitch_of(Problem const& problem, int columns) {
  int const reach = columns + problem.halo_width();
  if (columns < problem.output_width || taps_of(problem, columns).groups > 1) return reach;
  for (int pitch = columns; pitch < reach; ++pitch) {
    bool const zeros_after = pitch * problem.stride_width - problem.pad_width >= problem.width;
    bool const zeros_before = (reach - 1 - pitch) * problem.stride_width - problem.pad_width < 0;
    if (zeros_after && zeros_before) return pitch;
  }
  return reach;
}

/// Return the run after which a consumer passes the turn on: kTurnTaps before the last, so that no multiplication is
/// missing between two tiles. A barrier tells one phase from the one before it only. So the other consumer may begin when
/// what was in its first slots before is known to have been loaded.
inline int handover_of(Problem const& problem, Class const& kernel, Taps const& taps, Geometry const& made) {
  int const runs = taps.number / made.run, planes = ceil_div(problem.channels, kernel.plane);
  int const steps = runs * planes;
  int handover = std::max(0, steps - 1 - kTurnTaps / made.run);
  for (; handover + 1 < steps; ++handover) {
    int boxes = handover / runs * taps.groups;  // that are known to be loaded
    for (int i = 0; i < (handover % runs + 1) * made.run; ++i) boxes += taps.tap[i].enters();
    bool const has_slabs = made.resident || steps - handover <= made.slabs;
    if (has_slabs && planes * taps.groups - boxes < made.stages) break;
  }
  return handover;
}

/// Share the memory between the stages of the input and the filters of runs of `length` taps. Return whether it suffices.
inline bool share(Problem const& problem, Class const& kernel, Taps const& taps, int length, Geometry& made) {
  made.run = length;
  made.slab_bytes = length * kFilters * kernel.plane_bytes;
  int const left = kSharedBytes - 2 * kAlignment - aligned_bytes(kBarrierBytes) - 2 * made.epilogue_bytes;
  int const fewest_stages = std::max(2, taps.boxes_of_two_runs(length));
  int const needed = taps.number / length * ceil_div(problem.channels, kernel.plane);
  int const resident_left = left - needed * made.slab_bytes;
  made.resident = needed <= kMostSlabs && resident_left >= fewest_stages * made.stage_bytes;
  if (made.resident) {
    made.slabs = needed;
    made.stages = std::min(kMostStages, resident_left / made.stage_bytes);
  } else {
    int const fewest_slabs = 3, enough_slabs = std::max(fewest_slabs, 9 / length);
    int const stages = std::min(kMostStages, (left - fewest_slabs * made.slab_bytes) / made.stage_bytes);
    if (stages < fewest_stages) return false;
    made.stages = fewest_stages;
    while (made.stages < stages && left - (made.stages + 1) * made.stage_bytes >= enough_slabs * made.slab_bytes) {
      ++made.stages;
    }
    made.slabs = std::min(kMostSlabs, (left - made.stages * made.stage_bytes) / made.slab_bytes);
  }
  made.handover = handover_of(problem, kernel, taps, made);
  return true;
}

/// Return the geometry of tiles of rows x columns; without stages where they do not fit.
inline Geometry arrange(Problem const& problem, Class const& kernel, int rows, int columns) {
  Geometry made;
  made.rows = rows;
  made.columns = columns;
  made.pitch = pitch_of(problem, columns);
  made.guard = columns + problem.halo_width() - made.pitch;
  made.box_rows = rows + problem.halo_height();
  made.tiles_high = ceil_div(problem.output_height, rows);
  made.tiles_wide = ceil_div(problem.output_width, columns);
  bool const fits = (rows - 1) * made.pitch + columns <= kernel.pixels &&
                    (made.pitch - 1) * problem.stride_width < 256 &&
                    (made.box_rows - 1) * problem.stride_height < 256;
  if (!fits) return made;
  made.stage_bytes = aligned_bytes((made.box_rows * made.pitch + made.guard) * kernel.plane_bytes);
  if (kernel.staged) made.epilogue_bytes = aligned_bytes(std::max(kernel.pixels, rows * made.pitch) * 128);
  Taps const taps = taps_of(problem, made.pitch);
  if (taps.number % kRun != 0 || !share(problem, kernel, taps, kRun, made)) share(problem, kernel, taps, 1, made);
  return made;
}

/// Return the geometry with the fewest tiles, and of those with the least loaded; without stages where there is none.
/// Rows or columns that are not 0 are taken as they are.
inline Geometry choose(Problem const& problem, Class const& kernel, int given_rows = 0, int given_columns = 0) {
  Geometry best;
  int64_t least = INT64_MAX;
  int const wide = std::min(problem.output_width, kernel.pixels);
  for (int across = ceil_div(problem.output_width, wide); across <= problem.output_width; ++across) {
    int const columns = given_columns ? given_columns : ceil_div(problem.output_width, across);
    int const most = std::min(problem.output_height, (kernel.pixels - columns) / pitch_of(problem, columns) + 1);
    for (int high = ceil_div(problem.output_height, std::max(most, 1)); high <= problem.output_height; ++high) {
      int const rows = given_rows ? given_rows : ceil_div(problem.output_height, high);
      Geometry const made = arrange(problem, kernel, rows, columns);
      if (made.stages > 0) {
        int64_t const score = int64_t(made.tiles_high) * made.tiles_wide * 4096 + made.box_rows * made.pitch;
        if (score < least) {
          least = score;
          best = made;
        }
        break;  // fewer rows make more tiles
      }
      if (given_rows) break;
    }
    if (given_columns || columns * 8 < kernel.pixels || columns <= 8) break;
  }
  return best;
}

/// The convolution of an Epilogue (see fragment.hpp) by an Mma with kPixels, ElementA, Accumulator, kType and `fma`.
template <class Mma, int Plane, class Epilogue>
struct Kernel {
  using Element = typename Mma::Element;
  using Accumulator = typename Mma::Accumulator;
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;

  static constexpr int kPixels = Mma::kPixels;
  static constexpr int kPlaneBytes = Plane * int(sizeof(Element));
  static constexpr int kTapBytes = kFilters * kPlaneBytes;  // of the filters of a tap
  static constexpr int kInstructions = kPlaneBytes / 32;  // a WGMMA takes 32 bytes of k
  static constexpr int kStepPixels = 16;
  static constexpr int kEpilogueRow = 2 * kFilters;  // bytes of a pixel of C and D
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr bool kStaged = kLoadsSource || kStoresDestination;
  static constexpr Class kClass{kPixels, Plane, kPlaneBytes, kStaged};

  static constexpr int MaxThreadsPerBlock = kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static constexpr int SharedStorageSize = kSharedBytes;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  struct Arguments {
    Problem problem;
    void const* a;
    int64_t a_strides[3];  // of images, rows and pixels
    void const* b;
    int64_t b_strides[3];  // of filters, and of the rows and columns of their taps
    void const* c;
    int64_t c_stride;  // of pixels
    void* d;
    int64_t d_stride;
    typename Epilogue::Params epilogue;
    int multiprocessors;
    int rows, columns;  // of a tile; 0: the best
  };

  struct Params {
    CUtensorMap input, filters, source, destination;
    typename Epilogue::Params epilogue;
    Taps taps;
    Geometry geometry;
    int images, output_height, output_width, filter_count;
    int stride_height, stride_width;
    int planes, filter_blocks, items;
    int grid;
    bool stores_rows;  // a row of pixels at a time: what lies between the rows of a tile belongs to its neighbours
    bool encoded;
  };

  static bool can_implement(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    return problem.filter_height * problem.filter_width <= kMostTaps &&
           choose(problem, kClass, arguments.rows, arguments.columns).stages > 0;
  }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    Problem const& problem = arguments.problem;
    Params params{};
    Geometry const& geometry = params.geometry = choose(problem, kClass, arguments.rows, arguments.columns);
    params.epilogue = arguments.epilogue;
    params.taps = taps_of(problem, geometry.pitch);
    params.images = problem.images;
    params.output_height = problem.output_height;
    params.output_width = problem.output_width;
    params.filter_count = problem.filters;
    params.stride_height = problem.stride_height;
    params.stride_width = problem.stride_width;
    params.planes = ceil_div(problem.channels, Plane);
    params.filter_blocks = ceil_div(problem.filters, kFilters);
    params.items = geometry.tiles(problem) * params.filter_blocks;
    // With a multiple of the blocks of filters, every thread block keeps to one of them.
    int const most = std::max(arguments.multiprocessors / params.filter_blocks, 1) * params.filter_blocks;
    params.grid = std::min(params.items, geometry.resident ? most : arguments.multiprocessors);
    params.stores_rows = geometry.pitch > geometry.columns && geometry.tiles_wide > 1;
    params.encoded = encode(arguments, params);
    return params;
  }

  static bool encode(Arguments const& arguments, Params& params) {
    Problem const& problem = arguments.problem;
    Geometry const& geometry = params.geometry;
    int const bytes = int(sizeof(Element));
    hopper::Tensor input{Mma::kType, bytes, arguments.a,
                         {problem.channels, problem.width, problem.height, problem.images},
                         {arguments.a_strides[2], arguments.a_strides[1], arguments.a_strides[0]},
                         {Plane, (geometry.pitch - 1) * problem.stride_width + 1,
                          (geometry.box_rows - 1) * problem.stride_height + 1, 1},
                         {problem.stride_width, problem.stride_height}, kPlaneBytes};
    hopper::Tensor filters{Mma::kType, bytes, arguments.b,
                           {problem.channels, problem.filter_width, problem.filter_height, problem.filters},
                           {arguments.b_strides[2], arguments.b_strides[1], arguments.b_strides[0]},
                           {Plane, 1, 1, kFilters}, {1, 1}, kPlaneBytes};
    bool done = input.encode(params.input) && filters.encode(params.filters);
    auto const image = [&](CUtensorMapDataType type, void const* pointer, int64_t stride, int columns, int rows) {
      return hopper::Tensor{type, 2, pointer,
                            {problem.filters, problem.output_width, problem.output_height, problem.images},
                            {stride, stride * problem.output_width, stride * problem.output_width * problem.output_height},
                            {kFilters, columns, rows, 1}, {1, 1}, kEpilogueRow};
    };
    if constexpr (kLoadsSource) {
      done = done && image(map_type<Source>(), arguments.c, arguments.c_stride, geometry.pitch, geometry.rows)
                         .encode(params.source);
    }
    if constexpr (kStoresDestination) {
      int const columns = params.stores_rows ? geometry.columns : geometry.pitch;
      int const rows = params.stores_rows ? 1 : geometry.rows;
      done = done && image(map_type<Destination>(), arguments.d, arguments.d_stride, columns, rows)
                         .encode(params.destination);
    }
    return done;
  }

  template <class T>
  static constexpr CUtensorMapDataType map_type() {
    return std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }

  /// The tiles of rows and of columns, into which reductions are parted.
  static fragment::Tiles tiles(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    Geometry const geometry = choose(problem, kClass, arguments.rows, arguments.columns);
    return {geometry.tiles(problem), ceil_div(problem.filters, kFilters)};
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_block_shape() { return dim3(kThreads); }

  /// A ring of buffers, as one of those that use it in turn sees it.
  struct Ring {
    int slot = 0;
    uint32_t parity = 0;

    /// Go to the next slot, if at all: without a branch.
    CUTLASS_DEVICE void step(bool goes, int slots) {
      slot += goes;
      bool const wraps = slot == slots;
      slot = wraps ? 0 : slot;
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
  struct Shared {
    uint32_t stages, slabs, epilogues, barriers;

    CUTLASS_DEVICE Shared(Geometry const& geometry, char* memory) {
      stages = (hopper::shared_address(memory) + kAlignment - 1) / kAlignment * kAlignment;
      slabs = stages + geometry.stages * geometry.stage_bytes;
      epilogues = slabs + aligned_bytes(geometry.slabs * geometry.slab_bytes);
      barriers = epilogues + 2 * geometry.epilogue_bytes;
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
  };

  /// A run of taps of one plane: its operands, and whether they are known to be loaded.
  template <int Length>
  struct Step {
    uint32_t a, b[Length];  // descriptors
    int slab, stage[Length];
    uint32_t slab_parity, stage_parity[Length];
    bool enters[Length];
    bool is_loaded;

    /// `stage` is that of the tap before, if there is one.
    CUTLASS_DEVICE Step(Params const& params, Shared const& shared, int run, bool is_first, Ring& of_stages,
                        Ring const& of_slabs)
        : slab(of_slabs.slot), slab_parity(of_slabs.parity) {
      Geometry const& geometry = params.geometry;
      a = hopper::operand_descriptor(shared.slabs + slab * geometry.slab_bytes);
      is_loaded = hopper::has_passed_already(shared.slab_full(slab), slab_parity);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Length; ++i) {
        Tap const tap = params.taps.tap[run + i];
        enters[i] = tap.enters();
        of_stages.step(enters[i] & !(is_first & i == 0), geometry.stages);
        stage[i] = of_stages.slot;
        stage_parity[i] = of_stages.parity;
        b[i] = hopper::operand_descriptor(shared.stages + stage[i] * geometry.stage_bytes + tap.shift() * kPlaneBytes);
        is_loaded &= hopper::has_passed_already(shared.stage_full(stage[i]), stage_parity[i]);
      }
    }

    CUTLASS_DEVICE void wait(Shared const& shared) const {
      if (is_loaded) return;
      hopper::wait(shared.slab_full(slab), slab_parity);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Length; ++i) {
        hopper::wait(shared.stage_full(stage[i]), stage_parity[i]);
      }
    }

    /// Give memory that no tap after these uses back to the producers.
    CUTLASS_DEVICE void release(Shared const& shared, bool keeps_slab, bool leaves_last_stage) const {
      if (threadIdx.x % 32 != 0) return;
      if (!keeps_slab) hopper::arrive(shared.slab_empty(slab));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Length; ++i) {
        if (i + 1 < Length ? enters[i + 1] : leaves_last_stage) hopper::arrive(shared.stage_empty(stage[i]));
      }
    }
  };

  /// A tile of the output, and a block of filters.
  struct Item {
    int filter, column, row, image;

    CUTLASS_DEVICE Item(Params const& params, int number) {
      Geometry const& geometry = params.geometry;
      filter = number % params.filter_blocks * kFilters;
      int tile = number / params.filter_blocks;
      column = tile % geometry.tiles_wide * geometry.columns;
      tile /= geometry.tiles_wide;
      row = tile % geometry.tiles_high * geometry.rows;
      image = tile / geometry.tiles_high;
    }
  };

  CUTLASS_DEVICE void operator()(Params const& params, char* memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Geometry const& geometry = params.geometry;
    Shared const shared(geometry, memory);
    int const group = threadIdx.x / kWarpGroup;
    set_up(params, shared);
    __syncthreads();
    if (group == 0) {
      hopper::give_registers<kProducerRegisters>();
      int const warp = threadIdx.x / 32;
      if (threadIdx.x % 32 == 0) {
        if (warp == 0) load_input(params, shared);
        if (warp == 3) load_filters(params, shared);
        if constexpr (kStaged) {
          if (warp == 1 || warp == 2) move_tiles(params, shared, warp - 1);
        }
      }
    } else {
      hopper::take_registers<kConsumerRegisters>();
      consume(params, shared, group - 1);
    }
#endif
  }

 private:
  CUTLASS_DEVICE static void set_up(Params const& params, Shared const& shared) {
    Geometry const& geometry = params.geometry;
    // The pixels after a box, which are read and never loaded.
    int const words = geometry.guard * kPlaneBytes / 4;
    for (int i = threadIdx.x; i < words * geometry.stages; i += kThreads) {
      uint32_t const end = shared.stages + i / words * geometry.stage_bytes +
                           geometry.box_rows * geometry.pitch * kPlaneBytes;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(end + i % words * 4), "r"(0) : "memory");
    }
    hopper::fence_async();
    if (threadIdx.x == 0) {
      hopper::prefetch_map(params.input);
      hopper::prefetch_map(params.filters);
      if constexpr (kLoadsSource) hopper::prefetch_map(params.source);
      if constexpr (kStoresDestination) hopper::prefetch_map(params.destination);
      constexpr int kWarps = kWarpGroup / 32;
      for (int i = 0; i < geometry.stages; ++i) {
        hopper::init_barrier(shared.stage_full(i), 1);
        hopper::init_barrier(shared.stage_empty(i), kWarps);
      }
      for (int i = 0; i < geometry.slabs; ++i) {
        hopper::init_barrier(shared.slab_full(i), 1);
        hopper::init_barrier(shared.slab_empty(i), kWarps);
      }
      for (int i = 0; i < 2; ++i) {
        hopper::init_barrier(shared.turn(i), kWarps);
        hopper::init_barrier(shared.source_loaded(i), 1);
        hopper::init_barrier(shared.result_written(i), kWarpGroup);
      }
      hopper::fence_barriers();
    }
  }

  /// Load the boxes of all tiles, plane by plane and group by group.
  CUTLASS_DEVICE static void load_input(Params const& params, Shared const& shared) {
    Geometry const& geometry = params.geometry;
    Ring ring;
    int const bytes = geometry.box_rows * geometry.pitch * kPlaneBytes;
    for (int number = blockIdx.x; number < params.items; number += gridDim.x) {
      Item const item(params, number);
      for (int plane = 0; plane < params.planes; ++plane) {
        for (int group = 0; group < params.taps.groups; ++group) {
          uint32_t const start = params.taps.starts[group];
          int const column = item.column * params.stride_width + int16_t(start);
          int const row = item.row * params.stride_height + int16_t(start >> 16);
          hopper::wait(shared.stage_empty(ring.slot), ring.parity ^ 1);
          uint32_t const full = shared.stage_full(ring.slot);
          hopper::arrive_and_expect(full, bytes);
          hopper::load_box(shared.stages + ring.slot * geometry.stage_bytes, params.input, full, plane * Plane, column,
                           row, item.image);
          ring.advance(1, geometry.stages);
        }
      }
    }
  }

  /// Load the filters, run by run: once if they stay, else for every tile.
  CUTLASS_DEVICE static void load_filters(Params const& params, Shared const& shared) {
    Geometry const& geometry = params.geometry;
    Ring ring;
    for (int number = blockIdx.x; number < params.items; number += gridDim.x) {
      int const filter = number % params.filter_blocks * kFilters, length = geometry.run;
      for (int plane = 0; plane < params.planes; ++plane) {
        for (int run = 0; run < params.taps.number; run += length) {
          hopper::wait(shared.slab_empty(ring.slot), ring.parity ^ 1);
          uint32_t const full = shared.slab_full(ring.slot);
          hopper::arrive_and_expect(full, length * kTapBytes);
          for (int i = 0; i < length; ++i) {
            Tap const tap = params.taps.tap[run + i];
            hopper::load_box(shared.slabs + ring.slot * geometry.slab_bytes + i * kTapBytes, params.filters, full,
                             plane * Plane, tap.x(), tap.y(), filter);
          }
          ring.advance(1, geometry.slabs);
        }
      }
      if (geometry.resident) break;
    }
  }

  /// Load C and store D, in one buffer, for the tiles of a consumer.
  CUTLASS_DEVICE static void move_tiles(Params const& params, Shared const& shared, int consumer) {
    Geometry const& geometry = params.geometry;
    uint32_t const buffer = shared.epilogues + consumer * geometry.epilogue_bytes;
    uint32_t parity = 0;
    for (int number = blockIdx.x + consumer * gridDim.x; number < params.items; number += 2 * gridDim.x, parity ^= 1) {
      Item const item(params, number);
      uint32_t const loaded = shared.source_loaded(consumer);
      if constexpr (kStoresDestination) hopper::wait_for_stores_to_read();
      if constexpr (kLoadsSource) {
        hopper::arrive_and_expect(loaded, geometry.rows * geometry.pitch * kEpilogueRow);
        hopper::load_box(buffer, params.source, loaded, item.filter, item.column, item.row, item.image);
      } else {
        hopper::arrive(loaded);
      }
      hopper::wait(shared.result_written(consumer), parity);
      if constexpr (kStoresDestination) {
        if (params.stores_rows) {
          for (int row = 0; row < geometry.rows; ++row) {
            hopper::store_box(params.destination, buffer + row * geometry.pitch * kEpilogueRow, item.filter,
                              item.column, item.row + row, item.image);
          }
        } else {
          hopper::store_box(params.destination, buffer, item.filter, item.column, item.row, item.image);
        }
        hopper::commit_stores();
      }
    }
    if constexpr (kStoresDestination) hopper::wait_for_stores();
  }

  /// Multiply a tile in runs of `Length` taps.
  template <int Length>
  CUTLASS_DEVICE static void multiply(Params const& params, Shared const& shared, int consumer, Ring& stage, Ring& slab,
                                      Accumulator (&accumulators)[kPixels / 2]) {
    Geometry const& geometry = params.geometry;
    constexpr int kMany = Length * kInstructions;
    int const steps = params.planes * params.taps.number / Length;
    bool const leads = threadIdx.x % 32 == 0;
    int run = 0;
    Step<Length> step(params, shared, run, true, stage, slab), last = step;
    for (int i = 0; i < steps; ++i) {
      step.wait(shared);
      hopper::fence_multiplications();
      Step<Length> next = step;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMany; ++j) {
        int const tap = j / kInstructions, k = j % kInstructions * hopper::kNextK;
        Mma::fma(accumulators, step.a + tap * (kTapBytes >> 4) + k, step.b[tap] + k,
                 hopper::operand_layout(kPlaneBytes), i > 0 || j > 0);
        if (j == (kMany > 1)) {
          // What the next step needs is looked up meanwhile, without a branch, after which WGMMA would begin another
          // group: the tensor cores would wait for it between the steps.
          run = run + Length == params.taps.number ? 0 : run + Length;
          slab.step(true, geometry.slabs);
          bool const ends = i + 1 == steps;
          Ring then = stage;
          next = Step<Length>(params, shared, run, ends, then, slab);
          stage.slot = ends ? stage.slot : then.slot;
          stage.parity = ends ? stage.parity : then.parity;
        }
      }
      hopper::commit_multiplications();
      if (i == geometry.handover && leads) hopper::arrive(shared.turn(1 - consumer));
      hopper::wait_for_multiplications<1>();
      if (i > 0) last.release(shared, geometry.resident, step.enters[0]);
      last = step;
      step = next;
    }
    hopper::wait_for_multiplications<0>();
    last.release(shared, geometry.resident, true);
  }

  /// Multiply and store the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, Shared const& shared, int consumer) {
    Geometry const& geometry = params.geometry;
    int const length = geometry.run;
    int const steps = params.planes * params.taps.number / length;  // of a tile
    int const stages = params.planes * params.taps.groups;          // that a tile takes
    Ring stage, slab;
    if (consumer == 1) {
      if (threadIdx.x % 32 == 0) hopper::arrive(shared.turn(0));
      stage.advance(stages, geometry.stages);
      if (!geometry.resident) slab.advance(steps, geometry.slabs);
    }
    uint32_t parity = 0;
    for (int number = blockIdx.x + consumer * gridDim.x; number < params.items; number += 2 * gridDim.x, parity ^= 1) {
      Item const item(params, number);
      int const thread = threadIdx.x % kWarpGroup;
      fragment::Tile const tile{item.filter + thread / 32 * 16 + thread % 32 / 4, params.filter_count,
                                number / params.filter_blocks, number % params.filter_blocks};
      Epilogue epilogue(params.epilogue, tile);
      Accumulator accumulators[kPixels / 2];
      hopper::wait(shared.turn(consumer), parity);
      if (length == kRun) {
        multiply<kRun>(params, shared, consumer, stage, slab, accumulators);
      } else {
        multiply<1>(params, shared, consumer, stage, slab, accumulators);
      }
      stage.advance(1 + stages, geometry.stages);  // those of the other consumer's tile as well
      if (geometry.resident) {
        slab = Ring();
      } else {
        slab.advance(steps, geometry.slabs);
      }
      if constexpr (kStaged) hopper::wait(shared.source_loaded(consumer), parity);
      visit(params, item, tile, epilogue, accumulators, shared.epilogues + consumer * geometry.epilogue_bytes);
      epilogue.finish(tile);
      if constexpr (kStaged) {
        hopper::fence_async();
        hopper::arrive(shared.result_written(consumer));
      }
    }
  }

  /// The pixels of a thread's four rows of a step, one step after the other.
  struct Pixels {
    Params const& params;
    Item const& item;
    int row, column;  // of the tile, of the first of the next 8 pixels that this thread has

    CUTLASS_DEVICE Pixels(Params const& params, Item const& item)
        : params(params), item(item), row(0), column(threadIdx.x % 4 * 2) {
      wrap(row, column);
    }

    CUTLASS_DEVICE void wrap(int& row, int& column) const {
      while (column >= params.geometry.pitch) {
        column -= params.geometry.pitch;
        ++row;
      }
    }

    CUTLASS_DEVICE int place(int row, int column) const {
      int const y = item.row + row, x = item.column + column;
      bool const has = row < params.geometry.rows && column < params.geometry.columns && y < params.output_height &&
                       x < params.output_width;
      return has ? (item.image * params.output_height + y) * params.output_width + x : -1;
    }

    CUTLASS_DEVICE void next(fragment::Places& places) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; i += 2) {
        places.rows[i] = place(row, column);
        int next_row = row, next_column = column + 1;
        wrap(next_row, next_column);
        places.rows[i + 1] = place(next_row, next_column);
        column += 8;
        wrap(row, column);
      }
    }
  };

  CUTLASS_DEVICE static void visit(Params const& params, Item const& item, fragment::Tile const& tile,
                                   Epilogue& epilogue, Accumulator (&accumulators)[kPixels / 2], uint32_t buffer) {
    // A lane's row of the matrices that ldmatrix and stmatrix move: a pixel, and of its 128 bytes a swizzled chunk of 16.
    int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
    uint32_t address = buffer + (lane % 8 + lane / 16 * 8) * kEpilogueRow + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
    constexpr int kSteps = (kPixels + kStepPixels - 1) / kStepPixels;
    Pixels pixels(params, item);
    fragment::Places places[2];
    typename Epilogue::Fetched fetched[2];
    if constexpr (Epilogue::kPlaces) {
      pixels.next(places[0]);
      epilogue.fetch(fetched[0], places[0]);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      constexpr int kRest = kPixels % kStepPixels;
      bool const whole = step + 1 < kSteps || kRest == 0;
      if constexpr (Epilogue::kPlaces) {
        if (step + 1 < kSteps) {
          pixels.next(places[(step + 1) % 2]);
          epilogue.fetch(fetched[(step + 1) % 2], places[(step + 1) % 2]);
        }
      }
      uint32_t words[4] = {};
      if constexpr (kLoadsSource) {
        if (whole) {
          hopper::load_matrices(words, address);
        } else {
          hopper::load_two_matrices(words, address);
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < (whole ? fragment::kElements : fragment::kElements / 2); i += 2) {
        float sources[2] = {};
        if constexpr (kLoadsSource) {
          sources[0] = element::load_first<Source>(words[i / 2]);
          sources[1] = element::load_second<Source>(words[i / 2]);
        }
        int const at = fragment::kElements * step + i;
        auto const first = epilogue.visit(i, accumulators[at], sources[0], fetched[step % 2], places[step % 2]);
        auto const second =
            epilogue.visit(i + 1, accumulators[at + 1], sources[1], fetched[step % 2], places[step % 2]);
        if constexpr (kStoresDestination) element::store_two(Destination{}, words[i / 2], first, second);
      }
      if constexpr (kStoresDestination) {
        if (whole) {
          hopper::store_matrices(address, words);
        } else {
          hopper::store_two_matrices(address, words);
        }
      }
      address += kStepPixels * kEpilogueRow;
    }
  }
};

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_HPP
