#ifndef EVT_VISITORS_2X_MASK_HPP
#define EVT_VISITORS_2X_MASK_HPP

// Packed bits for the CUTLASS 2.x kernels: element (l, m, n) of the kernel's problem is bit n % 8 of the byte n / 8 of
// its row. Rows may start at any byte address.

#include <cstdint>

#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

template <class Byte>
struct MaskArguments {
  Byte* ptr = nullptr;
  int64_t stride_m = 0;  // in bytes
  int64_t stride_l = 0;
};

namespace detail {

// The bytes of a row that hold a fragment's bits.
template <class ThreadMap>
struct MaskTile : Tile<ThreadMap> {
  using Tile<ThreadMap>::Tile;
  using Tile<ThreadMap>::kVector;
  using Tile<ThreadMap>::kLanes;

  static constexpr int kBytes = kVector < 8 ? 1 : kVector / 8;      // that a fragment touches
  static constexpr int kSharers = kVector < 8 ? 8 / kVector : 1;    // lanes whose bits are in one byte
  static_assert(kVector == 1 || kVector == 2 || kVector == 4 || kVector % 8 == 0, "fragments within or of bytes");
  static_assert(kVector <= 32, "a fragment's bits must fit into a word");
  static_assert(kSharers <= kLanes, "a byte is within the lanes of a row");

  CUTLASS_DEVICE int byte(int column) const { return this->n(column) / 8; }
  CUTLASS_DEVICE int shift(int column) const { return kVector < 8 ? this->n(column) % 8 : 0; }

  CUTLASS_DEVICE bool has_byte(int row, int step, int byte) const {
    return this->has_row(row, step) && byte * 8 < this->extent_n;
  }

  template <class Byte>
  CUTLASS_DEVICE Byte* row_of(MaskArguments<Byte> const& arguments, int row, int step) const {
    return arguments.ptr + this->l * arguments.stride_l + this->m(row, step) * arguments.stride_m;
  }
};

}  // namespace detail

// Store one bit per element, whether the input is not zero, and return the input. Bits after the last column are zeros.
// A byte without columns is not written.
template <class ThreadMap>
struct MaskStore : PlainNode<MaskArguments<uint8_t>> {
  using PlainNode<MaskArguments<uint8_t>>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    detail::MaskTile<ThreadMap> tile;
    MaskArguments<uint8_t> const* arguments;

    CUTLASS_DEVICE
    Callbacks(detail::MaskTile<ThreadMap> const& tile_, MaskArguments<uint8_t> const* arguments_)
        : tile(tile_), arguments(arguments_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      using MaskTile = detail::MaskTile<ThreadMap>;
      uint32_t bits = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        bool const inside = tile.n(column) + i < tile.extent_n;
        bits |= uint32_t(inside && evt::convert<bool>(ElementInput(input[i]))) << i;
      }
      bits <<= tile.shift(column);
      CUTLASS_PRAGMA_UNROLL
      for (int mask = 1; mask < MaskTile::kSharers; mask *= 2) {
        bits |= __shfl_xor_sync(0xffffffffu, bits, mask);
      }
      if (tile.lane % MaskTile::kSharers == 0) {
        int const first = tile.byte(column);
        uint8_t* const bytes = tile.row_of(*arguments, row, step);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < MaskTile::kBytes; ++i) {
          if (tile.has_byte(row, step, first + i)) {
            bytes[first + i] = uint8_t(bits >> (8 * i));
          }
        }
      }
      return input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(detail::MaskTile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

// A leaf: the bits as Array<bool>. Elements outside of the problem are false.
template <class ThreadMap>
struct MaskLoad : PlainNode<MaskArguments<uint8_t const>> {
  using PlainNode<MaskArguments<uint8_t const>>::PlainNode;

  static constexpr int Stages = ThreadMap::Stages;

  struct Callbacks : EmptyCallbacks {
    using MaskTile = detail::MaskTile<ThreadMap>;

    MaskTile tile;
    MaskArguments<uint8_t const> const* arguments;
    uint32_t words[Stages][MaskTile::kRows * MaskTile::kColumns];  // the bytes of every fragment of a step

    CUTLASS_DEVICE
    Callbacks(MaskTile const& tile_, MaskArguments<uint8_t const> const* arguments_)
        : tile(tile_), arguments(arguments_) {}

    CUTLASS_DEVICE void begin_step(int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < Stages; ++stage) {  // registers have no dynamic index
        if (stage == step % Stages) {
          load(words[stage], step);
        }
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<bool, FragmentSize> visit(
        int step, int, int column, int fragment, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      uint32_t bits = words[0][fragment];
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 1; stage < Stages; ++stage) {
        if (stage == step % Stages) {
          bits = words[stage][fragment];
        }
      }
      bits >>= tile.shift(column);
      return evt::generate_array<bool, FragmentSize>([&](int i) { return (bits >> i & 1) != 0; });
    }

   private:
    CUTLASS_DEVICE void load(uint32_t (&buffer)[MaskTile::kRows * MaskTile::kColumns], int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < MaskTile::kRows; ++row) {
        uint8_t const* const bytes = tile.row_of(*arguments, row, step);
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < MaskTile::kColumns; ++column) {
          int const first = tile.byte(column);
          uint32_t bits = 0;
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < MaskTile::kBytes; ++i) {
            if (tile.has_byte(row, step, first + i)) {
              bits |= uint32_t(bytes[first + i]) << (8 * i);
            }
          }
          buffer[row * MaskTile::kColumns + column] = bits;
        }
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(detail::MaskTile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_MASK_HPP
