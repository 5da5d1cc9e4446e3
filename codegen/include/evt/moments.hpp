#ifndef EVT_MOMENTS_HPP
#define EVT_MOMENTS_HPP

// Moments: the parts of mean and var reductions. T is float or double. Two parts are merged by Chan's formula.
//
// The mean is pivot + offset. The pivot is one of the values. So differences of pivots are as small as the values'
// spread, and exact where this is small beside the mean. Sums of squares are centred throughout.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"

#include "evt/reduce.hpp"

namespace evt {

/// The count, the mean and the centred sum of squares of some values.
template <class T>
struct alignas(4 * sizeof(T)) Moments {
  T count, pivot, offset, squares;

  Moments() = default;

  /// The moments of one value.
  CUTLASS_HOST_DEVICE explicit Moments(T x) : count(T(1)), pivot(x), offset(T(0)), squares(T(0)) {}

  /// The moments of values whose differences from the pivot, one of them, have these sums.
  CUTLASS_HOST_DEVICE Moments(T count, T pivot, T sum, T sum_of_squares);

  /// NaN if a value is infinite or NaN.
  CUTLASS_HOST_DEVICE T mean() const { return pivot + offset + fault(); }
  CUTLASS_HOST_DEVICE T variance() const { return squares / count + fault(); }

 private:
  /// 0, or NaN for values that are not finite, or for no values.
  CUTLASS_HOST_DEVICE T fault() const { return (pivot - pivot) + (offset - offset) + (T(0) / count); }
};

namespace detail {

CUTLASS_HOST_DEVICE double weight_of(double a, double b) { return a / b; }

CUTLASS_HOST_DEVICE float weight_of(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

}  // namespace detail

template <class T>
CUTLASS_HOST_DEVICE Moments<T>::Moments(T count, T pivot, T sum, T sum_of_squares) : count(count), pivot(pivot) {
  offset = detail::weight_of(sum, count > T(0) ? count : T(1));
  T const centred = sum_of_squares - sum * offset;
  squares = centred < T(0) ? T(0) : centred;
}

/// The reduction of moments.
struct MergeMoments {
  template <class M>
  CUTLASS_HOST_DEVICE static M identity() {
    M none;
    none.count = none.pivot = none.offset = none.squares = 0;
    return none;
  }

  template <class T>
  CUTLASS_HOST_DEVICE static Moments<T> apply(Moments<T> const& a, Moments<T> const& b) {
    bool const any_a = a.count > T(0), any_b = b.count > T(0);
    T const between = any_a && any_b ? (b.pivot - a.pivot) + (b.offset - a.offset) : T(0);
    T const count = a.count + b.count;
    T const weight = detail::weight_of(b.count, count > T(1) ? count : T(1));
    Moments<T> both;
    both.count = count;
    both.pivot = any_a ? a.pivot : b.pivot;
    both.offset = (any_a ? a.offset : b.offset) + between * weight;
    both.squares = a.squares + b.squares + between * between * (a.count * weight);
    return both;
  }
};

/// The type of the values whose moments are reduced.
template <class T>
struct ReducedValue<Moments<T>> {
  using type = T;
};

/// In a fragment the compiler knows the counts, so that weights are constants.
template <>
inline constexpr bool kByFragment<MergeMoments> = true;

/// A thread adds differences from its first value, and their squares.
template <class T>
class Running<MergeMoments, Moments<T>> {
 public:
  CUTLASS_DEVICE Running() : count(0), pivot(0), sum(0), squares(0) {}

  CUTLASS_DEVICE void add(Moments<T> const& x, bool exists = true) {
    pivot = count == T(0) ? x.pivot : pivot;
    T const difference = exists ? x.pivot - pivot : T(0);
    count += exists ? T(1) : T(0);
    sum += difference;
    squares += difference * difference;
  }

  CUTLASS_DEVICE Moments<T> total() const {
    return count == T(0) ? MergeMoments::identity<Moments<T>>() : Moments<T>(count, pivot, sum, squares);
  }

 private:
  T count, pivot, sum, squares;
};

template <class T>
CUTLASS_DEVICE Moments<T> shuffle_xor(Moments<T> x, int mask) {
  x.count = shuffle_xor(x.count, mask);
  x.pivot = shuffle_xor(x.pivot, mask);
  x.offset = shuffle_xor(x.offset, mask);
  x.squares = shuffle_xor(x.squares, mask);
  return x;
}

}  // namespace evt

#endif  // EVT_MOMENTS_HPP
