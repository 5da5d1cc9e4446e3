#ifndef EVT_KIT_STEP_HPP
#define EVT_KIT_STEP_HPP

// The steps of the epilogue of a block of 64 columns: from the accumulators to a buffer of matrices in shared memory.

#include <algorithm>
#include <cstdint>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/staged.hpp"

namespace evt {
namespace kit {

/// A step of the epilogue: the places of its elements, and the values loaded for them.
template <class Traits>
struct EpilogueStep {
  using Epilogue = typename Traits::Epilogue;
  using Accumulator = typename Traits::Accumulator;
  using Staged = typename Traits::Staged;

  /// Whether D has a column for each pair of columns: a thread has both, and stores the first.
  static constexpr bool kHalf = Traits::kPaired;
  /// Whether a step has 16 columns of a warp's 16 rows, and lanes the rows of WGMMA that is not transposed.
  static constexpr bool kTransposed = fragment::IsTransposed<Epilogue>::value;

  /// The addresses of a lane in a buffer, for elements of each size: see StagedMatrix.
  struct AlignedLane {
    uint32_t of_bytes, of_halves, of_words;

    /// `strip`: 16 columns, or rows of a transposed tile. A warp's number is its strip.
    CUTLASS_DEVICE explicit AlignedLane(uint32_t buffer, int strip = threadIdx.x % kWarpGroup / 32, int half = 0,
                                        typename Staged::Beginnings const& = {})
        : of_bytes(buffer + Staged::template Matrix<uint8_t>::template place<kHalf>(strip, half)),
          of_halves(buffer + (kTransposed ? Staged::template Matrix<uint16_t>::place_of_rows(strip)
                                          : Staged::template Matrix<uint16_t>::template place<kHalf>(strip, half))),
          of_words(buffer + Staged::template Matrix<uint32_t>::template place<kHalf>(strip, half)) {}

    /// The address in a matrix, before the rows of the step are added.
    template <int Matrix>
    CUTLASS_DEVICE uint32_t in() const {
      constexpr int kBytes = Staged::bytes_of(Matrix), kPlace = Staged::place_of(Matrix);
      return (kBytes == 1 ? of_bytes : kBytes == 2 ? of_halves : of_words) + kPlace;
    }
  };

  /// The addresses of a lane's rows in a buffer of unaligned matrices, at the lane's first column of a strip.
  struct UnalignedLane {
    uint32_t rows[std::max(Staged::kLoads, 1)][fragment::kRows];

    CUTLASS_DEVICE explicit UnalignedLane(uint32_t buffer, int strip, int, typename Staged::Beginnings const& beginnings)
        : UnalignedLane(buffer, strip, beginnings, IndicesTo<Staged::kLoads>{}) {}

    /// The address of element i of a step.
    template <int Matrix>
    CUTLASS_DEVICE uint32_t address(int i, int step) const {
      constexpr int kBytes = Staged::template kElementBytes<Matrix>, kPitch = Staged::template kPitch<Matrix>;
      return rows[Matrix][i / 4 * 2 + i % 2] + i / 2 % 2 * 8 * kBytes + step * kStepPixels * kPitch;
    }

   private:
    template <int... Matrices>
    CUTLASS_DEVICE UnalignedLane(
        uint32_t buffer, int strip, typename Staged::Beginnings const& beginnings, Indices<Matrices...>) {
      int const lane = threadIdx.x % 32, column = kStepPixels * strip + lane / 4;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; ++i) {
        int const row = lane % 4 * 2 + i / 2 * 8 + i % 2;
        ((rows[Matrices][i] = buffer + Staged::template kPlace<Matrices> + row * Staged::template kPitch<Matrices> +
                              beginnings.template of<Matrices>(row) + column * Staged::template kElementBytes<Matrices>),
         ...);
      }
    }
  };
  using Lane = std::conditional_t<Staged::kUnaligned, UnalignedLane, AlignedLane>;

  fragment::Places places;
  typename Epilogue::Fetched fetched;
  uint32_t loaded[Staged::kLoadedWords], stored[Staged::kStoredWords];
  uint32_t first[std::max(Staged::kStores, 1)];  // of two elements that are stored in a word

  /// `rows` gives the matrix rows of successive steps. `step` is the step of the buffer's rows, or of the words that a
  /// thread has kept.
  template <class Rows>
  CUTLASS_DEVICE void load(Epilogue const& epilogue, Rows& rows, Lane const& lane, int step, bool is_whole,
                           uint32_t const* kept = nullptr) {
    if constexpr (Epilogue::kPlaces) {
      rows.next(places);
      epilogue.fetch(fetched, places);
    }
    if (kept == nullptr) {
      load_all(IndicesTo<Staged::kLoads>{}, lane, step, is_whole);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Staged::kLoadedWords; ++i) loaded[i] = kept[step * Staged::kLoadedWords + i];
    }
  }

  /// Load the words of whole steps.
  template <int Words>
  CUTLASS_DEVICE static void keep(Lane const& lane, uint32_t (&words)[Words]) {
    EpilogueStep step;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Words / Staged::kLoadedWords; ++i) {
      step.load_all(IndicesTo<Staged::kLoads>{}, lane, i, true);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < Staged::kLoadedWords; ++j) words[i * Staged::kLoadedWords + j] = step.loaded[j];
    }
  }

  /// The elements of the loaded matrices: of C, and of further ones.
  struct Loads {
    EpilogueStep const& step;

    CUTLASS_DEVICE auto operator()(int i) const {
      if constexpr (Staged::kLoads > 0) {
        return further<-1>(i);
      } else {
        return 0.0f;
      }
    }

    template <int Number>
    CUTLASS_DEVICE auto further(int i) const {
      using Element = typename Staged::template Load<Number + 1>;
      uint32_t const* const words = step.loaded + Staged::template kWordsBefore<Number + 1>;
      if constexpr (sizeof(Element) == 2) {
        return i % 2 == 0 ? element::load_first<Element>(words[i / 2]) : element::load_second<Element>(words[i / 2]);
      } else {
        return element::of_word<Element>(words[i]);
      }
    }
  };

  /// The elements of the stored matrices: of D, and of further ones.
  struct Stores {
    EpilogueStep& step;

    template <class Value>
    CUTLASS_DEVICE void operator()(int i, Value value) const {
      if constexpr (Staged::kStores > 0) further<-1>(i, value);
    }

    template <int Number, class Value>
    CUTLASS_DEVICE void further(int i, Value value) const {
      using Element = typename Staged::template Store<Number + 1>;
      if (kHalf && i / 2 % 2 == 1) return;
      uint32_t* const words = step.stored + Staged::template kWordsBefore<Staged::kLoads + Number + 1>;
      uint32_t& first = step.first[Number + 1];
      if constexpr (sizeof(Element) == 4) {
        words[i] = element::to_word<Element>(value);
      } else if (i % 2 == 0) {
        first = element::held<Element>(value);
      } else if constexpr (sizeof(Element) == 1) {  // a word has the four rows of a column
        uint32_t two, &word = words[i / 2 % 2];
        element::store_held<Element>(two, first, value);
        word = i < 4 ? two : word | two << 16;
      } else {
        element::store_held<Element>(words[kHalf ? i / 4 : i / 2], first, value);
      }
    }
  };

  template <int Elements>
  CUTLASS_DEVICE void compute(Epilogue& epilogue, Accumulator const* sums) {
    epilogue.template visit<Elements>([&](int i) { return sums[i]; }, Loads{*this}, Stores{*this}, fetched, places);
    if constexpr (fragment::MasksWords<Epilogue>::value) {
      epilogue.template mask_words<Elements>(stored + Staged::template kWordsBefore<Staged::kLoads>, fetched);
    }
  }

  CUTLASS_DEVICE void store(Lane const& lane, int step, bool is_whole) const {
    store_all(IndicesTo<Staged::kStores>{}, lane, step, is_whole);
  }

 private:
  template <int... Numbers>
  CUTLASS_DEVICE void load_all(Indices<Numbers...>, Lane const& lane, int step, bool is_whole) {
    if constexpr (Staged::kUnaligned) {
      (load_unaligned<Numbers>(lane, step, is_whole), ...);
    } else {
      (load_one<Numbers>(lane, step, is_whole), ...);
    }
  }

  template <int... Numbers>
  CUTLASS_DEVICE void store_all(Indices<Numbers...>, Lane const& lane, int step, bool is_whole) const {
    (store_one<Numbers>(lane, step, is_whole), ...);
  }

  /// Load the elements of an unaligned matrix one by one.
  template <int Number>
  CUTLASS_DEVICE void load_unaligned(Lane const& lane, int step, bool is_whole) {
    uint32_t* const words = loaded + Staged::template kWordsBefore<Number>;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < (is_whole ? fragment::kElements : fragment::kElements / 2); ++i) {
      uint32_t const address = lane.template address<Number>(i, step);
      if constexpr (Staged::template kElementBytes<Number> == 4) {
        words[i] = load_shared_word(address);
      } else {
        uint32_t const half = load_shared_half(address);
        words[i / 2] = i % 2 == 0 ? half : words[i / 2] | half << 16;
      }
    }
  }

  template <int Number>
  CUTLASS_DEVICE void load_one(Lane const& lane, int step, bool is_whole) {
    using Element = typename Staged::template Load<Number>;
    using Matrix = typename Staged::template Matrix<Element>;
    uint32_t const from = lane.template in<Number>(), rows_before = step * kStepPixels * Matrix::kRowBytes;
    uint32_t* const words = loaded + Staged::template kWordsBefore<Number>;
    if constexpr (kTransposed) {
      ldmatrix_rows_x4(reinterpret_cast<uint32_t(&)[4]>(*words), Matrix::address_of_step(from, step));
    } else if constexpr (sizeof(Element) == 2) {
      auto& four = reinterpret_cast<uint32_t(&)[4]>(*words);
      is_whole ? ldmatrix_x4(four, from + rows_before) : ldmatrix_x2(four, from + rows_before);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < (is_whole ? fragment::kElements : fragment::kElements / 2); ++i) {
        uint32_t const address = Matrix::address(from, i) + rows_before;
        words[i] = sizeof(Element) == 4 ? load_shared_word(address) : load_shared_byte(address);
      }
    }
  }

  template <int Number>
  CUTLASS_DEVICE void store_one(Lane const& lane, int step, bool is_whole) const {
    using Element = typename Staged::template Store<Number>;
    using Matrix = typename Staged::template Matrix<Element>;
    constexpr int kNumber = Staged::kLoads + Number;
    uint32_t const to = lane.template in<kNumber>(), rows_before = step * kStepPixels * Matrix::kRowBytes;
    uint32_t const* const words = stored + Staged::template kWordsBefore<kNumber>;
    if constexpr (kTransposed) {
      stmatrix_rows_x4(Matrix::address_of_step(to, step), reinterpret_cast<uint32_t const(&)[4]>(*words));
    } else if constexpr (sizeof(Element) == 2) {
      auto const& four = reinterpret_cast<uint32_t const(&)[4]>(*words);
      if (is_whole) {
        kHalf ? stmatrix_x2(to + rows_before, four) : stmatrix_x4(to + rows_before, four);
      } else {
        kHalf ? stmatrix_x1(to + rows_before, four) : stmatrix_x2(to + rows_before, four);
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < (is_whole ? fragment::kElements : fragment::kElements / 2); ++i) {
        if (kHalf && i / 2 % 2 == 1) continue;
        uint32_t const address = Matrix::address(to, i) + rows_before;
        if constexpr (sizeof(Element) == 4) {
          store_shared(address, words[i]);
        } else {
          store_shared_byte(address, words[i / 2 % 2] >> 8 * (i / 4 * 2 + i % 2));
        }
      }
    }
  }
};

/// Compute the epilogue of Pixels rows of a block. A step's elements are loaded while the Ahead ones before it are
/// computed. `strip`: the warp's 16 columns. `kept`: the words of loaded matrices, or null if the buffer has them.
template <class Traits, int Pixels, int Ahead = 1, class Rows>
CUTLASS_DEVICE void complete(typename Traits::Epilogue& epilogue, Rows rows,
                             typename Traits::Accumulator const* accumulators, uint32_t buffer, int half = 0,
                             int strip = threadIdx.x % kWarpGroup / 32, uint32_t const* kept = nullptr,
                             typename Traits::Staged::Beginnings const& beginnings = {}) {
  constexpr int kSteps = ceil_div(Pixels, kStepPixels);
  auto const is_whole = [](int step) { return (step + 1) * kStepPixels <= Pixels; };
  typename EpilogueStep<Traits>::Lane const lane(buffer, strip, half, beginnings);
  EpilogueStep<Traits> steps[Ahead + 1];
  auto const load = [&](int step) {
    if (step >= kSteps) return;
    steps[step % (Ahead + 1)].load(epilogue, rows, lane, step, is_whole(step), kept);
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
    now.store(lane, step, is_whole(step));
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_STEP_HPP
