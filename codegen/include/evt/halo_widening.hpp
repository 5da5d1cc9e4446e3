#ifndef EVT_HALO_WIDENING_HPP
#define EVT_HALO_WIDENING_HPP

// What the threads do that load operands of few channels and widen them: see halo_windows.hpp.

#include <cstdint>

#include "evt/halo_taps.hpp"
#include "evt/halo_memory.hpp"
#include "evt/halo_params.hpp"
#include "evt/halo_schedule.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

/// Widen the filters of the thread block's one block of them, each row of taps to a swizzled row of shared memory.
template <class Traits>
CUTLASS_DEVICE void widen_filters(Params<Traits> const& params, Memory const& memory) {
  using Widened = typename Traits::Widened;
  constexpr int kChunks = Traits::kPlaneBytes / kWindowBytes, kOfTap = kFilters * kChunks;
  constexpr int kSwizzle = Traits::kPlaneBytes / kWindowBytes - 1;  // of chunks, by the bits of the address from 7 on
  Narrow<Traits> const& narrow = params.narrow;
  int const filter = Item(params, Part(params).first, 0).filter, chunks = params.taps.number * kOfTap;
  for (int begin = threadIdx.x; begin < chunks; begin += Widened::kInFlight * Traits::kThreads) {
    uint32_t loaded[Widened::kInFlight][4];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Widened::kInFlight; ++i) {
      int const chunk = begin + i * Traits::kThreads, row = filter + chunk / kChunks % kFilters;
      bool const exists = chunk < chunks && row < params.filter_count;
      int const y = exists ? params.taps.tap[chunk / kOfTap].y() : 0;
      int const x = chunk % kChunks * Traits::kStrideWidth;
      auto const from = narrow.b + row * narrow.b_filter + y * narrow.b_row + x * narrow.b_pixel;
      Widened::load(loaded[i], from, narrow.b_pixel, x, exists ? narrow.filter_width : 0);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Widened::kInFlight; ++i) {
      int const chunk = begin + i * Traits::kThreads;
      uint32_t const to = memory.slabs + chunk * kWindowBytes;
      if (chunk < chunks) hopper::store_words(to ^ (to >> 7 & kSwizzle) * kWindowBytes, loaded[i]);
    }
  }
  hopper::fence_async();
}

/// Load the boxes of all tiles, group by group, and widen them: every kWideners-th of them by a warp. The stages are a
/// multiple of kWideners, so that a warp has some to itself, and misses no phase of theirs.
template <class Traits>
CUTLASS_DEVICE void widen_input(Params<Traits> const& params, Memory const& memory, int warp) {
  using Widened = typename Traits::Widened;
  Geometry const& geometry = params.geometry;
  Narrow<Traits> const& narrow = params.narrow;
  Part const part(params);
  Ring ring;
  int const lane = threadIdx.x % 32, chunks = geometry.box_pixels();
  int turn = warp;  // boxes before the warp's next one
  int const next_image = int(narrow.a_image), next_row = params.stride_height * int(narrow.a_row);
  for (int number = part.first; number < params.items; number += part.stride) {
    Item const item(params, number, 0);
    int const first_column = item.column * Traits::kStrideWidth - narrow.pad;
    for (int group = 0; group < params.taps.groups; ++group, ring.skip(1, geometry.input_stages)) {
      if (turn-- > 0) continue;
      turn = kWideners - 1;
      int const first_row = item.row * params.stride_height + int16_t(params.taps.starts[group] >> 16);
      auto const box = narrow.a + item.image * narrow.a_image + first_row * narrow.a_row +
                       int64_t(first_column) * narrow.a_pixel;
      uint32_t const to = memory.stages + ring.slot * geometry.input_stage_bytes;
      for (int begin = 0; begin < chunks; begin += Widened::kInFlight * 32) {
        uint32_t loaded[Widened::kInFlight][4];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Widened::kInFlight; ++i) {
          int const chunk = begin + i * 32 + lane, line = narrow.by_pitch.quotient(chunk);
          int const image = narrow.by_box_rows.quotient(line), row = line - image * geometry.box_rows;
          int const column = (chunk - line * geometry.input_pitch) * Traits::kStrideWidth;
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

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_WIDENING_HPP
