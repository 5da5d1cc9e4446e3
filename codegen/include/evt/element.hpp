#ifndef EVT_ELEMENT_HPP
#define EVT_ELEMENT_HPP

// Elements in memory and their compute types, by sm90's instructions, without the headers of CUTLASS's types, which
// take longer to compile than a kernel. Conversions equal those in convert.hpp.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"

namespace evt {
namespace element {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
struct tf32 {  // for casts alone: in memory it is float
  uint32_t bits;
};

CUTLASS_DEVICE float load(f16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
CUTLASS_DEVICE float load(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
CUTLASS_DEVICE float load(e4m3 x) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(x.bits)));
  return load(f16{uint16_t(halves)});
}
CUTLASS_DEVICE float load(e5m2 x) { return load(f16{uint16_t(x.bits << 8)}); }
CUTLASS_DEVICE float load(tf32 x) { return __uint_as_float(x.bits); }
CUTLASS_DEVICE float load(float x) { return x; }
CUTLASS_DEVICE int32_t load(int8_t x) { return x; }
CUTLASS_DEVICE int32_t load(uint8_t x) { return x; }
CUTLASS_DEVICE int32_t load(int32_t x) { return x; }
CUTLASS_DEVICE int64_t load(int64_t x) { return x; }

/// The type of registers that hold an element's value.
template <class T>
using Register = decltype(load(T{}));

CUTLASS_DEVICE void store(f16& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
CUTLASS_DEVICE void store(bf16& to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
CUTLASS_DEVICE void store(e4m3& to, float x) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
  to.bits = uint8_t(two);
}
CUTLASS_DEVICE void store(e5m2& to, float x) {
  uint16_t two;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
  to.bits = uint8_t(two);
}
CUTLASS_DEVICE void store(tf32& to, float x) { asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(to.bits) : "f"(x)); }
CUTLASS_DEVICE void store(float& to, float x) { to = x; }
CUTLASS_DEVICE void store(int32_t& to, int32_t x) { to = x; }
CUTLASS_DEVICE void store(int64_t& to, int64_t x) { to = x; }
CUTLASS_DEVICE void store(int8_t& to, int32_t x) { to = int8_t(min(max(x, -128), 127)); }
CUTLASS_DEVICE void store(uint8_t& to, int32_t x) { to = uint8_t(min(max(x, 0), 255)); }

/// Convert a value in registers to another type. To int32_t: round to nearest and saturate; NaN becomes 0.
template <class To, class From>
CUTLASS_DEVICE To in_register(From x) {
  if constexpr (std::is_same_v<To, int32_t> && std::is_same_v<From, float>) {
    return __float2int_rn(x);
  } else if constexpr (std::is_same_v<To, int32_t> && std::is_same_v<From, double>) {
    return x != x ? 0 : __double2int_rn(x);  // it saturates, and has no 0 for NaN
  } else {
    return To(x);
  }
}

/// Store a value, converted from another register type if necessary.
template <class T, class Value, class = std::enable_if_t<!std::is_same_v<Value, Register<T>>>>
CUTLASS_DEVICE void store(T& to, Value x) {
  store(to, in_register<Register<T>>(x));
}

/// Round x to a stored type.
template <class T, class Value>
CUTLASS_DEVICE Register<T> round_to(Value x) {
  T stored;
  store(stored, x);
  return load(stored);
}

/// Two elements of 16 bits in a word, the first in its lower half.
CUTLASS_DEVICE void store_two(f16, uint32_t& to, float first, float second) {
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first));
}
CUTLASS_DEVICE void store_two(bf16, uint32_t& to, float first, float second) {
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first));
}
/// Two elements of 8 bits in the lower half of a word.
CUTLASS_DEVICE void store_two(e4m3, uint32_t& to, float first, float second) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
  to = two;
}
CUTLASS_DEVICE void store_two(e5m2, uint32_t& to, float first, float second) {
  uint16_t two;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
  to = two;
}
template <class T, class Value>
CUTLASS_DEVICE void store_two(T type, uint32_t& to, Value first, Value second) {
  if constexpr (std::is_same_v<Register<T>, int32_t>) {
    T one, other;
    store(one, first);
    store(other, second);
    to = uint32_t(uint8_t(one)) | uint32_t(uint8_t(other)) << 8;
  } else {
    store_two(type, to, float(first), float(second));
  }
}

/// The bits of a value in a register, and the value.
CUTLASS_DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
CUTLASS_DEVICE uint32_t bits_of(int32_t value) { return uint32_t(value); }
template <class Value>
CUTLASS_DEVICE Value of_bits(uint32_t bits) {
  if constexpr (std::is_same_v<Value, float>) {
    return __uint_as_float(bits);
  } else {
    return Value(bits);
  }
}

/// The bits of a value that waits for the next element of its word, and the word of both, from its lowest bits on.
template <class T, class Value>
CUTLASS_DEVICE uint32_t held(Value value) {
  return bits_of(in_register<Register<T>>(value));
}
template <class T, class Value>
CUTLASS_DEVICE void store_held(uint32_t& to, uint32_t first, Value second) {
  store_two(T{}, to, of_bits<Register<T>>(first), in_register<Register<T>>(second));
}

/// The element of 32 bits of a value, and the value of an element of 8 or 32 bits, in a word.
template <class T, class Value>
CUTLASS_DEVICE uint32_t to_word(Value value) {
  T stored;
  store(stored, value);
  return bits_of(stored);
}
template <class T>
CUTLASS_DEVICE Register<T> of_word(uint32_t word) {
  if constexpr (sizeof(T) == 4) {
    return of_bits<T>(word);
  } else if constexpr (std::is_same_v<Register<T>, int32_t>) {
    return load(T(word));
  } else {
    return load(T{uint8_t(word)});
  }
}

template <class T>
CUTLASS_DEVICE float load_first(uint32_t two) {
  return load(T{uint16_t(two)});
}
template <class T>
CUTLASS_DEVICE float load_second(uint32_t two) {
  return load(T{uint16_t(two >> 16)});
}

}  // namespace element
}  // namespace evt

#endif  // EVT_ELEMENT_HPP
