#ifndef EVT_KIT_GEMM_WORK_HPP
#define EVT_KIT_GEMM_WORK_HPP

// The shared memory of a CTA, the tiles that it computes, and the rows of a thread.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/kit/gemm_params.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// Places in shared memory.
template <class Traits>
struct GemmStorage {
  uint32_t stages, rings, factors, barriers, table, bits, loads, exchanges;

  CUTLASS_DEVICE explicit GemmStorage(char* storage) {
    stages = (cast_smem_ptr_to_uint(storage) + kAlignment - 1) / kAlignment * kAlignment;
    rings = stages + Traits::kStages * Traits::kStageBytes;
    factors = rings + Traits::kRings * Traits::kRingBytes;
    barriers = factors + Traits::kStages * Traits::Scaled::kBytes;
    table = barriers + Traits::kBarrierBytes;
    bits = table + Traits::kTableBytes;
    loads = bits + Traits::kRings * Traits::kBitsBytes;
    uint32_t const end = loads + Traits::kConsumers * Traits::kBlocks * Traits::kLoadedBytes;
    exchanges = Traits::kSumsBeside ? ceil_div(end, kAlignmentOfSums) * kAlignmentOfSums : stages + (Traits::kCopiesSums ? Traits::kOutgoingBytes : 0);
  }

  CUTLASS_DEVICE uint32_t rows(int stage) const { return stages + stage * Traits::kStageBytes; }
  CUTLASS_DEVICE uint32_t columns(int stage) const { return rows(stage) + Traits::kBoxes * Traits::kRowsBytes; }
  CUTLASS_DEVICE uint32_t scales(int stage) const { return factors + stage * Traits::Scaled::kBytes; }
  CUTLASS_DEVICE uint32_t full(int stage) const { return barriers + 16 * stage; }
  CUTLASS_DEVICE uint32_t empty(int stage) const { return barriers + 16 * stage + 8; }
  /// The ordered barriers at which a pingpong consumer waits for the tensor cores, and for its epilogue.
  CUTLASS_DEVICE uint32_t order(int consumer) const { return of_consumer(consumer, 0); }
  CUTLASS_DEVICE uint32_t order_of_epilogues(int consumer) const { return of_consumer(consumer, 1); }
  /// Barriers of a tile that CTAs share: all have multiplied, their partial sums have come, and this CTA's are copied.
  CUTLASS_DEVICE uint32_t multiplied() const { return of_consumer(0, 2); }
  CUTLASS_DEVICE uint32_t exchanged(int consumer) const { return of_consumer(consumer, 3); }
  CUTLASS_DEVICE uint32_t copied() const { return of_consumer(1, 2); }
  /// The barrier of a CTA's first stage: once it is there, C may be loaded.
  CUTLASS_DEVICE uint32_t begun() const { return of_consumer(0, 4); }
  /// A buffer of a ring and its barriers: C is there, or D may be written; and D is there.
  CUTLASS_DEVICE uint32_t buffer(int ring, int index) const {
    return rings + ring * Traits::kRingBytes + index * Traits::kPartBytes;
  }
  CUTLASS_DEVICE uint32_t ready(int ring, int index) const {
    return barriers + 8 * Traits::kBarriers + 16 * (ring * Traits::kBuffers + index);
  }
  CUTLASS_DEVICE uint32_t written(int ring, int index) const { return ready(ring, index) + 8; }
  /// The packed bits of a part's rows.
  CUTLASS_DEVICE uint32_t words(int ring) const { return bits + ring * Traits::kBitsBytes; }
  /// The packed bits that are loaded for the rows of a consumer's block.
  CUTLASS_DEVICE uint32_t loaded(int consumer, int block) const {
    return loads + (consumer * Traits::kBlocks + block) * Traits::kLoadedBytes;
  }
  /// The partial sums that a CTA sends for a consumer.
  CUTLASS_DEVICE uint32_t sums(int consumer, int split) const {
    return exchanges + (consumer * Traits::kSplits + split) * Traits::kSumsBytes;
  }
  /// The partial sums of a consumer that a CTA completes, before they are copied.
  CUTLASS_DEVICE uint32_t outgoing(int consumer, int to) const {
    return stages + (consumer * Traits::kCompleting + to) * Traits::kSumsBytes;
  }

  /// The table of groups: the end of the rows before a group, and its first tile of clusters.
  CUTLASS_DEVICE int& end_of(int group) const { return entry(2 * group); }
  CUTLASS_DEVICE int& first_cluster(int group) const { return entry(2 * group + 1); }
  /// Return the group that has a tile of clusters.
  CUTLASS_DEVICE int group_of(int groups, int cluster) const {
    int first = 0;
    for (int last = groups; last - first > 1;) {
      int const middle = (first + last) / 2;
      (first_cluster(middle) <= cluster ? first : last) = middle;
    }
    return first;
  }

 private:
  CUTLASS_DEVICE int& entry(int index) const {
    return *static_cast<int*>(__cvta_shared_to_generic(table + 4 * index));
  }
  CUTLASS_DEVICE uint32_t of_consumer(int consumer, int which) const {
    return barriers + 16 * Traits::kMaxStages + 8 * (consumer * Traits::kConsumerBarriers + which);
  }
};

/// A tile of a CTA. `number` counts the tiles of clusters. The tile has rows before `end`, of one group or batch.
template <class Traits>
struct GemmWork {
  int tile, row, end, column, first_block, k_blocks, group;
  bool reads_once;  // whether tiles that have its columns of B read them at the same time, if other tiles have them

  CUTLASS_DEVICE GemmWork(
      GemmParams<Traits> const& params, GemmStorage<Traits> const& storage, int number, int rank) {
    int row_clusters = params.row_clusters, first_row = 0;
    end = params.rows;
    group = 0;
    if constexpr (Traits::kGrouped) {
      group = storage.group_of(params.groups, number / params.column_clusters);
      int const first = storage.first_cluster(group);
      number -= first * params.column_clusters;
      row_clusters = storage.first_cluster(group + 1) - first;
      first_row = storage.end_of(group);
      end = storage.end_of(group + 1);
    }
    if constexpr (Traits::kBatched) {
      int const of_batch = row_clusters * params.column_clusters;
      group = number / of_batch;
      number -= group * of_batch;
    }
    reads_once = row_clusters <= params.band && (!Traits::kBatched || params.b_step != 0);
    int const of_band = params.band * params.column_clusters;
    int const band = number / of_band, within = number - band * of_band;
    int const height = min(params.band, row_clusters - band * params.band);
    int const across = within / height, down = band * params.band + within - across * height;
    int const split = rank / Traits::kMulticast;
    rank -= split * Traits::kMulticast;
    tile = down * Traits::kClusterRows + rank / Traits::kClusterColumns;
    row = first_row + tile * Traits::kPixels;
    // The last tile then has some rows of the tile before, too, and completes them to the same values.
    if (Traits::kBeginsEarly && !params.once) {
      constexpr int kHalf = kStepPixels / 2;  // rows of tiles begin at a multiple
      row = min(row, max(ceil_div(end - Traits::kPixels, kHalf) * kHalf, 0));
    }
    column = (across * Traits::kClusterColumns + rank % Traits::kClusterColumns) * Traits::kColumns;
    first_block = params.k_blocks * split / Traits::kSplits;
    k_blocks = params.k_blocks * (split + 1) / Traits::kSplits - first_block;
  }

  /// The first tile of clusters that a CTA computes, the distance to its next one, and the number of all.
  CUTLASS_DEVICE static int first_number() { return blockIdx.x / Traits::kClusterSize; }
  CUTLASS_DEVICE static int step() { return gridDim.x / Traits::kClusterSize; }
  CUTLASS_DEVICE static int count(GemmParams<Traits> const& params, GemmStorage<Traits> const& storage) {
    int const row_clusters = Traits::kGrouped ? storage.first_cluster(params.groups) : params.row_clusters;
    return row_clusters * params.column_clusters * (Traits::kBatched ? params.batches : 1);
  }
};

/// Tabulate the groups. Ends that descend or exceed the rows give empty groups.
template <class Traits>
CUTLASS_DEVICE void tabulate_groups(GemmParams<Traits> const& params, GemmStorage<Traits> const& storage) {
  constexpr int kTall = Traits::kPixels * Traits::kClusterRows;
  for (int i = threadIdx.x; i <= params.groups; i += Traits::kThreads) {
    storage.end_of(i) = i == 0 ? 0 : min(max(params.ends[i - 1], 0), params.rows);
  }
  __syncthreads();
  if (canonical_warp_idx_sync() == 0) {
    int const lane = threadIdx.x % 32;
    int before = 0;
    for (int first = 0; first <= params.groups; first += 32) {
      int const group = first + lane;
      bool const exists = group < params.groups;
      int const clusters =
          exists ? ceil_div(max(storage.end_of(group + 1) - storage.end_of(group), 0), kTall) : 0;
      int sum = clusters;
      CUTLASS_PRAGMA_UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        int const other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (group <= params.groups) storage.first_cluster(group) = before + sum - clusters;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
  }
  __syncthreads();
}

/// The matrix rows of a thread's elements, for successive steps, from row `within` of a tile on.
struct GemmRows {
  int row, rows, number;
  uint32_t words, loaded;

  /// Packed bits in shared memory: of row 0 at `words`, and of the tile's rows at `loaded`.
  CUTLASS_DEVICE GemmRows(int first, int within, int rows, uint32_t words = 0, uint32_t loaded = 0)
      : row(first + within + threadIdx.x % 4 * 2), rows(rows), number(within / kStepPixels), words(words),
        loaded(loaded) {}

  CUTLASS_DEVICE void next(fragment::Places& places) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; ++i) {
      int const here = row + i / 2 * 8 + i % 2;
      places.rows[i] = here < rows ? here : -1;
    }
    row += kStepPixels;
    places.number = number++;
    places.words = words;
    places.loaded = loaded;
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_WORK_HPP
