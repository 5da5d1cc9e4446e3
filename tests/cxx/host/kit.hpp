// The kernels of codegen/include/evt/kit on the host: functions of CUDA, bf16 that is rounded by integer arithmetic, and
// WGMMA.

#pragma once

#include "threads.hpp"

#include <cmath>

#define __CUDA_ARCH_FEAT_SM90_ALL 1

#include "evt/element.hpp"

namespace evt {
namespace element {

/// bf16, rounded by integer arithmetic.
struct Stored : bf16 {};

inline uint32_t rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void store(Stored& to, float x) { to.bits = uint16_t(rounded(x)); }
inline void store_two(Stored, uint32_t& to, float first, float second) { to = rounded(first) | rounded(second) << 16; }

}  // namespace element
}  // namespace evt

#include "evt/kit/sm90.hpp"

inline void* __cvta_shared_to_generic(size_t address) { return host::at(uint32_t(address)); }

namespace host {

inline float value(evt::element::bf16 x) { return evt::element::load(x); }

/// Add the sums over 16 elements of k of this thread of a warp group. `a(row, k)` and `b(column, k)` return an element.
template <int N, class A, class B>
void fma(float (&sums)[N], int adds, A const& a, B const& b) {
  int const thread = int(threadIdx.x) % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  float of_a[2][16], of_b[16];
  for (int i = 0; i < 32; ++i) of_a[i / 16][i % 16] = a(row + i / 16 * 8, i % 16);
  for (int i = 0; i < N / 2; ++i) {
    for (int k = 0; k < 16; ++k) of_b[k] = b(i / 2 * 8 + column + i % 2, k);
    for (int half = 0; half < 2; ++half) {
      float& sum = sums[i / 2 * 4 + half * 2 + i % 2];
      if (!adds) sum = 0;
      for (int k = 0; k < 16; ++k) sum += of_a[half][k] * of_b[k];
    }
  }
}

/// WGMMA over 16 elements of k, by the threads of a warp group: each computes its own sums. Transposed: the first operand
/// has a row for each k.
template <int Pixels, bool Transposed = false>
struct Mma {
  static constexpr int kElementBytes = 2, kPixels = Pixels;
  static constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  static constexpr bool kTransposed = Transposed;
  using Accumulator = float;

  /// An element of an operand whose rows begin where its descriptor says.
  static float element(uint32_t descriptor, uint32_t layout, int row, int k) {
    int const swizzle = int(layout >> 30), row_bytes = swizzle == 0 ? 16 : 256 >> swizzle;
    uint32_t const begin = (descriptor & 0x3fff) << 4, next_eight = (layout & 0x3fff) << 4;
    uint32_t const next_eight_of_k = swizzle == 0 ? (descriptor >> 16 & 0x3fff) << 4 : 16;
    uint32_t const of_row = uint32_t(row / 8) * next_eight + uint32_t(row % 8 * row_bytes);
    uint32_t const address = begin + of_row + uint32_t(k / 8) * next_eight_of_k + uint32_t(k % 8 * 2);
    return value(*reinterpret_cast<evt::element::bf16*>(at(swizzled(address, row_bytes))));
  }

  static float first(uint32_t descriptor, uint32_t layout, int row, int k) {
    return Transposed ? element(descriptor, layout, k, row) : element(descriptor, layout, row, k);
  }

  static void fma(float (&sums)[kPixels / 2], uint32_t a, uint32_t b, uint32_t layout_of_a, uint32_t layout_of_b,
                  int adds = 1) {
    host::fma(
        sums, adds, [=](int row, int k) { return first(a, layout_of_a, row, k); },
        [=](int column, int k) { return element(b, layout_of_b, column, k); });
  }
};

}  // namespace host
