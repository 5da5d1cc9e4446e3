#ifndef EVT_MAINLOOP_2X_HPP
#define EVT_MAINLOOP_2X_HPP

// Fused operand transforms in the stock main loops of CUTLASS 2.x. A formula of the elements of A or B is computed in
// registers, between shared memory and the tensor cores.
//
// The pipelines are unchanged. Two iterators are wrapped. The iterator over a warp's tile in shared memory applies the
// formula to its fragments. The iterator over global memory carries the formula's inputs from the kernel's parameters.
// Elements outside of the operand (padding, and the end of a tile along k) are zeros in shared memory, and stay zero
// for every formula.
//
// The registers of an mma instruction, for operands of every width. Register r of a lane has row lane / 4 + 8 * (r % 2)
// of A, or column lane / 4 of B. It has kPacked neighbouring k from kPacked * (lane % 4) on; the second half of the
// registers begins 4 * kPacked later.

#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/arch/mma.h"
#include "cutlass/array.h"
#include "cutlass/gemm_coord.h"
#include "cutlass/matrix_coord.h"
#include "cutlass/numeric_types.h"
#include "cutlass/conv/conv2d_problem_size.h"
#include "cutlass/conv/threadblock/implicit_gemm_multistage.h"
#include "cutlass/conv/threadblock/implicit_gemm_pipelined.h"
#include "cutlass/gemm/threadblock/mma_multistage.h"
#include "cutlass/gemm/threadblock/mma_pipelined.h"
#include "cute/tensor.hpp"

#include "evt/convert.hpp"

namespace evt {
namespace mainloop {

// A formula's inputs besides the operand.

/// One value per k.
template <class Element_>
struct AlongK {
  using Element = Element_;
  Element const* pointer = nullptr;
};

/// One value per row of A, or per column of B.
template <class Element_>
struct AlongOuter {
  using Element = Element_;
  Element const* pointer = nullptr;
};

/// One value, from device memory if the pointer is not null.
template <class Element_>
struct Single {
  using Element = Element_;
  Element value{};
  Element const* pointer = nullptr;
};

/// A formula and its inputs. Functor::apply takes the operand's element and one value per input.
template <class Functor_, class... Inputs>
struct Work {
  using Functor = Functor_;
  cute::tuple<Inputs...> inputs;
};

namespace detail {

// A thread's values of an input: its outer places (rows of A, columns of B) times its places along k.
template <class Input, class Compute, int kOuter, int kDepth>
struct Held;

template <class Element, class Compute, int kOuter, int kDepth>
struct Held<AlongK<Element>, Compute, kOuter, kDepth> {
  Compute values[kDepth];

  template <class Outer>
  CUTLASS_DEVICE void begin(AlongK<Element> const&, Outer const&, int) {}

  template <class Depth>
  CUTLASS_DEVICE void step(AlongK<Element> const& input, Depth const& k, int bound) {
    CUTLASS_PRAGMA_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      values[d] = k(d) < bound ? convert<Compute>(input.pointer[k(d)]) : Compute(0);
    }
  }

  CUTLASS_DEVICE Compute operator()(int, int d) const { return values[d]; }
};

template <class Element, class Compute, int kOuter, int kDepth>
struct Held<AlongOuter<Element>, Compute, kOuter, kDepth> {
  Compute values[kOuter];

  template <class Outer>
  CUTLASS_DEVICE void begin(AlongOuter<Element> const& input, Outer const& outer, int extent) {
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < kOuter; ++o) {
      values[o] = outer(o) < extent ? convert<Compute>(input.pointer[outer(o)]) : Compute(0);
    }
  }

  template <class Depth>
  CUTLASS_DEVICE void step(AlongOuter<Element> const&, Depth const&, int) {}

  CUTLASS_DEVICE Compute operator()(int o, int) const { return values[o]; }
};

template <class Element, class Compute, int kOuter, int kDepth>
struct Held<Single<Element>, Compute, kOuter, kDepth> {
  Compute value;

  template <class Outer>
  CUTLASS_DEVICE void begin(Single<Element> const& input, Outer const&, int) {
    value = convert<Compute>(input.pointer ? *input.pointer : input.value);
  }

  template <class Depth>
  CUTLASS_DEVICE void step(Single<Element> const&, Depth const&, int) {}

  CUTLASS_DEVICE Compute operator()(int, int) const { return value; }
};

template <class Work, int kOuter, int kDepth>
struct HeldInputs;

template <class Functor, class... Inputs, int kOuter, int kDepth>
struct HeldInputs<Work<Functor, Inputs...>, kOuter, kDepth> {
  using Parameters = typename Functor::Parameters;
  using Indices = cute::make_index_sequence<sizeof...(Inputs)>;
  using Compute = cute::remove_cvref_t<decltype(cute::get<0>(Parameters{}))>;

  template <class Sequence>
  struct Values;

  template <std::size_t... I>
  struct Values<cute::index_sequence<I...>> {
    using Type = cute::tuple<
        Held<Inputs, cute::remove_cvref_t<decltype(cute::get<I + 1>(Parameters{}))>, kOuter, kDepth>...>;
  };

  typename Values<Indices>::Type values;

  template <class Outer>
  CUTLASS_DEVICE void begin(cute::tuple<Inputs...> const& inputs, Outer const& outer, int extent) {
    begin(inputs, outer, extent, Indices{});
  }

  template <class Depth>
  CUTLASS_DEVICE void step(cute::tuple<Inputs...> const& inputs, Depth const& k, int bound) {
    step(inputs, k, bound, Indices{});
  }

  CUTLASS_DEVICE auto operator()(Compute x, int o, int d) const { return apply(x, o, d, Indices{}); }

 private:
  template <class Outer, std::size_t... I>
  CUTLASS_DEVICE void begin(cute::tuple<Inputs...> const& inputs, [[maybe_unused]] Outer const& outer,
                            [[maybe_unused]] int extent, cute::index_sequence<I...>) {
    (cute::get<I>(values).begin(cute::get<I>(inputs), outer, extent), ...);
  }

  template <class Depth, std::size_t... I>
  CUTLASS_DEVICE void step(cute::tuple<Inputs...> const& inputs, [[maybe_unused]] Depth const& k,
                           [[maybe_unused]] int bound, cute::index_sequence<I...>) {
    (cute::get<I>(values).step(cute::get<I>(inputs), k, bound), ...);
  }

  template <std::size_t... I>
  CUTLASS_DEVICE auto apply(Compute x, [[maybe_unused]] int o, [[maybe_unused]] int d,
                            cute::index_sequence<I...>) const {
    return Functor::apply(x, cute::get<I>(values)(o, d)...);
  }
};

}  // namespace detail

// The positions of the main loop's tiles in the operand. next() moves to the first tile, then to each later one. k() is
// the tile's first k. Elements at or beyond bound() along k are outside, and so are outer places without their bit in
// inside().

/// Tiles of a matrix. The first tile has the remainder of the extent, at most kTile.
template <int kTile>
struct MatrixWalk {
  static constexpr bool kHasEdges = false;
  int extent = 0;        // of k
  int outer = 0;         // the first outer place of the thread block, and the extent of outer places
  int outer_extent = 0;
  int bound_ = 0;

  MatrixWalk() = default;

  CUTLASS_DEVICE MatrixWalk(int extent, int outer, int outer_extent)
      : extent(extent), outer(outer), outer_extent(outer_extent), bound_((extent - 1) % kTile + 1 - kTile) {}

  template <class Outer>
  CUTLASS_DEVICE void begin(Outer const&) {}

  CUTLASS_DEVICE void next() { bound_ += kTile; }

  CUTLASS_DEVICE int k() const { return bound_ > kTile ? bound_ - kTile : 0; }
  CUTLASS_DEVICE int bound() const { return bound_ < extent ? bound_ : extent; }
  CUTLASS_DEVICE uint32_t inside(int) const { return ~0u; }
};

/// Tiles of the activation of a two-dimensional fprop: along the filter's columns, then its rows, then the channels,
/// which are k. The outer places are output pixels. A pixel is outside if the tap reads padding.
template <int kTile, int kOuter, bool kPadded>
struct ActivationWalk {
  static constexpr bool kHasEdges = kPadded;
  cutlass::conv::Conv2dProblemSize const* problem = nullptr;
  int outer = 0;
  int outer_extent = 0;
  int row = 0, column = -1;  // of the filter
  int channel = 0;
  int heights[kPadded ? kOuter : 1];  // of the first tap of each output pixel, in the activation
  int widths[kPadded ? kOuter : 1];
  uint32_t masks[kPadded ? kOuter : 1];

  ActivationWalk() = default;

  CUTLASS_DEVICE ActivationWalk(cutlass::conv::Conv2dProblemSize const& problem, int outer)
      : problem(&problem), outer(outer), outer_extent(problem.N * problem.P * problem.Q) {}

  template <class Outer>
  CUTLASS_DEVICE void begin(Outer const& pixel) {
    if constexpr (kPadded) {
      CUTLASS_PRAGMA_UNROLL
      for (int o = 0; o < kOuter; ++o) {
        int const in_image = pixel(o) % (problem->P * problem->Q);
        heights[o] = in_image / problem->Q * problem->stride_h - problem->pad_h;
        widths[o] = in_image % problem->Q * problem->stride_w - problem->pad_w;
      }
    }
  }

  CUTLASS_DEVICE void next() {
    if (++column == problem->S) {
      column = 0;
      if (++row == problem->R) {
        row = 0;
        channel += kTile;
      }
    }
    if constexpr (kPadded) {
      int const down = row * problem->dilation_h, right = column * problem->dilation_w;
      CUTLASS_PRAGMA_UNROLL
      for (int o = 0; o < kOuter; ++o) {
        bool const is_inside = unsigned(heights[o] + down) < unsigned(problem->H) &&
                               unsigned(widths[o] + right) < unsigned(problem->W);
        masks[o] = is_inside ? ~0u : 0u;
      }
    }
  }

  CUTLASS_DEVICE int k() const { return channel; }
  CUTLASS_DEVICE int bound() const { return problem->C; }
  CUTLASS_DEVICE uint32_t inside(int o) const { return kPadded ? masks[kPadded ? o : 0] : ~0u; }
};

/// The iterator over a warp's tiles in shared memory, which applies the formula. `Instruction` is the mma's GemmShape.
template <class Tiles, class Instruction, class Work, class Walk_, bool kIsA>
struct WorkedTiles : Tiles {
  using Walk = Walk_;
  using Fragment = typename Tiles::Fragment;
  using Element = typename Tiles::Element;
  static constexpr int kPacked = 4 / int(sizeof(Element));                  // elements of a register
  static constexpr int kGroup = Instruction::kK;                            // the k of a fragment
  static constexpr int kHalves = kGroup / (4 * kPacked);                    // registers along k
  static constexpr int kOuter = Fragment::kElements / (kHalves * kPacked);  // rows of A or columns of B
  static constexpr int kDepth = kHalves * kPacked;
  static_assert(sizeof(Element) <= 4 && kHalves >= 1 && kHalves <= 2, "operands of m16n8 instructions");
  static_assert(Instruction::kM == 16 && Instruction::kN == 8, "operands of m16n8 instructions");

  WorkedTiles() = default;
  CUTLASS_DEVICE WorkedTiles(typename Tiles::TensorRef const& tile, int lane) : Tiles(tile, lane), lane_(lane) {}

  /// Before the first load: set the formula, the walk, and the warp's offset in the thread block's tile.
  CUTLASS_DEVICE void begin(Work const& work, Walk const& walk, int warp_offset) {
    work_ = &work;
    walk_ = walk;
    int const first = walk.outer + warp_offset + lane_ / 4;
    auto const place = [&](int o) { return first + 8 * o; };
    walk_.begin(place);
    held_.begin(work.inputs, place, walk.outer_extent);
  }

  CUTLASS_DEVICE WorkedTiles& operator++() {
    Tiles::operator++();
    return *this;
  }

  /// Set the k-group of the next load within its tile. The main loops call this before each load.
  CUTLASS_DEVICE void set_kgroup_index(int group) {
    Tiles::set_kgroup_index(group);
    group_ = group;
    if (group == 0) walk_.next();
  }

  CUTLASS_DEVICE void load(Fragment& fragment) {
    Tiles::load(fragment);
    int const first = walk_.k() + group_ * kGroup + lane_ % 4 * kPacked;
    auto const k = [&](int d) { return first + d / kPacked * (4 * kPacked) + d % kPacked; };
    int const bound = walk_.bound();
    held_.step(work_->inputs, k, bound);
    uint32_t masks[kHalves];
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      masks[half] = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kPacked; ++e) {
        uint32_t const bits = kPacked == 1 ? ~0u : ((1u << 8 * sizeof(Element) % 32) - 1) << 8 * sizeof(Element) * e;
        masks[half] |= k(half * kPacked + e) < bound ? bits : 0u;
      }
    }
    using Packed = cutlass::Array<Element, kPacked>;
    using Compute = typename Held::Compute;
    using Result = typename Work::Functor::Result;
    Packed* registers = reinterpret_cast<Packed*>(&fragment);
    uint32_t* bits = reinterpret_cast<uint32_t*>(&fragment);
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < kOuter; ++o) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        int const r = kIsA ? o / 2 * (2 * kHalves) + half * 2 + o % 2 : o * kHalves + half;
        auto const x = convert_array<Compute>(registers[r]);
        auto const y = generate_array<Result, kPacked>([&](int e) { return held_(x[e], o, half * kPacked + e); });
        registers[r] = convert_array<Element>(y);
        bits[r] &= masks[half] & walk_.inside(o);
      }
    }
  }

 private:
  using Held = detail::HeldInputs<Work, kOuter, kDepth>;
  Work const* work_ = nullptr;
  Walk walk_;
  Held held_;
  int lane_ = 0;
  int group_ = 0;
};

/// An iterator over an operand in global memory that carries the operand's formula and the walk over its tiles.
template <class Loads, class Work_, bool kIsA, bool kPadded>
struct WorkedLoads : Loads {
  using Work = Work_;

  struct Params : Loads::Params {
    using Loads::Params::Params;
    CUTLASS_HOST_DEVICE Params(typename Loads::Params const& stock) : Loads::Params(stock) {}
    Params() = default;
    Work work;
  };

  /// For a matrix.
  template <class Pointer>
  CUTLASS_DEVICE WorkedLoads(Params const& params, Pointer pointer, cutlass::MatrixCoord const& extent, int thread,
                             cutlass::MatrixCoord const& offset, int const* indices = nullptr)
      : Loads(params, pointer, extent, thread, offset, indices),
        work_(&params.work),
        extent_(kIsA ? extent.column() : extent.row()),
        outer_(kIsA ? offset.row() : offset.column()),
        outer_extent_(kIsA ? extent.row() : extent.column()) {}

  /// For a convolution.
  template <class Pointer>
  CUTLASS_DEVICE WorkedLoads(Params const& params, cutlass::conv::Conv2dProblemSize const& problem, Pointer pointer,
                             int thread, cutlass::MatrixCoord const& offset)
      : Loads(params, problem, pointer, thread, offset),
        work_(&params.work),
        problem_(&problem),
        outer_(offset.row()) {}

  CUTLASS_HOST_DEVICE static Params getParams(cutlass::conv::Conv2dProblemSize const& problem,
                                              typename Loads::Layout const& layout) {
    return Params(Loads::getParams(problem, layout));
  }

  template <class Tiles>
  CUTLASS_DEVICE void begin(Tiles& tiles, int warp_offset) const {
    using Walk = typename Tiles::Walk;
    if constexpr (cute::is_constructible_v<Walk, int, int, int>) {
      tiles.begin(*work_, Walk(extent_, outer_, outer_extent_), warp_offset);
    } else {
      tiles.begin(*work_, Walk(*problem_, outer_), warp_offset);
    }
  }

 private:
  Work const* work_;
  cutlass::conv::Conv2dProblemSize const* problem_ = nullptr;
  int extent_ = 0, outer_ = 0, outer_extent_ = 0;
};

/// A placeholder for the work on an operand without a formula.
struct None {};

namespace detail {

// A warp's multiplication with another iterator for A and B.
template <class Operator, class TilesA, class TilesB>
struct WorkedOperator : Operator {
  using IteratorA = TilesA;
  using IteratorB = TilesB;
};

template <class Policy, class Operator_>
struct WorkedPolicy : Policy {
  using Operator = Operator_;
};

// A stock main loop with other iterators and another policy.
template <class Mma, class LoadsA, class LoadsB, class Policy>
struct Rebuilt;

template <class Shape, class A, class SmemA, cutlass::arch::CacheOperation::Kind kCacheA, class B, class SmemB,
          cutlass::arch::CacheOperation::Kind kCacheB, class C, class LayoutC, class P, int kStages,
          cutlass::gemm::SharedMemoryClearOption kClear, class LoadsA, class LoadsB, class Policy>
struct Rebuilt<cutlass::gemm::threadblock::MmaMultistage<Shape, A, SmemA, kCacheA, B, SmemB, kCacheB, C, LayoutC, P,
                                                         kStages, kClear>,
               LoadsA, LoadsB, Policy> {
  using Type = cutlass::gemm::threadblock::MmaMultistage<Shape, LoadsA, SmemA, kCacheA, LoadsB, SmemB, kCacheB, C,
                                                         LayoutC, Policy, kStages, kClear>;
  static constexpr bool kIsMatrix = true;
};

template <class Shape, class A, class SmemA, class B, class SmemB, class C, class LayoutC, class P, class TransformA,
          class TransformB, class LoadsA, class LoadsB, class Policy>
struct Rebuilt<cutlass::gemm::threadblock::MmaPipelined<Shape, A, SmemA, B, SmemB, C, LayoutC, P, TransformA,
                                                        TransformB>,
               LoadsA, LoadsB, Policy> {
  using Type = cutlass::gemm::threadblock::MmaPipelined<Shape, LoadsA, SmemA, LoadsB, SmemB, C, LayoutC, Policy,
                                                        TransformA, TransformB>;
  static constexpr bool kIsMatrix = true;
};

template <class Shape, class A, class SmemA, cutlass::arch::CacheOperation::Kind kCacheA, class B, class SmemB,
          cutlass::arch::CacheOperation::Kind kCacheB, class P, int kStages, class LoadsA, class LoadsB, class Policy>
struct Rebuilt<
    cutlass::conv::threadblock::ImplicitGemmMultistage<Shape, A, SmemA, kCacheA, B, SmemB, kCacheB, P, kStages>,
    LoadsA, LoadsB, Policy> {
  using Type = cutlass::conv::threadblock::ImplicitGemmMultistage<Shape, LoadsA, SmemA, kCacheA, LoadsB, SmemB,
                                                                  kCacheB, Policy, kStages>;
  static constexpr bool kIsMatrix = false;
};

template <class Shape, class A, class SmemA, class B, class SmemB, class C, class LayoutC, class P, class TransformA,
          class TransformB, class LoadsA, class LoadsB, class Policy>
struct Rebuilt<cutlass::conv::threadblock::ImplicitGemmPipelined<Shape, A, SmemA, B, SmemB, C, LayoutC, P, TransformA,
                                                                 TransformB>,
               LoadsA, LoadsB, Policy> {
  using Type = cutlass::conv::threadblock::ImplicitGemmPipelined<Shape, LoadsA, SmemA, LoadsB, SmemB, C, LayoutC,
                                                                 Policy, TransformA, TransformB>;
  static constexpr bool kIsMatrix = false;
};

template <class Loads, class Work, bool kIsA, bool kPadded>
using LoadsOf = cute::conditional_t<cute::is_same_v<Work, None>, Loads, WorkedLoads<Loads, Work, kIsA, kPadded>>;

// The iterator over a warp's tiles of an operand, with its formula.
template <class Tiles, class Instruction, class Work, bool kIsA, bool kIsMatrix, int kTile, bool kPadded>
struct TilesOf {
  static constexpr int kOuter = Tiles::Fragment::kElements * 4 / Instruction::kK;
  using Walk = cute::conditional_t<kIsMatrix, MatrixWalk<kTile>, ActivationWalk<kTile, kOuter, kPadded>>;
  using Type = WorkedTiles<Tiles, Instruction, Work, Walk, kIsA>;
};

template <class Tiles, class Instruction, bool kIsA, bool kIsMatrix, int kTile, bool kPadded>
struct TilesOf<Tiles, Instruction, None, kIsA, kIsMatrix, kTile, kPadded> {
  using Type = Tiles;
};

template <class Mma, class WorkA, class WorkB, bool kPadded>
struct WorkedParts {
  using Operator = typename Mma::Policy::Operator;
  using Instruction = typename Operator::ArchMmaOperator::Shape;
  using LoadsA = LoadsOf<typename Mma::IteratorA, WorkA, true, kPadded>;
  using LoadsB = LoadsOf<typename Mma::IteratorB, WorkB, false, kPadded>;
  static constexpr bool kIsMatrix =
      Rebuilt<Mma, LoadsA, LoadsB, typename Mma::Policy>::kIsMatrix;
  static constexpr int kTile = Mma::Shape::kK;
  using TilesA =
      typename TilesOf<typename Operator::IteratorA, Instruction, WorkA, true, kIsMatrix, kTile, kPadded>::Type;
  using TilesB =
      typename TilesOf<typename Operator::IteratorB, Instruction, WorkB, false, kIsMatrix, kTile, kPadded>::Type;
  using Policy = WorkedPolicy<typename Mma::Policy, WorkedOperator<Operator, TilesA, TilesB>>;
  using Type = typename Rebuilt<Mma, LoadsA, LoadsB, Policy>::Type;
};

}  // namespace detail

/// A stock main loop with formulas on A, on B or on both. `kPadded`: the activation of a convolution has padding.
template <class Mma, class WorkA, class WorkB = None, bool kPadded = false>
struct Worked : detail::WorkedParts<Mma, WorkA, WorkB, kPadded>::Type {
  using Base = typename detail::WorkedParts<Mma, WorkA, WorkB, kPadded>::Type;
  using Tile = typename Base::Operator::Shape;
  using Warps = typename Base::WarpCount;
  static_assert(Warps::kK == 1, "every warp multiplies all of k");

  CUTLASS_DEVICE Worked(typename Base::SharedStorage& storage, int thread, int warp, int lane)
      : Base(storage, thread, warp, lane), warp_(warp) {}

  template <class... Rest>
  CUTLASS_DEVICE void operator()(int iterations, typename Base::FragmentC& accumulators,
                                 typename Base::IteratorA loads_a, typename Base::IteratorB loads_b,
                                 typename Base::FragmentC const& initial, Rest... rest) {
    if constexpr (!cute::is_same_v<WorkA, None>) {
      loads_a.begin(this->warp_tile_iterator_A_, warp_ % Warps::kM * Tile::kM);
    }
    if constexpr (!cute::is_same_v<WorkB, None>) {
      loads_b.begin(this->warp_tile_iterator_B_, warp_ / Warps::kM * Tile::kN);
    }
    Base::operator()(iterations, accumulators, loads_a, loads_b, initial, rest...);
  }

 private:
  int warp_;
};

namespace detail {

template <class Loads, class = void>
struct WorkOf {
  using Type = None;
};

template <class Loads>
struct WorkOf<Loads, cute::void_t<typename Loads::Work>> {
  using Type = typename Loads::Work;
};

// The parameters of an operand's iterator, of a matrix kernel or of a convolution kernel.
template <class Params>
auto loads_a(Params& params, int) -> decltype((params.params_A)) {
  return params.params_A;
}
template <class Params>
auto loads_a(Params& params, long) -> decltype((params.iterator_A)) {
  return params.iterator_A;
}
template <class Params>
auto loads_b(Params& params, int) -> decltype((params.params_B)) {
  return params.params_B;
}
template <class Params>
auto loads_b(Params& params, long) -> decltype((params.iterator_B)) {
  return params.iterator_B;
}

}  // namespace detail

/// A kernel over a main loop with formulas, whose arguments include the formulas' inputs.
template <class Kernel_>
struct WithWork : Kernel_ {
  using WorkA = typename detail::WorkOf<typename Kernel_::Mma::IteratorA>::Type;
  using WorkB = typename detail::WorkOf<typename Kernel_::Mma::IteratorB>::Type;

  struct Arguments : Kernel_::Arguments {
    WorkA work_a;
    WorkB work_b;
  };

  struct Params : Kernel_::Params {
    Params() = default;

    template <class... Rest>
    explicit Params(Arguments const& arguments, Rest... rest) : Kernel_::Params(arguments, rest...) {
      if constexpr (!cute::is_same_v<WorkA, None>) detail::loads_a(*this, 0).work = arguments.work_a;
      if constexpr (!cute::is_same_v<WorkB, None>) detail::loads_b(*this, 0).work = arguments.work_b;
    }
  };
};

}  // namespace mainloop
}  // namespace evt

#endif  // EVT_MAINLOOP_2X_HPP
