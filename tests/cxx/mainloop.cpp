// Mainloop fusions on the host: every lane's elements against the formula by place.
#include <cstdio>
#include <functional>
#include <vector>

#include "evt/mainloop_2x.hpp"

namespace {

using cutlass::half_t;
using evt::mainloop::ActivationWalk;
using evt::mainloop::AlongK;
using evt::mainloop::AlongOuter;
using evt::mainloop::MatrixWalk;
using evt::mainloop::Single;
using evt::mainloop::Work;
using evt::mainloop::WorkedTiles;

constexpr int kTile = 32;

struct Formula {
  using Parameters = cute::tuple<float, float, float, float>;
  using Result = float;
  static float apply(float x, float s, float u, float alpha) { return x * s + u + alpha; }
};

/// The element at an outer place and k of the current tile, as shared memory has it.
std::function<float(int, int)> memory;

/// A fragment as the PTX manual lays out the operands of m16n8: A has rows group and group + 8 in turn.
template <class Element_, bool kIsA, int kExtent>
struct Tiles {
  using Element = Element_;
  using TensorRef = int;
  static constexpr int kPacked = 4 / int(sizeof(Element));
  static constexpr int kGroup = 8 * kPacked;
  using Fragment = cutlass::Array<Element, kExtent * kGroup / 32>;
  int lane = 0, group = 0;
  Tiles() = default;
  Tiles(TensorRef, int lane) : lane(lane) {}
  void set_kgroup_index(int index) { group = index; }
  Tiles& operator++() { return *this; }

  /// (outer place, k) of an element of the fragment.
  void place(int index, int& outer, int& k) const {
    constexpr int kRegisters = kIsA ? 4 : 2;
    int const tile = index / (kRegisters * kPacked), r = index / kPacked % kRegisters, e = index % kPacked;
    outer = kIsA ? 16 * tile + lane / 4 + (r % 2 ? 8 : 0) : 8 * tile + lane / 4;
    k = group * kGroup + lane % 4 * kPacked + e + ((kIsA ? r >= 2 : r == 1) ? 4 * kPacked : 0);
  }

  void load(Fragment& fragment) const {
    for (int i = 0; i < int(Fragment::kElements); ++i) {
      int outer, k;
      place(i, outer, k);
      fragment[i] = Element(memory(outer, k));
    }
  }
};

int failures = 0;

void check(float got, float want, char const* what, int outer, int k) {
  if (got != want && failures++ < 10) std::printf("%s at (%d, %d): %g, not %g\n", what, outer, k, got, want);
}

float element(int outer, int k) { return float((outer * 7 + k * 3) % 11 - 5); }
float along_k(int k) { return float(k % 5 - 2); }
float along_outer(int outer) { return float(outer % 3); }

template <class Element, bool kIsA>
void matrix(int extent, int outer_extent, int block, int warp) {
  using Stock = Tiles<Element, kIsA, 32>;
  using Inputs = Work<Formula, AlongK<float>, AlongOuter<half_t>, Single<float>>;
  using Instruction = cutlass::gemm::GemmShape<16, 8, Stock::kGroup>;
  std::vector<float> s(extent);
  std::vector<half_t> u(outer_extent);
  for (int k = 0; k < extent; ++k) s[k] = along_k(k);
  for (int o = 0; o < outer_extent; ++o) u[o] = half_t(along_outer(o));
  Inputs work{cute::make_tuple(AlongK<float>{s.data()}, AlongOuter<half_t>{u.data()}, Single<float>{0.5f, nullptr})};
  for (int lane = 0; lane < 32; ++lane) {
    WorkedTiles<Stock, Instruction, Inputs, MatrixWalk<kTile>, kIsA> tiles(0, lane);
    tiles.begin(work, MatrixWalk<kTile>(extent, block, outer_extent), warp);
    int const rest = extent % kTile ? extent % kTile : kTile;  // CUTLASS loads the residue first
    int const count = (extent + kTile - 1) / kTile;
    for (int tile = 0; tile <= count; ++tile) {  // the last one is fetched and not multiplied
      int const begin = tile ? rest + (tile - 1) * kTile : 0, end = tile ? begin + kTile : rest;
      auto const inside = [&](int outer, int k) { return begin + k < end && begin + k < extent && outer < outer_extent; };
      memory = [&](int outer, int k) {
        int const o = block + warp + outer;
        return inside(o, k) ? element(o, begin + k) : 0.0f;
      };
      for (int group = 0; group < kTile / Stock::kGroup; ++group) {
        typename Stock::Fragment fragment;
        tiles.set_kgroup_index(group);
        tiles.load(fragment);
        ++tiles;
        for (int i = 0; i < int(Stock::Fragment::kElements); ++i) {
          int outer, k;
          tiles.place(i, outer, k);
          int const o = block + warp + outer;
          if (o >= outer_extent) continue;  // not stored
          float const want = inside(o, k)
                                 ? Formula::apply(element(o, begin + k), along_k(begin + k), along_outer(o), 0.5f)
                                 : 0.0f;
          check(float(fragment[i]), float(evt::convert<Element>(want)), kIsA ? "A" : "B", o, begin + k);
        }
      }
    }
  }
}

template <bool kPadded>
void activation(int images, int height, int width, int channels, int rows, int columns, int pad, int stride, int dilation) {
  using Stock = Tiles<half_t, true, 32>;
  using Inputs = Work<Formula, AlongK<float>, AlongK<half_t>, Single<float>>;
  using Walk = ActivationWalk<kTile, 4, kPadded>;
  cutlass::conv::Conv2dProblemSize problem;
  problem.N = images, problem.H = height, problem.W = width, problem.C = channels, problem.R = rows;
  problem.S = columns, problem.pad_h = pad, problem.pad_w = pad, problem.stride_h = stride, problem.stride_w = stride;
  problem.dilation_h = dilation, problem.dilation_w = dilation;
  problem.P = (height + 2 * pad - dilation * (rows - 1) - 1) / stride + 1;
  problem.Q = (width + 2 * pad - dilation * (columns - 1) - 1) / stride + 1;
  std::vector<float> s(channels);
  std::vector<half_t> u(channels);
  for (int c = 0; c < channels; ++c) s[c] = along_k(c), u[c] = half_t(along_outer(c));
  Inputs work{cute::make_tuple(AlongK<float>{s.data()}, AlongK<half_t>{u.data()}, Single<float>{9.0f, nullptr})};
  float const scalar = 0.25f;
  cute::get<2>(work.inputs).pointer = &scalar;
  int const pixels = images * problem.P * problem.Q;
  for (int block = 0; block < pixels; block += 64) {
    for (int lane = 0; lane < 32; ++lane) {
      WorkedTiles<Stock, cutlass::gemm::GemmShape<16, 8, 16>, Inputs, Walk, true> tiles(0, lane);
      tiles.begin(work, Walk(problem, block), 32);
      for (int channel = 0; channel < channels; channel += kTile) {
        for (int row = 0; row < rows; ++row) {
          for (int column = 0; column < columns; ++column) {
            auto const find = [&](int outer, int k, int& index) {
              int const pixel = block + 32 + outer;
              int const in_image = pixel % (problem.P * problem.Q);
              int const h = in_image / problem.Q * stride - pad + row * dilation;
              int const w = in_image % problem.Q * stride - pad + column * dilation;
              index = (pixel / (problem.P * problem.Q) * height + h) * width + w;
              return channel + k < channels && h >= 0 && h < height && w >= 0 && w < width;
            };
            memory = [&](int outer, int k) {
              int index;
              return find(outer, k, index) ? element(index, channel + k) : 0.0f;
            };
            for (int group = 0; group < 2; ++group) {
              Stock::Fragment fragment;
              tiles.set_kgroup_index(group);
              tiles.load(fragment);
              ++tiles;
              for (int i = 0; i < int(Stock::Fragment::kElements); ++i) {
                int outer, k, index;
                tiles.place(i, outer, k);
                if (block + 32 + outer >= pixels) continue;
                int const c = channel + k;
                float const want = find(outer, k, index)
                                       ? Formula::apply(element(index, c), along_k(c), along_outer(c), 0.25f)
                                       : 0.0f;
                check(float(fragment[i]), want, "activation", block + 32 + outer, c);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  for (int extent : {1, 8, 31, 32, 33, 64, 72, 136}) {
    matrix<half_t, true>(extent, 150, 128, 0);
    matrix<half_t, true>(extent, 150, 64, 32);
    matrix<half_t, false>(extent, 150, 64, 32);
    matrix<float, true>(extent, 150, 64, 32);
    matrix<float, false>(extent, 150, 64, 32);
    matrix<int8_t, true>(extent, 150, 64, 32);
    matrix<int8_t, false>(extent, 150, 64, 32);
  }
  activation<true>(2, 7, 9, 40, 3, 3, 1, 1, 1);
  activation<true>(2, 9, 7, 24, 3, 2, 2, 2, 1);
  activation<true>(1, 11, 8, 64, 2, 3, 3, 1, 2);
  activation<false>(2, 7, 9, 40, 3, 3, 0, 1, 1);
  activation<false>(3, 9, 9, 72, 1, 1, 0, 2, 1);
  std::printf("%d failures\n", failures);
  return failures != 0;
}
