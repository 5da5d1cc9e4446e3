#ifndef EVT_KIT_GEMM_TRAITS_HPP
#define EVT_KIT_GEMM_TRAITS_HPP

// The types and constants of a product: its tile, its stages, and its parts of C and D.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/converted.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/scales.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/staged.hpp"
#include "evt/kit/taps.hpp"

namespace evt {
namespace kit {

/// The lanes of the epilogue.
using Lanes = fragment::LanesOfWgmma;
template <int Distance>
using LanesOfPairs = fragment::LanesOfPairs<Distance>;
inline constexpr int kMaxRowBytes = 128;
inline constexpr int kAlignmentOfSums = 16;
/// The most bytes of a part of the epilogue's matrices for pingpong consumers. Cooperating ones have half each.
inline constexpr int kMostPartBytes = 8192;
/// The most words of a thread for accumulators and for parts of C that it keeps.
inline constexpr int kMostKeptWords = 160;
/// The most rows of a tile that warps multiply by themselves, and the shared memory of their CTAs.
inline constexpr int kFewRows = 16, kFewSharedBytes = 115712;

/// The tile of a CTA: blocks of columns for each consumer, whether consumers are pingpong, and the CTAs of a cluster
/// along columns, rows and k. Promotes: the sums of a stage are added in f32. Mma has the rows. Grouped: groups of rows
/// have a matrix B each. ByRows: each consumer has 64 rows, and Mma the columns. Pairs: a thread has pairs of columns with
/// this distance, and D half of the columns; 0 without pairs. Batched: there are several products. ByStages: consumers
/// have the same columns, and every other stage. Dual: another matrix has the second columns of pairs. InHalves: Mma has
/// half of the rows.
template <int Blocks, bool Pingpong, int ClusterColumns, int ClusterRows, int Splits, bool Promotes = false,
          bool Grouped = false, bool ByRows = false, int Pairs = 0, bool Batched = false, bool ByStages = false,
          bool Dual = false, bool InHalves = false>
struct GemmTile {
  static constexpr int kBlocks = Blocks;
  static constexpr bool kPingpong = Pingpong;
  static constexpr int kClusterColumns = ClusterColumns, kClusterRows = ClusterRows, kSplits = Splits;
  static constexpr bool kPromotes = Promotes, kGrouped = Grouped, kByRows = ByRows, kBatched = Batched;
  static constexpr bool kByStages = ByStages, kDual = Dual, kInHalves = InHalves;
  static constexpr int kPairs = Pairs;
};

/// The rows of a part of the staged matrices, which has a buffer: the largest divisor of a tile's rows in whole steps up to `most`. If
/// the rows end with half a step, the last part has fewer rows than the others.
CUTLASS_HOST_DEVICE constexpr int rows_of_part(int rows, int most) {
  if (rows % kStepPixels != 0) return std::min(rows, most);
  int found = kStepPixels;
  for (int each = kStepPixels; each <= most; each += kStepPixels) found = rows % each == 0 ? each : found;
  return found;
}

/// The most rows of a part: less for several matrices, or wide elements.
CUTLASS_HOST_DEVICE constexpr int most_rows_of_part(bool pingpong, int staged_bytes) {
  int const rows = pingpong ? 64 : 32, bytes = pingpong ? kMostPartBytes : kMostPartBytes / 2;
  int const fitting = bytes / (kFilters * std::max(staged_bytes, 1)) / kStepPixels * kStepPixels;
  return std::min(rows, std::max(fitting, int(kStepPixels)));
}

/// The columns of a block of a tile by rows. Rows of 64 columns are swizzled. Other blocks have an odd number of strips, so
/// that eight rows begin in four groups of banks.
CUTLASS_HOST_DEVICE constexpr int columns_of_block(int columns) {
  if (columns % kFilters == 0) return kFilters;
  int strips = columns / Lanes::kStrip;
  while (strips % 2 == 0) strips /= 2;
  return Lanes::kStrip * (strips % 3 == 0 ? 3 : strips);
}

/// The most groups of a product.
inline constexpr int kMaxGroups = 1024;

/// Whether warps join the packed bits of a part's rows.
template <class Epilogue, class = void>
struct JoinsBits : std::false_type {};
template <class Epilogue>
struct JoinsBits<Epilogue, std::void_t<decltype(&Epilogue::end_part)>> : std::true_type {};

/// The types and constants of a product over stages of Depth elements of k.
template <class Mma_, class Epilogue_, int Depth, class Tile, class Scales_, class Conversion_>
struct GemmTraits {
  using Mma = Mma_;
  using Epilogue = Epilogue_;
  using Scales = Scales_;
  using Conversion = Conversion_;
  using Accumulator = typename Mma::Accumulator;
  using Loads = typename fragment::Moved<Epilogue>::Loads;
  using Stores = typename fragment::Moved<Epilogue>::Stores;
  // Boxes of k in a stage. TMA swizzles rows of at most 128 bytes.
  static constexpr int kBoxes = ceil_div(Depth * Mma::kElementBytes, kMaxRowBytes), kBoxDepth = Depth / kBoxes;
  static constexpr bool kByRows = Tile::kByRows, kByStages = Tile::kByStages;
  // Columns of a block: of a box of B, and of a part of C and D.
  static constexpr int kBlockColumns = kByRows ? columns_of_block(Mma::kPixels) : kFilters;
  using Filters = std::conditional_t<Conversion::kPacked, PackedRows,
                                     FilterRows<Conversion::kBytes, Conversion::kConverts ? Depth : kBoxDepth,
                                                Mma::kTransposed, kBlockColumns>>;
  static constexpr int kBoxesOfFilters = Conversion::kConverts ? 1 : kBoxes;
  using Fragments = typename Conversion::template Rows<Filters::kRowBytes>::Fragments;

  // WGMMA's blocks of a consumer, of 64 columns or rows, and the sums that a thread has of each.
  static constexpr int kDepth = Depth, kBlocks = kByRows ? 1 : Tile::kBlocks;
  static constexpr bool kInHalves = Tile::kInHalves;
  static constexpr int kSums = Mma::kPixels / 2 * (kInHalves ? 2 : 1);
  // Tensor cores add products of 8-bit floats with few bits. Sums of a stage are added to the accumulators in f32.
  static constexpr bool kPromotes = Tile::kPromotes;
  // Registers for the sums of two stages beside the accumulators.
  static constexpr bool kPromotesBehind = 3 * kBlocks * kSums <= (Conversion::kConverts ? 96 : 192);
  static constexpr bool kPingpong = Tile::kPingpong;
  static constexpr bool kTransposed = fragment::IsTransposed<Epilogue>::value;  // the epilogue of a tile by rows
  static constexpr int kClusterColumns = Tile::kClusterColumns, kClusterRows = Tile::kClusterRows;
  static constexpr int kMulticast = kClusterColumns * kClusterRows;  // CTAs that share loads
  static constexpr int kSplits = Tile::kSplits, kClusterSize = kMulticast * kSplits;
  static constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpGroup;
  // Consumers of a stage.
  static constexpr int kOfStage = kPingpong || kByStages ? 1 : kConsumers;
  static constexpr bool kGrouped = Tile::kGrouped, kBatched = Tile::kBatched;
  static constexpr bool kManyB = kGrouped || kBatched;  // whether TMA loads B from several matrices
  static constexpr int kTableBytes = kGrouped ? 8 * (kMaxGroups + 1) : 0;

  static constexpr int kPixels = kByRows ? kConsumers * kFilters : 2 * kSums;  // rows of a tile
  // Whether warps multiply by themselves. They need few registers, so two CTAs share an SM, and one multiplies while the
  // other waits.
  static constexpr bool kByWarps = Conversion::kConverts && kPixels <= kFewRows;
  static constexpr int kResident = kByWarps ? 2 : 1, kSharedOfCta = kByWarps ? kFewSharedBytes : kSharedBytes;
  // Whether a stage has only the rows that exist, if they are fewer than a tile's. TMA takes long for others. Consumers
  // multiply old bytes in their place: the sums of a row depend on that row alone.
  static constexpr bool kLoadsFewRows = kMulticast == 1 && !kGrouped;
  static constexpr int kColumnBlocks = Tile::kBlocks * (kByRows ? 1 : kOfStage);
  static constexpr int kColumns = kColumnBlocks * kBlockColumns;
  static constexpr int kSteps = ceil_div(kPixels, kStepPixels);
  static constexpr int kPairs = Tile::kPairs;  // the distance of the columns of a pair, or 0
  static constexpr bool kPaired = kPairs > 0, kDual = Tile::kDual;
  static constexpr int kMembers = kPaired ? 2 : 1;  // blocks of the product for each block of D
  // Whether a stage has only the columns that exist: another descriptor has those after the whole blocks.
  static constexpr bool kLoadsFewColumns = !kPaired && !kGrouped && !Conversion::kPacked && !Mma::kTransposed;
  // Matrices of the epilogue that TMA moves, and the bytes of an element of all in a buffer.
  static constexpr int kLoads = kit::Staged<Loads, Stores, kBlockColumns, 0>::kLoads;
  static constexpr int kStores = kit::Staged<Loads, Stores, kBlockColumns, 0>::kStores;
  static constexpr int kStagedBytes = kit::Staged<Loads, Stores, kBlockColumns, 0>::bytes_of_element();
  static constexpr bool kStaged = kLoads + kStores > 0;
  static constexpr bool kUnaligned = fragment::IsUnaligned<Epilogue>::value;  // whether their rows are not aligned

  static constexpr int kRowBytes = kBoxDepth * Mma::kElementBytes;
  static constexpr int kRowsBytes = kPixels * kRowBytes;  // of A in a box
  static constexpr int kStageBytes = kBoxes * kRowsBytes + kBoxesOfFilters * kColumnBlocks * Filters::kBytes;
  static constexpr int kInstructions = kRowBytes / kDepthBytes;  // of a box and block
  // Steps of a split tile that a CTA completes, and four sums of a thread in half a step.
  static constexpr int kStepsOfSplit = ceil_div(kSteps, kSplits), kQuadsOfSplit = std::min(2 * kStepsOfSplit, kPixels / 8);
  static constexpr int kQuadBytes = kWarpGroup * 16, kSumsBytes = kBlocks * kQuadsOfSplit * kQuadBytes;
  static constexpr int kExchangedBytes = kSplits == 1 ? 0 : kConsumers * kSplits * kSumsBytes + kAlignmentOfSums;
  static constexpr int kCompleted = std::min(kStepsOfSplit * kStepPixels, kPixels);  // rows of a block
  static constexpr int kCompleting = kPixels / kCompleted;  // CTAs that complete rows of a tile
  // Tiles of rows that reductions keep a part for.
  static constexpr int kRowTiles = kByRows ? kPixels / kStepPixels : kSplits;
  // Buffers of parts of C and D are used in order: a ring for each cooperating consumer, one for pingpong consumers, whose
  // epilogues take turns, and one for consumers by stages. C of a tile is loaded early. Parts of D wait for the stores of the
  // parts before.
  static constexpr int kRings = kOfStage;
  static constexpr int kMostRows =
      kGrouped && kCompleted % kStepPixels != 0 ? kCompleted : most_rows_of_part(kPingpong, kStagedBytes);
  static constexpr int kPartRows = kByRows ? kFilters : rows_of_part(kCompleted, kMostRows);
  static constexpr int kPartsOfBlock = kByRows ? 1 : ceil_div(kCompleted, kPartRows);
  static constexpr int kLastRows = kByRows ? kPartRows : kCompleted - (kPartsOfBlock - 1) * kPartRows;
  // TMA moves parts of different rows in boxes of half a step, which are as high as the swizzle's pattern.
  static constexpr int kBoxRows = kLastRows == kPartRows ? kPartRows : kStepPixels / 2;
  static constexpr int kParts = kPartsOfBlock * (kByRows ? kColumnBlocks : kBlocks) / kMembers;
  using Staged = kit::Staged<Loads, Stores, kBlockColumns, kPartRows, kUnaligned>;
  static constexpr int kPartBytes = Staged::kBytes;
  // Steps whose elements threads load before they are needed, if no parts of C and D are moved: registers limit them.
  static constexpr int kAhead = kStaged || kBlocks * kSums > 128 ? 1 : 3;
  using Scaled = ScaleTile<Scales, kPixels, kColumns, kByRows, kPairs>;  // the factors of a stage
  // Stages whose factors are loaded at once, where these are neighbours. A stage of a packed B takes little time. Each of
  // the 128 rows of a tall tile has its factors in another line of L2: loads for each stage delay the operands.
  static constexpr int kRun = Conversion::kPacked || kByRows ? 4 : 1;
  /// The arrivals of a warp at the barriers of its CTA's stages: each lane writes factors, or reads rows and filters.
  static constexpr int kLaneArrivals = Scaled::kExists || kByWarps ? 32 : 1;
  /// The arrivals of a warp at the barrier of a part: each lane has read elements that TMA overwrites.
  static constexpr int kPartArrivals = kUnaligned ? 32 : 1;
  static constexpr int kMaxStages = 12, kConsumerBarriers = 5, kBarriers = 2 * kMaxStages + kConsumers * kConsumerBarriers;
  static constexpr int kBarrierBytes = 8 * (kBarriers + 2 * kRings * kParts);
  static constexpr bool kJoinsBits = JoinsBits<Epilogue>::value;
  static constexpr int kBitsBytes = kJoinsBits ? fragment::kWordBytes * kPartRows : 0;  // of a ring
  static constexpr bool kLoadsBits = fragment::LoadsBits<Epilogue>::value;
  static constexpr int kLoadedBytes = kLoadsBits ? fragment::kWordBytes * kPixels : 0;  // of a block of a consumer
  static constexpr int kFreeBytes = kSharedOfCta - kAlignment - kBarrierBytes - kTableBytes - kRings * kBitsBytes -
                                    kConsumers * kBlocks * kLoadedBytes;
  // Few buffers leave room for stages. C has all that fit beside these. Cooperating consumers wait for its parts.
  static constexpr int kFewOfC = kByRows ? kParts : kPingpong ? 3 : ceil_div(128, kPartRows);
  static constexpr int kFewOfD = kByRows ? 2 : kPingpong ? 3 : 4;
  static constexpr int kManyBuffers = !kStaged ? 0 : std::min(kParts, kLoads > 0 ? kFewOfC : kFewOfD);
  CUTLASS_HOST_DEVICE static constexpr int stages_beside(int buffers) {
    int const others = kRings * buffers * kPartBytes + (kByWarps ? kExchangedBytes : 0);
    int const fitting = (kFreeBytes - others) / (kStageBytes + Scaled::kBytes);
    // A consumer by stages has the same stages in each round. If the consumers took turns at a stage, one of them could
    // wait for a load before the load for the other one is there. The parity of the barrier does not tell these apart.
    int const together = kByStages ? kConsumers : 1;
    return std::min(kMaxStages, fitting) / together * together;
  }
  // A fourth stage is worth more than a third buffer, and stages have room for partial sums.
  static constexpr int kManyStages = stages_beside(kManyBuffers);
  static constexpr bool kFewer = kManyBuffers > 2 && (kManyStages < std::min(stages_beside(2), 4) ||
                                                      kManyStages * kStageBytes < kExchangedBytes);
  static constexpr int kFewBuffers = kFewer ? 2 : kManyBuffers;
  static constexpr int kStages = stages_beside(kFewBuffers);
  static constexpr int kFitting =
      (kFreeBytes - kStages * (kStageBytes + Scaled::kBytes)) / std::max(kRings * kPartBytes, 1);
  static constexpr int kBuffers = kLoads > 0 ? std::min(kParts, kFitting) : kFewBuffers;  // of a ring
  static constexpr int kRingBytes = kBuffers * kPartBytes;
  // A single loaded matrix waits for a CTA's first stage, which it would delay.
  static constexpr bool kLoadsLate = kLoads == 1;
  // Cooperating consumers have no buffers for all parts of C. They keep the last ones in registers from the middle of a
  // tile's multiplications on. The words of a part's steps:
  static constexpr int kPartWords = ceil_div(kPartRows, kStepPixels) * Staged::kLoadedWords;
  static constexpr bool kMayKeep = kLoads == 1 && !kPromotes && !kPingpong && !kByRows && !kPaired && kSplits == 1 &&
                                   !Conversion::kConverts && kLastRows == kPartRows;
  static constexpr int kMostKept = std::max((kMostKeptWords - kBlocks * kSums) / kPartWords, 0);
  static constexpr int kKept = kMayKeep ? std::min(kParts - kBuffers, kMostKept) : 0;
  // Partial sums of CTAs have their own memory if it is free. Else they take that of the stages, once all have multiplied.
  static constexpr bool kSumsBeside =
      kStages * (kStageBytes + Scaled::kBytes) + kRings * kRingBytes + kExchangedBytes <= kFreeBytes;
  static constexpr int kOutgoingBytes = kConsumers * kCompleting * kSumsBytes;
  static constexpr bool kCopiesSums =
      kSplits > 1 && !kSumsBeside && !kByStages && kOutgoingBytes + kExchangedBytes <= kStages * kStageBytes;
  // Whether the last tile of rows may begin early. TMA takes long for rows that do not exist, and all tiles wait.
  // A factor that is constant over a tile's rows is theirs alone.
  static constexpr bool kBeginsEarly =
      !kGrouped && (Scales::kOfRows || std::is_same_v<typename Scales::A, NoFactor>);
  // A consumer of WGMMA releases a stage once it multiplies its next one.
  static_assert(kStages >= (kByStages && !kByWarps ? 2 * kConsumers : 2), "a consumer has two stages");
  static_assert(kPartRows % kStepPixels == 0 || kStagedBytes <= 2 || !kGrouped, "parts of groups have few bytes");
  static_assert(kPromotes || !Scales::kMultiply, "factors multiply the sums of a stage");
  static_assert(!Conversion::kPacked || Depth == PackedRows::kDepth, "a stage has whole tiles of packed filters");
  static_assert(Conversion::kPacked || !Scales::kHasZeros, "packed filters have zero points");
  static_assert(kPixels * kRowBytes % kAlignment == 0, "B begins where the swizzle does");
  static_assert(kPixels / kClusterColumns % 8 == 0, "a part of the rows of A begins where the swizzle does");
  static_assert(kColumnBlocks % kClusterRows == 0, "each CTA loads whole blocks of B");
  static_assert(kSplits == 1 || (!kPingpong && kPixels % kCompleted == 0), "whole parts are completed");
  static_assert(kSplits == 1 || !kGrouped, "groups have no splits of k");
  static_assert(!kInHalves || (kPromotes && Conversion::kConverts && !Conversion::kPacked && kBlocks == 1 &&
                               Mma::kPixels % kStepPixels == 0),
                "the sums of halves of whole steps are promoted");
  static_assert(!kByStages || kSplits > 1, "consumers by stages exchange their sums");
  static_assert(!kByWarps || (kBlocks == 1 && kRowBytes == kMaxRowBytes), "a warp has 16 filters, and whole rows of swizzles");
  static_assert(!kByStages || kStages % kConsumers == 0, "a consumer by stages has the same stages in each round");
  static_assert(!kByRows || (Mma::kPixels == kColumns && kPromotes && !kPingpong && kSplits == 1 && kBoxes == 1 &&
                             !Mma::kTransposed && !Conversion::kConverts),
                "consumers by rows promote the sums of operands that are contiguous along k");
  static_assert(!kTransposed || (kByRows && kStaged && !kPaired), "an epilogue by rows of staged matrices");
  static_assert(!kBatched || (!kGrouped && !Conversion::kPacked), "groups of rows, and packed filters, have no batches");
  static_assert(!kPaired || ((kByRows ? kColumnBlocks : kBlocks) == 2 && kLoads == 0 && kStores <= 1 && !Mma::kTransposed &&
                             !Conversion::kPacked),
                "pairs are rows of B in two blocks");
  static_assert(!kDual || (kPairs == 1 && !kManyB), "two matrices have the columns of neighbouring pairs, without batches");
  static_assert(!kJoinsBits || (kStaged && !kByRows && !kPaired && !kGrouped), "consumers by columns complete parts");
  static_assert(!kUnaligned || (kStores == 0 && !kByRows && !kPaired && !kManyB), "unaligned matrices are loaded");
  static_assert(kSplits == 1 || kSumsBeside || kExchangedBytes <= kStages * kStageBytes, "partial sums fit in the stages");

  using Lanes = std::conditional_t<kPaired, LanesOfPairs<kPairs>, kit::Lanes>;
  CUTLASS_HOST_DEVICE static constexpr int strips_of(int columns) {
    return ceil_div(columns, kBlockColumns) * (kBlockColumns / Lanes::kStrip);
  }

  /// The first block of columns, and the first row, of a consumer in a tile.
  CUTLASS_DEVICE static int first_block_of(int consumer) {
    return kOfStage == 1 || kByRows ? 0 : consumer * kBlocks;
  }
  /// The place of a block's filters among a stage's.
  CUTLASS_DEVICE static constexpr uint32_t filters_of(int box, int block) {
    return (box * kColumnBlocks + block) * Filters::kBytes;
  }
  /// The rows of a box of A.
  CUTLASS_HOST_DEVICE static int loaded_rows(int rows) {
    constexpr int kOfTile = kPixels / kClusterColumns;
    return kLoadsFewRows && rows < kOfTile ? rows : kOfTile;
  }
  CUTLASS_DEVICE static int row_of_consumer(int consumer) { return kByRows ? consumer * kFilters : 0; }
  /// The first row of a tile that a CTA completes.
  CUTLASS_DEVICE static int first_row_of(int rank) {
    return kSplits > 1 ? rank / kMulticast * kCompleted : 0;
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_TRAITS_HPP
