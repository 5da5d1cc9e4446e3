#ifndef EVT_EPILOGUE_BLOCK_HPP
#define EVT_EPILOGUE_BLOCK_HPP

// Blocks of Width neighbouring columns, aligned to Width, as in block-scaled formats. Every column of a block holds the
// block's value.

#include <cstdint>

#include "evt/epilogue/operation.hpp"
#include "evt/reduce.hpp"

namespace evt {
namespace epilogue {

/// An exchange: the reduction by Op of every block, in the input's compute type. Columns outside of the problem are
/// skipped.
template <class Op, int Width>
struct BlockReduce {
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;
    using Blocks = typename Lanes::template Blocks<Width>;

    template <class Input, int Size>
    CUTLASS_DEVICE auto visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Size> const& input) const {
      using Element = typename Lanes::template Reduced<Input>;
      auto const values = Lanes::template convert<Element>(input);
      constexpr int kValues = Blocks::values_of(Size);
      Element totals[kValues];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kValues; ++i) {
        totals[i] = Op::template identity<Element>();
      }
      this->lanes.template combine<Op, Size>(at, values, [&](int i) -> Element& { return totals[Blocks::value_of(i)]; });
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kValues; ++i) {
        totals[i] = reduce_over_lanes<Op, Blocks::kLanes, Blocks::kLaneStride>(totals[i]);
      }
      return Lanes::template generate<Element, Size>([&](int i) { return totals[Blocks::value_of(i)]; });
    }
  };
};

template <class Element>
struct BlockArguments {
  Element* ptr = nullptr;
  int64_t stride_m = 0;
  int64_t stride_l = 0;
};

/// Store one value per block, converted to Element, at [l, m, n / Width].
template <class Element, int Width>
struct BlockStore {
  using Arguments = BlockArguments<Element>;

  template <class Lanes>
  struct On : State<Lanes, Arguments> {
    using State<Lanes, Arguments>::State;
    using Blocks = typename Lanes::template Blocks<Width>;

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      auto const& lanes = this->lanes;
      int const first = Blocks::column(lanes, at);
      Element* const to = this->arguments.ptr + lanes.batch() * this->arguments.stride_l +
                          lanes.row(at, 0) * this->arguments.stride_m + first / Width;
      CUTLASS_PRAGMA_UNROLL
      for (int value = 0; value < Blocks::values_of(Lanes::kSize); ++value) {
        int const i = Blocks::place(value), block = Blocks::block_of(value), row = Lanes::row_offset(i);
        if (Blocks::stores(lanes, at, value) && lanes.has_row(at, i) && first + block * Width < lanes.end_n()) {
          to[row * this->arguments.stride_m + block] = Lanes::template convert_one<Element>(Input(input[i]));
        }
      }
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_BLOCK_HPP
