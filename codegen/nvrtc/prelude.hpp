#ifndef EVT_NVRTC_PRELUDE_HPP
#define EVT_NVRTC_PRELUDE_HPP

// The parts of the standard library, of CUDA's headers and of CUTLASS's that the device code of the own kernels uses.
// NVRTC has no standard library, and reads this text in place of their headers.

#define CUTLASS_DEVICE __forceinline__ __device__
#define CUTLASS_HOST_DEVICE __forceinline__ __host__ __device__
#define CUTLASS_GRID_CONSTANT __grid_constant__
#define CUTLASS_PRAGMA_UNROLL _Pragma("unroll")
#define CUTLASS_PRAGMA_NO_UNROLL _Pragma("unroll 1")

// cstdint, cmath

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807 - 1)
#define INT64_MAX 9223372036854775807
#define NAN __int_as_float(0x7fffffff)
#define INFINITY __int_as_float(0x7f800000)

namespace std {

using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uintptr_t;
using ::size_t;
using ::memcpy;
using ::sqrt;

// algorithm, numeric

template <class T>
__host__ __device__ constexpr T const& min(T const& a, T const& b) {
  return b < a ? b : a;
}

template <class T>
__host__ __device__ constexpr T const& max(T const& a, T const& b) {
  return a < b ? b : a;
}

template <class T>
__host__ __device__ constexpr T gcd(T a, T b) {
  while (b != 0) {
    T const rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// type_traits, utility

template <class T, T Value>
struct integral_constant {
  static constexpr T value = Value;
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <class, class>
inline constexpr bool is_same_v = false;
template <class T>
inline constexpr bool is_same_v<T, T> = true;
template <class T>
inline constexpr bool is_void_v = is_same_v<T, void>;
template <class T>
inline constexpr bool is_empty_v = __is_empty(T);

template <bool, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool Condition, class T = void>
using enable_if_t = typename enable_if<Condition, T>::type;

template <bool, class T, class>
struct conditional {
  using type = T;
};
template <class T, class Other>
struct conditional<false, T, Other> {
  using type = Other;
};
template <bool Condition, class T, class Other>
using conditional_t = typename conditional<Condition, T, Other>::type;

template <class T>
struct remove_const {
  using type = T;
};
template <class T>
struct remove_const<T const> {
  using type = T;
};
template <class T>
using remove_const_t = typename remove_const<T>::type;

template <class T, class... Arguments>
inline constexpr bool is_constructible_v = __is_constructible(T, Arguments...);

template <class...>
using void_t = void;

template <class T>
__host__ __device__ T&& declval() noexcept;

}  // namespace std

// cuda.h

struct alignas(128) CUtensorMap {
  uint64_t opaque[16];
};

enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11,
};

// The place of a member in a struct, and its type as Python's module struct names it; 0 for a descriptor. The launcher
// could not write a member of another type.

template <class T>
struct evt_unnamed {
  static_assert(sizeof(T) == 0, "the launcher has no name for the type of this member");
  static constexpr unsigned value = 0;
};
template <class T>
constexpr unsigned evt_type_of = evt_unnamed<T>::value;
template <>
constexpr unsigned evt_type_of<CUtensorMap> = 0;
template <class T>
constexpr unsigned evt_type_of<T&> = evt_type_of<T>;
template <class T>
constexpr unsigned evt_type_of<T*> = 'P';
template <>
constexpr unsigned evt_type_of<bool> = '?';
template <>
constexpr unsigned evt_type_of<float> = 'f';
template <>
constexpr unsigned evt_type_of<double> = 'd';
template <>
constexpr unsigned evt_type_of<int8_t> = 'b';
template <>
constexpr unsigned evt_type_of<uint8_t> = 'B';
template <>
constexpr unsigned evt_type_of<int16_t> = 'h';
template <>
constexpr unsigned evt_type_of<uint16_t> = 'H';
template <>
constexpr unsigned evt_type_of<int32_t> = 'i';
template <>
constexpr unsigned evt_type_of<uint32_t> = 'I';
template <>
constexpr unsigned evt_type_of<int64_t> = 'q';
template <>
constexpr unsigned evt_type_of<uint64_t> = 'Q';

#define EVT_MEMBER(type, member) \
  unsigned(__INTADDR__(&static_cast<type*>(nullptr)->member)) << 8 | evt_type_of<decltype(static_cast<type*>(nullptr)->member)>

#endif  // EVT_NVRTC_PRELUDE_HPP
