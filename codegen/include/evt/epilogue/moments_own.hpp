#ifndef EVT_EPILOGUE_MOMENTS_OWN_HPP
#define EVT_EPILOGUE_MOMENTS_OWN_HPP

// The moments of rows in own kernels: sums of differences from the first value of a row in the warp, and of their
// squares. Lanes add these sums instead of merging moments.

#include "evt/epilogue/lanes_own.hpp"
#include "evt/moments.hpp"

namespace evt {
namespace own {

template <class Lanes, class T>
struct RowTotals<Lanes, MergeMoments, Moments<T>> {
  using At = typename Lanes::At;
  using Step = typename Lanes::Step;

  T pivots[Lanes::kRows], sums[Lanes::kRows], squares[Lanes::kRows];

  template <class Write>
  CUTLASS_DEVICE void add(
      Lanes const& lanes, At const& at, typename Lanes::template Array<Moments<T>, 1> const& value, Write const&) {
    T const x = value[0].pivot;
    int const row = Lanes::row_number(at), column = Lanes::column_number(at);
    if (column == 0) pivots[row] = Lanes::of_first_lane(x);
    T const difference = lanes.has_column(column) ? x - pivots[row] : T(0);
    sums[row] = column == 0 ? difference : sums[row] + difference;
    squares[row] = column == 0 ? difference * difference : squares[row] + difference * difference;
  }

  template <int Rows, class Write>
  CUTLASS_DEVICE void end_step(Lanes const& lanes, Step const& step, Write const& write) {
    T const pivot = Lanes::template of_lane<Rows>([&](int i) { return pivots[i]; });
    T const sum = Lanes::template total_of_lane<Rows, Sum>(sums);
    T const squared = Lanes::template total_of_lane<Rows, Sum>(squares);
    lanes.template write_row<Rows>(step, write, Moments<T>(T(lanes.columns_of_strip()), pivot, sum, squared));
  }

  template <class Write>
  CUTLASS_DEVICE void end(Lanes const&, Write const&) const {}
};

}  // namespace own
}  // namespace evt

#endif  // EVT_EPILOGUE_MOMENTS_OWN_HPP
