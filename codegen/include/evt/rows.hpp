#ifndef EVT_ROWS_HPP
#define EVT_ROWS_HPP

// Copies of matrices that TMA cannot load: rows begin at lines of L2. A job of finish.hpp makes a copy.

#include <cstdint>

#include "cutlass/cutlass.h"

#include "evt/finish.hpp"

namespace evt {

/// The elements from one row of a copy to the next: whole lines.
template <int Line>
CUTLASS_HOST_DEVICE constexpr int64_t pitch_of(int64_t columns) {
  return (columns + Line - 1) / Line * Line;
}

/// Copy matrices [batches][rows][columns] with contiguous columns. Elements are bits.
template <class Element_>
struct RowsJob {
  using Element = Element_;
  static constexpr int kElements = 4 / static_cast<int>(sizeof(Element));  // of a word
  static constexpr int kWords = 8;                                         // of a lane
  static constexpr int kPiece = 32 * kWords * kElements;                   // elements that a warp copies at a time

  Element const* from;
  Element* to;
  int64_t batches, rows, columns;
  int64_t stride_batch, stride_row, pitch;

  CUTLASS_HOST_DEVICE int64_t pieces_of_row() const { return (columns + kPiece - 1) / kPiece; }
  CUTLASS_HOST_DEVICE int64_t pieces() const { return batches * rows * pieces_of_row(); }
};

#if !defined(EVT_DEVICE_PASS)
template <class Element>
inline int64_t finish_blocks(RowsJob<Element> const& job) {
  constexpr int64_t kMostBlocks = 1 << 20, kWarps = kFinishThreads / 32;
  int64_t const blocks = (job.pieces() + kWarps - 1) / kWarps;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}
#endif

/// Load a word that is read once.
CUTLASS_DEVICE uint32_t load_once(uint32_t const* from) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  asm("ld.global.cs.b32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
#else
  return *from;
#endif
}

/// One warp per piece of a row. Lanes load words that begin at multiples of 4 bytes. A word of the copy has the end of a
/// word and the beginning of the next one, which the next lane has.
template <class Element>
CUTLASS_DEVICE void finish(RowsJob<Element> const& job) {
  using Job = RowsJob<Element>;
  constexpr int kWarps = kFinishThreads / 32, kBytes = sizeof(Element), kWordBytes = 4;
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int64_t const of_row = job.pieces_of_row(), pieces = job.pieces(), step = int64_t(gridDim.x) * kWarps;
  for (int64_t piece = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; piece < pieces; piece += step) {
    int64_t const row = piece / of_row, batch = job.batches == 1 ? 0 : row / job.rows;
    int64_t const first = (piece - row * of_row) * Job::kPiece;
    uint64_t const begin = reinterpret_cast<uint64_t>(
        job.from + batch * job.stride_batch + (row - batch * job.rows) * job.stride_row + first);
    int const before = static_cast<int>(begin % kWordBytes);  // bytes of the first word
    uint32_t const* const from = reinterpret_cast<uint32_t const*>(begin - before);
    int64_t const left = (job.columns - first) * kBytes;
    auto const load = [&](int word) { return word * kWordBytes < left + before ? load_once(from + word) : 0u; };
    uint32_t words[Job::kWords + 1];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Job::kWords; ++i) words[i] = load(i * 32 + lane);
    if (before > 0) {
      words[Job::kWords] = lane == 0 ? load(Job::kWords * 32) : 0u;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Job::kWords; ++i) {
        uint32_t const next = __shfl_sync(0xffffffffu, lane == 0 ? words[i + 1] : words[i], (lane + 1) % 32);
        words[i] = __funnelshift_r(words[i], next, 8 * before);
      }
    }
    uint32_t* __restrict__ const to = reinterpret_cast<uint32_t*>(job.to + row * job.pitch + first);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Job::kWords; ++i) {
      if ((i * 32 + lane) * kWordBytes < left) to[i * 32 + lane] = words[i];
    }
  }
}

}  // namespace evt

#endif  // EVT_ROWS_HPP
