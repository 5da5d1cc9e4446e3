#ifndef EVT_KIT_SHARED_MEMORY_HPP
#define EVT_KIT_SHARED_MEMORY_HPP

// Loads and stores of shared memory by threads, of 8 x 8 matrices by warps, and copies from global memory by threads.

#include <cstdint>

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"

namespace evt {
namespace kit {

CUTLASS_DEVICE void load_shared(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

CUTLASS_DEVICE void load_shared(uint32_t (&to)[2], uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
}

CUTLASS_DEVICE void store_shared(uint32_t address, uint32_t const (&from)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

CUTLASS_DEVICE void store_shared(uint32_t address, uint32_t const (&from)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(from[0]), "r"(from[1]) : "memory");
}

CUTLASS_DEVICE void store_shared(uint32_t address, float2 two) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(two.x), "f"(two.y) : "memory");
}

CUTLASS_DEVICE void store_shared(uint32_t address, float4 const& four) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
               : "memory");
}

CUTLASS_DEVICE void load_cluster(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// Load from the shared memory of a CTA of the cluster.
CUTLASS_DEVICE float2 load_shared_two(uint32_t address) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address) : "memory");
  return two;
}

CUTLASS_DEVICE float load_shared_float(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
CUTLASS_DEVICE void store_shared_float(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
CUTLASS_DEVICE uint32_t load_shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
CUTLASS_DEVICE uint32_t load_shared_half(uint32_t address) {
  uint16_t half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
  return half;
}

CUTLASS_DEVICE uint32_t load_shared_byte(uint32_t address) {
  uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address) : "memory");
  return byte;
}

CUTLASS_DEVICE void store_shared_half(uint32_t address, uint32_t half) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(uint16_t(half)) : "memory");
}
CUTLASS_DEVICE void store_shared_byte(uint32_t address, uint32_t byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(byte) : "memory");
}
CUTLASS_DEVICE void store_shared(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// Four or two 8 x 8 matrices of 16-bit elements, transposed. A lane gives the address of a row of a matrix.

CUTLASS_DEVICE void ldmatrix_x4(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// The matrices as they are: a lane has two neighbours of a row.
CUTLASS_DEVICE void ldmatrix_rows_x4(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

CUTLASS_DEVICE void ldmatrix_x2(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address)
               : "memory");
}

CUTLASS_DEVICE void stmatrix_x4(uint32_t address, uint32_t const (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

CUTLASS_DEVICE void stmatrix_rows_x4(uint32_t address, uint32_t const (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

CUTLASS_DEVICE void stmatrix_x2(uint32_t address, uint32_t const (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               ::"r"(address), "r"(from[0]), "r"(from[1])
               : "memory");
}

CUTLASS_DEVICE void stmatrix_x1(uint32_t address, uint32_t const (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(from[0]) : "memory");
}

// Copies by threads.

/// Copy the first bytes of a word of Size bytes to shared memory, and zeros after them.
template <int Size>
CUTLASS_DEVICE void copy_word_async(uint32_t to, void const* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Size), "r"(bytes) : "memory");
}

/// The same for 16 bytes, which bypass L1. L2 fetches their neighbours, too.
CUTLASS_DEVICE void copy_chunk_async(uint32_t to, void const* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/// Make a group of the thread's copies since the last group.
CUTLASS_DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Wait until the thread's copies are in shared memory, except the last Later groups.
template <int Later>
CUTLASS_DEVICE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Later) : "memory");
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_SHARED_MEMORY_HPP
