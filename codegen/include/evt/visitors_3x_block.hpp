#ifndef EVT_VISITORS_3X_BLOCK_HPP
#define EVT_VISITORS_3X_BLOCK_HPP

// Blocks of Width neighbouring columns (a multiple of 8), aligned to Width, for the CUTLASS 3.x kernels: the blocks of
// block-scaled formats. A block's value is held in the places of all its columns. Width is at most the epilogue tile's.

#include <cstdint>

#include "evt/reduce.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

namespace detail {

template <class Tile, int Width>
struct BlockTile : Tile {
  static_assert(Width % 8 == 0 && Tile::kStepColumns % Width == 0, "blocks of whole quads' columns, within a sub-tile");
  static constexpr int kBlocks = Tile::kStepColumns / Width;
  static constexpr int kValues = 2 * kBlocks;  // of a quad: block i / 2 of row i % 2 * 8

  CUTLASS_DEVICE explicit BlockTile(Tile const& tile) : Tile(tile) {}

  // Whose value the element i of a fragment has.
  CUTLASS_HOST_DEVICE static constexpr int value_of(int i) { return i / 4 / (Width / 8) * 2 + i / 2 % 2; }
};

}  // namespace detail

// Op over the elements of every block, in the input's compute type. Columns outside of the problem take no part.
template <class Op, int Width>
struct BlockReduce : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  template <class BlockTile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    BlockTile tile;

    CUTLASS_DEVICE
    Callbacks(BlockTile const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE auto visit(cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
                              cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == BlockTile::kFragment, "a fragment is a thread's part of a sub-tile");
      using Element = evt::detail::Reduced<ElementInput>;
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      Element totals[BlockTile::kValues];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < BlockTile::kValues; ++i) {
        totals[i] = Op::template identity<Element>();
      }
      tile.for_each_inside(step_n, [&](int i) {
        Element& total = totals[BlockTile::value_of(i)];
        total = Op::apply(total, values[i]);
      });
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < BlockTile::kValues; ++i) {
        totals[i] = reduce_over_lanes<Op, 4>(totals[i]);
      }
      return evt::generate_array<Element, FragmentSize>([&](int i) { return totals[BlockTile::value_of(i)]; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    using BlockTile = detail::BlockTile<cute::remove_cv_t<decltype(tile)>, Width>;
    return Callbacks<BlockTile>(BlockTile(tile));
  }
};

template <class Element>
struct BlockArguments {
  Element* ptr = nullptr;
  int64_t stride_m = 0;
  int64_t stride_l = 0;
};

// Stores a value per block, converted to Element, at [l, m, n / Width]; passes its input through.
template <class Element, int Width>
struct BlockStore : Node<BlockArguments<Element>> {
  using Base = Node<BlockArguments<Element>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class BlockTile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    BlockTile tile;
    Params const& params;

    CUTLASS_DEVICE
    Callbacks(BlockTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == BlockTile::kFragment, "a fragment is a thread's part of a sub-tile");
      int const first = tile.column(step_n) - tile.quad_lane() * 2;
      Element* const to = params.ptr + tile.l * params.stride_l + tile.row(step_m) * params.stride_m + first / Width;
      CUTLASS_PRAGMA_UNROLL
      for (int value = 0; value < BlockTile::kValues; ++value) {
        int const block = value / 2, row = value % 2 * 8;
        bool const inside = tile.row(step_m) + row < tile.extent_m && first + block * Width < tile.extent_n;
        if (tile.quad_lane() == value % 4 && inside) {
          to[row * params.stride_m + block] =
              evt::convert<Element>(ElementInput(input[block * (Width / 2) + value % 2 * 2]));
        }
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    using BlockTile = detail::BlockTile<cute::remove_cv_t<decltype(tile)>, Width>;
    return Callbacks<BlockTile>(BlockTile(tile), *this->params_ptr);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_BLOCK_HPP
