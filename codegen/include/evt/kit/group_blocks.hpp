#ifndef EVT_KIT_GROUP_BLOCKS_HPP
#define EVT_KIT_GROUP_BLOCKS_HPP

// The blocks of filters of a convolution with groups.
//
// TMA's tensors of a convolution with groups have a last dimension of slices. A wide group is a slice, whose
// last block ends where the tensor ends. Narrow groups share one slice, whose blocks have several groups each.

#include "cutlass/cutlass.h"
#include "evt/kit/divisor.hpp"
#include "evt/kit/geometry.hpp"

namespace evt {
namespace kit {

/// The place of a block of filters: its slice, its first filter and channel in the slice, and the end of its filters
/// among all.
struct GroupPlace {
  int block, slice, filter, channel, end;
};

/// The filters and channels of a slice, and from one of its blocks to the next.
struct GroupBlocks {
  int filters, channels;
  int step, channel_step;
  int blocks;
  FastDivisor by_blocks;

#if !defined(EVT_DEVICE_PASS)
  static GroupBlocks of(Problem const& problem, KernelClass const& kernel, int groups) {
    int const channels = problem.channels / groups, filters = problem.filters / groups;
    int const together = kernel.packed ? groups_together(problem, kernel, groups) : 0;
    if (together > 0) {
      int const blocks = ceil_div(groups, together);
      return {problem.filters,     problem.channels, together * filters,
              together * channels, blocks,           FastDivisor::of(blocks)};
    }
    int const blocks = ceil_div(filters, kFilters);
    return {filters, channels, kFilters, 0, blocks, FastDivisor::of(blocks)};
  }
#endif

  CUTLASS_DEVICE GroupPlace place(int block) const {
    int const slice = by_blocks.quotient(block), of_slice = block - slice * blocks;
    int const filter = of_slice * step;
    return {block, slice, filter, of_slice * channel_step, slice * filters + min(filter + step, filters)};
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GROUP_BLOCKS_HPP
