#ifndef EVT_KIT_GEMV_HPP
#define EVT_KIT_GEMV_HPP

// A product of few rows or few columns for sm90, whose operands are contiguous along k and need no alignment.
//
// A CTA has a tile: some rows, and strips of 16 columns. Rows of A and of B stream through rings in shared memory, by
// asynchronous copies of aligned chunks of 16 bytes. A row keeps its offset in its first chunk, so lanes read the words of
// fragments at any byte. The product is transposed, as in gemm.hpp: M of mma.sync are columns of D, N are rows.
//
// If rows are few, the warps multiply parts of k. Each warp streams all rows of the tile. The CTAs of a cluster split k
// further. Partial sums of all warps are added in a fixed order, from the shared memory of the cluster's CTAs.
//
// If rows are many, each warp multiplies some of them by all columns of the tile. A warp streams its own rows of A and a
// part of the rows of B.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/gemv_geometry.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/step.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace gemv {

/// The product of 16 columns and 8 rows over 32 bytes of k by mma.sync.
template <class Element>
struct MmaSync {
  static constexpr int kElementBytes = sizeof(Element);
  using Accumulator = element::Register<Element>;

  /// Add the product to `sums`.
  CUTLASS_DEVICE static void fma(Accumulator* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
    kit::multiply_by_warp(Element{}, sums, a, b);
  }
};

/// The types and constants of a product of tiles of Rows rows and Strips strips of columns. Addresses and rows of A and B
/// are multiples of AlignmentOfA and AlignmentOfB bytes. ByRows: the warps share the rows, and not k.
template <class Mma_, class Epilogue_, int Rows, int Strips, int AlignmentOfA, int AlignmentOfB, bool ByRows>
struct Traits {
  using Mma = Mma_;
  using Epilogue = Epilogue_;
  using Accumulator = typename Mma::Accumulator;
  using Staged = kit::StagedOne<void, void, kit::kFilters>;  // threads move C and D
  static constexpr bool kPaired = false;

  static constexpr bool kByRows = ByRows;
  static constexpr int kStrips = Strips;
  static constexpr GemvTile kTile{Rows, kStrip * Strips, ByRows};
  static constexpr int kRows = kTile.rows_of_warp();        // that a warp multiplies and streams
  static constexpr int kColumns = kTile.columns_of_warp();  // that a warp streams
  static constexpr bool kWholeWordsOfA = AlignmentOfA % 4 == 0, kWholeWordsOfB = AlignmentOfB % 4 == 0;
  static constexpr int kStreamed = kRows + kColumns;    // rows of A and B
  static constexpr int kRingBytes = kStreamed * kPitch;  // of a warp
  static constexpr int kChunks = kStageBytes / kChunkBytes, kSlots = kStages * kChunks;
  static constexpr int kAhead = kStages - 2;   // stages in flight beside the one that is multiplied
  static constexpr int kSums = kRows / 8 * 4;  // of a strip and lane
  static constexpr int kQuadBytes = 32 * 16;   // of four sums of a warp
  static_assert(kRows % 8 == 0 && kStreamed % (32 / kChunks) == 0, "mma.sync has 8 rows, and a copy those of 32 lanes");
  static_assert(kStrip == kit::Lanes::kStrip && kPitch == (kSlots + 1) * kChunkBytes, "the constants of the planner");
  static_assert(kByRows || kStrips * kSums / 4 * kQuadBytes <= kStreamed * kPitch,
                "the partial sums of a warp fit in its rings");
};

template <class Traits>
struct Arguments {
  int rows, columns, depth;
  void const* a;
  int64_t a_stride;
  void const* b;
  int64_t b_stride;
  typename Traits::Epilogue::Params epilogue;
  int multiprocessors;
};

template <class Traits>
struct Params {
  void const *a, *b;
  int64_t a_stride, b_stride;  // bytes from a row to the next
  typename Traits::Epilogue::Params epilogue;
  int rows, columns, row_bytes;
  int stages;           // of a row
  int row_tiles, grid;  // and the CTAs
  int splits;           // of k: the CTAs of a cluster
};

/// A product of few rows or few columns with an epilogue of fragment.hpp.
template <class Mma, class Epilogue, int Rows, int Strips, int AlignmentOfA, int AlignmentOfB, bool ByRows>
struct Kernel {
  using Traits = gemv::Traits<Mma, Epilogue, Rows, Strips, AlignmentOfA, AlignmentOfB, ByRows>;
  using Arguments = gemv::Arguments<Traits>;
  using Params = gemv::Params<Traits>;
  using Accumulator = typename Traits::Accumulator;
  using Sums = Accumulator[Traits::kStrips][Traits::kSums];

  static constexpr int MaxThreadsPerBlock = 32 * kWarps, MinBlocksPerMultiprocessor = Traits::kTile.resident();
  static constexpr int SharedStorageSize = Traits::kTile.shared_bytes();

#if !defined(EVT_DEVICE_PASS)
  static bool can_implement(Arguments const& arguments) {
    return arguments.depth <= kMostRowBytes / Mma::kElementBytes;
  }

  static Params to_underlying_arguments(Arguments const& arguments, void* = nullptr) {
    Params params{};
    params.a = arguments.a;
    params.b = arguments.b;
    params.a_stride = arguments.a_stride * Mma::kElementBytes;
    params.b_stride = arguments.b_stride * Mma::kElementBytes;
    params.epilogue = arguments.epilogue;
    params.rows = arguments.rows;
    params.columns = arguments.columns;
    params.row_bytes = arguments.depth * Mma::kElementBytes;
    params.stages = ceil_div(params.row_bytes, kStageBytes);
    params.row_tiles = ceil_div(arguments.rows, Traits::kTile.rows);
    int const tiles = Traits::kTile.tiles(arguments.rows, arguments.columns);
    params.splits = Traits::kTile.splits(tiles, params.stages, arguments.multiprocessors);
    params.grid = tiles * params.splits;
    return params;
  }

  /// The tiles of rows of a warp and the strips that reductions keep parts of.
  static fragment::Tiles tiles(Arguments const& arguments) {
    return {ceil_div(arguments.rows, Traits::kRows), ceil_div(arguments.columns, kStrip)};
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const& params) { return dim3(params.splits); }
  static dim3 get_block_shape() { return dim3(MaxThreadsPerBlock); }
#endif

  /// The rows of A and B that a warp streams, from `row` and `column` on. The rows of B come first.
  struct Stream {
    static constexpr int kAtOnce = 32 / Traits::kChunks, kOfLane = Traits::kStreamed / kAtOnce;
    /// The bytes left of a chunk that no lane reads: a row's last fragment, and a word after it, end before. Warps that
    /// split k read whole stages.
    static constexpr int kUnread = -(32 + 4);
    /// The bytes left of rows beyond the matrices, whose elements reach only results beyond D.
    static constexpr int kBeyond = Traits::kByRows ? kUnread : 0;

    Params const& params;
    uint32_t rings;
    int row, column;
    uint64_t from[kOfLane];  // a chunk of each of the lane's rows
    int left[kOfLane];       // bytes of the row from the chunk on

    /// The stages begin at a byte of the rows.
    CUTLASS_DEVICE Stream(Params const& params, uint32_t rings, int row, int column, int begin)
        : params(params), rings(rings), row(row), column(column) {
      int const lane = threadIdx.x % 32;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOfLane; ++i) {
        int const number = kAtOnce * i + lane / Traits::kChunks;
        uint64_t const address = address_of(number) + begin;
        int const offset = int(address % kChunkBytes), chunk = lane % Traits::kChunks;
        from[i] = address - offset + chunk * kChunkBytes;
        left[i] = exists(number) ? params.row_bytes - begin + offset - chunk * kChunkBytes : kBeyond;
        if (chunk == 0) copy(i, number, 0);
        from[i] += kChunkBytes;
        left[i] -= kChunkBytes;
      }
    }
    CUTLASS_DEVICE bool exists(int number) const {
      return number < Traits::kColumns ? column + number < params.columns : row + number - Traits::kColumns < params.rows;
    }
    CUTLASS_DEVICE uint64_t address_of_column(int column) const {
      return reinterpret_cast<uint64_t>(params.b) + column * params.b_stride;
    }
    CUTLASS_DEVICE uint64_t address_of(int number) const {
      if (number < Traits::kColumns) return address_of_column(column + number);
      return reinterpret_cast<uint64_t>(params.a) + (row + number - Traits::kColumns) * params.a_stride;
    }
    /// Copy the next chunk of row i of the lane, with zeros beyond the row's end, if lanes read it.
    CUTLASS_DEVICE void copy(int i, int number, int slot) const {
      if (Traits::kByRows && left[i] <= kUnread) return;
      int const bytes = max(min(left[i], kChunkBytes), 0);
      kit::copy_chunk_async(rings + number * kPitch + slot * kChunkBytes, reinterpret_cast<void const*>(from[i]), bytes);
    }
    /// Copy the chunks of the next stage, whose place among the stages of the rings is `stage`. Its first chunk is there.
    CUTLASS_DEVICE void load(int stage) {
      int const lane = threadIdx.x % 32, slot = stage * Traits::kChunks + lane % Traits::kChunks + 1;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOfLane; ++i) {
        int const number = kAtOnce * i + lane / Traits::kChunks;
        copy(i, number, slot);
        if (slot == Traits::kSlots) copy(i, number, 0);  // the last chunk is the first one of the next stage, too
        from[i] += kStageBytes;
        left[i] -= kStageBytes;
      }
    }
  };

  /// The words of fragments that a lane reads from a row of a stage.
  template <bool WholeWords>
  struct Row {
    uint32_t first, shift;

    /// `address` of the row's first byte in memory.
    CUTLASS_DEVICE Row(uint32_t ring, uint64_t address) {
      uint32_t const offset = uint32_t(address) % kChunkBytes;
      first = ring + offset / 4 * 4 + threadIdx.x % 4 * 4;
      shift = offset % 4 * 8;
    }
    CUTLASS_DEVICE uint32_t word(int byte) const {
      uint32_t const low = kit::load_shared_word(first + byte);
      return WholeWords ? low : __funnelshift_r(low, kit::load_shared_word(first + byte + 4), shift);
    }
  };

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    pdl::wait_for_kernel_before();
    int const lane = threadIdx.x % 32, warp = kit::canonical_warp_idx_sync();
    int const rank = kit::block_rank_in_cluster(), block = blockIdx.x / params.splits;
    int const row = block % params.row_tiles * Traits::kTile.rows, column = block / params.row_tiles * Traits::kTile.columns;
    uint32_t const memory = kit::cast_smem_ptr_to_uint(shared_memory), rings = memory + warp * Traits::kRingBytes;
    Sums sums;
    CUTLASS_PRAGMA_UNROLL
    for (auto& strip : sums) {
      CUTLASS_PRAGMA_UNROLL
      for (auto& each : strip) each = 0;
    }
    if constexpr (Traits::kByRows) {
      int const first_row = row + warp * Traits::kRows;
      Stream stream(params, rings, first_row, column + warp * Traits::kColumns, 0);
      multiply(stream, memory, column, 0, params.stages, sums);
      CUTLASS_PRAGMA_UNROLL
      for (int strip = 0; strip < Traits::kStrips; ++strip) {
        if (first_row < params.rows && column + strip * kStrip < params.columns) {
          complete_strip(params, strip, first_row, column, sums[strip]);
        }
      }
    } else {
      int const part = rank * kWarps + warp, parts = params.splits * kWarps;
      int const begin = int64_t(params.stages) * part / parts, end = int64_t(params.stages) * (part + 1) / parts;
      Stream stream(params, rings, row, column, begin * kStageBytes);
      multiply(stream, rings, column, begin * kStageBytes, end - begin, sums);
      complete_tile(params, memory, row, column, sums);
    }
#endif
  }

 private:
  /// Wait until the warps that read a ring have its data: the warp, or all warps of the CTA.
  CUTLASS_DEVICE static void synchronize() { Traits::kByRows ? __syncthreads() : __syncwarp(); }

  /// Add the products of some stages from byte `begin` of the rows on. `columns_rings` has the rings of the tile's columns,
  /// which begin with `column`.
  CUTLASS_DEVICE static void multiply(
      Stream& stream, uint32_t columns_rings, int column, int begin, int stages, Sums& sums) {
    Params const& params = stream.params;
    int const group = threadIdx.x % 32 / 4;
    CUTLASS_PRAGMA_UNROLL
    for (int stage = 0; stage < Traits::kAhead; ++stage) {
      if (stage < stages) stream.load(stage);
      kit::copies_commit();
    }
    auto const of_b = [&](int i) {
      int const number = 8 * i + group, warp = number / Traits::kColumns, of_warp = number % Traits::kColumns;
      uint32_t const ring = columns_rings + warp * Traits::kRingBytes + of_warp * kPitch;
      return Row<Traits::kWholeWordsOfB>(ring, stream.address_of_column(column + number) + begin);
    };
    auto const of_a = [&](int i) {
      int const number = Traits::kColumns + 8 * i + group;
      return Row<Traits::kWholeWordsOfA>(stream.rings + number * kPitch, stream.address_of(number) + begin);
    };
    for (int stage = 0; stage < stages; ++stage) {
      // The stage before the last one has been read.
      if (stage + Traits::kAhead < stages) stream.load((stage + Traits::kAhead) % kStages);
      kit::copies_commit();
      kit::copies_wait<Traits::kAhead>();
      synchronize();
      int const first = stage % kStages * kStageBytes, bytes = params.row_bytes - begin - stage * kStageBytes;
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kStageBytes; k += 32) {
        if (Traits::kByRows && k >= bytes) break;
        uint32_t columns[Traits::kStrips][4];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4 * Traits::kStrips; ++i) {
          columns[i / 4][i % 4] = of_b(i / 4 * 2 + i % 2).word(first + k + i % 4 / 2 * 16);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Traits::kRows / 8; ++i) {
          uint32_t const rows[2] = {of_a(i).word(first + k), of_a(i).word(first + k + 16)};
          CUTLASS_PRAGMA_UNROLL
          for (int strip = 0; strip < Traits::kStrips; ++strip) {
            Mma::fma(sums[strip] + 4 * i, columns[strip], rows);
          }
        }
      }
      synchronize();
    }
    kit::copies_wait<0>();
    __syncwarp();
  }

  /// Add the partial sums of all warps and CTAs in shared memory. A warp completes a strip. The strips are spread over the
  /// CTAs.
  CUTLASS_DEVICE static void complete_tile(Params const& params, uint32_t memory, int row, int column, Sums const& sums) {
    int const lane = threadIdx.x % 32, warp = kit::canonical_warp_idx_sync(), rank = kit::block_rank_in_cluster();
    uint32_t const rings = memory + warp * Traits::kRingBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int strip = 0; strip < Traits::kStrips; ++strip) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Traits::kSums; i += 4) {
        uint32_t quad[4];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) quad[j] = kit::word_of(sums[strip][i + j]);
        kit::store_shared(rings + (strip * Traits::kSums + i) / 4 * Traits::kQuadBytes + lane * 16, quad);
      }
    }
    if (params.splits > 1) {
      kit::cluster_arrive();
      kit::cluster_wait();
    } else {
      __syncthreads();
    }
    int const strip = warp * params.splits + rank;
    if (strip < Traits::kStrips && column + strip * kStrip < params.columns) {
      add_and_complete_strip(params, memory, strip, row, column);
    }
    if (params.splits > 1) {  // the memory of a CTA is read until then
      kit::cluster_arrive();
      kit::cluster_wait();
    }
  }

  CUTLASS_DEVICE static void add_and_complete_strip(Params const& params, uint32_t memory, int strip, int row, int column) {
    int const lane = threadIdx.x % 32;
    Accumulator sums[Traits::kSums] = {};
    for (int rank = 0; rank < params.splits; ++rank) {
      uint32_t const of_rank = kit::set_block_rank(memory, rank);
      CUTLASS_PRAGMA_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) {
        uint32_t const from = of_rank + warp * Traits::kRingBytes + strip * Traits::kSums / 4 * Traits::kQuadBytes + lane * 16;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Traits::kSums; i += 4) {
          uint32_t quad[4];
          kit::load_cluster(quad, from + i / 4 * Traits::kQuadBytes);
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < 4; ++j) sums[i + j] += kit::sum_of<Accumulator>(quad[j]);
        }
      }
    }
    complete_strip(params, strip, row, column, sums);
  }

  /// Compute the epilogue of a strip's rows.
  CUTLASS_DEVICE static void complete_strip(
      Params const& params, int strip, int row, int column, Accumulator const (&sums)[Traits::kSums]) {
    fragment::Tile const tile{column + strip * kStrip + kit::Lanes::first_of(threadIdx.x % 32), params.columns,
                              row / Traits::kRows, column / kStrip + strip, ceil_div(params.columns, kStrip), 0,
                              params.columns, row, params.rows};
    Epilogue epilogue(params.epilogue, tile);
    epilogue.compute_columns();
    kit::complete<Traits, Traits::kRows>(epilogue, kit::GemmRows(row, 0, params.rows), sums, 0);
    epilogue.finish(tile);
  }
};

}  // namespace gemv
}  // namespace evt

#endif  // EVT_KIT_GEMV_HPP
