#ifndef EVT_FINISH_MOMENTS_HPP
#define EVT_FINISH_MOMENTS_HPP

// The mean or the variance of a reduction of moments: operands of the job in finish_compute.hpp.

#include <cstdint>

#include "evt/finish_compute.hpp"
#include "evt/moments.hpp"

namespace evt {

template <class Combined>
struct CombinedMean {
  Combined moments;

  CUTLASS_DEVICE auto by_lanes(int64_t l, int64_t at, detail::FinishTeam team) const {
    return moments.by_lanes(l, at, team).mean();
  }
  CUTLASS_DEVICE auto by_block(int64_t l, int64_t at) const { return moments.by_block(l, at).mean(); }
};

template <class Combined>
struct CombinedVariance {
  Combined moments;

  CUTLASS_DEVICE auto by_lanes(int64_t l, int64_t at, detail::FinishTeam team) const {
    return moments.by_lanes(l, at, team).variance();
  }
  CUTLASS_DEVICE auto by_block(int64_t l, int64_t at) const { return moments.by_block(l, at).variance(); }
};

template <class Combined>
inline constexpr bool kMerges<CombinedMean<Combined>> = kMerges<Combined>;
template <class Combined>
inline constexpr bool kMerges<CombinedVariance<Combined>> = kMerges<Combined>;

}  // namespace evt

#endif  // EVT_FINISH_MOMENTS_HPP
