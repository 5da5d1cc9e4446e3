// The kernels of filter gradients of evt on the host: the threads of a CTA run one at a time, over instructions of
// host/evt/kit. Each result is compared with a loop over the pixels.

#include "kit.hpp"

#undef __shared__
#define __shared__ static

#include <cmath>
#include <cstdio>
#include <vector>

#include "evt/kit/wgrad.hpp"

#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/reduce.hpp"

namespace {

namespace epilogue = evt::epilogue;
namespace wgrad = evt::wgrad;
using evt::element::bf16;
using host::value;

/// WGMMA of 16 pixels, whose operands have a row for each pixel. Blocks of 64 columns are a distance apart.
template <int Columns>
struct Mma {
  static constexpr int kElementBytes = 2, kPixels = Columns;
  static constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

  static float element(uint32_t descriptor, uint32_t layout, int column, int k) {
    uint32_t const begin = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    uint32_t const address = begin + uint32_t(column / 64) * leading + uint32_t(k / 8) * ((layout & 0x3fff) << 4) +
                             uint32_t(k % 8 * 128 + column % 64 * 2);
    return value(*reinterpret_cast<bf16*>(host::at(host::swizzled(address, 128))));
  }

  static void fma(float (&sums)[kPixels / 2], uint32_t a, uint32_t b, uint32_t layout_of_a, uint32_t layout_of_b,
                  int adds = 1) {
    host::fma(
        sums, adds, [=](int row, int k) { return element(a, layout_of_a, row, k); },
        [=](int column, int k) { return element(b, layout_of_b, column, k); });
  }
};

/// D = acc + C, and the sums of the rows and of the columns of acc.
struct Epilogue {
  using Source = bf16;
  using Destination = evt::element::Stored;
  using Result = float;
  static constexpr bool kPlaces = true;
  template <epilogue::Kept Kept>
  using Totals = evt::own::Part<wgrad::Lanes, epilogue::Reduction<Kept, evt::Sum, float, evt::Partial>>;
  using Rows = Totals<epilogue::Kept::kRows>;
  using Columns = Totals<epilogue::Kept::kColumns>;

  struct Params {
    typename Rows::Params rows;
    typename Columns::Params columns;
  };
  struct Fetched {};

  Rows rows;
  Columns columns;
  float of_column = NAN;  // 0 once `compute_columns` was called

  Epilogue(Params const& params, evt::fragment::Tile const& tile)
      : rows(params.rows, tile), columns(params.columns, tile) {}
  void compute_columns() { of_column = std::isnan(of_column) ? 0 : NAN; }
  void fetch(Fetched&, evt::fragment::Places const&) const {}

  template <int N, class Accumulator, class Loaded, class Store>
  void visit(Accumulator const& acc, Loaded const& source, Store const& store, Fetched const&,
             evt::fragment::Places const& places) {
    for (int i = 0; i < N; ++i) {
      rows.put(acc(i), i, places);
      columns.put(acc(i), i, places);
      store(i, acc(i) + source(i) + of_column);
    }
    rows.template end_step<N>(places);
  }
  void finish(evt::fragment::Tile const&) {
    rows.finish();
    columns.finish();
  }
};

int failures = 0, cases = 0;

void expect(double found, double wanted, char const* what, int row, int column) {
  if (std::fabs(found - wanted) <= 0.01 * (1 + std::fabs(wanted))) return;
  if (++failures < 20) std::printf("case %d: %s of (%d, %d) is %g, not %g\n", cases, what, row, column, found, wanted);
}

/// Small whole numbers: sums are exact.
std::vector<bf16> numbers(size_t count, int seed) {
  std::vector<bf16> found(count);
  for (size_t i = 0; i < count; ++i) found[i].bits = uint16_t(evt::element::rounded(float(int(i * 7919 + seed) % 5 - 2)));
  return found;
}

wgrad::Axis axis(int size, int taps, int stride, int dilation, int before, int after) {
  return {size, (size + before + after - dilation * (taps - 1) - 1) / stride + 1, taps, stride, dilation, before};
}

struct Size {
  int images, channels, filters;
  wgrad::Axis height, width;
  int pitch = 0;  // elements of a pixel, more than its channels
};

/// Check a gradient, by the clusters that its sizes suggest or by others.
template <class Tile>
void check(Size const& size, wgrad::WgradCluster const& others = {0, 0, 0}) {
  using Multiplied = Mma<Tile::kGroup * 64>;
  using Kernel = wgrad::Wgrad<Multiplied, Epilogue, Tile>;
  ++cases;
  wgrad::Axis const &height = size.height, &width = size.width;
  typename Kernel::Arguments arguments{};
  wgrad::Problem& problem = arguments.problem = {size.images, size.channels, size.filters, height, width};
  int const channels = size.channels, filters = size.filters, pixel = std::max(size.pitch, channels);
  std::vector<bf16> const x = numbers(size_t(size.images * height.size * width.size * pixel), 1);
  std::vector<bf16> const y = numbers(size_t(size.images * height.output * width.output * filters), 2);
  int const columns = height.taps * width.taps * channels;
  std::vector<bf16> const c = numbers(size_t(filters * columns), 3);
  std::vector<bf16> d(size_t((filters + 1) * columns), bf16{0x7fc0});  // a row beyond the matrix stays NaN
  int64_t const of_y = filters, of_x = pixel;
  arguments.a = y.data(), arguments.b = x.data();
  arguments.a_strides[2] = of_y, arguments.a_strides[1] = of_y * width.output;
  arguments.a_strides[0] = of_y * width.output * height.output;
  arguments.b_strides[2] = of_x, arguments.b_strides[1] = of_x * width.size;
  arguments.b_strides[0] = of_x * width.size * height.size;
  arguments.c = c.data(), arguments.c_stride = columns, arguments.d = d.data(), arguments.d_stride = columns;
  std::vector<float> sums(size_t(std::max(Kernel::splits(arguments), others.clusters)) * size_t(wgrad::partial_sums(problem)), NAN);
  arguments.sums = sums.data();
  evt::fragment::Tiles const tiles = Kernel::tiles(arguments);
  std::vector<float> row_parts(size_t(tiles.strips * filters), NAN);
  std::vector<float> column_parts(size_t(tiles.number * columns), NAN);
  arguments.epilogue.rows.ptr = row_parts.data(), arguments.epilogue.rows.kept = filters;
  arguments.epilogue.columns.ptr = column_parts.data(), arguments.epilogue.columns.kept = columns;
  if (!Kernel::can_implement(arguments)) {
    std::printf("case %d is refused\n", cases);
    ++failures;
    return;
  }
  typename Kernel::Params params = Kernel::to_underlying_arguments(arguments);
  if (others.neighbours > 0) {
    params.filter_tiles = wgrad::filter_tiles(problem, Tile::kClass) / others.neighbours;
    params.outputs = wgrad::outputs(problem, Tile::kClass) / others.neighbours;
    params.neighbours = others.neighbours, params.ranks = others.ranks, params.splits = others.splits();
    params.streamed = params.combined.streamed = others.streamed;
    params.combined.splits = others.clusters, params.combined.sharing = wgrad::sharing_of(others.clusters);
    params.share = params.combined.share = wgrad::share_of(params.outputs, params.geometry.tiles, others);
    params.by_share = evt::kit::FastDivisor::of(params.share);
    params.by_cluster_size = evt::kit::FastDivisor::of(others.ctas()), params.by_outputs = evt::kit::FastDivisor::of(params.outputs);
    params.by_filter_tiles = evt::kit::FastDivisor::of(params.filter_tiles), params.combined.filter_tiles = params.filter_tiles;
    params.combined.tile_rows = others.neighbours * Tile::kFilterBlocks * wgrad::kBlock;
    Kernel::Stages::template encode<Multiplied>(arguments, params);  // neighbours share the loads
  }
  typename Kernel::Multiply const multiply;
  gridDim = multiply.get_grid_shape(params);
  int const cluster = int(multiply.get_cluster_shape(params).x);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x += unsigned(cluster)) {
    host::barriers.clear();
    std::memset(host::memory, 0xff, sizeof(host::memory));
    host::run(multiply.MaxThreadsPerBlock, [&] { multiply(params, host::memory[host::rank_of_block()] + 16); }, cluster);
  }
  gridDim = Kernel::get_grid_shape(params);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    host::run(int(Kernel::get_block_shape().x), [&] { Kernel()(params, nullptr); });
  }
  std::vector<double> wanted(size_t(filters * columns), 0), of_columns(size_t(columns), 0);
  for (int image = 0; image < size.images; ++image) {
    for (int p = 0; p < height.output; ++p) {
      for (int q = 0; q < width.output; ++q) {
        for (int tap = 0; tap < height.taps * width.taps; ++tap) {
          int const down = p * height.stride - height.pad + tap / width.taps * height.dilation;
          int const right = q * width.stride - width.pad + tap % width.taps * width.dilation;
          if (down < 0 || down >= height.size || right < 0 || right >= width.size) continue;
          bf16 const* const of_pixel = x.data() + ((image * height.size + down) * width.size + right) * pixel;
          bf16 const* const of_output = y.data() + ((image * height.output + p) * width.output + q) * filters;
          for (int k = 0; k < filters; ++k) {
            double* const to = wanted.data() + k * columns + tap * channels;
            for (int channel = 0; channel < channels; ++channel) to[channel] += value(of_output[k]) * value(of_pixel[channel]);
          }
        }
      }
    }
  }
  for (int i = 0; i < filters; ++i) {
    double of_row = 0;
    for (int j = 0; j < columns; ++j) {
      double const sum = wanted[size_t(i * columns + j)];
      expect(value(d[size_t(i * columns + j)]), sum + value(c[size_t(i * columns + j)]), "D", i, j);
      of_row += sum;
      of_columns[size_t(j)] += sum;
    }
    double parts = 0;
    for (int64_t strip = 0; strip < tiles.strips; ++strip) parts += row_parts[size_t(strip * filters + i)];
    expect(parts, of_row, "the sum of a row", i, 0);
  }
  for (int j = 0; j < columns; ++j) {
    double parts = 0;
    for (int64_t tile = 0; tile < tiles.number; ++tile) parts += column_parts[size_t(tile * columns + j)];
    expect(parts, of_columns[size_t(j)], "the sum of a column", 0, j);
    if (d[size_t(filters * columns + j)].bits != 0x7fc0 && ++failures < 20) std::printf("a row beyond D is written\n");
  }
}

}  // namespace

int main() {
  using wgrad::WgradTile;
  using Taps = WgradTile<3, 3, 1, 1, 1, 1, 3>;
  using Strided = WgradTile<3, 3, 1, 1, 1, 1, 1>;
  check<Taps>({2, 72, 72, axis(9, 3, 1, 1, 1, 1), axis(7, 3, 1, 1, 1, 1)});
  check<Taps>({1, 64, 64, axis(5, 3, 1, 1, 0, 2), axis(70, 3, 1, 1, 1, 1)});
  check<Taps>({2, 16, 24, axis(12, 3, 1, 2, 2, 2), axis(11, 3, 1, 2, 2, 2)});
  check<Taps>({2, 40, 64, axis(8, 5, 1, 1, 2, 2), axis(9, 4, 1, 1, 2, 1)});
  check<Taps>({3, 64, 8, axis(8, 3, 1, 1, 1, 1), axis(9, 1, 1, 1, 0, 0)});
  check<Taps>({1, 8, 16, axis(9, 3, 1, 1, 1, 1), axis(5, 3, 1, 1, 1, 1)});
  check<Strided>({2, 72, 64, axis(14, 3, 2, 1, 1, 1), axis(13, 3, 2, 1, 1, 1)});
  check<Strided>({2, 32, 16, axis(17, 3, 2, 1, 1, 1), axis(12, 3, 1, 1, 1, 1)});
  check<Strided>({2, 32, 16, axis(17, 3, 2, 2, 2, 2), axis(15, 5, 3, 2, 3, 3)});
  check<WgradTile<1, 1, 2, 1, 4, 1, 4>>({3, 264, 136, axis(7, 1, 1, 1, 0, 0), axis(5, 1, 1, 1, 0, 0)});
#if defined(EVERY_CASE)  // the compiler takes most of the time
  check<WgradTile<1, 1, 2, 1, 2, 1, 2>>({9, 96, 72, axis(7, 1, 1, 1, 0, 0), axis(5, 1, 1, 1, 0, 0), 104});
  check<WgradTile<1, 1, 1, 1, 4, 2, 4>>({5, 256, 64, axis(7, 1, 1, 1, 0, 0), axis(7, 1, 1, 1, 0, 0)});
#endif
  check<WgradTile<1, 1, 1, 1, 1, 2, 1>>({2, 64, 64, axis(17, 1, 1, 1, 0, 0), axis(17, 1, 1, 1, 0, 0)});
  check<WgradTile<1, 1, 1, 1, 1, 2, 1>>({4, 72, 40, axis(31, 1, 1, 1, 0, 0), axis(27, 1, 1, 1, 0, 0)});
  check<WgradTile<1, 1, 2, 2, 1, 1, 1>>({5, 64, 256, axis(9, 1, 2, 1, 0, 0), axis(9, 1, 2, 1, 0, 0)});
#if defined(EVERY_CASE)
  check<WgradTile<1, 1, 2, 2, 2, 1, 2>>({3, 136, 200, axis(14, 1, 2, 1, 0, 0), axis(8, 1, 3, 1, 1, 1)});
#endif
  // Two tiles of filters load the input together: more tiles of pixels than stages, several CTAs a tile, two parts.
  using Narrow = WgradTile<1, 1, 1, 1, 2, 1, 2>;
  check<Narrow>({1, 72, 104, axis(31, 1, 1, 1, 0, 0), axis(33, 1, 1, 1, 0, 0)}, {2, 1, 1});
  check<Narrow>({5, 200, 232, axis(9, 1, 2, 1, 0, 0), axis(8, 1, 2, 1, 0, 0)}, {2, 2, 2});
  // Two parts of consumers exchange sums before they write partial ones: a part may have no pixels.
  check<WgradTile<1, 1, 1, 1, 2, 2, 2>>({3, 136, 104, axis(9, 3, 2, 1, 1, 1), axis(8, 2, 1, 2, 1, 1)}, {1, 1, 2});
  check<WgradTile<1, 1, 1, 1, 1, 2, 1>>({2, 72, 72, axis(9, 1, 1, 1, 0, 0), axis(7, 1, 1, 1, 0, 0)}, {1, 1, 2});
#if defined(EVERY_CASE)
  check<WgradTile<1, 1, 1, 1, 2, 2, 2>>({1, 128, 128, axis(31, 1, 1, 1, 0, 0), axis(33, 1, 1, 1, 0, 0)}, {2, 2, 1});
  check<WgradTile<1, 1, 1, 1, 2, 2, 2>>({2, 264, 128, axis(15, 1, 1, 1, 0, 0), axis(9, 1, 1, 1, 0, 0)}, {2, 1, 3});
  check<WgradTile<1, 1, 1, 1, 4, 2, 4>>({9, 264, 72, axis(7, 1, 1, 1, 0, 0), axis(5, 1, 1, 1, 0, 0)}, {1, 1, 5});
#endif
  // Blocks of several taps: a block's taps end within a tile, and a tile ends beyond the last block.
  check<Narrow>({3, 72, 72, axis(9, 3, 2, 1, 1, 1), axis(8, 2, 1, 2, 1, 1)});
  check<Narrow>({2, 136, 104, axis(7, 3, 1, 2, 2, 2), axis(9, 1, 2, 1, 0, 0), 144}, {2, 2, 2});
  check<WgradTile<1, 1, 1, 1, 6, 1, 3>>({2, 64, 64, axis(11, 3, 1, 1, 1, 1), axis(11, 3, 1, 1, 1, 1)}, {1, 1, 3});
  // Clusters that share all tiles: a cluster ends one tile and begins another, or has a part of one.
  check<Narrow>({3, 72, 72, axis(9, 3, 2, 1, 1, 1), axis(8, 2, 1, 2, 1, 1)}, {1, 1, 3, 5});
  check<Narrow>({5, 136, 232, axis(9, 3, 1, 1, 1, 1), axis(9, 1, 1, 1, 0, 0)}, {2, 1, 4, 7});
  check<Narrow>({1, 72, 136, axis(5, 3, 2, 1, 1, 1), axis(4, 2, 1, 1, 0, 0)}, {1, 1, 3, 5});
  check<Narrow>({9, 72, 72, axis(9, 3, 2, 1, 1, 1), axis(8, 2, 1, 2, 1, 1)}, {1, 2, 1});
  std::printf("%d failures\n", failures);
  return failures != 0;
}
