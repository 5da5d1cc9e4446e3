#ifndef EVT_KIT_GEMV_HPP
#define EVT_KIT_GEMV_HPP

// A product of few rows for sm90, whose operands are contiguous along k and need no alignment.
//
// A CTA has a tile: some rows, and strips of 16 columns. Its warps multiply parts of k. A warp streams the rows of A and of
// B through rings in shared memory, by asynchronous copies of aligned chunks of 16 bytes. A row keeps its offset in its
// first chunk, so lanes read the words of fragments at any byte. The product is transposed, as in gemm.hpp: M of mma.sync
// are columns of D, N are rows.
//
// The CTAs of a cluster split k further. Partial sums of all warps are added in a fixed order, from the shared memory of
// the cluster's CTAs.

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
/// are multiples of AlignmentOfA and AlignmentOfB bytes.
template <class Mma_, class Epilogue_, int Rows, int Strips, int AlignmentOfA, int AlignmentOfB>
struct Traits {
  using Mma = Mma_;
  using Epilogue = Epilogue_;
  using Accumulator = typename Mma::Accumulator;
  // Threads move C and D.
  using Source = void;
  using Destination = void;
  static constexpr bool kLoadsSource = false, kStoresDestination = false, kPaired = false;
  static constexpr int kEpilogueRow = 0;

  static constexpr int kRows = Rows, kStrips = Strips, kColumns = kStrip * Strips;
  static constexpr GemvTile kTile{kRows, kColumns};
  static constexpr bool kWholeWordsOfA = AlignmentOfA % 4 == 0, kWholeWordsOfB = AlignmentOfB % 4 == 0;
  static constexpr int kStreamed = kRows + kColumns;  // rows of A and B
  static constexpr int kChunks = kStageBytes / kChunkBytes, kSlots = kStages * kChunks;
  static constexpr int kAhead = kStages - 2;   // stages in flight beside the one that is multiplied
  static constexpr int kSums = kRows / 8 * 4;  // of a strip and lane
  static constexpr int kQuadBytes = 32 * 16;   // of four sums of a warp
  static_assert(kRows % 8 == 0, "mma.sync has 8 rows");
  static_assert(kStrip == kit::Lanes::kStrip && kPitch == (kSlots + 1) * kChunkBytes, "the constants of the planner");
  static_assert(kStrips * kSums / 4 * kQuadBytes <= kStreamed * kPitch, "the partial sums of a warp fit in its rings");
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

/// A product of few rows with an epilogue of fragment.hpp.
template <class Mma, class Epilogue, int Rows, int Strips, int AlignmentOfA, int AlignmentOfB>
struct Kernel {
  using Traits = gemv::Traits<Mma, Epilogue, Rows, Strips, AlignmentOfA, AlignmentOfB>;
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
    params.row_tiles = ceil_div(arguments.rows, Traits::kRows);
    int const tiles = Traits::kTile.tiles(arguments.rows, arguments.columns);
    params.splits = Traits::kTile.splits(tiles, params.stages, arguments.multiprocessors);
    params.grid = tiles * params.splits;
    return params;
  }

  /// The tiles of rows and the strips that reductions keep parts of.
  static fragment::Tiles tiles(Arguments const& arguments) {
    return {ceil_div(arguments.rows, Traits::kRows), ceil_div(arguments.columns, kStrip)};
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_cluster_shape(Params const& params) { return dim3(params.splits); }
  static dim3 get_block_shape() { return dim3(MaxThreadsPerBlock); }
#endif

  /// The rows of A and B that a warp streams. The rows of B come first.
  struct Stream {
    static constexpr int kAtOnce = 32 / Traits::kChunks, kOfLane = Traits::kStreamed / kAtOnce;

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
        left[i] = exists(number) ? params.row_bytes - begin + offset - chunk * kChunkBytes : 0;
        if (chunk == 0) copy(i, number, 0);
        from[i] += kChunkBytes;
        left[i] -= kChunkBytes;
      }
    }
    CUTLASS_DEVICE bool exists(int number) const {
      return number < Traits::kColumns ? column + number < params.columns : row + number - Traits::kColumns < params.rows;
    }
    CUTLASS_DEVICE uint64_t address_of(int number) const {
      bool const of_b = number < Traits::kColumns;
      int64_t const place = of_b ? column + number : row + number - Traits::kColumns;
      return reinterpret_cast<uint64_t>(of_b ? params.b : params.a) + place * (of_b ? params.b_stride : params.a_stride);
    }
    /// Copy the next chunk of row i of the lane, with zeros beyond the row's end.
    CUTLASS_DEVICE void copy(int i, int number, int slot) const {
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

    CUTLASS_DEVICE Row(Stream const& stream, int number, int begin) {
      uint32_t const offset = uint32_t(stream.address_of(number) + begin) % kChunkBytes;
      first = stream.rings + number * kPitch + offset / 4 * 4 + threadIdx.x % 4 * 4;
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
    int const row = block % params.row_tiles * Traits::kRows, column = block / params.row_tiles * Traits::kColumns;
    int const part = rank * kWarps + warp, parts = params.splits * kWarps;
    int const begin = int64_t(params.stages) * part / parts, end = int64_t(params.stages) * (part + 1) / parts;
    uint32_t const memory = kit::cast_smem_ptr_to_uint(shared_memory), rings = memory + warp * Traits::kStreamed * kPitch;
    Sums sums;
    CUTLASS_PRAGMA_UNROLL
    for (auto& strip : sums) {
      CUTLASS_PRAGMA_UNROLL
      for (auto& each : strip) each = 0;
    }
    multiply(params, rings, row, column, begin * kStageBytes, end - begin, sums);
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
    // A warp completes a strip. The strips are spread over the CTAs.
    int const strip = warp * params.splits + rank;
    if (strip < Traits::kStrips && column + strip * kStrip < params.columns) {
      complete_strip(params, memory, strip, row, column);
    }
    if (params.splits > 1) {  // the memory of a CTA is read until then
      kit::cluster_arrive();
      kit::cluster_wait();
    }
#endif
  }

 private:
  CUTLASS_DEVICE static void multiply(
      Params const& params, uint32_t rings, int row, int column, int begin, int stages, Sums& sums) {
    int const group = threadIdx.x % 32 / 4;
    Stream stream(params, rings, row, column, begin);
    CUTLASS_PRAGMA_UNROLL
    for (int stage = 0; stage < Traits::kAhead; ++stage) {
      if (stage < stages) stream.load(stage);
      kit::copies_commit();
    }
    auto const of_b = [&](int i) { return Row<Traits::kWholeWordsOfB>(stream, 8 * i + group, begin); };
    auto const of_a = [&](int i) { return Row<Traits::kWholeWordsOfA>(stream, Traits::kColumns + 8 * i + group, begin); };
    for (int stage = 0; stage < stages; ++stage) {
      // The stage before the last one has been read.
      if (stage + Traits::kAhead < stages) stream.load((stage + Traits::kAhead) % kStages);
      kit::copies_commit();
      kit::copies_wait<Traits::kAhead>();
      __syncwarp();
      int const first = stage % kStages * kStageBytes;
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kStageBytes; k += 32) {
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
      __syncwarp();
    }
    kit::copies_wait<0>();
    __syncwarp();
  }

  /// Add the partial sums of a strip, and compute its epilogue.
  CUTLASS_DEVICE static void complete_strip(Params const& params, uint32_t memory, int strip, int row, int column) {
    int const lane = threadIdx.x % 32;
    fragment::Tile const tile{column + strip * kStrip + kit::Lanes::first_of(lane), params.columns, row / Traits::kRows,
                              column / kStrip + strip, ceil_div(params.columns, kStrip), 0,
                              params.columns, row, params.rows};
    Epilogue epilogue(params.epilogue, tile);
    Accumulator sums[Traits::kSums] = {};
    for (int rank = 0; rank < params.splits; ++rank) {
      uint32_t const of_rank = kit::set_block_rank(memory, rank);
      CUTLASS_PRAGMA_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) {
        uint32_t const from = of_rank + warp * Traits::kStreamed * kPitch + strip * Traits::kSums / 4 * Traits::kQuadBytes + lane * 16;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Traits::kSums; i += 4) {
          uint32_t quad[4];
          kit::load_cluster(quad, from + i / 4 * Traits::kQuadBytes);
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < 4; ++j) sums[i + j] += kit::sum_of<Accumulator>(quad[j]);
        }
      }
    }
    kit::complete<Traits, Traits::kRows>(epilogue, kit::GemmRows(row, 0, params.rows), sums, 0);
    epilogue.finish(tile);
  }
};

}  // namespace gemv
}  // namespace evt

#endif  // EVT_KIT_GEMV_HPP
