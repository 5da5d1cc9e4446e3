#ifndef EVT_FINISH_COMPUTE_HPP
#define EVT_FINISH_COMPUTE_HPP

// Functions of reductions, computed when the parts are combined: a job of finish.hpp's kernel. An operand has a value at
// each place [l, kept]: `of(total)` of its `reduction`, or `value_at(l, kept)` if it reads none. Jobs that read the
// parts of one reduction combine them once.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"

#include "evt/convert.hpp"
#include "evt/finish.hpp"
#include "evt/reduce.hpp"

namespace evt {

/// The value of reduction `Number`, combined from its parts [l][part][kept]. If the result has fewer columns than the parts,
/// several columns hold each result, and the first is read. Distance of every Width columns have distinct results.
/// Merged: all Width columns are combined.
template <int Number, class Op, class Element, int Width = 1, int Distance = 1, bool Merged = false>
struct Combined {
  static constexpr int kColumns = Merged ? Width : 1;  // that are combined
  using Total = Element;
  using Reduction = Combined;

  Element const* ptr;
  int64_t parts;  // parts per batch, or all parts if the reduction is over the batch
  int64_t kept;

  CUTLASS_DEVICE static int64_t column(int64_t kept) { return kept / Distance * Width + kept % Distance; }

  CUTLASS_DEVICE Combined const& reduction() const { return *this; }
  CUTLASS_DEVICE static Element of(Element total) { return total; }

  CUTLASS_DEVICE Element by_lanes(int64_t l, int64_t at, detail::FinishTeam team) const {
    Element const* const from = ptr + l * parts * kept + column(at);
    return team.template combine<Op, Element>(count(), [&](int64_t i) { return part(from, i); });
  }

  /// Combine by a block: thread i combines parts i, i + 256... All lanes of the first warp get the result.
  CUTLASS_DEVICE Element by_block(int64_t l, int64_t at) const {
    constexpr int kWarps = kFinishThreads / 32;
    __shared__ Element of_warp[kWarps];
    Element const* const from = ptr + l * parts * kept + column(at);
    auto const read = [&](int64_t i) { return part(from, i); };
    Element total = detail::combine_steps<Op, Element>(threadIdx.x, kFinishThreads, count(), read);
    total = reduce_over_lanes<Op, 32>(total);
    __syncthreads();  // of_warp has been read: operands of one type share it
    if (threadIdx.x % 32 == 0) {
      of_warp[threadIdx.x / 32] = total;
    }
    __syncthreads();
    return threadIdx.x < 32 ? reduce_over_lanes<Op, kWarps>(of_warp[threadIdx.x % kWarps]) : total;
  }

  CUTLASS_DEVICE int64_t count() const { return parts * kColumns; }

 private:
  CUTLASS_DEVICE Element part(Element const* from, int64_t i) const {
    return from[i / kColumns * kept + i % kColumns];
  }
};

/// Whether an operand merges columns: a place has many parts, which lie together.
template <class Operand>
inline constexpr bool kMerges = false;
template <int Number, class Op, class Element, int Width, int Distance>
inline constexpr bool kMerges<Combined<Number, Op, Element, Width, Distance, true>> = true;

/// An input: a vector, one value per batch, or `value` if the pointer is null. A narrow float is given as f32, which every
/// launcher can write, and rounded here.
template <class Element>
struct Given {
  using Reduction = void;

  std::conditional_t<detail::is_narrow_float<Element>, float, Element> value;
  Element const* ptr;
  int64_t stride, stride_l;

  CUTLASS_DEVICE Element value_at(int64_t l, int64_t at) const {
    return ptr == nullptr ? convert<Element>(value) : ptr[l * stride_l + at * stride];
  }
};

/// The row or column of a place, or its batch.
template <bool OfBatch>
struct Place {
  using Reduction = void;

  CUTLASS_DEVICE int32_t value_at(int64_t l, int64_t at) const { return int32_t(OfBatch ? l : at); }
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

  CUTLASS_HOST_DEVICE int64_t result_batches() const { return over_batch ? 1 : batches; }
};

#if !defined(EVT_DEVICE_PASS)
template <class Functor, class Output, class... Operands>
inline int64_t finish_blocks(ComputeJob<Functor, Output, Operands...> const& job) {
  return detail::finish_blocks(job.kept, job.result_batches(), (kMerges<Operands> || ...));
}
#endif

template <class Functor, class Output, class... Operands>
struct SharedReduction<ComputeJob<Functor, Output, Operands...>> {
  using type = typename detail::OneType<typename Operands::Reduction...>::type;
};

namespace detail {

/// The total of a reduction at a place, by all threads of a block.
struct ByBlock {
  int64_t l, at;

  template <class Reduction>
  CUTLASS_DEVICE auto operator()(Reduction const& reduction) const {
    return reduction.by_block(l, at);
  }
};

/// The total of a reduction at a place, by its lanes.
struct ByLanes {
  int64_t l, at;
  FinishTeam team;

  template <class Reduction>
  CUTLASS_DEVICE auto operator()(Reduction const& reduction) const {
    return reduction.by_lanes(l, at, team);
  }
};

/// The total of the one reduction of some jobs.
template <class Total>
struct Known {
  Total total;

  template <class Reduction>
  CUTLASS_DEVICE Total operator()(Reduction const&) const {
    return total;
  }
};

/// The values of operands at a place. `combine` returns the total of a reduction.
template <class Combine>
struct Values {
  int64_t l, at;
  Combine const& combine;

  template <class Operand>
  CUTLASS_DEVICE auto operator()(Operand const& operand) const {
    if constexpr (std::is_void_v<typename Operand::Reduction>) {
      return operand.value_at(l, at);
    } else {
      return operand.of(combine(operand.reduction()));
    }
  }
};

template <class Job, class Combine, int... I>
CUTLASS_DEVICE typename Job::Output compute(Job const& job, Values<Combine> const& values, cute::seq<I...>) {
  using Functor = typename Job::Functor;
  using Parameters = typename Functor::Parameters;
  return convert<typename Job::Output>(
      Functor::apply(convert<cute::tuple_element_t<I, Parameters>>(values(cute::get<I>(job.operands)))...));
}

/// The result of a job at a place.
template <class Functor, class Output, class... Operands, class Combine>
CUTLASS_DEVICE Output result_at(
    ComputeJob<Functor, Output, Operands...> const& job, int64_t l, int64_t at, Combine const& combine) {
  return compute(job, Values<Combine>{l, at, combine}, cute::make_seq<sizeof...(Operands)>{});
}

/// The reduction that an operand reads, if any.
template <class Reduction, class Operand>
CUTLASS_DEVICE void find(Operand const& operand, Reduction& reduction) {
  if constexpr (!std::is_void_v<typename Operand::Reduction>) reduction = operand.reduction();
}

template <class Reduction, class Job, int... I>
CUTLASS_DEVICE void find_in(Job const& job, Reduction& reduction, cute::seq<I...>) {
  (find(cute::get<I>(job.operands), reduction), ...);
}

template <class Reduction, class Functor, class Output, class... Operands>
CUTLASS_DEVICE void find(ComputeJob<Functor, Output, Operands...> const& job, Reduction& reduction) {
  find_in(job, reduction, cute::make_seq<sizeof...(Operands)>{});
}

template <class... Jobs, int... I>
CUTLASS_DEVICE void store(
    cute::tuple<typename Jobs::Output...> const& results, int64_t l, int64_t at, cute::seq<I...>, Jobs const&... jobs) {
  ((jobs.out[l * jobs.out_stride_l + at] = cute::get<I>(results)), ...);
}

}  // namespace detail

template <class Reduction, class... Jobs>
CUTLASS_DEVICE void finish_together(Jobs const&... jobs) {
  Reduction reduction;
  int64_t kept, batches;
  ((kept = jobs.kept, batches = jobs.result_batches(), detail::find(jobs, reduction)), ...);
  detail::FinishBlock const block{int64_t(blockIdx.y) * gridDim.x + blockIdx.x, int64_t(gridDim.x) * gridDim.y};
  auto const store = [&](int64_t l, int64_t at, typename Reduction::Total total, bool writes) {
    detail::Known<typename Reduction::Total> const combine{total};
    cute::tuple<typename Jobs::Output...> const results{detail::result_at(jobs, l, at, combine)...};  // before stores
    if (writes) detail::store(results, l, at, cute::make_seq<sizeof...(Jobs)>{}, jobs...);
  };
  if (int64_t const places = kept * batches; places <= block.count && reduction.count() > kFinishThreads) {
    for (int64_t place = block.number; place < places; place += block.count) {
      int64_t const l = place / kept, at = place % kept;
      store(l, at, reduction.by_block(l, at), threadIdx.x == 0);
    }
  } else {
    detail::for_each_place(block, kept, batches, false, [&](int64_t l, int64_t at, detail::FinishTeam team, bool writes) {
      store(l, at, reduction.by_lanes(l, at, team), writes);
    });
  }
}

/// Called by all threads of the blocks with this blockIdx.y. Each place has lanes of a warp or of a block, or a block: of
/// a batch with one place, and of merged columns if there are enough blocks. in_one_order: lanes of a block.
template <class Functor, class Output, class... Operands>
CUTLASS_DEVICE void finish(ComputeJob<Functor, Output, Operands...> const& job, bool in_one_order = false) {
  int64_t const batches = job.result_batches(), places = job.kept * batches;
  if (!in_one_order && (job.kept == 1 || ((kMerges<Operands> || ...) && places <= int64_t(gridDim.x)))) {
    for (int64_t place = blockIdx.x; place < places; place += gridDim.x) {
      int64_t const l = place / job.kept, at = place % job.kept;
      Output const result = detail::result_at(job, l, at, detail::ByBlock{l, at});
      if (threadIdx.x == 0) {
        job.out[l * job.out_stride_l + at] = result;
      }
    }
  } else {
    auto const store = [&](int64_t l, int64_t at, detail::FinishTeam team, bool writes) {
      Output const result = detail::result_at(job, l, at, detail::ByLanes{l, at, team});
      if (writes) job.out[l * job.out_stride_l + at] = result;
    };
    detail::for_each_place({blockIdx.x, gridDim.x}, job.kept, batches, in_one_order, store);
  }
}

}  // namespace evt

#endif  // EVT_FINISH_COMPUTE_HPP
