#ifndef EVT_VISITORS_SM100_INDEXED_HPP
#define EVT_VISITORS_SM100_INDEXED_HPP

// Gathered inputs and scattered outputs, for the CUTLASS 3.x kernels of sm100 and sm103. A thread moves what belongs to
// its row, which it looks up once for a tile.

#include "evt/indexed.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

namespace detail {

template <class Tile_, class Indexed>
struct IndexedCallbacks : EmptyConsumerStoreCallbacks {
  using Tile = Tile_;

  Tile tile;
  Indexed const& indexed;
  decltype(Indexed::ptr) row;

  CUTLASS_DEVICE
  IndexedCallbacks(Tile const& tile_, Indexed const& indexed_) : tile(tile_), indexed(indexed_) {}

  CUTLASS_DEVICE void begin() { row = indexed.row(tile.l, tile.m, tile.extent_m); }
};

}  // namespace detail

// A leaf: the elements where the indices say; zero where that is out of range, or outside of the problem.
template <class Element, class Rows, class Columns, class Stride>
struct Gather : Node<Indexed<Element const, Rows, Columns, Stride>> {
  using Base = Node<Indexed<Element const, Rows, Columns, Stride>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class Tile>
  struct Callbacks : detail::IndexedCallbacks<Tile, Params> {
    using detail::IndexedCallbacks<Tile, Params>::IndexedCallbacks;

    Element values[Tile::kColumns];

    CUTLASS_DEVICE void begin_loop(int, int step_n) {
      this->indexed.load(values, this->row, this->tile.l, this->tile.column(step_n), this->tile.extent_n);
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(cutlass::Array<ElementAccumulator, FragmentSize> const&,
                                                               int, int, int) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      return evt::generate_array<Element, FragmentSize>([&](int i) { return values[i]; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    return Callbacks<KernelTile>(KernelTile(args), *this->params_ptr);
  }
};

// Stores its input, converted to Element, where the indices say, and passes it through.
template <class Element, class Rows, class Columns, class Stride>
struct Scatter : Node<Indexed<Element, Rows, Columns, Stride>> {
  using Base = Node<Indexed<Element, Rows, Columns, Stride>>;
  using Params = typename Base::Params;
  using Base::Base;

  template <class Tile>
  struct Callbacks : detail::IndexedCallbacks<Tile, Params> {
    using detail::IndexedCallbacks<Tile, Params>::IndexedCallbacks;

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      auto const converted = evt::convert_array<Element>(input);
      Element values[FragmentSize];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        values[i] = converted[i];
      }
      this->indexed.store(values, this->row, this->tile.l, this->tile.column(step_n), this->tile.extent_n);
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    return Callbacks<KernelTile>(KernelTile(args), *this->params_ptr);
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_INDEXED_HPP
