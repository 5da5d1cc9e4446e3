#ifndef EVT_VISITORS_3X_PAIR_HPP
#define EVT_VISITORS_3X_PAIR_HPP

// Pairs of columns, for the CUTLASS 3.x kernels. Block 1 pairs the columns 2j and 2j + 1; Block B (8, 16 or 32) pairs
// column c of an even block of B columns with column c + B, of the block behind it. Both are in one thread's fragment:
// B is at most half of the epilogue tile's columns (64 wide: 32; 32 wide: 16). A value of a pair is held twice, in the
// places of both columns; in memory it is one column of a tensor with half as many columns, column j of pair j:
// c / 2 for Block 1, c / (2 B) * B + c % B for Block B.

#include <cstdint>
#include <cstring>

#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

template <class Pointer>
struct HalfArguments {
  Pointer ptr = nullptr;
  int64_t stride_m = 0;
  int64_t stride_l = 0;
};

namespace detail {

// How far apart in the fragment the columns of a pair are.
template <int Block>
constexpr int pair_distance() {
  static_assert(Block == 1 || Block == 8 || Block == 16 || Block == 32, "pairs of columns or of blocks of 8, 16 or 32");
  return Block == 1 ? 1 : Block / 2;
}

template <int Block, bool Second>
struct Member : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      constexpr int kDistance = pair_distance<Block>();
      static_assert(FragmentSize % (2 * kDistance) == 0, "the epilogue tile is too narrow for the block");
      return evt::generate_array<ElementInput, FragmentSize>(
          [&](int i) -> ElementInput { return input[Second ? i | kDistance : i & ~kDistance]; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    [[maybe_unused]] Tile const tile(args);  // that the fragment is WGMMA's
    return Callbacks{};
  }
};

// A thread's half of the columns of a sub-tile. It has kUnits units; one is kLanes elements (Block 1: one, else two
// neighbours) of one row, and the quad's lanes have the 4 * kLanes neighbours of a row between them. Units are moved
// four at a time: transposed within the quad, so that lane u has all of the fourth unit u.
template <class Tile, int Block>
struct HalfTile : Tile {
  static constexpr int kDistance = pair_distance<Block>();
  static constexpr int kLanes = Block == 1 ? 1 : 2;
  static constexpr int kVector = 4 * kLanes;
  static constexpr int kUnits = Tile::kFragment / 2 / kLanes;
  static constexpr int kRowUnits = kUnits / 2;
  static constexpr int kGroups = kUnits / 4;
  static_assert(kUnits % 4 == 0, "the quad's lanes share the units");
  static_assert(Tile::kStepColumns % (2 * Block) == 0, "pairs are within a sub-tile");

  CUTLASS_DEVICE explicit HalfTile(Tile const& tile) : Tile(tile) {}

  // The first place in the fragment of a unit's pairs.
  CUTLASS_HOST_DEVICE static constexpr int place(int unit) {
    constexpr int kEights = Block == 1 ? 1 : Block / 8;
    int const row = unit / kRowUnits, of_row = unit % kRowUnits;
    int const eight = Block == 1 ? of_row : of_row / kEights * 2 * kEights + of_row % kEights;
    return eight * 4 + row * 2;
  }

  // The unit that this lane moves of a group, its row and its first column among the half.
  CUTLASS_DEVICE int unit(int group) const { return group * 4 + this->quad_lane(); }
  CUTLASS_DEVICE int unit_row(int group, int step_m) const { return this->row(step_m) + unit(group) / kRowUnits * 8; }
  CUTLASS_DEVICE int unit_column(int group, int step_n) const {
    return (this->column(step_n) - this->quad_lane() * 2) / 2 + unit(group) % kRowUnits * kVector;
  }

  // How many of the unit's columns are in the problem; not positive: none.
  CUTLASS_DEVICE int valid(int group, int step_m, int step_n) const {
    return unit_row(group, step_m) < this->extent_m ? this->extent_n / 2 - unit_column(group, step_n) : 0;
  }

  template <class Pointer>
  CUTLASS_DEVICE Pointer address(HalfArguments<Pointer> const& arguments, int group, int step_m, int step_n) const {
    return arguments.ptr + this->l * arguments.stride_l + unit_row(group, step_m) * arguments.stride_m +
           unit_column(group, step_n);
  }
};

// Four rows of words, one lane of the quad for each column: lane i gets what the lanes had in row i.
template <int Words>
CUTLASS_DEVICE void transpose_quad(uint32_t (&rows)[4][Words], int quad_lane) {
  CUTLASS_PRAGMA_UNROLL
  for (int mask = 1; mask <= 2; mask *= 2) {
    bool const upper = (quad_lane & mask) != 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & mask) == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int word = 0; word < Words; ++word) {
          uint32_t const other = upper ? rows[i][word] : rows[i | mask][word];
          uint32_t const received = __shfl_xor_sync(0xffffffffu, other, mask);
          rows[i][word] = upper ? received : rows[i][word];
          rows[i | mask][word] = upper ? rows[i | mask][word] : received;
        }
      }
    }
  }
}

// Elements that are transposed within the quad: of the fourth unit, or lane, first; then of the groups.
template <class Element, int Groups, int Lanes>
struct QuadElements {
  static constexpr int kWords = (Groups * Lanes * int(sizeof(Element)) + 3) / 4;

  Element elements[4][Groups][Lanes];

  CUTLASS_DEVICE void transpose(int quad_lane) {
    uint32_t rows[4][kWords] = {};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::memcpy(rows[i], elements[i], sizeof(elements[i]));
    }
    transpose_quad(rows, quad_lane);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::memcpy(elements[i], rows[i], sizeof(elements[i]));
    }
  }
};

template <int Bytes>
using Chunk = cute::conditional_t<
    Bytes % 16 == 0, uint4,
    cute::conditional_t<Bytes % 8 == 0, uint2, cute::conditional_t<Bytes % 4 == 0, uint32_t, uint8_t>>>;

// As wide as possible where all are valid and the address allows, else one by one.
template <class Element, int Size>
CUTLASS_DEVICE void store_row(Element* to, Element const (&from)[Size], int valid) {
  constexpr int kBytes = Size * int(sizeof(Element));
  using Wide = Chunk<kBytes>;
  if (valid >= Size && reinterpret_cast<uintptr_t>(to) % sizeof(Wide) == 0) {
    Wide chunks[kBytes / sizeof(Wide)];
    std::memcpy(chunks, from, kBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < int(kBytes / sizeof(Wide)); ++i) {
      reinterpret_cast<Wide*>(to)[i] = chunks[i];
    }
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      if (i < valid) {
        to[i] = from[i];
      }
    }
  }
}

template <class Element, int Size>
CUTLASS_DEVICE void load_row(Element (&to)[Size], Element const* from, int valid) {
  constexpr int kBytes = Size * int(sizeof(Element));
  using Wide = Chunk<kBytes>;
  if (valid >= Size && reinterpret_cast<uintptr_t>(from) % sizeof(Wide) == 0) {
    Wide chunks[kBytes / sizeof(Wide)];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < int(kBytes / sizeof(Wide)); ++i) {
      chunks[i] = reinterpret_cast<Wide const*>(from)[i];
    }
    std::memcpy(to, chunks, kBytes);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Size; ++i) {
      to[i] = i < valid ? from[i] : Element(0);
    }
  }
}

}  // namespace detail

// The value of the pair's first, or second, column.
template <int Block>
using Even = detail::Member<Block, false>;

template <int Block>
using Odd = detail::Member<Block, true>;

// Stores a value per pair, converted to Element, at [l, m, j]; passes its input through.
template <class Element, int Block>
struct HalfStore : Node<HalfArguments<Element*>> {
  using Base = Node<HalfArguments<Element*>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class HalfTile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    HalfTile tile;
    Params const& params;

    CUTLASS_DEVICE
    Callbacks(HalfTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == HalfTile::kFragment, "a fragment is a thread's part of a sub-tile");
      constexpr int kLanes = HalfTile::kLanes, kGroups = HalfTile::kGroups;
      auto const kept = evt::convert_array<Element>(evt::generate_array<ElementInput, HalfTile::kUnits * kLanes>(
          [&](int i) -> ElementInput { return input[HalfTile::place(i / kLanes) + i % kLanes]; }));
      detail::QuadElements<Element, kGroups, kLanes> quad;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < HalfTile::kUnits * kLanes; ++i) {
        quad.elements[i / kLanes % 4][i / kLanes / 4][i % kLanes] = kept[i];
      }
      quad.transpose(tile.quad_lane());
      CUTLASS_PRAGMA_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        Element row[HalfTile::kVector];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < HalfTile::kVector; ++i) {
          row[i] = quad.elements[i / kLanes][group][i % kLanes];
        }
        detail::store_row(tile.address(params, group, step_m, step_n), row, tile.valid(group, step_m, step_n));
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    using HalfTile = detail::HalfTile<cute::remove_cv_t<decltype(tile)>, Block>;
    return Callbacks<HalfTile>(HalfTile(tile), *this->params_ptr);
  }
};

// A leaf: the pair's value, for both of its columns. Elements outside of the problem read as zero.
template <class Element, int Block>
struct HalfLoad : Node<HalfArguments<Element const*>> {
  using Base = Node<HalfArguments<Element const*>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class HalfTile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    HalfTile tile;
    Params const& params;
    Element rows[HalfTile::kGroups][HalfTile::kVector];  // of the units that this lane moves

    CUTLASS_DEVICE
    Callbacks(HalfTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    CUTLASS_DEVICE void begin_loop(int step_m, int step_n) {
      CUTLASS_PRAGMA_UNROLL
      for (int group = 0; group < HalfTile::kGroups; ++group) {
        detail::load_row(rows[group], tile.address(params, group, step_m, step_n), tile.valid(group, step_m, step_n));
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int) {
      static_assert(FragmentSize == HalfTile::kFragment, "a fragment is a thread's part of a sub-tile");
      constexpr int kLanes = HalfTile::kLanes, kGroups = HalfTile::kGroups;
      detail::QuadElements<Element, kGroups, kLanes> quad;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < HalfTile::kVector * kGroups; ++i) {
        int const of_row = i % HalfTile::kVector, group = i / HalfTile::kVector;
        quad.elements[of_row / kLanes][group][of_row % kLanes] = rows[group][of_row];
      }
      quad.transpose(tile.quad_lane());
      cutlass::Array<Element, FragmentSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < HalfTile::kUnits * kLanes; ++i) {
        int const unit = i / kLanes, place = HalfTile::place(unit) + i % kLanes;
        Element const value = quad.elements[unit % 4][unit / 4][i % kLanes];
        result[place] = value;
        result[place + HalfTile::kDistance] = value;
      }
      return result;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    using HalfTile = detail::HalfTile<cute::remove_cv_t<decltype(tile)>, Block>;
    return Callbacks<HalfTile>(HalfTile(tile), *this->params_ptr);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_PAIR_HPP
