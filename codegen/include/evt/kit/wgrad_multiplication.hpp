#ifndef EVT_KIT_WGRAD_MULTIPLICATION_HPP
#define EVT_KIT_WGRAD_MULTIPLICATION_HPP

// A consumer multiplies its tiles of pixels. The blocks of channels of an instruction are `leading` bytes apart in shared
// memory: neighbouring taps of a window are one pixel apart, other blocks are one block apart.

#include <cstdint>

#include "evt/kit/pipeline.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_params.hpp"
#include "evt/kit/wgrad_pixels.hpp"
#include "evt/kit/wgrad_windows.hpp"

namespace evt {
namespace wgrad {

/// The blocks of the gradient and the tiles of pixels of a consumer.
template <class Tile>
struct WgradConsumer {
  int part, tap_row, first_block;  // of filters

  CUTLASS_DEVICE explicit WgradConsumer(int consumer) : part(consumer % Tile::kParts) {
    int const rest = consumer / Tile::kParts;
    tap_row = rest % Tile::kTapRows;
    first_block = rest / Tile::kTapRows * Tile::kBlocks;
  }
};

template <class Tile, class Mma>
struct WgradMultiplication {
  using Storage = WgradStorage<Tile>;
  using Work = WgradWork<Tile>;
  using Output = WgradOutput<Tile>;
  using Consumer = WgradConsumer<Tile>;
  using Sums = float[Tile::kBlocks][Tile::kInstructions][Mma::kPixels / 2];

  /// Multiply a consumer's tiles of pixels of an output. `sums` begin with zeros.
  template <class Params>
  CUTLASS_DEVICE static void multiply(Params const& params, Storage const& storage, Work const& work, Output const& output,
                                      Consumer const& consumer, kit::PipelineState& state, Sums& sums) {
    WgradGeometry const& geometry = params.geometry;
    int tile = output.first + consumer.part;
    if (tile >= output.end) return;
    Operands const operands(params, consumer);
    int last = -1;
    do {
      kit::barrier_wait(storage.full(state.index), state.phase);
      operands.multiply(storage.stage(state.index), geometry, sums);
      kit::warpgroup_wait<1>();
      if (last >= 0) release(params, storage, work, last);
      last = state.index;
      state.advance(Tile::kParts, geometry.stages);
      tile += Tile::kParts;
    } while (tile < output.end);
    kit::warpgroup_wait<0>();
    release(params, storage, work, last);
    for_each(sums, [](float& sum) { kit::warpgroup_fence_operand(sum); });
  }

  template <class Function>
  CUTLASS_DEVICE static void for_each(Sums& sums, Function const& function) {
    CUTLASS_PRAGMA_UNROLL
    for (auto& block : sums) {
      CUTLASS_PRAGMA_UNROLL
      for (auto& instruction : block) {
        CUTLASS_PRAGMA_UNROLL
        for (auto& sum : instruction) function(sum);
      }
    }
  }

 private:
  static constexpr uint32_t kLayout = uint32_t(8 * kBlockBytes >> 4) | 1u << 30;  // 8 rows at a time, 128 bytes swizzled
  static constexpr uint32_t kNext = kDepth * kBlockBytes >> 4;                    // from instruction to instruction

  /// The descriptors of a consumer's operands.
  struct Operands {
    uint32_t gradient, gradient_block;        // of the first block, and from block to block
    uint32_t input[Tile::kInstructions];

    template <class Params>
    CUTLASS_DEVICE Operands(Params const& params, Consumer const& consumer) {
      int const block_bytes = Tile::kHasWindow ? params.geometry.gradient_bytes : WgradPixels<Tile>::kBlockOfStage;
      int const inputs = Tile::kFilterBlocks * block_bytes;
      int const leading = Tile::kHasWindow ? params.dilation_width * kBlockBytes : block_bytes;
      gradient = descriptor(consumer.first_block * block_bytes, 16);
      gradient_block = block_bytes >> 4;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions; ++i) {
        int const block = i * Tile::kGroup;
        int place = block * block_bytes;
        if constexpr (Tile::kHasWindow) place = WgradWindows<Tile>::place_of(params, consumer.tap_row, block);
        input[i] = descriptor(inputs + place, leading);
      }
    }

    /// Start the multiplications of a stage. The last ones are a group: all of successive pixels, 16 pixels of a window.
    CUTLASS_DEVICE void multiply(uint32_t stage, WgradGeometry const& geometry, Sums& sums) const {
      uint32_t const base = stage >> 4 & 0x3fff;  // the address of a CTA in a cluster has its rank above, where `leading` is
      if constexpr (Tile::kHasWindow) {
        int const steps = geometry.depth / kDepth;
        CUTLASS_PRAGMA_NO_UNROLL
        for (int i = 0; i < steps; ++i) {
          kit::warpgroup_arrive();
          multiply_step(base + i * kNext, sums);
          kit::warpgroup_commit_batch();
        }
      } else {
        kit::warpgroup_arrive();
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kPixels / kDepth; ++i) multiply_step(base + i * kNext, sums);
        kit::warpgroup_commit_batch();
      }
    }

    /// Multiply 16 pixels.
    CUTLASS_DEVICE void multiply_step(uint32_t base, Sums& sums) const {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < Tile::kBlocks; ++block) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Tile::kInstructions; ++i) {
          Mma::fma(sums[block][i], base + gradient + block * gradient_block, base + input[i], kLayout, kLayout);
        }
      }
    }

    /// The lower word of a descriptor of transposed rows of 128 bytes, whose blocks of 64 elements are `leading` bytes
    /// apart.
    CUTLASS_DEVICE static uint32_t descriptor(uint32_t address, int leading) {
      return address >> 4 | uint32_t(leading >> 4) << 16;
    }
  };

  /// Release a stage to the CTAs that load it.
  template <class Params>
  CUTLASS_DEVICE static void release(Params const& params, Storage const& storage, Work const& work, int stage) {
    int const lane = threadIdx.x % 32;
    if (params.neighbours == 1) {
      if (lane == 0) kit::barrier_arrive(storage.empty(stage));
    } else if (lane < params.neighbours) {
      kit::barrier_arrive_cluster(kit::set_block_rank(storage.empty(stage), work.rank * params.neighbours + lane));
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_MULTIPLICATION_HPP
