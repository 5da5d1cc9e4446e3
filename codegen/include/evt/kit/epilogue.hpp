#ifndef EVT_KIT_EPILOGUE_HPP
#define EVT_KIT_EPILOGUE_HPP

// The epilogue of a tile: a consumer computes it step by step, from the accumulators to its buffer of C and D. A
// producer warp moves the buffer by TMA.

#include <cstdint>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/params.hpp"
#include "evt/kit/scheduler.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/storage.hpp"

namespace evt {
namespace kit {

/// The pixels of a thread's four rows of a step, for successive steps.
template <class Traits>
struct Pixels {
  Params<Traits> const& params;
  WorkTile const& tile;
  int row, column;  // of the first of this thread's next 8 pixels, in the tile

  CUTLASS_DEVICE Pixels(Params<Traits> const& params, WorkTile const& tile, int first) : params(params), tile(tile) {
    row = first / params.geometry.accumulator_pitch;
    column = first - row * params.geometry.accumulator_pitch + threadIdx.x % 4 * 2;
    wrap(row, column);
  }

  CUTLASS_DEVICE void wrap(int& row, int& column) const {
    while (column >= params.geometry.accumulator_pitch) {
      column -= params.geometry.accumulator_pitch;
      ++row;
    }
  }

  CUTLASS_DEVICE static int place(Params<Traits> const& params, WorkTile const& tile, int row, int column) {
    Geometry const& geometry = params.geometry;
    int image = tile.image;
    if (geometry.images > 1) {
      image += row / geometry.box_rows;
      row %= geometry.box_rows;
    }
    int const y = tile.row + row, x = tile.column + column;
    bool const has = row < geometry.rows && column < geometry.columns && y < params.output_height &&
                     x < params.output_width && image < min(tile.image + geometry.images, params.images);
    return has ? (image * params.output_height + y) * params.output_width + x : -1;
  }

  CUTLASS_DEVICE void next(fragment::Places& places) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; i += 2) {
      places.rows[i] = place(params, tile, row, column);
      int next_row = row, next_column = column + 1;
      wrap(next_row, next_column);
      places.rows[i + 1] = place(params, tile, next_row, next_column);
      column += 8;
      wrap(row, column);
    }
  }
};

/// A step of the epilogue: the places of its elements, and the values loaded for them.
template <class Traits>
struct EpilogueStep {
  using Epilogue = typename Traits::Epilogue;
  using Accumulator = typename Traits::Accumulator;
  using Source = typename Traits::Source;
  using Destination = typename Traits::Destination;

  fragment::Places places;
  typename Epilogue::Fetched fetched;
  uint32_t words[4];  // of C, then of D

  /// The address of a lane's row of the matrices that ldmatrix and stmatrix move: a swizzled chunk of 16 bytes of the
  /// 128 of a pixel.
  CUTLASS_DEVICE static uint32_t address(uint32_t buffer) {
    int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
    return buffer + (lane % 8 + lane / 16 * 8) * Traits::kEpilogueRow + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
  }

  CUTLASS_DEVICE void load(Epilogue const& epilogue, Pixels<Traits>& pixels, uint32_t from, bool is_whole) {
    if constexpr (Epilogue::kPlaces) {
      pixels.next(places);
      epilogue.fetch(fetched, places);
    }
    if constexpr (Traits::kLoadsSource) {
      if (is_whole) {
        ldmatrix_x4(words, from);
      } else {
        ldmatrix_x2(words, from);
      }
    }
  }

  template <int Elements>
  CUTLASS_DEVICE void compute(Epilogue& epilogue, Accumulator const* sums) {
    typename Epilogue::Result first{};
    auto const source = [&](int i) {
      if constexpr (Traits::kLoadsSource) {
        return i % 2 == 0 ? element::load_first<Source>(words[i / 2]) : element::load_second<Source>(words[i / 2]);
      } else {
        return 0.0f;
      }
    };
    auto const store = [&](int i, typename Epilogue::Result value) {
      if constexpr (Traits::kStoresDestination) {
        if (i % 2 == 0) {
          first = value;
        } else {
          element::store_two(Destination{}, words[i / 2], first, value);
        }
      }
    };
    epilogue.template visit<Elements>([&](int i) { return sums[i]; }, source, store, fetched, places);
  }

  CUTLASS_DEVICE void store(uint32_t to, bool is_whole) const {
    if constexpr (Traits::kStoresDestination) {
      if (is_whole) {
        stmatrix_x4(to, words);
      } else {
        stmatrix_x2(to, words);
      }
    }
  }
};

/// Compute the epilogue of a tile. A step's elements are loaded while the one before it is computed.
template <class Traits>
CUTLASS_DEVICE void complete(Params<Traits> const& params, WorkTile const& tile, typename Traits::Epilogue& epilogue,
                             typename Traits::Accumulator (&accumulators)[Traits::kPixels / 2], uint32_t buffer) {
  uint32_t const address = EpilogueStep<Traits>::address(buffer);
  Pixels<Traits> pixels(params, tile, 0);
  EpilogueStep<Traits> steps[2];
  auto const load = [&](int step) {
    steps[step % 2].load(epilogue, pixels, address + step * kStepPixels * Traits::kEpilogueRow,
                        Traits::is_whole(step));
  };
  load(0);
  CUTLASS_PRAGMA_UNROLL
  for (int step = 0; step < Traits::kSteps; ++step) {
    if (step + 1 < Traits::kSteps) load(step + 1);
    EpilogueStep<Traits>& now = steps[step % 2];
    auto const* const sums = accumulators + fragment::kElements * step;
    if (Traits::is_whole(step)) {
      now.template compute<fragment::kElements>(epilogue, sums);
    } else {
      now.template compute<fragment::kElements / 2>(epilogue, sums);
    }
    now.store(address + step * kStepPixels * Traits::kEpilogueRow, Traits::is_whole(step));
  }
}

/// Load C for a CTA that completes steps of a shared tile. The CTA stores D without TMA.
template <class Traits>
CUTLASS_DEVICE void load_source(Params<Traits> const& params, SharedStorage const& storage) {
  CtaWork const work(params);
  if (work.quads <= 0) return;
  WorkTile const tile(params, work.first, 0);
  uint32_t const loaded = storage.source_loaded(0);
  arrive_and_expect_tx(loaded, params.source_bytes);
  tma_load(storage.epilogues, params.source, loaded, tile.filter, tile.column, tile.row, tile.image);
}

/// Store a tile of D from its buffer. The end of the kernel waits for the last stores.
template <class Traits>
CUTLASS_DEVICE void store_tile(Params<Traits> const& params, WorkTile const& tile, uint32_t buffer) {
  Geometry const& geometry = params.geometry;
  if (params.stores_rows) {
    for (int row = 0; row < geometry.rows; ++row) {
      tma_store(params.destination, buffer + row * geometry.accumulator_pitch * Traits::kEpilogueRow, tile.filter,
                tile.column, tile.row + row, tile.image);
    }
  } else {
    tma_store(params.destination, buffer, tile.filter, tile.column, tile.row, tile.image);
  }
  tma_store_arrive();
}

/// Load C and store D in the buffers of one consumer, or of both pingpong consumers.
template <class Traits>
CUTLASS_DEVICE void move_tiles(Params<Traits> const& params, SharedStorage const& storage, int consumer, bool both) {
  Geometry const& geometry = params.geometry;
  CtaWork const work(params);
  ConsumerWork const of_consumer(params, work, consumer);
  int const stride = both ? work.stride : of_consumer.stride, ahead = both ? 2 : 1;
  auto const load = [&](int number, int consumer) {
    if (number >= params.work_tiles) return;
    uint32_t const loaded = storage.source_loaded(consumer);
    if constexpr (Traits::kLoadsSource) {
      WorkTile const tile(params, number, consumer);
      uint32_t const buffer = storage.epilogues + consumer * geometry.epilogue_bytes;
      arrive_and_expect_tx(loaded, params.source_bytes);
      tma_load(buffer, params.source, loaded, tile.filter, tile.column, tile.row, tile.image);
    } else {
      barrier_arrive(loaded);
    }
  };
  for (int i = 0; i < ahead; ++i) load(of_consumer.first + i * stride, consumer + i);
  for (int i = 0, number = of_consumer.first; number < params.work_tiles; ++i, number += stride) {
    int const now = both ? i % 2 : consumer;
    barrier_wait(storage.result_written(now), i / ahead % 2);
    if constexpr (Traits::kStoresDestination) {
      store_tile(params, WorkTile(params, number, now), storage.epilogues + now * geometry.epilogue_bytes);
      tma_store_wait();
    }
    load(number + ahead * stride, now);
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_EPILOGUE_HPP
