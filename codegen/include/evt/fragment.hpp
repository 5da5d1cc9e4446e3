#ifndef EVT_FRAGMENT_HPP
#define EVT_FRAGMENT_HPP

// The places of the elements of an own kernel's epilogue. A thread visits its elements of the matrix [m, n] in steps of
// two columns and four rows. Element numbers are constants once loops are unrolled.

#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {
namespace fragment {

constexpr int kElements = 8;  // elements of a step
constexpr int kRows = 4;

CUTLASS_DEVICE int lane() { return threadIdx.x % 32; }

/// The lanes of a warp. `Columns` lanes of a row have two columns each, `Distance` apart. kRows lanes share these
/// columns and have different rows: lane `column * kRows + row`. A warp's columns are a strip of the matrix, which
/// begins at a multiple of its width.
template <int Columns, int Distance>
struct Lanes {
  static constexpr int kColumns = Columns, kRows = 32 / Columns;
  static constexpr int kDistance = Distance;
  static constexpr int kStrip = 2 * Columns;  // columns
  static constexpr int kTileRows = 0;         // of a tile of consecutive rows, 0 for other tiles

  /// The column and the row of element i of a step: neighbouring columns first, or in the order of WGMMA's registers.
  CUTLASS_HOST_DEVICE static constexpr int column_of(int i) { return Distance == 1 ? i % 2 : i / 2 % 2; }
  CUTLASS_HOST_DEVICE static constexpr int row_of(int i) { return Distance == 1 ? i / 2 : i / 4 * 2 + i % 2; }
  CUTLASS_HOST_DEVICE static constexpr int element_of(int column, int row) {
    return Distance == 1 ? row * 2 + column : row / 2 * 4 + column * 2 + row % 2;
  }
};

/// WGMMA's lanes. The product is transposed: WGMMA's rows are columns of the matrix.
using LanesOfWgmma = Lanes<8, 8>;

/// WGMMA's lanes in a tile of consecutive rows.
template <int Rows>
struct LanesOfTile : LanesOfWgmma {
  static constexpr int kTileRows = Rows;
};

/// The thread's columns, and its warp's tile of rows (`number`) and strip of columns. Reductions keep a result for
/// each. The tile's columns end at `end`: before the matrix's where they belong to groups.
struct Tile {
  int first;    // column of the thread
  int columns;  // of the matrix
  int number;
  int strip, strips;
  int batch = 0;  // or the group
  int end = columns;
  int row = 0, rows_end = 0;  // of a tile of consecutive rows

  /// The second of two blocks of strips that are computed together may be beyond the matrix.
  CUTLASS_DEVICE bool exists() const { return strip < strips; }
};

/// The number of tiles of rows, and of strips.
struct Tiles {
  int64_t number;
  int64_t strips;
};

/// The matrix rows of a step; -1 outside of the matrix. `number` counts the steps of a tile of consecutive rows.
struct Places {
  int rows[kRows];
  int number;
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_HPP
