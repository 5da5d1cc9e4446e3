#ifndef EVT_FINISH_PLACE_HPP
#define EVT_FINISH_PLACE_HPP

// The argmax or argmin of a reduction of keys: an operand of the job in finish_compute.hpp.

#include <cstdint>

#include "evt/finish_compute.hpp"
#include "evt/place.hpp"

namespace evt {

template <int Number>
struct CombinedPlace {
  using Reduction = Combined<Number, MaxKey, int64_t>;

  Reduction keys;

  CUTLASS_DEVICE Reduction const& reduction() const { return keys; }
  CUTLASS_DEVICE static int32_t of(int64_t total) { return place_of(total); }
};

}  // namespace evt

#endif  // EVT_FINISH_PLACE_HPP
