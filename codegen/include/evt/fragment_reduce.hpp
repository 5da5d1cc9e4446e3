#ifndef EVT_FRAGMENT_REDUCE_HPP
#define EVT_FRAGMENT_REDUCE_HPP

// Reductions in the epilogue of a kernel of ours. Elements outside of the matrix take no part. With Partial the results
// are stored in [part][kept], each part once per launch and without gaps, to be combined by finish.hpp; parts() is how
// many there are. With Atomic the results are combined in [kept], which holds the identity before the launch.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/reduce.hpp"

namespace evt {
namespace fragment {

template <class Element>
struct ReductionParams {
  Element* pointer;
  int64_t kept;

  /// Where the results of a part begin.
  template <class Write>
  CUTLASS_DEVICE Element* part(int64_t part) const {
    return Write::kAtomic ? pointer : pointer + part * kept;
  }
};

/// One value per column: over the rows. The lanes of a column meet at the end of a tile.
template <class Op, class Element, class Write, class Lanes>
struct RowReduction {
  using Params = ReductionParams<Element>;

  static int64_t parts(Tiles const& tiles) { return tiles.number; }

  Params const& params;
  Tile tile;
  Element totals[2] = {Op::template identity<Element>(), Op::template identity<Element>()};

  CUTLASS_DEVICE RowReduction(Params const& params, Tile const& tile) : params(params), tile(tile) {}

  CUTLASS_DEVICE void put(Element value, int i, Places const& places) {
    if (places.has(i)) totals[column_of(i)] = Op::apply(totals[column_of(i)], value);
  }

  CUTLASS_DEVICE void finish() const {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      Element const total = reduce_over_lanes<Op, Lanes::kRows>(totals[half]);
      if (lane() % Lanes::kRows == 0 && tile.has(2 * half)) {
        write_result<Op, Write>(params.template part<Write>(tile.number) + tile.column(2 * half), total);
      }
    }
  }
};

/// One value per row: over the columns. The lanes of a row meet when it is complete, each warp for itself.
template <class Op, class Element, class Write, class Lanes>
struct ColumnReduction {
  using Params = ReductionParams<Element>;

  static int64_t parts(Tiles const& tiles) { return tiles.strips; }

  Params const& params;
  Tile tile;
  Element totals[kRows];

  CUTLASS_DEVICE ColumnReduction(Params const& params, Tile const& tile) : params(params), tile(tile) {}

  CUTLASS_DEVICE void put(Element value, int i, Places const& places) {
    Element const own = tile.has(i) ? value : Op::template identity<Element>();
    Element& total = totals[row_of(i)];
    if (column_of(i) == 0) {
      total = own;
      return;
    }
    total = reduce_over_lanes<Op, Lanes::kColumns, Lanes::kRows>(Op::apply(total, own));
    if (lane() / Lanes::kRows == 0 && places.has(i) && tile.exists()) {
      write_result<Op, Write>(params.template part<Write>(tile.strip) + places.row(i), total);
    }
  }

  CUTLASS_DEVICE void finish() const {}
};

/// One value. The lanes of a warp meet at the end of a tile.
template <class Op, class Element, class Write>
struct ScalarReduction {
  using Params = ReductionParams<Element>;

  static int64_t parts(Tiles const& tiles) { return tiles.number * tiles.strips; }

  Params const& params;
  Tile tile;
  Element total = Op::template identity<Element>();

  CUTLASS_DEVICE ScalarReduction(Params const& params, Tile const& tile) : params(params), tile(tile) {}

  CUTLASS_DEVICE void put(Element value, int i, Places const& places) {
    if (tile.has(i) && places.has(i)) total = Op::apply(total, value);
  }

  CUTLASS_DEVICE void finish() const {
    Element const all = reduce_over_lanes<Op, 32>(total);
    if (lane() == 0 && tile.exists()) {
      write_result<Op, Write>(params.template part<Write>(int64_t(tile.number) * tile.strips + tile.strip), all);
    }
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_REDUCE_HPP
