#ifndef EVT_EPILOGUE_SWAP_HPP
#define EVT_EPILOGUE_SWAP_HPP

// The other column of a pair; pairs are as in pair.hpp.

#include "evt/epilogue/pair.hpp"

namespace evt {
namespace epilogue {

/// An exchange: each member of a pair gets the other member.
template <int Block>
struct Swap {
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;

    template <class Fragment>
    CUTLASS_DEVICE auto visit(typename Lanes::At const&, Fragment const& input) const {
      return Lanes::template Pairs<Block>::other(this->lanes, input);
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_SWAP_HPP
