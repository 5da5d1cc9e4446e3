#ifndef EVT_NVRTC_CUTLASS_HPP
#define EVT_NVRTC_CUTLASS_HPP

// CUTLASS's element types and tuples, as far as the results of reductions use them, in place of its headers. Values are
// converted by sm90's instructions, as CUTLASS does.

namespace cutlass {

struct half_t {
  uint16_t storage;

  half_t() = default;
  __device__ explicit half_t(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(storage) : "f"(x)); }
  __device__ operator float() const {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(storage));
    return result;
  }
};

struct bfloat16_t {
  uint16_t storage;

  bfloat16_t() = default;
  __device__ explicit bfloat16_t(float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(storage) : "f"(x)); }
  __device__ operator float() const { return __uint_as_float(uint32_t(storage) << 16); }
};

struct tfloat32_t {
  uint32_t storage;

  tfloat32_t() = default;
  __device__ explicit tfloat32_t(float x) { asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(storage) : "f"(x)); }
  __device__ operator float() const { return __uint_as_float(storage); }
};

struct float_e4m3_t {
  uint8_t storage;

  float_e4m3_t() = default;
  __device__ explicit float_e4m3_t(float x) {
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
    storage = uint8_t(two);
  }
  __device__ operator float() const {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(storage)));
    half_t first;
    first.storage = uint16_t(halves);
    return first;
  }
};

struct float_e5m2_t {
  uint8_t storage;

  float_e5m2_t() = default;
  __device__ explicit float_e5m2_t(float x) {
    uint16_t two;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
    storage = uint8_t(two);
  }
  __device__ operator float() const {
    half_t wide;
    wide.storage = uint16_t(storage << 8);
    return wide;
  }
};

template <class T, int Size>
struct Array;

template <class To, class From>
struct NumericConverter {
  __device__ static To convert(From x) { return To(x); }
};

template <class To, class From, int Size>
struct NumericArrayConverter;

}  // namespace cutlass

namespace cute {

template <int... I>
struct seq {};

template <int N, int... I>
struct seq_of : seq_of<N - 1, N - 1, I...> {};
template <int... I>
struct seq_of<0, I...> {
  using type = seq<I...>;
};
template <int N>
using make_seq = typename seq_of<N>::type;

template <class... Types>
struct tuple {};
template <class First, class... Rest>
struct tuple<First, Rest...> {
  First first;
  tuple<Rest...> rest;
};

template <int I, class... Types>
__device__ auto const& get(tuple<Types...> const& from) {
  if constexpr (I == 0) {
    return from.first;
  } else {
    return get<I - 1>(from.rest);
  }
}

template <int I, class Tuple>
struct tuple_element;
template <int I, class First, class... Rest>
struct tuple_element<I, tuple<First, Rest...>> : tuple_element<I - 1, tuple<Rest...>> {};
template <class First, class... Rest>
struct tuple_element<0, tuple<First, Rest...>> {
  using type = First;
};
template <int I, class Tuple>
using tuple_element_t = typename tuple_element<I, Tuple>::type;

}  // namespace cute

#endif  // EVT_NVRTC_CUTLASS_HPP
