#ifndef EVT_KIT_GEMM_EXCHANGE_HPP
#define EVT_KIT_GEMM_EXCHANGE_HPP

// The exchange of partial sums between the CTAs of a cluster that split the k of a tile. Each CTA completes some rows, or
// none. A consumer sends the sums of other rows to the same consumer there. Few sums have separate memory, and each
// thread sends its sums from registers. Other sums take the memory of the stages, once all CTAs have multiplied. Then TMA
// copies them, if the memory also has room for the sums before they are sent.

#include <cstdint>

#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// The exchange of a consumer of a CTA. `split` is the CTA's part of k, and `within` its rank among the CTAs of that part.
template <class Traits>
struct GemmExchange {
  using Accumulator = typename Traits::Accumulator;
  using Storage = GemmStorage<Traits>;
  using Sums = Accumulator[Traits::kBlocks][Traits::kSums];
  using Completed = Accumulator[Traits::kBlocks][Traits::kCompleted / 2];

  Storage const& storage;
  int split, within, consumer;

  CUTLASS_DEVICE GemmExchange(Storage const& storage, int rank, int consumer)
      : storage(storage), split(rank / Traits::kMulticast), within(rank % Traits::kMulticast), consumer(consumer) {}

  /// Initialize the barriers of a consumer, by one thread.
  CUTLASS_DEVICE static void initialize(Storage const& storage, int rank, int consumer) {
    constexpr int kArrivals = Traits::kCopiesSums ? 1 : Traits::kConsumers * kWarpGroup / 32;  // of a CTA
    if (consumer == 0) barrier_init(storage.multiplied(), Traits::kSplits * kArrivals);
    if (Traits::kCopiesSums && consumer == 0) {
      barrier_init(storage.copied(), max(receivers(rank / Traits::kMulticast) * Traits::kConsumers, 1));
    }
    barrier_init(storage.exchanged(consumer), 1);
    arrive_and_expect_tx(storage.exchanged(consumer), (Traits::kSplits - Traits::kCopiesSums) * Traits::kSumsBytes);
  }

  /// Send the partial sums to the CTAs that complete them.
  CUTLASS_DEVICE void send(Sums const& sums) const {
    if constexpr (Traits::kCopiesSums) {
      copy(sums);
    } else {
      send_from_registers(sums);
    }
  }

  /// Wait for the partial sums of the rows that this CTA completes, and add them in the order of the parts of k.
  CUTLASS_DEVICE void receive(Completed& sums) const {
    // The sums come from the CTAs, and from both consumers by stages of each.
    constexpr int kOfCta = Traits::kByStages ? Traits::kConsumers : 1, kSources = Traits::kSplits * kOfCta;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfCta; ++i) barrier_wait_cluster(storage.exchanged(consumer + i));
    if constexpr (Traits::kCopiesSums) {
      int const thread = threadIdx.x % kWarpGroup;
      if (thread < Traits::kSplits && thread != split) barrier_arrive_cluster(of_part(storage.copied(), thread));
    }
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Traits::kQuadsOfSplit; ++i) {
        uint32_t words[kSources][4];
        CUTLASS_PRAGMA_UNROLL
        for (int from = 0; from < kSources; ++from) {
          int const part = from / kOfCta;
          bool const is_own = Traits::kCopiesSums && part == split;
          uint32_t const sums_of_part = is_own ? storage.outgoing(consumer, part) : storage.sums(consumer + from % kOfCta, part);
          load_shared(words[from], sums_of_part + place(block, i));
        }
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) {
          Accumulator& sum = sums[block][4 * i + j];
          sum = sum_of<Accumulator>(words[0][j]);
          CUTLASS_PRAGMA_UNROLL
          for (int from = 1; from < kSources; ++from) sum += sum_of<Accumulator>(words[from][j]);
        }
      }
    }
  }

  /// Wait until other CTAs have this CTA's partial sums, which are copied from its memory.
  CUTLASS_DEVICE void wait_for_copies() const {
    if constexpr (Traits::kCopiesSums) {
      if (receivers(split) > 0) barrier_wait(storage.copied(), 0);
    }
  }

 private:
  static constexpr int kQuads = Traits::kPixels / 8;  // of a block of a thread

  /// The other CTAs that complete rows of the tile.
  CUTLASS_DEVICE static int receivers(int split) { return Traits::kCompleting - (split < Traits::kCompleting); }
  /// An address in the CTA that has another part of k.
  CUTLASS_DEVICE uint32_t of_part(uint32_t address, int part) const {
    return set_block_rank(address, part * Traits::kMulticast + within);
  }
  /// The place of four sums of the thread. The sums of a block follow one another: a quad of each thread, then the next one.
  CUTLASS_DEVICE static uint32_t place(int block, int quad) {
    return threadIdx.x % kWarpGroup * 16 + (block * Traits::kQuadsOfSplit + quad) * Traits::kQuadBytes;
  }
  /// Four sums as words. An accumulator's register must not be sent itself: ptxas would serialise WGMMA (C7514).
  CUTLASS_DEVICE static void words_of(uint32_t (&quad)[4], Accumulator const* sums) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) quad[j] = word_of(sums[j] + Accumulator(0));
  }

  CUTLASS_DEVICE void send_from_registers(Sums const& sums) const {
    if constexpr (!Traits::kSumsBeside) {
      int const lane = threadIdx.x % 32;
      if (lane < Traits::kSplits) barrier_arrive_cluster(of_part(storage.multiplied(), lane));
      barrier_wait(storage.multiplied(), 0);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kQuads; ++i) {
        int const to = i / Traits::kQuadsOfSplit;
        uint32_t quad[4];
        words_of(quad, sums[block] + 4 * i);
        store_async(of_part(storage.sums(consumer, split) + place(block, i % Traits::kQuadsOfSplit), to), quad,
                    of_part(storage.exchanged(consumer), to));
      }
    }
  }

  CUTLASS_DEVICE void copy(Sums const& sums) const {
    consumers_sync();  // the other consumer has multiplied, and its stages are free
    bool const is_first_warp = threadIdx.x % kWarpGroup < 32;
    int const lane = threadIdx.x % 32;
    if (consumer == 0 && is_first_warp && lane < Traits::kSplits) {
      barrier_arrive_cluster(of_part(storage.multiplied(), lane));
    }
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kQuads; ++i) {
        uint32_t quad[4];
        words_of(quad, sums[block] + 4 * i);
        store_shared(storage.outgoing(consumer, i / Traits::kQuadsOfSplit) + place(block, i % Traits::kQuadsOfSplit), quad);
      }
    }
    fence_view_async_shared();
    consumer_sync(consumer);
    if (is_first_warp && elect_one_sync()) {
      barrier_wait(storage.multiplied(), 0);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i < Traits::kSplits; ++i) {
        int const to = (split + i) % Traits::kSplits;
        if (to >= Traits::kCompleting) continue;
        copy_to_cluster(of_part(storage.sums(consumer, split), to), storage.outgoing(consumer, to), Traits::kSumsBytes,
                        of_part(storage.exchanged(consumer), to));
      }
    }
    __syncwarp();
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_EXCHANGE_HPP
