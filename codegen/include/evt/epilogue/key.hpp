#ifndef EVT_EPILOGUE_KEY_HPP
#define EVT_EPILOGUE_KEY_HPP

// Values with their coordinates, for argmax and argmin reductions.

#include <cstdint>

#include "evt/epilogue/operation.hpp"
#include "evt/place.hpp"

namespace evt {
namespace epilogue {

/// The keys of the input's elements. Their coordinates are rows (Mode 0) or columns (1).
template <int Mode, bool Least>
struct PlaceKeys {
  static_assert(Mode == 0 || Mode == 1, "Mode is M or N");
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;

    template <class Input>
    CUTLASS_DEVICE auto visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      using Value = typename Lanes::template Reduced<Input>;
      auto const values = Lanes::template convert<Value>(input);
      return Lanes::template generate<int64_t, Lanes::kSize>([&](int i) {
        return key_of<Least>(Value(values[i]), Mode == 0 ? this->lanes.row(at, i) : this->lanes.column(at, i));
      });
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_KEY_HPP
