#ifndef EVT_EPILOGUE_PAIR_VECTOR_HPP
#define EVT_EPILOGUE_PAIR_VECTOR_HPP

// A vector with a value for each pair of columns 2j and 2j + 1.

#include "evt/epilogue/vector.hpp"

namespace evt {
namespace epilogue {

/// Lanes whose columns have the numbers of their pairs.
template <class Lanes>
struct NumberedByPair : Lanes {
  static_assert(Lanes::kSize == 1, "an operation of several columns would load a run");
  CUTLASS_DEVICE explicit NumberedByPair(Lanes const& lanes) : Lanes(lanes) {}
  CUTLASS_DEVICE int column_of_tile(int column, int i) const { return Lanes::column_of_tile(column, i) / 2; }
  CUTLASS_DEVICE int extent_n() const { return Lanes::extent_n() / 2; }
};

/// A row broadcast of one value per pair, loaded at the start of a tile.
template <class Element, class Number, bool Packed = false>
struct PairBroadcast {
  using Row = RowBroadcast<Element, Number, Packed>;
  using Arguments = typename Row::Arguments;

  template <class Lanes>
  struct On : Row::template On<NumberedByPair<Lanes>> {
    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes)
        : Row::template On<NumberedByPair<Lanes>>(arguments, NumberedByPair<Lanes>(lanes)) {}
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_PAIR_VECTOR_HPP
