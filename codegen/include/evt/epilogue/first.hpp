#ifndef EVT_EPILOGUE_FIRST_HPP
#define EVT_EPILOGUE_FIRST_HPP

// Values of fewer columns in sums: each is held in the places of several columns, and is to be counted once.

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// The input in the first Distance of every Width columns, zeros in the others.
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
