#ifndef EVT_PHILOX_HPP
#define EVT_PHILOX_HPP

// Philox-2x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011): a bijection of a
// two-word counter, selected by a key. Element i of a tensor is word i & 1 of a block. The block's counter is (low 32
// bits of i >> 1, offset), its key is the seed. Self-contained.

#include <cstdint>

#ifndef EVT_HOST_DEVICE
#ifdef __CUDACC__
#define EVT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define EVT_HOST_DEVICE inline
#endif
#endif

namespace evt {

struct PhiloxWords {
  uint32_t x, y;
};

EVT_HOST_DEVICE PhiloxWords philox(uint32_t counter_x, uint32_t counter_y, uint32_t key) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    uint64_t const product = uint64_t(0xD256D193u) * counter_x;
    counter_x = uint32_t(product >> 32) ^ key ^ counter_y;
    counter_y = uint32_t(product);
    key += 0x9E3779B9u;
  }
  return {counter_x, counter_y};
}

/// Convert 24 bits of a random word to a float in [0, 1).
EVT_HOST_DEVICE float uniform(uint32_t word) { return float(word >> 8) * 0x1p-24f; }

/// The numbers of the elements 2 * pair and 2 * pair + 1.
EVT_HOST_DEVICE PhiloxWords random_pair(uint64_t pair, uint32_t seed, uint32_t offset) {
  return philox(uint32_t(pair), offset, seed);
}

/// The number of one element in [0, 1).
EVT_HOST_DEVICE float random_uniform(uint64_t element, uint32_t seed, uint32_t offset) {
  PhiloxWords const words = random_pair(element >> 1, seed, offset);
  return uniform((element & 1) != 0 ? words.y : words.x);
}

/// The arguments of a node of random numbers.
struct RandomArguments {
  uint32_t seed = 0;
  uint32_t const* seed_ptr = nullptr;  // read instead of the seed if not null
  uint32_t offset = 0;
  uint32_t const* offset_ptr = nullptr;
};

}  // namespace evt

#endif  // EVT_PHILOX_HPP
