// The kernel that combines the parts of reductions, arithmetic after reductions, and keys with their indices, on the
// host: the threads of a block run one at a time.

#include "threads.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

// The threads of a block share a variable.
#undef __shared__
#define __shared__ static

#include "evt/finish_moments.hpp"
#include "evt/finish_place.hpp"
#include "evt/rows.hpp"
#include "evt/epilogue/key.hpp"
#include "evt/epilogue/types_cutlass.hpp"

int failures = 0;

void expect(double found, double expected, char const* what) {
  if (found != expected) {
    std::printf("%s is %g, expected %g\n", what, found, expected);
    ++failures;
  }
}

/// The result of a function that a warp calls.
template <class Compute>
auto by_warp(Compute const& compute) {
  decltype(compute()) result{};
  host::run(32, [&] {
    auto const found = compute();
    if (threadIdx.x == 0) result = found;
  });
  return result;
}

/// Run all blocks of a job.
template <class Job>
void run_job(Job const& job) {
  for (unsigned number = 0; number < gridDim.x; ++number) {
    blockIdx.x = number;
    host::run(evt::kFinishThreads, [&] { evt::finish(job); });
  }
}

// Parts of `kept` results: more and fewer than the places of a block.
template <class Op>
void test_parts(int64_t parts, int64_t kept, int64_t batches, bool over_batch) {
  std::vector<float> given(size_t(batches * parts * kept)), found(size_t(over_batch ? kept : batches * kept), NAN);
  for (size_t i = 0; i < given.size(); ++i) given[i] = float(i * 7919 % 1013) - 506;
  evt::FinishJob<Op, float, float> const job{given.data(), found.data(), parts, kept, batches, kept, over_batch};
  int64_t const blocks = evt::finish_blocks(job);
  int64_t const all = over_batch ? parts * batches : parts;
  for (int64_t grid : {blocks, blocks - 1, blocks / 9}) {  // with few blocks, some places come in a second round
    gridDim = dim3(unsigned(grid > 1 ? grid : 1));
    run_job(job);
    for (size_t i = 0; i < found.size(); ++i) {
      float wanted = Op::template identity<float>();
      float const* const from = &given[i / size_t(kept) * size_t(all * kept) + i % size_t(kept)];
      for (int64_t part = 0; part < all; ++part) wanted = Op::apply(wanted, from[part * kept]);
      expect(found[i], wanted, "a combined result");
      found[i] = NAN;
    }
  }
}

// The order of a result's parts depends on their number alone: not on the number of results, nor on the grid.
template <class Op, class Element>
void test_order(int64_t parts) {
  std::vector<Element> before;
  for (int64_t kept : {1, 4, 70}) {
    std::vector<Element> given, found(size_t(kept), Element{});
    for (int64_t i = 0; i < parts * kept; ++i) {
      int64_t const part = i / kept, place = i % kept;
      float const x = std::ldexp(float((place * 31 + part * 7919) % 1013) + 0.3f, int(part * 13 % 21));
      given.push_back(Element(part % 2 ? -x : x));
    }
    evt::InOneOrder<evt::FinishJob<Op, Element, Element>> const job{
        {given.data(), found.data(), parts, kept, 1, kept, false}};
    for (int64_t grid : {evt::finish_blocks(job), int64_t(1)}) {
      gridDim = dim3(unsigned(grid));
      run_job(job);
      for (size_t i = 0; i < before.size(); ++i)
        expect(std::memcmp(&found[i], &before[i], sizeof(Element)), 0, "the difference of a result's bits");
      before = found;
    }
  }
}

struct Functor {
  using Parameters = cute::tuple<float, int32_t, float, int32_t>;
  using Result = float;
  static float apply(float sum, int32_t size, float given, int32_t place) { return sum / size + given + 1000 * place; }
};

// Sums of three parts of two batches of eight columns. Columns two apart hold one value.
void test_results() {
  constexpr int kBatches = 2, kParts = 3, kColumns = 8;
  using Sums = evt::Combined<0, evt::Sum, float, 4, 2>;
  using Size = evt::Given<int32_t>;
  using Vector = evt::Given<cutlass::half_t>;
  float parts[kBatches][kParts][kColumns];
  for (int l = 0; l < kBatches; ++l)
    for (int part = 0; part < kParts; ++part)
      for (int n = 0; n < kColumns; ++n) parts[l][part][n] = float(100 * l + 10 * part + n);
  cutlass::half_t vector[kBatches][4];
  for (int l = 0; l < kBatches; ++l)
    for (int j = 0; j < 4; ++j) vector[l][j] = cutlass::half_t(float(j + 4 * l));
  evt::ComputeJob<Functor, int32_t, Sums, Size, Vector, evt::Place<false>> job{};
  job.operands = cute::make_tuple(Sums{&parts[0][0][0], kParts, kColumns}, Size{kParts, nullptr, 0, 0},
                                  Vector{cutlass::half_t(0), &vector[0][0], 1, 4}, evt::Place<false>{});
  int const columns[] = {0, 1, 4, 5};
  for (int l = 0; l < kBatches; ++l) {
    for (int j = 0; j < 4; ++j) {
      auto const found = by_warp([&] { return evt::detail::result_at(job, l, j, evt::detail::ByLanes{l, j}); });
      expect(found, 100 * l + 10 + columns[j] + (j + 4 * l) + 1000 * j, "a result");
    }
  }
  expect(Size{7, nullptr, 0, 0}.value_at(5, 9), 7, "a value that is given as one");
  expect(evt::Place<true>{}.value_at(5, 9), 5, "a batch");
}

struct Same {
  using Parameters = cute::tuple<float>;
  using Result = float;
  static float apply(float x) { return x; }
};

// So it is with arithmetic after a reduction.
void test_order_of_computed(int64_t parts) {
  using Variance = evt::CombinedVariance<evt::Combined<0, evt::MergeMoments, evt::Moments<float>>>;
  std::vector<float> before;
  for (int64_t kept : {1, 4, 70}) {
    std::vector<evt::Moments<float>> given;
    std::vector<float> found(size_t(kept), NAN);
    for (int64_t i = 0; i < parts * kept; ++i)
      given.emplace_back(std::ldexp(float((i % kept * 31 + i / kept * 7919) % 1013) + 0.3f, int(i / kept * 13 % 21)));
    evt::InOneOrder<evt::ComputeJob<Same, float, Variance>> job{};
    job.operands = cute::make_tuple(Variance{{given.data(), parts, kept}});
    job.out = found.data();
    job.kept = job.out_stride_l = kept;
    job.batches = 1;
    gridDim = dim3(unsigned(evt::finish_blocks(job)));
    run_job(job);
    for (size_t i = 0; i < before.size(); ++i)
      expect(std::memcmp(&found[i], &before[i], sizeof(float)), 0, "the difference of a computed result's bits");
    before = found;
  }
}

struct Step {
  using Parameters = cute::tuple<float, float>;
  using Result = float;
  static float apply(float old, float x) { return old / 2 + x; }
};

/// Integers. Their number is that of the totals that blocks begin.
struct Counted {
  static inline int64_t begun = 0;

  template <class T>
  static T identity() {
    return ++begun, T(0);
  }
  static float apply(float a, float b) { return a + b; }
};

// A reduction with a result for each place, and arithmetic on another one. Return how many totals were begun.
template <int Other>
int64_t test_two_jobs(int64_t parts, int64_t kept, int64_t batches) {
  using Sums = evt::Combined<0, Counted, float>;
  using Others = evt::Combined<Other, Counted, float>;
  using Old = evt::Given<float>;
  std::vector<float> given(size_t(batches * parts * kept)), same(size_t(batches * kept)), step = same, old;
  for (size_t i = 0; i < given.size(); ++i) given[i] = float(i * 7919 % 1013) - 506;
  for (int64_t i = 0; i < kept; ++i) old.push_back(float(2 * i));
  evt::ComputeJob<Same, float, Sums> first{};
  evt::ComputeJob<Step, float, Old, Others> second{};
  first.operands = cute::make_tuple(Sums{given.data(), parts, kept});
  second.operands = cute::make_tuple(Old{0, old.data(), 1, 0}, Others{given.data(), parts, kept});
  first.kept = first.out_stride_l = second.kept = second.out_stride_l = kept;
  first.batches = second.batches = batches;
  first.out = same.data(), second.out = step.data();
  std::fill(same.begin(), same.end(), NAN);
  std::fill(step.begin(), step.end(), NAN);
  gridDim = dim3(unsigned(evt::finish_blocks(first)), 2);
  Counted::begun = 0;
  for (unsigned block = 0; block < 2 * gridDim.x; ++block) {
    blockIdx = {block / 2, block % 2, 0};
    host::run(evt::kFinishThreads, [&] { evt::finish_all(first, second); });
  }
  for (int64_t i = 0; i < batches * kept; ++i) {
    float wanted = 0;
    for (int64_t part = 0; part < parts; ++part) wanted += given[size_t((i / kept * parts + part) * kept + i % kept)];
    expect(same[size_t(i)], wanted, "a result");
    expect(step[size_t(i)], float(i % kept) + wanted, "another one");
  }
  return Counted::begun;
}

// Jobs that read one reduction combine its parts once.
void test_together(int64_t parts, int64_t kept, int64_t batches) {
  int64_t const apart = test_two_jobs<1>(parts, kept, batches), together = test_two_jobs<0>(parts, kept, batches);
  expect(together < apart, true, "that parts are combined once");
}

// Sums of all parts of groups of columns, for each of several images.
template <int Width>
void test_groups(int64_t images, int64_t parts, int64_t groups) {
  using Sums = evt::Combined<0, evt::Sum, float, Width, 1, true>;
  int64_t const columns = groups * Width;
  std::vector<float> given(size_t(images * parts * columns)), found(size_t(images * groups), NAN);
  for (size_t i = 0; i < given.size(); ++i) given[i] = float(i * 7919 % 1013) - 506;
  evt::ComputeJob<Same, float, Sums> job{};
  job.operands = cute::make_tuple(Sums{given.data(), parts, columns});
  job.out = found.data();
  job.kept = job.out_stride_l = groups;
  job.batches = images;
  for (int64_t grid : {evt::finish_blocks(job), int64_t(1)}) {
    gridDim = dim3(unsigned(grid));
    run_job(job);
    for (int64_t i = 0; i < images * groups; ++i) {
      float wanted = 0;
      for (int64_t part = 0; part < parts; ++part)
        for (int64_t n = 0; n < Width; ++n)
          wanted += given[size_t((i / groups * parts + part) * columns + i % groups * Width + n)];
      expect(found[size_t(i)], wanted, "a group");
      found[size_t(i)] = NAN;
    }
  }
}

struct Chosen {
  using Parameters = cute::tuple<bool, int64_t, bool>;
  using Result = bool;
  static bool apply(bool mask, int64_t wide, bool all) { return mask && all && wide > (int64_t(1) << 40); }
};

// Truth values are bytes, true unless 0; i64 is passed on unchanged.
void test_kinds() {
  using Mask = evt::Given<uint8_t>;
  using Wide = evt::Given<int64_t>;
  uint8_t const mask[] = {0, 1, 255, 1};
  int64_t const wide[] = {int64_t(1) << 41, int64_t(1) << 41, int64_t(1) << 41, 1};
  evt::ComputeJob<Chosen, bool, Mask, Wide, Mask> job{};
  job.operands = cute::make_tuple(Mask{0, mask, 1, 0}, Wide{0, wide, 1, 0}, Mask{1, nullptr, 0, 0});
  bool const expected[] = {false, true, true, false};
  for (int m = 0; m < 4; ++m) {
    auto const found = by_warp([&] { return evt::detail::result_at(job, 0, m, evt::detail::ByLanes{0, m}); });
    expect(found, expected[m], "a truth value");
  }
}

void test_places() {
  int64_t keys[2][4];
  for (int part = 0; part < 2; ++part)
    for (int m = 0; m < 4; ++m) keys[part][m] = evt::key_of<false>(float(part * m % 2), 10 * part + m);
  evt::CombinedPlace<0> const places{{&keys[0][0], 2, 4}};
  int const expected[] = {0, 11, 2, 13};
  for (int m = 0; m < 4; ++m) {
    auto const found = by_warp([&] { return places.of(places.reduction().by_lanes(0, m, {})); });
    expect(found, expected[m], "a place");
  }
}

// Eight elements of one row.
struct Lanes : evt::epilogue::TypesCutlass {
  static constexpr int kSize = 8;
  struct At {};

  int row(At, int) const { return 3; }
  int column(At, int i) const { return 16 + i; }
};

template <class Keys, class T>
int place_of_largest(cutlass::Array<T, 8> const& values) {
  typename Keys::template On<Lanes> const keys({}, {});
  auto const found = keys.visit({}, values);
  int64_t best = evt::MaxKey::identity<int64_t>();
  for (int i = 0; i < 8; ++i) best = evt::MaxKey::apply(best, found[i]);
  return evt::place_of(best);
}

template <class T>
void test_keys() {
  using evt::epilogue::PlaceKeys;
  cutlass::Array<T, 8> values;
  for (int i = 0; i < 8; ++i) values[i] = T(i == 6 ? 1 : 0);
  expect(place_of_largest<PlaceKeys<1, false>>(values), 16 + 6, "the column of the largest");
  expect(place_of_largest<PlaceKeys<0, false>>(values), 3, "a row");
  values[0] = T(1);
  expect(place_of_largest<PlaceKeys<1, true>>(values), 16 + 1, "the column of the least");
}

// Copies of matrices [batch][row][column] with odd strides, between elements that nothing reads or writes.
template <class Element>
void test_rows(int64_t batches, int64_t rows, int64_t columns) {
  constexpr int kLine = 128 / sizeof(Element);
  int64_t const stride_row = columns + 3, stride_batch = rows * stride_row + 5, pitch = evt::pitch_of<kLine>(columns);
  std::vector<Element> given(size_t(batches * stride_batch + 1)), found(size_t(batches * rows * pitch + 1), Element(77));
  for (size_t i = 0; i < given.size(); ++i) given[i] = Element(i * 7919 % 1013);
  evt::RowsJob<Element> const job{given.data() + 1, found.data(), batches, rows, columns, stride_batch, stride_row, pitch};
  int64_t const blocks = evt::finish_blocks(job);
  for (int64_t grid : {blocks, (blocks + 1) / 2}) {
    std::fill(found.begin(), found.end(), Element(77));
    gridDim = dim3(unsigned(grid));
    run_job(job);
    for (int64_t batch = 0; batch < batches; ++batch)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column)
          expect(double(found[(batch * rows + row) * pitch + column]),
                 double(given[1 + batch * stride_batch + row * stride_row + column]), "a copied element");
    expect(double(found.back()), 77, "the element after the copy");
  }
}

int main() {
  test_rows<uint8_t>(2, 3, 1030);
  test_rows<uint16_t>(3, 5, 517);
  test_rows<uint16_t>(1, 19, 7);
  test_rows<uint32_t>(1, 2, 1);
  for (bool over_batch : {false, true}) {
    test_parts<evt::Sum>(37, 71, 3, over_batch);
    test_parts<evt::Max>(5, 33, 2, over_batch);
    test_parts<evt::Sum>(300, 1, 2, over_batch);
    test_parts<evt::Min>(1, 2, 1, over_batch);
  }
  for (int64_t parts : {9, 150}) {
    test_order<evt::Sum, float>(parts);
    test_order<evt::MergeMoments, evt::Moments<float>>(parts);
  }
  test_order_of_computed(150);
  test_together(700, 5, 2);
  test_together(40, 90, 1);
  test_together(3, 3000, 3);
  test_groups<4>(3, 19, 32);
  test_groups<10>(2, 7, 2);
  test_groups<5>(4, 3, 1);
  test_results();
  test_kinds();
  test_places();
  test_keys<float>();
  test_keys<cutlass::half_t>();
  test_keys<cutlass::float_e4m3_t>();
  test_keys<int32_t>();
  test_keys<int8_t>();
  test_keys<bool>();
  std::printf("%d failures\n", failures);
  return failures != 0;
}
