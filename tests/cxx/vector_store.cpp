// The stores of vectors and scalars of 2.x kernels, on the host: every thread's visits of a problem whose extents are no
// multiples of a tile. Only the first row, column and batch have the right values.

#include <cmath>
#include <cstdio>
#include <vector>

#include <cuda_runtime.h>

// Names in CUTLASS's and evt's headers that this program does not call.
static uint3 blockIdx;
template <class T>
T atomicMax(T*, T);
template <class T>
T atomicMin(T*, T);
template <class T>
T atomicAdd(T*, T);

#include "evt/epilogue/lanes_2x.hpp"
#include "evt/epilogue/vector_store.hpp"

struct Problem {
  int m, n, l, kept;
  bool batched;

  int size() const { return kept == 0 ? m : kept == 1 ? n : 1; }

  float value(int at_l, int at_m, int at_n) const {
    bool const is_first = (kept == 0 || at_m == 0) && (kept == 1 || at_n == 0) && (batched || at_l == 0);
    float const place = kept == 0 ? at_m : kept == 1 ? at_n : 0;
    return is_first ? 1000.f * at_l + place + 0.5f : -1.f;
  }

  // The number of values that differ from the expected stores of `visit(params)`.
  template <class Node, class Visit>
  int failures(Visit const& visit) const {
    int const batches = batched ? l : 1;
    std::vector<float> stored(size_t(batches * size()), NAN);
    typename Node::Params params;
    params.ptr = stored.data();
    params.stride = 1;
    params.stride_l = batched ? size() : 0;
    visit(params);
    int count = 0;
    for (int i = 0; i < batches * size(); ++i) {
      int const at = i % size();
      count += stored[size_t(i)] != value(i / size(), kept == 0 ? at : 0, kept == 1 ? at : 0);
    }
    return count;
  }
};

template <int Kept>
int check_2x(Problem const& problem) {
  using ThreadMap = cutlass::epilogue::threadblock::OutputTileThreadLayout<
      cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>, cutlass::half_t, 8, 1>;
  using Node = evt::threadblock::Visitor<ThreadMap, evt::epilogue::VectorStore<float, Kept>>;
  using Lanes = evt::threadblock::Lanes<ThreadMap>;
  return problem.failures<Node>([&](auto const& params) {
    Node node(params, typename Node::SharedStorage{});
    auto const shape = cute::make_tuple(problem.m, problem.n, 1);
    for (int l = 0; l < problem.l; ++l) {
      for (int m = 0; m < (problem.m + 127) / 128; ++m) {
        for (int n = 0; n < (problem.n + 127) / 128; ++n) {
          for (int thread = 0; thread < 32 * Lanes::kWarps; ++thread) {
            cutlass::gemm::GemmCoord const tile(m, n, l);
            Lanes const lanes(tile, thread, shape);
            auto callbacks = node.get_callbacks(tile, thread, shape);
            for (int visit = 0; visit < Lanes::kSteps * Lanes::kRows * Lanes::kColumns; ++visit) {
              int const column = visit % Lanes::kColumns, row = visit / Lanes::kColumns % Lanes::kRows;
              int const step = visit / Lanes::kColumns / Lanes::kRows;
              cutlass::Array<float, Lanes::kSize> acc, input;
              for (int i = 0; i < Lanes::kSize; ++i) {
                input[i] = problem.value(l, lanes.row_of_step(step, row), lanes.column_of_tile(column, i));
              }
              callbacks.visit(step, row, column, 0, acc, input);
            }
          }
        }
      }
    }
  });
}

template <int Kept>
int check(int m, int n, int l, bool batched) {
  Problem const problem{m, n, l, Kept, batched};
  return check_2x<Kept>(problem);
}

int main() {
  int failures = 0;
  for (bool batched : {false, true}) {
    failures += check<0>(197, 133, 3, batched) + check<1>(197, 133, 3, batched) + check<-1>(197, 133, 3, batched);
    failures += check<0>(1, 1, 1, batched) + check<1>(1, 1, 1, batched) + check<-1>(1, 1, 1, batched);
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}
