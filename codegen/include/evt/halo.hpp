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
//
// halo_geometry.hpp decides tiles, pipeline stages and schedule: it is evt.plan.geometry, written as C++. halo_taps.hpp orders
// taps, halo_params.hpp makes the kernel's parameters, halo_schedule.hpp gives a CTA its work, halo_memory.hpp places
// it in shared memory. halo_producer.hpp loads; halo_widening.hpp and halo_windows.hpp load few channels;
// halo_mainloop.hpp multiplies; halo_epilogue.hpp completes a tile, and halo_exchange.hpp a shared one.

#include <cstdint>

#include <cuda_runtime.h>

#include "evt/fragment.hpp"
#include "evt/halo_epilogue.hpp"
#include "evt/halo_exchange.hpp"
#include "evt/halo_mainloop.hpp"
#include "evt/halo_memory.hpp"
#include "evt/halo_params.hpp"
#include "evt/halo_producer.hpp"
#include "evt/halo_schedule.hpp"
#include "evt/halo_taps.hpp"
#include "evt/halo_traits.hpp"
#include "evt/halo_widening.hpp"
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
  using Traits = KernelTraits<Mma, Plane, Epilogue, Dimensions, Shared, WindowChannels, StrideWidth>;
  using Arguments = halo::Arguments<Traits>;
  using Params = halo::Params<Traits>;

  static constexpr int MaxThreadsPerBlock = Traits::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static constexpr int SharedStorageSize = kSharedBytes;
  static constexpr int kProducerRegisters = Traits::kWindows ? 104 : 40;
  static constexpr int kConsumerRegisters = Traits::kWindows ? 200 : 232;  // of one consumer the compiler's

  static bool can_implement(Arguments const& arguments) { return halo::can_implement(arguments); }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    return halo::to_underlying_arguments(arguments);
  }

  static fragment::Tiles tiles(Arguments const& arguments) { return halo::tiles(arguments); }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const& params) { return dim3(params.geometry.cluster_size); }
  static dim3 get_block_shape() { return dim3(Traits::kThreads); }

  CUTLASS_DEVICE void operator()(Params const& params, char* storage) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Memory const memory(params.geometry, Traits::kConsumers, storage);
    int const group = hopper::warp() / (kWarpGroup / 32);
    set_up(params, memory);
    if constexpr (Traits::kWindows) {
      pdl::wait_for_kernel_before();
      widen_filters(params, memory);
    }
    __syncthreads();
    if constexpr (Shared) hopper::arrive_in_cluster();
    if constexpr (!Traits::kWindows) pdl::wait_for_kernel_before();
    if (group == 0) {
      if constexpr (!Shared) hopper::give_registers<kProducerRegisters>();
      int const warp = hopper::warp();
      if constexpr (Traits::kWindows) {
        if (warp < kWideners) widen_input(params, memory, warp);
      }
      if (hopper::elect()) {
        if (!Traits::kWindows && warp == 0) load_input(params, memory);
        if (!Traits::kWindows && warp == 3) load_filters(params, memory);
        if constexpr (Shared && Traits::kLoadsSource) {
          if (warp == 1) load_source(params, memory);
        }
        if constexpr (Traits::kWindows && Traits::kStaged) {
          if (warp == 3) move_tiles(params, memory, 0, true);
        } else if constexpr (!Shared && Traits::kStaged) {
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
  /// Multiply and store the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, Memory const& memory, int consumer) {
    Geometry const& geometry = params.geometry;
    Part const part(params);
    int const length = geometry.taps_per_stage;
    int const steps = part.planes * params.taps.number / length;  // of a tile
    int const stages = part.planes * params.taps.groups;          // that a tile takes
    Ring stage, slab;
    if (geometry.cooperative) {
      slab.slot = consumer;
    } else if (consumer == 1) {
      if (threadIdx.x % 32 == 0) hopper::arrive(memory.turn(0));
      stage.advance(stages, geometry.input_stages);
      if (!geometry.resident) slab.advance(steps, geometry.filter_stages);
    }
    uint32_t parity = 0;
    ConsumerItems const items(params, part, consumer);
    for (int number = items.first; number < params.items; number += items.stride, parity ^= 1) {
      Item const item(params, number, consumer);
      int const thread = threadIdx.x % kWarpGroup;
      fragment::Tile const tile{item.filter + thread / 32 * Lanes::kStrip + thread % 32 / Lanes::kRows,
                                params.filter_count, item.tile * geometry.cluster_size + part.rank,
                                item.filter / Lanes::kStrip + thread / 32, strips_of(params.filter_count)};
      Epilogue epilogue(params.epilogue, tile);
      typename Traits::Accumulator accumulators[Traits::kPixels / 2];
      CUTLASS_PRAGMA_UNROLL
      for (auto& each : accumulators) each = 0;
      if (takes_turns(params)) hopper::wait(memory.turn(consumer), parity);
      switch (length) {
        case 3: multiply<3>(params, memory, consumer, part.planes, stage, slab, accumulators); break;
        case 5: multiply<5>(params, memory, consumer, part.planes, stage, slab, accumulators); break;
        default: multiply<1>(params, memory, consumer, part.planes, stage, slab, accumulators);
      }
      if constexpr (Shared) {
        switch (geometry.cluster_size) {
          case 2: exchange_and_complete<2>(params, memory, item, part, epilogue, accumulators); break;
          case 4: exchange_and_complete<4>(params, memory, item, part, epilogue, accumulators); break;
          default: exchange_and_complete<kMaxClusterSize>(params, memory, item, part, epilogue, accumulators);
        }
        epilogue.finish(tile);
        return;
      }
      // On to the consumer's next tile, beyond those that the other one uses in its turn.
      stage.advance(geometry.cooperative ? 1 : 1 + stages, geometry.input_stages);
      if (geometry.resident) {
        slab = {geometry.cooperative ? consumer : 0, 0};
      } else if (!geometry.cooperative) {
        slab.advance(steps, geometry.filter_stages);
      }
      if constexpr (Traits::kStaged) hopper::wait(memory.source_loaded(consumer), parity);
      complete(params, item, epilogue, accumulators, memory.epilogues + consumer * geometry.epilogue_bytes);
      epilogue.finish(tile);
      if constexpr (Traits::kStaged) {
        hopper::fence_async();
        __syncwarp();
        if (thread % 32 == 0) hopper::arrive(memory.result_written(consumer));
      }
    }
  }
};

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_HPP
