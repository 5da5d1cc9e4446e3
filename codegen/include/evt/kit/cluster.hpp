#ifndef EVT_KIT_CLUSTER_HPP
#define EVT_KIT_CLUSTER_HPP

// The epilogue of a tile that the CTAs of a cluster share: they exchange partial sums through distributed shared
// memory, and each completes and stores some of the pixels.

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/fragment.hpp"
#include "evt/kit/epilogue.hpp"
#include "evt/kit/params.hpp"
#include "evt/kit/scheduler.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/storage.hpp"

namespace evt {
namespace kit {

/// Store a warp's 16 columns of a step's D from the buffer: a lane 8 columns of a pixel.
template <class Traits>
CUTLASS_DEVICE void store_step(Params<Traits> const& params, WorkTile const& tile, uint32_t buffer, int step) {
  constexpr int kElements = 8;
  int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
  int const pixel = step * kStepPixels + lane / 2, chunk = 2 * warp + lane % 2;
  int const filter = tile.filter + kElements * chunk, columns = params.filter_count - filter;
  int const row = pixel / params.geometry.accumulator_pitch, column = pixel - row * params.geometry.accumulator_pitch;
  int const place = pixel < Traits::kPixels ? Pixels<Traits>(params, tile, 0).place(row, column) : -1;
  if (place < 0 || columns <= 0) return;
  uint32_t words[4];
  load_shared(words, buffer + pixel * Traits::kEpilogueRow + (chunk ^ pixel % 8) * 16);
  typename Traits::Destination* const to = params.d + place * params.d_stride + filter;
  if (columns >= kElements) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if (i < columns) to[i].bits = uint16_t(words[i / 2] >> i % 2 * 16);
    }
  }
}

/// Send each CTA of the cluster the partial sums of the steps that it completes: a thread sends its quads to the same
/// thread there. Then complete this CTA's steps: add the partial sums of all CTAs, in the order of their ranks.
template <int Blocks, class Traits>
CUTLASS_DEVICE void exchange_and_complete(Params<Traits> const& params, SharedStorage const& storage,
                                          WorkTile const& tile, CtaWork const& work,
                                          typename Traits::Epilogue& epilogue,
                                          typename Traits::Accumulator (&accumulators)[Traits::kPixels / 2]) {
  using Accumulator = typename Traits::Accumulator;
  constexpr int kQuadsOfBlock = 2 * ceil_div(Traits::kSteps, Blocks);
  constexpr int kNextQuad = kWarpGroup * Traits::kQuadBytes, kNextBlock = kQuadsOfBlock * kNextQuad;
  uint32_t const mine = storage.exchange + threadIdx.x % kWarpGroup * Traits::kQuadBytes;
  uint32_t const exchanged = storage.exchanged();
  cluster_wait();  // all CTAs of the cluster have started
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Traits::kQuads; ++i) {
    int const to = i / kQuadsOfBlock;
    uint32_t quad[4];
    // An accumulator's register must not be sent itself: ptxas would serialise WGMMA (C7514).
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) quad[j] = word_of(accumulators[4 * i + j] + Accumulator(0));
    store_async(set_block_rank(mine + work.rank * kNextBlock + i % kQuadsOfBlock * kNextQuad, to), quad,
                       set_block_rank(exchanged, to));
  }
  if (work.quads <= 0) return;
  typename EpilogueStep<Traits>::Lane const lane(storage.epilogues);
  Pixels<Traits> pixels(params, tile, work.first_step * kStepPixels);
  if constexpr (Traits::kLoadsSource) barrier_wait(storage.source_loaded(0), 0);
  EpilogueStep<Traits> now;
  auto const load = [&](int step) {
    now.load(epilogue, pixels, lane, step, Traits::is_whole(step));
  };
  load(work.first_step);
  barrier_wait_cluster(exchanged);
  for (int i = 0; 2 * i < work.quads; ++i) {
    uint32_t words[2][Blocks][4];
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      CUTLASS_PRAGMA_UNROLL
      for (int from = 0; from < Blocks; ++from) {
        load_shared(words[half][from], mine + from * kNextBlock + (2 * i + half) * kNextQuad);
      }
    }
    int const step = work.first_step + i;
    if (i > 0) load(step);
    Accumulator sums[fragment::kElements];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < fragment::kElements; ++j) {
      sums[j] = sum_of<Accumulator>(words[j / 4][0][j % 4]);
      CUTLASS_PRAGMA_UNROLL
      for (int from = 1; from < Blocks; ++from) sums[j] += sum_of<Accumulator>(words[j / 4][from][j % 4]);
    }
    now.template compute<fragment::kElements>(epilogue, sums);
    now.store(lane, step, Traits::is_whole(step));
    if constexpr (Traits::kStoresDestination) {
      __syncwarp();
      store_step(params, tile, storage.epilogues, step);
    }
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_CLUSTER_HPP
