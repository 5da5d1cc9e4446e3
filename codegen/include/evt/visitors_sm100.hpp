#ifndef EVT_VISITORS_SM100_HPP
#define EVT_VISITORS_SM100_HPP

// Epilogue visitors that know where their elements are, for the CUTLASS 3.x kernels of sm100 and sm103; nodes without
// places (Apply, Graph) are those of visitors_3x.hpp. They have the names and the arguments of sm90's nodes.
//
// An accumulator comes from tensor memory by rows: a sub-tile has the thread block's 128 rows, a thread has one of
// them, and its fragment is the sub-tile's columns in order. CUTLASS deals elements out so where D is row-major.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cute/tensor.hpp"

#include "evt/convert.hpp"
#include "evt/reduce.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace sm100 {

using fusion::ConsumerStoreArgs;
using fusion::EmptyConsumerStoreCallbacks;
using fusion::Node;
using fusion::Sm90VisitorImpl;

namespace detail {

// Whether a fragment is one row's columns in order.
template <class Layout>
constexpr bool is_row_fragment(Layout const& layout, int size) {
  for (int i = 0; i < size; ++i) {
    auto const coordinate = cute::make_arithmetic_tuple(0, 0) + layout(i);
    if (int(cute::get<0>(coordinate)) != 0 || int(cute::get<1>(coordinate)) != i) {
      return false;
    }
  }
  return true;
}

}  // namespace detail

// Where a thread's elements are in the problem. The extents are static, so that offsets fold.
template <class TileShape, class EpilogueTile>
struct Tile {
  static constexpr int kTileM = cute::size<0>(TileShape{});
  static constexpr int kTileN = cute::size<1>(TileShape{});
  static constexpr int kColumns = cute::size<1>(EpilogueTile{});  // of a sub-tile, and elements of a fragment
  static constexpr int kSteps = kTileN / kColumns;
  static constexpr int kWarps = 4;

  static_assert(kTileM == 128 && cute::size<0>(EpilogueTile{}) == kTileM, "a thread has a row of every sub-tile");
  static_assert(kTileN % kColumns == 0, "sub-tiles divide the tile");

  int m, n, l;             // of the thread's first element
  int extent_m, extent_n;  // of the problem
  int tile_m, tile_n;
  int thread;

  template <class... Args>
  CUTLASS_DEVICE explicit Tile(ConsumerStoreArgs<Args...> const& args)
      : m(int(cute::get<0>(args.problem_shape_mnkl)) - int(cute::get<0>(args.residue_tCcD))),
        n(int(cute::get<1>(args.problem_shape_mnkl)) - int(cute::get<1>(args.residue_tCcD))),
        l(int(cute::get<3>(args.tile_coord_mnkl))),
        extent_m(int(cute::get<0>(args.problem_shape_mnkl))),
        extent_n(int(cute::get<1>(args.problem_shape_mnkl))),
        tile_m(int(cute::get<0>(args.tile_coord_mnkl))),
        tile_n(int(cute::get<1>(args.tile_coord_mnkl))),
        thread(args.thread_idx) {
    using Layout = decltype(cute::take<0, 3>(args.tCcD.layout()));
    static_assert(cute::is_static<Layout>::value, "the places within a sub-tile are static");
    static_assert(decltype(cute::size(Layout{}))::value == kColumns, "the epilogue tile is not the kernel's");
    static_assert(detail::is_row_fragment(Layout{}, kColumns), "a fragment is not a row; D must be row-major");
  }

  CUTLASS_DEVICE int column(int step_n) const { return n + step_n * kColumns; }
  CUTLASS_DEVICE int lane() const { return thread % 32; }
  CUTLASS_DEVICE int warp() const { return thread / 32; }
  CUTLASS_DEVICE bool has_row() const { return m < extent_m; }

  // How many of a sub-tile's columns are in the problem, none where the row is not; may be negative or too large.
  CUTLASS_DEVICE int valid(int step_n) const { return has_row() ? extent_n - column(step_n) : 0; }

  // A cluster may be given tiles beyond the problem.
  CUTLASS_DEVICE bool is_inside() const { return tile_m * kTileM < extent_m && tile_n * kTileN < extent_n; }
};

template <class... Args>
Tile(ConsumerStoreArgs<Args...> const&)
    -> Tile<decltype(ConsumerStoreArgs<Args...>::tile_shape_mnk), decltype(ConsumerStoreArgs<Args...>::epi_tile)>;

// The type of the tile of a kernel's arguments to a node.
template <class Args>
using TileOf = decltype(Tile(cute::declval<Args const&>()));

// A leaf: the coordinate of every element, of the kernel's rows (Mode 0), columns (1) or batch (2).
template <int Mode>
struct Index : Sm90VisitorImpl<> {
  static_assert(Mode >= 0 && Mode <= 2, "M, N or L");

  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<int32_t, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      return evt::generate_array<int32_t, FragmentSize>(
          [&](int i) { return Mode == 0 ? tile.m : Mode == 1 ? tile.column(step_n) + i : tile.l; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    return Callbacks<KernelTile>(KernelTile(args));
  }
};

namespace detail {

template <int Block, bool Second>
struct Member : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize % (2 * Block) == 0, "the epilogue tile is too narrow for the block");
      return evt::generate_array<ElementInput, FragmentSize>(
          [&](int i) -> ElementInput { return input[Second ? i | Block : i & ~Block]; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    [[maybe_unused]] Tile const tile(args);  // that the fragment is a row
    return Callbacks{};
  }
};

}  // namespace detail

// The value of the pair's first, or second, column; pairs as in visitors_3x_pair.hpp.
template <int Block>
using Even = detail::Member<Block, false>;

template <int Block>
using Odd = detail::Member<Block, true>;

// Op over the elements of every block of Width columns, in the input's compute type, held in the places of all of
// them. Columns outside of the problem take no part.
template <class Op, int Width>
struct BlockReduce : Sm90VisitorImpl<> {
  using Sm90VisitorImpl<>::Sm90VisitorImpl;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE auto visit(cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
                              cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Tile::kColumns, "a fragment is a thread's part of a sub-tile");
      static_assert(FragmentSize % Width == 0, "the epilogue tile is too narrow for the block");
      using Element = evt::detail::Reduced<ElementInput>;
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      Element totals[FragmentSize / Width];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        Element& total = totals[i / Width];
        total = i % Width == 0 ? Op::template identity<Element>() : total;
        total = tile.column(step_n) + i < tile.extent_n ? Op::apply(total, values[i]) : total;
      }
      return evt::generate_array<Element, FragmentSize>([&](int i) { return totals[i / Width]; });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    return Callbacks<KernelTile>(KernelTile(args));
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_HPP
