#ifndef EVT_EPILOGUE_PAIR_HPP
#define EVT_EPILOGUE_PAIR_HPP

// Pairs of columns. Block 1 pairs columns 2j and 2j + 1. Block B (8, 16 or 32) pairs column c of an even block of B
// columns with column c + B of the next block. Both columns hold the value of a pair. In memory the value is column j
// of a tensor with half the columns: j = c / 2 for Block 1, else c / (2 B) * B + c % B. The N extent is a multiple of 2
// * Block.

#include <cstdint>

#include "evt/epilogue/operation.hpp"
#include "evt/epilogue/row.hpp"

namespace evt {
namespace epilogue {

/// An exchange: both columns of a pair get its first or its second member.
template <int Block, bool Second>
struct Member {
  static_assert(Block == 1 || Block == 8 || Block == 16 || Block == 32, "Block is 1, 8, 16 or 32");
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;

    template <class Fragment>
    CUTLASS_DEVICE auto visit(typename Lanes::At const&, Fragment const& input) const {
      return Lanes::template Pairs<Block>::template member<Second>(this->lanes, input);
    }
  };
};

template <int Block>
using Even = Member<Block, false>;

template <int Block>
using Odd = Member<Block, true>;

template <class Pointer>
struct HalfArguments {
  Pointer ptr = nullptr;
  int64_t stride_m = 0;
  int64_t stride_l = 0;
};

/// The state of a tensor with half the columns. A thread moves kRuns runs of kRun neighbours per fragment.
template <class Lanes, int Block, class Pointer>
struct HalfState : State<Lanes, HalfArguments<Pointer>> {
  using State<Lanes, HalfArguments<Pointer>>::State;
  using Pairs = typename Lanes::template Pairs<Block>;
  static constexpr int kRuns = Pairs::kRuns, kRun = Pairs::kRun;

  CUTLASS_DEVICE Pointer address(typename Lanes::At const& at, int run) const {
    return this->arguments.ptr + this->lanes.batch() * this->arguments.stride_l +
           Pairs::row(this->lanes, at, run) * this->arguments.stride_m + Pairs::column(this->lanes, at, run);
  }
};

/// Store one value per pair, converted to Element, at [l, m, j].
template <class Element, int Block>
struct HalfStore {
  using Arguments = HalfArguments<Element*>;

  template <class Lanes>
  struct On : HalfState<Lanes, Block, Element*> {
    using Base = HalfState<Lanes, Block, Element*>;
    using Base::Base;
    using Pairs = typename Base::Pairs;

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      auto const kept =
          Lanes::template stored<Element>(Lanes::template generate<Input, Pairs::kRuns * Pairs::kRun>(
              [&](int i) -> Input { return input[Pairs::place(i)]; }));
      Element runs[Pairs::kRuns][Pairs::kRun];
      Pairs::gather(this->lanes, runs, kept);
      CUTLASS_PRAGMA_UNROLL
      for (int run = 0; run < Pairs::kRuns; ++run) {
        if (Pairs::stores(this->lanes, at)) {
          store_row(this->address(at, run), runs[run], Pairs::valid(this->lanes, at, run));
        }
      }
    }
  };
};

/// A leaf: the pair's value, for both of its columns. Elements outside of the problem read as zero.
template <class Element, int Block>
struct HalfLoad {
  using Arguments = HalfArguments<Element const*>;

  template <class Lanes>
  struct On : HalfState<Lanes, Block, Element const*> {
    using Base = HalfState<Lanes, Block, Element const*>;
    using Base::Base;
    using Pairs = typename Base::Pairs;

    /// The runs that this lane moves.
    struct Fetched {
      Element runs[Lanes::kFragments][Pairs::kRuns][Pairs::kRun];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      CUTLASS_PRAGMA_UNROLL
      for (int f = 0; f < Lanes::kFragments; ++f) {
        auto const at = Lanes::at(step, f);
        CUTLASS_PRAGMA_UNROLL
        for (int run = 0; run < Pairs::kRuns; ++run) {
          load_row(fetched.runs[f][run], this->address(at, run), Pairs::valid(this->lanes, at, run));
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      return Pairs::template scatter<Element>(this->lanes, fetched.runs[Lanes::fragment(at)]);
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_PAIR_HPP
