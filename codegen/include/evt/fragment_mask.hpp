#ifndef EVT_FRAGMENT_MASK_HPP
#define EVT_FRAGMENT_MASK_HPP

// Packed bits in the epilogue of a kernel of ours: column n of a row is bit n % 8 of its byte n / 8. Rows start at any
// address. A warp's strip of 16 or 32 columns is a word of a row, which has a bit of each lane's two columns.

#include <cstdint>
#include <type_traits>

#include "evt/fragment.hpp"

namespace evt {
namespace fragment {

template <class Byte>
struct MaskParams {
  Byte* pointer;
  int64_t row_stride;  // in bytes
};

/// A warp's bytes of a row: which is the first, and how many of them the matrix has.
template <class Lanes>
struct MaskBytes {
  static constexpr int kBytes = Lanes::kStrip / 8;
  using Word = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;
  static_assert(sizeof(Word) == kBytes, "a strip is a word");

  int first;
  int count;

  CUTLASS_DEVICE explicit MaskBytes(Tile const& tile)
      : first(tile.first / Lanes::kStrip * kBytes), count(min((tile.columns + 7) / 8 - first, kBytes)) {}

  template <class Byte>
  CUTLASS_DEVICE Byte* address(MaskParams<Byte> const& params, int row) const {
    return params.pointer + row * params.row_stride + first;
  }

  /// Whether they are one word that can be moved.
  CUTLASS_DEVICE bool are_word(void const* address) const {
    return count == kBytes && reinterpret_cast<uintptr_t>(address) % kBytes == 0;
  }

  CUTLASS_DEVICE Word load(uint8_t const* from) const {
    if (are_word(from)) return *reinterpret_cast<Word const*>(from);
    uint32_t word = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBytes; ++i) {
      if (i < count) word |= uint32_t(from[i]) << 8 * i;
    }
    return Word(word);
  }

  CUTLASS_DEVICE void store(uint8_t* to, uint32_t word) const {
    if (are_word(to)) {
      *reinterpret_cast<Word*>(to) = Word(word);
      return;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBytes; ++i) {
      if (i < count) to[i] = uint8_t(word >> 8 * i);
    }
  }
};

template <class Lanes>
struct MaskLoad {
  using Params = MaskParams<uint8_t const>;
  using Bytes = MaskBytes<Lanes>;

  struct Fetched {
    typename Bytes::Word rows[kRows];
  };

  Params const& params;
  Bytes bytes;
  int shift;

  CUTLASS_DEVICE MaskLoad(Params const& params, Tile const& tile)
      : params(params), bytes(tile), shift(tile.first % Lanes::kStrip) {}

  CUTLASS_DEVICE void fetch(Fetched& fetched, Places const& places) const {
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < kRows; ++row) {
      if (places.rows[row] >= 0) fetched.rows[row] = bytes.load(bytes.address(params, places.rows[row]));
    }
  }

  CUTLASS_DEVICE bool get(int i, Fetched const& fetched) const {
    return (fetched.rows[row_of(i)] >> (shift + Lanes::kDistance * column_of(i)) & 1) != 0;
  }
};

/// Whether values are not zero. The bits behind the last column are zeros; no byte without a column is touched.
template <class Lanes>
struct MaskStore {
  using Params = MaskParams<uint8_t>;

  Params const& params;
  Tile tile;
  MaskBytes<Lanes> bytes;
  uint32_t rows[kRows];

  CUTLASS_DEVICE MaskStore(Params const& params, Tile const& tile) : params(params), tile(tile), bytes(tile) {}

  template <class Value>
  CUTLASS_DEVICE void put(Value value, int i, Places const& places) {
    uint32_t const bits = own_bits(__ballot_sync(0xffffffffu, value != Value(0) && tile.has(i)));
    uint32_t& row = rows[row_of(i)];
    if (column_of(i) == 0) {
      row = bits;
      return;
    }
    row |= bits << Lanes::kDistance;
    if (lane() / Lanes::kRows == 0 && places.has(i)) bytes.store(bytes.address(params, places.row(i)), row);
  }

 private:
  /// The votes of the lanes that have this lane's row, where the first of their columns are in the word.
  CUTLASS_DEVICE static uint32_t own_bits(uint32_t votes) {
    votes >>= lane() % Lanes::kRows;
    if constexpr (Lanes::kDistance == 1) {
      static_assert(Lanes::kRows == 2, "every second bit is a lane of this row, and a first column");
      return votes & 0x55555555u;
    } else {
      static_assert(Lanes::kRows == 4 && Lanes::kDistance == 8, "every fourth bit is a lane of this row");
      uint32_t bits = votes & 0x11111111u;
      bits = (bits | bits >> 3) & 0x03030303u;
      bits = (bits | bits >> 6) & 0x000f000fu;
      return (bits | bits >> 12) & 0xffu;
    }
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_MASK_HPP
