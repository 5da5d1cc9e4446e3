#ifndef EVT_FINISH_COMPUTE_HPP
#define EVT_FINISH_COMPUTE_HPP

// Functions of reductions, computed when the parts are combined: a job of finish.hpp's kernel. Each operand returns its
// value at a place [l, kept].

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"

#include "evt/convert.hpp"
#include "evt/finish.hpp"
#include "evt/reduce.hpp"

namespace evt {

/// A reduction's value, combined from its parts [l][part][kept]. If the result has fewer columns than the parts,
/// several columns hold each result, and the first is read. Distance of every Width columns have distinct results.
/// Merged: all Width columns are combined.
template <class Op, class Element, int Width = 1, int Distance = 1, bool Merged = false>
struct Combined {
  static constexpr int kColumns = Merged ? Width : 1;  // that are combined

  Element const* ptr;
  int64_t parts;  // parts per batch, or all parts if the reduction is over the batch
  int64_t kept;

  CUTLASS_DEVICE static int64_t column(int64_t kept) { return kept / Distance * Width + kept % Distance; }

  CUTLASS_DEVICE Element by_lanes(int64_t l, int64_t at, detail::FinishTeam team) const {
    Element const* const from = ptr + l * parts * kept + column(at);
    return team.template combine<Op, Element>(parts * kColumns, [&](int64_t i) { return part(from, i); });
  }

  /// Combine by a block: thread i combines parts i, i + 256... All lanes of the first warp get the result.
  CUTLASS_DEVICE Element by_block(int64_t l, int64_t at) const {
    constexpr int kWarps = kFinishThreads / 32;
    __shared__ Element of_warp[kWarps];
    Element const* const from = ptr + l * parts * kept + column(at);
    Element total = Op::template identity<Element>();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < parts * kColumns; i += kFinishThreads) total = Op::apply(total, part(from, i));
    total = reduce_over_lanes<Op, 32>(total);
    __syncthreads();  // of_warp has been read: operands of one type share it
    if (threadIdx.x % 32 == 0) {
      of_warp[threadIdx.x / 32] = total;
    }
    __syncthreads();
    return threadIdx.x < 32 ? reduce_over_lanes<Op, kWarps>(of_warp[threadIdx.x % kWarps]) : total;
  }

 private:
  CUTLASS_DEVICE Element part(Element const* from, int64_t i) const {
    return from[i / kColumns * kept + i % kColumns];
  }
};

/// Whether an operand merges columns: a place has many parts, which lie together.
template <class Operand>
inline constexpr bool kMerges = false;
template <class Op, class Element, int Width, int Distance>
inline constexpr bool kMerges<Combined<Op, Element, Width, Distance, true>> = true;

/// An input: a vector, one value per batch, or `value` if the pointer is null. A narrow float is given as f32, which every
/// launcher can write, and rounded here.
template <class Element>
struct Given {
  std::conditional_t<detail::is_narrow_float<Element>, float, Element> value;
  Element const* ptr;
  int64_t stride, stride_l;

  CUTLASS_DEVICE Element by_block(int64_t l, int64_t at) const {
    return ptr == nullptr ? convert<Element>(value) : ptr[l * stride_l + at * stride];
  }
  CUTLASS_DEVICE Element by_lanes(int64_t l, int64_t at, detail::FinishTeam) const { return by_block(l, at); }
};

/// The row or column of a place, or its batch.
template <bool OfBatch>
struct Place {
  CUTLASS_DEVICE int32_t by_block(int64_t l, int64_t at) const { return int32_t(OfBatch ? l : at); }
  CUTLASS_DEVICE int32_t by_lanes(int64_t l, int64_t at, detail::FinishTeam) const { return by_block(l, at); }
};

/// out[l * out_stride_l + kept] = Functor(operands at [l, kept]); over_batch: one for all l.
template <class Functor_, class Output_, class... Operands>
struct ComputeJob {
  using Functor = Functor_;
  using Output = Output_;

  cute::tuple<Operands...> operands;
  Output* out;
  int64_t kept, batches;
  int64_t out_stride_l;
  bool over_batch;
};

#if !defined(EVT_DEVICE_PASS)
template <class Functor, class Output, class... Operands>
inline int64_t finish_blocks(ComputeJob<Functor, Output, Operands...> const& job) {
  return detail::finish_blocks(job.kept, job.over_batch ? 1 : job.batches, (kMerges<Operands> || ...));
}
#endif

namespace detail {

/// The values of a place, by all threads of a block.
struct ByBlock {
  int64_t l, at;

  template <class Operand>
  CUTLASS_DEVICE auto operator()(Operand const& operand) const {
    return operand.by_block(l, at);
  }
};

/// The values of a place, by its lanes.
struct ByLanes {
  int64_t l, at;
  FinishTeam team;

  template <class Operand>
  CUTLASS_DEVICE auto operator()(Operand const& operand) const {
    return operand.by_lanes(l, at, team);
  }
};

template <class Job, class Get, int... I>
CUTLASS_DEVICE typename Job::Output compute(Job const& job, Get const& get, cute::seq<I...>) {
  using Functor = typename Job::Functor;
  using Parameters = typename Functor::Parameters;
  return convert<typename Job::Output>(
      Functor::apply(convert<cute::tuple_element_t<I, Parameters>>(get(cute::get<I>(job.operands)))...));
}

}  // namespace detail

/// Called by all threads of the blocks with this blockIdx.y. Each place has lanes of a warp or of a block, or a block: of
/// a batch with one place, and of merged columns if there are enough blocks. in_one_order: lanes of a block.
template <class Functor, class Output, class... Operands>
CUTLASS_DEVICE void finish(ComputeJob<Functor, Output, Operands...> const& job, bool in_one_order = false) {
  cute::make_seq<sizeof...(Operands)> const all{};
  int64_t const batches = job.over_batch ? 1 : job.batches;
  int64_t const places = job.kept * batches;
  if (!in_one_order && (job.kept == 1 || ((kMerges<Operands> || ...) && places <= int64_t(gridDim.x)))) {
    for (int64_t place = blockIdx.x; place < places; place += gridDim.x) {
      int64_t const l = place / job.kept, at = place % job.kept;
      Output const result = detail::compute(job, detail::ByBlock{l, at}, all);
      if (threadIdx.x == 0) {
        job.out[l * job.out_stride_l + at] = result;
      }
    }
  } else {
    auto const store = [&](int64_t l, int64_t at, detail::FinishTeam team, bool writes) {
      Output const result = detail::compute(job, detail::ByLanes{l, at, team}, all);
      if (writes) job.out[l * job.out_stride_l + at] = result;
    };
    detail::for_each_place(job.kept, batches, in_one_order, store);
  }
}

}  // namespace evt

#endif  // EVT_FINISH_COMPUTE_HPP
