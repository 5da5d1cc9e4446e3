// The threads of a block, or of the blocks of a cluster, on the host, one running at a time: each gives way where it
// waits for its warp, its block or its cluster. Writes to other blocks, arrivals there, and loads by TMA come as late as they
// can: once no thread can go on without them, in a random order.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime.h>

inline uint3 threadIdx, blockIdx;
inline dim3 gridDim;

namespace host {

struct Barrier {
  int expected = 0, waiting = 0;
  unsigned passed = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t values[32];
};

/// A thread waits as long as the number at `awaited` is `unchanged`. `setjmp` and `longjmp` switch between threads without
/// a system call, which `swapcontext` makes for the mask of signals.
struct Thread {
  ucontext_t start;
  jmp_buf point;
  bool begun = false, done = false;
  unsigned const* awaited = nullptr;
  unsigned unchanged = 0;
  unsigned arrived = 0;  // the phase of the cluster's barrier at which it has arrived

  bool waits() const { return awaited != nullptr && *awaited == unchanged; }
};

/// Not a thread.
inline constexpr int kTma = -1;

/// A write or an arrival that a thread, or TMA, has sent to a block.
struct Sent {
  int from, to;
  std::function<void()> come;
};

struct Block {
  std::function<void()> body;
  std::vector<Sent> sent;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Barrier> of_blocks;
  Barrier of_cluster;
  std::vector<int> running;  // threads of each block
  int threads_of_block = 0;
  jmp_buf caller;
  int current = 0;
  unsigned progress = 0;
  uint32_t random = 0;
};

inline Block* block = nullptr;
inline std::vector<std::unique_ptr<char[]>> stacks;  // all blocks use them

inline int rank_of_block() { return block->current / block->threads_of_block; }

/// Let the other threads run until a number changes.
inline void wait_for_change(unsigned const& number) {
  Thread& thread = block->threads[size_t(block->current)];
  thread.awaited = &number;
  thread.unchanged = number;
  if (_setjmp(thread.point) == 0) _longjmp(block->caller, 1);
}

/// Arrive at a barrier without waiting. Return whether all threads have arrived.
inline bool arrive(Barrier& barrier) {
  if (++barrier.waiting < barrier.expected) return false;
  barrier.waiting = 0;
  ++barrier.passed;
  ++block->progress;
  return true;
}

inline void wait(Barrier& barrier) {
  if (!arrive(barrier)) wait_for_change(barrier.passed);
}

/// Arrive at the cluster's barrier, and wait for the others later.
inline void arrive_at_cluster() {
  Barrier& barrier = block->of_cluster;
  block->threads[size_t(block->current)].arrived = barrier.passed;
  if (++barrier.waiting < barrier.expected) return;
  barrier.waiting = 0;
  ++barrier.passed;
  ++block->progress;
}
inline void wait_for_cluster() {
  Thread const& thread = block->threads[size_t(block->current)];
  while (block->of_cluster.passed == thread.arrived) wait_for_change(block->of_cluster.passed);
}

/// Exit if a block has ended: its shared memory is another block's.
inline void require_running(int number) {
  if (block->running[size_t(number)] > 0) return;
  std::fprintf(stderr, "access to the shared memory of a block that has ended\n");
  std::exit(4);
}

inline void come(Sent const& sent) {
  require_running(sent.to);
  sent.come();
}

/// Let one write or arrival come.
inline void deliver_any() {
  std::vector<Sent>& sent = block->sent;
  block->random = block->random * 1664525 + 1013904223;
  std::swap(sent[(block->random >> 8) % sent.size()], sent.back());
  Sent const one = std::move(sent.back());
  sent.pop_back();
  come(one);
}

/// Let the writes and arrivals of a thread come.
inline void deliver(int from) {
  std::vector<Sent> sent, later;
  for (Sent& each : block->sent) (each.from == from ? sent : later).push_back(std::move(each));
  block->sent = std::move(later);
  for (Sent const& each : sent) come(each);
}

inline void enter() {
  block->body();
  block->threads[size_t(block->current)].done = true;
  --block->running[size_t(rank_of_block())];
  ++block->progress;
  _longjmp(block->caller, 1);
}

/// Run a thread up to where it waits next, or to its end.
__attribute__((noinline)) inline void go_on(Thread& thread) {
  if (_setjmp(block->caller) != 0) return;
  if (thread.begun) _longjmp(thread.point, 1);
  thread.begun = true;
  setcontext(&thread.start);
}

/// Run a function in each of the threads of some blocks. Exits where all of them wait.
inline void run(int threads_of_block, std::function<void()> body, int blocks = 1) {
  int const count = threads_of_block * blocks;
  constexpr size_t kStack = 1 << 18;
  Block made;
  made.body = std::move(body);
  made.threads.resize(size_t(count));
  while (stacks.size() < size_t(count)) stacks.emplace_back(new char[kStack]);
  made.warps.resize(size_t(count) / 32);
  for (Warp& warp : made.warps) warp.barrier.expected = 32;
  made.threads_of_block = threads_of_block;
  made.of_blocks.resize(size_t(blocks));
  for (Barrier& each : made.of_blocks) each.expected = threads_of_block;
  made.running.assign(size_t(blocks), threads_of_block);
  made.of_cluster.expected = count;
  block = &made;
  for (int i = 0; i < count; ++i) {
    ucontext_t& start = made.threads[size_t(i)].start;
    getcontext(&start);
    start.uc_stack.ss_sp = stacks[size_t(i)].get();
    start.uc_stack.ss_size = kStack;
    start.uc_link = nullptr;
    makecontext(&start, enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    unsigned const before = made.progress;
    for (made.current = 0; made.current < count; ++made.current) {
      Thread& thread = made.threads[size_t(made.current)];
      left = left || !thread.done;
      if (thread.done || thread.waits()) continue;
      threadIdx = {unsigned(made.current % threads_of_block), 0, 0};
      go_on(thread);
    }
    if (made.progress == before && !made.sent.empty()) {
      deliver_any();
    } else if (left && made.progress == before) {
      std::fprintf(stderr, "threads wait for others that have gone on\n");
      std::exit(3);
    }
  }
  block = nullptr;
}

template <class T>
T exchange(T value, int source) {
  static_assert(sizeof(T) <= 8, "a register or two");
  Warp& warp = block->warps[size_t(block->current / 32)];
  std::memcpy(&warp.values[block->current % 32], &value, sizeof(T));
  wait(warp.barrier);
  std::memcpy(&value, &warp.values[source % 32], sizeof(T));
  wait(warp.barrier);
  return value;
}

}  // namespace host

template <class T>
T __shfl_sync(unsigned, T value, int source) { return host::exchange(value, source); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) { return host::exchange(value, (host::block->current % 32) ^ mask); }
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  int const lane = host::block->current % 32;
  return host::exchange(value, lane < distance ? lane : lane - distance);
}
inline void __syncwarp() { host::wait(host::block->warps[size_t(host::block->current / 32)].barrier); }
inline void __syncthreads() { host::wait(host::block->of_blocks[size_t(host::rank_of_block())]); }

inline uint32_t __ballot_sync(unsigned, bool vote) {
  uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= uint32_t(host::exchange(vote, lane)) << lane;
  return votes;
}
template <class T>
T __shfl_sync(unsigned, T value, int source, int width) {
  return host::exchange(value, host::block->current % 32 / width * width + source);
}

// Functions of numbers, and loads.

inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __double2int_rn(double x) { return int(std::nearbyint(x)); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline float __int_as_float(int bits) { return __uint_as_float(uint32_t(bits)); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  uint64_t const bytes = uint64_t(y) << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}

inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return uint32_t((uint64_t(high) << 32 | low) >> shift % 32);
}

template <class T>
T __ldg(T const* from) {
  return *from;
}

// One thread runs at a time.
template <class T>
T atomicAdd(T* at, T value) { T const before = *at; *at = before + value; return before; }
template <class T>
T atomicMax(T* at, T value) { T const before = *at; *at = before < value ? value : before; return before; }
template <class T>
T atomicMin(T* at, T value) { T const before = *at; *at = value < before ? value : before; return before; }
