#ifndef EVT_KIT_KERNEL_HPP
#define EVT_KIT_KERNEL_HPP

// A persistent, warp-specialised kernel for sm90: a main loop, an epilogue, and the roles of the warps.
//
// The product is transposed: M are the filters, N the pixels. Warp group 0 produces. TMA loads the operands (warp 0 the
// input, warp 3 the filters) and moves C and D (warps 1 and 2, one for each consumer). If threads load the input,
// warps 0 to 2 do, and warp 3 moves the tiles of both consumers. Warp groups 1 and 2 consume. By default they are
// pingpong: each has one tile, multiplies while the other computes its epilogue, and passes the tensor cores on by
// ordered barriers. Cooperating consumers share a tile of pixels, each with a block of filters. Filters stay in
// shared memory where they fit; a CTA then keeps to one block of 64 filters.
//
// With groups, a work tile has the filters of some groups, and multiplies their channels only.
//
// For few tiles of many channels, the CTAs of a cluster share each tile, in a separate kernel. A CTA then has one tile
// and one consumer. It multiplies some blocks of channels, sends its partial sums to the CTAs that complete them, and
// completes some pixels itself. The order of addition is fixed.
//
// geometry.hpp decides tiles, pipeline stages and schedule: it is evt.plan.geometry, written as C++. taps.hpp orders
// taps, params.hpp makes the kernel's parameters, scheduler.hpp gives a CTA its work tiles, storage.hpp places
// pipelines (pipeline.hpp) in shared memory. mainloop.hpp and mainloop_*.hpp are main loops,
// epilogue.hpp completes a tile, and cluster.hpp a shared one. sm90.hpp and descriptor.hpp have the instructions.

#include <cstdint>

#include <cuda_runtime.h>

#include "evt/fragment.hpp"
#include "evt/kit/cluster.hpp"
#include "evt/kit/epilogue.hpp"
#include "evt/kit/params.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/scheduler.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/storage.hpp"
#include "evt/kit/traits.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace kit {

/// A Mainloop, as mainloop.hpp describes it, with an Epilogue of fragment.hpp. Shared: the CTAs of a cluster share
/// tiles. ByImages: a tile has pixels of one image. Taps: of a filter stage, if they are known. Stored: the elements
/// that a thread stores at a time where TMA cannot store D. Planar: the one matrix of the epilogue is D, whose filters
/// are planes of an image.
template <class Mainloop, class Epilogue, bool Shared = false, bool ByImages = false, int Taps = 0, int Stored = 0,
          bool Planar = false>
struct Kernel {
  using Traits = KernelTraits<Mainloop, Epilogue, Shared, ByImages, Taps, Stored, Planar>;
  using Arguments = kit::Arguments<Traits>;
  using Params = kit::Params<Traits>;

  static constexpr int MaxThreadsPerBlock = Traits::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static constexpr int SharedStorageSize = kSharedBytes;

#if !defined(EVT_DEVICE_PASS)
  static bool can_implement(Arguments const& arguments) { return kit::can_implement(flattened(arguments)); }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    return kit::to_underlying_arguments(flattened(arguments));
  }

  static fragment::Tiles tiles(Arguments const& arguments) { return kit::tiles(flattened(arguments)); }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const& params) { return dim3(params.geometry.cluster_size); }
  static dim3 get_block_shape() { return dim3(Traits::kThreads); }
#endif

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SharedStorage const storage(params.geometry, Traits::kConsumers, shared_memory);
    int const group = canonical_warp_idx_sync() / (kWarpGroup / 32);
    initialize(params, storage);
    if constexpr (Mainloop::kLoadsByThreads) Mainloop::arrange(params, storage);
    __syncthreads();
    if constexpr (Shared) cluster_arrive_relaxed();
    pdl::wait_for_kernel_before();
    if (group == 0) {
      if constexpr (!Shared) warpgroup_reg_dealloc<Mainloop::kProducerRegisters>();
      produce(params, storage);
    } else {
      if constexpr (!Shared) warpgroup_reg_alloc<Mainloop::kConsumerRegisters>();
      consume(params, storage, group - 1);
    }
#endif
  }

 private:
  /// Load operands and C, and store D.
  CUTLASS_DEVICE static void produce(Params const& params, SharedStorage const& storage) {
    int const warp = canonical_warp_idx_sync();
    if constexpr (Mainloop::kLoadsByThreads) Mainloop::load(params, storage, warp);
    if constexpr (Traits::kKeepsZeros) {
      if (warp == 1 || warp == 2) return move_tiles(params, storage, warp - 1, false);  // by all lanes
    }
    if (elect_one_sync()) {
      if constexpr (!Mainloop::kLoadsByThreads) Mainloop::load(params, storage, warp);
      if constexpr (Shared && Traits::kLoadsSource) {
        if (warp == 1) load_source(params, storage);
      }
      if constexpr (Mainloop::kLoadsByThreads && Traits::kStaged) {
        if (warp == 3) move_tiles(params, storage, 0, true);
      } else if constexpr (!Shared && Traits::kStaged) {
        if (warp == 1 || warp == 2) move_tiles(params, storage, warp - 1, false);
      }
    }
  }

  template <int Words>
  CUTLASS_DEVICE static void copy(uint64_t (&to)[Words], uint64_t const (&from)[Words]) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Words; ++i) to[i] = from[i];
  }

  /// Multiply and complete the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, SharedStorage const& storage, int consumer) {
    Geometry const& geometry = params.geometry;
    CtaWork const work(params);
    if constexpr (Mainloop::kFiltersByThreads) {
      Mainloop::prepare(params, storage, threadIdx.x - kWarpGroup);
      consumers_sync();
    }
    int const taps = geometry.taps_per_stage;
    constexpr bool kVaries = Traits::kVolume || Traits::kResidues;  // the stages of a tile
    TileWork part = work.of_tile(params, work.first);
    PipelineState input, filters;
    if (geometry.cooperative) {
      filters.index = consumer;
    } else if (consumer == 1) {
      if (threadIdx.x % 32 == 0) barrier_arrive(storage.order(0));
      input.advance(part.input_stages, geometry.input_stages);
      if (!geometry.resident) filters.advance(part.filter_stages, geometry.filter_stages);
    }
    uint32_t phase = 0;
    ConsumerWork const tiles(params, work, consumer);
    auto const columns_of_tile = [&](WorkTile const& tile) {
      return columns_of(params, tile, tile.tile * geometry.cluster_size + work.rank);
    };
    // The words of packed bits that this thread has loaded for the next tile.
    [[maybe_unused]] uint64_t held[ceil_div(Traits::kPixels, kWarpGroup)];
    auto const load_bits = [&](int number) {
      if constexpr (Traits::kLoadsBits) {
        if (number >= params.work_tiles) return;
        WorkTile const tile(params, number, consumer);
        Epilogue epilogue(params.epilogue, columns_of_tile(tile));
        epilogue.begin_tile(Pixels<Traits>(params, tile, 0).places());
        copy(held, epilogue.held());
      }
    };
    load_bits(tiles.first);
    for (int number = tiles.first; number < params.work_tiles; number += tiles.stride, phase ^= 1) {
      WorkTile const tile(params, number, consumer);
      if constexpr (kVaries) part = work.of_tile(params, number);
      if (Traits::kVolume && !Shared && geometry.resident) {
        filters.index += part.blocks.first * params.taps.number / taps * (geometry.cooperative ? 2 : 1);
      }
      int const thread = threadIdx.x % kWarpGroup;
      fragment::Tile const columns = columns_of_tile(tile);
      Epilogue epilogue(params.epilogue, columns);
      typename Traits::Accumulator accumulators[Traits::kPixels / 2];
      CUTLASS_PRAGMA_UNROLL
      for (auto& each : accumulators) each = 0;
      if (is_pingpong(params)) barrier_wait(storage.order(consumer), phase);
      switch (taps) {
        case 3: multiply<3>(params, storage, consumer, part, input, filters, accumulators); break;
        case 5: multiply<5>(params, storage, consumer, part, input, filters, accumulators); break;
        default: multiply<1>(params, storage, consumer, part, input, filters, accumulators);
      }
      epilogue.compute_columns();
      if constexpr (Shared) {
        switch (geometry.cluster_size) {
          case 2: exchange_and_complete<2>(params, storage, tile, work, epilogue, accumulators); break;
          case 4: exchange_and_complete<4>(params, storage, tile, work, epilogue, accumulators); break;
          default: exchange_and_complete<kMaxClusterSize>(params, storage, tile, work, epilogue, accumulators);
        }
        epilogue.finish(columns);
        return;
      }
      // Advance beyond the stages of the other consumer's tile.
      int const last = Traits::kResidues && part.input_stages == 0 ? 0 : 1;  // the stage of the tile's last box
      if constexpr (kVaries) part = work.of_tile(params, number + work.stride);
      input.advance(geometry.cooperative ? last : last + part.input_stages, geometry.input_stages);
      if (geometry.resident) {
        filters = {geometry.cooperative ? consumer : 0, 0};
      } else if (!geometry.cooperative) {
        filters.advance(part.filter_stages, geometry.filter_stages);
      }
      if constexpr (Traits::kStaged) barrier_wait(storage.source_loaded(consumer), phase);
      uint32_t const buffer = storage.epilogues + consumer * geometry.epilogue_bytes;
      if constexpr (Traits::kTapRows) {
        Mainloop::complete(params, tile, consumer, buffer, epilogue, accumulators);
      } else {
        Pixels<Traits> pixels(params, tile, 0);
        if constexpr (Traits::kLoadsBits) {
          pixels.loaded = buffer + geometry.epilogue_bytes - Traits::kPixels * fragment::kWordBytes;
          copy(epilogue.held(), held);
          epilogue.keep_tile(pixels.places(), pixels.loaded, consumer);
          load_bits(number + tiles.stride);  // while this tile is completed, and the next one multiplied
        }
        complete<Traits, Traits::kPixels, Traits::kAhead>(epilogue, pixels, accumulators, buffer);
      }
      epilogue.finish(columns);
      if constexpr (Traits::kStored > 0) {
        consumer_sync(consumer);
        if constexpr (Traits::kPlanar) {
          store_planes(params, tile, columns.end, buffer);
        } else {
          store_pixels(params, tile, columns.end, buffer);
        }
      }
      if constexpr (Traits::kStaged) {
        fence_view_async_shared();
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(storage.result_written(consumer));
      }
    }
  }

  template <int Number>
  CUTLASS_DEVICE static void multiply(Params const& params, SharedStorage const& storage, int consumer,
                                      TileWork const& part, PipelineState& input, PipelineState& filters,
                                      typename Traits::Accumulator (&accumulators)[Traits::kPixels / 2]) {
    if constexpr (Traits::kClass.shares(Number)) {
      Mainloop::template multiply<Number>(params, storage, consumer, part, input, filters, accumulators);
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_KERNEL_HPP
