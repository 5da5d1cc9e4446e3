#ifndef EVT_EPILOGUE_INTERLEAVE_HPP
#define EVT_EPILOGUE_INTERLEAVE_HPP

// Interleave two values of column pairs into one value of all columns: the inverse of Even and Odd in pair.hpp.

#include "evt/epilogue/pair.hpp"

namespace evt {
namespace epilogue {

/// The first input in the first columns of pairs, and the second input in the second columns, as Elements.
template <int Block, class Element>
struct Interleave {
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;

    template <class First, class Second>
    CUTLASS_DEVICE auto visit(typename Lanes::At const& at,
                              typename Lanes::template Array<First, Lanes::kSize> const& first,
                              typename Lanes::template Array<Second, Lanes::kSize> const& second) const {
      auto const x = Lanes::template convert<Element>(first);
      auto const y = Lanes::template convert<Element>(second);
      return Lanes::template generate<Element, Lanes::kSize>([&](int i) {
        return Lanes::template Pairs<Block>::is_second(this->lanes, at, i) ? Element(y[i]) : Element(x[i]);
      });
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_INTERLEAVE_HPP
