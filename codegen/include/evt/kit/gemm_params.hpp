#ifndef EVT_KIT_GEMM_PARAMS_HPP
#define EVT_KIT_GEMM_PARAMS_HPP

// The arguments of a product, and the parameters of its launch: tiles of clusters, their order, and TMA descriptors.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/descriptor.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/geometry.hpp"

namespace evt {
namespace kit {

/// A matrix of the epilogue that the kernel moves. `batch_stride` is 0 if batches share it.
struct MovedMatrix {
  void const* pointer;
  int64_t stride, batch_stride;
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
  MovedMatrix loads[std::max(Traits::kLoads, 1)], stores[std::max(Traits::kStores, 1)];  // C and D first
  int batches;
  int64_t a_batch_stride, b_batch_stride;  // 0 if batches share the matrix
  bool once;  // whether elements are completed once: reductions count them, or an output overwrites a matrix that is read
  int32_t const* ends;  // the end of each group's rows, in device memory
  int groups;
  typename Traits::Epilogue::Params epilogue;
  typename Traits::Scales::Params scales;
  int multiprocessors;
};

template <class Traits>
struct GemmParams {
  CUtensorMap a, b, last, partner;  // last: the columns of B after the whole blocks
  using Moved = std::conditional_t<Traits::kUnaligned, MovedMatrix, CUtensorMap>;
  Moved loads[std::max(Traits::kLoads, 1)], stores[std::max(Traits::kStores, 1)];
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
  int batches, a_step, b_step;  // matrices from one batch to the next: 1, or 0 if batches share one
  int load_steps[std::max(Traits::kLoads, 1)];
};

/// The bytes of A that stay in L2 while B is read, and of L2.
inline constexpr int64_t kKeptBytes = 20'000'000, kL2Bytes = 50'000'000;

#if !defined(EVT_DEVICE_PASS)
/// The parameters of a launch, which the host makes.
template <class Traits>
struct GemmHost {
  using Arguments = GemmArguments<Traits>;
  using Params = GemmParams<Traits>;
  using Mma = typename Traits::Mma;
  using Conversion = typename Traits::Conversion;
  using Filters = typename Traits::Filters;

  static Params params(Arguments const& arguments) {
    constexpr int kClusterPixels = Traits::kPixels * Traits::kClusterRows;
    constexpr int kClusterWidth = Traits::kColumns * Traits::kClusterColumns;
    Params params{};
    params.epilogue = arguments.epilogue;
    params.scales = arguments.scales;
    params.rows = arguments.rows;
    params.columns = arguments.columns;
    params.k_blocks = std::max(ceil_div(arguments.depth, Traits::kDepth), 1);
    // Each group may have a tile of few rows.
    params.row_clusters =
        Traits::kGrouped ? arguments.rows / kClusterPixels + arguments.groups : ceil_div(arguments.rows, kClusterPixels);
    params.column_clusters = ceil_div(arguments.columns, kClusterWidth);
    int const work = params.row_clusters * params.column_clusters * (Traits::kBatched ? arguments.batches : 1);
    int const resident = std::max(Traits::kResident * arguments.multiprocessors / Traits::kClusterSize, 1);
    int const clusters = Traits::kSplits > 1 ? work : std::min(work, resident);  // a cluster completes one split tile
    params.grid = clusters * Traits::kClusterSize;
    // The rows of A and of B that a wave reads are equally many.
    params.band = 1;
    while (params.band < params.row_clusters &&
           int64_t(params.band) * params.band * kClusterPixels < int64_t(clusters) * kClusterWidth) {
      ++params.band;
    }
    // L2 does not hold B until the next band reads it. One band reads it from memory once, if L2 holds A.
    int64_t const row_bytes = int64_t(arguments.depth) * Mma::kElementBytes;
    bool const keeps = arguments.rows * row_bytes <= kKeptBytes && arguments.columns * row_bytes > kL2Bytes;
    if (!Traits::kGrouped && !Conversion::kConverts && keeps) params.band = params.row_clusters;
    params.once = arguments.once;
    params.ends = arguments.ends;
    params.groups = arguments.groups;
    if constexpr (Traits::kBatched) {
      params.batches = arguments.batches;
      params.a_step = arguments.a_batch_stride != 0;
      params.b_step = arguments.b_batch_stride != 0;
      for (int i = 0; i < Traits::kLoads; ++i) params.load_steps[i] = arguments.loads[i].batch_stride != 0;
    }
    params.encoded = encode(arguments, params);
    return params;
  }

  /// The tiles of rows and the strips that reductions keep parts of.
  static fragment::Tiles tiles(Arguments const& arguments) {
    constexpr int kRows = Traits::kPixels * Traits::kClusterRows;
    return {ceil_div(arguments.rows, kRows) * Traits::kClusterRows * Traits::kRowTiles, Traits::strips_of(arguments.columns)};
  }

 private:
  /// Encode the TMA descriptors. Return whether the driver accepts them.
  static bool encode(Arguments const& arguments, Params& params) {
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
                       arguments.a_batch_stride, Traits::kBoxDepth, Traits::loaded_rows(arguments.rows), Traits::kRowBytes)
                    .encode(params.a);
    auto const filters = [&](void const* pointer, int64_t outer, int64_t stride, int box_outer = Filters::kRows) {
      return matrix(Conversion::kType, Conversion::kBytes, pointer, along, outer, stride, arguments.b_batch_stride,
                    Filters::kLength, box_outer, Filters::kRowBytes);
    };
    if constexpr (Traits::kLoadsFewColumns) {
      int const last = rows % Filters::kRows;
      done = done && (last == 0 || filters(arguments.b, rows, b_stride, last).encode(params.last));
    }
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
    if constexpr (Traits::kUnaligned) {
      std::copy(arguments.loads, arguments.loads + Traits::kLoads, params.loads);
    } else {
      done = done && encode_moved<false>(typename Traits::Loads{}, arguments, arguments.loads, params.loads, matrix);
      done = done &&
             encode_moved<Traits::kGrouped>(typename Traits::Stores{}, arguments, arguments.stores, params.stores, matrix);
    }
    return done;
  }

  /// Encode the descriptors of the epilogue's matrices. Masked: their parts end with any row of a group.
  template <bool Masked, class... Elements, class Matrix>
  static bool encode_moved(fragment::Elements<Elements...>, Arguments const& arguments, MovedMatrix const* from,
                           CUtensorMap* to, Matrix const& matrix) {
    bool done = true;
    (encode_one<Masked, Elements>(done, arguments, *from++, *to++, matrix), ...);
    return done;
  }

  template <bool Masked, class Element, class Matrix>
  static void encode_one(bool& done, Arguments const& arguments, MovedMatrix const& from, CUtensorMap& to,
                         Matrix const& matrix) {
    using Staged = typename Traits::Staged::template Matrix<Element>;
    constexpr int kBytes = sizeof(Element);
    int const columns = arguments.columns / Traits::kMembers;
    if constexpr (Masked) {
      // Dimensions 1 and 2 both step by a row. The parts of D end with dimension 1, which can be any row: see store.
      constexpr int kPartRows = Traits::kPartRows;
      void const* const begin = static_cast<char const*>(from.pointer) - kBytes * kPartRows * from.stride;
      done = done && TmaTensor<3>{map_type<Element>(), kBytes, begin, {columns, kPartRows, arguments.rows + 1},
                                  {from.stride, from.stride}, {Staged::kBoxColumns, kPartRows, 1}, {1, 1},
                                  Staged::kRowBytes}
                         .encode(to);
    } else {
      done = done && matrix(map_type<Element>(), kBytes, from.pointer, columns, arguments.rows, from.stride,
                            from.batch_stride, Staged::kBoxColumns, Traits::kBoxRows, Staged::kRowBytes)
                         .encode(to);
    }
  }

  template <class T>
  static constexpr CUtensorMapDataType map_type() {
    if (sizeof(T) == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    if (sizeof(T) == 4) return std::is_same_v<T, int32_t> ? CU_TENSOR_MAP_DATA_TYPE_INT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    return std::is_same_v<T, element::f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
};
#endif

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_PARAMS_HPP
