#ifndef EVT_FINISH_MOMENTS_HPP
#define EVT_FINISH_MOMENTS_HPP

// The mean or the variance of a reduction of moments: operands of the job in finish_compute.hpp.

#include <cstdint>

#include "evt/finish_compute.hpp"
#include "evt/moments.hpp"

namespace evt {

template <class Combined>
struct CombinedMean {
  using Reduction = Combined;

  Combined moments;

  CUTLASS_DEVICE Combined const& reduction() const { return moments; }
  CUTLASS_DEVICE static auto of(typename Combined::Total total) { return total.mean(); }
};

template <class Combined>
struct CombinedVariance {
  using Reduction = Combined;

  Combined moments;

  CUTLASS_DEVICE Combined const& reduction() const { return moments; }
  CUTLASS_DEVICE static auto of(typename Combined::Total total) { return total.variance(); }
};

template <class Combined>
inline constexpr bool kMerges<CombinedMean<Combined>> = kMerges<Combined>;
template <class Combined>
inline constexpr bool kMerges<CombinedVariance<Combined>> = kMerges<Combined>;

}  // namespace evt

#endif  // EVT_FINISH_MOMENTS_HPP
