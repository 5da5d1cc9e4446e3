#ifndef EVT_FINISH_PLACE_HPP
#define EVT_FINISH_PLACE_HPP

// The argmax or argmin of a reduction of keys: an operand of the job in finish_compute.hpp.

#include <cstdint>

#include "evt/finish_compute.hpp"
#include "evt/place.hpp"

namespace evt {

struct CombinedPlace {
  Combined<MaxKey, int64_t> keys;

  CUTLASS_DEVICE int32_t by_lanes(int64_t l, int64_t at, detail::FinishTeam team) const {
    return place_of(keys.by_lanes(l, at, team));
  }
  CUTLASS_DEVICE int32_t by_block(int64_t l, int64_t at) const { return place_of(keys.by_block(l, at)); }
};

}  // namespace evt

#endif  // EVT_FINISH_PLACE_HPP
