#ifndef EVT_FRAGMENT_MASK_HPP
#define EVT_FRAGMENT_MASK_HPP

// Packed bits in the epilogue of a kernel of ours: column n of a row is bit n % 8 of its byte n / 8. Rows start at any
// address. A warp has 16 columns, which are two bytes of a row: eight lanes have a bit of each.

#include <cstdint>

#include "evt/fragment.hpp"

namespace evt {
namespace fragment {

template <class Byte>
struct MaskParams {
  Byte* pointer;
  int64_t row_stride;  // in bytes
};

/// A warp's bytes of a row: which is the first, and how many the matrix has, at most two.
struct MaskBytes {
  int first;
  int count;

  CUTLASS_DEVICE explicit MaskBytes(Tile const& tile)
      : first(tile.first / 8), count(min((tile.columns + 7) / 8 - tile.first / 8, 2)) {}

  template <class Byte>
  CUTLASS_DEVICE Byte* address(MaskParams<Byte> const& params, int row) const {
    return params.pointer + row * params.row_stride + first;
  }

  /// Whether both bytes are one word that can be moved.
  CUTLASS_DEVICE bool are_word(void const* address) const {
    return count == 2 && reinterpret_cast<uintptr_t>(address) % 2 == 0;
  }
};

struct MaskLoad {
  using Params = MaskParams<uint8_t const>;

  struct Fetched {
    uint16_t rows[kRows];
  };

  Params const& params;
  MaskBytes bytes;
  int shift;

  CUTLASS_DEVICE MaskLoad(Params const& params, Tile const& tile) : params(params), bytes(tile), shift(tile.first % 8) {}

  CUTLASS_DEVICE void fetch(Fetched& fetched, Places const& places) const {
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < kRows; ++row) {
      if (places.rows[row] < 0) continue;
      uint8_t const* const from = bytes.address(params, places.rows[row]);
      if (bytes.are_word(from)) {
        fetched.rows[row] = *reinterpret_cast<uint16_t const*>(from);
      } else {
        fetched.rows[row] = bytes.count > 0 ? from[0] : 0;
        if (bytes.count == 2) fetched.rows[row] |= uint16_t(from[1] << 8);
      }
    }
  }

  CUTLASS_DEVICE bool get(int i, Fetched const& fetched) const {
    return (fetched.rows[row_of(i)] >> (shift + 8 * column_of(i)) & 1) != 0;
  }
};

/// Whether values are not zero. The bits behind the last column are zeros; no byte without a column is touched.
struct MaskStore {
  using Params = MaskParams<uint8_t>;

  Params const& params;
  Tile tile;
  MaskBytes bytes;
  uint32_t rows[kRows];

  CUTLASS_DEVICE MaskStore(Params const& params, Tile const& tile) : params(params), tile(tile), bytes(tile) {}

  template <class Value>
  CUTLASS_DEVICE void put(Value value, int i, Places const& places) {
    uint32_t const byte = own_byte(__ballot_sync(0xffffffffu, value != Value(0) && tile.has(i)));
    uint32_t& row = rows[row_of(i)];
    if (column_of(i) == 0) {
      row = byte;
      return;
    }
    row |= byte << 8;
    if (lane() / 4 != 0 || !places.has(i)) return;
    uint8_t* const to = bytes.address(params, places.row(i));
    if (bytes.are_word(to)) {
      *reinterpret_cast<uint16_t*>(to) = uint16_t(row);
    } else {
      if (bytes.count > 0) to[0] = uint8_t(row);
      if (bytes.count == 2) to[1] = uint8_t(row >> 8);
    }
  }

 private:
  /// The votes of the eight lanes that have this lane's row: every fourth bit.
  CUTLASS_DEVICE static uint32_t own_byte(uint32_t votes) {
    uint32_t bits = votes >> lane() % 4 & 0x11111111u;
    bits = (bits | bits >> 3) & 0x03030303u;
    bits = (bits | bits >> 6) & 0x000f000fu;
    return (bits | bits >> 12) & 0xffu;
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_MASK_HPP
