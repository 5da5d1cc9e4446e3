#ifndef EVT_FINISH_HPP
#define EVT_FINISH_HPP

// Combine the partial results of reductions, and initialize the memory of atomic reductions: device functions for one
// kernel each. The blocks (*, job) process one job. Blocks have kFinishThreads threads.

#include <cstdint>

#include "cutlass/cutlass.h"

#include "evt/convert.hpp"
#include "evt/reduce.hpp"

namespace evt {

constexpr int kFinishThreads = 256;
/// The lanes of a warp that combine the parts of a place.
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

/// Blocks for places with kFinishLanes threads each, or for batches with one place, which a block has.
inline int64_t finish_blocks(int64_t kept, int64_t batches) {
  constexpr int kPlaces = kFinishThreads / kFinishLanes;
  return kept == 1 ? batches : (kept * batches + kPlaces - 1) / kPlaces;
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

/// Combine the parts of a place, `stride` apart: lane i of the place combines parts i, i + 8..., and a tree combines the
/// lanes. All of them get the result.
template <class Op, class Element>
CUTLASS_DEVICE Element combine_by_lanes(Element const* from, int64_t parts, int64_t stride) {
  constexpr int kApart = 32 / kFinishLanes;  // lanes of a place
  Element total = Op::template identity<Element>();
#pragma unroll 4
  for (int64_t part = threadIdx.x % 32 / kApart; part < parts; part += kFinishLanes) {
    total = Op::apply(total, from[part * stride]);
  }
  return reduce_over_lanes<Op, kFinishLanes, kApart>(total);
}

/// Call `function(l, kept, writes)` by the lanes of each place; one of them writes. Neighbouring lanes have neighbouring
/// places. All lanes of a warp take part.
template <class Function>
CUTLASS_DEVICE void for_each_place(int64_t kept, int64_t batches, Function const& function) {
  constexpr int kPlaces = 32 / kFinishLanes, kWarps = kFinishThreads / 32;
  int64_t const places = kept * batches, step = int64_t(gridDim.x) * kWarps * kPlaces;
  for (int64_t first = (int64_t(blockIdx.x) * kWarps + threadIdx.x / 32) * kPlaces; first < places; first += step) {
    int64_t const place = first + threadIdx.x % kPlaces, i = place < places ? place : places - 1;
    function(i / kept, i % kept, place < places && threadIdx.x % 32 < kPlaces);
  }
}

template <class Job>
CUTLASS_DEVICE void finish_vector(Job const& job, int64_t batches, int64_t parts) {
  for_each_place(job.kept, batches, [&](int64_t l, int64_t kept, bool writes) {
    auto const total = combine_by_lanes<typename Job::Op>(job.parts_ptr + l * parts * job.kept + kept, parts, job.kept);
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
/// bits.
template <class Op, class Element, class Output>
CUTLASS_DEVICE void finish(FinishJob<Op, Element, Output> const& job) {
  int64_t const batches = job.over_batch ? 1 : job.batches;
  int64_t const parts = job.over_batch ? job.parts * job.batches : job.parts;
  if (job.kept == 1) {
    detail::finish_scalar(job, batches, parts);
  } else {
    detail::finish_vector(job, batches, parts);
  }
}

template <class Op, class Element>
CUTLASS_DEVICE void finish(InitialiseJob<Op, Element> const& job) {
  int64_t const step = int64_t(gridDim.x) * kFinishThreads;
  for (int64_t i = int64_t(blockIdx.x) * kFinishThreads + threadIdx.x; i < job.kept * job.batches; i += step) {
    int64_t const l = i / job.kept;
    job.ptr[l * job.stride_l + (i - l * job.kept)] = Op::template identity<Element>();
  }
}

/// The body of a kernel for several jobs: block (x, y) processes job y.
template <class... Jobs>
CUTLASS_DEVICE void finish_all(Jobs const&... jobs) {
  unsigned index = 0;
  ((blockIdx.y == index++ ? finish(jobs) : void()), ...);
}

}  // namespace evt

#endif  // EVT_FINISH_HPP
