// The halo kernel on the host: the threads of a block run one at a time, over instructions of host/evt/kit. It reads a
// line of numbers for each convolution, as halo_memory.cpp does; the groups, the channels of a block and the elements of
// a load of filters (0: each block lies in a group; -1, -2 and -4: threads copy the input, of multiples of 1, 2 or 4
// elements; -8: the rows of a tile are taps);
// the input and the filters in the order of memory. It prints the bits of the output. A second kernel, whose
// tiles have pixels of one image, sums the pixels of each image. A third one loads packed bits of a mask.

#include "kit.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/mask_own.hpp"
#include "evt/epilogue/reduce.hpp"
#include "evt/kit/kernel.hpp"
#include "evt/kit/mainloop.hpp"
#include "evt/kit/mainloop_groups.hpp"
#include "evt/kit/mainloop_taps.hpp"
#include "evt/kit/mainloop_windows.hpp"
#include "evt/kit/mainloop_words.hpp"

namespace {

using evt::element::bf16;

/// D = acc.
struct Epilogue {
  using Source = void;
  using Destination = evt::element::Stored;
  using Result = float;
  static constexpr bool kPlaces = false;
  struct Params {};
  struct Fetched {};

  float of_column = NAN;  // 0 once `compute_columns` was called

  Epilogue(Params const&, evt::fragment::Tile const&) {}
  void compute_columns() { of_column = std::isnan(of_column) ? 0 : NAN; }
  void fetch(Fetched&, evt::fragment::Places const&) const {}
  template <int N, class Accumulator, class Loaded, class Store>
  void visit(Accumulator const& acc, Loaded const&, Store const& store, Fetched const&, evt::fragment::Places const&) {
    for (int i = 0; i < N; ++i) store(i, acc(i) + of_column);
  }
  void finish(evt::fragment::Tile const&) {}
};

/// D = acc, and the sums of D's pixels.
struct EpilogueOfSums : Epilogue {
  using Sums = evt::own::Part<evt::kit::Lanes, evt::epilogue::Reduction<evt::epilogue::Kept::kColumns, evt::Sum, float,
                                                                       evt::Partial>>;
  static constexpr bool kPlaces = true;
  struct Params {
    Sums::Params sums;
  };

  Sums sums;

  EpilogueOfSums(Params const& params, evt::fragment::Tile const& tile) : Epilogue({}, tile), sums(params.sums, tile) {}
  template <int N, class Accumulator, class Loaded, class Store>
  void visit(Accumulator const& acc, Loaded const&, Store const& store, Fetched const&,
             evt::fragment::Places const& places) {
    for (int i = 0; i < N; ++i) {
      sums.put(host::value(bf16{uint16_t(evt::element::rounded(acc(i)))}), i, places);
      store(i, acc(i) + of_column);
    }
  }
  void finish(evt::fragment::Tile const&) { sums.finish(); }
};

/// D = where(mask, acc, 0).
template <int Pixels>
struct EpilogueOfBits : Epilogue {
  using Mask = evt::own::Part<evt::fragment::LanesOfTile<Pixels, evt::kit::Lanes>, evt::own::TileMaskLoad>;
  static constexpr bool kPlaces = true;
  struct Params {
    typename Mask::Params mask;
  };
  struct Fetched {
    typename Mask::Fetched mask;
  };

  static constexpr bool kLoadsBits = true, kKeepsZeros = true;
  Mask mask;

  EpilogueOfBits(Params const& params, evt::fragment::Tile const& tile) : Epilogue({}, tile), mask(params.mask, tile) {}
  template <class PlaceOf>
  void begin_tile(PlaceOf const& place_of) { mask.begin_tile(place_of); }
  auto& held() { return mask.held(); }
  template <class PlaceOf>
  void keep_tile(PlaceOf const& place_of, uint32_t words, int consumer) { mask.keep_tile(place_of, words, consumer); }
  void fetch(Fetched& fetched, evt::fragment::Places const& places) const { mask.fetch(fetched.mask, places); }
  template <int N, class Accumulator, class Loaded, class Store>
  void visit(Accumulator const& acc, Loaded const&, Store const& store, Fetched const& fetched,
             evt::fragment::Places const& places) {
    for (int i = 0; i < N; ++i) store(i, acc(i) + of_column);
  }

  static constexpr bool kMasksWords = true;
  template <int N>
  void mask_words(uint32_t* words, Fetched const& fetched) const { mask.template mask_words<N>(words, fetched.mask); }
};

/// Run all blocks; return whether there is a tile.
template <class Kernel>
bool run(typename Kernel::Arguments const& arguments) {
  if (!Kernel::can_implement(arguments)) return false;
  auto const params = Kernel::to_underlying_arguments(arguments);
  gridDim = Kernel::get_grid_shape(params);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    host::barriers.clear();
    std::memset(host::memory, 0xff, sizeof(host::memory));
    host::run(Kernel::MaxThreadsPerBlock, [&] { Kernel()(params, host::memory[0] + 16); });
  }
  return true;
}

/// The arguments of another kernel for the same convolution.
template <class Kernel, class Arguments>
typename Kernel::Arguments arguments_of(Arguments const& given) {
  typename Kernel::Arguments arguments{};
  arguments.problem = given.problem;
  arguments.a = given.a, arguments.b = given.b, arguments.d = given.d, arguments.d_stride = given.d_stride;
  std::memcpy(arguments.a_strides, given.a_strides, sizeof(given.a_strides));
  std::memcpy(arguments.b_strides, given.b_strides, sizeof(given.b_strides));
  arguments.multiprocessors = given.multiprocessors, arguments.groups = given.groups;
  return arguments;
}

/// Whether D has the products at the set bits of a mask, and zeros elsewhere.
template <class Mainloop, int Stored, class Arguments>
bool masks_pixels(Arguments const& given) {
  using Kernel = evt::kit::Kernel<Mainloop, EpilogueOfBits<Mainloop::Mma::kPixels>, false, false, 0, Stored>;
  auto arguments = arguments_of<Kernel>(given);
  auto const& problem = given.problem;
  int64_t const pixels = int64_t(problem.images) * problem.depth.output * problem.height.output * problem.width.output;
  int64_t const filters = problem.filters, row_bytes = (filters + 7) / 8 + problem.filters % 3;
  std::vector<uint8_t> bits(size_t(pixels * row_bytes));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = uint8_t(i * 2654435761u >> 13);
  std::vector<bf16> d(size_t(pixels * filters), bf16{0x7fc0});
  arguments.d = d.data();
  arguments.epilogue.mask.ptr = bits.data(), arguments.epilogue.mask.stride_m = row_bytes;
  if (!run<Kernel>(arguments)) return true;
  for (int64_t i = 0; i < pixels * filters; ++i) {
    int64_t const pixel = i / filters, filter = i % filters;
    bool const bit = bits[size_t(pixel * row_bytes + filter / 8)] >> filter % 8 & 1;
    float const wanted = bit ? host::value(static_cast<bf16 const*>(given.d)[i]) : 0.0f;
    if (host::value(d[size_t(i)]) != wanted) return false;
  }
  return true;
}

/// Whether the parts of each image are the sums of its pixels.
template <class Mainloop, class Arguments>
bool sums_images(Arguments const& given) {
  using Kernel = evt::kit::Kernel<Mainloop, EpilogueOfSums, false, true, 3>;
  auto arguments = arguments_of<Kernel>(given);
  auto const& problem = given.problem;
  int64_t const tiles = Kernel::tiles(arguments).number, images = problem.images, filters = problem.filters;
  std::vector<float> parts(size_t(tiles * filters), NAN);
  arguments.epilogue.sums.ptr = parts.data(), arguments.epilogue.sums.kept = filters;
  if (!run<Kernel>(arguments)) return true;
  int64_t const pixels = int64_t(problem.depth.output) * problem.height.output * problem.width.output;
  for (int64_t i = 0; i < images * filters; ++i) {
    int64_t const image = i / filters, filter = i % filters;
    float found = 0, wanted = 0;
    for (int64_t part = 0; part < tiles / images; ++part)
      found += parts[size_t((image * (tiles / images) + part) * filters + filter)];
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
      wanted += host::value(static_cast<bf16 const*>(given.d)[(image * pixels + pixel) * filters + filter]);
    if (found != wanted) return false;
  }
  return true;
}

std::vector<bf16> read(int64_t count) {
  std::vector<bf16> found(static_cast<size_t>(count));
  for (bf16& each : found) {
    int number;
    if (std::scanf("%d", &number) != 1) std::exit(2);
    each.bits = uint16_t(evt::element::rounded(float(number)));
  }
  return found;
}

/// The way that D is stored on a device.
int stored_of(evt::kit::Problem const& problem, int groups) {
  return groups > 1 ? 0 : problem.filters % 2 == 1 ? 1 : problem.filters % 8 != 0 ? 2 : 0;
}

template <class Mainloop, bool SumsImages, int Stored>
void compute_stored(evt::kit::Problem const& problem, int groups) {
  using Kernel = evt::kit::Kernel<Mainloop, Epilogue, false, false, 0, Stored>;
  constexpr int Dimensions = Mainloop::kDimensions;
  constexpr bool Transposed = Mainloop::Mma::kTransposed;
  int const channels = problem.channels / groups;  // of a filter
  auto const &x = problem.width, &y = problem.height, &z = problem.depth;
  std::vector<bf16> const a = read(int64_t(problem.images) * z.size * y.size * x.size * problem.channels);
  std::vector<bf16> const b = read(int64_t(problem.filters) * z.taps * y.taps * x.taps * channels);
  int64_t const pixels = int64_t(problem.images) * z.output * y.output * x.output;
  std::vector<bf16> d(size_t((pixels + 1) * problem.filters), bf16{0x7fc0});
  typename Kernel::Arguments arguments{};
  arguments.problem = problem;
  arguments.a = a.data(), arguments.b = b.data(), arguments.d = d.data(), arguments.d_stride = problem.filters;
  auto const fill = [](int64_t* strides, int64_t inner, int columns, int rows, int slices) {
    int64_t found[] = {inner, inner * columns, inner * columns * rows, inner * columns * rows * slices};
    for (int i = 0; i <= Dimensions; ++i) strides[i] = i == 0 ? found[3] : found[Dimensions - i];
  };
  fill(arguments.a_strides, problem.channels, x.size, y.size, z.size);
  fill(arguments.b_strides, Transposed ? problem.filters : channels, x.taps, y.taps, z.taps);
  arguments.multiprocessors = 3;
  arguments.groups = groups;
  if (!run<Kernel>(arguments)) {
    std::printf("none\n");
    return;
  }
  if constexpr (SumsImages) {
    if (!sums_images<Mainloop>(arguments)) std::printf("other sums ");
  }
  if constexpr (!Mainloop::kGrouped && !Mainloop::kTapRows && !Mainloop::kLoadsByThreads) {
    if (!masks_pixels<Mainloop, Stored>(arguments)) std::printf("other bits ");
  }
  for (bf16 each : d) std::printf("%d ", each.bits);
  std::printf("\n");
}

/// Each way to store D is another kernel, and the compiler takes most of the time: the ways of the tests' problems.
template <class Mainloop, bool SumsImages, int... Stored>
void compute(evt::kit::Problem const& problem, int groups = 1) {
  int const wanted = stored_of(problem, groups);
  bool const found =
      ((wanted == Stored && (compute_stored<Mainloop, SumsImages, Stored>(problem, groups), true)) || ...);
  if (!found) std::exit(3);
}

template <int Pixels, int Dimensions, bool Transposed, bool Residues = false>
using Halo = evt::kit::HaloMainloop<host::Mma<Pixels, Transposed>, 16, Dimensions, Residues>;

void compute_groups(evt::kit::Problem const& problem, int channels, int groups, int vector) {
  using Mma = host::Mma<104>;
  using namespace evt::kit;
  switch (channels * 10 + vector) {  // -4 and 48: 476
    case 152: return compute<TapRowsMainloop<host::Mma<96>, 16>, true, 1, 2>(problem, groups);
    case 312: return compute<TapRowsMainloop<host::Mma<256>, 32>, true, 1, 2>(problem, groups);
    case 476: return compute<WordsMainloop<Mma, 48, 4, 4>, false, 2>(problem, groups);
    case 478: return compute<WordsMainloop<Mma, 48, 2, 2>, false, 2>(problem, groups);
    case 479: return compute<WordsMainloop<Mma, 48, 1, 1>, false, 0, 1>(problem, groups);
    case 480: return compute<GroupsMainloop<Mma, 48>, false, 0>(problem, groups);
    case 484: return compute<PackedGroupsMainloop<Mma, 48, 4>, false, 0>(problem, groups);
    case 638: return compute<WordsMainloop<Mma, 64, 2, 2>, false, 0>(problem, groups);
    case 639: return compute<WordsMainloop<Mma, 64, 1, 1>, false, 0, 2>(problem, groups);
    case 640: return compute<GroupsMainloop<Mma, 64>, false, 0>(problem, groups);
    case 641: return compute<PackedGroupsMainloop<Mma, 64, 1>, false, 0>(problem, groups);
    case 644: return compute<PackedGroupsMainloop<Mma, 64, 4>, false, 0>(problem, groups);
    default: std::exit(4);
  }
}

/// A row of taps is a window. `vector`: the elements that threads load at a time.
void compute_windows(evt::kit::Problem const& problem, bool volume, int of_block, int vector) {
  using Mma = host::Mma<104>;
  using namespace evt::kit;
  if (volume) return compute<WindowsMainloop<Mma, 32, 3, 3, 2, 1>, false, 1>(problem);
  switch (of_block * 100 + problem.channels * 10 + vector) {
    case 1631: return compute<WindowsMainloop<Mma, 16, 2, 3, 2, 1>, false, 1>(problem);
    case 1662: return compute<WindowsMainloop<Mma, 16, 2, 6, 1, 2>, false, 1>(problem);
    case 3251: return compute<WindowsMainloop<Mma, 32, 2, 5, 1, 1>, false, 1>(problem);
    case 3262: return compute<WindowsMainloop<Mma, 32, 2, 6, 1, 2>, false, 1>(problem);
    case 3244: return compute<WindowsMainloop<Mma, 32, 2, 4, 2, 4>, false, 1>(problem);
    case 6484: return compute<WindowsMainloop<Mma, 64, 2, 8, 1, 4>, false, 1>(problem);
    default: std::exit(4);
  }
}

}  // namespace

int main() {
  evt::kit::Problem p{};
  int windows, pixels, channels, element_bytes, backwards, volume, residues, groups, of_block, vector;
  auto &y = p.height, &x = p.width, &z = p.depth;
  int* const numbers[] = {&p.images, &y.size, &x.size, &p.channels, &p.filters, &y.taps, &x.taps, &y.output, &x.output,
                          &y.pad, &x.pad, &y.stride, &x.stride, &y.dilation, &x.dilation, &z.size, &z.taps, &z.output,
                          &z.pad, &z.stride, &z.dilation, &windows, &pixels, &channels, &element_bytes, &backwards,
                          &volume, &residues, &groups, &of_block, &vector};
  for (;;) {
    for (int* number : numbers) {
      if (std::scanf("%d", number) != 1) return 0;
    }
    y.window = x.window = z.window = 1;
    if (windows) {
      compute_windows(p, volume, of_block, vector);
    } else if (groups > 1 || vector < 0) {
      compute_groups(p, of_block, groups, vector);
    } else if (residues) {
      compute<Halo<104, 2, true, true>, false, 2>(p);
    } else if (volume) {
      backwards ? compute<Halo<104, 3, true>, false, 2>(p) : compute<Halo<104, 3, false>, true, 1>(p);
    } else {
      backwards ? compute<Halo<104, 2, true>, false, 2>(p) : compute<Halo<64, 2, false>, true, 1>(p);
    }
  }
}
