#ifndef EVT_KIT_STAGED_HPP
#define EVT_KIT_STAGED_HPP

// The matrices of an epilogue in buffers of shared memory, between TMA and the threads: C and D, and further ones.
//
// A buffer has some rows of a block of columns of all matrices. A stored matrix has the memory of a loaded one whose
// elements have its size, if there is one: a thread reads the elements of a step before it writes them.
//
// Rows of unaligned matrices begin at any address. TMA copies the blocks of 16 bytes that contain a row's elements. So a
// row begins at the same byte of its first block in memory and in the buffer. Such matrices are only loaded.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "evt/element.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// The indices 0, 1, ... of a parameter pack.
template <int... Each>
struct Indices {};

template <int Number, int... Each>
struct MakeIndices {
  using type = typename MakeIndices<Number - 1, Number - 1, Each...>::type;
};
template <int... Each>
struct MakeIndices<0, Each...> {
  using type = Indices<Each...>;
};
template <int Number>
using IndicesTo = typename MakeIndices<Number>::type;

/// An element of a list.
template <int Number, class List>
struct ElementAt;
template <int Number, class First, class... Rest>
struct ElementAt<Number, fragment::Elements<First, Rest...>> : ElementAt<Number - 1, fragment::Elements<Rest...>> {};
template <class First, class... Rest>
struct ElementAt<0, fragment::Elements<First, Rest...>> {
  using type = First;
};

/// A matrix with elements of Bytes bytes in a buffer of Rows rows and Columns columns. TMA swizzles the chunks of rows of
/// 64 columns, in boxes of at most 128 bytes. Rows of other blocks of columns are one box.
template <int Bytes, int Columns, int Rows>
struct StagedMatrix {
  static constexpr bool kSwizzled = Columns % kFilters == 0;
  static constexpr int kBoxColumns = kSwizzled ? std::min(Columns, 128 / Bytes) : Columns, kBoxes = Columns / kBoxColumns;
  static constexpr int kRowBytes = kBoxColumns * Bytes, kBoxBytes = Rows * kRowBytes, kBytes = kBoxes * kBoxBytes;

  CUTLASS_DEVICE static constexpr int chunk(int number, int row) { return kSwizzled ? number ^ row : number; }

  /// The place of a lane in a strip of 16 columns. 16 bits: a lane's row of the matrices that ldmatrix and stmatrix move,
  /// a chunk of 16 bytes of a row. Half: D has one chunk of a strip for each `half`. Other elements are moved one by one:
  /// a lane has two rows of a column, and the column 8 behind it.
  template <bool Half>
  CUTLASS_DEVICE static uint32_t place(int strip, int half) {
    int const lane = threadIdx.x % 32, quad = lane % 4, column = lane / 4;
    if constexpr (Bytes == 1) {
      return 2 * quad * kRowBytes + chunk(strip, quad) * 16 + 8 * half + column;
    } else if constexpr (Bytes == 2) {
      if constexpr (Half) return lane % 16 * kRowBytes + chunk(2 * strip + half, lane % 8) * 16;
      return (lane % 8 + lane / 16 * 8) * kRowBytes + chunk(2 * strip + lane / 8 % 2, lane % 8) * 16;
    } else {
      constexpr int kStrips = std::max(kBoxColumns / 16, 1);  // of a box
      int const number = strip % kStrips * 4 + column / 4;
      return strip / kStrips * kBoxBytes + 2 * quad * kRowBytes + chunk(number, 2 * quad) * 16 + column % 4 * 4;
    }
  }

  /// The place of a lane in 16 rows whose step of 16 columns is 0, and the address of another step: 16 bits, not transposed.
  CUTLASS_DEVICE static uint32_t place_of_rows(int rows) {
    int const lane = threadIdx.x % 32;
    return (kStepPixels * rows + lane % 16) * kRowBytes + chunk(lane / 16, lane % 8) * 16;
  }
  CUTLASS_DEVICE static uint32_t address_of_step(uint32_t lane, int step) {
    return kSwizzled ? lane ^ 32 * step : lane + 32 * step;
  }

  /// The address of element i of a step from the lane's, for elements that are moved one by one.
  CUTLASS_DEVICE static uint32_t address(uint32_t lane, int i) {
    int const column = i / 2 % 2, is_odd = i % 2, row = i / 4 * 8 + is_odd;
    if constexpr (Bytes == 4 && kSwizzled) return (lane ^ (32 * column | 16 * is_odd)) + row * kRowBytes;
    return lane + 8 * Bytes * column + row * kRowBytes;
  }
};

/// The bytes of a block that TMA copies.
inline constexpr int kCopiedBytes = 16;

/// The matrices that an epilogue loads, and that it stores, in buffers of Rows rows and Columns columns.
template <class Loaded, class Stored, int Columns, int Rows, bool Unaligned = false>
struct Staged;

template <class... Loads, class... Stores, int Columns, int Rows, bool Unaligned>
struct Staged<fragment::Elements<Loads...>, fragment::Elements<Stores...>, Columns, Rows, Unaligned> {
  static constexpr bool kUnaligned = Unaligned;
  static constexpr int kLoads = sizeof...(Loads), kStores = sizeof...(Stores);
  static constexpr int kMatrices = kLoads + kStores;
  template <int Number>
  using Load = typename ElementAt<Number, fragment::Elements<Loads...>>::type;
  template <int Number>
  using Store = typename ElementAt<Number, fragment::Elements<Stores...>>::type;
  template <class Element>
  using Matrix = StagedMatrix<sizeof(Element), Columns, Rows>;

  /// The bytes of an element of a matrix: the stored ones come after the loaded ones.
  CUTLASS_HOST_DEVICE static constexpr int bytes_of(int matrix) {
    int const all[] = {int(sizeof(Loads))..., int(sizeof(Stores))..., 0};
    return all[matrix];
  }
  /// The loaded matrix whose memory a matrix has, or the matrix itself: the first ones of a size belong together.
  CUTLASS_HOST_DEVICE static constexpr int owner_of(int matrix) {
    if (matrix < kLoads) return matrix;
    int before = 0;
    for (int i = kLoads; i < matrix; ++i) before += bytes_of(i) == bytes_of(matrix);
    for (int i = 0; i < kLoads; ++i) {
      if (bytes_of(i) == bytes_of(matrix) && before-- == 0) return i;
    }
    return matrix;
  }
  CUTLASS_HOST_DEVICE static constexpr int count_owners() {
    int count = 0;
    for (int i = 0; i < kMatrices; ++i) count += owner_of(i) == i;
    return count;
  }
  /// The bytes from one row of all columns to the next.
  CUTLASS_HOST_DEVICE static constexpr int bytes_of_row(int matrix) {
    return bytes_of(matrix) * Columns + (Unaligned ? kCopiedBytes : 0);
  }
  /// The place of a matrix in a buffer, or the end of all. Swizzled boxes begin at multiples of kAlignment.
  CUTLASS_HOST_DEVICE static constexpr int place_of(int matrix) {
    int place = 0, end = matrix < kMatrices ? owner_of(matrix) : matrix;
    for (int i = 0; i < end; ++i) {
      int const bytes = owner_of(i) == i ? bytes_of_row(i) * Rows : 0;
      place += count_owners() > 1 ? (bytes + kAlignment - 1) / kAlignment * kAlignment : bytes;
    }
    return place;
  }
  /// The bytes of an element of all matrices in a buffer, and of the loaded ones.
  CUTLASS_HOST_DEVICE static constexpr int bytes_of_element() {
    int bytes = 0;
    for (int i = 0; i < kMatrices; ++i) bytes += owner_of(i) == i ? bytes_of(i) : 0;
    return bytes;
  }
  CUTLASS_HOST_DEVICE static constexpr int loaded_bytes() {
    int bytes = 0;
    for (int i = 0; i < kLoads; ++i) bytes += bytes_of(i);
    return bytes;
  }
  static constexpr int kBytes = place_of(kMatrices);
  template <int Matrix>
  static constexpr int kPlace = place_of(Matrix);
  template <int Matrix>
  static constexpr int kPitch = bytes_of_row(Matrix);
  template <int Matrix>
  static constexpr int kElementBytes = bytes_of(Matrix);

  /// The words of a step of a loaded matrix: of two elements of 16 bits, or of one element.
  CUTLASS_HOST_DEVICE static constexpr int words_of(int matrix) { return bytes_of(matrix) == 2 ? 4 : fragment::kElements; }
  CUTLASS_HOST_DEVICE static constexpr int words_between(int first, int end) {
    int words = 0;
    for (int i = first; i < end; ++i) words += words_of(i);
    return words;
  }
  template <int Matrix>
  static constexpr int kWordsBefore = words_between(Matrix < kLoads ? 0 : kLoads, Matrix);
  static constexpr int kLoadedWords = std::max(words_between(0, kLoads), 1);
  static constexpr int kStoredWords = std::max(words_between(kLoads, kMatrices), 1);

  /// Where the rows of a tile begin in their first blocks.
  struct RowsBegin {
    uint32_t first[std::max(kLoads, 1)], step[std::max(kLoads, 1)];  // row 0 of loaded matrices, and from a row to the next

    RowsBegin() = default;
    template <class Moved>
    CUTLASS_DEVICE RowsBegin(Moved const* loads, int row) : RowsBegin(loads, row, IndicesTo<kLoads>{}) {}

    /// The place of a row's first element in its first block.
    template <int Number>
    CUTLASS_DEVICE uint32_t of(int row) const {
      return (first[Number] + row * step[Number]) % kCopiedBytes;
    }

   private:
    template <class Moved, int... Numbers>
    CUTLASS_DEVICE RowsBegin(Moved const* loads, int row, Indices<Numbers...>) {
      ((step[Numbers] = uint32_t(loads[Numbers].stride) * kElementBytes<Numbers>,
        first[Numbers] = uint32_t(reinterpret_cast<uint64_t>(loads[Numbers].pointer)) + row * step[Numbers]),
       ...);
    }
  };
  /// Aligned rows begin with their blocks.
  struct RowsAreAligned {
    RowsAreAligned() = default;
    template <class Moved>
    CUTLASS_DEVICE RowsAreAligned(Moved const*, int) {}
  };
  using Beginnings = std::conditional_t<Unaligned, RowsBegin, RowsAreAligned>;
};

/// The matrices of C and D alone.
template <class Source, class Destination, int Columns>
using StagedOne = Staged<fragment::ElementsOf<Source>, fragment::ElementsOf<Destination>, Columns, 0>;

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_STAGED_HPP
