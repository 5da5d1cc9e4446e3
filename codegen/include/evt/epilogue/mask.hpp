#ifndef EVT_EPILOGUE_MASK_HPP
#define EVT_EPILOGUE_MASK_HPP

// Packed bits: element (l, m, n) of the kernel's problem is bit n % 8 of the byte n / 8 of its row. Rows may start at
// any byte address. Lanes::Bits gives the words of a fragment's rows that a lane moves, and the source of their bits.

#include <cstdint>
#include <type_traits>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

template <class Byte>
struct MaskArguments {
  Byte* ptr = nullptr;
  int64_t stride_m = 0;  // in bytes
  int64_t stride_l = 0;
};

/// A word of Bytes bytes of a row. `valid` of its bits, at most all, are inside of the problem.
template <int Bytes>
struct Word {
  using Access = std::conditional_t<
      Bytes == 8, uint64_t, std::conditional_t<Bytes == 4, uint32_t, std::conditional_t<Bytes == 2, uint16_t, uint8_t>>>;
  using Register = std::conditional_t<Bytes == 8, uint64_t, uint32_t>;
  static constexpr int kBits = 8 * Bytes;
  static_assert(sizeof(Access) == Bytes, "the access type must have Bytes bytes");

  CUTLASS_DEVICE static bool is_whole(void const* address, int valid) {
    return valid == kBits && reinterpret_cast<uintptr_t>(address) % Bytes == 0;
  }

  CUTLASS_DEVICE static Register load(uint8_t const* from, int valid) {
    if (valid <= 0) {
      return 0;
    }
    if (is_whole(from, valid)) {
      return *reinterpret_cast<Access const*>(from);
    }
    Register word = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Bytes; ++i) {
      if (i * 8 < valid) {
        word |= Register(from[i]) << (i * 8);
      }
    }
    return word & ~Register(0) >> (8 * int(sizeof(Register)) - valid);
  }

  /// Bits after the last column are zeros. A byte without columns is not written.
  CUTLASS_DEVICE static void store(uint8_t* to, Register word, int valid) {
    if (valid <= 0) {
      return;
    }
    if (is_whole(to, valid)) {
      *reinterpret_cast<Access*>(to) = Access(word);
      return;
    }
    word &= ~Register(0) >> (8 * int(sizeof(Register)) - valid);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Bytes; ++i) {
      if (i * 8 < valid) {
        to[i] = uint8_t(word >> (i * 8));
      }
    }
  }
};

template <class Lanes, class Byte>
struct MaskState : State<Lanes, MaskArguments<Byte>> {
  using State<Lanes, MaskArguments<Byte>>::State;
  using Bits = typename Lanes::Bits;

  CUTLASS_DEVICE Byte* address(int64_t row, int column) const {
    return this->arguments.ptr + this->lanes.batch() * this->arguments.stride_l + row * this->arguments.stride_m +
           column / 8;
  }
  CUTLASS_DEVICE Byte* address(typename Lanes::At const& at, int word) const {
    return address(Bits::row(this->lanes, at, word), Bits::column(this->lanes, at, word));
  }
};

/// Whether lanes exchange the bits of a step at its end.
template <class Bits, class = void>
struct IsOfStep : std::false_type {};
template <class Bits>
struct IsOfStep<Bits, std::void_t<decltype(Bits::kOfStep)>> : std::integral_constant<bool, Bits::kOfStep> {};

/// Store one bit per element: whether the input is not zero.
struct MaskStore {
  using Arguments = MaskArguments<uint8_t>;

  template <class Lanes, bool OfStep = IsOfStep<typename Lanes::Bits>::value>
  struct On : MaskState<Lanes, uint8_t> {
    using Base = MaskState<Lanes, uint8_t>;
    using Base::Base;
    using Bits = typename Base::Bits;

    typename Bits::Held held;  // the bits of a step

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) {
      Bits::put(held, at, Lanes::template convert<bool>(input));
    }

    template <int Rows>
    CUTLASS_DEVICE void end_step(typename Lanes::Step const& step) {
      Bits::template for_each_row<Rows>(this->lanes, step, held, [this](int row, int column, uint32_t word, int valid) {
        Word<Bits::kBytes>::store(this->address(row, column), word, valid);
      });
    }
  };

  template <class Lanes>
  struct On<Lanes, false> : MaskState<Lanes, uint8_t> {
    using Base = MaskState<Lanes, uint8_t>;
    using Base::Base;
    using Bits = typename Base::Bits;

    typename Bits::Held held;  // carries bits between the fragments of a word

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) {
      uint32_t words[Bits::kWords];
      Bits::gather(this->lanes, at, words, held, Lanes::template convert<bool>(input));
      if (Bits::stores(this->lanes, at)) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Bits::kWords; ++i) {
          Word<Bits::kBytes>::store(this->address(at, i), words[i], Bits::valid(this->lanes, at, i));
        }
      }
    }
  };
};

/// A leaf: truth values. Elements outside of the problem are false.
struct MaskLoad {
  using Arguments = MaskArguments<uint8_t const>;

  template <class Lanes>
  struct On : MaskState<Lanes, uint8_t const> {
    using Base = MaskState<Lanes, uint8_t const>;
    using Base::Base;
    using Bits = typename Base::Bits;

    static constexpr bool kOfTile = Bits::kOfTile;

    struct Fetched {
      uint32_t words[Bits::kWordsOfStep];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Bits::kWordsOfStep; ++i) {
        auto const at = Bits::at(step, i);
        int const word = i % Bits::kWords;
        fetched.words[i] = Word<Bits::kBytes>::load(this->address(at, word), Bits::valid(this->lanes, at, word));
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      return Bits::scatter(this->lanes, at, fetched.words);
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_MASK_HPP
