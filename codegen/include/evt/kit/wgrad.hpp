#ifndef EVT_KIT_WGRAD_HPP
#define EVT_KIT_WGRAD_HPP

// The gradient of a convolution's filters for sm90: see plan/geometry/wgrad.py. M of WGMMA are filters, N are channels of
// one tap or of several, k are pixels.
//
// The CTAs of a cluster share a tile of the gradient. Each has sums over some pixels, in its shared memory, and completes
// a part of the tile: it adds the sums of all, in a fixed order, and computes the epilogue. If several clusters share a
// tile, the CTA writes partial sums instead, and a second kernel adds them and computes the epilogue. A cluster may have
// several tiles of filters. Their CTAs load the same stages of the input together: each loads some of its blocks for all
// of them, and waits for the consumers of all of them to release a stage.
//
// Warp group 0 of the first kernel produces: a thread loads stages by TMA. Other warp groups consume: each has a row of
// taps, some blocks of filters, or some of the tiles of pixels.
//
// The blocks of channels of an instruction are `leading` bytes apart in shared memory: neighbouring taps of a row are one
// pixel apart, other blocks have a box each.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_sums.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace wgrad {

using kit::PipelineState;

constexpr int kWarpGroup = 128, kWarps = kWarpGroup / 32;

/// The part of the gradient that a CTA computes. Consumers share the rows of taps, the filters and the tiles of pixels.
/// A consumer has Blocks blocks of 64 filters. An instruction multiplies Group blocks of 64 channels.
template <int TapRows, int TapColumns, int FilterConsumers, int Blocks, int ChannelBlocks, int Parts, int Group>
struct WgradTile {
  static constexpr int kTapRows = TapRows, kTapColumns = TapColumns, kFilterConsumers = FilterConsumers;
  static constexpr int kBlocks = Blocks, kFilterBlocks = FilterConsumers * Blocks, kChannelBlocks = ChannelBlocks;
  static constexpr int kParts = Parts, kGroup = Group;
  static constexpr int kConsumers = TapRows * FilterConsumers * Parts;
  static constexpr int kInstructions = TapColumns * ChannelBlocks / Group;  // of a block of filters
  static constexpr WgradClass kClass{TapRows, TapColumns, kFilterBlocks, ChannelBlocks, Parts};
  static_assert(TapColumns * ChannelBlocks % Group == 0, "instructions have equally many blocks");
  static_assert(TapColumns == 1 || ChannelBlocks == 1, "an instruction has several taps or several blocks of channels");
};

/// The gradient of filters with an Epilogue of fragment.hpp. Mma has an instruction's channels as kPixels.
template <class Mma, class Epilogue, class Tile>
struct Wgrad {
  static constexpr int kThreads = (1 + Tile::kConsumers) * kWarpGroup;
  static constexpr int kElementBytes = 2;
  using Sums = SplitSums<Epilogue>;
  static_assert(Mma::kPixels == Tile::kGroup * kBlock && Mma::kElementBytes == kElementBytes, "Mma suits the tile");

  struct Arguments {
    Problem problem;
    void const* a;         // the gradient of the output
    int64_t a_strides[3];  // images, rows, pixels
    void const* b;         // the input
    int64_t b_strides[3];
    float* sums;  // partial ones, in the workspace
    void const* c;
    int64_t c_stride;
    void* d;
    int64_t d_stride;
    typename Epilogue::Params epilogue;
  };

  struct Params {
    CUtensorMap gradient, input;
    WgradGeometry geometry;
    int filters, channels, taps_high, taps_wide;
    int stride_height, stride_width, dilation_height, dilation_width, pad_height, pad_width;
    int filter_tiles, channel_tiles, windows_wide, outputs;
    int neighbours, ranks;  // CTAs of a cluster: of several tiles of filters, each with some CTAs
    int splits;
    int column_step;  // columns of the gradient's descriptor from tile to tile: 0 if tiles are a dimension
    float* sums;
    typename Sums::Params combined;
    bool encoded;
  };

  static constexpr int MaxThreadsPerBlock = Sums::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static constexpr int SharedStorageSize = 0;

#if !defined(EVT_DEVICE_PASS)
  /// The partial sums of an element of the gradient: of each cluster that shares a tile.
  static int splits(Arguments const& arguments) {
    return cluster_of(arguments.problem, Tile::kClass).clusters;
  }

  static int64_t elements(Arguments const& arguments) { return int64_t(rows(arguments)) * columns(arguments); }
  static int rows(Arguments const& arguments) { return arguments.problem.filters; }
  static int columns(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    return problem.tap_count() * problem.channels;
  }

  static fragment::Tiles tiles(Arguments const& arguments) {
    return {ceil_div(rows(arguments), kTileRows), strips_of(arguments.problem)};
  }

  static bool can_implement(Arguments const& arguments) {
    Problem const& problem = arguments.problem;
    return std::min(problem.height.pad, problem.width.pad) >= 0 && to_underlying_arguments(arguments).encoded;
  }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    Problem const& given = arguments.problem;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    bool const flat = is_row(given) && is_packed(a, given.height.output, given.width.output) &&
                      is_packed(b, given.height.size, given.width.size);
    Problem const problem = flat ? flattened(given) : given;
    Axis const &height = problem.height, &width = problem.width;
    Params params{};
    WgradGeometry const& geometry = params.geometry = choose_wgrad(problem, Tile::kClass);
    if (geometry.stages == 0) return params;
    params.filters = problem.filters;
    params.channels = problem.channels;
    params.taps_high = height.taps;
    params.taps_wide = width.taps;
    params.stride_height = height.stride;
    params.stride_width = width.stride;
    params.dilation_height = height.dilation;
    params.dilation_width = width.dilation;
    params.pad_height = height.pad;
    params.pad_width = width.pad;
    WgradCluster const cluster = cluster_of(given, Tile::kClass);
    params.filter_tiles = filter_tiles(problem, Tile::kClass) / cluster.neighbours;
    params.channel_tiles = channel_tiles(problem, Tile::kClass);
    params.windows_wide = ceil_div(width.taps, Tile::kTapColumns);
    params.outputs = outputs(problem, Tile::kClass) / cluster.neighbours;
    params.neighbours = cluster.neighbours;
    params.ranks = cluster.ranks;
    params.splits = cluster.splits();
    params.sums = arguments.sums;
    params.combined.sums = arguments.sums;
    params.combined.splits = cluster.clusters;
    params.combined.rows = rows(arguments);
    params.combined.columns = columns(arguments);
    params.combined.channels = problem.channels;
    params.combined.strips = strips_of(problem);
    params.combined.sharing = sharing_of(params.combined.splits);
    params.combined.c = static_cast<typename Epilogue::Source const*>(arguments.c);
    params.combined.c_stride = arguments.c_stride;
    params.combined.d = static_cast<typename Epilogue::Destination*>(arguments.d);
    params.combined.d_stride = arguments.d_stride;
    params.combined.epilogue = arguments.epilogue;
    // Tiles of columns that taps reach beyond are a dimension, so that the gradient's next columns are zeros.
    bool const divided = geometry.pitch > geometry.columns && geometry.tiles_wide > 1;
    params.column_step = divided ? 0 : geometry.columns;
    kit::TmaTensor<5> const gradient{
        Mma::kType, kElementBytes, arguments.a,
        {problem.filters, divided ? geometry.columns : width.output, height.output, divided ? geometry.tiles_wide : 1,
         problem.images},
        {a[2], a[1], divided ? geometry.columns * a[2] : a[0], a[0]},
        {kBlock, geometry.pitch, geometry.rows, 1, geometry.images}, {1, 1}, kBlockBytes};
    kit::TmaTensor<4> const input{
        Mma::kType, kElementBytes, arguments.b, {problem.channels, width.size, height.size, problem.images},
        {b[2], b[1], b[0]},
        {kBlock, (geometry.pitch - 1) * width.stride + 1, (geometry.box_rows - 1) * height.stride + 1, geometry.images},
        {width.stride, height.stride}, kBlockBytes};
    params.encoded = gradient.encode(params.gradient) && input.encode(params.input);
    return params;
  }

  /// The second kernel's grid; zero if the first one computes the epilogue.
  static dim3 get_grid_shape(Params const& params) {
    return params.combined.splits > 1 ? Sums::get_grid_shape(params.combined) : dim3(0);
  }
  static dim3 get_block_shape() { return dim3(Sums::kThreads); }
#endif

  /// Add the partial sums, and compute the epilogue.
  CUTLASS_DEVICE void operator()(Params const& params, char*) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    pdl::wait_for_kernel_before();
    Sums::complete(params.combined);
#endif
  }

  /// The first kernel.
  struct Multiply {
    static constexpr int MaxThreadsPerBlock = kThreads;
    static constexpr int SharedStorageSize = kSharedBytes;
    // With three consumers a thread has 128 registers at the launch.
    static constexpr int kProducerRegisters = Tile::kConsumers > 2 ? 32 : 40;
    static constexpr int kConsumerRegisters = Tile::kConsumers > 2 ? 160 : Tile::kConsumers > 1 ? 232 : 240;

#if !defined(EVT_DEVICE_PASS)
    static dim3 get_grid_shape(Params const& params) {
      return dim3(params.outputs * params.splits * params.neighbours);
    }
    static dim3 get_cluster_shape(Params const& params) { return dim3(size_of_cluster(params)); }
    static dim3 get_block_shape() { return dim3(kThreads); }
#endif

    CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      Storage const storage(params.geometry, shared_memory);
      Output const output(params);
      initialize(params, storage);
      if (params.neighbours > 1) {
        synchronise(params);  // other CTAs load into this one's stages
      } else {
        __syncthreads();
      }
      pdl::wait_for_kernel_before();
      int const group = kit::canonical_warp_idx_sync() / kWarps;
      if (group == 0) {
        kit::warpgroup_reg_dealloc<kProducerRegisters>();
        if (kit::canonical_warp_idx_sync() == 0 && kit::elect_one_sync()) load(params, storage, output);
        __syncwarp();
        __syncthreads();
        synchronise(params);
      } else {
        kit::warpgroup_reg_alloc<kConsumerRegisters>();
        consume(params, storage, output, group - 1);
        synchronise(params);
        complete(params, storage, output, kit::canonical_warp_idx_sync() - kWarps);
      }
      if (size_of_cluster(params) > 1) synchronise(params);  // other CTAs read this one's sums
#endif
    }
  };

 private:
  static constexpr int kAtATime = 4;  // CTAs of a large cluster whose sums are loaded before they are added
  using Accumulators = float[Tile::kBlocks][Tile::kInstructions][Mma::kPixels / 2];

#if !defined(EVT_DEVICE_PASS)
  /// Whether the pixels of a convolution may be one row: each output reads the pixel at its place.
  static bool is_row(Problem const& problem) {
    Axis const &height = problem.height, &width = problem.width;
    auto const is_plain = [](Axis const& axis) { return axis.taps == 1 && axis.stride == 1 && axis.pad == 0; };
    return is_plain(height) && is_plain(width);
  }
  static bool is_packed(int64_t const (&strides)[3], int rows, int columns) {
    return strides[1] == columns * strides[2] && strides[0] == rows * strides[1];
  }
#endif

  /// The shared memory of a CTA: stages, and their barriers.
  struct Storage {
    uint32_t stages, barriers;
    int stage_bytes;

    CUTLASS_DEVICE Storage(WgradGeometry const& geometry, char* storage) : stage_bytes(geometry.stage_bytes) {
      stages = (kit::cast_smem_ptr_to_uint(storage) + kAlignment - 1) / kAlignment * kAlignment;
      barriers = stages + max(geometry.stages * stage_bytes, Tile::kClass.sum_bytes());
    }
    /// The place of a sum, once all stages are multiplied.
    CUTLASS_DEVICE uint32_t sum(int part, int row, int column) const {
      return stages + ((part * Tile::kFilterBlocks * kBlock + row) * (Tile::kClass.sum_columns() + kRowPadding) + column) * 4;
    }
    CUTLASS_DEVICE uint32_t stage(int index) const { return stages + index * stage_bytes; }
    CUTLASS_DEVICE uint32_t full(int index) const { return barriers + 16 * index; }
    CUTLASS_DEVICE uint32_t empty(int index) const { return barriers + 16 * index + 8; }
  };

  CUTLASS_HOST_DEVICE static int size_of_cluster(Params const& params) { return params.neighbours * params.ranks; }

  /// The tile of the gradient that a CTA computes, and its first tile of pixels.
  struct Output {
    int neighbour, rank, cluster, split, filter, channel, tap_row, tap_column;

    CUTLASS_DEVICE explicit Output(Params const& params) {
      int const size = size_of_cluster(params), first = blockIdx.x / size;
      int const block = size == 1 ? 0 : kit::block_rank_in_cluster();
      rank = block / params.neighbours;
      neighbour = block - rank * params.neighbours;
      cluster = first / params.outputs;
      split = cluster * params.ranks + rank;
      int const number = first - cluster * params.outputs, rest = number / params.filter_tiles;
      int const tile = (number - rest * params.filter_tiles) * params.neighbours + neighbour;
      filter = tile * Tile::kFilterBlocks * kBlock;
      int const window = rest / params.channel_tiles;
      channel = (rest - window * params.channel_tiles) * Tile::kChannelBlocks * kBlock;
      tap_row = window / params.windows_wide * Tile::kTapRows;
      tap_column = window % params.windows_wide * Tile::kTapColumns;
    }
  };

  /// Initialize barriers, and the zeros after the pixels that TMA loads.
  CUTLASS_DEVICE static void initialize(Params const& params, Storage const& storage) {
    WgradGeometry const& geometry = params.geometry;
    if (threadIdx.x == 0) {
      kit::prefetch_tma_descriptor(params.gradient);
      kit::prefetch_tma_descriptor(params.input);
      for (int i = 0; i < geometry.stages; ++i) {
        kit::barrier_init(storage.full(i), 1);
        kit::barrier_init(storage.empty(i), kWarps * Tile::kConsumers / Tile::kParts * params.neighbours);
      }
      kit::fence_barrier_init();
    }
    int const boxes = Tile::kChannelBlocks * geometry.boxes_high * geometry.boxes_wide;
    for (int i = 0; i < geometry.stages; ++i) {
      uint32_t at = storage.stage(i);
      for (int block = 0; block < Tile::kFilterBlocks; ++block, at += geometry.gradient_bytes) {
        clear(at, geometry.gradient_pixels() * kBlockBytes, geometry.gradient_bytes);
      }
      for (int box = 0; box < boxes; ++box, at += geometry.box_bytes) {
        clear(at, geometry.box_pixels() * kBlockBytes, geometry.box_bytes);
      }
    }
    kit::fence_view_async_shared();
  }

  /// Write zeros to bytes of shared memory, by all threads.
  CUTLASS_DEVICE static void clear(uint32_t at, int first, int end) {
    for (int i = first + threadIdx.x * 4; i < end; i += kThreads * 4) kit::store_shared(at + i, 0u);
  }

  /// Load the stages of a CTA's tiles of pixels.
  CUTLASS_DEVICE static void load(Params const& params, Storage const& storage, Output const& output) {
    WgradGeometry const& geometry = params.geometry;
    int const boxes = geometry.boxes_high * geometry.boxes_wide;
    int const bytes = (Tile::kFilterBlocks * geometry.gradient_pixels() +
                       Tile::kChannelBlocks * boxes * geometry.box_pixels()) * kBlockBytes;
    int const first_row = output.tap_row * params.dilation_height - params.pad_height;
    int const first_column = output.tap_column * params.dilation_width - params.pad_width;
    // The blocks of channels that this CTA loads, for all CTAs of its rank.
    int const blocks = Tile::kChannelBlocks / params.neighbours, first_block = output.neighbour * blocks;
    uint16_t const receivers = uint16_t(((1 << params.neighbours) - 1) << output.rank * params.neighbours);
    PipelineState state;
    for (int tile = output.split; tile < geometry.tiles; tile += params.splits) {
      int const down = tile / geometry.tiles_wide, across = tile - down * geometry.tiles_wide;
      int const image = down / geometry.tiles_high;
      int const row = (down - image * geometry.tiles_high) * geometry.rows;
      kit::barrier_wait(storage.empty(state.index), state.phase ^ 1);
      uint32_t const full = storage.full(state.index);
      kit::arrive_and_expect_tx(full, bytes);
      uint32_t at = storage.stage(state.index);
      for (int block = 0; block < Tile::kFilterBlocks; ++block, at += geometry.gradient_bytes) {
        kit::tma_load(at, params.gradient, full, output.filter + block * kBlock, across * params.column_step, row,
                      params.column_step == 0 ? across : 0, image * geometry.images);
      }
      int const y = row * params.stride_height + first_row;
      int const x = across * geometry.columns * params.stride_width + first_column;
      at += first_block * boxes * geometry.box_bytes;
      for (int block = first_block; block < first_block + blocks; ++block) {
        int const channel = output.channel + block * kBlock;
        for (int box_y = 0; box_y < geometry.boxes_high; ++box_y) {
          int const from_y = y + remainder_of(box_y, params.dilation_height, params.stride_height);
          for (int box_x = 0; box_x < geometry.boxes_wide; ++box_x, at += geometry.box_bytes) {
            int const from_x = x + remainder_of(box_x, params.dilation_width, params.stride_width);
            if (params.neighbours > 1) {
              kit::tma_load_multicast(at, params.input, full, receivers, channel, from_x, from_y,
                                      image * geometry.images);
            } else {
              kit::tma_load(at, params.input, full, channel, from_x, from_y, image * geometry.images);
            }
          }
        }
      }
      state.advance_once(1, geometry.stages);
    }
  }

  /// The remainder of a tap's distance modulo the stride. The first taps have a box each.
  CUTLASS_DEVICE static int remainder_of(int tap, int dilation, int stride) { return tap * dilation % stride; }

  /// The place of a tap in a stage, in bytes from the first box of its block of channels.
  CUTLASS_DEVICE static int place_of(Params const& params, int tap_row, int tap_column) {
    WgradGeometry const& geometry = params.geometry;
    int const box = tap_row % geometry.boxes_high * geometry.boxes_wide + tap_column % geometry.boxes_wide;
    int const down = tap_row * params.dilation_height / params.stride_height;
    int const right = tap_column * params.dilation_width / params.stride_width;
    return box * geometry.box_bytes + (down * geometry.pitch + right) * kBlockBytes;
  }

  /// The lower word of a descriptor of transposed rows of 128 bytes, whose blocks of 64 elements are `leading` bytes apart.
  CUTLASS_DEVICE static uint32_t descriptor(uint32_t address, int leading) {
    return (address >> 4 & 0x3fff) | uint32_t(leading >> 4) << 16;
  }

  /// Multiply the tiles of a consumer, and write its partial sums.
  CUTLASS_DEVICE static void consume(Params const& params, Storage const& storage, Output const& output, int consumer) {
    constexpr uint32_t kLayout = uint32_t(8 * kBlockBytes >> 4) | 1u << 30;  // rows, eight at a time, 128 bytes swizzled
    constexpr uint32_t kNext = kDepth * kBlockBytes >> 4;
    WgradGeometry const& geometry = params.geometry;
    int const part = consumer % Tile::kParts, rest = consumer / Tile::kParts;
    int const tap_row = rest % Tile::kTapRows, first_block = rest / Tile::kTapRows * Tile::kBlocks;
    int const inputs = Tile::kFilterBlocks * geometry.gradient_bytes;
    int const leading = Tile::kChannelBlocks > 1 ? geometry.box_bytes : params.dilation_width * kBlockBytes;
    uint32_t of_input[Tile::kInstructions];  // descriptors, from the stage's
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Tile::kInstructions; ++i) {
      int const block = i * Tile::kGroup;
      int const place = Tile::kChannelBlocks > 1 ? block * geometry.box_bytes + place_of(params, tap_row, 0)
                                                 : place_of(params, tap_row, block);
      of_input[i] = descriptor(inputs + place, leading);
    }
    Accumulators accumulators;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (auto& each : accumulators[block][i]) each = 0;
      }
    }
    PipelineState state{part, 0};
    int last = -1;
    for (int tile = output.split + part * params.splits; tile < geometry.tiles; tile += Tile::kParts * params.splits) {
      kit::barrier_wait(storage.full(state.index), state.phase);
      uint32_t const stage = storage.stage(state.index);
      uint32_t gradient = descriptor(stage + first_block * geometry.gradient_bytes, 16);
      uint32_t input = stage >> 4 & 0x3fff;  // the address of a CTA in a cluster has its rank above, where `leading` is
      kit::warpgroup_arrive();
#pragma unroll 2
      for (int k = 0; k < geometry.depth; k += kDepth) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Tile::kBlocks; ++block) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Tile::kInstructions; ++i) {
            Mma::fma(accumulators[block][i], gradient + block * (geometry.gradient_bytes >> 4), of_input[i] + input,
                     kLayout, kLayout);
          }
        }
        gradient += kNext;
        input += kNext;
      }
      kit::warpgroup_commit_batch();
      kit::warpgroup_wait<1>();
      if (last >= 0) release(params, storage, output, last);
      last = state.index;
      state.advance(Tile::kParts, geometry.stages);
    }
    kit::warpgroup_wait<0>();
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (auto& each : accumulators[block][i]) kit::warpgroup_fence_operand(each);
      }
    }
    __syncthreads();  // all consumers have read the stages
    int const first_column = Tile::kChannelBlocks > 1 ? 0 : tap_row * Tile::kTapColumns * kBlock;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions; ++i) {
        int const column = first_column + i * Tile::kGroup * kBlock;
        keep(storage, part, (first_block + block) * kBlock, column, accumulators[block][i]);
      }
    }
  }

  /// Release a stage to the CTAs that load it.
  CUTLASS_DEVICE static void release(Params const& params, Storage const& storage, Output const& output, int stage) {
    int const lane = threadIdx.x % 32;
    if (params.neighbours == 1) {
      if (lane == 0) kit::barrier_arrive(storage.empty(stage));
    } else if (lane < params.neighbours) {
      kit::barrier_arrive_cluster(kit::set_block_rank(storage.empty(stage), output.rank * params.neighbours + lane));
    }
  }

  /// Wait for all threads of the cluster.
  CUTLASS_DEVICE static void synchronise(Params const& params) {
    if (size_of_cluster(params) > 1) {
      kit::cluster_arrive();
      kit::cluster_wait();
    } else {
      __syncthreads();
    }
  }

  /// Keep the sums of an instruction in shared memory.
  CUTLASS_DEVICE static void keep(
      Storage const& storage, int part, int first_row, int first_column, float const (&sums)[Mma::kPixels / 2]) {
    int const thread = threadIdx.x % kWarpGroup, lane = thread % 32;
    uint32_t const to = storage.sum(part, first_row + thread / 32 * 16 + lane / 4, first_column + lane % 4 * 2);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Mma::kPixels / 8; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint32_t const place = to + (8 * half * (Tile::kClass.sum_columns() + kRowPadding) + 8 * i) * 4;
        kit::store_shared(place, make_float2(sums[4 * i + 2 * half], sums[4 * i + 2 * half + 1]));
      }
    }
  }

  /// Add the sums of all parts of some CTAs, all loaded before the first is added. `place_of` returns the address of a
  /// thread's sum in a CTA.
  template <int Number, class PlaceOf>
  CUTLASS_DEVICE static void add(Storage const& storage, PlaceOf const& place_of, float2 (&sums)[fragment::kRows]) {
    float2 loaded[Number][Tile::kParts][fragment::kRows];
    CUTLASS_PRAGMA_UNROLL
    for (int number = 0; number < Number; ++number) {
      uint32_t const from = place_of(number);
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < Tile::kParts; ++part) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          uint32_t const place = storage.sum(part, i * Lanes::kRows, 0) - storage.stages;
          loaded[number][part][i] = kit::load_cluster(from + place);
        }
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int number = 0; number < Number; ++number) {
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < Tile::kParts; ++part) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          sums[i].x += loaded[number][part][i].x;
          sums[i].y += loaded[number][part][i].y;
        }
      }
    }
  }

  /// Complete the tile together with the other CTAs of the cluster that share it, by the warps of all consumers.
  CUTLASS_DEVICE static void complete(Params const& params, Storage const& storage, Output const& output, int warp) {
    constexpr int kOfBlock = kBlock / kTileColumns, kStrips = Tile::kClass.sum_columns() / kTileColumns;
    constexpr int kTiles = Tile::kFilterBlocks * kBlock / kTileRows * kStrips, kAll = Tile::kConsumers * kWarps;
    typename Sums::Params const& combined = params.combined;
    int const lane = threadIdx.x % 32;
    for (int number = output.rank * kAll + warp; number < kTiles; number += params.ranks * kAll) {
      int const down = number / kStrips, across = number - down * kStrips, block = across / kOfBlock;
      bool const of_taps = Tile::kChannelBlocks == 1;
      int const y = output.tap_row + (of_taps ? block / Tile::kTapColumns : 0);
      int const x = output.tap_column + (of_taps ? block % Tile::kTapColumns : 0);
      int const channel = output.channel + (of_taps ? 0 : block) * kBlock + across % kOfBlock * kTileColumns;
      int const first_row = output.filter + down * kTileRows;
      // A strip without channels is completed, too: its parts of reductions are added.
      bool const is_tap = y < params.taps_high && x < params.taps_wide;
      if (!is_tap || channel >= combined.strips_of_tap() * kTileColumns || first_row >= params.filters) continue;
      float2 sums[fragment::kRows] = {};
      uint32_t const from = storage.sum(0, down * kTileRows + lane % Lanes::kRows,
                                        across * kTileColumns + lane / Lanes::kRows * 2);
      auto const place_of = [&](int rank) {
        return kit::set_block_rank(from, rank * params.neighbours + output.neighbour);
      };
      if (params.ranks == 1) {
        add<1>(storage, [&](int) { return from; }, sums);
      } else if (params.ranks == 2) {
        add<2>(storage, place_of, sums);
      } else {
        for (int rank = 0; rank < params.ranks; rank += kAtATime) {
          add<kAtATime>(storage, [&](int i) { return place_of(rank + i); }, sums);
        }
      }
      int const strip = (y * params.taps_wide + x) * combined.strips_of_tap() + channel / kTileColumns;
      fragment::Tile const tile = combined.tile(first_row / kTileRows, strip);
      int const row = first_row + lane % Lanes::kRows;
      if (combined.splits == 1) {
        Sums::visit(combined, tile, row, sums);
      } else {
        Sums::write(combined, params.sums, output.cluster, tile, row, sums);
      }
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_HPP
