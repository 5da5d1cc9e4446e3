// The layout of the halo kernel's shared memory, and the addresses of its instructions, for a model of both in Python.
//
// "operands": the rows of filters and the words of their descriptors, of K-major operands in planes of 128, 64 and 32
// bytes and of transposed ones in planes of 64, 32 and 16 channels, with the words that CuTe makes for the same layout.
// "taps": of each convolution on the standard input, the tile, where the boxes begin, and the taps; of a volume also
// the multiplied data, for each slice of the output and each plane. A line has the problem, whether it is of windows,
// the pixels
// of the instruction, the channels of a plane, the bytes of an element, whether filters are read backwards, whether it is
// a volume, and whether it is a gradient with a stride, whose residue classes and their first taps then follow.

#include <cstdio>
#include <cstring>

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "evt/kit/taps.hpp"

namespace {

using namespace cute;

/// The upper word of the descriptor that CuTe makes for the 64 filters of an instruction in a tile of such atoms.
template <SM90::GMMA::Major kMajor, class Element, int Plane, class Atom>
uint32_t word_of(Atom atom) {
  alignas(1024) static Element memory[64 * Plane];
  auto const tile = make_tensor(make_smem_ptr(memory), tile_to_shape(atom, Shape<_64, Int<Plane>>{}));
  auto const first = local_tile(tile, Shape<_64, Int<32 / int(sizeof(Element))>>{}, make_coord(0, 0));
  return SM90::GMMA::make_gmma_desc<kMajor>(first).reg32_[1];
}

template <class Element, int Plane, bool Transposed, class Atom>
void print_operand(Atom atom) {
  using Rows = evt::kit::FilterRows<int(sizeof(Element)), Plane, Transposed>;
  constexpr auto kMajor = Transposed ? SM90::GMMA::Major::MN : SM90::GMMA::Major::K;
  std::printf("operand %d %d %d %d %d %d %d %u %u %u\n", int(sizeof(Element)), Plane, Transposed, Rows::kRows,
              Rows::kLength, Rows::kRowBytes, Rows::kBytes, Rows::kLayout, Rows::kNextK,
              word_of<kMajor, Element, Plane>(atom));
}

void print_operands() {
  using namespace SM90::GMMA;
  print_operand<half_t, 64, false>(Layout_K_SW128_Atom<half_t>{});
  print_operand<half_t, 32, false>(Layout_K_SW64_Atom<half_t>{});
  print_operand<half_t, 16, false>(Layout_K_SW32_Atom<half_t>{});
  print_operand<int8_t, 64, false>(Layout_K_SW64_Atom<int8_t>{});
  print_operand<half_t, 64, true>(Layout_MN_SW128_Atom<half_t>{});
  print_operand<half_t, 32, true>(Layout_MN_SW128_Atom<half_t>{});
  print_operand<half_t, 16, true>(Layout_MN_SW128_Atom<half_t>{});
  for (uint32_t address : {0u, 1024u, 0x12340u, 0x38000u}) {
    std::printf("address %u %u\n", address, evt::kit::operand_descriptor(address));
  }
  std::printf("next %u\n", evt::kit::kNextK);
  std::printf("windows %u\n", evt::kit::operand_layout(evt::kit::kWindowBytes));
}

void print_taps() {
  evt::kit::Problem p{};
  int windows, pixels, channels, element_bytes, backwards, volume, residues;
  auto &y = p.height, &x = p.width, &z = p.depth;
  int* const numbers[] = {&p.images, &y.size, &x.size, &p.channels, &p.filters, &y.taps, &x.taps, &y.output, &x.output,
                          &y.pad, &x.pad, &y.stride, &x.stride, &y.dilation, &x.dilation, &z.size, &z.taps, &z.output,
                          &z.pad, &z.stride, &z.dilation, &windows, &pixels, &channels, &element_bytes, &backwards,
                          &volume, &residues};
  auto const read = [&] {
    for (int* number : numbers) {
      if (std::scanf("%d", number) != 1) return false;
    }
    return true;
  };
  while (read()) {
    int const bytes = channels * element_bytes;
    y.window = x.window = z.window = 1;
    evt::kit::KernelClass const kernel{pixels, channels, bytes, windows ? evt::kit::kWindowBytes : bytes, true,
                                        volume != 0, false, residues != 0};
    evt::kit::Problem const given = p;
    if (residues) p = evt::kit::over_residues(p);
    if (windows) p = evt::kit::over_windows(p, kernel, x.stride);
    evt::kit::Geometry const made = evt::kit::choose(p, kernel);
    if (made.input_stages == 0) {
      std::printf("none\n");
      continue;
    }
    evt::kit::Residues classes;
    evt::kit::Taps taps = residues ? evt::kit::taps_of_residues(given, made.row_pitch(), classes)
                                   : evt::kit::taps_of(p, made.row_pitch());
    if (backwards) taps.reverse(p);
    std::printf("%d %d %d %d %d %d %d %d %d %d", made.images, made.rows, made.columns, made.input_pitch, made.accumulator_pitch,
                made.next_eight(), made.box_rows, made.guard, taps.groups, taps.number);
    for (int i = 0; i < taps.groups; ++i) {
      std::printf(" %d %d", int(int16_t(taps.starts[i])), int(int16_t(taps.starts[i] >> 16)));
    }
    for (int i = 0; i < taps.number; ++i) {
      evt::kit::Tap const tap = taps.tap[i];
      std::printf(" %d %d %d %d", tap.shift(), tap.x(), tap.y(), tap.enters());
    }
    evt::kit::Depth const depth = evt::kit::Depth::of(p, channels);
    for (int slice = 0; volume && slice < p.depth.output; ++slice) {
      evt::kit::BlockRange const planes = depth.inside(slice);
      evt::kit::DepthBlock<true> block(depth, planes.first);
      for (int left = planes.number; left > 0; --left, block.advance(depth)) {
        std::printf(" %d %d %d %d", slice, depth.input(slice, block.tap), block.channels,
                    depth.tap_of_filters(block.tap, backwards));
      }
    }
    for (int i = 0; residues && i < classes.number; ++i) {
      std::printf(" %d %d %d %d", classes.row[i], classes.column[i], classes.taps(i).first, classes.taps(i).number);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int, char** arguments) {
  if (std::strcmp(arguments[1], "operands") == 0) {
    print_operands();
  } else {
    print_taps();
  }
  return 0;
}
