// The instructions of codegen/include/evt/kit/sm90.hpp on the host, for the threads of threads.hpp: barriers that count
// arrivals and bytes, TMA's boxes, clusters with their shared memory, ldmatrix and stmatrix. A load spoils its box at once,
// and has loaded it later: a box that is loaded too early or read too early has wrong values. Copies by threads are alike:
// they are done when the thread waits for them. Stores are done at once. The
// program ends if no thread can go on, or if more threads arrive at a barrier than it expects.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "cutlass/cutlass.h"

namespace host {

constexpr int kMaxBlocks = 8;
constexpr uint32_t kBytes = 1 << 18;  // of a block's memory
// An address has the rank of its block from this bit on, as sm90's addresses do; the rank begins at 1. A descriptor, and
// the first block, have addresses without a rank.
constexpr uint32_t kRank = 1 << 24;

struct TransactionBarrier {
  int expected = 0, pending = 0;
  int64_t bytes = 0;
  unsigned phase = 0;
};

struct TmaMap {
  char* pointer;
  int dimensions, element_bytes, row_bytes;
  int64_t extents[5], strides[5];  // strides in bytes
  int box[5], steps[5];            // elements of a box, and places from one to the next
};

inline char memory[kMaxBlocks][kBytes];
/// The named barriers of a block.
struct ConsumerBarriers {
  Barrier both{256}, each[2] = {{128}, {128}};
};
inline ConsumerBarriers consumers[kMaxBlocks];

/// A named barrier of the running thread's block, of some threads.
inline Barrier& named(int name, int threads) {
  static Barrier barriers[kMaxBlocks][16];
  Barrier& found = barriers[rank_of_block()][name];
  found.expected = threads;
  return found;
}
inline std::map<std::pair<int, uint32_t>, TransactionBarrier> barriers;
inline std::vector<TmaMap> maps;

inline int rank_of(uint32_t address) { return address >= kRank ? int(address / kRank) - 1 : rank_of_block(); }
inline uint32_t with_rank(uint32_t address) { return address % kBytes + kRank * uint32_t(rank_of(address) + 1); }
inline char* at(uint32_t address) { return memory[rank_of(address)] + address % kBytes; }
inline TransactionBarrier& barrier_at(uint32_t address) { return barriers[{rank_of(address), address % kBytes}]; }

/// The groups of a thread's copies that it has not waited for. The last group has the copies since the last one was made.
using Groups = std::deque<std::vector<std::function<void()>>>;
inline std::map<int, Groups> copies;
inline Groups& groups_of_thread() {
  Groups& groups = copies[block->current];
  if (groups.empty()) groups.emplace_back();
  return groups;
}

/// Send a write or an arrival to an address.
inline void send(int from, uint32_t address, std::function<void()> come) {
  block->sent.push_back({from, rank_of(address), std::move(come)});
}

inline void arrive(TransactionBarrier& barrier, int arrivals, int64_t bytes) {
  barrier.pending -= arrivals;
  barrier.bytes += bytes;
  if (barrier.pending < 0) {
    std::fprintf(stderr, "more threads arrive at a barrier than it expects\n");
    std::exit(5);
  }
  if (barrier.pending == 0 && barrier.bytes == 0) {
    ++barrier.phase;
    barrier.pending = barrier.expected;
  }
  ++block->progress;
}

/// The place of a byte of a swizzled tile.
inline uint32_t swizzled(uint32_t address, int row_bytes) {
  uint32_t const mask = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : row_bytes == 32 ? 1 : 0;
  return address ^ (address >> 7 & mask) << 4;
}

/// `copy(is_inside, in global memory, in shared memory)` for the elements of a box. A row that is narrower than the swizzle
/// takes the swizzle's bytes of shared memory, as an H100 does it.
template <class Copy>
void for_each_element(TmaMap const& map, uint32_t shared, std::vector<int> const& first, Copy const& copy) {
  if (int(first.size()) != map.dimensions) std::abort();
  int64_t count = 1;
  for (int i = 0; i < map.dimensions; ++i) count *= map.box[i];
  for (int64_t number = 0; number < count; ++number) {
    int64_t rest = number, offset = 0;
    bool is_inside = true;
    for (int i = 0; i < map.dimensions; ++i) {
      int64_t const place = first[size_t(i)] + rest % map.box[i] * map.steps[i];
      rest /= map.box[i];
      is_inside = is_inside && place >= 0 && place < map.extents[i];
      offset += place * map.strides[i];
    }
    int64_t const bytes = std::max(map.box[0] * map.element_bytes, map.row_bytes);
    uint32_t const to = uint32_t(number / map.box[0] * bytes + number % map.box[0] * map.element_bytes);
    copy(is_inside, map.pointer + offset, at(swizzled(shared + to, map.row_bytes)));
  }
}

inline TmaMap const& map_of(CUtensorMap const& map) {
  size_t number;
  std::memcpy(&number, &map, sizeof(number));
  return maps.at(number);
}

/// Elements outside of the tensor are zeros.
inline void load(uint32_t to, CUtensorMap const& from, uint32_t barrier, std::vector<int> const& first) {
  TmaMap const& map = map_of(from);
  size_t const size = size_t(map.element_bytes);
  for_each_element(map, to, first, [=](bool, char const*, char* shared) { std::memset(shared, 0xff, size); });
  uint32_t const there = with_rank(to);
  send(kTma, barrier, [=, &map, &signal = barrier_at(barrier)] {
    int64_t bytes = 0;
    for_each_element(map, there, first, [&](bool is_inside, char const* global, char* shared) {
      is_inside ? std::memcpy(shared, global, size) : std::memset(shared, 0, size);
      bytes += int64_t(size);
    });
    arrive(signal, 0, -bytes);
  });
}

/// Move `Count` transposed 8 x 8 matrices of 16-bit elements between the registers of a warp and shared memory.
template <int Count, class Move>
void move_matrices(uint32_t address, Move const& move) {
  int const lane = int(threadIdx.x) % 32;
  for (int i = 0; i < Count; ++i) {
    for (int half = 0; half < 2; ++half) {
      uint32_t const row = exchange(address, 8 * i + 2 * (lane % 4) + half);
      move(i, half, reinterpret_cast<uint16_t*>(at(row + 2 * uint32_t(lane / 4))));
    }
  }
}

template <int Count>
void load_matrices(uint32_t (&to)[4], uint32_t address) {
  move_matrices<Count>(address, [&](int i, int half, uint16_t const* from) {
    to[i] = half == 0 ? *from : to[i] | uint32_t(*from) << 16;
  });
}

template <int Count>
void store_matrices(uint32_t address, uint32_t const (&from)[4]) {
  move_matrices<Count>(address, [&](int i, int half, uint16_t* to) { *to = uint16_t(from[i] >> 16 * half); });
}

}  // namespace host

namespace evt {
namespace kit {

inline uint32_t set_block_rank(uint32_t address, int block) {
  return address % host::kBytes + host::kRank * uint32_t(block + 1);
}
inline uint32_t cast_smem_ptr_to_uint(void const* pointer) {
  int const rank = host::rank_of_block();
  uint32_t const address = uint32_t(static_cast<char const*>(pointer) - host::memory[rank]);
  return rank == 0 ? address : set_block_rank(address, rank);
}
inline int canonical_warp_idx_sync() { return int(threadIdx.x) / 32; }
inline bool elect_one_sync() { return threadIdx.x % 32 == 0; }

inline void barrier_init(uint32_t barrier, int arrivals) { host::barrier_at(barrier) = {arrivals, arrivals, 0, 0}; }
inline void fence_barrier_init() {}
inline void barrier_arrive(uint32_t barrier) { host::arrive(host::barrier_at(barrier), 1, 0); }
inline void arrive_and_expect_tx(uint32_t barrier, int bytes) { host::arrive(host::barrier_at(barrier), 1, bytes); }
inline void barrier_wait(uint32_t barrier, uint32_t phase) {
  unsigned const& now = host::barrier_at(barrier).phase;
  while (now % 2 == phase) host::wait_for_change(now);
}
inline bool test_wait(uint32_t barrier, uint32_t phase) { return host::barrier_at(barrier).phase % 2 != phase; }
inline void fence_view_async_shared() {}
inline uint64_t load_global(void const* from, bool holds) {
  uint64_t word = 0;
  if (holds) std::memcpy(&word, from, sizeof(word));
  return word;
}
template <int Name>
void named_barrier_sync(int threads) {
  host::wait(host::named(Name, threads));
}
template <int Name>
void named_barrier_arrive(int threads) {
  host::arrive(host::named(Name, threads));
}
inline void consumers_sync() { host::wait(host::consumers[host::rank_of_block()].both); }
inline void consumer_sync(int consumer) { host::wait(host::consumers[host::rank_of_block()].each[consumer]); }

inline void cluster_arrive_relaxed() { host::arrive_at_cluster(); }
inline void cluster_arrive() {
  host::deliver(host::block->current);
  host::arrive_at_cluster();
}
inline void cluster_wait() { host::wait_for_cluster(); }
inline int block_rank_in_cluster() { return host::rank_of_block(); }
inline void barrier_arrive_cluster(uint32_t barrier) {
  host::send(host::block->current, barrier, [=] { barrier_arrive(barrier); });
}
inline void barrier_wait_cluster(uint32_t barrier) { barrier_wait(barrier, 0); }
template <class Words>
void store_async(uint32_t to, Words const& words, uint32_t barrier) {
  std::array<char, sizeof(words)> copied;
  std::memcpy(copied.data(), &words, sizeof(words));
  host::send(host::block->current, to, [=] {
    std::memcpy(host::at(to), copied.data(), sizeof(copied));
    host::arrive(host::barrier_at(barrier), 0, -int64_t(sizeof(copied)));
  });
}

inline void copy_to_cluster(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
  host::send(host::block->current, to, [=, copied = std::vector<char>(host::at(from), host::at(from) + bytes)] {
    std::memcpy(host::at(to), copied.data(), copied.size());
    host::arrive(host::barrier_at(barrier), 0, -int64_t(bytes));
  });
}

template <class Accumulator>
uint32_t word_of(Accumulator sum) {
  uint32_t word;
  std::memcpy(&word, &sum, sizeof(word));
  return word;
}
template <class Accumulator>
Accumulator sum_of(uint32_t word) {
  Accumulator sum;
  std::memcpy(&sum, &word, sizeof(sum));
  return sum;
}
/// bf16 of whole numbers up to 256, whose differences are exact.
inline uint32_t subtract_two(element::bf16, uint32_t from, uint32_t two) {
  auto const difference = [&](int shift) {
    return element::rounded(element::load(element::bf16{uint16_t(from >> shift)}) -
                            element::load(element::bf16{uint16_t(two >> shift)}));
  };
  return difference(0) | difference(16) << 16;
}
inline uint32_t subtract_two(element::f16, uint32_t, uint32_t) { std::abort(); }
inline uint32_t multiply_add_two(element::bf16, uint32_t x, uint32_t y, uint32_t z) {
  auto const total = [&](int shift) {
    auto const number = [&](uint32_t two) { return element::load(element::bf16{uint16_t(two >> shift)}); };
    return element::rounded(number(x) * number(y) + number(z));
  };
  return total(0) | total(16) << 16;
}
inline uint32_t multiply_add_two(element::f16, uint32_t, uint32_t, uint32_t) { std::abort(); }
inline float multiply_here(float x, float y) { return x * y; }
inline uint32_t computed_here(uint32_t value) { return value; }
inline uint32_t select_bytes(uint32_t first, uint32_t second, uint32_t selector) {
  uint64_t const bytes = uint64_t(second) << 32 | first;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t const digit = selector >> 4 * i & 15, byte = uint32_t(bytes >> 8 * (digit % 8)) & 0xff;
    result |= (digit < 8 ? byte : byte >= 0x80 ? 0xff : 0) << 8 * i;
  }
  return result;
}
inline uint32_t inverted_or(uint32_t word, uint32_t mask, uint32_t others) { return (~word & mask) | others; }
inline uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t others) { return (word & mask) | others; }
inline void store_shared(uint32_t address, float2 two) { std::memcpy(host::at(address), &two, sizeof(two)); }
inline void store_shared(uint32_t address, float4 const& four) { std::memcpy(host::at(address), &four, sizeof(four)); }
inline float2 load_shared_two(uint32_t address) {
  float2 two;
  std::memcpy(&two, host::at(address), sizeof(two));
  return two;
}
inline float load_shared_float(uint32_t address) { return *reinterpret_cast<float*>(host::at(address)); }
inline void store_shared_float(uint32_t address, float value) { *reinterpret_cast<float*>(host::at(address)) = value; }
inline uint32_t load_shared_word(uint32_t address) { return *reinterpret_cast<uint32_t*>(host::at(address)); }
inline uint32_t load_shared_half(uint32_t address) { return *reinterpret_cast<uint16_t*>(host::at(address)); }
inline uint32_t load_shared_byte(uint32_t address) { return uint8_t(*host::at(address)); }
inline void load_shared(uint32_t (&to)[2], uint32_t address) { std::memcpy(to, host::at(address), sizeof(to)); }
inline void load_cluster(uint32_t (&to)[4], uint32_t address) {
  host::require_running(host::rank_of(address));
  std::memcpy(to, host::at(address), sizeof(to));
}
inline void load_shared(uint32_t (&to)[4], uint32_t address) { std::memcpy(to, host::at(address), sizeof(to)); }

inline void store_shared(uint32_t address, uint32_t const (&from)[2]) { std::memcpy(host::at(address), from, sizeof(from)); }
inline void store_shared(uint32_t address, uint32_t const (&from)[4]) {
  std::memcpy(host::at(address), from, sizeof(from));
}
inline void store_shared_half(uint32_t address, uint32_t half) { std::memcpy(host::at(address), &half, 2); }
inline void store_shared_byte(uint32_t address, uint32_t byte) { *host::at(address) = char(byte); }
inline void store_shared(uint32_t address, uint32_t word) { std::memcpy(host::at(address), &word, sizeof(word)); }

template <int Size>
void copy_word_async(uint32_t to, void const* from, int bytes) {
  std::memset(host::at(to), 0xff, Size);
  host::groups_of_thread().back().push_back([=, to = host::at(to)] {
    std::memset(to, 0, Size);
    std::memcpy(to, from, size_t(bytes));
  });
}
inline void copy_chunk_async(uint32_t to, void const* from, int bytes) { copy_word_async<16>(to, from, bytes); }
inline void copies_commit() { host::groups_of_thread().emplace_back(); }
template <int Later>
void copies_wait() {
  host::Groups& groups = host::groups_of_thread();
  for (; groups.size() > Later + 1; groups.pop_front()) {
    for (auto const& copy : groups.front()) copy();
  }
}

inline void prefetch_tma_descriptor(CUtensorMap const&) {}
template <class... Places>
void tma_load(uint32_t to, CUtensorMap const& map, uint32_t barrier, Places... places) {
  host::load(to, map, barrier, {places...});
}
struct CachePolicy {
  bool evicts_first;
};
inline constexpr CachePolicy kEvictNormal{false}, kEvictFirst{true};
/// The number of loads whose lines leave L2 first.
inline int first_out = 0;
template <class... Places>
void tma_load(uint32_t to, CUtensorMap const& map, uint32_t barrier, CachePolicy policy, Places... places) {
  first_out += policy.evicts_first;
  host::load(to, map, barrier, {places...});
}
template <class... Places>
void tma_load_multicast(uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, Places... places) {
  for (int rank = 0; rank < host::kMaxBlocks; ++rank) {
    if ((receivers >> rank & 1) == 0) continue;
    host::require_running(rank);
    host::load(set_block_rank(to, rank), map, set_block_rank(barrier, rank), {places...});
  }
}
template <class... Places>
void tma_store(CUtensorMap const& map, uint32_t from, Places... places) {
  host::TmaMap const& to = host::map_of(map);
  host::for_each_element(to, from, {places...}, [&](bool is_inside, char* global, char const* shared) {
    if (is_inside) std::memcpy(global, shared, size_t(to.element_bytes));
  });
}
inline void tma_store_arrive() {}
inline void tma_store_wait() {}

inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
/// The lanes of a warp multiply together.
template <int Pending>
void warpgroup_wait() {
  __syncwarp();
}
/// Each lane computes its own sums from the operands of all.
inline void multiply_by_warp(element::bf16, float* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  static Operands of_lanes[host::kMaxBlocks * 32][32];
  int const lane = int(threadIdx.x) % 32;
  Operands* const lanes = of_lanes[host::block->current / 32];
  std::copy(a, a + 4, lanes[lane].a);
  std::copy(b, b + 2, lanes[lane].b);
  __syncwarp();
  auto const element = [](uint32_t word, int k) { return element::load(element::bf16{uint16_t(word >> k % 2 * 16)}); };
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) {
      float const of_a = element(lanes[lane / 4 * 4 + k % 8 / 2].a[i / 2 + k / 8 * 2], k);
      sums[i] += of_a * element(lanes[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2].b[k / 8], k);
    }
  }
  __syncwarp();
}
template <class Accumulator>
void warpgroup_fence_operand(Accumulator&) {}
template <class Value>
void hide_origin(Value&) {}
template <int Registers>
void warpgroup_reg_alloc() {}
template <int Registers>
void warpgroup_reg_dealloc() {}

inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t address) { host::load_matrices<4>(to, address); }
inline void ldmatrix_rows_x4(uint32_t (&to)[4], uint32_t address) {
  int const lane = int(threadIdx.x) % 32;
  for (int i = 0; i < 4; ++i) to[i] = load_shared_word(host::exchange(address, 8 * i + lane / 4) + uint32_t(lane % 4 * 4));
}
inline void ldmatrix_x2(uint32_t (&to)[4], uint32_t address) { host::load_matrices<2>(to, address); }
inline void stmatrix_x4(uint32_t address, uint32_t const (&from)[4]) { host::store_matrices<4>(address, from); }
inline void stmatrix_rows_x4(uint32_t address, uint32_t const (&from)[4]) {
  int const lane = int(threadIdx.x) % 32;
  for (int i = 0; i < 4; ++i) store_shared(host::exchange(address, 8 * i + lane / 4) + uint32_t(lane % 4 * 4), from[i]);
}
inline void stmatrix_x2(uint32_t address, uint32_t const (&from)[4]) { host::store_matrices<2>(address, from); }
inline void stmatrix_x1(uint32_t address, uint32_t const (&from)[4]) { host::store_matrices<1>(address, from); }

template <int Dimensions>
struct TmaTensor {
  CUtensorMapDataType type;
  int element_bytes;
  void const* pointer;
  int64_t extents[Dimensions];
  int64_t strides[Dimensions - 1];
  int box[Dimensions];
  int steps[3];
  int row_bytes;

  bool encode(CUtensorMap& map) const {
    host::TmaMap made{static_cast<char*>(const_cast<void*>(pointer)), Dimensions, element_bytes, row_bytes, {}, {}, {}, {}};
    for (int i = 0; i < Dimensions; ++i) {
      made.extents[i] = extents[i];
      made.strides[i] = (i == 0 ? 1 : strides[i - 1]) * element_bytes;
      made.steps[i] = i > 0 && i < 4 && steps[i - 1] > 0 ? steps[i - 1] : 1;
      made.box[i] = (box[i] + made.steps[i] - 1) / made.steps[i];
    }
    size_t const number = host::maps.size();
    host::maps.push_back(made);
    std::memcpy(&map, &number, sizeof(number));
    return true;
  }
};

}  // namespace kit
}  // namespace evt
