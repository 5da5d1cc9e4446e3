#ifndef EVT_EPILOGUE_MASK_OWN_HPP
#define EVT_EPILOGUE_MASK_OWN_HPP

// Packed bits in shared memory: the words of the rows of a consumer, each of a block of 64 columns. The warps of a
// consumer of the GEMM kernel join the bits that they store. The threads of a consumer load a word of bits each. If D is
// 0 where bits are not set, words of two rounded elements are masked: selections of single elements wait for predicates.

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
    static constexpr int kPairBytes = 2 * fragment::kWordBytes;  // of two neighbouring rows, a word for each strip

    /// The 2 bytes of the rows of a step: a word has two neighbouring rows.
    struct Fetched {
      uint32_t words[fragment::kRows / 2];
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
        uint32_t const to = words + row_of(i) / 2 * kPairBytes + row_of(i) % 2 * 2;
        CUTLASS_PRAGMA_UNROLL
        for (int strip = 0; strip < Word::kBits / 16; ++strip) {
          kit::store_shared_half(to + 4 * strip, uint32_t(held[i] >> 16 * strip));
        }
      }
      kit::consumer_sync(consumer);
    }

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      int const strip = this->lanes.first_of_strip() % Word::kBits / 16, even = Lanes::place_in_step(0);
      uint32_t const from = kit::computed_here(step.loaded + even / 2 * kPairBytes + strip * 4);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows / 2; ++i) {
        int const pairs = (step.number * fragment::kRows / 2 + i) * Lanes::kRows;
        fetched.words[i] = kit::load_shared_word(from + pairs * kPairBytes);
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      int const row = Lanes::row_number(at);
      return Bits::of_word(this->lanes, at, fetched.words[row / 2] >> row % 2 * 16);
    }

    /// Mask the words of a step: of two rows of the lane's first column, and of the column 8 further, for each pair of rows.
    template <int Elements>
    CUTLASS_DEVICE void mask_words(uint32_t* words, Fetched const& fetched) const {
      // The bits become the signs of bytes: of both columns of the first row, then of the second row.
      int const shift = 7 - this->lanes.tile.first % 8;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Elements / 4; ++i) {
        uint32_t const bits = fetched.words[i] << shift;
        words[2 * i] &= kit::select_bytes(bits, bits, 0xaa88);
        words[2 * i + 1] &= kit::select_bytes(bits, bits, 0xbb99);
      }
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
