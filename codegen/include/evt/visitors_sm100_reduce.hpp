#ifndef EVT_VISITORS_SM100_REDUCE_HPP
#define EVT_VISITORS_SM100_REDUCE_HPP

// Reductions for the CUTLASS 3.x kernels of sm100 and sm103, as those of visitors_3x_reduce.hpp, but that over rows
// every warp has a part of its own: nothing goes through shared memory.

#include <cstdint>

#include "evt/reduce.hpp"
#include "evt/visitors_3x_reduce.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

// What the reductions have in common. TileShape is the thread block's, EpilogueTile the kernel's.
template <class Element, class TileShape, class EpilogueTile>
struct Reduction : Node<fusion::ReductionArguments<Element>> {
  using Base = Node<fusion::ReductionArguments<Element>>;
  using Params = typename Base::Params;
  using KernelTile = Tile<TileShape, EpilogueTile>;
  using Base::Base;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    KernelTile tile;
    Params const& params;

    CUTLASS_DEVICE
    Callbacks(KernelTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    CUTLASS_DEVICE int64_t tiles_m() const {
      return (int64_t(tile.extent_m) + KernelTile::kTileM - 1) / KernelTile::kTileM;
    }

    CUTLASS_DEVICE int64_t tiles_n() const {
      return (int64_t(tile.extent_n) + KernelTile::kTileN - 1) / KernelTile::kTileN;
    }
  };

 protected:
  template <class NodeCallbacks, class Args>
  CUTLASS_DEVICE NodeCallbacks make(Args const& args) const {
    static_assert(cute::is_same_v<TileOf<Args>, KernelTile>, "the tiles are not the kernel's");
    return NodeCallbacks(KernelTile(args), *this->params_ptr);
  }
};

// One value per column: over the kernel's rows. The lanes of a warp have its 32 rows and exchange halves of their
// columns, until each has the warp's total of one, or of a few.
template <class Op, class Element, class Write, class TileShape, class EpilogueTile>
struct RowReduction : Reduction<Element, TileShape, EpilogueTile> {
  using Base = Reduction<Element, TileShape, EpilogueTile>;
  using KernelTile = typename Base::KernelTile;
  using Base::Base;

  /// Of a batch.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return fusion::detail::tiles_along<0, TileShape>(problem_shape) * KernelTile::kWarps;
  }

  struct Callbacks : Base::Callbacks {
    using Base::Callbacks::Callbacks;
    static_assert(KernelTile::kColumns % 32 == 0, "every lane is left with as many columns");

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == KernelTile::kColumns, "a fragment is a thread's part of a sub-tile");
      auto const& tile = this->tile;
      cutlass::Array<Element, FragmentSize> totals = evt::convert_array<Element>(input);
      if (!tile.has_row()) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          totals[i] = Op::template identity<Element>();
        }
      }
      int first = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int mask = 16, count = FragmentSize / 2; mask > 0; mask /= 2, count /= 2) {
        bool const upper = (tile.lane() & mask) != 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize / 2; ++i) {
          if (i < count) {
            Element const mine = upper ? totals[i + count] : totals[i];
            Element const other = upper ? totals[i] : totals[i + count];
            totals[i] = Op::apply(mine, __shfl_xor_sync(0xffffffffu, other, mask));
          }
        }
        first += upper ? count : 0;
      }
      if (tile.is_inside()) {
        int64_t const part = int64_t(tile.tile_m) * KernelTile::kWarps + tile.warp();
        Element* const to = fusion::detail::part_of<Write>(this->params, tile.l, this->tiles_m() * KernelTile::kWarps,
                                                           part, tile.extent_n);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize / 32; ++i) {
          int const n = tile.column(step_n) + first + i;
          if (n < tile.extent_n) {
            write_result<Op, Write>(to + n, totals[i]);
          }
        }
      }
      return input;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return this->template make<Callbacks>(args);
  }
};

// One value per row: over the kernel's columns. A row belongs to one thread.
template <class Op, class Element, class Write, class TileShape, class EpilogueTile>
struct ColReduction : Reduction<Element, TileShape, EpilogueTile> {
  using Base = Reduction<Element, TileShape, EpilogueTile>;
  using KernelTile = typename Base::KernelTile;
  using Base::Base;

  /// Of a batch.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return fusion::detail::tiles_along<1, TileShape>(problem_shape);
  }

  struct Callbacks : Base::Callbacks {
    using Base::Callbacks::Callbacks;
    Element total = Op::template identity<Element>();

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == KernelTile::kColumns, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        total = this->tile.column(step_n) + i < this->tile.extent_n ? Op::apply(total, values[i]) : total;
      }
      return input;
    }

    CUTLASS_DEVICE void end() {
      auto const& tile = this->tile;
      if (tile.has_row() && tile.is_inside()) {
        Element* const to =
            fusion::detail::part_of<Write>(this->params, tile.l, this->tiles_n(), tile.tile_n, tile.extent_m);
        write_result<Op, Write>(to + tile.m, total);
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return this->template make<Callbacks>(args);
  }
};

// One value for all: every warp of every tile has a part.
template <class Op, class Element, class Write, class TileShape, class EpilogueTile>
struct ScalarReduction : Reduction<Element, TileShape, EpilogueTile> {
  using Base = Reduction<Element, TileShape, EpilogueTile>;
  using KernelTile = typename Base::KernelTile;
  using Base::Base;

  /// Of a batch.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return fusion::detail::tiles_along<0, TileShape>(problem_shape) *
           fusion::detail::tiles_along<1, TileShape>(problem_shape) * KernelTile::kWarps;
  }

  struct Callbacks : Base::Callbacks {
    using Base::Callbacks::Callbacks;
    Element total = Op::template identity<Element>();

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == KernelTile::kColumns, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      int const valid = this->tile.valid(step_n);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        total = i < valid ? Op::apply(total, values[i]) : total;
      }
      return input;
    }

    CUTLASS_DEVICE void end() {
      auto const& tile = this->tile;
      total = reduce_over_lanes<Op, 32>(total);
      if (tile.lane() == 0 && tile.is_inside()) {
        int64_t const parts = this->tiles_m() * this->tiles_n() * KernelTile::kWarps;
        int64_t const part = (tile.tile_m * this->tiles_n() + tile.tile_n) * KernelTile::kWarps + tile.warp();
        write_result<Op, Write>(fusion::detail::part_of<Write>(this->params, tile.l, parts, part, 1), total);
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return this->template make<Callbacks>(args);
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_REDUCE_HPP
