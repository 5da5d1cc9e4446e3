#ifndef EVT_KIT_STEP_HPP
#define EVT_KIT_STEP_HPP

// The steps of the epilogue of a block of 64 columns: from the accumulators to a buffer of C and D in shared memory.

#include <cstdint>
#include <type_traits>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

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

  /// Whether D has a column for each pair of columns: a thread has both, and stores the first.
  static constexpr bool kHalf = Traits::kPaired;
  /// Whether D has elements of 8 bits. A word has the four rows of a column then.
  static constexpr bool kBytes = sizeof(std::conditional_t<std::is_void_v<Destination>, element::bf16, Destination>) == 1;
  /// Whether TMA swizzles the chunks of a row: if it has 64 columns.
  static constexpr bool kSwizzled = Traits::kEpilogueRow % kFilters == 0;

  /// The address of a lane's row of the matrices that ldmatrix and stmatrix move: a chunk of 16 bytes of a pixel's, which
  /// may be swizzled. A strip of 16 columns has two chunks; a warp's number is its strip. A D with half the columns has one
  /// chunk of a strip for each `half`. Bytes are stored one by one: a strip has a chunk, and a lane a column of it.
  CUTLASS_DEVICE static uint32_t address(uint32_t buffer, int strip = threadIdx.x % kWarpGroup / 32, int half = 0) {
    int const lane = threadIdx.x % 32;
    if constexpr (kBytes) {
      int const quad = lane % 4;
      return buffer + 2 * quad * Traits::kEpilogueRow + chunk(strip, quad) * 16 + 8 * half + lane / 4;
    }
    if constexpr (kHalf) return buffer + lane % 16 * Traits::kEpilogueRow + chunk(2 * strip + half, lane % 8) * 16;
    return buffer + (lane % 8 + lane / 16 * 8) * Traits::kEpilogueRow + chunk(2 * strip + lane / 8 % 2, lane % 8) * 16;
  }

  CUTLASS_DEVICE static constexpr int chunk(int number, int row) { return kSwizzled ? number ^ row : number; }

  /// `rows` gives the matrix rows of successive steps.
  template <class Rows>
  CUTLASS_DEVICE void load(Epilogue const& epilogue, Rows& rows, uint32_t from, bool is_whole) {
    if constexpr (Epilogue::kPlaces) {
      rows.next(places);
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
        if (kHalf && i / 2 % 2 == 1) return;
        if (i % 2 == 0) {
          first = value;
        } else if constexpr (kBytes) {
          uint32_t two, &word = words[i / 2 % 2];
          element::store_two(Destination{}, two, first, value);
          word = i < 4 ? two : word | two << 16;
        } else {
          element::store_two(Destination{}, words[kHalf ? i / 4 : i / 2], first, value);
        }
      }
    };
    epilogue.template visit<Elements>([&](int i) { return sums[i]; }, source, store, fetched, places);
  }

  CUTLASS_DEVICE void store(uint32_t to, bool is_whole) const {
    if constexpr (Traits::kStoresDestination && kBytes) {
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < (kHalf ? 1 : 2); ++column) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < (is_whole ? fragment::kRows : fragment::kRows / 2); ++i) {
          int const row = i / 2 * 8 + i % 2;
          store_shared_byte(to + row * Traits::kEpilogueRow + 8 * column, words[column] >> 8 * i);
        }
      }
    } else if constexpr (Traits::kStoresDestination) {
      if (is_whole) {
        kHalf ? stmatrix_x2(to, words) : stmatrix_x4(to, words);
      } else {
        kHalf ? stmatrix_x1(to, words) : stmatrix_x2(to, words);
      }
    }
  }
};

/// Compute the epilogue of Pixels rows of a block. A step's elements are loaded while the Ahead ones before it are
/// computed. `strip`: the warp's 16 columns.
template <class Traits, int Pixels, int Ahead = 1, class Rows>
CUTLASS_DEVICE void complete(typename Traits::Epilogue& epilogue, Rows rows,
                             typename Traits::Accumulator const* accumulators, uint32_t buffer, int half = 0,
                             int strip = threadIdx.x % kWarpGroup / 32) {
  constexpr int kSteps = ceil_div(Pixels, kStepPixels);
  auto const is_whole = [](int step) { return (step + 1) * kStepPixels <= Pixels; };
  uint32_t const address = EpilogueStep<Traits>::address(buffer, strip, half);
  EpilogueStep<Traits> steps[Ahead + 1];
  auto const load = [&](int step) {
    if (step >= kSteps) return;
    steps[step % (Ahead + 1)].load(epilogue, rows, address + step * kStepPixels * Traits::kEpilogueRow, is_whole(step));
  };
  CUTLASS_PRAGMA_UNROLL
  for (int step = 0; step < Ahead; ++step) load(step);
  CUTLASS_PRAGMA_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    load(step + Ahead);
    EpilogueStep<Traits>& now = steps[step % (Ahead + 1)];
    auto const* const sums = accumulators + fragment::kElements * step;
    if (is_whole(step)) {
      now.template compute<fragment::kElements>(epilogue, sums);
    } else {
      now.template compute<fragment::kElements / 2>(epilogue, sums);
    }
    now.store(address + step * kStepPixels * Traits::kEpilogueRow, is_whole(step));
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_STEP_HPP
