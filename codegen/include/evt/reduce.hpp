#ifndef EVT_REDUCE_HPP
#define EVT_REDUCE_HPP

// The operations of reductions (Sum, Max, Min), and how the CTAs' results are combined in memory (Partial, Atomic). T
// is float, double or int32_t. Max and Min propagate NaN; int32_t sums wrap.

#include <cstdint>
#include <cstring>

#include "cutlass/cutlass.h"

namespace evt {
namespace detail {

template <class To, class From>
CUTLASS_HOST_DEVICE To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "a copy of the bits");
  To to;
  std::memcpy(&to, &x, sizeof(to));
  return to;
}

CUTLASS_HOST_DEVICE int32_t lowest(int32_t) { return INT32_MIN; }
CUTLASS_HOST_DEVICE float lowest(float) { return bits_of<float>(0xff800000u); }
CUTLASS_HOST_DEVICE double lowest(double) { return bits_of<double>(uint64_t(0xfff) << 52); }

CUTLASS_HOST_DEVICE int32_t highest(int32_t) { return INT32_MAX; }
CUTLASS_HOST_DEVICE float highest(float) { return bits_of<float>(0x7f800000u); }
CUTLASS_HOST_DEVICE double highest(double) { return bits_of<double>(uint64_t(0x7ff) << 52); }

}  // namespace detail

struct Sum {
  template <class T>
  CUTLASS_HOST_DEVICE static T identity() { return T(0); }

  CUTLASS_HOST_DEVICE static float apply(float a, float b) { return a + b; }
  CUTLASS_HOST_DEVICE static double apply(double a, double b) { return a + b; }
  CUTLASS_HOST_DEVICE static int32_t apply(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
};

struct Max {
  template <class T>
  CUTLASS_HOST_DEVICE static T identity() { return detail::lowest(T()); }

  CUTLASS_HOST_DEVICE static float apply(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
#else
    return a != a || a > b ? a : b;
#endif
  }
  CUTLASS_HOST_DEVICE static double apply(double a, double b) { return a != a || a > b ? a : b; }
  CUTLASS_HOST_DEVICE static int32_t apply(int32_t a, int32_t b) { return a > b ? a : b; }
};

struct Min {
  template <class T>
  CUTLASS_HOST_DEVICE static T identity() { return detail::highest(T()); }

  CUTLASS_HOST_DEVICE static float apply(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
#else
    return a != a || a < b ? a : b;
#endif
  }
  CUTLASS_HOST_DEVICE static double apply(double a, double b) { return a != a || a < b ? a : b; }
  CUTLASS_HOST_DEVICE static int32_t apply(int32_t a, int32_t b) { return a < b ? a : b; }
};

/// Every CTA (or warp) stores its result in a separate place [l][part][kept]; finish.hpp combines the parts.
struct Partial {
  static constexpr bool kAtomic = false;
};

/// Atomics combine the results in [l][kept], which holds the identity before the launch.
struct Atomic {
  static constexpr bool kAtomic = true;
};

namespace detail {

// Positive floats are ordered as their bits as signed integers; negative floats in reverse, as unsigned integers. A NaN
// becomes the largest (Max) or the most negative (Min) of all floats.
template <class Float, class Signed, class Unsigned>
CUTLASS_DEVICE void atomic_max_float(Float* at, Float x, Unsigned nan) {
  Unsigned const bits = x != x ? nan : bits_of<Unsigned>(x);
  if (Signed(bits) >= 0) {
    ::atomicMax(reinterpret_cast<Signed*>(at), Signed(bits));
  } else {
    ::atomicMin(reinterpret_cast<Unsigned*>(at), bits);
  }
}

template <class Float, class Signed, class Unsigned>
CUTLASS_DEVICE void atomic_min_float(Float* at, Float x, Unsigned nan) {
  Unsigned const bits = x != x ? nan : bits_of<Unsigned>(x);
  if (Signed(bits) >= 0) {
    ::atomicMin(reinterpret_cast<Signed*>(at), Signed(bits));
  } else {
    ::atomicMax(reinterpret_cast<Unsigned*>(at), bits);
  }
}

template <class T>
CUTLASS_DEVICE void atomic(Sum, T* at, T x) { ::atomicAdd(at, x); }

CUTLASS_DEVICE void atomic(Max, int32_t* at, int32_t x) { ::atomicMax(at, x); }
CUTLASS_DEVICE void atomic(Max, float* at, float x) { atomic_max_float<float, int, unsigned>(at, x, 0x7fc00000u); }
CUTLASS_DEVICE void atomic(Max, double* at, double x) {
  atomic_max_float<double, long long, unsigned long long>(at, x, 0x7ff8ull << 48);
}

CUTLASS_DEVICE void atomic(Min, int32_t* at, int32_t x) { ::atomicMin(at, x); }
CUTLASS_DEVICE void atomic(Min, float* at, float x) { atomic_min_float<float, int, unsigned>(at, x, 0xffc00000u); }
CUTLASS_DEVICE void atomic(Min, double* at, double x) {
  atomic_min_float<double, long long, unsigned long long>(at, x, 0xfff8ull << 48);
}

}  // namespace detail

/// *at = Op(*at, x), atomically.
template <class Op, class T>
CUTLASS_DEVICE void atomic_apply(T* at, T x) {
  detail::atomic(Op{}, at, x);
}

/// Write a reduction's result: store it (Partial), or combine it with memory (Atomic).
template <class Op, class Write, class T>
CUTLASS_DEVICE void write_result(T* at, T x) {
  if constexpr (Write::kAtomic) {
    atomic_apply<Op>(at, x);
  } else {
    *at = x;
  }
}

/// The type of the values that a reduction reads, by the type of its parts.
template <class Element>
struct ReducedValue {
  using type = Element;
};

/// The total of the elements that a thread has added.
template <class Op, class Element>
class Running {
 public:
  CUTLASS_DEVICE Running() : total_(Op::template identity<Element>()) {}
  CUTLASS_DEVICE void add(Element const& x, bool exists = true) { total_ = exists ? Op::apply(total_, x) : total_; }
  CUTLASS_DEVICE Element total() const { return total_; }

 private:
  Element total_;
};

/// Whether a thread reduces each fragment alone before it adds the fragment to a row's total.
template <class Op>
inline constexpr bool kByFragment = false;

/// The value of x in the lane whose number differs by the bits of mask.
template <class T>
CUTLASS_DEVICE T shuffle_xor(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

/// Combine x over the `Lanes` lanes of a warp whose numbers differ by multiples of Stride; all lanes get the result.
template <class Op, int Lanes, int Stride = 1, class T>
CUTLASS_DEVICE T reduce_over_lanes(T x) {
  CUTLASS_PRAGMA_UNROLL
  for (int mask = Stride; mask < Lanes * Stride; mask *= 2) {
    x = Op::apply(x, shuffle_xor(x, mask));
  }
  return x;
}

}  // namespace evt

#endif  // EVT_REDUCE_HPP
