#ifndef EVT_FRAGMENT_HPP
#define EVT_FRAGMENT_HPP

// The places of the elements of an own kernel's epilogue. A thread visits its elements of the matrix [m, n] in steps of
// two columns and four rows. Element numbers are constants once loops are unrolled.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"

namespace evt {
namespace fragment {

constexpr int kElements = 8;  // elements of a step
constexpr int kRows = 4;

CUTLASS_DEVICE int lane() { return threadIdx.x % 32; }

/// The lanes of a warp. `Columns` lanes of a row have two columns each, `Distance` apart. kRows lanes share these
/// columns and have different rows: lane `column * kRows + row`. A warp's columns are a strip of the matrix: `Columns`
/// pairs of columns, which lie in one run of columns if Distance is at most Columns. ByRows: two rows of a column are
/// neighbours, as in WGMMA's registers; else the two columns of a row are.
template <int Columns, int Distance, bool ByRows>
struct Lanes {
  static constexpr int kColumns = Columns, kRows = 32 / Columns;
  static constexpr int kDistance = Distance;
  static constexpr int kStrip = 2 * Columns;  // columns
  static constexpr int kTileRows = 0;         // of a tile of consecutive rows, 0 for other tiles

  /// The first column of a strip.
  CUTLASS_HOST_DEVICE static constexpr int column_of_strip(int strip) {
    return strip * Columns / Distance * 2 * Distance + strip * Columns % Distance;
  }

  /// The first column of a lane in the strip.
  CUTLASS_HOST_DEVICE static constexpr int first_of(int lane) { return lane / kRows * (Distance == 1 ? 2 : 1); }

  /// The column and the row of element i of a step.
  CUTLASS_HOST_DEVICE static constexpr int column_of(int i) { return ByRows ? i / 2 % 2 : i % 2; }
  CUTLASS_HOST_DEVICE static constexpr int row_of(int i) { return ByRows ? i / 4 * 2 + i % 2 : i / 2; }
  CUTLASS_HOST_DEVICE static constexpr int element_of(int column, int row) {
    return ByRows ? row / 2 * 4 + column * 2 + row % 2 : row * 2 + column;
  }
};

/// WGMMA's lanes. The product is transposed: WGMMA's rows are columns of the matrix.
using LanesOfWgmma = Lanes<8, 8, true>;

/// WGMMA's lanes where the rows of B are loaded in another order, so that a thread has both columns of a pair.
template <int Distance>
using LanesOfPairs = Lanes<8, Distance, true>;

/// WGMMA's lanes in a tile of consecutive rows.
template <int Rows, class Lanes = LanesOfWgmma>
struct LanesOfTile : Lanes {
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

/// The matrix rows of a step; -1 outside of the matrix. `number` counts the steps of a tile. Row 0's word of packed bits
/// would be at `words` in shared memory. The words of the tile's rows that a mask has loaded are at `loaded`.
struct Places {
  int rows[kRows];
  int number;
  uint32_t words = 0;
  uint32_t loaded = 0;
};

/// The bytes of packed bits of a row of a block of 64 columns.
inline constexpr int kWordBytes = 8;

/// The types of the elements of matrices.
template <class... Each>
struct Elements {};

/// A type as a list; `void` as an empty one.
template <class Element>
struct OneElement {
  using type = Elements<Element>;
};
template <>
struct OneElement<void> {
  using type = Elements<>;
};
template <class Element>
using ElementsOf = typename OneElement<Element>::type;

template <class First, class Rest>
struct JoinedElements;
template <class... First, class... Rest>
struct JoinedElements<Elements<First...>, Elements<Rest...>> {
  using type = Elements<First..., Rest...>;
};

/// The matrices that a kernel loads and stores for an epilogue: C and D, and then further ones if the epilogue has them.
template <class Epilogue, class = void>
struct Moved {
  using Loads = ElementsOf<typename Epilogue::Source>;
  using Stores = ElementsOf<typename Epilogue::Destination>;
};
template <class Epilogue>
struct Moved<Epilogue, std::void_t<typename Epilogue::FurtherLoads>> {
  using Loads = typename JoinedElements<ElementsOf<typename Epilogue::Source>, typename Epilogue::FurtherLoads>::type;
  using Stores = typename JoinedElements<ElementsOf<typename Epilogue::Destination>, typename Epilogue::FurtherStores>::type;
};

/// Whether the epilogue loads packed bits of a tile before the consumer multiplies.
template <class Epilogue, class = void>
struct LoadsBits : std::false_type {};
template <class Epilogue>
struct LoadsBits<Epilogue, std::void_t<decltype(Epilogue::kLoadsBits)>> : std::true_type {};

/// Whether words of two elements of D are masked by packed bits of a tile.
template <class Epilogue, class = void>
struct MasksWords : std::false_type {};
template <class Epilogue>
struct MasksWords<Epilogue, std::void_t<decltype(Epilogue::kMasksWords)>> : std::true_type {};

/// Whether D is the one output, and 0 wherever the product is 0.
template <class Epilogue, class = void>
struct KeepsZeros : std::false_type {};
template <class Epilogue>
struct KeepsZeros<Epilogue, std::void_t<decltype(Epilogue::kKeepsZeros)>> : std::true_type {};

/// Whether rows of the matrices that the kernel loads for the epilogue begin at any address.
template <class Epilogue, class = void>
struct IsUnaligned : std::false_type {};
template <class Epilogue>
struct IsUnaligned<Epilogue, std::void_t<decltype(Epilogue::kUnaligned)>> : std::true_type {};

/// Whether the epilogue visits a transposed tile: its operations' columns are the matrix's rows.
template <class Epilogue, class = void>
struct IsTransposed : std::false_type {};
template <class Epilogue>
struct IsTransposed<Epilogue, std::void_t<decltype(Epilogue::kTransposed)>> : std::true_type {};

/// Some rows of a tile, their words of packed bits in shared memory, and a thread of the consumer that completes them.
struct PartOfRows {
  uint32_t words;
  int first, rows, end;  // `end` of the matrix, or of a batch
  int consumer, thread;
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_HPP
