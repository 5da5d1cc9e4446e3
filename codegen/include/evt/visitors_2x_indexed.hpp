#ifndef EVT_VISITORS_2X_INDEXED_HPP
#define EVT_VISITORS_2X_INDEXED_HPP

// Gathered inputs and scattered outputs, for the CUTLASS 2.x kernels. A thread moves a fragment of a row at a time.

#include "evt/indexed.hpp"
#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

// A leaf: the indexed elements. An element is zero if its index is out of range or if it is outside of the problem.
template <class ThreadMap, class Element, class Rows, class Columns, class Stride>
struct Gather : PlainNode<Indexed<Element const, Rows, Columns, Stride>> {
  using Base = PlainNode<Indexed<Element const, Rows, Columns, Stride>>;
  using Params = typename Base::Params;
  using Base::Base;

  static constexpr int Stages = ThreadMap::Stages;

  struct Callbacks : EmptyCallbacks {
    using Place = Tile<ThreadMap>;
    static constexpr int kFragments = Place::kRows * Place::kColumns;

    Place tile;
    Params const* indexed;
    Element buffers[Stages][kFragments][Place::kVector];

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, Params const* indexed_) : tile(tile_), indexed(indexed_) {}

    CUTLASS_DEVICE void begin_step(int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < Stages; ++stage) {  // registers have no dynamic index
        if (stage == step % Stages) {
          load(buffers[stage], step);
        }
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        int step, int, int, int fragment, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      static_assert(FragmentSize == Place::kVector, "the thread map differs from the kernel's");
      return evt::generate_array<Element, FragmentSize>([&](int i) {
        Element value = buffers[0][fragment][i];
        CUTLASS_PRAGMA_UNROLL
        for (int stage = 1; stage < Stages; ++stage) {
          value = stage == step % Stages ? buffers[stage][fragment][i] : value;
        }
        return value;
      });
    }

   private:
    CUTLASS_DEVICE void load(Element (&buffer)[kFragments][Place::kVector], int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < Place::kRows; ++row) {
        Element const* const from = indexed->row(tile.l, tile.m(row, step), tile.extent_m);
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < Place::kColumns; ++column) {
          indexed->load(buffer[row * Place::kColumns + column], from, tile.l, tile.n(column), tile.extent_n);
        }
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

// Store the input, converted to Element, at the indexed places, and return the input.
template <class ThreadMap, class Element, class Rows, class Columns, class Stride>
struct Scatter : PlainNode<Indexed<Element, Rows, Columns, Stride>> {
  using Base = PlainNode<Indexed<Element, Rows, Columns, Stride>>;
  using Params = typename Base::Params;
  using Base::Base;

  struct Callbacks : EmptyCallbacks {
    using Place = Tile<ThreadMap>;

    Place tile;
    Params const* indexed;
    Element* to;  // the row to store to

    CUTLASS_DEVICE
    Callbacks(Place const& tile_, Params const* indexed_) : tile(tile_), indexed(indexed_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      static_assert(FragmentSize == Place::kVector, "the thread map differs from the kernel's");
      auto const converted = evt::convert_array<Element>(input);
      Element values[FragmentSize];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        values[i] = converted[i];
      }
      if (column == 0) {  // column 0 is visited first
        to = indexed->row(tile.l, tile.m(row, step), tile.extent_m);
      }
      indexed->store(values, to, tile.l, tile.n(column), tile.extent_n);
      return input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_INDEXED_HPP
