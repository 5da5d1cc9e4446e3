#ifndef EVT_VISITORS_3X_MASK_HPP
#define EVT_VISITORS_3X_MASK_HPP

// Packed bits for the CUTLASS 3.x kernels: element (l, m, n) of the kernel's problem is bit n % 8 of the byte n / 8 of
// its row. Rows start at any byte address.
//
// A row's 32 columns are one word: each lane of a quad has two bits of every byte, and one lane moves the word.

#include <cstdint>

#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

template <class Byte>
struct MaskArguments {
  Byte* ptr = nullptr;
  int64_t stride_m = 0;  // in bytes
  int64_t stride_l = 0;
};

namespace detail {

// Sixteen bits of a packed array: a thread's part of 32 columns in two rows, four bits for every eight columns.
template <int Size>
CUTLASS_DEVICE uint32_t get_bits(cutlass::Array<bool, Size> const& bits, int sixteen) {
  constexpr int kStorageBits = 8 * int(sizeof(typename cutlass::Array<bool, Size>::Storage));
  static_assert(kStorageBits == 16 || kStorageBits == 32, "a multiple of sixteen bits");
  constexpr int kPerWord = kStorageBits / 16;
  return uint32_t(bits.raw_data()[sixteen / kPerWord]) >> (sixteen % kPerWord * 16) & 0xffffu;
}

template <int Size>
CUTLASS_DEVICE cutlass::Array<bool, Size> make_bits(uint32_t const (&sixteens)[Size / 16]) {
  using Storage = typename cutlass::Array<bool, Size>::Storage;
  constexpr int kPerWord = int(sizeof(Storage)) / 2;
  cutlass::Array<bool, Size> bits;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Size / 16; i += kPerWord) {
    uint32_t const upper = kPerWord == 2 ? sixteens[i + kPerWord - 1] << 16 : 0;
    bits.raw_data()[i / kPerWord] = Storage(sixteens[i] | upper);
  }
  return bits;
}

// The two bits of every four that belong to a row, as the lowest two bits of every byte.
CUTLASS_DEVICE uint32_t spread(uint32_t bits) {
  bits &= 0x3333u;
  bits = (bits | bits << 8) & 0x00330033u;
  return (bits | bits << 4) & 0x03030303u;
}

CUTLASS_DEVICE uint32_t gather(uint32_t bits) {
  bits &= 0x03030303u;
  bits = (bits | bits >> 4) & 0x00330033u;
  return (bits | bits >> 8) & 0x3333u;
}

// The words of a sub-tile: word u has row u % 2 * 8 and the columns u / 2 * 32..., and is moved by lane u of the quad.
template <class Tile>
struct MaskTile : Tile {
  static constexpr int kWords = Tile::kStepColumns / 32 * 2;
  static_assert(Tile::kStepColumns % 32 == 0 && (kWords == 2 || kWords == 4), "32 or 64 columns");

  CUTLASS_DEVICE explicit MaskTile(Tile const& tile) : Tile(tile) {}

  CUTLASS_DEVICE int word() const { return this->quad_lane() % kWords; }
  CUTLASS_DEVICE int word_row(int step_m) const { return this->row(step_m) + word() % 2 * 8; }
  CUTLASS_DEVICE int word_column(int step_n) const {
    return this->column(step_n) - this->quad_lane() * 2 + word() / 2 * 32;
  }

  template <class Byte>
  CUTLASS_DEVICE Byte* address(MaskArguments<Byte> const& arguments, int step_m, int step_n) const {
    return arguments.ptr + this->l * arguments.stride_l + word_row(step_m) * arguments.stride_m +
           word_column(step_n) / 8;
  }

  // How many of the word's columns are in the problem, not above 32.
  CUTLASS_DEVICE int valid(int step_m, int step_n) const {
    int const columns = this->extent_n - word_column(step_n);
    return word_row(step_m) < this->extent_m ? (columns < 32 ? columns : 32) : 0;
  }
};

template <class Byte>
CUTLASS_DEVICE bool is_word_aligned(Byte const* address) {
  return reinterpret_cast<uintptr_t>(address) % 4 == 0;
}

}  // namespace detail

// Writes one bit per element, whether the input is not zero, and passes the input through. The bits behind the last
// column are zeros; no byte without a column is touched.
struct MaskStore : Node<MaskArguments<uint8_t>> {
  using Node<MaskArguments<uint8_t>>::Node;

  template <class MaskTile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    MaskTile tile;
    Params const& params;

    CUTLASS_DEVICE
    Callbacks(MaskTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == MaskTile::kFragment, "a fragment is a thread's part of a sub-tile");
      constexpr int kWords = MaskTile::kWords;
      cutlass::Array<bool, FragmentSize> const bits = evt::convert_array<bool>(input);
      uint32_t words[kWords];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        words[i] = detail::spread(detail::get_bits(bits, i / 2) >> (i % 2 * 2)) << (tile.quad_lane() * 2);
      }
      // Every lane gives away the words that it does not move.
      CUTLASS_PRAGMA_UNROLL
      for (int mask = kWords / 2; mask > 0; mask /= 2) {
        bool const upper = (tile.quad_lane() & mask) != 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < mask; ++i) {
          uint32_t const mine = upper ? words[i + mask] : words[i];
          uint32_t const other = upper ? words[i] : words[i + mask];
          words[i] = mine | __shfl_xor_sync(0xffffffffu, other, mask);
        }
      }
      if constexpr (kWords == 2) {
        words[0] |= __shfl_xor_sync(0xffffffffu, words[0], 2);
      }
      store(words[0], step_m, step_n);
      return input;
    }

   private:
    CUTLASS_DEVICE void store(uint32_t word, int step_m, int step_n) {
      int const valid = tile.valid(step_m, step_n);
      if (valid <= 0 || tile.quad_lane() >= MaskTile::kWords) {
        return;
      }
      uint8_t* const to = tile.address(params, step_m, step_n);
      if (valid == 32 && detail::is_word_aligned(to)) {
        *reinterpret_cast<uint32_t*>(to) = word;
      } else {
        word &= 0xffffffffu >> (32 - valid);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (i * 8 < valid) {
            to[i] = uint8_t(word >> (i * 8));
          }
        }
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    using MaskTile = detail::MaskTile<cute::remove_cv_t<decltype(tile)>>;
    return Callbacks<MaskTile>(MaskTile(tile), *this->params_ptr);
  }
};

// A leaf: the bits as Array<bool>. Elements outside of the problem are false.
struct MaskLoad : Node<MaskArguments<uint8_t const>> {
  using Node<MaskArguments<uint8_t const>>::Node;

  template <class MaskTile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    MaskTile tile;
    Params const& params;
    uint32_t words[MaskTile::kStepsM * MaskTile::kStepsN];  // that this lane moves, for all sub-tiles

    CUTLASS_DEVICE
    Callbacks(MaskTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    CUTLASS_DEVICE void begin() {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < MaskTile::kStepsM * MaskTile::kStepsN; ++i) {
        words[i] = load(i % MaskTile::kStepsM, i / MaskTile::kStepsM);
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<bool, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n) {
      static_assert(FragmentSize == MaskTile::kFragment, "a fragment is a thread's part of a sub-tile");
      uint32_t const mine = words[step_n * MaskTile::kStepsM + step_m];
      uint32_t bits[MaskTile::kWords / 2] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < MaskTile::kWords; ++i) {
        uint32_t const word = __shfl_sync(0xffffffffu, mine, i, 4);
        bits[i / 2] |= detail::gather(word >> (tile.quad_lane() * 2)) << (i % 2 * 2);
      }
      return detail::make_bits<FragmentSize>(bits);
    }

   private:
    CUTLASS_DEVICE uint32_t load(int step_m, int step_n) {
      int const valid = tile.valid(step_m, step_n);
      if (valid <= 0) {
        return 0;
      }
      uint8_t const* const from = tile.address(params, step_m, step_n);
      if (valid == 32 && detail::is_word_aligned(from)) {
        return *reinterpret_cast<uint32_t const*>(from);
      }
      uint32_t word = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i * 8 < valid) {
          word |= uint32_t(from[i]) << (i * 8);
        }
      }
      return word & 0xffffffffu >> (32 - valid);
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    using MaskTile = detail::MaskTile<cute::remove_cv_t<decltype(tile)>>;
    return Callbacks<MaskTile>(MaskTile(tile), *this->params_ptr);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_MASK_HPP
