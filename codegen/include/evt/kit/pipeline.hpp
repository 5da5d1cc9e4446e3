#ifndef EVT_KIT_PIPELINE_HPP
#define EVT_KIT_PIPELINE_HPP

// Pipelines of buffers in shared memory, each stage with a full and an empty barrier, as cutlass::PipelineTmaAsync has
// them.

#include <cstdint>

#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// A stage of a pipeline and its phase, as one producer or consumer counts them.
struct PipelineState {
  int index = 0;
  uint32_t phase = 0;

  /// Advance by at most the number of stages, without a branch.
  CUTLASS_DEVICE void advance_once(int by, int stages) {
    index += by;
    bool const wraps = index >= stages;
    index = wraps ? index - stages : index;
    phase ^= wraps;
  }

  CUTLASS_DEVICE void advance(int by, int stages) {
    index += by;
    while (index >= stages) {
      index -= stages;
      phase ^= 1;
    }
  }
};

/// The first of several buffers of equal size, and their barriers: shared memory addresses. FirstStage: the stages of
/// other pipelines whose barriers come before. The compiler then addresses all barriers from one register.
template <int FirstStage>
struct Pipeline {
  uint32_t buffers, barriers;

  CUTLASS_DEVICE uint32_t full(int stage) const { return barriers + 16 * (FirstStage + stage); }
  CUTLASS_DEVICE uint32_t empty(int stage) const { return barriers + 16 * (FirstStage + stage) + 8; }

  /// Initialize a stage's barriers: producers, and consumers that arrive with some warps.
  CUTLASS_DEVICE void initialize(int stage, int consumer_warps, int producers = 1) const {
    barrier_init(full(stage), producers);
    barrier_init(empty(stage), consumer_warps);
  }

  /// Wait until consumers have released a stage.
  CUTLASS_DEVICE void producer_acquire(PipelineState const& state) const {
    barrier_wait(empty(state.index), state.phase ^ 1);
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_PIPELINE_HPP
