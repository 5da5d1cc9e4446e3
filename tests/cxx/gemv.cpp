// The kernel of products of few rows on the host: the threads of a cluster run one at a time. Each result is compared with
// a loop over the matrices.

#include "kit.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

#include "evt/kit/gemv.hpp"

#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/matrix.hpp"
#include "evt/epilogue/reduce.hpp"
#include "evt/epilogue/vector.hpp"

namespace {

namespace epilogue = evt::epilogue;
using evt::element::bf16;
using host::value;

/// mma.sync of 16 columns and 8 rows over 16 elements of k. A lane has two elements of k of a row, and two 8 elements later.
struct Mma {
  static constexpr int kElementBytes = 2;
  using Accumulator = float;

  static void fma(float* sums, uint32_t const (&a)[4], uint32_t const (&b)[2]) {
    int const lane = int(threadIdx.x) % 32;
    float columns[2][16], rows[2][16];
    auto const take = [&](float (&to)[16], uint32_t word, int of_lanes, int first) {
      for (int quad = 0; quad < 4; ++quad) {
        uint32_t const two = host::exchange(word, of_lanes * 4 + quad);
        for (int j = 0; j < 2; ++j) to[first + quad * 2 + j] = value(bf16{uint16_t(two >> 16 * j)});
      }
    };
    for (int i = 0; i < 4; ++i) take(columns[i % 2], a[i], lane / 4, i / 2 * 8);
    for (int i = 0; i < 4; ++i) take(rows[i % 2], b[i / 2], lane % 4 * 2 + i % 2, i / 2 * 8);
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) sums[i] += columns[i / 2][k] * rows[i % 2][k];
    }
  }
};

/// D = acc + offset, and the sums of the rows and of the columns of acc. A row has an offset.
template <int TileRows>
struct Epilogue {
  using Lanes = evt::kit::Lanes;
  using Source = void;
  using Destination = void;
  using Result = float;
  static constexpr bool kPlaces = true;
  template <epilogue::Kept Kept>
  using Sums = evt::own::Part<Lanes, epilogue::Reduction<Kept, evt::Sum, float, evt::Partial>>;
  using Rows = Sums<epilogue::Kept::kRows>;
  using Columns = Sums<epilogue::Kept::kColumns>;
  using Offset = evt::own::Part<evt::fragment::LanesOfTile<TileRows, Lanes>, epilogue::ColumnBroadcast<float, float>>;
  using Stored = evt::own::Part<Lanes, epilogue::MatrixStore<float, epilogue::Strides>>;

  struct Params {
    typename Rows::Params rows;
    typename Columns::Params columns;
    typename Offset::Params offset;
    typename Stored::Params stored;
  };
  struct Fetched {
    typename Offset::Fetched offset;
  };

  Rows rows;
  Columns columns;
  Offset offset;
  Stored stored;
  float of_column = NAN;  // 0 once `compute_columns` was called

  Epilogue(Params const& params, evt::fragment::Tile const& tile)
      : rows(params.rows, tile), columns(params.columns, tile), offset(params.offset, tile), stored(params.stored, tile) {}
  void compute_columns() { of_column = std::isnan(of_column) ? 0 : NAN; }
  void fetch(Fetched& fetched, evt::fragment::Places const& places) const { offset.fetch(fetched.offset, places); }

  template <int N, class Accumulator, class Staged, class Store>
  void visit(Accumulator const& acc, Staged const&, Store const&, Fetched const& fetched,
             evt::fragment::Places const& places) {
    for (int i = 0; i < N; ++i) {
      rows.put(acc(i), i, places);
      columns.put(acc(i), i, places);
      stored.put(acc(i) + offset.get(i, places, fetched.offset) + of_column, i, places);
    }
    rows.template end_step<N>(places);
  }
  void finish(evt::fragment::Tile const&) {
    rows.finish();
    columns.finish();
  }
};

int failures = 0;

void expect(double found, double wanted, char const* what, int row, int column, char const* of) {
  if (found == wanted) return;
  if (++failures < 20) std::printf("%s: %s of row %d, column %d is %g, not %g\n", of, what, row, column, found, wanted);
}

/// A matrix of small whole numbers whose first element is `offset` elements after an aligned address, with NaN around it
/// and between its rows.
struct Matrix {
  std::vector<bf16> elements;
  int first, stride;

  Matrix(int rows, int columns, int offset, int stride, int seed)
      : elements(size_t(rows * stride + 24), bf16{0x7fff}), stride(stride) {
    first = int((16 - reinterpret_cast<uintptr_t>(elements.data()) % 16) % 16 / 2) + offset;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        bf16& to = elements[size_t(first + i * stride + j)];
        to.bits = uint16_t(evt::element::rounded(float((i * 7 + j * 3 + seed + i * j) % 5 - 2)));
      }
    }
  }
  bf16 const* begin() const { return elements.data() + first; }
  float at(int row, int column) const { return value(begin()[row * stride + column]); }
};

/// The sizes of a product; elements before and after A and B in a row; and the SMs.
struct Size {
  int rows, columns, depth, before_a, after_a, before_b, after_b, multiprocessors;
};

template <int Rows, int Strips, int AlignmentOfA, int AlignmentOfB, bool ByRows = false>
void check(char const* name, Size const& size, int splits) {
  constexpr int kWarpRows = evt::gemv::GemvTile{Rows, Strips * evt::gemv::kStrip, ByRows}.rows_of_warp();
  using Kernel = evt::gemv::Kernel<Mma, Epilogue<kWarpRows>, Rows, Strips, AlignmentOfA, AlignmentOfB, ByRows>;
  int const m = size.rows, n = size.columns, k = size.depth;
  Matrix const a(m, k, size.before_a, k + size.after_a, 1), b(n, k, size.before_b, k + size.after_b, 2);
  std::vector<float> d(size_t(m * n), NAN), offsets;
  for (int i = 0; i < m; ++i) offsets.push_back(float(i * 37 % 31));
  typename Kernel::Arguments arguments{};
  arguments.rows = m, arguments.columns = n, arguments.depth = k;
  arguments.a = a.begin(), arguments.a_stride = a.stride, arguments.b = b.begin(), arguments.b_stride = b.stride;
  arguments.multiprocessors = size.multiprocessors;
  evt::fragment::Tiles const tiles = Kernel::tiles(arguments);
  std::vector<float> row_parts(size_t(tiles.strips * m), NAN), column_parts(size_t(tiles.number * n), NAN);
  arguments.epilogue.rows.ptr = row_parts.data(), arguments.epilogue.rows.kept = m;
  arguments.epilogue.columns.ptr = column_parts.data(), arguments.epilogue.columns.kept = n;
  arguments.epilogue.offset.ptr = offsets.data(), arguments.epilogue.offset.stride = 1;
  arguments.epilogue.stored.ptr = d.data(), arguments.epilogue.stored.stride = {n, 1};
  typename Kernel::Params const params = Kernel::to_underlying_arguments(arguments);
  expect(params.splits, splits, "splits", 0, 0, name);
  gridDim = Kernel::get_grid_shape(params);
  for (unsigned first = 0; first < gridDim.x; first += unsigned(params.splits)) {
    std::memset(host::memory, 0xff, sizeof(host::memory));
    host::copies.clear();
    host::run(
        Kernel::MaxThreadsPerBlock,
        [&] {
          blockIdx.x = first + unsigned(host::rank_of_block());
          Kernel()(params, host::memory[host::rank_of_block()]);
        },
        params.splits);
  }
  std::vector<double> of_columns(size_t(n), 0);
  for (int i = 0; i < m; ++i) {
    double of_row = 0, parts = 0;
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int x = 0; x < k; ++x) sum += a.at(i, x) * b.at(j, x);
      expect(d[size_t(i * n + j)], sum + offsets[size_t(i)], "D", i, j, name);
      of_row += sum;
      of_columns[size_t(j)] += sum;
    }
    for (int64_t strip = 0; strip < tiles.strips; ++strip) parts += row_parts[size_t(strip * m + i)];
    expect(parts, of_row, "the sum", i, -1, name);
  }
  for (int j = 0; j < n; ++j) {
    double parts = 0;
    for (int64_t tile = 0; tile < tiles.number; ++tile) parts += column_parts[size_t(tile * n + j)];
    expect(parts, of_columns[size_t(j)], "the sum", -1, j, name);
  }
}

}  // namespace

int main() {
  check<8, 2, 2, 2>("odd rows", {5, 37, 333, 1, 4, 3, 2, 1}, 1);
  check<8, 1, 4, 4>("words", {8, 16, 1002, 0, 2, 2, 4, 1}, 2);
  check<16, 2, 2, 4>("one of them odd", {13, 64, 75, 5, 2, 6, 1, 1}, 1);
  check<16, 2, 4, 2>("the other one", {20, 33, 130, 4, 4, 7, 1, 1}, 1);
  check<32, 2, 16, 2>("A is aligned", {33, 50, 136, 0, 0, 1, 0, 1}, 1);
  check<8, 2, 2, 2>("one element", {1, 1, 1, 7, 0, 7, 0, 132}, 1);
  check<8, 2, 2, 2>("CTAs split k", {3, 40, 1100, 1, 0, 2, 1, 132}, 2);
  check<32, 1, 2, 2, true>("warps share rows", {70, 5, 333, 1, 4, 3, 2, 132}, 1);
  check<64, 1, 16, 16, true>("aligned rows", {100, 7, 264, 0, 0, 0, 0, 132}, 1);
  check<32, 4, 4, 4, true>("strips of many columns", {75, 100, 90, 0, 2, 2, 4, 132}, 1);
  check<128, 4, 2, 2, true>("rows of several steps", {200, 40, 17, 0, 0, 0, 0, 132}, 1);
  check<8, 1, 2, 2>("more CTAs than stages", {7, 17, 2051, 1, 2, 3, 4, 132}, 4);
  std::printf("%d failures\n", failures);
  return failures != 0;
}
