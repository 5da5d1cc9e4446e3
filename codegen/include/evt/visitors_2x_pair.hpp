#ifndef EVT_VISITORS_2X_PAIR_HPP
#define EVT_VISITORS_2X_PAIR_HPP

// Pairs and blocks of columns for the CUTLASS 2.x kernels.
//
// Block 1 pairs columns 2j and 2j + 1. Block B (8, 16 or 32) pairs column c of an even block of B columns with column c
// + B of the next block. The N extent is a multiple of 2 * Block. A value that both members of a pair share is "half
// wide". Even and Odd make such values. HalfStore and HalfLoad move them as tensors with half the columns.

#include <cstdint>

#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

template <class Element>
struct RowMajorArguments {
  Element* ptr = nullptr;
  int64_t stride_m = 0;  // in elements; columns are next to each other
  int64_t stride_l = 0;
};

namespace detail {

// The pairs of a fragment lie within it, or in two lanes.
template <class ThreadMap, int Block>
struct PairTile : Tile<ThreadMap> {
  using Tile<ThreadMap>::Tile;
  using Tile<ThreadMap>::kVector;
  using Tile<ThreadMap>::kLanes;

  static_assert(Block == 1 || Block == 8 || Block == 16 || Block == 32, "blocks of 1, 8, 16 or 32 columns");
  static constexpr bool kWithin = kVector > Block;
  static constexpr int kLaneDistance = kWithin ? 0 : Block / kVector;
  static_assert(kWithin || 2 * kLaneDistance <= kLanes, "both members of a pair belong to one fragment of the warp's");

  // Half-wide elements of a fragment: neighbours in a tensor with half the columns.
  static constexpr int kHalf = kWithin ? kVector / 2 : kVector;
  static_assert(!kWithin || Block == 1 || kVector == 2 * Block, "the half-wide elements of a fragment are neighbours");

  // The column of the first half-wide element.
  CUTLASS_DEVICE int half_n(int column) const {
    int const n = this->n(column);
    return n / (2 * Block) * Block + n % Block;
  }
  CUTLASS_DEVICE bool is_first() const { return kWithin || this->lane / (kWithin ? 1 : kLaneDistance) % 2 == 0; }

  // The half-wide element of the fragment's element i.
  CUTLASS_DEVICE static constexpr int half_of(int i) { return !kWithin ? i : Block == 1 ? i / 2 : i % Block; }
  // The first element of the fragment that has half-wide element j.
  CUTLASS_DEVICE static constexpr int whole_of(int j) { return kWithin && Block == 1 ? 2 * j : j; }
};

// result[i] = the first (Second = false) or second member of the pair of i.
template <class ThreadMap, int Block, bool Second>
struct PairMember : PlainNode<NoArguments> {
  using PlainNode<NoArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int, int, int, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      using Pairs = PairTile<ThreadMap, Block>;
      if constexpr (Pairs::kWithin) {
        return evt::generate_array<ElementInput, FragmentSize>(
            [&](int i) { return ElementInput(input[Second ? i | Block : i & ~Block]); });
      } else {
        int const lane = int(threadIdx.x % 32);
        return shuffle(input, Second ? lane | Pairs::kLaneDistance : lane & ~Pairs::kLaneDistance);
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, ProblemShape) {
    return Callbacks{};
  }
};

}  // namespace detail

template <class ThreadMap, int Block>
struct Even : detail::PairMember<ThreadMap, Block, false> {
  using detail::PairMember<ThreadMap, Block, false>::PairMember;
};

template <class ThreadMap, int Block>
struct Odd : detail::PairMember<ThreadMap, Block, true> {
  using detail::PairMember<ThreadMap, Block, true>::PairMember;
};

// Store a half-wide input, converted to Element, and return the input.
template <class ThreadMap, class Element, int Block>
struct HalfStore : PlainNode<RowMajorArguments<Element>> {
  using PlainNode<RowMajorArguments<Element>>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    using Pairs = detail::PairTile<ThreadMap, Block>;

    Pairs tile;
    RowMajorArguments<Element> const* arguments;

    CUTLASS_DEVICE
    Callbacks(Pairs const& tile_, RowMajorArguments<Element> const* arguments_) : tile(tile_), arguments(arguments_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      auto const halves = evt::generate_array<ElementInput, Pairs::kHalf>(
          [&](int j) { return ElementInput(input[Pairs::whole_of(j)]); });
      auto const converted = evt::convert_array<Element>(halves);
      if (tile.is_first() && tile.has_row(row, step)) {
        int const n = tile.half_n(column);
        Element* const to = arguments->ptr + tile.l * arguments->stride_l + tile.m(row, step) * arguments->stride_m;
        detail::store_row(to + n, converted, tile.extent_n / 2 - n);
      }
      return input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(detail::PairTile<ThreadMap, Block>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

// A leaf: a tensor with half the columns. Both members of a pair get its element. Zero outside of the problem.
template <class ThreadMap, class Element, int Block>
struct HalfLoad : PlainNode<RowMajorArguments<Element const>> {
  using PlainNode<RowMajorArguments<Element const>>::PlainNode;

  static constexpr int Stages = ThreadMap::Stages;

  struct Callbacks : EmptyCallbacks {
    using Pairs = detail::PairTile<ThreadMap, Block>;
    using Halves = cutlass::Array<Element, Pairs::kHalf>;

    Pairs tile;
    RowMajorArguments<Element const> const* arguments;
    Halves buffers[Stages][Pairs::kRows * Pairs::kColumns];

    CUTLASS_DEVICE
    Callbacks(Pairs const& tile_, RowMajorArguments<Element const> const* arguments_)
        : tile(tile_), arguments(arguments_) {}

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
      Halves halves = buffers[0][fragment];
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 1; stage < Stages; ++stage) {
        if (stage == step % Stages) {
          halves = buffers[stage][fragment];
        }
      }
      return evt::generate_array<Element, FragmentSize>([&](int i) { return halves[Pairs::half_of(i)]; });
    }

   private:
    CUTLASS_DEVICE void load(Halves (&buffer)[Pairs::kRows * Pairs::kColumns], int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < Pairs::kRows; ++row) {
        Element const* const from =
            arguments->ptr + tile.l * arguments->stride_l + tile.m(row, step) * arguments->stride_m;
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < Pairs::kColumns; ++column) {
          Halves& halves = buffer[row * Pairs::kColumns + column];
          int const n = tile.half_n(column);
          int const count = tile.has_row(row, step) ? tile.extent_n / 2 - n : 0;
          detail::load_row(halves, from + n, count);
        }
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(detail::PairTile<ThreadMap, Block>(tile, thread_idx, problem_shape), this->params_ptr);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_PAIR_HPP
