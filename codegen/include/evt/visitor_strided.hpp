#ifndef EVT_VISITOR_STRIDED_HPP
#define EVT_VISITOR_STRIDED_HPP

// Epilogue visitors for the CUTLASS 2.x kernels that load and store (M, N, L) tensors with any strides.
//
// The stock nodes move one vector along N per access, so they need unit stride in N and aligned rows. These two nodes
// move one element per access, with a predicate for each (m, n, l). They support column-major and transposed operands,
// stride-0 operands, and any alignment. They are slower than the stock nodes.
//
// Both take the thread map of the kernel (cutlass::epilogue::threadblock::OutputTileThreadLayout).

#include <cstddef>
#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/gemm_coord.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/threadblock/default_thread_map_tensor_op.h"
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"

namespace evt {
namespace threadblock {
namespace detail {

// A thread's part of the output tile, derived from the thread map.
//   step      one iteration of the epilogue over the accumulators
//   fragment  kVector neighbours along N; a step has kFragments of them, columns first
template <class ThreadMap>
struct StridedTile {
  static constexpr int kVector = ThreadMap::kElementsPerAccess;
  static constexpr int kColumns = ThreadMap::Base::Iterations::kColumn;
  static constexpr int kRows = ThreadMap::Base::Iterations::kRow;
  static constexpr int kFragments = kColumns * kRows;

  // (kVector, kColumns, kRows, step) -> (m, n, l)
  template <class ProblemShape>
  CUTLASS_DEVICE static auto coordinates(
      cutlass::gemm::GemmCoord tile_offset, int thread_idx, ProblemShape const& problem_shape) {
    auto whole = cute::make_identity_tensor(problem_shape);
    auto mine = cute::group_modes<3, 6>(ThreadMap::partition(whole, thread_idx, tile_offset));
    static_assert(decltype(cute::size<0>(mine))::value == kVector, "unexpected thread map: vector");
    static_assert(decltype(cute::size<1>(mine))::value == kColumns, "unexpected thread map: columns");
    static_assert(decltype(cute::size<2>(mine))::value == kRows, "unexpected thread map: rows");
    return mine;
  }
};

// Offset of an (m, n, l) in elements. Static strides are folded, so that a static _0 is free.
template <class StrideMNL, class Coord>
CUTLASS_DEVICE int64_t strided_offset(StrideMNL const& stride, Coord const& coord) {
  return int64_t(cute::get<0>(coord)) * int64_t(cute::get<0>(stride)) +
         int64_t(cute::get<1>(coord)) * int64_t(cute::get<1>(stride)) +
         int64_t(cute::get<2>(coord)) * int64_t(cute::get<2>(stride));
}

template <class Element, class StrideMNL>
struct StridedOperandCheck {
  static constexpr int kBits = cutlass::sizeof_bits<Element>::value;
  static_assert(kBits == 8 || kBits == 16 || kBits == 32 || kBits == 64, "elements of 8, 16, 32 or 64 bits");
  static_assert(kBits == 8 * int(sizeof(Element)), "elements must fill their storage");
  static_assert(cute::rank_v<StrideMNL> == 3, "one stride for each of M, N, L");
  static constexpr bool value = true;
};

}  // namespace detail

// An auxiliary load of aux[m, n, l]. Elements outside of the problem are zeros.
template <class ThreadMap, class Element, class StrideMNL>
struct VisitorStridedAuxLoad {
  static_assert(detail::StridedOperandCheck<Element, StrideMNL>::value, "");

  struct Arguments {
    Element const* ptr_aux = nullptr;
    StrideMNL dAux = {};
  };

  using Params = Arguments;

  struct SharedStorage {};

  static constexpr int Stages = ThreadMap::Stages;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& args, void*) {
    return args;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  Params const* params_ptr;

  CUTLASS_HOST_DEVICE
  VisitorStridedAuxLoad() : params_ptr(nullptr) {}

  CUTLASS_HOST_DEVICE
  VisitorStridedAuxLoad(Params const& params, SharedStorage const&) : params_ptr(&params) {}

  template <class Coordinates, class ProblemShape>
  struct Callbacks : cutlass::epilogue::threadblock::detail::EmptyCallbacks {
    using Tile = detail::StridedTile<ThreadMap>;
    using Fragment = cutlass::Array<Element, Tile::kVector>;

    Params const* params_ptr;
    ProblemShape problem_shape;
    Coordinates coordinates;
    Fragment fragments[Stages][Tile::kFragments];

    CUTLASS_DEVICE
    Callbacks(Params const* params_ptr_, ProblemShape const& problem_shape_, Coordinates const& coordinates_)
        : params_ptr(params_ptr_), problem_shape(problem_shape_), coordinates(coordinates_) {}

    CUTLASS_DEVICE void begin_step(int step_idx) {
      // Registers have no dynamic index: the comparisons with constant indices are folded.
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < Stages; ++stage) {
        if (stage == step_idx % Stages) {
          load(fragments[stage], step_idx);
        }
      }
    }

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<Element, FragmentSize> visit(
        int iter_idx, int, int, int frg_idx, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      static_assert(FragmentSize == Tile::kVector, "the thread map differs from the kernel's");
      Fragment result = fragments[0][frg_idx];
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 1; stage < Stages; ++stage) {
        if (stage == iter_idx % Stages) {
          result = fragments[stage][frg_idx];
        }
      }
      return result;
    }

   private:
    CUTLASS_DEVICE void load(Fragment (&buffer)[Tile::kFragments], int step_idx) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < Tile::kRows; ++row) {
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < Tile::kColumns; ++column) {
          Fragment& fragment = buffer[row * Tile::kColumns + column];
          fragment.clear();
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Tile::kVector; ++i) {
            auto coord = coordinates(i, column, row, step_idx);
            if (cute::elem_less(coord, problem_shape)) {
              fragment[i] = params_ptr->ptr_aux[detail::strided_offset(params_ptr->dAux, coord)];
            }
          }
        }
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(
      cutlass::gemm::GemmCoord threadblock_tile_offset, int thread_idx, ProblemShape problem_shape) {
    auto coordinates =
        detail::StridedTile<ThreadMap>::coordinates(threadblock_tile_offset, thread_idx, problem_shape);
    return Callbacks<decltype(coordinates), ProblemShape>(params_ptr, problem_shape, coordinates);
  }
};

// An auxiliary store: write the input, converted to Element, to aux[m, n, l] and return the input unconverted. With a
// zero stride several elements have one address, and any one of them remains.
template <class ThreadMap, class Element, cutlass::FloatRoundStyle RoundStyle, class StrideMNL>
struct VisitorStridedAuxStore {
  static_assert(detail::StridedOperandCheck<Element, StrideMNL>::value, "");

  struct Arguments {
    Element* ptr_aux = nullptr;
    StrideMNL dAux = {};
  };

  using Params = Arguments;

  struct SharedStorage {};

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& args, void*) {
    return args;
  }

  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  Params const* params_ptr;

  CUTLASS_HOST_DEVICE
  VisitorStridedAuxStore() : params_ptr(nullptr) {}

  CUTLASS_HOST_DEVICE
  VisitorStridedAuxStore(Params const& params, SharedStorage const&) : params_ptr(&params) {}

  template <class Coordinates, class ProblemShape>
  struct Callbacks : cutlass::epilogue::threadblock::detail::EmptyCallbacks {
    using Tile = detail::StridedTile<ThreadMap>;

    Params const* params_ptr;
    ProblemShape problem_shape;
    Coordinates coordinates;

    CUTLASS_DEVICE
    Callbacks(Params const* params_ptr_, ProblemShape const& problem_shape_, Coordinates const& coordinates_)
        : params_ptr(params_ptr_), problem_shape(problem_shape_), coordinates(coordinates_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<ElementInput, FragmentSize> visit(
        int iter_idx, int row_idx, int column_idx, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& frg_input) {
      static_assert(FragmentSize == Tile::kVector, "the thread map differs from the kernel's");
      cutlass::NumericArrayConverter<Element, ElementInput, FragmentSize, RoundStyle> convert{};
      cutlass::Array<Element, FragmentSize> const converted = convert(frg_input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; ++i) {
        auto coord = coordinates(i, column_idx, row_idx, iter_idx);
        if (cute::elem_less(coord, problem_shape)) {
          params_ptr->ptr_aux[detail::strided_offset(params_ptr->dAux, coord)] = converted[i];
        }
      }
      return frg_input;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(
      cutlass::gemm::GemmCoord threadblock_tile_offset, int thread_idx, ProblemShape problem_shape) {
    auto coordinates =
        detail::StridedTile<ThreadMap>::coordinates(threadblock_tile_offset, thread_idx, problem_shape);
    return Callbacks<decltype(coordinates), ProblemShape>(params_ptr, problem_shape, coordinates);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITOR_STRIDED_HPP
