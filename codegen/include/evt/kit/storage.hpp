#ifndef EVT_KIT_STORAGE_HPP
#define EVT_KIT_STORAGE_HPP

// The shared memory of a CTA: its pipelines, the consumers' buffers of C and D, and barriers.

#include <cstdint>

#include "evt/kit/params.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/scheduler.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// Places in shared memory. A stage of `input` is a TMA box of pixels, a stage of `filters` has the filters of some
/// taps.
struct SharedStorage {
  Pipeline<0> input;
  Pipeline<kMaxInputStages> filters;
  uint32_t epilogues, exchange, barriers;

  CUTLASS_DEVICE SharedStorage(Geometry const& geometry, int consumers, char* storage) {
    input.buffers = (cast_smem_ptr_to_uint(storage) + kAlignment - 1) / kAlignment * kAlignment;
    filters.buffers = input.buffers + geometry.input_stages * geometry.input_stage_bytes;
    epilogues = filters.buffers + aligned_bytes(geometry.filter_stages * geometry.filter_stage_bytes);
    exchange = epilogues + consumers * geometry.epilogue_bytes;
    barriers = input.barriers = filters.barriers = exchange + geometry.exchange_bytes;
  }

  /// The ordered barrier at which a consumer waits for its tile.
  CUTLASS_DEVICE uint32_t order(int consumer) const { return of_consumers(consumer); }
  CUTLASS_DEVICE uint32_t source_loaded(int consumer) const { return of_consumers(2 + consumer); }
  CUTLASS_DEVICE uint32_t result_written(int consumer) const { return of_consumers(4 + consumer); }
  /// The barrier of the partial sums that come from the CTAs of the cluster.
  CUTLASS_DEVICE uint32_t exchanged() const { return of_consumers(6); }

 private:
  CUTLASS_DEVICE uint32_t of_consumers(int which) const {
    return barriers + 16 * (kMaxInputStages + kMaxFilterStages) + 8 * which;
  }
};

/// Prefetch the TMA descriptors of C and D.
template <class Traits>
CUTLASS_DEVICE void prefetch_tiles(Params<Traits> const& params, int warp) {
  if constexpr (Traits::kLoadsSource) {
    if (warp == 1) prefetch_tma_descriptor(params.source);
  }
  if constexpr (Traits::kStoresDestination && !Traits::kShared) {
    if (warp == 2) prefetch_tma_descriptor(params.destination);
  }
}

/// Initialize barriers, and the zeros after each box.
template <class Traits>
CUTLASS_DEVICE void initialize(Params<Traits> const& params, SharedStorage const& storage) {
  using Mainloop = typename Traits::Mainloop;
  Geometry const& geometry = params.geometry;
  int const warp = canonical_warp_idx_sync();
  if (elect_one_sync()) {  // all lanes of a warp would initialize barriers one after the other
    Mainloop::prefetch(params, warp);
    prefetch_tiles(params, warp);
    constexpr int kAllWarps = Traits::kThreads / 32, kWarps = kWarpGroup / 32;
    for (int i = warp; i < geometry.input_stages; i += kAllWarps) {
      storage.input.initialize(i, geometry.cooperative ? 2 * kWarps : kWarps, Mainloop::kWords ? kWideners : 1);
    }
    for (int i = warp; i < geometry.filter_stages; i += kAllWarps) {
      storage.filters.initialize(i, kWarps);
      if (Mainloop::kFiltersByThreads) barrier_arrive(storage.filters.full(i));  // before any thread waits for it
    }
    if (warp < Traits::kConsumers) barrier_init(storage.source_loaded(warp), 1);
    if (!Traits::kShared && warp < Traits::kConsumers) {
      barrier_init(storage.order(warp), kWarps);
      barrier_init(storage.result_written(warp), kWarps);
    }
    if (Traits::kShared && warp == 0) {
      CtaWork const work(params);
      barrier_init(storage.exchanged(), 1);
      int const bytes = geometry.cluster_size * work.quads * kWarpGroup * Traits::kQuadBytes;
      if (bytes > 0) arrive_and_expect_tx(storage.exchanged(), bytes);
    }
    fence_barrier_init();
  }
  if (geometry.guard == 0) return;
  int const words = geometry.guard * Traits::kPixelBytes / 4;
  for (int stage = 0; stage < geometry.input_stages; ++stage) {
    uint32_t const box = storage.input.buffers + stage * geometry.input_stage_bytes;
    uint32_t const end = box + geometry.box_pixels() * Traits::kPixelBytes;
    for (int i = threadIdx.x; i < words; i += Traits::kThreads) store_shared(end + i * 4, 0);
  }
  fence_view_async_shared();
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_STORAGE_HPP
