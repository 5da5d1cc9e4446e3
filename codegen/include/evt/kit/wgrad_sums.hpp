#ifndef EVT_KIT_WGRAD_SUMS_HPP
#define EVT_KIT_WGRAD_SUMS_HPP

// The sums of partial sums, and the epilogue. A warp has a tile of 32 columns and 8 rows; a thread has two neighbouring
// columns of four rows. If there are many partial sums, several warps of a CTA share a tile: each adds some of them, and
// the first warp adds the results. The order of addition is fixed.

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/divisor.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/pdl.hpp"

namespace evt {
namespace wgrad {

/// The lanes of the epilogue.
using Lanes = fragment::Lanes<16, 1, false>;

/// The order of a tile's sums in memory. The accumulators of a lane are two quads: sums of two pairs of columns. The first
/// quads of all lanes precede the second ones.
struct TileOrder {
  static constexpr int kHalf = 128;                     // the first quads
  static constexpr int kRowsApart = 16 * Lanes::kRows;  // from row to row of a lane of the epilogue

  static_assert(kTileSums == 2 * kHalf && kTileSums == kTileRows * kTileColumns, "two halves");

  /// The place of a lane of the epilogue: of its first row and of its pair of columns.
  CUTLASS_DEVICE static int place(int lane) {
    int const row = lane % Lanes::kRows, pair = lane / Lanes::kRows;
    return pair / 8 * kHalf + (row * 4 + pair % 4) * 4 + pair / 4 % 2 * 2;
  }
};

template <class Epilogue>
struct SplitSums {
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr int kWarps = kSharingWarps, kThreads = 32 * kWarps;
  static_assert(kTileRows == fragment::kRows * Lanes::kRows && kTileColumns == Lanes::kStrip, "a thread has a step");

  struct Params {
    float const* sums;
    int splits, rows, columns, channels;
    int strips;
    int sharing;  // warps that share a tile
    // Clusters that stream tiles of `tile_rows` and `tile_strips`; 0: each element has `splits` partial sums. Each cluster
    // has `share` units.
    int streamed, pixel_tiles, share, filter_tiles, tile_rows, tile_strips;
    kit::FastDivisor by_strips, by_strips_of_tap;
    Source const* c;
    int64_t c_stride;
    Destination* d;
    int64_t d_stride;
    typename Epilogue::Params epilogue;

    CUTLASS_HOST_DEVICE int strips_of_tap() const { return ceil_div(channels, kBlock) * (kBlock / kTileColumns); }

    /// The place of a tile's partial sums.
    CUTLASS_HOST_DEVICE int64_t place(int split, int tile_row, int strip) const {
      return ((int64_t(split) * ceil_div(rows, kTileRows) + tile_row) * strips + strip) * kTileSums;
    }

    /// The partial sums of the elements of a row and a strip.
    CUTLASS_DEVICE int splits_of(int row, int strip) const {
      if (streamed == 0) return splits;
      int const first = (strip / tile_strips * filter_tiles + row / tile_rows) * pixel_tiles;
      return (first + pixel_tiles - 1) / share - first / share + 1;
    }

    /// A warp's tile: rows, and a strip of a tap's channels.
    CUTLASS_DEVICE fragment::Tile tile(int number, int strip) const {
      int const tap = by_strips_of_tap.quotient(strip);
      int const first = tap * channels + (strip - tap * strips_of_tap()) * Lanes::kStrip;
      int const column = first + static_cast<int>(threadIdx.x % 32) / Lanes::kRows * 2;
      return {column, columns, number, strip, strips, 0, (tap + 1) * channels};
    }
  };

#if !defined(EVT_DEVICE_PASS)
  static dim3 get_grid_shape(Params const& params) {
    return dim3(ceil_div(ceil_div(params.rows, kTileRows) * params.strips, kWarps / params.sharing));
  }
#endif

  CUTLASS_DEVICE static void complete(Params const& params) {
    __shared__ float2 shared[kWarps][fragment::kRows][32];
    int const warp = kit::canonical_warp_idx_sync(), lane = threadIdx.x % 32;
    int const part = warp % params.sharing, tiles = kWarps / params.sharing;
    int const number = blockIdx.x * tiles + warp / params.sharing;
    int const of_rows = params.by_strips.quotient(number), strip = number - of_rows * params.strips;
    int const row = of_rows * kTileRows + lane % Lanes::kRows;
    bool const has_tile = of_rows * kTileRows < params.rows;
    float2 sums[fragment::kRows] = {};
    if (has_tile) add(params, part, of_rows, strip, sums);
    if (params.sharing > 1) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; ++i) shared[warp][i][lane] = sums[i];
      __syncthreads();
      if (part > 0) return;
      for (int other = 1; other < params.sharing; ++other) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          float2 const more = shared[warp + other][i][lane];
          sums[i].x += more.x;
          sums[i].y += more.y;
        }
      }
    }
    if (has_tile) visit(params, params.tile(of_rows, strip), row, sums);
  }

  /// Compute the epilogue of a thread's elements.
  CUTLASS_DEVICE static void visit(
      Params const& params, fragment::Tile const& tile, int row, float2 const (&sums)[fragment::kRows]) {
    Epilogue epilogue(params.epilogue, tile);
    epilogue.compute_columns();
    bool const has = tile.first < tile.end;  // and then its neighbour, too: channels are multiples of 8
    fragment::Places places;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; ++i) {
      int const here = row + i * Lanes::kRows;
      places.rows[i] = here < params.rows ? here : -1;
    }
    typename Epilogue::Fetched fetched;
    if constexpr (Epilogue::kPlaces) epilogue.fetch(fetched, places);
    Destination* to = params.d + row * params.d_stride + tile.first;
    int64_t const step = Lanes::kRows * params.d_stride;
    [[maybe_unused]] uint32_t c[fragment::kRows] = {};
    if constexpr (kLoadsSource) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < fragment::kRows; ++i) {
        if (!has || places.rows[i] < 0) continue;
        c[i] = *reinterpret_cast<uint32_t const*>(params.c + places.rows[i] * params.c_stride + tile.first);
      }
    }
    typename Epilogue::Result of_first{};
    auto const sum = [&](int i) { return i % 2 == 0 ? sums[i / 2].x : sums[i / 2].y; };
    auto const source = [&](int i) {
      if constexpr (kLoadsSource) {
        return i % 2 == 0 ? element::load_first<Source>(c[i / 2]) : element::load_second<Source>(c[i / 2]);
      } else {
        return 0.0f;
      }
    };
    auto const store = [&](int i, typename Epilogue::Result value) {
      if constexpr (kStoresDestination) {
        if (i % 2 == 0) {
          of_first = value;
          return;
        }
        uint32_t word;
        element::store_two(Destination{}, word, of_first, value);
        if (has && row + i / 2 * Lanes::kRows < params.rows) {
          *reinterpret_cast<uint32_t*>(to) = word;
        }
        to += step;
      }
    };
    epilogue.template visit<fragment::kElements>(sum, source, store, fetched, places);
    epilogue.finish(tile);
  }

  /// Write a thread's partial sums.
  CUTLASS_DEVICE static void write(float* to, float2 const (&sums)[fragment::kRows]) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; ++i) *reinterpret_cast<float2*>(to + i * TileOrder::kRowsApart) = sums[i];
  }

 private:
  /// Add the partial sums of a thread's elements from `part` on. kFew are loaded before the first of them is added.
  CUTLASS_DEVICE static void add(
      Params const& params, int part, int tile_row, int strip, float2 (&sums)[fragment::kRows]) {
    float const* from = params.sums + params.place(part, tile_row, strip) + TileOrder::place(threadIdx.x % 32);
    int64_t const step = params.place(params.sharing, 0, 0);
    int left = (params.splits_of(tile_row * kTileRows, strip) - part + params.sharing - 1) / params.sharing;
    pdl::wait_for_kernel_before();  // which writes the partial sums
    for (; left > 0; left -= kFew, from += kFew * step) {
      float2 loaded[kFew][fragment::kRows] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kFew; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          if (j < left) loaded[j][i] = *reinterpret_cast<float2 const*>(from + j * step + i * TileOrder::kRowsApart);
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kFew; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < fragment::kRows; ++i) {
          sums[i].x += loaded[j][i].x;
          sums[i].y += loaded[j][i].y;
        }
      }
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_SUMS_HPP
