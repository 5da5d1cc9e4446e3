#ifndef EVT_EPILOGUE_TILE_CUTLASS_HPP
#define EVT_EPILOGUE_TILE_CUTLASS_HPP

// The tile of a CTA in CUTLASS's kernels: the base of the lanes of 2.x and 3.x kernels.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"

#include "evt/epilogue/reduce.hpp"

namespace evt {
namespace epilogue {

/// A thread's place in a tile, and the parts that tiles write of a reduction. A tile writes ColumnParts parts of a
/// reduction that keeps columns, and Parts of a reduction to one value: one for each warp, or a single one.
template <int TileM, int TileN, int ColumnParts, int Parts>
struct Tile {
  static constexpr int kTileM = TileM, kTileN = TileN;

  int m, n, l;        // of the thread's first element
  int rows, columns;  // of the problem
  int tile_m, tile_n;
  int thread;

  CUTLASS_DEVICE int batch() const { return l; }
  CUTLASS_DEVICE int extent_m() const { return rows; }
  CUTLASS_DEVICE int extent_n() const { return columns; }
  /// The end of the columns that the tile may store: with groups, of its group.
  CUTLASS_DEVICE int end_n() const { return columns; }

  CUTLASS_DEVICE bool is_row(int row) const { return row < rows; }
  /// A cluster may get tiles beyond the problem.
  CUTLASS_DEVICE bool is_inside() const { return tile_m * kTileM < rows && tile_n * kTileN < columns; }

  /// The columns of an indexed tensor. Each visit looks them up.
  struct ColumnTable {
    template <class Lanes, class Find>
    CUTLASS_DEVICE void begin(Lanes const&, Find const&) {}

    template <class Lanes, class Find>
    CUTLASS_DEVICE int64_t get(Lanes const& lanes, typename Lanes::At const& at, int i, Find const& find) const {
      return find(lanes.column(at, i));
    }
  };

  template <Kept K>
  CUTLASS_HOST_DEVICE static int64_t parts_of_extents(int64_t m, int64_t n) {
    int64_t const tiles_m = (m + kTileM - 1) / kTileM, tiles_n = (n + kTileN - 1) / kTileN;
    return (K == Kept::kRows ? tiles_n : K == Kept::kColumns ? tiles_m : tiles_m * tiles_n) * parts_of_tile(K);
  }

  template <Kept K, class ProblemShape>
  CUTLASS_HOST_DEVICE static int64_t parts_of(ProblemShape const& shape) {
    return parts_of_extents<K>(int64_t(cute::get<0>(shape)), int64_t(cute::get<1>(shape)));
  }

  template <Kept K>
  CUTLASS_DEVICE int64_t parts() const {
    return parts_of_extents<K>(rows, columns);
  }

  template <Kept K>
  CUTLASS_DEVICE int64_t part() const {
    int64_t const tiles_n = (int64_t(columns) + kTileN - 1) / kTileN;
    int64_t const tile = K == Kept::kRows ? tile_n : K == Kept::kColumns ? tile_m : tile_m * tiles_n + tile_n;
    return parts_of_tile(K) == 1 ? tile : tile * parts_of_tile(K) + thread / 32;
  }

  template <Kept K, class Arguments>
  CUTLASS_DEVICE int64_t kept(Arguments const&) const {
    return K == Kept::kRows ? rows : K == Kept::kColumns ? columns : 1;
  }

 private:
  CUTLASS_HOST_DEVICE static constexpr int parts_of_tile(Kept kept) {
    return kept == Kept::kRows ? 1 : kept == Kept::kColumns ? ColumnParts : Parts;
  }
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_TILE_CUTLASS_HPP
