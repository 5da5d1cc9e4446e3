#ifndef EVT_PHILOX_WIDE_HPP
#define EVT_PHILOX_WIDE_HPP

// Philox-4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011), for seeds and
// offsets of 64 bits. Element i of a tensor is word i & 3 of a block. The block's counter is (i >> 2, offset), its key
// is the seed. Each has 64 bits, the low word first.

#include <cstdint>

#include "evt/philox.hpp"

namespace evt {

struct PhiloxBlock {
  uint32_t x, y, z, w;

  EVT_HOST_DEVICE uint32_t operator[](uint32_t i) const {
    return (i & 2) != 0 ? ((i & 1) != 0 ? w : z) : ((i & 1) != 0 ? y : x);
  }
};

EVT_HOST_DEVICE PhiloxBlock philox_block(uint64_t block, uint64_t offset, uint64_t seed) {
  uint32_t x = uint32_t(block), y = uint32_t(block >> 32), z = uint32_t(offset), w = uint32_t(offset >> 32);
  uint32_t key_x = uint32_t(seed), key_y = uint32_t(seed >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    uint64_t const first = uint64_t(0xD2511F53u) * x, second = uint64_t(0xCD9E8D57u) * z;
    x = uint32_t(second >> 32) ^ y ^ key_x;
    y = uint32_t(second);
    z = uint32_t(first >> 32) ^ w ^ key_y;
    w = uint32_t(first);
    key_x += 0x9E3779B9u;
    key_y += 0xBB67AE85u;
  }
  return {x, y, z, w};
}

/// Store the number of element + j, in [0, 1), to to[i + j] for j below Count. Count is 1, 2 or 4 and divides element.
template <int Count, class To>
EVT_HOST_DEVICE void random_run(To& to, int i, uint64_t element, uint64_t seed, uint64_t offset) {
  static_assert(Count == 1 || Count == 2 || Count == 4, "a run is within a block");
  PhiloxBlock const block = philox_block(element >> 2, offset, seed);
  uint32_t const first = Count == 4 ? 0u : uint32_t(element);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int j = 0; j < Count; ++j) {
    to[i + j] = uniform(block[first + uint32_t(j)]);
  }
}

/// A 64-bit integer, or an unsigned 32-bit integer, on the device.
struct WidePointer {
  void const* ptr = nullptr;
  bool is_wide = true;

  EVT_HOST_DEVICE uint64_t read_or(uint64_t value) const {
    if (ptr == nullptr) return value;
    return is_wide ? *static_cast<uint64_t const*>(ptr) : uint64_t(*static_cast<uint32_t const*>(ptr));
  }
};

struct WideRandomArguments {
  uint64_t seed = 0;
  WidePointer seed_ptr;  // read instead of the seed if not null
  uint64_t offset = 0;
  WidePointer offset_ptr;
};

}  // namespace evt

#endif  // EVT_PHILOX_WIDE_HPP
