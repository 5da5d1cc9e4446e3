#ifndef EVT_VISITORS_3X_REDUCE_HPP
#define EVT_VISITORS_3X_REDUCE_HPP

// Reductions for the CUTLASS 3.x kernels. All pass their input through; elements outside of the problem take no part.
// With Partial every CTA (for scalars: every warp) stores its result in [l][part][kept], each part once per launch and
// without gaps, to be combined by finish.hpp; parts() is how many parts a batch has. With Atomic the results are
// combined in [l][kept], stride_l apart (0: over the batch too), which holds the identity before the launch.
// TileShape and EpilogueTile are the kernel's.

#include <cstdint>

#include "evt/reduce.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

template <class Element>
struct ReductionArguments {
  Element* ptr = nullptr;
  int64_t stride_l = 0;  // of Atomic
};

namespace detail {

template <int Mode, class TileShape, class ProblemShape>
CUTLASS_HOST_DEVICE int64_t tiles_along(ProblemShape const& problem_shape) {
  constexpr int kExtent = cute::size<Mode>(TileShape{});
  return (int64_t(cute::get<Mode>(problem_shape)) + kExtent - 1) / kExtent;
}

// Where the results of a part begin.
template <class Write, class Element>
CUTLASS_DEVICE Element* part_of(ReductionArguments<Element> const& arguments, int64_t l, int64_t parts, int64_t part,
                                int64_t kept) {
  if constexpr (Write::kAtomic) {
    return arguments.ptr + l * arguments.stride_l;
  } else {
    return arguments.ptr + (l * parts + part) * kept;
  }
}

}  // namespace detail

// One value per column: over the kernel's rows. The warps of a CTA meet in shared memory, at the barriers that the
// epilogue has anyway and one more at the start of a tile.
template <class Op, class Element, class Write, class TileShape, class EpilogueTile>
struct RowReduction : Node<ReductionArguments<Element>> {
  using Base = Node<ReductionArguments<Element>>;
  using Params = typename Base::Params;
  using KernelTile = Tile<TileShape, EpilogueTile>;

  struct SharedStorage {
    Element totals[KernelTile::kWarps][KernelTile::kTileN];
  };

  SharedStorage* storage = nullptr;

  CUTLASS_HOST_DEVICE
  RowReduction() {}

  CUTLASS_HOST_DEVICE
  RowReduction(Params const& params, SharedStorage const& shared)
      : Base(params, {}), storage(const_cast<SharedStorage*>(&shared)) {}

  /// Of a batch.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return detail::tiles_along<0, TileShape>(problem_shape);
  }

  struct Callbacks : EmptyConsumerStoreCallbacks {
    static constexpr int kColumns = KernelTile::kFragment / 2;  // of a thread in a sub-tile
    static constexpr int kKept = kColumns / 8;                  // of them, that the thread has after the shuffles
    static_assert(kColumns % 8 == 0, "the eight lanes of a column share the columns");

    KernelTile tile;
    Params const& params;
    SharedStorage& storage;
    Element totals[kColumns];

    CUTLASS_DEVICE
    Callbacks(KernelTile const& tile_, Params const& params_, SharedStorage& storage_)
        : tile(tile_), params(params_), storage(storage_) {}

    // The threads of the tile before have read the storage.
    CUTLASS_DEVICE bool begin_sync_needed() const { return true; }

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == KernelTile::kFragment, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      if (step_m == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kColumns; ++i) {
          totals[i] = Op::template identity<Element>();
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        if (tile.row(step_m) + row * 8 < tile.extent_m) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kColumns; ++i) {
            totals[i] = Op::apply(totals[i], values[i / 2 * 4 + row * 2 + i % 2]);
          }
        }
      }
      return input;
    }

    // The eight lanes of a column exchange halves, until each has the warp's totals of kKept columns.
    template <class STensor, class SyncFn, class VTensor>
    CUTLASS_DEVICE void reduce(STensor&&, SyncFn const&, int step_m, int step_n, bool, VTensor) {
      if (step_m != KernelTile::kStepsM - 1) {
        return;
      }
      int first = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int count = kColumns / 2, mask = 16; mask >= 4; mask /= 2, count /= 2) {
        bool const upper = (tile.lane() & mask) != 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kColumns / 2; ++i) {
          if (i < count) {
            Element const mine = upper ? totals[i + count] : totals[i];
            Element const other = upper ? totals[i] : totals[i + count];
            totals[i] = Op::apply(mine, __shfl_xor_sync(0xffffffffu, other, mask));
          }
        }
        first += upper ? count : 0;
      }
      Element* const of_warp = storage.totals[tile.warp()] + step_n * KernelTile::kStepColumns + tile.quad_lane() * 2;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kKept; ++i) {
        int const column = first + i;
        of_warp[column / 2 * 8 + column % 2] = totals[i];
      }
    }

    // After the epilogue's last barrier.
    CUTLASS_DEVICE void end() {
      if (!tile.is_inside()) {
        return;
      }
      int64_t const parts = (int64_t(tile.extent_m) + KernelTile::kTileM - 1) / KernelTile::kTileM;
      Element* const to = detail::part_of<Write>(params, tile.l, parts, tile.tile_m, tile.extent_n);
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < KernelTile::kTileN; first += KernelTile::kThreads) {
        int const column = first + tile.thread, n = tile.tile_n * KernelTile::kTileN + column;
        if (column < KernelTile::kTileN && n < tile.extent_n) {
          Element total = storage.totals[0][column];
          CUTLASS_PRAGMA_UNROLL
          for (int warp = 1; warp < KernelTile::kWarps; ++warp) {
            total = Op::apply(total, storage.totals[warp][column]);
          }
          write_result<Op, Write>(to + n, total);
        }
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    static_assert(cute::is_same_v<cute::remove_cv_t<decltype(tile)>, KernelTile>, "the tiles are not the kernel's");
    return Callbacks(tile, *this->params_ptr, *storage);
  }
};

// One value per row: over the kernel's columns. A row belongs to one quad.
template <class Op, class Element, class Write, class TileShape, class EpilogueTile>
struct ColReduction : Node<ReductionArguments<Element>> {
  using Base = Node<ReductionArguments<Element>>;
  using Params = typename Base::Params;
  using KernelTile = Tile<TileShape, EpilogueTile>;
  using Base::Base;

  /// Of a batch.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return detail::tiles_along<1, TileShape>(problem_shape);
  }

  struct Callbacks : EmptyConsumerStoreCallbacks {
    static constexpr int kRows = 2 * KernelTile::kStepsM;

    KernelTile tile;
    Params const& params;
    Element totals[kRows];

    CUTLASS_DEVICE
    Callbacks(KernelTile const& tile_, Params const& params_) : tile(tile_), params(params_) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        totals[i] = Op::template identity<Element>();
      }
    }

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == KernelTile::kFragment, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      tile.for_each_inside(step_n, [&](int i) {
        Element& total = totals[step_m * 2 + i / 2 % 2];
        total = Op::apply(total, values[i]);
      });
      return input;
    }

    CUTLASS_DEVICE void end() {
      int64_t const parts = (int64_t(tile.extent_n) + KernelTile::kTileN - 1) / KernelTile::kTileN;
      Element* const to = detail::part_of<Write>(params, tile.l, parts, tile.tile_n, tile.extent_m);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        Element const total = reduce_over_lanes<Op, 4>(totals[i]);
        int const m = tile.row(i / 2) + i % 2 * 8;
        if (tile.quad_lane() == i % 4 && m < tile.extent_m && tile.is_inside()) {
          write_result<Op, Write>(to + m, total);
        }
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    static_assert(cute::is_same_v<cute::remove_cv_t<decltype(tile)>, KernelTile>, "the tiles are not the kernel's");
    return Callbacks(tile, *this->params_ptr);
  }
};

// One value for all: every warp of every tile has a part.
template <class Op, class Element, class Write, class TileShape, class EpilogueTile>
struct ScalarReduction : Node<ReductionArguments<Element>> {
  using Base = Node<ReductionArguments<Element>>;
  using Params = typename Base::Params;
  using KernelTile = Tile<TileShape, EpilogueTile>;
  using Base::Base;

  /// Of a batch.
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts(ProblemShape const& problem_shape) {
    return detail::tiles_along<0, TileShape>(problem_shape) * detail::tiles_along<1, TileShape>(problem_shape) *
           KernelTile::kWarps;
  }

  struct Callbacks : EmptyConsumerStoreCallbacks {
    KernelTile tile;
    Params const& params;
    Element total = Op::template identity<Element>();

    CUTLASS_DEVICE
    Callbacks(KernelTile const& tile_, Params const& params_) : tile(tile_), params(params_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == KernelTile::kFragment, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<Element, FragmentSize> const values = evt::convert_array<Element>(input);
      Element totals[4];  // as many chains as there are rows and columns in a quadruple
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        totals[i] = Op::template identity<Element>();
      }
      tile.for_each_inside(step_n, [&](int i) { totals[i % 4] = Op::apply(totals[i % 4], values[i]); });
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; i += 2) {
        if (tile.row(step_m) + detail::row_of(i) < tile.extent_m) {
          total = Op::apply(total, Op::apply(totals[i], totals[i + 1]));
        }
      }
      return input;
    }

    CUTLASS_DEVICE void end() {
      total = reduce_over_lanes<Op, 32>(total);
      if (tile.lane() == 0 && tile.is_inside()) {
        int64_t const tiles_m = (int64_t(tile.extent_m) + KernelTile::kTileM - 1) / KernelTile::kTileM;
        int64_t const tiles_n = (int64_t(tile.extent_n) + KernelTile::kTileN - 1) / KernelTile::kTileN;
        int64_t const part = (tile.tile_m * tiles_n + tile.tile_n) * KernelTile::kWarps + tile.warp();
        write_result<Op, Write>(
            detail::part_of<Write>(params, tile.l, tiles_m * tiles_n * KernelTile::kWarps, part, 1), total);
      }
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    static_assert(cute::is_same_v<cute::remove_cv_t<decltype(tile)>, KernelTile>, "the tiles are not the kernel's");
    return Callbacks(tile, *this->params_ptr);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_REDUCE_HPP
