#ifndef EVT_HALO_PRODUCER_HPP
#define EVT_HALO_PRODUCER_HPP

// What the threads do that move operands and tiles by TMA.

#include <cstdint>

#include "evt/halo_taps.hpp"
#include "evt/halo_memory.hpp"
#include "evt/halo_params.hpp"
#include "evt/halo_schedule.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

/// Load the boxes of all tiles, plane by plane and group by group.
template <class Traits>
CUTLASS_DEVICE void load_input(Params<Traits> const& params, Memory const& memory) {
  Geometry const& geometry = params.geometry;
  Part const part(params);
  Ring ring;
  int const bytes = geometry.box_pixels() * Traits::kPixelBytes;
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
        uint32_t const to = memory.stages + ring.slot * geometry.input_stage_bytes;
        if constexpr (Traits::kVolume) {
          Depth const& depth = params.depth;
          hopper::load_box(to, params.input, full, depth.plane_of_channels(plane) * Traits::kPlane, column, row,
                           depth.input(item.image, plane), depth.volume(item.image));
        } else {
          hopper::load_box(to, params.input, full, plane * Traits::kPlane, column, row, item.image);
        }
        ring.skip(1, geometry.input_stages);
      }
    }
  }
}

/// Load the filters, run by run: once if they stay, else for every tile.
template <class Traits>
CUTLASS_DEVICE void load_filters(Params<Traits> const& params, Memory const& memory) {
  constexpr bool kTransposed = Traits::Mma::kTransposed;
  constexpr int kBytes = Traits::Filters::kBytes;  // of a tap
  Geometry const& geometry = params.geometry;
  Part const part(params);
  Ring ring;
  int const consumers = geometry.cooperative ? 2 : 1;
  for (int number = part.first; number < params.items; number += part.stride) {
    int const filter = Item(params, number, 0).filter, length = geometry.taps_per_stage;
    for (int plane = part.first_plane; plane < part.first_plane + part.planes; ++plane) {
      for (int run = 0; run < params.taps.number; run += length) {
        for (int consumer = 0; consumer < consumers; ++consumer) {
          hopper::wait(memory.slab_empty(ring.slot), ring.parity ^ 1);
          uint32_t const full = memory.slab_full(ring.slot);
          hopper::arrive_and_expect(full, length * kBytes);
          int const channel = (Traits::kVolume ? params.depth.plane_of_channels(plane) : plane) * Traits::kPlane;
          int const first = filter + consumer * kFilters;
          int const along = kTransposed ? first : channel, row = kTransposed ? channel : first;
          for (int i = 0; i < length; ++i) {
            Tap const tap = params.taps.tap[run + i];
            uint32_t const to = memory.slabs + ring.slot * geometry.filter_stage_bytes + i * kBytes;
            if constexpr (Traits::kVolume) {
              int const z = params.depth.tap_of_filters(plane, kTransposed);
              hopper::load_box(to, params.filters, full, along, row, tap.x(), tap.y(), z);
            } else {
              hopper::load_box(to, params.filters, full, along, row, tap.x(), tap.y());
            }
          }
          ring.skip(1, geometry.filter_stages);
        }
      }
    }
    if (geometry.resident) break;
  }
}

/// Load C for a thread block that completes steps of a shared tile, which it stores itself.
template <class Traits>
CUTLASS_DEVICE void load_source(Params<Traits> const& params, Memory const& memory) {
  Part const part(params);
  if (part.quads <= 0) return;
  Item const item(params, part.first, 0);
  uint32_t const loaded = memory.source_loaded(0);
  hopper::arrive_and_expect(loaded, params.source_bytes);
  hopper::load_box(memory.epilogues, params.source, loaded, item.filter, item.column, item.row, item.image);
}

/// Store a tile of D from its buffer. The end of the kernel waits for what is not yet written.
template <class Traits>
CUTLASS_DEVICE void store_tile(Params<Traits> const& params, Item const& item, uint32_t buffer) {
  Geometry const& geometry = params.geometry;
  if (params.stores_rows) {
    for (int row = 0; row < geometry.rows; ++row) {
      hopper::store_box(params.destination, buffer + row * geometry.accumulator_pitch * Traits::kEpilogueRow, item.filter,
                        item.column, item.row + row, item.image);
    }
  } else {
    hopper::store_box(params.destination, buffer, item.filter, item.column, item.row, item.image);
  }
  hopper::commit_stores();
}

/// Load C and store D, in one buffer for a consumer: for the tiles of one, or of both, which take turns.
template <class Traits>
CUTLASS_DEVICE void move_tiles(Params<Traits> const& params, Memory const& memory, int consumer, bool both) {
  Geometry const& geometry = params.geometry;
  Part const part(params);
  ConsumerItems const items(params, part, consumer);
  int const stride = both ? part.stride : items.stride, ahead = both ? 2 : 1;
  auto const load = [&](int number, int consumer) {
    if (number >= params.items) return;
    uint32_t const loaded = memory.source_loaded(consumer);
    if constexpr (Traits::kLoadsSource) {
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
    if constexpr (Traits::kStoresDestination) {
      store_tile(params, Item(params, number, now), memory.epilogues + now * geometry.epilogue_bytes);
      hopper::wait_for_stores_to_read();
    }
    load(number + ahead * stride, now);
  }
}

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_PRODUCER_HPP
