#ifndef EVT_FINISH_HPP
#define EVT_FINISH_HPP

// Combine the partial results of reductions, and initialize the memory of atomic reductions: device functions for one
// kernel each. The blocks (*, job) process one job. Blocks have kFinishThreads threads.

#include <cstdint>
#include <type_traits>

#include "cutlass/cutlass.h"

#include "evt/convert.hpp"
#include "evt/reduce.hpp"

namespace evt {

constexpr int kFinishThreads = 256;
/// The lanes of a warp that combine the parts of a place. For few places, all warps of a block combine parts of them.
constexpr int kFinishLanes = 8;

/// Combine parts [l][part][kept], a compact array, to out[l * out_stride_l + kept]; over_batch: one result for all l.
template <class Op_, class Element_, class Output_>
struct FinishJob {
  using Op = Op_;
  using Element = Element_;
  using Output = Output_;

  Element const* parts_ptr;
  Output* out;
  int64_t parts, kept, batches;
  int64_t out_stride_l;
  bool over_batch;
};

/// A job that combines the parts of each place in an order of their number, however many places there are.
template <class Job>
struct InOneOrder : Job {};

/// Fill [l][kept], the memory of an atomic reduction, with the identity before the launch.
template <class Op_, class Element_>
struct InitialiseJob {
  using Op = Op_;
  using Element = Element_;

  Element* ptr;
  int64_t kept, batches;  // one batch if the reduction is over the batch too
  int64_t stride_l;
};

#if !defined(EVT_DEVICE_PASS)
namespace detail {

/// The number of blocks. A place has kFinishLanes threads. Few places have a share of a block each, or a whole block if a
/// place `merges` columns and so has many parts. A batch with one place has a block.
inline int64_t finish_blocks(int64_t kept, int64_t batches, bool merges = false) {
  constexpr int kPlaces = kFinishThreads / kFinishLanes;
  constexpr int kBlocks = 1056;  // that few places are divided among: eight for each SM of an H100
  int64_t const places = kept * batches, of_block = merges ? 1 : 32 / kFinishLanes;
  int64_t const few = (places + of_block - 1) / of_block, blocks = (places + kPlaces - 1) / kPlaces;
  int64_t const least = few < kBlocks ? few : kBlocks;
  return kept == 1 ? batches : least > blocks ? least : blocks;
}

}  // namespace detail

/// The number of blocks in x that a job can use. The grid is (the maximum of all jobs, the number of jobs).
template <class Op, class Element, class Output>
inline int64_t finish_blocks(FinishJob<Op, Element, Output> const& job) {
  return detail::finish_blocks(job.kept, job.over_batch ? 1 : job.batches);
}

template <class Op, class Element>
inline int64_t finish_blocks(InitialiseJob<Op, Element> const& job) {
  return (job.kept * job.batches + kFinishThreads - 1) / kFinishThreads;
}
#endif

namespace detail {

/// Combine parts at, at + step... before `count`. Part at + i * step joins total i % kTotals, so that several loads and
/// operations are in flight at a time.
template <class Op, class Element, class Part>
CUTLASS_DEVICE Element combine_steps(int64_t at, int64_t step, int64_t count, Part const& part) {
  constexpr int kTotals = 4;
  Element totals[kTotals];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kTotals; ++i) totals[i] = Op::template identity<Element>();
#pragma unroll 1
  for (; at < count; at += kTotals * step) {
    Element loaded[kTotals];  // without conditions, so that no load waits for another
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTotals; ++i) loaded[i] = part(at + i * step < count ? at + i * step : at);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTotals; ++i) {
      totals[i] = Op::apply(totals[i], at + i * step < count ? loaded[i] : Op::template identity<Element>());
    }
  }
  return Op::apply(Op::apply(totals[0], totals[1]), Op::apply(totals[2], totals[3]));
}

/// The lanes that combine the parts of a place: of a warp, or of all warps of the block.
struct FinishTeam {
  static constexpr int kPlaces = 32 / kFinishLanes, kWarps = kFinishThreads / 32;
  static_assert(kWarps == kFinishLanes, "the lanes of a place combine one total of each warp");

  bool is_block;

  /// Combine `count` parts of a place: lane i combines parts i, i + the number of lanes..., and a tree combines the
  /// lanes. All of them get the result.
  template <class Op, class Element, class Part>
  CUTLASS_DEVICE Element combine(int64_t count, Part const& part) const {
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t const first = lane / kPlaces + (is_block ? warp * kFinishLanes : 0);
    Element total = combine_steps<Op, Element>(first, is_block ? kFinishThreads / kPlaces : kFinishLanes, count, part);
    total = reduce_over_lanes<Op, kFinishLanes, kPlaces>(total);
    if (!is_block) return total;
    __shared__ Element of_warp[kWarps][kPlaces];
    __syncthreads();  // of_warp has been read: operands of one type share it
    if (lane < kPlaces) of_warp[warp][lane] = total;
    __syncthreads();
    return reduce_over_lanes<Op, kFinishLanes, kPlaces>(of_warp[lane / kPlaces][lane % kPlaces]);
  }
};

/// One of the blocks of a job, by its number, and their count.
struct FinishBlock {
  int64_t number, count;
};

/// Call `function(l, kept, team, writes)` by the lanes of each place; one of them writes. Neighbouring lanes have
/// neighbouring places. All lanes of a team take part. by_blocks: teams are blocks, also of many places.
template <class Function>
CUTLASS_DEVICE void for_each_place(
    FinishBlock block, int64_t kept, int64_t batches, bool by_blocks, Function const& function) {
  constexpr int kPlaces = FinishTeam::kPlaces, kWarps = FinishTeam::kWarps;
  int64_t const places = kept * batches;
  FinishTeam const team{by_blocks || places <= block.count * kPlaces};
  int const teams = team.is_block ? 1 : kWarps, number = team.is_block ? 0 : threadIdx.x / 32;
  int64_t const step = block.count * teams * kPlaces;
  for (int64_t first = (block.number * teams + number) * kPlaces; first < places; first += step) {
    int64_t const place = first + threadIdx.x % kPlaces, i = place < places ? place : places - 1;
    bool const is_first = (team.is_block ? threadIdx.x : threadIdx.x % 32) < kPlaces;
    function(i / kept, i % kept, team, place < places && is_first);
  }
}

template <class Job>
CUTLASS_DEVICE void finish_vector(Job const& job, int64_t batches, int64_t parts, bool by_blocks) {
  using Element = typename Job::Element;
  FinishBlock const block{blockIdx.x, gridDim.x};
  for_each_place(block, job.kept, batches, by_blocks, [&](int64_t l, int64_t kept, FinishTeam team, bool writes) {
    Element const* const from = job.parts_ptr + l * parts * job.kept + kept;
    Element const total =
        team.template combine<typename Job::Op, Element>(parts, [&](int64_t i) { return from[i * job.kept]; });
    if (writes) job.out[l * job.out_stride_l + kept] = convert<typename Job::Output>(total);
  });
}

// One block per scalar: thread i combines parts i, i + 256..., and a tree combines the threads.
template <class Job>
CUTLASS_DEVICE void finish_scalar(Job const& job, int64_t batches, int64_t parts) {
  using Op = typename Job::Op;
  using Element = typename Job::Element;
  __shared__ Element of_warp[kFinishThreads / 32];
  for (int64_t l = blockIdx.x; l < batches; l += gridDim.x) {
    Element const* const from = job.parts_ptr + l * parts;
    Element total = Op::template identity<Element>();
    for (int64_t part = threadIdx.x; part < parts; part += kFinishThreads) {
      total = Op::apply(total, from[part]);
    }
    total = reduce_over_lanes<Op, 32>(total);
    if (threadIdx.x % 32 == 0) {
      of_warp[threadIdx.x / 32] = total;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      constexpr int kWarps = kFinishThreads / 32;
      total = reduce_over_lanes<Op, kWarps>(of_warp[threadIdx.x % kWarps]);
      if (threadIdx.x == 0) {
        job.out[l * job.out_stride_l] = convert<typename Job::Output>(total);
      }
    }
    __syncthreads();
  }
}

}  // namespace detail

/// Called by all threads of the blocks with this blockIdx.y. The order of operations is fixed: every run gives equal
/// bits. in_one_order: it depends on the number of parts alone.
template <class Op, class Element, class Output>
CUTLASS_DEVICE void finish(FinishJob<Op, Element, Output> const& job, bool in_one_order = false) {
  int64_t const batches = job.over_batch ? 1 : job.batches;
  int64_t const parts = job.over_batch ? job.parts * job.batches : job.parts;
  if (job.kept == 1 && !in_one_order) {
    detail::finish_scalar(job, batches, parts);
  } else {
    detail::finish_vector(job, batches, parts, in_one_order);
  }
}

template <class Job>
CUTLASS_DEVICE void finish(InOneOrder<Job> const& job) {
  finish(static_cast<Job const&>(job), true);
}

template <class Op, class Element>
CUTLASS_DEVICE void finish(InitialiseJob<Op, Element> const& job) {
  int64_t const step = int64_t(gridDim.x) * kFinishThreads;
  for (int64_t i = int64_t(blockIdx.x) * kFinishThreads + threadIdx.x; i < job.kept * job.batches; i += step) {
    int64_t const l = i / job.kept;
    job.ptr[l * job.stride_l + (i - l * job.kept)] = Op::template identity<Element>();
  }
}

namespace detail {

struct Several {};

/// The one type among some, without void: void for none, and Several for more than one.
template <class... Types>
struct OneType {
  using type = void;
};
template <class Type, class... Types>
struct OneType<Type, Types...> {
  using rest = typename OneType<Types...>::type;
  static constexpr bool kOne = std::is_void_v<rest> || std::is_same_v<rest, Type>;
  using type = std::conditional_t<std::is_void_v<Type>, rest, std::conditional_t<kOne, Type, Several>>;
};

}  // namespace detail

/// The one reduction whose parts a job reads, and may share with other jobs: see finish_compute.hpp.
template <class Job>
struct SharedReduction {
  using type = detail::Several;
};

/// Process jobs that read the parts of one reduction, by all blocks: see finish_compute.hpp.
template <class Reduction, class... Jobs>
CUTLASS_DEVICE void finish_together(Jobs const&... jobs);

/// The body of a kernel for several jobs: block (x, y) processes job y, or all blocks process all jobs.
template <class... Jobs>
CUTLASS_DEVICE void finish_all(Jobs const&... jobs) {
  using Reduction = typename detail::OneType<typename SharedReduction<Jobs>::type...>::type;
  if constexpr (sizeof...(Jobs) > 1 && !std::is_void_v<Reduction> && !std::is_same_v<Reduction, detail::Several>) {
    finish_together<Reduction>(jobs...);
  } else {
    unsigned index = 0;
    ((blockIdx.y == index++ ? finish(jobs) : void()), ...);
  }
}

}  // namespace evt

#endif  // EVT_FINISH_HPP
