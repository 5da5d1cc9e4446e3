#ifndef EVT_VISITORS_SM100_STORE_HPP
#define EVT_VISITORS_SM100_STORE_HPP

// Packed bits, halves of columns and blocks of columns, for the CUTLASS 3.x kernels of sm100 and sm103: tensors that
// are laid out as those of visitors_3x_mask.hpp, visitors_3x_pair.hpp and visitors_3x_block.hpp. A thread moves what
// belongs to its row.

#include <cstdint>

#include "evt/visitors_3x_block.hpp"
#include "evt/visitors_3x_mask.hpp"
#include "evt/visitors_3x_pair.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

namespace detail {

// The first element of the thread's row, and of its batch, in a tensor with rows.
template <class Arguments, class Tile>
CUTLASS_DEVICE auto row_of(Arguments const& arguments, Tile const& tile) {
  return arguments.ptr + tile.l * arguments.stride_l + tile.m * arguments.stride_m;
}

// A node with arguments and Callbacks(tile, params).
template <class NodeCallbacks, class Args, class Params>
CUTLASS_DEVICE NodeCallbacks make_callbacks(Args const& args, Params const& params) {
  return NodeCallbacks(TileOf<Args>(args), params);
}

template <class Tile_, class Params_>
struct Callbacks : EmptyConsumerStoreCallbacks {
  using Tile = Tile_;
  using Params = Params_;

  Tile tile;
  Params const& params;

  CUTLASS_DEVICE
  Callbacks(Tile const& tile_, Params const& params_) : tile(tile_), params(params_) {}
};

}  // namespace detail

// Writes one bit per element, whether the input is not zero, and passes the input through. The bits behind the last
// column are zeros; no byte without a column is touched.
struct MaskStore : Node<fusion::MaskArguments<uint8_t>> {
  using Node<fusion::MaskArguments<uint8_t>>::Node;

  template <class Tile>
  struct Callbacks : detail::Callbacks<Tile, Params> {
    using detail::Callbacks<Tile, Params>::Callbacks;

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns && FragmentSize % 32 == 0, "a fragment is words of 32 columns");
      cutlass::Array<bool, FragmentSize> const bits = evt::convert_array<bool>(input);
      static_assert(sizeof(bits.raw_data()[0]) == 4, "32 bits are one word");
      uint8_t* const row = detail::row_of(this->params, this->tile) + this->tile.column(step_n) / 8;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize / 32; ++i) {
        store(row + i * 4, uint32_t(bits.raw_data()[i]), this->tile.valid(step_n) - i * 32);
      }
      return input;
    }

   private:
    CUTLASS_DEVICE static void store(uint8_t* to, uint32_t word, int valid) {
      if (valid >= 32 && fusion::detail::is_word_aligned(to)) {
        *reinterpret_cast<uint32_t*>(to) = word;
        return;
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i * 8 < valid) {
          uint32_t const inside = valid >= 32 ? 0xffffffffu : (1u << valid) - 1;
          to[i] = uint8_t((word & inside) >> (i * 8));
        }
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return detail::make_callbacks<Callbacks<TileOf<ConsumerStoreArgs<Args...>>>>(args, *this->params_ptr);
  }
};

// A leaf: the bits as Array<bool>. Elements outside of the problem are false.
struct MaskLoad : Node<fusion::MaskArguments<uint8_t const>> {
  using Node<fusion::MaskArguments<uint8_t const>>::Node;

  template <class Tile>
  struct Callbacks : detail::Callbacks<Tile, Params> {
    using detail::Callbacks<Tile, Params>::Callbacks;
    static_assert(Tile::kColumns % 32 == 0, "a fragment is words of 32 columns");

    uint32_t words[Tile::kTileN / 32];

    CUTLASS_DEVICE void begin() {
      uint8_t const* const row = detail::row_of(this->params, this->tile) + this->tile.n / 8;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kTileN / 32; ++i) {
        words[i] = load(row + i * 4, this->tile.valid(0) - i * 32);
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<bool, FragmentSize> visit(cutlass::Array<ElementAccumulator, FragmentSize> const&,
                                                            int, int, int step_n) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<bool, FragmentSize> bits;
      static_assert(sizeof(bits.raw_data()[0]) == 4, "32 bits are one word");
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize / 32; ++i) {
        bits.raw_data()[i] = words[step_n * (FragmentSize / 32) + i];
      }
      return bits;
    }

   private:
    CUTLASS_DEVICE static uint32_t load(uint8_t const* from, int valid) {
      if (valid >= 32 && fusion::detail::is_word_aligned(from)) {
        return *reinterpret_cast<uint32_t const*>(from);
      }
      uint32_t word = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i * 8 < valid) {
          word |= uint32_t(from[i]) << (i * 8);
        }
      }
      return valid >= 32 ? word : valid > 0 ? word & ((1u << valid) - 1) : 0;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return detail::make_callbacks<Callbacks<TileOf<ConsumerStoreArgs<Args...>>>>(args, *this->params_ptr);
  }
};

namespace detail {

// The place in the fragment of the pairs' column i of the half; that of its partner is Block behind.
template <int Block>
CUTLASS_HOST_DEVICE constexpr int place_of(int i) {
  return i / Block * 2 * Block + i % Block;
}

}  // namespace detail

// Stores a value per pair, converted to Element, at [l, m, j]; passes its input through.
template <class Element, int Block>
struct HalfStore : Node<fusion::HalfArguments<Element*>> {
  using Base = Node<fusion::HalfArguments<Element*>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class Tile>
  struct Callbacks : detail::Callbacks<Tile, Params> {
    using detail::Callbacks<Tile, Params>::Callbacks;

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns && FragmentSize % (2 * Block) == 0, "pairs are within a sub-tile");
      auto const half = evt::convert_array<Element>(evt::generate_array<ElementInput, FragmentSize / 2>(
          [&](int i) -> ElementInput { return input[detail::place_of<Block>(i)]; }));
      Element row[FragmentSize / 2];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize / 2; ++i) {
        row[i] = half[i];
      }
      fusion::detail::store_row(detail::row_of(this->params, this->tile) + this->tile.column(step_n) / 2, row,
                                this->tile.valid(step_n) / 2);
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return detail::make_callbacks<Callbacks<TileOf<ConsumerStoreArgs<Args...>>>>(args, *this->params_ptr);
  }
};

// A leaf: the pair's value, for both of its columns. Elements outside of the problem read as zero.
template <class Element, int Block>
struct HalfLoad : Node<fusion::HalfArguments<Element const*>> {
  using Base = Node<fusion::HalfArguments<Element const*>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class Tile>
  struct Callbacks : detail::Callbacks<Tile, Params> {
    using detail::Callbacks<Tile, Params>::Callbacks;
    static_assert(Tile::kColumns % (2 * Block) == 0, "pairs are within a sub-tile");

    Element row[Tile::kColumns / 2];

    CUTLASS_DEVICE void begin_loop(int, int step_n) {
      fusion::detail::load_row(row, detail::row_of(this->params, this->tile) + this->tile.column(step_n) / 2,
                               this->tile.valid(step_n) / 2);
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(cutlass::Array<ElementAccumulator, FragmentSize> const&,
                                                               int, int, int) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<Element, FragmentSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize / 2; ++i) {
        result[detail::place_of<Block>(i)] = row[i];
        result[detail::place_of<Block>(i) + Block] = row[i];
      }
      return result;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return detail::make_callbacks<Callbacks<TileOf<ConsumerStoreArgs<Args...>>>>(args, *this->params_ptr);
  }
};

// Stores a value per block, converted to Element, at [l, m, n / Width]; passes its input through.
template <class Element, int Width>
struct BlockStore : Node<fusion::BlockArguments<Element>> {
  using Base = Node<fusion::BlockArguments<Element>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class Tile>
  struct Callbacks : detail::Callbacks<Tile, Params> {
    using detail::Callbacks<Tile, Params>::Callbacks;

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns && FragmentSize % Width == 0, "blocks are within a sub-tile");
      Element* const to = detail::row_of(this->params, this->tile) + this->tile.column(step_n) / Width;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize / Width; ++i) {
        if (i * Width < this->tile.valid(step_n)) {
          to[i] = evt::convert<Element>(ElementInput(input[i * Width]));
        }
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return detail::make_callbacks<Callbacks<TileOf<ConsumerStoreArgs<Args...>>>>(args, *this->params_ptr);
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_STORE_HPP
