#ifndef EVT_KIT_STRIPS_HPP
#define EVT_KIT_STRIPS_HPP

// The epilogue of sums whose WGMMA is not transposed: a warp has 16 rows of all strips of 16 columns. Lanes exchange sums.
// Then a thread has two columns and four rows of each strip, as in a step of a transposed product.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/step.hpp"

namespace evt {
namespace kit {

/// Transpose the four blocks of 8 x 8 sums of 16 rows and 16 columns. The second 8 columns are Second sums behind the first
/// ones. Lane 4g + q has columns 2q and 2q + 1 of row g of a block, and gets rows 2q and 2q + 1 of column g. Odd rows and
/// columns are exchanged in the other order, so that each lane gives and gets one sum at a time.
template <int Second, class Sum>
CUTLASS_DEVICE void transpose_strip(Sum (&to)[fragment::kElements], Sum const* from) {
  int const lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
  bool const is_odd = row % 2 == 1;
  int const first = (2 * quad + row % 2) * 4 + row / 2, second = first + (is_odd ? -4 : 4);
  CUTLASS_PRAGMA_UNROLL
  for (int column = 0; column < 2; ++column) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      Sum const *const given = from + Second * column + 2 * half;
      Sum const one = __shfl_sync(0xffffffffu, is_odd ? given[1] : given[0], first);
      Sum const other = __shfl_sync(0xffffffffu, is_odd ? given[0] : given[1], second);
      to[4 * half + 2 * column] = is_odd ? other : one;
      to[4 * half + 2 * column + 1] = is_odd ? one : other;
    }
  }
}

/// Compute the epilogues of a warp's strips of a block of D's columns. The loads of a strip precede the computation of
/// the strip before it. A strip of pairs has 8 columns of both blocks of 64 sums.
template <class Traits, int Strips, class Rows>
CUTLASS_DEVICE void complete_strips(typename Traits::Epilogue* epilogues, Rows const& rows,
                                    typename Traits::Accumulator const* sums, uint32_t buffer) {
  using Step = EpilogueStep<Traits>;
  int const first = threadIdx.x % kWarpGroup / 32;  // step of the block's rows
  constexpr int kOfStrip = fragment::kElements / Traits::kMembers;  // sums of each block
  auto const places_of = [&](int strip) {
    return typename Step::Lane(buffer, strip / Traits::kMembers, strip % Traits::kMembers);
  };
  Step steps[2];
  auto const load = [&](int strip) {
    Rows again = rows;
    steps[strip % 2].load(epilogues[strip], again, places_of(strip), first, true);
  };
  load(0);
  CUTLASS_PRAGMA_UNROLL
  for (int strip = 0; strip < Strips; ++strip) {
    if (strip + 1 < Strips) load(strip + 1);
    typename Traits::Accumulator transposed[fragment::kElements];
    transpose_strip<Traits::kPaired ? kFilters / 2 : kOfStrip / 2>(transposed, sums + kOfStrip * strip);
    steps[strip % 2].template compute<fragment::kElements>(epilogues[strip], transposed);
    steps[strip % 2].store(places_of(strip), first, true);
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_STRIPS_HPP
