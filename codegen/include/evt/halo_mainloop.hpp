#ifndef EVT_HALO_MAINLOOP_HPP
#define EVT_HALO_MAINLOOP_HPP

// A consumer's multiplication of a tile: the taps of all its planes, run by run.

#include <cstdint>

#include "evt/halo_taps.hpp"
#include "evt/halo_memory.hpp"
#include "evt/halo_params.hpp"
#include "evt/halo_schedule.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

/// A run of taps of one plane: its operands, and whether they are known to be loaded.
template <int Length>
struct Step {
  uint32_t a, b[Length];  // descriptors
  int slab, stage[Length];
  uint32_t slab_parity, stage_parity[Length];
  bool enters[Length];
  bool is_loaded;

  /// `of_stages` is at the box of the tap before the run, or of the first tap of a tile, and is left at the last one.
  template <class Traits>
  CUTLASS_DEVICE Step(Params<Traits> const& params, Memory const& memory, int run, bool is_first, Ring& of_stages,
                      Ring const& of_slabs)
      : slab(of_slabs.slot), slab_parity(of_slabs.parity) {
    Geometry const& geometry = params.geometry;
    a = hopper::operand_descriptor(memory.slabs + slab * geometry.filter_stage_bytes);
    is_loaded = hopper::has_passed_already(memory.slab_full(slab), slab_parity);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Length; ++i) {
      Tap const tap = params.taps.tap[run + i];
      enters[i] = tap.enters();
      of_stages.skip(enters[i] & !(is_first & i == 0), geometry.input_stages);
      stage[i] = of_stages.slot;
      stage_parity[i] = of_stages.parity;
      uint32_t const box = memory.stages + stage[i] * geometry.input_stage_bytes;
      b[i] = hopper::operand_descriptor(box + tap.shift() * Traits::kPixelBytes);
      is_loaded &= hopper::has_passed_already(memory.stage_full(stage[i]), stage_parity[i]);
    }
  }

  CUTLASS_DEVICE void wait(Memory const& memory) const {
    if (is_loaded) return;
    hopper::wait(memory.slab_full(slab), slab_parity);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Length; ++i) {
      hopper::wait(memory.stage_full(stage[i]), stage_parity[i]);
    }
  }

  /// Give memory that no tap after these uses back to the producers.
  CUTLASS_DEVICE void release(Memory const& memory, bool keeps_slab, bool leaves_last_stage) const {
    if (threadIdx.x % 32 != 0) return;
    if (!keeps_slab) hopper::arrive(memory.slab_empty(slab));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Length; ++i) {
      if (i + 1 < Length ? enters[i + 1] : leaves_last_stage) hopper::arrive(memory.stage_empty(stage[i]));
    }
  }
};

/// Multiply a tile in runs of `Length` taps.
template <int Length, class Traits>
CUTLASS_DEVICE void multiply(Params<Traits> const& params, Memory const& memory, int consumer, int planes, Ring& stage,
                             Ring& slab, typename Traits::Accumulator (&accumulators)[Traits::kPixels / 2]) {
  using Filters = typename Traits::Filters;
  Geometry const& geometry = params.geometry;
  constexpr int kMany = Length * Traits::kInstructions, kHalf = (kMany - 1) / 2;
  int const steps = planes * params.taps.number / Length;
  bool const leads = threadIdx.x % 32 == 0;
  int run = 0;
  Step<Length> step(params, memory, run, true, stage, slab), last = step;
  for (int i = 0; i < steps; ++i) {
    step.wait(memory);
    hopper::fence_multiplications();
    Step<Length> next = step;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kMany; ++j) {
      int const tap = j / Traits::kInstructions, k = j % Traits::kInstructions;
      Traits::Mma::fma(accumulators, step.a + tap * (Filters::kBytes >> 4) + k * Filters::kNextK,
                       step.b[tap] + k * hopper::kNextK, Filters::kLayout, params.input_layout);
      if (j == kHalf) {
        // The memory of the step before is given back halfway, while there is something left to multiply.
        hopper::commit_multiplications();
        hopper::wait_for_multiplications<1>();
        if (i > 0) last.release(memory, geometry.resident, step.enters[0]);
        if (kHalf + 1 < kMany) hopper::fence_multiplications();
      }
      if (j == (kMany > 1)) {
        // What the next step needs is looked up meanwhile, without a branch, after which WGMMA would begin another
        // group: the tensor cores would wait for it between the steps.
        run = run + Length == params.taps.number ? 0 : run + Length;
        slab.skip(!Traits::kShared && geometry.cooperative ? 2 : 1, geometry.filter_stages);
        bool const ends = i + 1 == steps;
        Ring then = stage;
        next = Step<Length>(params, memory, run, ends, then, slab);
        stage.slot = ends ? stage.slot : then.slot;
        stage.parity = ends ? stage.parity : then.parity;
      }
    }
    if (kHalf + 1 < kMany) hopper::commit_multiplications();
    if (i == geometry.handover && leads && takes_turns(params)) hopper::arrive(memory.turn(1 - consumer));
    last = step;
    step = next;
  }
  hopper::wait_for_multiplications<0>();
  last.release(memory, geometry.resident, true);
}

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_MAINLOOP_HPP
