#ifndef EVT_KIT_GEMM_HPP
#define EVT_KIT_GEMM_HPP

// A persistent, warp-specialised matrix product for sm90, in clusters that share their loads.
//
// The product is transposed: M of WGMMA are columns of D, N are rows. A consumer has up to three blocks of 64 columns.
// Warp group 0 produces: warp 0 loads stages of A and B by TMA, warps 1 and 2 move C and D, one for each consumer. Warp
// groups 1 and 2 consume. Cooperating consumers share the rows of a tile, each with its columns. Pingpong consumers have
// a tile each: one multiplies while the other computes its epilogue, and ordered barriers pass the tensor cores on.
//
// Consumers by rows are not transposed: M of WGMMA are 64 rows of a consumer, N all columns of the tile. A thread then has
// two rows, and reads two factors of rows for a stage instead of one for each two sums.
//
// The tiles of a cluster's CTAs are neighbours. CTAs with the same rows share the rows of A, and CTAs with the same columns
// the rows of B: each loads a part and sends it to all (TMA multicast). A stage is free once the consumers of all
// receivers have released it.
//
// Splits of k: the CTAs of a cluster multiply parts of k of one tile. Once all have multiplied, each sends its partial
// sums to the CTAs that complete them, through the stages' shared memory, and completes some rows itself. The order of
// addition is fixed.
//
// Consumers by stages have the same columns, and every other stage of a tile each. They split k as the CTAs of a cluster do,
// so that few columns keep many SMs busy.
//
// Filters of another type than the rows of A are converted in registers, from which WGMMA takes its operand A. Consumers
// convert a stage while they multiply the one before.
//
// Factors of A and B that are constant over blocks of k multiply the sums of a stage when these are promoted. Warp 3
// loads them, stages ahead.
//
// Pairs of columns: one block has the first columns of 64 pairs, the other block the second ones. So a thread has both
// columns of a pair, and D has a block of 64 columns for both.
//
// Tiles are computed in bands of rows, so that the tiles of a wave read few rows of A and of B from L2.
//
// Groups: consecutive rows of A and D have a matrix B each. The ends of the groups are in device memory. Each CTA tabulates
// the tiles of the groups before its first tile. A tile has rows of one group. It loads rows beyond the group's end, whose
// results it does not store.
//
// Batches: a product for each, of matrices that are any strides apart. Batches may share a matrix.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/converted.hpp"
#include "evt/kit/descriptor.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/scales.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/step.hpp"
#include "evt/kit/strips.hpp"
#include "evt/kit/taps.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace kit {

/// The lanes of the epilogue.
using Lanes = fragment::LanesOfWgmma;
template <int Distance>
using LanesOfPairs = fragment::LanesOfPairs<Distance>;
inline constexpr int kMaxRowBytes = 128;

/// The tile of a CTA: blocks of 64 columns for each consumer, whether consumers are pingpong, and the CTAs of a cluster
/// along columns, rows and k. Promotes: the sums of a stage are added in f32. Mma has the rows. Grouped: groups of rows
/// have a matrix B each. ByRows: each consumer has 64 rows, and Mma the columns. Pairs: a thread has pairs of columns with
/// this distance, and D half of the columns; 0 without pairs. Batched: there are several products. ByStages: consumers
/// have the same columns, and every other stage. Dual: another matrix has the second columns of pairs.
template <int Blocks, bool Pingpong, int ClusterColumns, int ClusterRows, int Splits, bool Promotes = false,
          bool Grouped = false, bool ByRows = false, int Pairs = 0, bool Batched = false, bool ByStages = false,
          bool Dual = false>
struct GemmTile {
  static constexpr int kBlocks = Blocks;
  static constexpr bool kPingpong = Pingpong;
  static constexpr int kClusterColumns = ClusterColumns, kClusterRows = ClusterRows, kSplits = Splits;
  static constexpr bool kPromotes = Promotes, kGrouped = Grouped, kByRows = ByRows, kBatched = Batched;
  static constexpr bool kByStages = ByStages, kDual = Dual;
  static constexpr int kPairs = Pairs;
};

/// The rows of a part of C and D, which has a buffer: the largest divisor of a tile's rows in whole steps up to `most`. If
/// the rows end with half a step, the last part has fewer rows than the others.
CUTLASS_HOST_DEVICE constexpr int rows_of_part(int rows, int most) {
  if (rows % kStepPixels != 0) return std::min(rows, most);
  int found = kStepPixels;
  for (int each = kStepPixels; each <= most; each += kStepPixels) found = rows % each == 0 ? each : found;
  return found;
}

/// The most groups of a product.
inline constexpr int kMaxGroups = 1024;

/// The types and constants of a product over stages of Depth elements of k.
template <class Mma_, class Epilogue_, int Depth, class Tile, class Scales_, class Conversion_>
struct GemmTraits {
  using Mma = Mma_;
  using Epilogue = Epilogue_;
  using Scales = Scales_;
  using Conversion = Conversion_;
  using Accumulator = typename Mma::Accumulator;
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;
  // Boxes of k in a stage. TMA swizzles rows of at most 128 bytes.
  static constexpr int kBoxes = ceil_div(Depth * Mma::kElementBytes, kMaxRowBytes), kBoxDepth = Depth / kBoxes;
  using Filters = std::conditional_t<Conversion::kPacked, PackedRows,
                                     FilterRows<Conversion::kBytes, Conversion::kConverts ? Depth : kBoxDepth,
                                                Mma::kTransposed>>;
  static constexpr int kBoxesOfFilters = Conversion::kConverts ? 1 : kBoxes;
  using Fragments = typename Conversion::template Rows<Filters::kRowBytes>::Fragments;

  static constexpr bool kByRows = Tile::kByRows, kByStages = Tile::kByStages;
  // WGMMA's blocks of a consumer, of 64 columns or rows, and the sums that a thread has of each.
  static constexpr int kDepth = Depth, kBlocks = kByRows ? 1 : Tile::kBlocks, kSums = Mma::kPixels / 2;
  // Tensor cores add products of 8-bit floats with few bits. Sums of a stage are added to the accumulators in f32.
  static constexpr bool kPromotes = Tile::kPromotes;
  // Registers for the sums of two stages beside the accumulators.
  static constexpr bool kPromotesBehind = 3 * kBlocks * kSums <= (Conversion::kConverts ? 96 : 192);
  static constexpr bool kPingpong = Tile::kPingpong;
  static constexpr int kClusterColumns = Tile::kClusterColumns, kClusterRows = Tile::kClusterRows;
  static constexpr int kMulticast = kClusterColumns * kClusterRows;  // CTAs that share loads
  static constexpr int kSplits = Tile::kSplits, kClusterSize = kMulticast * kSplits;
  static constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpGroup;
  // Consumers of a stage.
  static constexpr int kOfStage = kPingpong || kByStages ? 1 : kConsumers;
  static constexpr bool kGrouped = Tile::kGrouped, kBatched = Tile::kBatched;
  static constexpr bool kManyB = kGrouped || kBatched;  // whether TMA loads B from several matrices
  static constexpr int kTableBytes = kGrouped ? 8 * (kMaxGroups + 1) : 0;

  static constexpr int kPixels = kByRows ? kConsumers * kFilters : Mma::kPixels;  // rows of a tile
  static constexpr int kColumnBlocks = Tile::kBlocks * (kByRows ? 1 : kOfStage);
  static constexpr int kColumns = kColumnBlocks * kFilters;
  static constexpr int kSteps = ceil_div(kPixels, kStepPixels);
  static constexpr int kPairs = Tile::kPairs;  // the distance of the columns of a pair, or 0
  static constexpr bool kPaired = kPairs > 0, kDual = Tile::kDual;
  static constexpr int kMembers = kPaired ? 2 : 1;  // blocks of the product for each block of D
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr bool kStaged = kLoadsSource || kStoresDestination;
  // Bytes of an element of C and D, which have one buffer, and of a row of a block.
  static constexpr int kStoredBytes = sizeof(std::conditional_t<kStoresDestination, Destination, element::bf16>);
  static constexpr int kEpilogueRow = kStoredBytes * kFilters;

  static constexpr int kRowBytes = kBoxDepth * Mma::kElementBytes;
  static constexpr int kRowsBytes = kPixels * kRowBytes;  // of A in a box
  static constexpr int kStageBytes = kBoxes * kRowsBytes + kBoxesOfFilters * kColumnBlocks * Filters::kBytes;
  static constexpr int kInstructions = kRowBytes / kDepthBytes;  // of a box and block
  // Steps of a split tile that a CTA completes, and four sums of a thread in half a step.
  static constexpr int kStepsOfSplit = ceil_div(kSteps, kSplits), kQuadsOfSplit = std::min(2 * kStepsOfSplit, kPixels / 8);
  static constexpr int kQuadBytes = kWarpGroup * 16, kSumsBytes = kBlocks * kQuadsOfSplit * kQuadBytes;
  static constexpr int kCompleted = std::min(kStepsOfSplit * kStepPixels, kPixels);  // rows of a block
  // Tiles of rows that reductions keep a part for.
  static constexpr int kRowTiles = kByRows ? kPixels / kStepPixels : kSplits;
  // Buffers of parts of C and D are used in order: a ring for each cooperating consumer, one for pingpong consumers, whose
  // epilogues take turns, and one for consumers by stages. C of a tile is loaded early. Parts of D wait for the stores of the
  // parts before.
  static constexpr int kRings = kOfStage;
  static constexpr int kMostRows = kGrouped && kCompleted % kStepPixels != 0 ? kCompleted : kPingpong ? 64 : 32;
  static constexpr int kPartRows = kByRows ? kFilters : rows_of_part(kCompleted, kMostRows);
  static constexpr int kPartsOfBlock = kByRows ? 1 : ceil_div(kCompleted, kPartRows);
  static constexpr int kLastRows = kByRows ? kPartRows : kCompleted - (kPartsOfBlock - 1) * kPartRows;
  // TMA moves parts of different rows in boxes of half a step, which are as high as the swizzle's pattern.
  static constexpr int kBoxRows = kLastRows == kPartRows ? kPartRows : kStepPixels / 2;
  static constexpr int kParts = kPartsOfBlock * (kByRows ? kColumnBlocks : kBlocks) / kMembers;
  static constexpr int kPartBytes = kPartRows * kEpilogueRow;
  // Steps whose elements threads load before they are needed, if no parts of C and D are moved: registers limit them.
  static constexpr int kAhead = kStaged || kBlocks * kSums > 128 ? 1 : 3;
  using Scaled = ScaleTile<Scales, kPixels, kColumns, kByRows, kPairs>;  // the factors of a stage
  // Stages whose factors are loaded at once, where these are neighbours: a stage of a packed B takes little time.
  static constexpr int kRun = Conversion::kPacked ? 4 : 1;
  static constexpr int kMaxStages = 12, kConsumerBarriers = 4, kBarriers = 2 * kMaxStages + kConsumers * kConsumerBarriers;
  static constexpr int kBarrierBytes = 8 * (kBarriers + 2 * kRings * kParts);
  static constexpr int kFreeBytes = kSharedBytes - kAlignment - kBarrierBytes - kTableBytes;
  // Few buffers leave room for stages. C has all that fit beside these. Cooperating consumers wait for its parts.
  static constexpr int kFewOfC = kByRows ? kParts : kPingpong ? 3 : ceil_div(128, kPartRows);
  static constexpr int kFewOfD = kByRows ? 2 : kPingpong ? 3 : 4;
  static constexpr int kManyBuffers = !kStaged ? 0 : std::min(kParts, kLoadsSource ? kFewOfC : kFewOfD);
  CUTLASS_HOST_DEVICE static constexpr int stages_beside(int buffers) {
    int const fitting = (kFreeBytes - kRings * buffers * kPartBytes) / (kStageBytes + Scaled::kBytes);
    // A consumer by stages has the same stages in each round. If the consumers took turns at a stage, one of them could
    // wait for a load before the load for the other one is there. The parity of the barrier does not tell these apart.
    int const together = kByStages ? kConsumers : 1;
    return std::min(kMaxStages, fitting) / together * together;
  }
  // A fourth stage is worth more than a third buffer.
  static constexpr bool kFewer = kManyBuffers > 2 && stages_beside(kManyBuffers) == 3 && stages_beside(2) == 4;
  static constexpr int kFewBuffers = kFewer ? 2 : kManyBuffers;
  static constexpr int kStages = stages_beside(kFewBuffers);
  static constexpr int kFitting = (kFreeBytes - kStages * (kStageBytes + Scaled::kBytes)) / (kRings * kPartBytes);
  static constexpr int kBuffers = kLoadsSource ? std::min(kParts, kFitting) : kFewBuffers;  // of a ring
  static constexpr int kRingBytes = kBuffers * kPartBytes;
  // Whether the last tile of rows may begin early. TMA takes long for rows that do not exist, and all tiles wait.
  static constexpr bool kBeginsEarly = !kGrouped && !Scaled::kExists;
  static_assert(kStages >= 2, "two stages fit in shared memory");
  static_assert(!kLoadsSource || kStoredBytes == 2, "C has 16 bits");
  static_assert(kPromotes || !Scales::kMultiply, "factors multiply the sums of a stage");
  static_assert(!Conversion::kPacked || Depth == PackedRows::kDepth, "a stage has whole tiles of packed filters");
  static_assert(Conversion::kPacked || !Scales::kHasZeros, "packed filters have zero points");
  static_assert(kPixels * kRowBytes % kAlignment == 0, "B begins where the swizzle does");
  static_assert(kPixels / kClusterColumns % 8 == 0, "a part of the rows of A begins where the swizzle does");
  static_assert(kColumnBlocks % kClusterRows == 0, "each CTA loads whole blocks of B");
  static_assert(kSplits == 1 || (!kPingpong && kPixels % kCompleted == 0), "whole parts are completed");
  static_assert(kSplits == 1 || !kGrouped, "groups have no splits of k");
  static_assert(!kByStages || (kSplits > 1 && !kPaired), "consumers by stages exchange their sums");
  static_assert(!kByStages || kStages % kConsumers == 0, "a consumer by stages has the same stages in each round");
  static_assert(!kByRows || (Mma::kPixels == kColumns && kPromotes && !kPingpong && kSplits == 1 && kBoxes == 1 &&
                             !Mma::kTransposed && !Conversion::kConverts),
                "consumers by rows promote the sums of operands that are contiguous along k");
  static_assert(!kBatched || (!kGrouped && !Conversion::kPacked), "groups of rows, and packed filters, have no batches");
  static_assert(!kPaired || (kBlocks == 2 && !kByRows && !kLoadsSource && !Mma::kTransposed && !Conversion::kPacked),
                "pairs are rows of B in two blocks");
  static_assert(!kDual || (kPairs == 1 && !kManyB), "two matrices have the columns of neighbouring pairs, without batches");
  static_assert(kSplits == 1 || kConsumers * kSplits * kSumsBytes <= kStages * kStageBytes,
                "partial sums fit in the stages");
};

template <class Traits>
struct GemmArguments {
  int rows, columns, depth;
  void const* a;
  int64_t a_stride;  // rows of A, or its k if it is contiguous along rows
  void const* b;
  int64_t b_stride, b_group_stride;
  void const* partner;  // the matrix of the second columns of pairs, if it is not B
  int64_t partner_stride;
  void const* c;
  int64_t c_stride;
  void* d;
  int64_t d_stride;
  int batches;
  int64_t a_batch_stride, b_batch_stride, c_batch_stride, d_batch_stride;  // 0 if batches share the matrix
  bool once;  // whether elements are completed once: reductions count them, or an output overwrites a matrix that is read
  int32_t const* ends;  // the end of each group's rows, in device memory
  int groups;
  typename Traits::Epilogue::Params epilogue;
  typename Traits::Scales::Params scales;
  int multiprocessors;
};

template <class Traits>
struct GemmParams {
  CUtensorMap a, b, partner, source, destination;
  typename Traits::Epilogue::Params epilogue;
  typename Traits::Scales::Params scales;
  int rows, columns;
  int k_blocks;
  int row_clusters, column_clusters;  // tiles of clusters
  int band;                           // row clusters whose tiles are neighbours in time
  int grid;
  bool encoded, once;
  int32_t const* ends;
  int groups;
  int batches, a_step, b_step, c_step;  // matrices from one batch to the next: 1, or 0 if batches share one
};

/// Places in shared memory.
template <class Traits>
struct GemmStorage {
  uint32_t stages, rings, factors, barriers, table;

  CUTLASS_DEVICE explicit GemmStorage(char* storage) {
    stages = (cast_smem_ptr_to_uint(storage) + kAlignment - 1) / kAlignment * kAlignment;
    rings = stages + Traits::kStages * Traits::kStageBytes;
    factors = rings + Traits::kRings * Traits::kRingBytes;
    barriers = factors + Traits::kStages * Traits::Scaled::kBytes;
    table = barriers + Traits::kBarrierBytes;
  }

  CUTLASS_DEVICE uint32_t rows(int stage) const { return stages + stage * Traits::kStageBytes; }
  CUTLASS_DEVICE uint32_t columns(int stage) const { return rows(stage) + Traits::kBoxes * Traits::kRowsBytes; }
  CUTLASS_DEVICE uint32_t scales(int stage) const { return factors + stage * Traits::Scaled::kBytes; }
  CUTLASS_DEVICE uint32_t full(int stage) const { return barriers + 16 * stage; }
  CUTLASS_DEVICE uint32_t empty(int stage) const { return barriers + 16 * stage + 8; }
  /// The ordered barriers at which a pingpong consumer waits for the tensor cores, and for its epilogue.
  CUTLASS_DEVICE uint32_t order(int consumer) const { return of_consumer(consumer, 0); }
  CUTLASS_DEVICE uint32_t order_of_epilogues(int consumer) const { return of_consumer(consumer, 1); }
  /// Barriers of a tile that CTAs share: all have multiplied, and their partial sums have come.
  CUTLASS_DEVICE uint32_t multiplied() const { return of_consumer(0, 2); }
  CUTLASS_DEVICE uint32_t exchanged(int consumer) const { return of_consumer(consumer, 3); }
  /// A buffer of a ring and its barriers: C is there, or D may be written; and D is there.
  CUTLASS_DEVICE uint32_t buffer(int ring, int index) const {
    return rings + ring * Traits::kRingBytes + index * Traits::kPartBytes;
  }
  CUTLASS_DEVICE uint32_t ready(int ring, int index) const {
    return barriers + 8 * Traits::kBarriers + 16 * (ring * Traits::kBuffers + index);
  }
  CUTLASS_DEVICE uint32_t written(int ring, int index) const { return ready(ring, index) + 8; }
  /// The partial sums that a CTA sends for a consumer.
  CUTLASS_DEVICE uint32_t sums(int consumer, int split) const {
    return stages + (consumer * Traits::kSplits + split) * Traits::kSumsBytes;
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
};

/// The matrix rows of a thread's elements, for successive steps, from row `within` of a tile on.
struct GemmRows {
  int row, rows, number;

  CUTLASS_DEVICE GemmRows(int first, int within, int rows)
      : row(first + within + threadIdx.x % 4 * 2), rows(rows), number(within / kStepPixels) {}

  CUTLASS_DEVICE void next(fragment::Places& places) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; ++i) {
      int const here = row + i / 2 * 8 + i % 2;
      places.rows[i] = here < rows ? here : -1;
    }
    row += kStepPixels;
    places.number = number++;
  }
};

/// A matrix product with an epilogue of fragment.hpp.
template <class Mma, class Epilogue, int Depth, class Tile, class Scales = NoScales, class Conversion = AsStored<Mma>>
struct Gemm {
  using Traits = GemmTraits<Mma, Epilogue, Depth, Tile, Scales, Conversion>;
  using Arguments = GemmArguments<Traits>;
  using Params = GemmParams<Traits>;
  using Storage = GemmStorage<Traits>;
  using Work = GemmWork<Traits>;
  using Filters = typename Traits::Filters;
  using Lanes = std::conditional_t<Traits::kPaired, LanesOfPairs<Traits::kPairs>, kit::Lanes>;

  static constexpr int MaxThreadsPerBlock = Traits::kThreads;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static constexpr int SharedStorageSize = kSharedBytes;
  static constexpr int kProducerRegisters = Scales::kExist ? 56 : 40, kConsumerRegisters = Scales::kExist ? 224 : 232;
  // Consumers wait forever for registers that producers do not give back. A thread is launched with a multiple of 8.
  static_assert(kProducerRegisters + Traits::kConsumers * kConsumerRegisters <=
                    (1 + Traits::kConsumers) * (65536 / Traits::kThreads / 8 * 8),
                "the registers that the CTA was launched with");

#if !defined(EVT_DEVICE_PASS)
  static bool can_implement(Arguments const& arguments) { return to_underlying_arguments(arguments).encoded; }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    constexpr int kClusterPixels = Traits::kPixels * Traits::kClusterRows;
    constexpr int kClusterWidth = Traits::kColumns * Traits::kClusterColumns;
    Params params{};
    params.epilogue = arguments.epilogue;
    params.scales = arguments.scales;
    params.rows = arguments.rows;
    params.columns = arguments.columns;
    params.k_blocks = std::max(ceil_div(arguments.depth, Depth), 1);
    // Each group may have a tile of few rows.
    params.row_clusters =
        Traits::kGrouped ? arguments.rows / kClusterPixels + arguments.groups : ceil_div(arguments.rows, kClusterPixels);
    params.column_clusters = ceil_div(arguments.columns, kClusterWidth);
    int const work = params.row_clusters * params.column_clusters * (Traits::kBatched ? arguments.batches : 1);
    int const resident = std::max(arguments.multiprocessors / Traits::kClusterSize, 1);
    int const clusters = Traits::kSplits > 1 ? work : std::min(work, resident);  // a cluster completes one split tile
    params.grid = clusters * Traits::kClusterSize;
    // The rows of A and of B that a wave reads are equally many.
    params.band = 1;
    while (params.band < params.row_clusters &&
           int64_t(params.band) * params.band * kClusterPixels < int64_t(clusters) * kClusterWidth) {
      ++params.band;
    }
    params.once = arguments.once;
    params.ends = arguments.ends;
    params.groups = arguments.groups;
    if constexpr (Traits::kBatched) {
      params.batches = arguments.batches;
      params.a_step = arguments.a_batch_stride != 0;
      params.b_step = arguments.b_batch_stride != 0;
      params.c_step = arguments.c_batch_stride != 0;
    }
    params.encoded = encode(arguments, params);
    return params;
  }

  /// The tiles of rows and the strips that reductions keep parts of.
  static fragment::Tiles tiles(Arguments const& arguments) {
    constexpr int kRows = Traits::kPixels * Traits::kClusterRows;
    return {ceil_div(arguments.rows, kRows) * Traits::kClusterRows * Traits::kRowTiles, strips_of(arguments.columns)};
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const&) { return dim3(Traits::kClusterSize); }
  static dim3 get_block_shape() { return dim3(Traits::kThreads); }
#endif

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Storage const storage(shared_memory);
    int const group = canonical_warp_idx_sync() / (kWarpGroup / 32);
    int const rank = Traits::kClusterSize == 1 ? 0 : block_rank_in_cluster();
    initialize(params, storage);
    __syncthreads();
    if constexpr (Traits::kClusterSize > 1) {
      cluster_arrive_relaxed();
      cluster_wait();
    }
    pdl::wait_for_kernel_before();
    if constexpr (Traits::kGrouped) tabulate(params, storage);
    if (group == 0) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      int const warp = canonical_warp_idx_sync();
      if (Traits::Scaled::kExists && warp == 3) {
        load_scales(params, storage, rank);
      } else if (elect_one_sync()) {
        if (warp == 0) load(params, storage, rank);
        if (Traits::kStaged && warp >= 1 && warp <= Traits::kRings) move_parts(params, storage, rank, warp - 1);
      }
      __syncwarp();
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, storage, rank, group - 1);
    }
#endif
  }

 private:
  CUTLASS_HOST_DEVICE static constexpr int strips_of(int columns) {
    return ceil_div(columns, kFilters) * (kFilters / Lanes::kStrip);
  }

#if !defined(EVT_DEVICE_PASS)
  /// Encode the TMA descriptors. Return whether the driver accepts them.
  static bool encode(Arguments const& arguments, Params& params) {
    constexpr int kRowsLoaded = Traits::kPixels / Traits::kClusterColumns;
    int along = Mma::kTransposed ? arguments.columns : arguments.depth;
    int rows = Mma::kTransposed ? arguments.depth : arguments.columns;
    int64_t b_stride = arguments.b_stride, b_group_stride = arguments.b_group_stride;
    if constexpr (Conversion::kPacked) {
      along = arguments.depth / Filters::kDepth * Filters::kLength;
      rows = arguments.columns / Filters::kOfTile;
      b_stride = along;
      b_group_stride = int64_t(rows) * along;
    }
    // Matrices whose dimension 2 is the batch, if there are batches.
    auto const matrix = [&](CUtensorMapDataType type, int bytes, void const* pointer, int64_t inner, int64_t outer,
                            int64_t stride, int64_t batch_stride, int box_inner, int box_outer, int row_bytes) {
      if constexpr (Traits::kBatched) {
        int64_t const batches = batch_stride == 0 ? 1 : arguments.batches;
        return TmaTensor<3>{type, bytes, pointer, {inner, outer, batches}, {stride, batch_stride == 0 ? stride : batch_stride},
                            {box_inner, box_outer, 1}, {1, 1}, row_bytes};
      } else {
        return TmaTensor<2>{type, bytes, pointer, {inner, outer}, {stride}, {box_inner, box_outer}, {1, 1}, row_bytes};
      }
    };
    bool done = matrix(Mma::kType, Mma::kElementBytes, arguments.a, arguments.depth, arguments.rows, arguments.a_stride,
                       arguments.a_batch_stride, Traits::kBoxDepth, kRowsLoaded, Traits::kRowBytes)
                    .encode(params.a);
    auto const filters = [&](void const* pointer, int64_t outer, int64_t stride) {
      return matrix(Conversion::kType, Conversion::kBytes, pointer, along, outer, stride, arguments.b_batch_stride,
                    Filters::kLength, Filters::kRows, Filters::kRowBytes);
    };
    if constexpr (Traits::kDual) {
      int64_t const of_each = rows / Traits::kMembers;
      done = done && filters(arguments.b, of_each, b_stride).encode(params.b) &&
             filters(arguments.partner, of_each, arguments.partner_stride).encode(params.partner);
    } else if constexpr (Traits::kPaired) {
      // The first columns of pairs are runs of kPairs columns, and so are the second ones.
      constexpr int kRun = Traits::kPairs;
      int64_t const stride = b_stride, run = kRun * stride, pairs = Traits::kMembers * run;
      int64_t const group = Traits::kBatched ? arguments.b_batch_stride : arguments.b_group_stride;
      bool const has_many = Traits::kGrouped || (Traits::kBatched && group != 0);
      int64_t const many = !has_many ? 1 : Traits::kBatched ? arguments.batches : arguments.groups;
      int64_t const runs = rows / (Traits::kMembers * kRun), next = has_many ? group : pairs;
      if constexpr (kRun == 1) {
        done = done && TmaTensor<4>{Conversion::kType, Conversion::kBytes, arguments.b,
                                    {along, runs, Traits::kMembers, many}, {pairs, run, next},
                                    {Filters::kLength, Filters::kRows, 1, 1}, {1, 1}, Filters::kRowBytes}
                           .encode(params.b);
      } else {
        done = done && TmaTensor<5>{Conversion::kType, Conversion::kBytes, arguments.b,
                                    {along, kRun, runs, Traits::kMembers, many}, {stride, pairs, run, next},
                                    {Filters::kLength, kRun, Filters::kRows / kRun, 1, 1}, {1, 1}, Filters::kRowBytes}
                           .encode(params.b);
      }
    } else if constexpr (Traits::kGrouped) {
      done = done && TmaTensor<3>{Conversion::kType, Conversion::kBytes, arguments.b, {along, rows, arguments.groups},
                                  {b_stride, b_group_stride},
                                  {Filters::kLength, Filters::kRows, 1}, {1, 1}, Filters::kRowBytes}
                         .encode(params.b);
    } else {
      done = done && filters(arguments.b, rows, b_stride).encode(params.b);
    }
    if constexpr (Traits::kGrouped) done = done && arguments.groups <= kMaxGroups;
    int const stored = arguments.columns / Traits::kMembers;
    auto const block = [&](CUtensorMapDataType type, void const* pointer, int64_t stride, int64_t batch_stride) {
      return matrix(type, Traits::kStoredBytes, pointer, stored, arguments.rows, stride, batch_stride, kFilters,
                    Traits::kBoxRows, Traits::kEpilogueRow);
    };
    if constexpr (Traits::kLoadsSource) {
      done = done && block(map_type<typename Traits::Source>(), arguments.c, arguments.c_stride, arguments.c_batch_stride)
                         .encode(params.source);
    }
    if constexpr (Traits::kStoresDestination && Traits::kGrouped) {
      // Dimensions 1 and 2 both step by a row. The parts of D end with dimension 1, which can be any row: see store.
      constexpr int kPartRows = Traits::kPartRows;
      constexpr int kBytes = Traits::kStoredBytes;
      void const* const begin = static_cast<char const*>(arguments.d) - kBytes * kPartRows * arguments.d_stride;
      done = done && TmaTensor<3>{map_type<typename Traits::Destination>(), kBytes, begin,
                                  {stored, kPartRows, arguments.rows + 1},
                                  {arguments.d_stride, arguments.d_stride}, {kFilters, kPartRows, 1}, {1, 1},
                                  Traits::kEpilogueRow}
                         .encode(params.destination);
    } else if constexpr (Traits::kStoresDestination) {
      done = done && block(map_type<typename Traits::Destination>(), arguments.d, arguments.d_stride,
                           arguments.d_batch_stride)
                         .encode(params.destination);
    }
    return done;
  }

  template <class T>
  static constexpr CUtensorMapDataType map_type() {
    if (sizeof(T) == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    return std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
#endif

  CUTLASS_DEVICE static void initialize(Params const& params, Storage const& storage) {
    constexpr int kWarps = kWarpGroup / 32;
    int const warp = canonical_warp_idx_sync();
    if (!elect_one_sync()) return;
    if (warp == 0) {
      prefetch_tma_descriptor(params.a);
      prefetch_tma_descriptor(params.b);
      if (Traits::kDual) prefetch_tma_descriptor(params.partner);
    }
    if (Traits::kLoadsSource && warp == 1) prefetch_tma_descriptor(params.source);
    if (Traits::kStoresDestination && warp == 2) prefetch_tma_descriptor(params.destination);
    // A CTA sends to the CTAs of its row and of its column of the cluster.
    constexpr int kReceivers = Traits::kClusterColumns + Traits::kClusterRows - 1;
    for (int i = warp; i < Traits::kStages; i += Traits::kThreads / 32) {
      barrier_init(storage.full(i), 1 + Traits::Scaled::kExists);
      barrier_init(storage.empty(i), kReceivers * kWarps * Traits::kOfStage);
    }
    if (warp < Traits::kConsumers) {
      barrier_init(storage.order(warp), kWarps);
      barrier_init(storage.order_of_epilogues(warp), kWarps);
      if constexpr (Traits::kSplits > 1) {
        if (warp == 0) barrier_init(storage.multiplied(), Traits::kSplits * Traits::kConsumers * kWarps);
        barrier_init(storage.exchanged(warp), 1);
        arrive_and_expect_tx(storage.exchanged(warp), Traits::kSplits * Traits::kSumsBytes);
      }
    }
    for (int i = warp; i < Traits::kRings * Traits::kBuffers; i += Traits::kThreads / 32) {
      barrier_init(storage.ready(0, i), 1);
      barrier_init(storage.written(0, i), kWarps);
    }
    fence_barrier_init();
  }

  CUTLASS_DEVICE static int first_work() { return blockIdx.x / Traits::kClusterSize; }
  CUTLASS_DEVICE static int next_work() { return gridDim.x / Traits::kClusterSize; }
  CUTLASS_DEVICE static int work_of(Params const& params, Storage const& storage) {
    int const row_clusters = Traits::kGrouped ? storage.first_cluster(params.groups) : params.row_clusters;
    return row_clusters * params.column_clusters * (Traits::kBatched ? params.batches : 1);
  }

  /// Tabulate the groups. Ends that descend or exceed the rows give empty groups.
  CUTLASS_DEVICE static void tabulate(Params const& params, Storage const& storage) {
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

  /// Load the stages of all tiles.
  CUTLASS_DEVICE static void load(Params const& params, Storage const& storage, int rank) {
    constexpr int kColumnRanks = Traits::kClusterColumns, kRowRanks = Traits::kClusterRows;
    constexpr int kRowsLoaded = Traits::kPixels / kColumnRanks, kBlocksLoaded = Traits::kColumnBlocks / kRowRanks;
    int const first_rank = rank / Traits::kMulticast * Traits::kMulticast, within = rank - first_rank;
    int const across = within % kColumnRanks, down = within / kColumnRanks;
    uint16_t const same_rows = ((1 << kColumnRanks) - 1) << (first_rank + down * kColumnRanks);
    uint16_t same_columns = 0;
    for (int i = 0; i < kRowRanks; ++i) same_columns |= 1 << (first_rank + i * kColumnRanks + across);
    PipelineState state;
    for (int number = first_work(); number < work_of(params, storage); number += next_work()) {
      Work const work(params, storage, number, rank);
      int const row = work.row + across * kRowsLoaded;
      CachePolicy const policy = work.reads_once ? kEvictFirst : kEvictNormal;
      int const of_b = Traits::kBatched ? work.group * params.b_step : work.group;
      for (int block = work.first_block; block < work.first_block + work.k_blocks; ++block) {
        barrier_wait(storage.empty(state.index), state.phase ^ 1);
        uint32_t const full = storage.full(state.index);
        arrive_and_expect_tx(full, Traits::kStageBytes);
        uint32_t const rows = storage.rows(state.index) + across * kRowsLoaded * Traits::kRowBytes;
        uint32_t const columns = storage.columns(state.index) + filters_of(0, down * kBlocksLoaded);
        CUTLASS_PRAGMA_UNROLL
        for (int box = 0; box < Traits::kBoxes; ++box) {
          int const k = block * Depth + box * Traits::kBoxDepth;
          load_matrix<kColumnRanks, Traits::kBatched>(rows + box * Traits::kRowsBytes, params.a, full, same_rows,
                                                      kEvictNormal, k, row, work.group * params.a_step);
          if (box >= Traits::kBoxesOfFilters) continue;
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kBlocksLoaded; ++i) {
            int const column = work.column + (down * kBlocksLoaded + i) * kFilters;
            uint32_t const to = columns + filters_of(box, i);
            if constexpr (Traits::kPaired) {
              int const number = column / kFilters, pair = number / Traits::kMembers * kFilters;
              int const member = number % Traits::kMembers;
              if constexpr (Traits::kDual) {
                CUtensorMap const& map = member == 0 ? params.b : params.partner;
                load_box<kRowRanks>(to, map, full, same_columns, policy, k, pair);
              } else if constexpr (Traits::kPairs == 1) {
                load_box<kRowRanks>(to, params.b, full, same_columns, policy, k, pair, member, of_b);
              } else {
                int const run = pair / Traits::kPairs;
                load_box<kRowRanks>(to, params.b, full, same_columns, policy, k, 0, run, member, of_b);
              }
            } else if constexpr (Conversion::kPacked) {
              load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, same_columns, policy,
                                                     block * Filters::kLength, column / Filters::kOfTile, of_b);
            } else if constexpr (Mma::kTransposed) {
              load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, same_columns, policy, column, k, of_b);
            } else {
              load_matrix<kRowRanks, Traits::kManyB>(to, params.b, full, same_columns, policy, k, column, of_b);
            }
          }
        }
        state.advance_once(1, Traits::kStages);
      }
    }
    if constexpr (Traits::kMulticast > 1) {
      // Other CTAs release the last stages, too. Their arrivals must not come after the end of this CTA.
      for (int i = 0; i < Traits::kStages; ++i) {
        barrier_wait(storage.empty(state.index), state.phase ^ 1);
        state.advance_once(1, Traits::kStages);
      }
    }
  }

  /// Load the factors of the stages of all tiles, of several stages at once where they are neighbours.
  CUTLASS_DEVICE static void load_scales(Params const& params, Storage const& storage, int rank) {
    constexpr int kRun = Traits::kRun;
    if constexpr (kRun > 1) {
      bool const whole = params.k_blocks % (kRun * Traits::kSplits) == 0;  // all CTAs have whole runs
      if (whole && Traits::Scaled::template are_neighbours<Depth, kRun>(params.scales)) {
        return load_runs<kRun>(params, storage, rank);
      }
    }
    load_runs<1>(params, storage, rank);
  }

  /// Load the factors of runs of stages. They wait in registers for the release of a stage.
  template <int Run>
  CUTLASS_DEVICE static void load_runs(Params const& params, Storage const& storage, int rank) {
    using Scaled = typename Traits::Scaled;
    constexpr int kAhead = Scaled::ahead_of(Run);
    typename Scaled::template Loaded<Run> ahead[kAhead];
    int number = first_work(), block = 0, runs = 0;
    if (number >= work_of(params, storage)) return;
    int const end = work_of(params, storage);
    Work work(params, storage, number, rank);
    typename Scaled::Places places;
    Scaled::find(places, params.scales, work.row, work.end, work.column, params.columns, work.group);
    auto const load_next = [&](int i) {
      if (number >= end) return;
      Scaled::load(ahead[i], params.scales, places, (work.first_block + block) * Depth);
      ++runs;
      block += Run;
      if (block < work.k_blocks) return;
      block = 0;
      number += next_work();
      if (number >= end) return;
      work = Work(params, storage, number, rank);
      Scaled::find(places, params.scales, work.row, work.end, work.column, params.columns, work.group);
    };
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAhead; ++i) load_next(i);
    PipelineState state;
    while (true) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (runs-- == 0) return;
        CUTLASS_PRAGMA_UNROLL
        for (int stage = 0; stage < Run; ++stage) {
          barrier_wait(storage.empty(state.index), state.phase ^ 1);
          Scaled::store(storage.scales(state.index), ahead[i], stage);
          __syncwarp();
          if (threadIdx.x % 32 == 0) barrier_arrive(storage.full(state.index));
          state.advance_once(1, Traits::kStages);
        }
        load_next(i);
      }
    }
  }

  template <int Receivers, class... Coordinates>
  CUTLASS_DEVICE static void load_box(
      uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, CachePolicy policy,
      Coordinates... coordinates) {
    if constexpr (Receivers > 1) {
      tma_load_multicast(to, map, barrier, receivers, coordinates...);
    } else {
      tma_load(to, map, barrier, policy, coordinates...);
    }
  }

  /// Load a box of a matrix, of a group or batch if there are many.
  template <int Receivers, bool Many>
  CUTLASS_DEVICE static void load_matrix(
      uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, CachePolicy policy, int c0, int c1,
      int number) {
    if constexpr (Many) {
      load_box<Receivers>(to, map, barrier, receivers, policy, c0, c1, number);
    } else {
      load_box<Receivers>(to, map, barrier, receivers, policy, c0, c1);
    }
  }

  /// The first block of columns, and the first row, of a consumer in a tile.
  CUTLASS_DEVICE static int first_block_of(int consumer) {
    return Traits::kOfStage == 1 || Traits::kByRows ? 0 : consumer * Traits::kBlocks;
  }
  /// The place of a block's filters among a stage's.
  CUTLASS_DEVICE static constexpr uint32_t filters_of(int box, int block) {
    return (box * Traits::kColumnBlocks + block) * Filters::kBytes;
  }
  CUTLASS_DEVICE static int row_of_consumer(int consumer) { return Traits::kByRows ? consumer * kFilters : 0; }

  /// Load C into the buffers of a ring, and store D.
  CUTLASS_DEVICE static void move_parts(Params const& params, Storage const& storage, int rank, int ring) {
    int const first_row = first_row_of(rank) + row_of_consumer(ring);
    if (first_row >= Traits::kPixels) return;  // this CTA completes nothing of a split tile
    auto const column_of = [&](Work const& work, int part) {
      int const column = work.column + first_block_of(ring) * kFilters;
      return column / Traits::kMembers + part / Traits::kPartsOfBlock * kFilters;
    };
    auto const row_of = [&](Work const& work, int part) {
      return work.row + first_row + part % Traits::kPartsOfBlock * Traits::kPartRows;
    };
    auto const rows_of = [](int part) {
      return part % Traits::kPartsOfBlock == Traits::kPartsOfBlock - 1 ? Traits::kLastRows : Traits::kPartRows;
    };
    auto const prepare = [&](Work const& work, int part, int index) {
      uint32_t const ready = storage.ready(ring, index);
      if constexpr (Traits::kLoadsSource) {
        arrive_and_expect_tx(ready, rows_of(part) * Traits::kEpilogueRow);
        for (int first = 0; first < rows_of(part); first += Traits::kBoxRows) {
          load_matrix<1, Traits::kBatched>(storage.buffer(ring, index) + first * Traits::kEpilogueRow, params.source, ready,
                                           0, kEvictNormal, column_of(work, part), row_of(work, part) + first,
                                           work.group * params.c_step);
        }
      } else {
        barrier_arrive(ready);
      }
    };
    int number = first_work();
    if (number >= work_of(params, storage)) return;
    Work work(params, storage, number, rank);
    for (int i = 0; i < Traits::kBuffers; ++i) prepare(work, i, i);
    PipelineState state;
    while (true) {
      number += next_work();
      bool const is_last = number >= work_of(params, storage);
      Work const next = is_last ? work : Work(params, storage, number, rank);
      for (int part = 0; part < Traits::kParts; ++part) {
        barrier_wait(storage.written(ring, state.index), state.phase);
        if constexpr (Traits::kStoresDestination) {
          for (int first = 0; first < rows_of(part); first += Traits::kBoxRows) {
            store(params, storage.buffer(ring, state.index) + first * Traits::kEpilogueRow, column_of(work, part),
                  row_of(work, part) + first, work);
          }
          tma_store_arrive();
          tma_store_wait();
        }
        int const later = part + Traits::kBuffers;
        if (later < Traits::kParts) {
          prepare(work, later, state.index);
        } else if (!is_last) {
          prepare(next, later - Traits::kParts, state.index);
        }
        state.advance_once(1, Traits::kBuffers);
      }
      if (is_last) return;
      work = next;
    }
  }

  /// Store a part of D. In groups, its rows before `end` are the last ones of dimension 1, which TMA cuts off.
  CUTLASS_DEVICE static void store(Params const& params, uint32_t buffer, int column, int row, Work const& work) {
    if constexpr (Traits::kGrouped) {
      int const rows = min(work.end - row, Traits::kPartRows);
      if (rows > 0) tma_store(params.destination, buffer, column, Traits::kPartRows - rows, row + rows);
    } else if constexpr (Traits::kBatched) {
      tma_store(params.destination, buffer, column, row, work.group);
    } else {
      tma_store(params.destination, buffer, column, row);
    }
  }

  /// The epilogues of a consumer's blocks. `columns(block)` gives the columns of a thread.
  template <class Blocks>
  struct EpiloguesOf;
  template <int... Blocks>
  struct EpiloguesOf<Indices<Blocks...>> {
    Epilogue each[sizeof...(Blocks)];

    template <class Columns>
    CUTLASS_DEVICE EpiloguesOf(typename Epilogue::Params const& params, Columns const& columns)
        : each{Epilogue(params, columns(Blocks))...} {}
  };
  using Epilogues = EpiloguesOf<IndicesTo<Traits::kBlocks>>;

  /// Multiply and complete the tiles of a consumer.
  CUTLASS_DEVICE static void consume(Params const& params, Storage const& storage, int rank, int consumer) {
    PipelineState state, buffer;
    int stride = next_work(), first = first_work();
    if constexpr (Traits::kPingpong) {
      if (consumer == 1) {
        if (threadIdx.x % 32 == 0) {
          barrier_arrive(storage.order(0));
          if constexpr (Traits::kStaged) barrier_arrive(storage.order_of_epilogues(0));
        }
        advance<Traits::kStages>(state, params.k_blocks);
        if constexpr (Traits::kStaged) advance<Traits::kBuffers>(buffer, Traits::kParts);
        first += stride;
      }
      stride *= 2;
    }
    if constexpr (Traits::kByStages) state.advance_once(consumer, Traits::kStages);
    uint32_t phase = 0;
    for (int number = first; number < work_of(params, storage); number += stride, phase ^= 1) {
      Work const work(params, storage, number, rank);
      Sums accumulators;
      CUTLASS_PRAGMA_UNROLL
      for (auto& block : accumulators) {
        CUTLASS_PRAGMA_UNROLL
        for (auto& each : block) each = 0;
      }
      if constexpr (Traits::kByRows) {
        multiply(storage, rank, consumer, work.k_blocks, state, accumulators);
        complete_rows(params, storage, work, consumer, buffer, accumulators[0],
                      IndicesTo<Traits::kColumns / Lanes::kStrip>{});
        continue;
      }
      int const column = work.column + first_block_of(consumer) * kFilters;
      // Vectors are loaded before they are needed, for all blocks.
      int const row = work.row + first_row_of(rank);
      auto const columns = [&](int block) { return columns_of(params, work, rank, column, block, row); };
      Epilogues epilogues(params.epilogue, columns);
      if constexpr (Traits::kPingpong) barrier_wait(storage.order(consumer), phase);
      if constexpr (Traits::kByStages) {
        int const stages = (work.k_blocks + 1 - consumer) / 2;
        if (stages > 0) multiply(storage, rank, consumer, stages, state, accumulators);
      } else {
        multiply(storage, rank, consumer, work.k_blocks, state, accumulators);
      }
      if constexpr (Traits::kSplits > 1) {
        exchange_and_complete(storage, work, rank, consumer, epilogues, accumulators);
        if (Traits::kByStages && consumer > 0) return;
      }
      if constexpr (Traits::kPingpong) {
        advance<Traits::kStages>(state, params.k_blocks);
        if constexpr (Traits::kStaged) barrier_wait(storage.order_of_epilogues(consumer), phase);
      }
      if constexpr (Traits::kPaired && Traits::kSplits == 1) {
        complete_pairs(storage, consumer, buffer, epilogues, accumulators, work.row, work.end);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        Epilogue& epilogue = epilogues.each[block];
        if constexpr (!Traits::kPaired && Traits::kSplits == 1) {
          complete_parts(storage, consumer, buffer, epilogue, accumulators[block], work.row, work.end);
        }
        epilogue.finish(columns(block));
      }
      if constexpr (Traits::kPingpong && Traits::kStaged) {  // consumers share the buffers
        advance<Traits::kBuffers>(buffer, Traits::kParts);
        if (threadIdx.x % 32 == 0) barrier_arrive(storage.order_of_epilogues(1 - consumer));
      }
      if constexpr (Traits::kSplits > 1) return;  // a cluster has one tile
    }
  }

  /// The columns of a thread in a block of the consumer whose columns begin at `column`, and the rows from `row` on. A
  /// warp has the strips of its pairs in both blocks one after the other.
  CUTLASS_DEVICE static fragment::Tile columns_of(
      Params const& params, Work const& work, int rank, int column, int block, int row) {
    int const thread = threadIdx.x % kWarpGroup, warp = thread / 32;
    int const strip = column / Lanes::kStrip +
                      (Traits::kPaired ? Traits::kMembers * warp + block : kFilters / Lanes::kStrip * block + warp);
    return {Lanes::column_of_strip(strip) + Lanes::first_of(thread % 32), params.columns,
            work.tile * Traits::kSplits + rank / Traits::kMulticast, strip, strips_of(params.columns), work.group,
            params.columns, row, work.end};
  }

  /// The first row of a tile that a CTA completes.
  CUTLASS_DEVICE static int first_row_of(int rank) {
    return Traits::kSplits > 1 ? rank / Traits::kMulticast * Traits::kCompleted : 0;
  }

  /// Complete the rows of a consumer, block by block of 64 columns. A warp has 16 rows of each strip of columns.
  template <int... Strips>
  CUTLASS_DEVICE static void complete_rows(Params const& params, Storage const& storage, Work const& work, int consumer,
                                           PipelineState& buffer, typename Traits::Accumulator const (&sums)[Traits::kSums],
                                           Indices<Strips...>) {
    int const warp = threadIdx.x % kWarpGroup / 32, lane = threadIdx.x % 32;
    int const row = row_of_consumer(consumer) + warp * kStepPixels;
    auto const tile_of = [&](int strip) {
      int const column = work.column + strip * Lanes::kStrip;
      return fragment::Tile{column + lane / Lanes::kRows, params.columns,
                            work.tile * Traits::kRowTiles + row / kStepPixels, column / Lanes::kStrip,
                            strips_of(params.columns), work.group, params.columns, work.row + row, work.end};
    };
    Epilogue epilogues[] = {Epilogue(params.epilogue, tile_of(Strips))...};
    constexpr int kStrips = kFilters / Lanes::kStrip;  // of a block
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kColumnBlocks; ++block) {
      int const first = block * kStrips;
      if constexpr (Traits::kStaged) barrier_wait(storage.ready(consumer, buffer.index), buffer.phase);
      complete_strips<Traits, kStrips>(epilogues + first, GemmRows(work.row + row, 0, work.end),
                                       sums + first * fragment::kElements, storage.buffer(consumer, buffer.index));
      if constexpr (Traits::kStaged) hand_over_part(storage, consumer, buffer);
      CUTLASS_PRAGMA_UNROLL
      for (int i = first; i < first + kStrips; ++i) epilogues[i].finish(tile_of(i));
    }
  }

  /// Complete rows of both blocks, whose elements at a place are a pair: the first epilogue has the first 8 pairs of a warp.
  template <int Sums>
  CUTLASS_DEVICE static void complete_pairs(
      Storage const& storage, int consumer, PipelineState& buffer, Epilogues& epilogues,
      typename Traits::Accumulator const (&sums)[Traits::kBlocks][Sums], int row, int rows) {
    typename Traits::Accumulator pairs[Traits::kMembers][Sums];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Sums; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < Traits::kMembers; ++half) pairs[half][i] = sums[i / 2 % 2][i / 4 * 4 + 2 * half + i % 2];
    }
    int const ring = Traits::kPingpong ? 0 : consumer;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < Traits::kParts; ++part) {
      int const begin = part * Traits::kPartRows;
      uint32_t const to = storage.buffer(ring, buffer.index);
      if constexpr (Traits::kStaged) barrier_wait(storage.ready(ring, buffer.index), buffer.phase);
      GemmRows const of_part(row, begin, rows);
      if (Traits::kLastRows != Traits::kPartRows && part == Traits::kParts - 1) {
        complete<Traits, Traits::kLastRows>(epilogues.each[0], of_part, pairs[0] + begin / 2, to, 0);
        complete<Traits, Traits::kLastRows>(epilogues.each[1], of_part, pairs[1] + begin / 2, to, 1);
      } else {
        complete<Traits, Traits::kPartRows>(epilogues.each[0], of_part, pairs[0] + begin / 2, to, 0);
        complete<Traits, Traits::kPartRows>(epilogues.each[1], of_part, pairs[1] + begin / 2, to, 1);
      }
      if constexpr (Traits::kStaged) hand_over_part(storage, ring, buffer);
    }
  }

  /// Let a producer store a part of D.
  CUTLASS_DEVICE static void hand_over_part(Storage const& storage, int ring, PipelineState& buffer) {
    fence_view_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(storage.written(ring, buffer.index));
    buffer.advance_once(1, Traits::kBuffers);
  }

  /// Complete rows of a block, from `row` on, part by part.
  template <int Sums>
  CUTLASS_DEVICE static void complete_parts(Storage const& storage, int consumer, PipelineState& buffer,
                                            Epilogue& epilogue, typename Traits::Accumulator const (&sums)[Sums],
                                            int row, int rows) {
    if constexpr (!Traits::kStaged) {
      return complete<Traits, Traits::kCompleted, Traits::kAhead>(epilogue, GemmRows(row, 0, rows), sums, 0);
    }
    int const ring = Traits::kPingpong ? 0 : consumer;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < Traits::kPartsOfBlock; ++part) {
      int const first = part * Traits::kPartRows;
      hide_origin(row);  // else addresses of rows stay in registers for the next block, and spill
      if constexpr (Traits::kStaged) barrier_wait(storage.ready(ring, buffer.index), buffer.phase);
      uint32_t const to = storage.buffer(ring, buffer.index);
      if (Traits::kLastRows != Traits::kPartRows && part == Traits::kPartsOfBlock - 1) {
        complete<Traits, Traits::kLastRows>(epilogue, GemmRows(row, first, rows), sums + first / 2, to);
      } else {
        complete<Traits, Traits::kPartRows>(epilogue, GemmRows(row, first, rows), sums + first / 2, to);
      }
      if constexpr (Traits::kStaged) hand_over_part(storage, ring, buffer);
    }
  }

  /// Advance beyond the stages or buffers of the other consumer.
  template <int Stages>
  CUTLASS_DEVICE static void advance(PipelineState& state, int by) {
    state.phase ^= by / Stages & 1;
    state.advance_once(by % Stages, Stages);
  }

  /// Send the partial sums of a split tile to the CTAs that complete them, and complete this CTA's.
  CUTLASS_DEVICE static void exchange_and_complete(
      Storage const& storage, Work const& work, int rank, int consumer, Epilogues& epilogues,
      typename Traits::Accumulator (&accumulators)[Traits::kBlocks][Traits::kSums]) {
    using Accumulator = typename Traits::Accumulator;
    constexpr int kQuads = Traits::kPixels / 8;
    int const split = rank / Traits::kMulticast, within = rank % Traits::kMulticast;
    int const lane = threadIdx.x % 32;
    if (lane < Traits::kSplits) {
      barrier_arrive_cluster(set_block_rank(storage.multiplied(), lane * Traits::kMulticast + within));
    }
    barrier_wait(storage.multiplied(), 0);
    // The sums of a block follow one another: a quad of each thread, then the next one.
    auto const place = [&](int of_consumer, int from, int block, int quad) {
      int const number = block * Traits::kQuadsOfSplit + quad;
      return storage.sums(of_consumer, from) + threadIdx.x % kWarpGroup * 16 + number * Traits::kQuadBytes;
    };
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kQuads; ++i) {
        int const to = i / Traits::kQuadsOfSplit * Traits::kMulticast + within;
        uint32_t quad[4];
        // An accumulator's register must not be sent itself: ptxas would serialise WGMMA (C7514).
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) quad[j] = word_of(accumulators[block][4 * i + j] + Accumulator(0));
        store_async(set_block_rank(place(consumer, split, block, i % Traits::kQuadsOfSplit), to), quad,
                    set_block_rank(storage.exchanged(consumer), to));
      }
    }
    int const first = first_row_of(rank);
    if (first >= Traits::kPixels || (Traits::kByStages && consumer > 0)) return;
    // The sums come from the CTAs, and from both consumers by stages of each.
    constexpr int kOfCta = Traits::kByStages ? Traits::kConsumers : 1, kSources = Traits::kSplits * kOfCta;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfCta; ++i) barrier_wait_cluster(storage.exchanged(consumer + i));
    Accumulator sums[Traits::kBlocks][Traits::kCompleted / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Traits::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Traits::kQuadsOfSplit; ++i) {
        uint32_t words[kSources][4];
        CUTLASS_PRAGMA_UNROLL
        for (int from = 0; from < kSources; ++from) {
          load_shared(words[from], place(consumer + from % kOfCta, from / kOfCta, block, i));
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
    PipelineState buffer;
    int const row = work.row + first;
    if constexpr (Traits::kPaired) {
      complete_pairs(storage, consumer, buffer, epilogues, sums, row, work.end);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        complete_parts(storage, consumer, buffer, epilogues.each[block], sums[block], row, work.end);
      }
    }
  }

  using Sums = typename Traits::Accumulator[Traits::kBlocks][Traits::kSums];
  using Fragments = typename Traits::Fragments[Traits::kBlocks];

  /// The stages of a tile, as a consumer multiplies them.
  struct Stages {
    Storage const& storage;
    int rank, consumer;
    PipelineState& state;
    int left;  // to be multiplied

    /// Start the multiplications of a stage, and return the stage. The fragments of its filters stay until the sums
    /// are there.
    CUTLASS_DEVICE int start(Sums& sums, Fragments& fragments) {
      int const stage = state.index;
      uint32_t const rows = operand_descriptor(storage.rows(stage) + row_of_consumer(consumer) * Traits::kRowBytes);
      uint32_t const filters = storage.columns(stage) + filters_of(0, first_block_of(consumer));
      uint32_t const columns = operand_descriptor(filters);
      barrier_wait(storage.full(stage), state.phase);
      if constexpr (Conversion::kConverts) {
        convert_stage(filters, fragments, storage.scales(stage), first_block_of(consumer));
        warpgroup_arrive();
        multiply_converted(rows, fragments, sums);
      } else {
        warpgroup_arrive();
        multiply_stage(rows, columns, sums);
      }
      warpgroup_commit_batch();
      state.advance_once(Traits::kByStages ? Traits::kConsumers : 1, Traits::kStages);
      hand_over_tensor_cores(storage, consumer, --left == 0);
      return stage;
    }

    /// Wait for the sums of a stage while `Pending` later ones are multiplied, and add them.
    template <int Pending>
    CUTLASS_DEVICE void promote(Sums& accumulators, Sums& partial, int stage) {
      if constexpr (Traits::kByRows) {
        typename Traits::Scaled::OfThread const factors(storage.scales(stage), row_of_consumer(consumer));
        warpgroup_wait<Pending>();
        fence_operands(partial);
        release(storage, rank, stage);
        // Sums of a row together: their factor stays in the operand's latch.
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Traits::kSums / 2; ++i) {
            int const j = i / 2 * 4 + row * 2 + i % 2;
            accumulators[0][j] += partial[0][j] * factors.of_sum(j);
          }
        }
      } else {
        warpgroup_wait<Pending>();
        fence_operands(partial);
        if constexpr (!Traits::Scaled::kExists) release(storage, rank, stage);
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          if constexpr (Traits::Scaled::kExists) {
            int const column = (first_block_of(consumer) + block) * kFilters;
            Traits::Scaled::add(accumulators[block], partial[block], storage.scales(stage), column);
          } else {
            CUTLASS_PRAGMA_UNROLL
            for (int j = 0; j < Traits::kSums; ++j) accumulators[block][j] += partial[block][j];
          }
        }
        if constexpr (Traits::Scaled::kExists) release(storage, rank, stage);
      }
    }
  };

  /// Multiply the stages of a tile; a CTA has one or more.
  CUTLASS_DEVICE static void multiply(
      Storage const& storage, int rank, int consumer, int k_blocks, PipelineState& state, Sums& accumulators) {
    Stages stages{storage, rank, consumer, state, k_blocks};
    if constexpr (Traits::kPromotes && Traits::kPromotesBehind) {
      // A stage is multiplied while the sums of the stage before are added.
      Sums first, second;
      Fragments of_first, of_second;
      int one = stages.start(first, of_first);
      while (stages.left > 1) {
        int const two = stages.start(second, of_second);
        stages.template promote<1>(accumulators, first, one);
        one = stages.start(first, of_first);
        stages.template promote<1>(accumulators, second, two);
      }
      if (stages.left > 0) {
        int const two = stages.start(second, of_second);
        stages.template promote<1>(accumulators, first, one);
        stages.template promote<0>(accumulators, second, two);
      } else {
        stages.template promote<0>(accumulators, first, one);
      }
    } else if constexpr (Traits::kPromotes) {
      do {
        Sums partial;
        Fragments fragments;
        int const stage = stages.start(partial, fragments);
        stages.template promote<0>(accumulators, partial, stage);
      } while (stages.left > 0);
    } else {
      int last = -1;
      Fragments fragments, others;
      auto const next = [&](Fragments& of_stage) {
        int const stage = stages.start(accumulators, of_stage);
        warpgroup_wait<1>();
        if (last >= 0) release(storage, rank, last);
        last = stage;
      };
      if constexpr (Conversion::kConverts) {
        while (stages.left > 1) {
          next(fragments);
          next(others);
        }
        if (stages.left > 0) next(fragments);
      } else {
        do {
          next(fragments);
        } while (stages.left > 0);
      }
      warpgroup_wait<0>();
      fence_operands(accumulators);
      release(storage, rank, last);
    }
  }

  /// Multiply a stage: add to the sums, or set them where they are promoted.
  CUTLASS_DEVICE static void multiply_stage(uint32_t rows, uint32_t columns, Sums& sums) {
    constexpr uint32_t kLayoutOfRows = operand_layout(Traits::kRowBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < Traits::kBoxes; ++box) {
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < Traits::kInstructions; ++k) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          int const which = box * Traits::kColumnBlocks + block;
          uint32_t const of_columns = columns + which * (Filters::kBytes >> 4) + k * Filters::kNextK;
          uint32_t const of_rows = rows + box * (Traits::kRowsBytes >> 4) + k * kNextK;
          bool const adds = !Traits::kPromotes || box + k > 0;
          if constexpr (Traits::kByRows) {
            Mma::fma(sums[block], of_rows, of_columns, kLayoutOfRows, Filters::kLayout, adds);
          } else {
            Mma::fma(sums[block], of_columns, of_rows, Filters::kLayout, kLayoutOfRows, adds);
          }
        }
      }
    }
  }

  /// Convert the filters of a stage.
  CUTLASS_DEVICE static void convert_stage(uint32_t filters, Fragments& to, uint32_t scales, int first_block) {
    if constexpr (Conversion::kPacked) {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        constexpr bool kHasZeros = Scales::kHasZeros;
        uint32_t zeros[2] = {};
        if constexpr (kHasZeros) Traits::Scaled::load_zeros(zeros, scales, (first_block + block) * kFilters);
        auto const word = [&](int k, int i) -> uint32_t& { return to[block].words[k][i]; };
        Conversion::template load<kHasZeros, Scales::kZerosFromMinuend>(filters + filters_of(0, block), zeros, word);
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Traits::kBlocks; ++block) {
        Conversion::template Rows<Filters::kRowBytes>::load(to[block], filters + filters_of(0, block));
      }
    }
  }

  /// Multiply a stage by converted filters: add to the sums, or set them where they are promoted.
  CUTLASS_DEVICE static void multiply_converted(uint32_t rows, Fragments const& filters, Sums& sums) {
    constexpr uint32_t kLayoutOfRows = operand_layout(Traits::kRowBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < Traits::kBoxes; ++box) {
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < Traits::kInstructions; ++k) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Traits::kBlocks; ++block) {
          uint32_t const (&words)[4] = filters[block].words[box * Traits::kInstructions + k];
          Mma::fma(sums[block], words, rows + box * (Traits::kRowsBytes >> 4) + k * kNextK,
                   kLayoutOfRows, !Traits::kPromotes || box + k > 0);
        }
      }
    }
  }

  /// Let the other pingpong consumer multiply, after a tile's last stage.
  CUTLASS_DEVICE static void hand_over_tensor_cores(Storage const& storage, int consumer, bool is_last) {
    if (Traits::kPingpong && threadIdx.x % 32 == 0 && is_last) barrier_arrive(storage.order(1 - consumer));
  }

  CUTLASS_DEVICE static void fence_operands(Sums& sums) {
    CUTLASS_PRAGMA_UNROLL
    for (auto& block : sums) {
      CUTLASS_PRAGMA_UNROLL
      for (auto& each : block) warpgroup_fence_operand(each);
    }
  }

  /// Release a stage: arrive at its barriers in all CTAs that send to this one.
  CUTLASS_DEVICE static void release(Storage const& storage, int rank, int stage) {
    int const lane = threadIdx.x % 32;
    if constexpr (Traits::kMulticast == 1) {
      if (lane == 0) barrier_arrive(storage.empty(stage));
    } else {
      constexpr int kColumnRanks = Traits::kClusterColumns;
      int const within = rank % Traits::kMulticast, sender = rank - within + lane;
      bool const sends = lane / kColumnRanks == within / kColumnRanks || lane % kColumnRanks == within % kColumnRanks;
      if (lane < Traits::kMulticast && sends) barrier_arrive_cluster(set_block_rank(storage.empty(stage), sender));
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_HPP
