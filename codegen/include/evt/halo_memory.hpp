#ifndef EVT_HALO_MEMORY_HPP
#define EVT_HALO_MEMORY_HPP

// The kernel's shared memory: where everything is, the rings of its buffers, and what is there at the beginning.

#include <cstdint>

#include "evt/halo_taps.hpp"
#include "evt/halo_params.hpp"
#include "evt/halo_schedule.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

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

  CUTLASS_DEVICE Memory(Geometry const& geometry, int consumers, char* storage) {
    stages = (hopper::shared_address(storage) + kAlignment - 1) / kAlignment * kAlignment;
    slabs = stages + geometry.input_stages * geometry.input_stage_bytes;
    epilogues = slabs + aligned_bytes(geometry.filter_stages * geometry.filter_stage_bytes);
    exchange = epilogues + consumers * geometry.epilogue_bytes;
    barriers = exchange + geometry.exchange_bytes;
  }

  CUTLASS_DEVICE uint32_t stage_full(int stage) const { return barriers + 16 * stage; }
  CUTLASS_DEVICE uint32_t stage_empty(int stage) const { return barriers + 16 * stage + 8; }
  CUTLASS_DEVICE uint32_t slab_full(int slab) const { return barriers + 16 * (kMaxInputStages + slab); }
  CUTLASS_DEVICE uint32_t slab_empty(int slab) const { return barriers + 16 * (kMaxInputStages + slab) + 8; }
  CUTLASS_DEVICE uint32_t of_consumers(int which) const {
    return barriers + 16 * (kMaxInputStages + kMaxFilterStages) + 8 * which;
  }
  CUTLASS_DEVICE uint32_t turn(int consumer) const { return of_consumers(consumer); }
  CUTLASS_DEVICE uint32_t source_loaded(int consumer) const { return of_consumers(2 + consumer); }
  CUTLASS_DEVICE uint32_t result_written(int consumer) const { return of_consumers(4 + consumer); }
  CUTLASS_DEVICE uint32_t exchanged() const { return of_consumers(6); }
};

/// A warp of the producer prefetches a map.
template <class Traits>
CUTLASS_DEVICE void prefetch_map(Params<Traits> const& params, int warp) {
  if (!Traits::kWindows && warp == 0) hopper::prefetch_map(params.input);
  if (!Traits::kWindows && warp == 3) hopper::prefetch_map(params.filters);
  if constexpr (Traits::kLoadsSource) {
    if (warp == 1) hopper::prefetch_map(params.source);
  }
  if constexpr (Traits::kStoresDestination && !Traits::kShared) {
    if (warp == 2) hopper::prefetch_map(params.destination);
  }
}

template <class Traits>
CUTLASS_DEVICE void set_up(Params<Traits> const& params, Memory const& memory) {
  Geometry const& geometry = params.geometry;
  int const warp = hopper::warp();
  if (hopper::elect()) {  // all lanes of a warp would initialize barriers one after the other
    prefetch_map(params, warp);
    constexpr int kAllWarps = Traits::kThreads / 32, kWarps = kWarpGroup / 32;
    for (int i = warp; i < geometry.input_stages; i += kAllWarps) {
      hopper::init_barrier(memory.stage_full(i), 1);
      hopper::init_barrier(memory.stage_empty(i), geometry.cooperative ? 2 * kWarps : kWarps);
    }
    for (int i = warp; i < geometry.filter_stages; i += kAllWarps) {
      hopper::init_barrier(memory.slab_full(i), 1);
      hopper::init_barrier(memory.slab_empty(i), kWarps);
      if (Traits::kWindows) hopper::arrive(memory.slab_full(i));  // before anyone waits for it
    }
    if (warp < Traits::kConsumers) hopper::init_barrier(memory.source_loaded(warp), 1);
    if (!Traits::kShared && warp < Traits::kConsumers) {
      hopper::init_barrier(memory.turn(warp), kWarps);
      hopper::init_barrier(memory.result_written(warp), kWarps);
    }
    if (Traits::kShared && warp == 0) {
      Part const part(params);
      hopper::init_barrier(memory.exchanged(), 1);
      int const bytes = geometry.cluster_size * part.quads * kWarpGroup * Traits::kQuadBytes;
      if (bytes > 0) hopper::arrive_and_expect(memory.exchanged(), bytes);
    }
    hopper::fence_barriers();
  }
  if (geometry.guard == 0) return;
  // The pixels after a box, which are read and never loaded.
  int const words = geometry.guard * Traits::kPixelBytes / 4;
  for (int stage = 0; stage < geometry.input_stages; ++stage) {
    uint32_t const end = memory.stages + stage * geometry.input_stage_bytes + geometry.box_pixels() * Traits::kPixelBytes;
    for (int i = threadIdx.x; i < words; i += Traits::kThreads) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(end + i * 4), "r"(0) : "memory");
    }
  }
  hopper::fence_async();
}

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_MEMORY_HPP
