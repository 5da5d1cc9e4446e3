// The GEMM kernel of evt on the host: the threads of a cluster run one at a time, over instructions of host/evt/kit. Each
// result is compared with a loop over the matrices.

#include "kit.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace evt {
namespace element {

/// A byte with the value of a whole number.
struct Byte {
  int8_t bits;
};
/// A byte of D, which saturates.
inline int8_t small(float x) { return int8_t(std::min(std::max(std::rint(x), -128.0f), 127.0f)); }
inline float load(Byte x) { return x.bits; }
inline void store_two(Byte, uint32_t& to, float first, float second) {
  to = uint8_t(small(first)) | uint32_t(uint8_t(small(second))) << 8;
}

}  // namespace element
}  // namespace evt

using evt::element::Byte;

#include "evt/kit/gemm.hpp"

#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/mask_own.hpp"
#include "evt/epilogue/matrix.hpp"
#include "evt/epilogue/pair.hpp"
#include "evt/epilogue/reduce.hpp"
#include "evt/epilogue/vector.hpp"

namespace evt {
namespace kit {

template <>
struct Converter<Byte, element::bf16> {
  static uint32_t convert(uint32_t two) {
    return element::rounded(float(int8_t(two))) | element::rounded(float(int8_t(two >> 8))) << 16;
  }
};

}  // namespace kit
}  // namespace evt

namespace {

namespace epilogue = evt::epilogue;
using evt::element::bf16;

using host::Mma;
using host::value;

/// Filters in registers: a thread has two elements of k of two rows, and two 8 elements later.
template <int Pixels>
struct MmaOfRegisters : Mma<Pixels> {
  static void fma(float (&sums)[Pixels / 2], uint32_t const (&a)[4], uint32_t b, uint32_t layout_of_b, int adds = 1) {
    int const lane = int(threadIdx.x) % 32;
    float filters[2][16];
    for (int i = 0; i < 4; ++i) {
      for (int quad = 0; quad < 4; ++quad) {
        uint32_t const two = host::exchange(a[i], lane / 4 * 4 + quad);
        for (int j = 0; j < 2; ++j) filters[i % 2][i / 2 * 8 + quad * 2 + j] = value(bf16{uint16_t(two >> 16 * j)});
      }
    }
    host::fma(
        sums, adds, [&](int row, int k) { return filters[row / 8 % 2][k]; },
        [=](int column, int k) { return Mma<Pixels>::element(b, layout_of_b, column, k); });
  }
};

/// D = acc + C + offset, D = acc + offset, or D = 2*even(acc) + odd(acc) + offset, and the sums of the rows and of the
/// columns of acc. A row has an offset. Without a destination, threads load C and store D.
template <bool HasSource, int TileRows, int Pairs, class D>
struct Epilogue {
  static constexpr bool Paired = Pairs > 0;
  static constexpr bool Direct = std::is_void_v<D>;
  using Lanes = std::conditional_t<Paired, evt::kit::LanesOfPairs<Pairs>, evt::kit::Lanes>;
  using Source = std::conditional_t<HasSource && !Direct, bf16, void>;
  using Destination = D;
  using Result = float;
  static constexpr bool kPlaces = true;
  template <epilogue::Kept Kept>
  using Sums = evt::own::Part<Lanes, epilogue::Reduction<Kept, evt::Sum, float, evt::Partial>>;
  using Rows = Sums<epilogue::Kept::kRows>;
  using Columns = Sums<epilogue::Kept::kColumns>;
  using Offset =
      evt::own::Part<evt::fragment::LanesOfTile<TileRows, Lanes>, epilogue::ColumnBroadcast<float, float, HasSource>>;
  using Even = evt::own::Part<Lanes, epilogue::Even<Paired ? Pairs : 1>>;
  using Odd = evt::own::Part<Lanes, epilogue::Odd<Paired ? Pairs : 1>>;
  using Loaded = evt::own::Part<Lanes, epilogue::MatrixLoad<float, epilogue::Strides>>;
  using Stored = evt::own::Part<Lanes, epilogue::MatrixStore<evt::element::Stored, epilogue::Strides>>;

  struct Params {
    typename Rows::Params rows;
    typename Columns::Params columns;
    typename Offset::Params offset;
    typename Even::Params even;
    typename Odd::Params odd;
    typename Loaded::Params loaded;
    typename Stored::Params stored;
  };
  struct Fetched {
    typename Offset::Fetched offset;
    typename Loaded::Fetched loaded;
  };

  Rows rows;
  Columns columns;
  Offset offset;
  Even even;
  Odd odd;
  Loaded loaded;
  Stored stored;
  float of_column = NAN;  // 0 once `compute_columns` was called

  Epilogue(Params const& params, evt::fragment::Tile const& tile)
      : rows(params.rows, tile),
        columns(params.columns, tile),
        offset(params.offset, tile),
        even(params.even, tile),
        odd(params.odd, tile),
        loaded(params.loaded, tile),
        stored(params.stored, tile) {}
  void compute_columns() { of_column = std::isnan(of_column) ? 0 : NAN; }
  void fetch(Fetched& fetched, evt::fragment::Places const& places) const {
    offset.fetch(fetched.offset, places);
    if constexpr (HasSource && Direct) loaded.fetch(fetched.loaded, places);
  }
  void follow(Epilogue const& first) { offset.follow(first.offset); }

  template <int N, class Accumulator, class Staged, class Store>
  void visit(Accumulator const& acc, Staged const& source, Store const& store, Fetched const& fetched,
             evt::fragment::Places const& places) {
    evt::own::Values<float, N> values;
    for (int i = 0; i < N; ++i) {
      values[i] = acc(i);
      rows.put(acc(i), i, places);
      columns.put(acc(i), i, places);
      if constexpr (Direct) {
        float const given = HasSource ? loaded.get(i, places, fetched.loaded) : 0;
        stored.put(acc(i) + given + offset.get(i, places, fetched.offset) + of_column, i, places);
      } else if constexpr (!Paired) {
        store(i, acc(i) + source(i) + offset.get(i, places, fetched.offset) + of_column);
      }
    }
    if constexpr (Paired) {
      auto const first = even.exchange(values, places), second = odd.exchange(values, places);
      for (int i = 0; i < N; ++i) {
        store(i, 2 * first[i] + second[i] + offset.get(i, places, fetched.offset) + of_column);
      }
    }
    rows.template end_step<N>(places);
  }
  void finish(evt::fragment::Tile const&) {
    rows.finish();
    columns.finish();
  }
};

/// D = acc + C + offset + a column's offset. The columns of its operations are the matrix's rows.
template <bool HasSource, int TileColumns>
struct TransposedEpilogue {
  using Source = std::conditional_t<HasSource, bf16, void>;
  using Destination = evt::element::Stored;
  using Result = float;
  static constexpr bool kPlaces = true, kTransposed = true;
  using Offset = evt::own::Part<evt::kit::Lanes, epilogue::RowBroadcast<float, float, true>>;
  using OfColumn = evt::own::Part<evt::fragment::LanesOfTile<TileColumns>, epilogue::ColumnBroadcast<float, float, true>>;

  struct Params {
    typename Offset::Params offset;
    typename OfColumn::Params of_column;
  };
  struct Fetched {
    typename OfColumn::Fetched of_column;
  };

  Offset offset;
  OfColumn of_column;
  float computed = NAN;  // 0 once `compute_columns` was called

  TransposedEpilogue(Params const& params, evt::fragment::Tile const& tile)
      : offset(params.offset, tile), of_column(params.of_column, tile) {}
  void compute_columns() { computed = std::isnan(computed) ? 0 : NAN; }
  void fetch(Fetched& fetched, evt::fragment::Places const& places) const { of_column.fetch(fetched.of_column, places); }
  void follow(TransposedEpilogue const&) {}
  void finish(evt::fragment::Tile const&) {}

  template <int N, class Accumulator, class Staged, class Store>
  void visit(Accumulator const& acc, Staged const& source, Store const& store, Fetched const& fetched,
             evt::fragment::Places const& places) {
    for (int i = 0; i < N; ++i) {
      store(i, acc(i) + source(i) + offset.get(i, places) + of_column.get(i, places, fetched.of_column) + computed);
    }
  }
};

/// The same epilogue with a bit of each element: whether the sum is positive, and a mask has the element.
template <class Base, int TileRows>
struct EpilogueOfBits : Base {
  using Bits = evt::own::Part<evt::kit::Lanes, evt::own::JoinedMaskStore>;
  using Mask = evt::own::Part<evt::fragment::LanesOfTile<TileRows, evt::kit::Lanes>, evt::own::TileMaskLoad>;

  struct Params : Base::Params {
    typename Bits::Params bits;
    typename Mask::Params mask;
  };
  struct Fetched : Base::Fetched {
    typename Mask::Fetched mask;
  };

  Bits bits;
  static constexpr bool kLoadsBits = true;
  Mask mask;

  EpilogueOfBits(Params const& params, evt::fragment::Tile const& tile)
      : Base(params, tile), bits(params.bits, tile), mask(params.mask, tile) {}

  template <class PlaceOf>
  void begin_tile(PlaceOf const& place_of) { mask.begin_tile(place_of); }
  auto& held() { return mask.held(); }
  template <class PlaceOf>
  void keep_tile(PlaceOf const& place_of, uint32_t words, int consumer) { mask.keep_tile(place_of, words, consumer); }
  void fetch(Fetched& fetched, evt::fragment::Places const& places) const {
    Base::fetch(fetched, places);
    mask.fetch(fetched.mask, places);
  }

  template <int N, class Accumulator, class Staged, class Store>
  void visit(Accumulator const& acc, Staged const& source, Store const& store, Fetched const& fetched,
             evt::fragment::Places const& places) {
    Base::template visit<N>(acc, source, store, fetched, places);
    for (int i = 0; i < N; ++i) bits.put(mask.get(i, places, fetched.mask) && acc(i) > 0, i, places);
    bits.template end_step<N>(places);
  }
  void end_part(evt::fragment::PartOfRows const& part) { bits.end_part(part); }
};

/// The same epilogue with further matrices of f32, bytes and C's type: u = acc + 2*x + y, v = acc - z.
template <class Base>
struct EpilogueOfMatrices : Base {
  using Base::Base;
  using FurtherLoads = evt::fragment::Elements<float, int8_t, bf16>;
  using FurtherStores = evt::fragment::Elements<int32_t, float>;

  template <int N, class Accumulator, class Staged, class Store>
  void visit(Accumulator const& acc, Staged const& source, Store const& store, typename Base::Fetched const& fetched,
             evt::fragment::Places const& places) {
    for (int i = 0; i < N; ++i) {
      store.template further<0>(i, acc(i) + 2 * source.template further<0>(i) + source.template further<1>(i));
      store.template further<1>(i, acc(i) - source.template further<2>(i));
    }
    Base::template visit<N>(acc, source, store, fetched, places);
  }
};

/// The batches share the matrices whose names are in `shared`.
struct Size {
  int rows, columns, depth, multiprocessors;
  std::vector<int32_t> ends;
  int batches = 1;
  char const* shared = "";
};

int failures = 0, cases = 0;

void expect(double found, double wanted, double scale, char const* what, int row, int column) {
  if (std::fabs(found - wanted) <= 0.01 * scale) return;
  if (++failures < 20) std::printf("case %d: %s of (%d, %d) is %g, not %g\n", cases, what, row, column, found, wanted);
}

/// Small whole numbers: sums are exact.
std::vector<bf16> numbers(size_t count, int seed) {
  std::vector<bf16> found(count);
  for (size_t i = 0; i < count; ++i) found[i].bits = uint16_t(evt::element::rounded(float(int(i * 7919 + seed) % 7 - 3)));
  return found;
}

/// A factor of an operand: a value for each of some rows or columns and each Block elements of k, powers of 2.
template <int Outer, int Block>
struct Factor {
  using Values = evt::kit::BlockValues<float, Outer, Block>;
  using Params = typename Values::Params;
  using Place = typename Values::Place;
  template <int Stages>
  using Loaded = typename Values::template Run<Stages>;
  static Place place(Params const& params, int outer, int group) { return Values::place(params, outer, group); }
  template <int Depth, int Stages>
  static bool are_neighbours(Params const& params) {
    return Values::template are_neighbours<Depth, Stages>(params);
  }
  template <class Run>
  static void load(Run& to, Params const& params, Place place, int k) {
    Values::load(to, params, place, k);
  }
  template <class Run>
  static float value(Run const& loaded, int stage) {
    return loaded.get(stage);
  }
};
template <int Outer, int Block>
using FactorOf = std::conditional_t<Outer == 0, evt::kit::NoFactor, Factor<Outer == 0 ? 1 : Outer, Block>>;

std::vector<float> powers(size_t count, int seed) {
  std::vector<float> found(count);
  for (size_t i = 0; i < count; ++i) found[i] = float(1 << (i * 31 + size_t(seed)) % 3);
  return found;
}

/// Filters of 4 bits as torch._convert_weight_to_int4pack has them; `code(column, k)` is up to 15.
template <class Code>
std::vector<uint32_t> pack(int columns, int depth, Code const& code) {
  std::vector<uint32_t> packed(size_t(columns * depth / 8));
  for (int tile = 0; tile < columns / 8; ++tile) {
    for (int outer = 0; outer < depth / 128; ++outer) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int word = 0; word < 4; ++word) {
          uint32_t& found = packed[size_t(((tile * (depth / 128) + outer) * 32 + lane) * 4 + word)];
          for (int i = 0; i < 8; ++i) {
            int const k = outer * 128 + (2 * word + i / 4) * 16 + i / 2 % 2 * 8 + lane % 4 * 2 + i % 2;
            found |= uint32_t(code(tile * 8 + lane / 4, k)) << (i / 2 * 4 + i % 2 * 16);
          }
        }
      }
    }
  }
  return packed;
}

/// Without EVERY_CASE, every third case is compiled: the compiler takes most of the time.
template <int Number>
#if defined(EVERY_CASE)
constexpr bool kRuns = true;
#else
constexpr bool kRuns = Number % 3 == 0;
#endif

/// The number, the tile, the rows of a tile, the rows and columns that share a factor, or 0; the bits of filters, and the columns that
/// share a zero point; whether there are packed bits.
template <int Number, class Tile, int Pixels, bool HasSource, int OfRows = 0, int OfColumns = 0, int Bits = 16,
          int OfZeros = 0, int Depth = Bits == 4 ? 128 : 64, class Destination = evt::element::Stored, bool HasBits = false, bool HasMatrices = false,
          bool IsTransposed = false>
std::enable_if_t<!kRuns<Number>> check(Size const&) {}

template <int Number, class Tile, int Pixels, bool HasSource, int OfRows = 0, int OfColumns = 0, int Bits = 16,
          int OfZeros = 0, int Depth = Bits == 4 ? 128 : 64, class Destination = evt::element::Stored, bool HasBits = false, bool HasMatrices = false,
          bool IsTransposed = false>
std::enable_if_t<kRuns<Number>> check(Size const& size) {
  constexpr bool kPacked = Bits == 4;
  constexpr int kColumns = (Tile::kPingpong || Tile::kByRows || Tile::kByStages ? 1 : 2) * Tile::kBlocks * 64;
  constexpr int kRows = Tile::kByRows ? 128 : Pixels;
  constexpr int kBlock = Tile::kByRows ? Depth : 128;  // a stage of 128 bytes by rows, which loads factors in runs
  using Scales = evt::kit::Scales<FactorOf<OfRows, kBlock>, FactorOf<OfColumns, kBlock>, OfRows != 0 && OfRows % kRows != 0,
                                  OfColumns != 0 && OfColumns % kColumns != 0,
                                  std::conditional_t<OfZeros == 0, evt::kit::NoFactor,
                                                     evt::kit::ZeroPoints<FactorOf<OfZeros, kBlock>, evt::element::Stored, false,
                                                                          OfZeros == 1 ? 31 - 8 : 0>>>;
  constexpr int kMultiplied = Tile::kInHalves ? Pixels / 2 : Pixels;
  using Multiplied = std::conditional_t<Bits != 16, MmaOfRegisters<kMultiplied>, Mma<kMultiplied>>;
  using Conversion = std::conditional_t<kPacked, evt::kit::Packed<bf16, 8>,
                                        std::conditional_t<Bits == 8, evt::kit::Converted<Byte, bf16>,
                                                           evt::kit::AsStored<Multiplied>>>;
  using Usual = Epilogue<HasSource, Tile::kByRows ? 16 : Pixels, Tile::kPairs, Destination>;
  using Visited = std::conditional_t<HasBits, EpilogueOfBits<Usual, Pixels>,
                                     std::conditional_t<HasMatrices, EpilogueOfMatrices<Usual>,
                                                        std::conditional_t<IsTransposed, TransposedEpilogue<HasSource, kColumns>, Usual>>>;
  using Kernel = evt::kit::Gemm<Multiplied, Visited, Depth, Tile, Scales, Conversion>;
  ++cases;
  int const m = size.rows, n = size.columns, k = size.depth;
  int const batches = Tile::kBatched ? size.batches : 1, groups = Tile::kGrouped ? int(size.ends.size()) : batches;
  int const stored = Tile::kPairs > 0 ? n / 2 : n;
  // A row beyond each batch lies between the batches. In D it stays NaN.
  auto const many = [&](char name, int rows, int columns) {
    bool const shared = !Tile::kBatched || std::strchr(size.shared, name) != nullptr;
    return shared ? std::pair(rows * columns, 0) : std::pair((rows + 1) * columns * batches, (rows + 1) * columns);
  };
  auto const [a_elements, a_batch] = many('A', m, k);
  auto const [c_elements, c_batch] = many('C', m, n);
  int const d_batch = (m + 1) * stored, b_batch = std::strchr(size.shared, 'B') ? 0 : n * k;
  std::vector<bf16> const a = numbers(size_t(a_elements), 1), b = numbers(size_t(groups * n * k), 2);
  std::vector<bf16> const c = numbers(size_t(c_elements), 3);
  constexpr bool kBytes = std::is_same_v<Destination, Byte>;
  using Element = std::conditional_t<kBytes, Byte, bf16>;
  Element poison;
  std::memset(&poison, 0x7f, sizeof(poison));
  std::vector<Element> d(size_t(batches * d_batch), poison);
  auto const expect_stored = [](Element found, double wanted, double scale, char const* what, int row, int column) {
    if constexpr (kBytes) {
      expect(found.bits, evt::element::small(float(wanted)), 1, what, row, column);
    } else {
      expect(value(found), wanted, scale, what, row, column);
    }
  };
  typename Kernel::Arguments arguments{};
  arguments.rows = m, arguments.columns = n, arguments.depth = k;
  arguments.a = a.data(), arguments.a_stride = k, arguments.b = b.data(), arguments.b_stride = k;
  std::vector<Byte> bytes;
  for (bf16 each : b) bytes.push_back({int8_t(value(each))});
  if (Bits == 8) arguments.b = bytes.data();
  std::vector<uint32_t> packed;
  for (int group = 0; kPacked && group < groups; ++group) {
    auto const of_group = pack(n, k, [&](int column, int at) { return int(value(b[size_t((group * n + column) * k + at)])) + 8; });
    packed.insert(packed.end(), of_group.begin(), of_group.end());
  }
  if (kPacked) arguments.b = packed.data();
  std::vector<bf16> members;  // the first columns of all pairs, and then the second ones
  if constexpr (Tile::kDual) {
    for (int i = 0; i < n; ++i) {
      auto const column = b.begin() + (i % (n / 2) * 2 + i / (n / 2)) * k;
      members.insert(members.end(), column, column + k);
    }
    arguments.b = members.data(), arguments.partner = members.data() + n / 2 * k, arguments.partner_stride = k;
  }
  arguments.b_group_stride = n * k, arguments.batches = batches;
  arguments.a_batch_stride = a_batch, arguments.b_batch_stride = b_batch;
  arguments.loads[0] = {c.data(), n, c_batch}, arguments.stores[0] = {d.data(), stored, d_batch};
  std::vector<float> x, v(d.size(), -1e9f);
  std::vector<int8_t> y;
  std::vector<int32_t> u(d.size(), -1000000);
  for (bf16 each : c) x.push_back(value(each) / 2), y.push_back(int8_t(2 * value(each) + 1));
  std::vector<bf16> const z(c.rbegin(), c.rend());
  if constexpr (HasMatrices) {
    arguments.loads[1] = {x.data(), n, c_batch}, arguments.loads[2] = {y.data(), n, c_batch};
    arguments.loads[3] = {z.data(), n, c_batch};
    arguments.stores[1] = {u.data(), stored, d_batch}, arguments.stores[2] = {v.data(), stored, d_batch};
    if (cases % 2 == 0 && !Tile::kBatched) {  // overwritten
      std::copy(x.begin(), x.begin() + m * n, v.begin());
      arguments.loads[1].pointer = v.data();
    }
  }
  arguments.ends = size.ends.data(), arguments.groups = groups;
  arguments.multiprocessors = size.multiprocessors;
  int const k_blocks = (k + kBlock - 1) / kBlock, columns_of = OfColumns ? (n + OfColumns - 1) / OfColumns : 0;
  std::vector<float> const of_a = powers(OfRows ? size_t((m + OfRows - 1) / OfRows * k_blocks) : 1, 0);
  std::vector<float> const of_b = powers(OfColumns ? size_t(groups * columns_of * k_blocks) : 1, 1);
  if constexpr (OfRows != 0) arguments.scales.a = {of_a.data(), k_blocks, 1, 0};
  if constexpr (OfColumns != 0) arguments.scales.b = {of_b.data(), k_blocks, 1, columns_of * k_blocks};
  auto const factor = [&](int group, int row, int column, int at) {
    float const one = OfRows ? of_a[size_t(row / std::max(OfRows, 1) * k_blocks + at / kBlock)] : 1;
    return one * (OfColumns ? of_b[size_t((group * columns_of + column / std::max(OfColumns, 1)) * k_blocks + at / kBlock)] : 1);
  };
  int const zeros_of = OfZeros ? (n + OfZeros - 1) / OfZeros : 0;
  std::vector<float> zeros(size_t(groups * zeros_of * k_blocks));
  int const zero_points[] = {-1, 0, 1, 127, 2, -128, 240};
  for (size_t i = 0; i < zeros.size(); ++i) zeros[i] = float(OfZeros == 1 ? zero_points[i % 7] : int(i * 5) % 4 - 1);
  // Every other case completes rows twice. The others may sum rows, and overwrite C, whose values D has then before.
  bool const once = !Tile::kBatched && (cases % 2 == 0 || Tile::kGrouped);
  arguments.once = once;
  if constexpr (HasSource && Tile::kPairs == 0 && std::is_same_v<Element, bf16> && !Tile::kGrouped && !Tile::kBatched) {
    if (once) {
      std::copy(c.begin(), c.begin() + m * n, d.begin());
      arguments.loads[0].pointer = d.data();
    }
  }
  if constexpr (OfZeros != 0) arguments.scales.zeros = {zeros.data(), k_blocks, 1, zeros_of * k_blocks};
  auto const element = [&](int group, int column, int at) {
    float const zero = OfZeros ? zeros[size_t((group * zeros_of + column / std::max(OfZeros, 1)) * k_blocks + at / kBlock)] : 0;
    int const first = Tile::kBatched ? group * b_batch : group * n * k;
    return value(b[size_t(first + column * k + at)]) - zero;
  };
  evt::fragment::Tiles const tiles = Kernel::tiles(arguments);
  std::vector<float> row_parts(size_t(tiles.strips * m), 0), column_parts(size_t(tiles.number * n), 0);
  std::vector<float> offsets(size_t(m), 0);
  for (int i = 0; i < m; ++i) offsets[size_t(i)] = float(i * 37 % 31);
  std::vector<float> wide;
  for (bf16 each : c) wide.push_back(value(each));
  std::vector<float> of_column(static_cast<size_t>(n));
  for (int j = 0; j < n; ++j) of_column[size_t(j)] = float(j * 29 % 23);
  if constexpr (IsTransposed) {
    arguments.epilogue.of_column.ptr = of_column.data(), arguments.epilogue.of_column.stride = 1;
  } else {
    arguments.epilogue.rows.ptr = row_parts.data(), arguments.epilogue.rows.kept = m;
    arguments.epilogue.columns.ptr = column_parts.data(), arguments.epilogue.columns.kept = n;
    arguments.epilogue.loaded.ptr = wide.data(), arguments.epilogue.loaded.stride = {n, 1};
    arguments.epilogue.stored.ptr = reinterpret_cast<evt::element::Stored*>(d.data());
    arguments.epilogue.stored.stride = {n, 1};
  }
  arguments.epilogue.offset.ptr = offsets.data(), arguments.epilogue.offset.stride = 1;
  int const row_bytes = (n + 7) / 8;
  std::vector<uint8_t> bits(size_t(batches * m * row_bytes), 0xff);
  std::vector<uint8_t> mask(bits.size());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = uint8_t(i * 2654435761u >> 13);
  if constexpr (HasBits) {
    arguments.epilogue.bits = {bits.data(), row_bytes, m * row_bytes};
    arguments.epilogue.mask = {mask.data(), row_bytes, m * row_bytes};
  }
  typename Kernel::Params const params = Kernel::to_underlying_arguments(arguments);
  int const cluster = int(Kernel::get_cluster_shape(params).x);
  gridDim = Kernel::get_grid_shape(params);
  evt::kit::first_out = 0;
  for (unsigned first = 0; first < gridDim.x; first += unsigned(cluster)) {
    blockIdx.x = first;
    host::barriers.clear();
    std::memset(host::memory, 0xff, sizeof(host::memory));
    host::run(Kernel::MaxThreadsPerBlock, [&] { Kernel()(params, host::memory[host::rank_of_block()] + 16); }, cluster);
  }
  if constexpr (Tile::kClusterRows == 1 && !Tile::kGrouped) {
    // The tiles of a band that have the same columns of B follow one another.
    bool const is_read_once = (m + kRows - 1) / kRows <= params.band && (!Tile::kBatched || b_batch != 0);
    if ((evt::kit::first_out > 0) != is_read_once && ++failures < 20) std::printf("case %d: the policy of B\n", cases);
  }
  std::vector<double> of_columns(size_t(n), 0);
  int const rows = Tile::kGrouped ? size.ends.back() : m;
  for (int number = 0; number < batches * (m + 1); ++number) {
    int const batch = number / (m + 1), i = number % (m + 1);
    Element const* const row_of_d = &d[size_t(batch * d_batch + i * stored)];
    for (int j = 0; j < stored && i >= rows; ++j) {
      if (std::memcmp(&row_of_d[j], &poison, sizeof(poison)) != 0 && ++failures < 20) std::printf("row %d is written\n", i);
    }
    if (i >= rows) continue;
    int group = batch;
    while (Tile::kGrouped && i >= size.ends[size_t(group)]) ++group;
    bf16 const* const row_of_a = &a[size_t(batch * a_batch + i * k)];
    bf16 const* const row_of_c = &c[size_t(batch * c_batch + i * n)];
    double of_row = 0;
    uint8_t const* const row_of_bits = &bits[size_t((batch * m + i) * row_bytes)];
    std::vector<double> sums(static_cast<size_t>(n));
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int x = 0; x < k; ++x) sum += value(row_of_a[x]) * element(group, j, x) * factor(group, i, j, x);
      sums[size_t(j)] = sum;
      if constexpr (HasBits) {
        bool const masked = mask[size_t((batch * m + i) * row_bytes + j / 8)] >> j % 8 & 1;
        expect(row_of_bits[j / 8] >> j % 8 & 1, masked && sum > 0, 1, "the bit", i, j);
      }
      if constexpr (HasMatrices) {
        size_t const of_c = size_t(batch * c_batch + i * n + j), of_d = size_t(batch * d_batch + i * stored + j);
        expect(u[of_d], sum + 3 * value(c[of_c]) + 1, 1, "U", i, j);
        expect(v[of_d], sum - value(z[of_c]), 1, "V", i, j);
      }
      if constexpr (Tile::kPairs == 0) {
        double const offset = offsets[size_t(i)] + (IsTransposed ? of_column[size_t(j)] : 0);
        expect_stored(row_of_d[j], sum + (HasSource ? value(row_of_c[j]) : 0) + offset, 1 + std::fabs(sum), "D", i, j);
      } else if (j / Tile::kPairs % 2 == 1) {
        double const first = sums[size_t(j - Tile::kPairs)], scale = 1 + std::fabs(first) + std::fabs(sum);
        int const pair = j / (2 * Tile::kPairs) * Tile::kPairs + j % Tile::kPairs;
        expect_stored(row_of_d[pair], 2 * first + sum + offsets[size_t(i)], scale, "D of a pair", i, pair);
      }
      of_row += sum;
      of_columns[size_t(j)] += sum;
    }
    if (Tile::kBatched || IsTransposed) continue;
    double parts = 0;
    for (int64_t strip = 0; strip < tiles.strips; ++strip) parts += row_parts[size_t(strip * m + i)];
    expect(parts, of_row, 1, "the sum of a row", i, 0);
  }
  for (int j = 0; j < n && once && !Tile::kGrouped && !IsTransposed; ++j) {
    double parts = 0;
    for (int64_t tile = 0; tile < tiles.number; ++tile) parts += column_parts[size_t(tile * n + j)];
    expect(parts, of_columns[size_t(j)], 1, "the sum of a column", 0, j);
  }
}

}  // namespace

int main() {
  using evt::kit::GemmTile;
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1>, 64, true, 0, 0, 16, 0, 64, void>({333, 261, 72, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1>, 96, true, 0, 0, 16, 0, 64, void>({200, 133, 136, 2, {}});
  check<__COUNTER__, GemmTile<1, true, 1, 1, 1>, 16, true>({37, 144, 136, 2, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1>, 64, false>({150, 264, 200, 2, {}});
  check<__COUNTER__, GemmTile<3, true, 2, 1, 1>, 32, true>({90, 392, 136, 4, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, true>, 24, true>({61, 136, 72, 1, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1>, 72, true>({170, 264, 136, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1>, 64, true>({200, 136, 72, 2, {}});
  check<__COUNTER__, GemmTile<2, true, 2, 2, 1>, 16, false>({70, 600, 136, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4>, 64, true>({100, 136, 520, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2>, 16, false>({20, 72, 200, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4>, 192, true>({200, 136, 520, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2>, 128, false>({100, 264, 520, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 8>, 96, true>({100, 136, 520, 8, {}});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 4>, 128, true>({200, 264, 520, 8, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, false, true>, 64, false>({150, 136, 72, 2, {0, 70, 70, 71, 140}});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 1, false, true>, 32, false>({90, 264, 72, 4, {33, 33, 90}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 64, true, 1, 128>({150, 264, 400, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 1, true>, 32, true, 1, 1>({90, 520, 136, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1, true>, 48, false, 64, 64>({200, 136, 264, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4, true>, 64, true, 1, 128>({100, 136, 520, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 16, false, 0, 256>({40, 300, 328, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 192, false, 128, 0>({300, 136, 200, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true, true>, 32, false, 1, 128>({90, 264, 200, 4, {33, 33, 90}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 1, true, false, true>, 128, true, 1, 128>({140, 136, 264, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 2, 1, true, false, true>, 128, false, 1, 256>({130, 264, 136, 2, {}});
  check<__COUNTER__, GemmTile<3, false, 2, 1, 1, true, false, true>, 192, true, 64, 128>({70, 264, 136, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 1, true, true, true>, 128, false, 1, 128>({150, 136, 72, 2, {5, 5, 140}});
  check<__COUNTER__, GemmTile<1, true, 1, 1, 1>, 16, true, 0, 0, 8>({37, 144, 144, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1>, 64, false, 0, 0, 8>({200, 136, 208, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4, true>, 32, true, 0, 1, 8>({100, 136, 528, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 128, false, 0, 64, 8>({150, 136, 208, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 1, false, true>, 32, false, 0, 0, 8>({90, 264, 80, 4, {33, 33, 90}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 32, false, 0, 1, 8, 0, 128>({40, 72, 208, 2, {}});
  check<__COUNTER__, GemmTile<1, true, 1, 1, 1>, 16, true, 0, 0, 4>({37, 144, 128, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 32, false, 0, 1, 4, 1>({50, 72, 512, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1>, 64, true, 0, 0, 4, 64>({70, 136, 128, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4, true>, 16, false, 0, 1, 4>({5, 72, 640, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2, true, false, false, false, false, true>, 16, true, 0, 1, 4, 1>({30, 72, 1024, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 2, false, false, false, false, false, true>, 32, false, 0, 0, 8>({70, 136, 208, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2, false, false, false, false, false, true>, 64, false, 0, 0, 8, 0, 128>(
      {20, 64, 2832, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 1, true, true>, 32, false, 0, 1, 4, 1>({50, 136, 128, 4, {3, 3, 40}});
  check<__COUNTER__, GemmTile<2, true, 2, 1, 1, false, false, false, true>, 48, false>({150, 528, 72, 2, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 2, 1, false, false, false, true>, 24, false>({70, 134, 136, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 4, false, false, false, true>, 64, false>({100, 144, 520, 4, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 2, 1, false, false, false, 1, false, false, true>, 24, false>({70, 144, 136, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 4, false, false, false, 1, false, false, true>, 64, false>({100, 272, 520, 4, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 4>, 32, true>({50, 144, 328, 4, {}});
  check<__COUNTER__, GemmTile<2, false, 2, 1, 1, true, true, false, true>, 32, false, 1, 1>({90, 272, 136, 4, {33, 33, 90}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, false, false, false, false, true>, 32, true>({70, 136, 72, 3, {}, 3});
  check<__COUNTER__, GemmTile<1, false, 2, 1, 1, false, false, false, false, true>, 32, true>({50, 136, 136, 4, {}, 3, "AC"});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 4, true, false, false, false, true>, 64, false, 1, 128>({90, 136, 520, 8, {}, 2, "B"});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 1, false, false, false, true, true>, 16, false>({33, 272, 72, 2, {}, 3, "B"});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4, true, false, false, false, true>, 16, true>({5, 80, 331, 4, {}, 7, "A"});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, false, true, false, true>, 128, false, 0, 0, 16, 0, 64, Byte>({150, 288, 8, 2, {3, 3, 140}});
  check<__COUNTER__, GemmTile<2, true, 1, 2, 1, false, false, false, true>, 24, false, 0, 0, 16, 0, 64, Byte>({70, 160, 8, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2>, 64, false, 0, 0, 16, 0, 64, Byte>({100, 144, 72, 2, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1>, 40, false, 0, 0, 16, 0, 64, Byte>({90, 144, 8, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 1, true, true, true>, 128, false, 1, 128, 16, 0, 64, Byte>({150, 144, 8, 2, {5, 5, 140}});
  check<__COUNTER__, GemmTile<2, true, 2, 1, 1, false, false, false, 32>, 48, false>({150, 576, 72, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 2, 2, false, false, false, 16>, 64, false>({70, 160, 328, 4, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, true, true, false, 32>, 32, false, 1, 1>({90, 320, 136, 4, {33, 33, 90}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, false, false, false, 32, true>, 32, false>({33, 192, 72, 2, {}, 3, "B"});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1>, 72, false, 0, 0, 16, 0, 64, evt::element::Stored, true>({150, 264, 72, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 2, 1>, 64, true, 0, 0, 16, 0, 64, evt::element::Stored, true>({200, 136, 72, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 4>, 64, true, 0, 0, 16, 0, 64, evt::element::Stored, true>({100, 200, 520, 4, {}});
  check<__COUNTER__, GemmTile<2, true, 1, 1, 1, false, false, false, false, true>, 32, true, 0, 0, 16, 0, 64,
        evt::element::Stored, true>({70, 136, 72, 3, {}, 3});
  check<__COUNTER__, GemmTile<2, false, 1, 2, 1, true, false, true, 1>, 128, false, 1, 128>({150, 272, 512, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 1, true, true, true, 1>, 128, false, 1, 128, 16, 0, 64, Byte>(
      {150, 288, 8, 2, {5, 5, 140}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2, true, false, false, false, false, true>, 8, true, 0, 1, 4, 1>(
      {20, 72, 1024, 2, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 1, true, false, true, 32>, 128, false, 1, 256>({130, 320, 200, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 8, false, false, false, false, false, true>, 16, true>({37, 144, 1936, 8, {}});
  check<__COUNTER__, GemmTile<1, false, 4, 1, 2>, 128, true>({170, 600, 328, 8, {}});
  check<__COUNTER__, GemmTile<1, false, 2, 2, 1>, 80, true>({170, 300, 328, 4, {}});
  check<__COUNTER__, GemmTile<2, false, 1, 1, 4, false, false, false, 1, false, true>, 16, false>({37, 272, 936, 4, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true>, 96, false, 0, 1, 4, 1>(
      {150, 264, 384, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2, true>, 128, true, 1, 1, 4>(
      {150, 136, 1024, 2, {}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 1, true, true, false, 0, false, false, false, true>, 128, false, 0, 1, 8, 0, 128>(
      {150, 136, 128, 4, {5, 5, 140}});
  check<__COUNTER__, GemmTile<1, false, 1, 1, 2, true, false, false, false, false, true>, 16, true, 0, 1, 4, 1>({20, 72, 512, 2, {}});
  check<0, GemmTile<2, false, 1, 1, 1, true, false, true>, 128, true, 1, 128, 16, 0, 64, evt::element::Stored, false, false, true>(
      {140, 136, 264, 2, {}});
  check<3, GemmTile<3, false, 2, 1, 1, true, false, true>, 192, true, 64, 128, 16, 0, 64, evt::element::Stored, false, false, true>(
      {70, 264, 136, 2, {}});
  check<6, GemmTile<2, false, 1, 1, 1, true, true, true>, 128, false, 1, 128, 16, 0, 64, evt::element::Stored, false, false, true>(
      {150, 136, 72, 2, {5, 5, 140}});
  check<0, GemmTile<2, true, 1, 1, 1>, 72, true, 0, 0, 16, 0, 64, evt::element::Stored, false, true>({150, 264, 72, 2, {}});
  check<3, GemmTile<1, false, 1, 2, 1>, 64, true, 0, 0, 16, 0, 64, evt::element::Stored, false, true>({200, 136, 72, 2, {}});
  check<7, GemmTile<2, true, 2, 1, 1>, 32, true, 0, 0, 16, 0, 64, Byte, false, true>({90, 392, 136, 4, {}});
  check<9, GemmTile<1, false, 1, 1, 4>, 64, true, 0, 0, 16, 0, 64, evt::element::Stored, false, true>({100, 200, 520, 4, {}});
  check<13, GemmTile<1, false, 1, 1, 8, false, false, false, false, false, true>, 16, true, 0, 0, 16, 0, 64,
        evt::element::Stored, false, true>({37, 144, 1936, 8, {}});
  check<15, GemmTile<1, false, 2, 1, 1, false, false, false, false, true>, 32, true, 0, 0, 16, 0, 64, evt::element::Stored,
        false, true>({50, 136, 136, 4, {}, 3, "AC"});
  check<19, GemmTile<2, true, 1, 1, 1, false, false, false, false, true>, 32, true, 0, 0, 16, 0, 64, evt::element::Stored,
        false, true>({70, 136, 72, 3, {}, 3});
  check<22, GemmTile<3, false, 1, 1, 1, true, false, true>, 144, true, 1, 128, 16, 0, 64, evt::element::Stored, false, true>(
      {140, 136, 264, 2, {}});
  std::printf("%d failures\n", failures);
  return failures != 0;
}
