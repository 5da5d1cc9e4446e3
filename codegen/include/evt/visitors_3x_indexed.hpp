#ifndef EVT_VISITORS_3X_INDEXED_HPP
#define EVT_VISITORS_3X_INDEXED_HPP

// Gathered inputs and scattered outputs, for the CUTLASS 3.x kernels. A thread moves its two neighbouring columns at a
// time, directly from or to global memory; it looks its rows up once for a tile.

#include "evt/indexed.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

namespace detail {

// The rows of a tensor that a thread visits: two of each sub-tile.
template <class Tile_, class Indexed>
struct IndexedCallbacks : EmptyConsumerStoreCallbacks {
  using Tile = Tile_;
  using Row = decltype(Indexed::ptr);

  Tile tile;
  Indexed const& indexed;
  Row rows[Tile::kStepsM][2];

  CUTLASS_DEVICE
  IndexedCallbacks(Tile const& tile_, Indexed const& indexed_) : tile(tile_), indexed(indexed_) {}

  CUTLASS_DEVICE void begin() {
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < Tile::kStepsM; ++step) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        rows[step][i] = indexed.row(tile.l, tile.row(step) + i * 8, tile.extent_m);
      }
    }
  }

  CUTLASS_DEVICE Row row_of(int step_m, int i) const { return rows[step_m][detail::row_of(i) / 8]; }
  CUTLASS_DEVICE int column_of(int step_n, int i) const { return tile.column(step_n) + detail::column_of(i); }
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

    Element pairs[Tile::kFragment / 2][2];

    CUTLASS_DEVICE void begin_loop(int step_m, int step_n) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kFragment; i += 2) {
        this->indexed.load(pairs[i / 2], this->row_of(step_m, i), this->tile.l, this->column_of(step_n, i),
                           this->tile.extent_n);
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      return evt::generate_array<Element, FragmentSize>([&](int i) { return pairs[i / 2][i % 2]; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    return Callbacks<cute::remove_cv_t<decltype(tile)>>(tile, *this->params_ptr);
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
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      auto const converted = evt::convert_array<Element>(input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; i += 2) {
        Element const pair[2] = {converted[i], converted[i + 1]};
        this->indexed.store(pair, this->row_of(step_m, i), this->tile.l, this->column_of(step_n, i),
                            this->tile.extent_n);
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    return Callbacks<cute::remove_cv_t<decltype(tile)>>(tile, *this->params_ptr);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_INDEXED_HPP
