#ifndef EVT_HALO_WINDOWS_HPP
#define EVT_HALO_WINDOWS_HPP

// Operands of few channels, of which TMA makes no windows: threads load them, and widen each pixel with zeros.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "evt/halo_taps.hpp"

namespace evt {
namespace halo {

/// Divides places in a box, of less than 2^15, by one: in two instructions.
struct BoxDivisor {
  uint32_t multiplier = 0;  // 2^31 / divisor, rounded up; 0: quotients are 0

  static BoxDivisor of(int divisor) { return {((1u << 31) + divisor - 1) / divisor}; }

  CUTLASS_HOST_DEVICE int quotient(int place) const { return int(uint64_t(uint32_t(2 * place)) * multiplier >> 32); }
};

/// Chunks of kWindowBytes, of so many pixels of a row, each of which is widened with zeros after its channels.
template <int ElementBytes, int Channels, int Pixels>
struct FewChannels {
  static_assert(ElementBytes == 1 || ElementBytes == 2 || ElementBytes == 4, "of operands of WGMMA");
  static_assert(Pixels * Channels * ElementBytes <= kWindowBytes && kWindowBytes % (Pixels * ElementBytes) == 0,
                "a chunk has whole pixels");
  using Element = std::conditional_t<ElementBytes == 1, uint8_t,
                                     std::conditional_t<ElementBytes == 2, uint16_t, uint32_t>>;
  static constexpr int kWidened = kWindowBytes / ElementBytes / Pixels;  // channels
  static constexpr int kInFlight = std::min(8, std::max(1, 48 / (Pixels * Channels)));  // chunks a thread loads at a time

  /// Load the chunk that begins with pixel `first` of a row of so many, at `from`. Pixels are `stride` elements apart, and
  /// zeros outside of the row.
  CUTLASS_DEVICE static void load(uint32_t (&chunk)[4], Element const* from, int stride, int first, int pixels) {
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < 4; ++word) chunk[word] = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int pixel = 0; pixel < Pixels; ++pixel, from += stride) {
      bool const exists = uint32_t(first + pixel) < uint32_t(pixels);
      CUTLASS_PRAGMA_UNROLL
      for (int channel = 0; channel < Channels; ++channel) {
        put(chunk, (pixel * kWidened + channel) * ElementBytes, exists ? rounded(__ldg(from + channel)) : 0);
      }
    }
  }

 private:
  /// TMA rounds f32 to TF32 as it loads, where WGMMA alone would cut it off.
  CUTLASS_DEVICE static uint32_t rounded(Element element) {
    if constexpr (ElementBytes < 4) return element;
    uint32_t result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(element)));
    return result;
  }

  /// Put an element where there is nothing after it yet.
  CUTLASS_DEVICE static void put(uint32_t (&chunk)[4], int byte, uint32_t element) {
    constexpr uint32_t kPlaced[] = {0x7654, 0x6540, 0x5410, 0x4210};  // bytes of the word, then of the element
    uint32_t& word = chunk[byte / 4];
    word = byte % 4 == 0 ? element : __byte_perm(word, element, kPlaced[byte % 4]);
  }
};

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_WINDOWS_HPP
