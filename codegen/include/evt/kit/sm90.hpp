#ifndef EVT_KIT_SM90_HPP
#define EVT_KIT_SM90_HPP

// Instructions of sm90 for kernels without CuTe, under CUTLASS's names where it has one. Shared memory has 32-bit
// addresses. Here are barriers, clusters and multiplications. shared_memory.hpp moves data between registers and shared
// memory, and tma.hpp between shared and global memory.

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "evt/element.hpp"
#include "evt/kit/shared_memory.hpp"
#include "evt/kit/tma.hpp"

namespace evt {
namespace kit {

CUTLASS_DEVICE uint32_t cast_smem_ptr_to_uint(void const* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The number of the thread's warp. The compiler knows that it is uniform.
CUTLASS_DEVICE int canonical_warp_idx_sync() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

/// Whether the thread acts for its warp. The compiler then knows that one thread is active. With `threadIdx.x % 32 ==
/// 0` it puts a loop over the warp's threads around each instruction with uniform operands, such as TMA's.
CUTLASS_DEVICE bool elect_one_sync() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

// Barriers (mbarrier). A phase ends when all arrivals and all expected bytes have come.

CUTLASS_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Make initialized barriers visible to other threads and to TMA.
CUTLASS_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

CUTLASS_DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

CUTLASS_DEVICE void arrive_and_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

CUTLASS_DEVICE bool try_wait(uint32_t barrier, uint32_t phase) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(phase)
      : "memory");
  return passed != 0;
}

/// Return whether a phase has ended, without suspending the thread.
CUTLASS_DEVICE bool test_wait(uint32_t barrier, uint32_t phase) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(phase)
      : "memory");
  return passed != 0;
}

/// Wait for the end of a phase: 0 is the first phase, 1 the phase before it, which has always ended.
CUTLASS_DEVICE void barrier_wait(uint32_t barrier, uint32_t phase) {
  while (!try_wait(barrier, phase)) {
  }
}

/// Make writes of threads to shared memory visible to TMA and WGMMA.
CUTLASS_DEVICE void fence_view_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Wait for all consumers, of two warpgroups.
CUTLASS_DEVICE void consumers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

/// Load 8 bytes if a predicate holds, without a branch; else return 0.
CUTLASS_DEVICE uint64_t load_global(void const* from, bool holds) {
  uint64_t word;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b64 %0, 0; @p ld.global.b64 %0, [%1]; }"
               : "=&l"(word)
               : "l"(from), "r"(uint32_t(holds))
               : "memory");
  return word;
}

/// Arrive at a named barrier of the CTA, or wait for it: of a number of threads, whole warps.
template <int Name>
CUTLASS_DEVICE void named_barrier_arrive(int threads) {
  asm volatile("bar.arrive %0, %1;" ::"n"(Name), "r"(threads) : "memory");
}
template <int Name>
CUTLASS_DEVICE void named_barrier_sync(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(Name), "r"(threads) : "memory");
}

/// Wait for the threads of a consumer, a warpgroup.
CUTLASS_DEVICE void consumer_sync(int consumer) { asm volatile("bar.sync %0, 128;" ::"r"(2 + consumer) : "memory"); }

// Clusters. The shared memory of another CTA has another address.

/// Arrive at the cluster's barrier, after fence_barrier_init: initialized barriers are then visible to the threads that
/// wait. Other memory would need a release, which takes a microsecond.
CUTLASS_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
/// Arrive at the cluster's barrier: writes to shared memory are then visible to the threads that wait.
CUTLASS_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
/// Wait until all threads of the cluster have arrived.
CUTLASS_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

CUTLASS_DEVICE int block_rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}

CUTLASS_DEVICE uint32_t set_block_rank(uint32_t address, int block) {
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(block));
  return result;
}

/// Arrive at a barrier of a CTA of the cluster. A release at the scope of the cluster would take a microsecond.
CUTLASS_DEVICE void barrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Write to the memory of a CTA. Its barrier counts the bytes, so that no thread arrives at it.
CUTLASS_DEVICE void store_async(uint32_t to, uint32_t const (&words)[4], uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
               : "memory");
}

/// Write two numbers to the memory of a CTA, whose barrier counts the bytes.
CUTLASS_DEVICE void store_async(uint32_t to, float2 two, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
               ::"r"(to), "f"(two.x), "f"(two.y), "r"(barrier)
               : "memory");
}

/// Write four numbers to the memory of a CTA, whose barrier counts the bytes.
CUTLASS_DEVICE void store_async(uint32_t to, float4 const& four, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(to), "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w), "r"(barrier)
               : "memory");
}

/// Copy contiguous bytes of shared memory to a CTA of the cluster, whose barrier counts them. TMA copies them.
CUTLASS_DEVICE void copy_to_cluster(uint32_t to, uint32_t from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Wait for the first phase of a barrier, and for the writes of other CTAs before its end.
CUTLASS_DEVICE void barrier_wait_cluster(uint32_t barrier) {
  uint32_t passed = 0;
  while (!passed) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(barrier)
        : "memory");
  }
}

// Partial sums as words.

CUTLASS_DEVICE uint32_t word_of(float sum) { return __float_as_uint(sum); }
CUTLASS_DEVICE uint32_t word_of(int sum) { return uint32_t(sum); }
template <class Accumulator>
CUTLASS_DEVICE Accumulator sum_of(uint32_t word) {
  if constexpr (std::is_same_v<Accumulator, float>) {
    return __uint_as_float(word);
  } else {
    return Accumulator(word);
  }
}

/// Subtract two elements of 16 bits from two others.
CUTLASS_DEVICE uint32_t subtract_two(element::f16, uint32_t from, uint32_t two) {
  uint32_t result;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(result) : "r"(from), "r"(two));
  return result;
}
CUTLASS_DEVICE uint32_t subtract_two(element::bf16, uint32_t from, uint32_t two) {
  uint32_t result;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(from), "r"(two));
  return result;
}

/// Return a value that the compiler does not split into its terms. Constants that are added become offsets of loads.
CUTLASS_DEVICE uint32_t computed_here(uint32_t value) {
  asm("" : "+r"(value));
  return value;
}

/// Return four of eight bytes, or 0 or 0xff by a byte's sign where the digit of the selector is 8 more.
CUTLASS_DEVICE uint32_t select_bytes(uint32_t first, uint32_t second, uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(first), "r"(second), "r"(selector));
  return result;
}

/// Return the bits of a word that are in a mask, with others set. The compiler takes two instructions for two constants.
CUTLASS_DEVICE uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t others) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(others));
  return result;
}

/// Return the inverted bits of a word that are in a mask, with others set.
CUTLASS_DEVICE uint32_t inverted_or(uint32_t word, uint32_t mask, uint32_t others) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xae;" : "=r"(result) : "r"(word), "r"(mask), "r"(others));
  return result;
}

/// x * y + z for two elements each.
CUTLASS_DEVICE uint32_t multiply_add_two(element::f16, uint32_t x, uint32_t y, uint32_t z) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return result;
}
CUTLASS_DEVICE uint32_t multiply_add_two(element::bf16, uint32_t x, uint32_t y, uint32_t z) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return result;
}

// WGMMA

/// Order the first multiplication after writes to accumulators.
CUTLASS_DEVICE void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CUTLASS_DEVICE void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Wait until all but the last `Pending` groups are done.
template <int Pending>
CUTLASS_DEVICE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Order reads of an accumulator after the wait for its multiplications.
CUTLASS_DEVICE void warpgroup_fence_operand(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
CUTLASS_DEVICE void warpgroup_fence_operand(int& sum) { asm volatile("" : "+r"(sum)::"memory"); }

// Multiplications of a warp: 16 rows of `a` by 8 rows of `b`, over 32 bytes of k. The product is added to the sums.

CUTLASS_DEVICE void multiply_by_warp(element::bf16, float* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
CUTLASS_DEVICE void multiply_by_warp(element::f16, float* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
CUTLASS_DEVICE void multiply_by_warp(int8_t, int* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
CUTLASS_DEVICE void multiply_by_warp(uint8_t, int* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Return a product that the compiler computes here and not where it is used.
CUTLASS_DEVICE float multiply_here(float x, float y) {
  float product;
  asm volatile("mul.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
  return product;
}

/// Hide the origin of a value: the compiler computes the values that depend on it anew.
CUTLASS_DEVICE void hide_origin(int& value) { asm volatile("" : "+r"(value)); }
CUTLASS_DEVICE void hide_origin(uint32_t& value) { asm volatile("" : "+r"(value)); }
CUTLASS_DEVICE void hide_origin(int64_t& value) { asm volatile("" : "+l"(value)); }

// Registers of a warpgroup.

template <int Registers>
CUTLASS_DEVICE void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
CUTLASS_DEVICE void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_SM90_HPP
