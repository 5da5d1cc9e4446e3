#ifndef EVT_VISITORS_2X_REDUCE_HPP
#define EVT_VISITORS_2X_REDUCE_HPP

// Reductions over rows, columns or both for the CUTLASS 2.x kernels. They return their input unchanged.
//
// Op is evt::Sum, Max or Min, and Element is the compute type. evt::Partial: every CTA stores its result in a workspace
// [l][part][kept], and a finishing kernel combines the parts in a fixed order. evt::Atomic: the results are combined in
// [l][kept], which holds the identity at launch. A CTA has one tile and combines its warps in shared memory first, so
// that a part is a tile.

#include <cstdint>

#include "evt/reduce.hpp"
#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

template <class Element>
struct ReductionArguments {
  Element* ptr = nullptr;
  int64_t stride_l = 0;  // Atomic: 0 reduces over the batch too. Partial: unused, parts are packed
};

namespace detail {

// The destination of the CTA's results.
template <class Op, class Element, class Write>
struct Destination {
  static_assert(cute::is_same_v<Write, evt::Partial> || cute::is_same_v<Write, evt::Atomic>, "Partial or Atomic");

  Element* ptr;

  // The CTA's results are number `part` of `parts` per batch; the `kept` results are contiguous.
  CUTLASS_DEVICE
  Destination(ReductionArguments<Element> const& arguments, int l, int64_t parts, int64_t part, int64_t kept)
      : ptr(arguments.ptr +
            (cute::is_same_v<Write, evt::Partial> ? (l * parts + part) * kept : l * arguments.stride_l)) {}

  CUTLASS_DEVICE void put(int index, Element value) const {
    evt::write_result<Op, Write>(ptr + index, value);
  }
};

template <int TileExtent>
CUTLASS_HOST_DEVICE int64_t tiles_of(int64_t extent) {
  return (extent + TileExtent - 1) / TileExtent;
}

}  // namespace detail

// A reduction over rows: one result per column.
template <class ThreadMap, class Op, class Element, class Write>
struct RowReduction : PlainNode<ReductionArguments<Element>> {
  using Base = PlainNode<ReductionArguments<Element>>;
  using Place = Tile<ThreadMap>;

  struct SharedStorage {
    cutlass::AlignedArray<Element, Place::kWarps * Place::kTileN, 16> partials;
  };

  Element* partials;

  CUTLASS_HOST_DEVICE
  RowReduction() : partials(nullptr) {}

  CUTLASS_HOST_DEVICE
  RowReduction(ReductionArguments<Element> const& params, SharedStorage const& shared)
      : Base(params, {}), partials(const_cast<Element*>(shared.partials.data())) {}

  // The number of parts per batch.
  CUTLASS_HOST_DEVICE static int64_t parts(int64_t m, int64_t) { return detail::tiles_of<Place::kTileM>(m); }

  struct Callbacks : EmptyCallbacks {
    Place tile;
    cutlass::gemm::GemmCoord tile_index;
    ReductionArguments<Element> const* arguments;
    Element* partials;
    cutlass::Array<Element, Place::kVector> sums[Place::kColumns];

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, cutlass::gemm::GemmCoord const& tile_index_,
              ReductionArguments<Element> const* arguments_, Element* partials_)
        : tile(tile_), tile_index(tile_index_), arguments(arguments_), partials(partials_) {}

    CUTLASS_DEVICE void begin_epilogue() {
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < Place::kColumns; ++column) {
        sums[column].fill(Op::template identity<Element>());
      }
    }

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      auto const values = evt::convert_array<Element>(input);
      if (tile.has_row(row, step)) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          sums[column][i] = Op::apply(sums[column][i], values[i]);
        }
      }
      return input;
    }

    CUTLASS_DEVICE void end_epilogue() {
      // The main loop shares this memory. It has ended for all warps before the first step.
      bool const writes = threadIdx.x % 32 < Place::kLanes;
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < Place::kColumns; ++column) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Place::kVector; ++i) {
          Element const sum = evt::reduce_over_lanes<Op, Place::kLaneRows, Place::kLanes>(sums[column][i]);
          if (writes) {
            partials[tile.warp * Place::kTileN + (column * Place::kLanes + tile.lane) * Place::kVector + i] = sum;
          }
        }
      }
      __syncthreads();
      int const first = tile_index.n() * Place::kTileN;
      detail::Destination<Op, Element, Write> const destination(*arguments, tile.l, parts(tile.extent_m, 0),
                                                                tile_index.m(), tile.extent_n);
      for (int n = int(threadIdx.x); n < Place::kTileN && first + n < tile.extent_n; n += 32 * Place::kWarps) {
        Element sum = partials[n];
        CUTLASS_PRAGMA_UNROLL
        for (int warp = 1; warp < Place::kWarps; ++warp) {
          sum = Op::apply(sum, partials[warp * Place::kTileN + n]);
        }
        destination.put(first + n, sum);
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Place(tile, thread_idx, problem_shape), tile, this->params_ptr, partials);
  }
};

// A reduction over columns: one result per row.
template <class ThreadMap, class Op, class Element, class Write>
struct ColReduction : PlainNode<ReductionArguments<Element>> {
  using PlainNode<ReductionArguments<Element>>::PlainNode;
  using Place = Tile<ThreadMap>;

  CUTLASS_HOST_DEVICE static int64_t parts(int64_t, int64_t n) { return detail::tiles_of<Place::kTileN>(n); }

  struct Callbacks : EmptyCallbacks {
    Place tile;
    detail::Destination<Op, Element, Write> destination;
    Element sum;

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, detail::Destination<Op, Element, Write> const& destination_)
        : tile(tile_), destination(destination_) {}

    CUTLASS_DEVICE void begin_row(int) { sum = Op::template identity<Element>(); }

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      auto const values = evt::convert_array<Element>(input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        if (tile.n(column) + i < tile.extent_n) {
          sum = Op::apply(sum, values[i]);
        }
      }
      if (column + 1 == Place::kColumns) {
        Element const whole = evt::reduce_over_lanes<Op, Place::kLanes>(sum);
        if (tile.lane == 0 && tile.has_row(row, step)) {
          destination.put(tile.m(row, step), whole);
        }
      }
      return input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    Place const place(tile, thread_idx, problem_shape);
    return Callbacks(place, {*this->params_ptr, place.l, parts(0, place.extent_n), tile.n(), place.extent_m});
  }
};

// A reduction over rows and columns: one result per batch.
template <class ThreadMap, class Op, class Element, class Write>
struct ScalarReduction : PlainNode<ReductionArguments<Element>> {
  using Base = PlainNode<ReductionArguments<Element>>;
  using Place = Tile<ThreadMap>;

  struct SharedStorage {
    cutlass::AlignedArray<Element, Place::kWarps, 16> partials;
  };

  Element* partials;

  CUTLASS_HOST_DEVICE
  ScalarReduction() : partials(nullptr) {}

  CUTLASS_HOST_DEVICE
  ScalarReduction(ReductionArguments<Element> const& params, SharedStorage const& shared)
      : Base(params, {}), partials(const_cast<Element*>(shared.partials.data())) {}

  CUTLASS_HOST_DEVICE static int64_t parts(int64_t m, int64_t n) {
    return detail::tiles_of<Place::kTileM>(m) * detail::tiles_of<Place::kTileN>(n);
  }

  struct Callbacks : EmptyCallbacks {
    Place tile;
    detail::Destination<Op, Element, Write> destination;
    Element* partials;
    Element sum;

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, detail::Destination<Op, Element, Write> const& destination_, Element* partials_)
        : tile(tile_), destination(destination_), partials(partials_) {}

    CUTLASS_DEVICE void begin_epilogue() { sum = Op::template identity<Element>(); }

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      auto const values = evt::convert_array<Element>(input);
      if (tile.has_row(row, step)) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          if (tile.n(column) + i < tile.extent_n) {
            sum = Op::apply(sum, values[i]);
          }
        }
      }
      return input;
    }

    CUTLASS_DEVICE void end_epilogue() {
      Element whole = evt::reduce_over_lanes<Op, 32>(sum);
      if (threadIdx.x % 32 == 0) {
        partials[tile.warp] = whole;
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int warp = 1; warp < Place::kWarps; ++warp) {
          whole = Op::apply(whole, partials[warp]);
        }
        destination.put(0, whole);
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    Place const place(tile, thread_idx, problem_shape);
    int64_t const part = tile.m() * detail::tiles_of<Place::kTileN>(place.extent_n) + tile.n();
    return Callbacks(place, {*this->params_ptr, place.l, parts(place.extent_m, place.extent_n), part, 1}, partials);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_REDUCE_HPP
