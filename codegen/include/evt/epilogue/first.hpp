#ifndef EVT_EPILOGUE_FIRST_HPP
#define EVT_EPILOGUE_FIRST_HPP

// Reductions of values with fewer columns than the kernel. Several columns hold each value, and one of them is counted.

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// The input in the first Distance of every Width columns, and zeros in the others.
template <int Width, int Distance>
struct FirstColumns {
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;

    template <class Input>
    CUTLASS_DEVICE auto visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      return Lanes::template generate<Input, Lanes::kSize>([&](int i) -> Input {
        return this->lanes.template column_within<Width>(at, i) < Distance ? Input(input[i]) : Input(0);
      });
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_FIRST_HPP
