#ifndef EVT_EPILOGUE_INDEX_HPP
#define EVT_EPILOGUE_INDEX_HPP

// Coordinate leaves.

#include <cstdint>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// A leaf: the coordinate of every element along the kernel's rows (Mode 0), columns (1) or batch (2).
template <int Mode>
struct Index {
  static_assert(Mode >= 0 && Mode <= 2, "Mode is M, N or L");
  using Arguments = NoArguments;

  template <class Lanes>
  struct On : State<Lanes> {
    using State<Lanes>::State;

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at) const {
      return Lanes::template generate<int32_t, Lanes::kSize>([&](int i) {
        return Mode == 0 ? this->lanes.row(at, i) : Mode == 1 ? this->lanes.column(at, i) : this->lanes.batch();
      });
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_INDEX_HPP
