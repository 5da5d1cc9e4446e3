#ifndef EVT_HALO_EPILOGUE_HPP
#define EVT_HALO_EPILOGUE_HPP

// A consumer's epilogue of a tile, step by step: from the accumulators to the buffer of C and D.

#include <cstdint>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/halo_taps.hpp"
#include "evt/halo_params.hpp"
#include "evt/halo_schedule.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

/// The pixels of a thread's four rows of a step, one step after the other.
template <class Traits>
struct Pixels {
  Params<Traits> const& params;
  Item const& item;
  int row, column;  // of the tile, of the first of the next 8 pixels that this thread has

  CUTLASS_DEVICE Pixels(Params<Traits> const& params, Item const& item, int first) : params(params), item(item) {
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

  CUTLASS_DEVICE static int place(Params<Traits> const& params, Item const& item, int row, int column) {
    Geometry const& geometry = params.geometry;
    int image = item.image;
    if (geometry.images > 1) {
      image += row / geometry.box_rows;
      row %= geometry.box_rows;
    }
    int const y = item.row + row, x = item.column + column;
    bool const has = row < geometry.rows && column < geometry.columns && y < params.output_height &&
                     x < params.output_width && image < min(item.image + geometry.images, params.images);
    return has ? (image * params.output_height + y) * params.output_width + x : -1;
  }

  CUTLASS_DEVICE void next(fragment::Places& places) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; i += 2) {
      places.rows[i] = place(params, item, row, column);
      int next_row = row, next_column = column + 1;
      wrap(next_row, next_column);
      places.rows[i + 1] = place(params, item, next_row, next_column);
      column += 8;
      wrap(row, column);
    }
  }
};

/// A step of the epilogue: where its elements are, and what is loaded for them.
template <class Traits>
struct EpilogueStep {
  using Epilogue = typename Traits::Epilogue;
  using Accumulator = typename Traits::Accumulator;
  using Source = typename Traits::Source;
  using Destination = typename Traits::Destination;

  fragment::Places places;
  typename Epilogue::Fetched fetched;
  uint32_t words[4];  // of C, then of D

  /// The address of a lane's row of the matrices that ldmatrix and stmatrix move: a pixel, and of its 128 bytes a
  /// swizzled chunk of 16.
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
        hopper::load_matrices(words, from);
      } else {
        hopper::load_two_matrices(words, from);
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
        hopper::store_matrices(to, words);
      } else {
        hopper::store_two_matrices(to, words);
      }
    }
  }
};

/// Compute the epilogue of a tile. A step's elements are loaded while the one before it is computed.
template <class Traits>
CUTLASS_DEVICE void complete(Params<Traits> const& params, Item const& item, typename Traits::Epilogue& epilogue,
                             typename Traits::Accumulator (&accumulators)[Traits::kPixels / 2], uint32_t buffer) {
  uint32_t const address = EpilogueStep<Traits>::address(buffer);
  Pixels<Traits> pixels(params, item, 0);
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

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_EPILOGUE_HPP
