#ifndef EVT_EPILOGUE_MASK_OWN_HPP
#define EVT_EPILOGUE_MASK_OWN_HPP

// Packed bits in shared memory: the words of the rows of a consumer, each of a block of 64 columns. The warps of a
// consumer of the GEMM kernel join the bits that they store. The threads of a consumer load a word of bits each.

#include <cstdint>

#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/mask.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace own {

/// MaskStore for parts of rows. A warp has 2 bytes of a row, and such stores take L2 as long as stores of whole sectors.
/// Each warp writes its bytes to shared memory. The consumer's threads store the word of a row each.
struct JoinedMaskStore {
  using Arguments = epilogue::MaskStore::Arguments;

  template <class Lanes>
  struct On : epilogue::MaskStore::On<Lanes> {
    using Base = epilogue::MaskStore::On<Lanes>;
    using Base::Base;
    using Bits = typename Base::Bits;
    using Word = epilogue::Word<fragment::kWordBytes>;
    static_assert(Bits::kBytes == 2, "a strip has 2 bytes of a row");

    template <int Rows>
    CUTLASS_DEVICE void end_step(typename Lanes::Step const& step) {
      int const byte = this->lanes.first_of_strip() % Word::kBits / 8;
      Bits::template for_each_row<Rows>(this->lanes, step, this->held, [&](int row, int, uint32_t word, int) {
        kit::store_shared_half(step.words + row * fragment::kWordBytes + byte, word);
      });
    }

    /// Store the words of a part's rows. All threads of the consumer call it.
    CUTLASS_DEVICE void end_part(fragment::PartOfRows const& part) {
      kit::consumer_sync(part.consumer);
      int const row = part.first + part.thread;
      if (part.thread < part.rows && row < part.end) {
        uint32_t words[2];
        kit::load_shared(words, part.words + part.thread * fragment::kWordBytes);
        int const column = this->lanes.first_of_strip() / Word::kBits * Word::kBits;
        Word::store(this->address(row, column), uint64_t(words[1]) << 32 | words[0],
                    min(this->lanes.end_n() - column, Word::kBits));
      }
      kit::consumer_sync(part.consumer);  // warps write the next part's bits
    }
  };
};

/// MaskLoad for a tile. A warp needs 2 bytes of a row. A thread loads the word of a row for all warps, before the
/// consumer multiplies, and keeps it in shared memory, before the consumer completes the tile.
struct TileMaskLoad {
  using Arguments = epilogue::MaskLoad::Arguments;

  template <class Lanes>
  struct On : epilogue::MaskState<Lanes, uint8_t const> {
    using Base = epilogue::MaskState<Lanes, uint8_t const>;
    using Base::Base;
    using Bits = typename Base::Bits;
    using Word = epilogue::Word<fragment::kWordBytes>;
    static_assert(Bits::kBytes == 2, "a strip has 2 bytes of a row");
    static constexpr int kThreads = 128, kHeld = (Lanes::kTileRows + kThreads - 1) / kThreads;

    /// The 2 bytes of the rows of a step.
    struct Fetched {
      uint32_t words[fragment::kRows];
    };

    uint64_t held[kHeld];  // the words of a thread's rows, if they are whole

    /// Load the words. `place_of(i)` gives the matrix row of a row of the tile, -1 outside of the matrix.
    template <class PlaceOf>
    CUTLASS_DEVICE void begin_tile(PlaceOf const& place_of) {
      bool const whole = is_whole();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        int const place = place_of_row(place_of, i);
        held[i] = kit::load_global(this->address(place, column()), whole && place >= 0);
      }
    }

    /// Keep the words in shared memory. All threads of the consumer call it.
    template <class PlaceOf>
    CUTLASS_DEVICE void keep_tile(PlaceOf const& place_of, uint32_t words, int consumer) {
      if (!is_whole()) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kHeld; ++i) {
          int const place = place_of_row(place_of, i), valid = min(this->lanes.end_n() - column(), Word::kBits);
          held[i] = Word::load(this->address(place, column()), place >= 0 ? valid : 0);
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (row_of(i) >= Lanes::kTileRows) continue;
        uint32_t const halves[2] = {uint32_t(held[i]), uint32_t(held[i] >> 32)};
        kit::store_shared(words + row_of(i) * fragment::kWordBytes, halves);
      }
      kit::consumer_sync(consumer);
    }

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      int const byte = this->lanes.first_of_strip() % Word::kBits / 8;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; ++i) {
        int const row = step.number * Lanes::kStepRows + Lanes::place_in_step(i);
        fetched.words[i] = kit::load_shared_half(step.loaded + row * fragment::kWordBytes + byte);
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      return Bits::of_word(this->lanes, at, fetched.words[Lanes::row_number(at)]);
    }

   private:
    CUTLASS_DEVICE static int row_of(int i) { return threadIdx.x % kThreads + i * kThreads; }
    template <class PlaceOf>
    CUTLASS_DEVICE static int place_of_row(PlaceOf const& place_of, int i) {
      return row_of(i) < Lanes::kTileRows ? place_of(row_of(i)) : -1;
    }

    /// The first column of the words.
    CUTLASS_DEVICE int column() const { return this->lanes.first_of_strip() / Word::kBits * Word::kBits; }

    /// Whether the words of all rows are whole, so that a load needs no branch: the compiler would wait for it there.
    CUTLASS_DEVICE bool is_whole() const {
      return this->lanes.end_n() - column() >= Word::kBits && this->arguments.stride_m % fragment::kWordBytes == 0 &&
             reinterpret_cast<uintptr_t>(this->address(0, column())) % fragment::kWordBytes == 0;
    }
  };
};

}  // namespace own
}  // namespace evt

#endif  // EVT_EPILOGUE_MASK_OWN_HPP
