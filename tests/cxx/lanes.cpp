// The operations of codegen/include/evt/epilogue on the lanes of every family, on the host: the threads of a block visit
// tiles of a problem whose extents are no multiples of a tile. Each result is compared with a loop over the matrix.

#include "threads.hpp"

#include <cmath>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "evt/epilogue/block.hpp"
#include "evt/epilogue/first.hpp"
#include "evt/epilogue/index.hpp"
#include "evt/epilogue/indexed.hpp"
#include "evt/epilogue/interleave.hpp"
#include "evt/epilogue/key.hpp"
#include "evt/epilogue/lanes_2x.hpp"
#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/moments_own.hpp"
#include "evt/epilogue/lanes_sm100.hpp"
#include "evt/epilogue/lanes_sm90.hpp"
#include "evt/epilogue/mask.hpp"
#include "evt/epilogue/matrix.hpp"
#include "evt/epilogue/pair.hpp"
#include "evt/epilogue/random.hpp"
#include "evt/epilogue/random_wide.hpp"
#include "evt/epilogue/vector.hpp"
#include "evt/epilogue/vector_store.hpp"
#include "evt/moments.hpp"

namespace {

using cute::C;
using cute::Shape;
namespace epilogue = evt::epilogue;

constexpr int kM = 70, kN = 96;
int failures = 0;
char const* family = "";
char const* what = "";

float value(int m, int n) { return float((m * 7919 + n * 104729) % 1013 - 506); }

void expect(double got, double wanted, int m, int n) {
  if (got == wanted) return;
  if (++failures < 20) std::printf("%s, %s: (%d, %d) is %g, not %g\n", family, what, m, n, got, wanted);
}

template <class Lanes>
union Uninitialised {
  char none;
  Lanes lanes;
  Uninitialised() : none() {}
};

/// The kernels of CUTLASS 3.x: a block of threads and a tile; `Offsets` has a thread's first element.
template <class Lanes_, int Threads, class Offsets>
struct Family3x {
  using Lanes = Lanes_;
  static constexpr int kThreads = Threads, kSteps = Lanes::kSteps, kTileM = Lanes::kTileM, kTileN = Lanes::kTileN;
  static constexpr bool kExchangesSteps = false, kReducesSteps = true;
  static constexpr int kLeastBlock = 8, kColumns = kN;

  static Lanes make(int tile_m, int tile_n, int thread) {
    Uninitialised<Lanes> made;
    made.lanes.m = tile_m * kTileM + Offsets::row(thread);
    made.lanes.n = tile_n * kTileN + Offsets::column(thread);
    made.lanes.l = 0, made.lanes.rows = kM, made.lanes.columns = kN;
    made.lanes.tile_m = tile_m, made.lanes.tile_n = tile_n, made.lanes.thread = thread;
    return made.lanes;
  }
  static typename Lanes::Step step(int number, int, int) { return Lanes::step(number); }
  static int64_t parts(epilogue::Kept kept) {
    using epilogue::Kept;
    auto const shape = cute::make_shape(kM, kN);
    return kept == Kept::kRows      ? Lanes::template parts_of<Kept::kRows>(shape)
           : kept == Kept::kColumns ? Lanes::template parts_of<Kept::kColumns>(shape)
                                    : Lanes::template parts_of<Kept::kNothing>(shape);
  }
};

struct OffsetsSm90 {
  static int row(int thread) { return thread / 32 * 16 + thread % 32 / 4; }
  static int column(int thread) { return thread % 4 * 2; }
};
struct OffsetsSm100 {
  static int row(int thread) { return thread; }
  static int column(int) { return 0; }
};

using Sm90 = Family3x<evt::sm90::Lanes<Shape<C<128>, C<64>>, Shape<C<64>, C<64>>>, 128, OffsetsSm90>;
using Sm100 = Family3x<evt::sm100::Lanes<Shape<C<128>, C<64>>, Shape<C<128>, C<64>>>, 128, OffsetsSm100>;

/// The kernels of CUTLASS 2.x: a thread has `Size` neighbouring columns of elements with the size of `Element`.
template <class Element, int Size, int TileN = 64>
struct Family2x {
  using ThreadMap = cutlass::epilogue::threadblock::OutputTileThreadLayout<
      cutlass::gemm::GemmShape<64, TileN, 32>, cutlass::gemm::GemmShape<32, TileN / 2, 32>, Element, Size, 1>;
  using Lanes = evt::threadblock::Lanes<ThreadMap>;
  static constexpr int kThreads = 32 * Lanes::kWarps, kSteps = Lanes::kSteps;
  static constexpr int kTileM = Lanes::kTileM, kTileN = Lanes::kTileN;
  static constexpr bool kExchangesSteps = false, kReducesSteps = false;
  static constexpr int kLeastBlock = Size, kColumns = kN;

  static Lanes make(int tile_m, int tile_n, int thread) {
    return Lanes({tile_m, tile_n, 0}, thread, cute::make_shape(kM, kN, 1));
  }
  static int step(int number, int, int) { return number; }
  static int64_t parts(epilogue::Kept kept) {
    using epilogue::Kept;
    return kept == Kept::kRows      ? Lanes::template parts_of_extents<Kept::kRows>(kM, kN)
           : kept == Kept::kColumns ? Lanes::template parts_of_extents<Kept::kColumns>(kM, kN)
                                    : Lanes::template parts_of_extents<Kept::kNothing>(kM, kN);
  }
};

/// Own kernels: one warp has a strip of columns. There are strips beyond the matrix.
template <class Warp>
struct FamilyOwn {
  using Lanes = evt::own::Lanes<Warp>;
  static constexpr int kColumns = 128, kStrips = kColumns / Warp::kStrip;
  static constexpr int kThreads = 32, kSteps = 2, kTileM = 4 * Warp::kRows * kSteps, kTileN = Warp::kStrip;
  static constexpr bool kExchangesSteps = true, kReducesSteps = false;
  static constexpr int kLeastBlock = 8;

  static Lanes make(int tile_m, int tile_n, int thread) {
    return Lanes({Warp::column_of_strip(tile_n) + Warp::first_of(thread), kN, tile_m, tile_n, kStrips});
  }
  static typename Lanes::Step step(int number, int tile_m, int thread) {
    evt::fragment::Places places;
    for (int row = 0; row < 4; ++row) {
      int const m = tile_m * kTileM + (number * 4 + row) * Warp::kRows + thread % Warp::kRows;
      places.rows[row] = m < kM ? m : -1;
    }
    return places;
  }
  static int64_t parts(epilogue::Kept kept) {
    evt::fragment::Tiles const tiles{(kM + kTileM - 1) / kTileM, kStrips};
    return kept == epilogue::Kept::kRows ? tiles.strips
                                         : tiles.number * (kept == epilogue::Kept::kColumns ? 1 : tiles.strips);
  }
};

using Halo = FamilyOwn<evt::fragment::LanesOfWgmma>;
using Paired = FamilyOwn<evt::fragment::LanesOfPairs<1>>;
using Depthwise = FamilyOwn<evt::fragment::Lanes<16, 1, false>>;

/// Own kernels whose tiles end with a group of columns.
template <class Warp>
struct FamilyGroup : FamilyOwn<Warp> {
  using Base = FamilyOwn<Warp>;
  static constexpr int kEnd = 40;

  static typename Base::Lanes make(int tile_m, int tile_n, int thread) {
    auto made = Base::make(tile_m, tile_n, thread);
    made.tile.end = kEnd;
    return made;
  }
};

/// Whether an operation has a result for each row: a reduction, or a store of bits.
template <class Operation>
constexpr bool keeps_rows = std::is_same_v<Operation, epilogue::MaskStore>;
template <class Op, class Element, class Write>
constexpr bool keeps_rows<epilogue::ColReduction<Op, Element, Write>> = true;

/// Every thread's `visit(state, lanes, step, tile)` for all tiles; then the state's end.
template <class Family, class Operation, class Visit>
void run(typename Operation::Arguments const& arguments, Visit const& visit) {
  using Lanes = typename Family::Lanes;
  using State = typename Operation::template On<Lanes>;
  for (int tile_m = 0; tile_m < (kM + Family::kTileM - 1) / Family::kTileM; ++tile_m) {
    for (int tile_n = 0; tile_n * Family::kTileN < Family::kColumns; ++tile_n) {
      typename epilogue::SharedOf<State>::type shared;
      host::run(Family::kThreads, [&] {
        int const thread = int(threadIdx.x);
        Lanes const lanes = Family::make(tile_m, tile_n, thread);
        auto go = [&](auto& state) {
          if constexpr (epilogue::Begins<State>::value) state.begin();
          for (int number = 0; number < Family::kSteps; ++number) {
            auto const step = Family::step(number, tile_m, thread);
            visit(state, lanes, step);
            if constexpr (Family::kReducesSteps && !std::is_empty_v<decltype(shared)>) {
              __syncthreads();
              state.reduce(step);
            }
          }
          __syncthreads();
          if constexpr (epilogue::Ends<State>::value) state.end();
        };
        if constexpr (std::is_constructible_v<State, typename Operation::Arguments const&, Lanes const&>) {
          State state(arguments, lanes);
          go(state);
        } else {
          State state(arguments, lanes, shared);
          go(state);
        }
      });
    }
  }
}

/// The fragment of a function of the place.
template <class T, class Lanes, class Function>
auto fragment(Lanes const& lanes, typename Lanes::At const& at, Function const& function) {
  return Lanes::template generate<T, Lanes::kSize>(
      [&](int i) { return T(function(lanes.row(at, i), lanes.column(at, i))); });
}

/// `stored(args)` for operations that store; inputs are functions of the place.
template <class Family, class Operation, class Input>
void put(typename Operation::Arguments const& arguments, Input const& input) {
  using Lanes = typename Family::Lanes;
  run<Family, Operation>(arguments, [&](auto& state, Lanes const& lanes, auto const& step) {
    for (int f = 0; f < Lanes::kFragments; ++f) {
      auto const at = Lanes::at(step, f);
      state.visit(at, fragment<float>(lanes, at, input));
    }
    if constexpr (Family::kExchangesSteps && keeps_rows<Operation>) state.template end_step<4>(step);
  });
}

/// `check(m, n, value)` for the elements of a leaf.
template <class Family, class Operation, class Check>
void get(typename Operation::Arguments const& arguments, Check const& check) {
  using Lanes = typename Family::Lanes;
  using State = typename Operation::template On<Lanes>;
  run<Family, Operation>(arguments, [&](auto& state, Lanes const& lanes, auto const& step) {
    typename epilogue::FetchedOf<State>::type fetched;
    if constexpr (epilogue::FetchedOf<State>::kExists) state.fetch(fetched, step);
    for (int f = 0; f < Lanes::kFragments; ++f) {
      auto const at = Lanes::at(step, f);
      auto const found = [&] {
        if constexpr (epilogue::FetchedOf<State>::kExists) {
          return state.visit(at, fetched);
        } else {
          return state.visit(at);
        }
      }();
      for (int i = 0; i < Lanes::kSize; ++i) {
        if (lanes.has(at, i)) check(lanes.row(at, i), lanes.column(at, i), found[i]);
      }
    }
  });
}

/// `check(m, n, value)` for the results of an exchange, or of a function of elements.
template <class Family, class Operation, bool Exchange, class Check, class... Inputs>
void apply(Check const& check, Inputs const&... inputs) {
  using Lanes = typename Family::Lanes;
  run<Family, Operation>({}, [&](auto& state, Lanes const& lanes, auto const& step) {
    if constexpr (Exchange && Family::kExchangesSteps) {
      typename Lanes::template Array<float, Lanes::kFragments> given;
      for (int f = 0; f < Lanes::kFragments; ++f) given[f] = fragment<float>(lanes, Lanes::at(step, f), inputs...)[0];
      auto const found = state.visit(Lanes::at(step, 0), given);
      for (int f = 0; f < Lanes::kFragments; ++f) {
        auto const at = Lanes::at(step, f);
        if (lanes.has(at, 0)) check(lanes.row(at, 0), lanes.column(at, 0), found[f]);
      }
    } else {
      for (int f = 0; f < Lanes::kFragments; ++f) {
        auto const at = Lanes::at(step, f);
        auto const found = state.visit(at, fragment<float>(lanes, at, inputs)...);
        for (int i = 0; i < Lanes::kSize; ++i) {
          if (lanes.has(at, i)) check(lanes.row(at, i), lanes.column(at, i), found[i]);
        }
      }
    }
  });
}

int first_of(int n, int block) { return n / (2 * block) * 2 * block + n % block; }

template <class Family, int Block>
void check_pairs() {
  what = "the first members of pairs";
  apply<Family, epilogue::Even<Block>, true>(
      [](int m, int n, float found) { expect(found, value(m, first_of(n, Block)), m, n); }, value);
  what = "the second members of pairs";
  apply<Family, epilogue::Odd<Block>, true>(
      [](int m, int n, float found) { expect(found, value(m, first_of(n, Block) + Block), m, n); }, value);
  what = "two values of pairs";
  apply<Family, epilogue::Interleave<Block, float>, false>(
      [](int m, int n, float found) { expect(found, value(m, n) + n / Block % 2, m, n); }, value,
      [](int m, int n) { return value(m, n) + 1; });
  what = "a store of pairs";
  std::vector<float> half(kM * kN / 2 + 4, NAN);
  put<Family, epilogue::HalfStore<float, Block>>(
      {half.data(), kN / 2, 0}, [](int m, int n) { return value(m, first_of(n, Block)); });
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN / 2; ++n) {
      expect(half[size_t(m * (kN / 2) + n)], value(m, n / Block * 2 * Block + n % Block), m, n);
    }
  }
  what = "a load of pairs";
  get<Family, epilogue::HalfLoad<float, Block>>({half.data(), kN / 2, 0}, [](int m, int n, float found) {
    expect(found, value(m, first_of(n, Block)), m, n);
  });
}

template <class Family, int Width>
void check_blocks() {
  auto const largest = [](int m, int n) {
    float found = -INFINITY;
    for (int i = n / Width * Width; i < n / Width * Width + Width; ++i) found = std::fmax(found, value(m, i));
    return found;
  };
  what = "a reduction of blocks";
  apply<Family, epilogue::BlockReduce<evt::Max, Width>, true>(
      [&](int m, int n, float found) { expect(found, largest(m, n), m, n); }, value);
  what = "a store of blocks";
  std::vector<float> stored(kM * kN / Width, NAN);
  put<Family, epilogue::BlockStore<float, Width>>({stored.data(), kN / Width, 0}, largest);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; n += Width) expect(stored[size_t(m * (kN / Width) + n / Width)], largest(m, n), m, n);
  }
  what = "the first columns";
  apply<Family, epilogue::FirstColumns<Width, Width / 2>, false>(
      [](int m, int n, float found) { expect(found, n % Width < Width / 2 ? value(m, n) : 0, m, n); }, value);
}

template <class Family, epilogue::Kept Kept>
void check_reduction() {
  using Operation = epilogue::Reduction<Kept, evt::Sum, float, evt::Partial>;
  bool const rows = Kept == epilogue::Kept::kRows, columns = Kept == epilogue::Kept::kColumns;
  int const kept = rows ? kM : columns ? kN : 1;
  int64_t const parts = Family::parts(Kept);
  std::vector<float> stored(size_t(parts * kept), NAN), sums(size_t(kept), 0), wanted(size_t(kept), 0);
  what = rows ? "sums of rows" : columns ? "sums of columns" : "a sum";
  put<Family, Operation>({stored.data(), 0, kept}, value);
  for (int64_t part = 0; part < parts; ++part) {
    for (int i = 0; i < kept; ++i) sums[size_t(i)] += stored[size_t(part * kept + i)];
  }
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) wanted[size_t(rows ? m : columns ? n : 0)] += value(m, n);
  }
  for (int i = 0; i < kept; ++i) expect(sums[size_t(i)], wanted[size_t(i)], i, i);
}

/// Values whose mean is 10,000 standard deviations.
template <class Family, epilogue::Kept Kept>
void check_moments() {
  using Part = evt::Moments<float>;
  using Operation = epilogue::Reduction<Kept, evt::MergeMoments, Part, evt::Partial>;
  bool const rows = Kept == epilogue::Kept::kRows, columns = Kept == epilogue::Kept::kColumns;
  int const kept = rows ? kM : columns ? kN : 1, count = kM * kN / kept;
  int64_t const parts = Family::parts(Kept);
  auto const shifted = [](int m, int n) { return value(m, n) + 3e6f; };
  std::vector<Part> stored(size_t(parts * kept), Part(NAN));
  what = rows ? "moments of rows" : columns ? "moments of columns" : "moments";
  put<Family, Operation>({stored.data(), 0, kept}, shifted);
  for (int i = 0; i < kept; ++i) {
    Part found = evt::MergeMoments::identity<Part>();
    for (int64_t part = 0; part < parts; ++part) {
      found = evt::MergeMoments::apply(found, stored[size_t(part * kept + i)]);
    }
    double sum = 0, squares = 0;
    for (int j = 0; j < count; ++j) sum += value(columns ? j : rows ? i : j / kN, columns ? i : rows ? j : j % kN);
    for (int j = 0; j < count; ++j) {
      double const off = value(columns ? j : rows ? i : j / kN, columns ? i : rows ? j : j % kN) - sum / count;
      squares += off * off;
    }
    expect(found.count, count, i, i);
    expect(std::fabs(found.mean() - 3e6 - sum / count) < 0.25, true, i, i);  // a unit in the last place
    expect(std::fabs(found.variance() / (squares / count) - 1) < 1e-6, true, i, i);
  }
}

template <class Family, int Kept>
void check_vector_store() {
  what = "a store of a vector";
  std::vector<float> stored(size_t(Kept == 0 ? kM : Kept == 1 ? kN : 1), NAN);
  put<Family, epilogue::VectorStore<float, Kept>>({stored.data(), 1, 0}, [](int m, int n) {
    bool const is_first = (Kept == 0 || m == 0) && (Kept == 1 || n == 0);
    return is_first ? value(Kept == 0 ? m : 0, Kept == 1 ? n : 0) : -1e6f;
  });
  for (int i = 0; i < int(stored.size()); ++i) {
    expect(stored[size_t(i)], value(Kept == 0 ? i : 0, Kept == 1 ? i : 0), i, i);
  }
}

template <class Family, class Stride>
void check_indexed(Stride const& stride) {
  std::vector<int> rows(kM), columns(kN);
  for (int m = 0; m < kM; ++m) rows[size_t(m)] = m % 7 == 3 ? -1 : m % 11 == 5 ? kM : kM - 1 - m;
  for (int n = 0; n < kN; ++n) columns[size_t(n)] = n % 5 == 2 ? -1 : kN - 1 - n;
  std::vector<float> tensor(kM * kN, NAN), scattered(kM * kN, NAN);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) tensor[size_t(m * kN + n)] = value(m, n);
  }
  auto const place = [&](int m, int n) {
    int const row = rows[size_t(m)], column = columns[size_t(n)];
    return row < 0 || row >= kM || column < 0 ? -1 : row * kN + column;
  };
  using Index = evt::At<int>;
  what = "a gather";
  get<Family, epilogue::Gather<float, Index, Index, Stride>>(
      {tensor.data(), stride, {rows.data(), 0, kM}, {columns.data(), 0, kN}}, [&](int m, int n, float found) {
        expect(found, place(m, n) < 0 ? 0 : tensor[size_t(place(m, n))], m, n);
      });
  what = "a scatter";
  put<Family, epilogue::Scatter<float, Index, Index, Stride>>(
      {scattered.data(), stride, {rows.data(), 0, kM}, {columns.data(), 0, kN}}, value);
  int stored = 0;
  for (float each : scattered) stored += each == each;
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      if (place(m, n) < 0) continue;
      expect(scattered[size_t(place(m, n))], value(m, n), m, n);
      --stored;
    }
  }
  expect(stored, 0, 0, 0);
}

/// `offset`: the vector's address is a multiple of that many elements.
template <class Family, class Stride>
void check_vectors_and_matrices(Stride const& stride) {
  for (int offset : {0, 1}) {
    std::vector<float> vector(kM + kN + 1);
    for (int i = 0; i < kM + kN; ++i) vector[size_t(offset + i)] = value(i, 0);
    float const* const first = vector.data() + offset;
    what = "a row vector";
    get<Family, epilogue::RowBroadcast<float, float>>(
        {0, first, 1, 0}, [](int m, int n, float found) { expect(found, value(n, 0), m, n); });
    what = "a packed row vector";
    get<Family, epilogue::RowBroadcast<float, float, true>>(
        {0, first, 1, 0}, [](int m, int n, float found) { expect(found, value(n, 0), m, n); });
    what = "a column vector";
    get<Family, epilogue::ColumnBroadcast<float, float>>(
        {0, first, 1, 0}, [](int m, int n, float found) { expect(found, value(m, 0), m, n); });
    what = "one value for a row vector";
    get<Family, epilogue::RowBroadcast<float, float>>(
        {0, offset ? first : nullptr, 0, value(0, 0)},
        [](int m, int n, float found) { expect(found, value(0, 0), m, n); });
    what = "one value for a column vector";
    get<Family, epilogue::ColumnBroadcast<float, float>>(
        {0, offset ? first : nullptr, 0, value(0, 0)},
        [](int m, int n, float found) { expect(found, value(0, 0), m, n); });
  }
  std::vector<float> matrix(kM * kN, NAN);
  what = "a store of a matrix";
  put<Family, epilogue::MatrixStore<float, Stride>>({matrix.data(), stride}, value);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) expect(matrix[size_t(n * kM + m)], value(m, n), m, n);
  }
  what = "a load of a matrix";
  get<Family, epilogue::MatrixLoad<float, Stride>>(
      {matrix.data(), stride}, [](int m, int n, float found) { expect(found, value(m, n), m, n); });
}

template <class Family, class Stride>
void check(char const* name, Stride const& stride) {
  family = name;
  what = "columns";
  get<Family, epilogue::Index<1>>({}, [](int m, int n, int found) { expect(found, n, m, n); });
  what = "rows";
  get<Family, epilogue::Index<0>>({}, [](int m, int n, int found) { expect(found, m, m, n); });
  what = "keys";
  apply<Family, epilogue::PlaceKeys<1, false>, false>(
      [](int m, int n, int64_t found) { expect(evt::place_of(found), n, m, n); }, value);
  what = "random numbers";
  get<Family, epilogue::Random<false>>({5, nullptr, 9, nullptr}, [](int m, int n, float found) {
    expect(found, evt::random_uniform(uint64_t(m) * kN + uint64_t(n), 5, 9), m, n);
  });
  what = "wide random numbers";
  get<Family, epilogue::WideRandom<false>>({5, {}, 9, {}}, [](int m, int n, float found) {
    float wanted[1];
    evt::random_run<1>(wanted, 0, uint64_t(m) * kN + uint64_t(n), 5, 9);
    expect(found, wanted[0], m, n);
  });
  what = "a store of bits";
  std::vector<uint8_t> bits(kM * kN / 8, 0x55);
  put<Family, epilogue::MaskStore>({bits.data(), kN / 8, 0}, [](int m, int n) { return value(m, n) > 0; });
  auto const bit = [&](int m, int n) { return bits[size_t(m * (kN / 8) + n / 8)] >> n % 8 & 1; };
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) expect(bit(m, n), value(m, n) > 0, m, n);
  }
  what = "a load of bits";
  get<Family, epilogue::MaskLoad>({bits.data(), kN / 8, 0},
                                  [&](int m, int n, bool found) { expect(found, bit(m, n), m, n); });
  check_pairs<Family, 1>();
  check_pairs<Family, 8>();
  if constexpr (Family::kLeastBlock <= 8) check_blocks<Family, 8>();
  check_blocks<Family, 16>();
  check_reduction<Family, epilogue::Kept::kRows>();
  check_reduction<Family, epilogue::Kept::kColumns>();
  check_reduction<Family, epilogue::Kept::kNothing>();
  check_moments<Family, epilogue::Kept::kRows>();
  check_moments<Family, epilogue::Kept::kColumns>();
  check_moments<Family, epilogue::Kept::kNothing>();
  check_vector_store<Family, 0>();
  check_vector_store<Family, 1>();
  check_vector_store<Family, -1>();
  check_indexed<Family>(stride);
}

/// Stores write the columns of the tile's group alone.
template <class Family>
void check_group(char const* name) {
  family = name;
  std::vector<int> columns(kN);
  for (int n = 0; n < kN; ++n) columns[size_t(n)] = kN - 1 - n;
  std::vector<float> scattered(kM * kN, NAN), blocks(kM * kN / 8, NAN);
  what = "a scatter of a group";
  put<Family, epilogue::Scatter<float, evt::InOrder, evt::At<int>, epilogue::Strides>>(
      {scattered.data(), {kN, 1}, {}, {columns.data(), 0, kN}}, value);
  what = "blocks of a group";
  put<Family, epilogue::BlockStore<float, 8>>({blocks.data(), kN / 8, 0}, value);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float const found = scattered[size_t(m * kN + columns[size_t(n)])];
      bool const is_stored = found == found;
      expect(is_stored, n < Family::kEnd, m, n);
      if (is_stored) expect(found, value(m, n), m, n);
    }
    for (int n = 0; n < kN; n += 8) {
      float const found = blocks[size_t(m * (kN / 8) + n / 8)];
      expect(found == found, n < Family::kEnd, m, n);
    }
  }
}

template <class Family>
void check_wide() {
  check_pairs<Family, 16>();
  check_blocks<Family, 32>();
}

}  // namespace

int main() {
  cute::Stride<int64_t, cute::_1, cute::_0> const stride{kN, {}, {}};
  check<Sm90>("sm90", stride);
#if defined(EVERY_CASE)  // the compiler takes most of the time
  check_wide<Sm90>();
  check<Sm100>("sm100", stride);
#endif
  check_wide<Sm100>();
  check<Halo>("halo", epilogue::Strides{kN, 1});
  check_vectors_and_matrices<Halo>(epilogue::Strides{1, kM});
  check<Depthwise>("depthwise", epilogue::Strides{kN, 1});
  check_vectors_and_matrices<Depthwise>(epilogue::Strides{1, kM});
  check_group<FamilyGroup<evt::fragment::LanesOfWgmma>>("a group of columns");
  cute::Stride<cute::_1, int64_t, cute::_0> const by_columns{{}, kM, {}};
  check<Family2x<cutlass::half_t, 8>>("2.x, 8 columns", stride);
  check_vectors_and_matrices<Family2x<cutlass::half_t, 8>>(by_columns);
  check_wide<Family2x<float, 2>>();
#if defined(EVERY_CASE)
  check<Paired>("pairs of columns", epilogue::Strides{kN, 1});
  check_vectors_and_matrices<Paired>(epilogue::Strides{1, kM});
  check_wide<Depthwise>();
  check_wide<Family2x<cutlass::half_t, 8>>();
  check<Family2x<float, 2>>("2.x, 2 columns", stride);
  check_vectors_and_matrices<Family2x<float, 2>>(by_columns);
  check<Family2x<cutlass::half_t, 16, 128>>("2.x, 16 columns", stride);
#endif
  std::printf("%d failures\n", failures);
  return failures != 0;
}
