#ifndef EVT_KIT_WGRAD_HPP
#define EVT_KIT_WGRAD_HPP

// The gradient of a convolution's filters for sm90: see plan/geometry/wgrad.py. M of WGMMA are filters, N are channels of
// one tap or of several, k are pixels.
//
// The CTAs of a cluster share a tile of the gradient. Each has sums over some pixels. Two CTAs send each other half of
// their sums, and each completes half of the tile. If several clusters share a tile, they write partial sums, and a
// second kernel adds them and computes the epilogue. A cluster may have several tiles of filters. Their CTAs load the
// same stages of the input together: each loads some of its blocks for all of them, and waits for the consumers of all of
// them to release a stage.
//
// Warp group 0 of the first kernel produces: a thread loads stages by TMA. Other warp groups consume: each has a row of
// taps, some blocks of filters, or some of the tiles of pixels.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_completion.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_multiplication.hpp"
#include "evt/kit/wgrad_params.hpp"
#include "evt/kit/wgrad_pixels.hpp"
#include "evt/kit/wgrad_sums.hpp"
#include "evt/kit/wgrad_windows.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace wgrad {

/// The gradient of filters with an Epilogue of fragment.hpp. Mma has an instruction's channels as kPixels.
template <class Mma, class Epilogue, class Tile>
struct Wgrad {
  using Sums = SplitSums<Epilogue>;
  using Params = WgradParams<Sums>;
  using Storage = WgradStorage<Tile>;
  using Work = WgradWork<Tile>;
  using Output = WgradOutput<Tile>;
  using Consumer = WgradConsumer<Tile>;
  using Stages = std::conditional_t<Tile::kHasWindow, WgradWindows<Tile>, WgradPixels<Tile>>;
  using Multiplication = WgradMultiplication<Tile, Mma>;
  using Completion = WgradCompletion<Tile, Mma, Epilogue>;
  static_assert(Mma::kPixels == Tile::kGroup * kBlock && Mma::kElementBytes == 2, "Mma suits the tile");

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

  static constexpr int MaxThreadsPerBlock = Sums::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 2;
  static constexpr int SharedStorageSize = 0;

#if !defined(EVT_DEVICE_PASS)
  /// The partial sums of an element of the gradient: of each cluster that shares a tile.
  static int splits(Arguments const& arguments) {
    return cluster_of(arguments.problem, Tile::kClass).clusters;
  }

  static int64_t elements(Arguments const& arguments) { return partial_sums(arguments.problem); }
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
    Problem const& problem = arguments.problem;
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
    params.output_height = height.output;
    params.output_width = width.output;
    WgradCluster const cluster = cluster_of(problem, Tile::kClass);
    params.filter_tiles = filter_tiles(problem, Tile::kClass) / cluster.neighbours;
    params.column_tiles = column_tiles(problem, Tile::kClass);
    params.windows_wide = ceil_div(width.taps, Tile::kTapColumns);
    params.outputs = outputs(problem, Tile::kClass) / cluster.neighbours;
    params.neighbours = cluster.neighbours;
    params.ranks = cluster.ranks;
    params.splits = cluster.splits();
    params.streamed = cluster.streamed;
    params.share = share_of(params.outputs, geometry.tiles, cluster);
    params.blocks_of_tap = ceil_div(problem.channels, kBlock);
    params.by_cluster_size = kit::FastDivisor::of(cluster.ctas());
    params.by_outputs = kit::FastDivisor::of(params.outputs);
    params.by_filter_tiles = kit::FastDivisor::of(params.filter_tiles);
    params.by_image_pixels = kit::FastDivisor::of(height.output * width.output);
    params.by_output_width = kit::FastDivisor::of(width.output);
    params.by_blocks_of_tap = kit::FastDivisor::of(params.blocks_of_tap);
    params.by_taps_wide = kit::FastDivisor::of(width.taps);
    params.by_tiles = kit::FastDivisor::of(geometry.tiles);
    params.by_share = kit::FastDivisor::of(params.share);
    params.sums = arguments.sums;
    params.combined.sums = arguments.sums;
    params.combined.splits = cluster.clusters;
    params.combined.rows = rows(arguments);
    params.combined.columns = columns(arguments);
    params.combined.channels = problem.channels;
    params.combined.strips = strips_of(problem);
    params.combined.sharing = sharing_of(params.combined.splits);
    params.combined.streamed = cluster.streamed;
    params.combined.share = params.share;
    params.combined.by_strips = kit::FastDivisor::of(params.combined.strips);
    params.combined.by_strips_of_tap = kit::FastDivisor::of(params.combined.strips_of_tap());
    params.combined.pixel_tiles = geometry.tiles;
    params.combined.filter_tiles = params.filter_tiles;
    params.combined.tile_rows = cluster.neighbours * Tile::kFilterBlocks * kBlock;
    params.combined.tile_strips = Tile::kChannelBlocks * (kBlock / kTileColumns);
    params.combined.c = static_cast<typename Epilogue::Source const*>(arguments.c);
    params.combined.c_stride = arguments.c_stride;
    params.combined.d = static_cast<typename Epilogue::Destination*>(arguments.d);
    params.combined.d_stride = arguments.d_stride;
    params.combined.epilogue = arguments.epilogue;
    params.encoded = Stages::template encode<Mma>(arguments, params);
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
    Sums::complete(params.combined);
#endif
  }

  /// The first kernel.
  struct Multiply {
    static constexpr int MaxThreadsPerBlock = Tile::kThreads;
    static constexpr int SharedStorageSize = kSharedBytes;
    // With three consumers a thread has 128 registers at the launch.
    static constexpr int kProducerRegisters = Tile::kConsumers > 2 ? 32 : 40;
    static constexpr int kConsumerRegisters = Tile::kConsumers > 2 ? 160 : Tile::kConsumers > 1 ? 232 : 240;

#if !defined(EVT_DEVICE_PASS)
    static dim3 get_grid_shape(Params const& params) {
      return dim3((params.streamed > 0 ? params.streamed : params.outputs * params.splits) * params.neighbours);
    }
    static dim3 get_cluster_shape(Params const& params) { return dim3(params.cluster_size()); }
    static dim3 get_block_shape() { return dim3(Tile::kThreads); }
#endif

    CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      if (threadIdx.x == 0) {
        kit::prefetch_tma_descriptor(params.gradient);
        kit::prefetch_tma_descriptor(params.input);
      }
      Storage const storage(params.geometry, shared_memory);
      Work const work(params);
      int const warp = kit::canonical_warp_idx_sync();
      if (warp < kWarps) {
        // A warp initializes the barriers while another one finds the places of the first loads.
        if (warp == 1) initialize(params, storage);
        Output output = work.first_output(params);
        typename Stages::Loads loads(params, work, output);
        if (warp == 0) kit::named_barrier_sync<kInitialized>(64);
        begin(params);
        kit::warpgroup_reg_dealloc<kProducerRegisters>();
        if (warp == 0 && kit::elect_one_sync()) {
          kit::PipelineState state;
          loads.load(params, storage, state);
          while (work.next_output(params, output)) {
            typename Stages::Loads(params, work, output).load(params, storage, state);
          }
          if (params.neighbours > 1) wait_for_releases(params, storage, state);
        }
        __syncwarp();
        if (meets_late(params)) kit::cluster_wait();
      } else {
        Stages::initialize(params, storage);
        kit::named_barrier_sync<0>(kInitializing);
        begin(params);
        kit::warpgroup_reg_alloc<kConsumerRegisters>();
        Output output = work.first_output(params);
        Consumer const consumer(warp / kWarps - 1);
        kit::PipelineState state{consumer.part, 0};
        do {
          typename Multiplication::Sums sums;
          Multiplication::for_each(sums, [](float& sum) { sum = 0; });
          Multiplication::multiply(params, storage, work, output, consumer, state, sums);
          if constexpr (Tile::kParts == 2) Completion::join(storage, consumer, sums);
          if (meets_late(params)) kit::cluster_wait();
          if (params.ranks == 1 && params.combined.splits > 1) {
            Completion::write(params, output, consumer, sums);
          } else {
            Completion::complete(params, storage, work, output, consumer, sums);
          }
        } while (work.next_output(params, output));
      }
#endif
    }

   private:
    /// Whether CTAs need to have started only when they exchange sums.
    CUTLASS_DEVICE static bool meets_late(Params const& params) { return params.ranks > 1 && params.neighbours == 1; }

    // Named barriers: of the consumers, and of the warp that loads.
    static constexpr int kInitialized = 3, kInitializing = Tile::kConsumers * kWarpGroup + 32;

    /// Initialize the barriers, by a warp. Other warps wait at named barriers.
    CUTLASS_DEVICE static void initialize(Params const& params, Storage const& storage) {
      if (kit::elect_one_sync()) {
        CUTLASS_PRAGMA_NO_UNROLL
        for (int stage = 0; stage < params.geometry.stages; ++stage) {
          kit::barrier_init(storage.full(stage), 1);
          kit::barrier_init(storage.empty(stage), kWarps * Tile::kConsumers / Tile::kParts * params.neighbours);
        }
        if (params.ranks > 1) Completion::initialize(storage);
        kit::fence_barrier_init();
      }
      __syncwarp();
      kit::named_barrier_arrive<kInitialized>(64);
      kit::named_barrier_arrive<0>(kInitializing);
    }

    /// Wait until the kernel before has ended, and until the barriers of the CTAs that share stages are initialized.
    CUTLASS_DEVICE static void begin(Params const& params) {
      if (params.cluster_size() > 1) kit::cluster_arrive_relaxed();
      if (params.neighbours > 1) kit::cluster_wait();  // other CTAs load into this one's stages
      pdl::wait_for_kernel_before();
    }

    /// Wait until the consumers of all CTAs have released this CTA's stages: they must not arrive after its end.
    CUTLASS_DEVICE static void wait_for_releases(Params const& params, Storage const& storage, kit::PipelineState state) {
      for (int i = 0; i < params.geometry.stages; ++i) {
        kit::barrier_wait(storage.empty(state.index), state.phase ^ 1);
        state.advance_once(1, params.geometry.stages);
      }
    }
  };
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_HPP
