#ifndef EVT_PLACE_HPP
#define EVT_PLACE_HPP

// Argmax and argmin reductions: the maximum of 64-bit keys. The largest key belongs to the extreme value and, among
// equal values, to the first. The upper half is the value, in the order of signed integers; a NaN exceeds all values,
// and the zeros are equal. The lower half is the complement of the place.

#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"

namespace evt {

/// The reduction of keys.
struct MaxKey {
  template <class T>
  CUTLASS_HOST_DEVICE static T identity() { return INT64_MIN; }

  CUTLASS_HOST_DEVICE static int64_t apply(int64_t a, int64_t b) { return a > b ? a : b; }
};

namespace detail {

CUTLASS_HOST_DEVICE int32_t ordered(int32_t x) { return x; }

CUTLASS_HOST_DEVICE int32_t ordered(float x) {
  float const unsigned_zero = x + 0.0f;
  int32_t bits;
  std::memcpy(&bits, &unsigned_zero, sizeof(bits));
  return bits >= 0 ? bits : bits ^ INT32_MAX;
}

template <class T>
CUTLASS_HOST_DEVICE bool is_nan(T x) { return x != x; }

}  // namespace detail

/// The key of a value, float or int32_t, at a place. Least: the least value has the largest key.
template <bool Least, class T>
CUTLASS_HOST_DEVICE int64_t key_of(T x, int32_t place) {
  int32_t const in_order = detail::ordered(x);
  int32_t const value = detail::is_nan(x) ? INT32_MAX : Least ? ~in_order : in_order;
  return int64_t(uint64_t(uint32_t(value)) << 32 | uint32_t(~place));
}

/// The place of a key; 0 if no value was reduced.
CUTLASS_HOST_DEVICE int32_t place_of(int64_t key) {
  return key == INT64_MIN ? 0 : int32_t(~uint32_t(uint64_t(key)));
}

}  // namespace evt

#endif  // EVT_PLACE_HPP
