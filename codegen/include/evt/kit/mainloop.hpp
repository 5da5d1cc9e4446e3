#ifndef EVT_KIT_MAINLOOP_HPP
#define EVT_KIT_MAINLOOP_HPP

// A main loop is a class with these members, which the kernel of kernel.hpp calls:
//
//   Mma, kChannels, kDimensions, Filters    the multiplication, and the types and constants of kernel traits
//   kGrouped, kPacked                       whether there are groups, and several in a block: see mainloop_groups.hpp
//   kWords                                  whether threads copy the input in words: see mainloop_words.hpp
//   kBackwards                              whether filters are read backwards
//   kTapRows                                whether a row of a tile is a tap of a filter: see mainloop_taps.hpp
//   kLoadsByThreads                         whether threads load the input, instead of TMA
//   kFiltersByThreads                       whether threads load the filters
//   kProducerRegisters, kConsumerRegisters  registers of a thread, for warpgroup_reg_dealloc and warpgroup_reg_alloc
//   can_implement, encode                   on the host: limits of the problem, and the operands' TMA descriptors
//   prefetch, arrange                       by all warps, before the kernel's barriers are used: `arrange` if threads
//                                           load the input
//   prepare                                 by the consumers, before their first tile: if threads load the filters
//   load                                    by a producer warp: the stages of both pipelines
//   multiply                                by a consumer: the accumulators of a tile
//
// The main loop of this header is that of a convolution whose input TMA loads once for each tile: see geometry.hpp.

#include <cstdint>
#include <type_traits>

#include "evt/kit/descriptor.hpp"
#include "evt/kit/params.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/scheduler.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/storage.hpp"
#include "evt/kit/taps.hpp"

namespace evt {
namespace kit {

/// The taps of a filter stage over a block of channels: their operands, and whether these are known to be loaded.
template <int Taps>
struct KBlock {
  uint32_t a, b[Taps];  // descriptors
  int filter_stage, input_stage[Taps];
  uint32_t filter_phase, input_phase[Taps];
  bool enters[Taps];
  bool is_loaded;

  /// `input` is at the box of the previous tap, or of a tile's first tap. It is left at the box of the last tap.
  template <class Traits>
  CUTLASS_DEVICE KBlock(Params<Traits> const& params, SharedStorage const& storage, int first_tap, bool is_first,
                        PipelineState& input, PipelineState const& filters)
      : filter_stage(filters.index), filter_phase(filters.phase) {
    Geometry const& geometry = params.geometry;
    a = operand_descriptor(storage.filters.buffers + filter_stage * geometry.filter_stage_bytes);
    is_loaded = test_wait(storage.filters.full(filter_stage), filter_phase);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Taps; ++i) {
      Tap const tap = params.taps.tap[first_tap + i];
      enters[i] = tap.enters();
      input.advance_once(enters[i] & !(is_first & i == 0), geometry.input_stages);
      input_stage[i] = input.index;
      input_phase[i] = input.phase;
      uint32_t const box = storage.input.buffers + input_stage[i] * geometry.input_stage_bytes;
      b[i] = operand_descriptor(box + tap.shift() * Traits::kPixelBytes);
      is_loaded &= test_wait(storage.input.full(input_stage[i]), input_phase[i]);
    }
  }

  CUTLASS_DEVICE void wait(SharedStorage const& storage) const {
    if (is_loaded) return;
    barrier_wait(storage.filters.full(filter_stage), filter_phase);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Taps; ++i) {
      barrier_wait(storage.input.full(input_stage[i]), input_phase[i]);
    }
  }

  /// Release the stages that no later tap reads.
  CUTLASS_DEVICE void release(SharedStorage const& storage, bool keeps_filters, bool leaves_last_box) const {
    if (threadIdx.x % 32 != 0) return;
    if (!keeps_filters) barrier_arrive(storage.filters.empty(filter_stage));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Taps; ++i) {
      if (i + 1 < Taps ? enters[i + 1] : leaves_last_box) barrier_arrive(storage.input.empty(input_stage[i]));
    }
  }
};

/// A convolution of blocks of Channels channels, of 2 dimensions, or 3 of a volume. Mma has kElementBytes, Accumulator,
/// kPixels, kType, kTransposed (the filters, for the gradient of the input) and `fma`. Residues: the gradient of a
/// convolution with a stride.
template <class Mma_, int Channels, int Dimensions, bool Residues = false>
struct HaloMainloop {
  using Mma = Mma_;
  using Filters = FilterRows<Mma::kElementBytes, Channels, Mma::kTransposed>;
  struct NoOperands {};  // TMA's descriptors are all
  struct OfResidues {
    kit::Residues residues;
    int work_tiles, tiles;  // of a class
    FastDivisor by_work_tiles;
    CUtensorMap source[kMaxClasses - 1], destination[kMaxClasses - 1];  // of the classes after the first
  };
  using Operands = std::conditional_t<Residues, OfResidues, NoOperands>;

  static constexpr int kChannels = Channels;
  static constexpr int kDimensions = Dimensions;
  static constexpr bool kVolume = Dimensions == 3, kResidues = Residues;
  static constexpr int kBlockBytes = Channels * Mma::kElementBytes, kPixelBytes = swizzled_row(kBlockBytes);
  static constexpr int kInstructions = kBlockBytes / kDepthBytes;  // of a tap
  static constexpr bool kGrouped = false, kPacked = false, kWords = false, kBackwards = Mma::kTransposed;
  static constexpr bool kTapRows = false, kLoadsByThreads = false, kFiltersByThreads = false;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

#if !defined(EVT_DEVICE_PASS)
  static Problem multiplied(Problem const& problem, KernelClass const&, int) {
    return Residues ? over_residues(problem) : problem;
  }

  template <class Traits>
  static bool can_implement(Arguments<Traits> const& arguments) {
    Axis const &height = arguments.problem.height, &width = arguments.problem.width;
    auto const reaches = [](Axis const& axis) { return axis.pad >= 0 && axis.pad <= (axis.taps - 1) * axis.dilation; };
    return !Residues || (height.remainders() * width.remainders() <= kMaxClasses && reaches(height) && reaches(width) &&
                         arguments.problem.tap_count() <= kMaxTaps);
  }

  /// Encode the TMA descriptors. Return whether the driver accepts them.
  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    return input_of(arguments, params.geometry).encode(params.input) && filters_of(arguments).encode(params.filters);
  }
#endif

  template <class Traits>
  CUTLASS_DEVICE static void prefetch(Params<Traits> const& params, int warp) {
    if (warp == 0) prefetch_tma_descriptor(params.input);
    if (warp == 3) prefetch_tma_descriptor(params.filters);
  }

  /// The bytes of a tap's filters.
  template <class Traits>
  CUTLASS_DEVICE static int filter_bytes(Params<Traits> const&) {
    return Filters::kLoadedBytes;
  }

  template <class Traits>
  CUTLASS_DEVICE static void load(Params<Traits> const& params, SharedStorage const& storage, int warp) {
    if (warp == 0) load_input(params, storage);
    if (warp == 3) load_filters(params, storage);
  }

  /// Multiply the blocks of channels of a tile, Taps taps of a filter stage at a time.
  template <int Taps, class Traits>
  CUTLASS_DEVICE static void multiply(Params<Traits> const& params, SharedStorage const& storage, int consumer,
                                      TileWork const& part, PipelineState& input, PipelineState& filters,
                                      typename Mma::Accumulator (&accumulators)[Mma::kPixels / 2]) {
    Geometry const& geometry = params.geometry;
    constexpr int kMany = Taps * kInstructions, kHalf = (kMany - 1) / 2;
    int const k_blocks = part.filter_stages;
    int handover = geometry.handover;
    if constexpr (Residues) {
      handover = max(0, k_blocks - 2);
      if (k_blocks == 0) {
        if (threadIdx.x % 32 == 0 && is_pingpong(params)) barrier_arrive(storage.order(1 - consumer));
        return;
      }
    } else if constexpr (kVolume) {  // before the last k-block by an equal number
      handover = max(0, handover - (params.channel_blocks - part.blocks.number) * params.taps.number / Taps);
    }
    bool const leads = threadIdx.x % 32 == 0;
    int first_tap = part.taps.first;
    KBlock<Taps> now(params, storage, first_tap, true, input, filters), last = now;
    for (int i = 0; i < k_blocks; ++i) {
      now.wait(storage);
      warpgroup_arrive();
      KBlock<Taps> next = now;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMany; ++j) {
        int const tap = j / kInstructions, k = j % kInstructions;
        Mma::fma(accumulators, now.a + tap * (Filters::kBytes >> 4) + k * Filters::kNextK, now.b[tap] + k * kNextK,
                 Filters::kLayout, params.input_layout);
        if (j == kHalf) {
          // The stages of the last k-block are released halfway, while multiplications are left.
          warpgroup_commit_batch();
          warpgroup_wait<1>();
          if (i > 0) last.release(storage, geometry.resident, now.enters[0]);
          if (kHalf + 1 < kMany) warpgroup_arrive();
        }
        if (j == (kMany > 1)) {
          // Look up the next k-block meanwhile, without a branch: after a branch WGMMA would begin another group, and
          // the tensor cores would wait for it between two k-blocks.
          first_tap = first_tap + Taps == part.taps.first + part.taps.number ? part.taps.first : first_tap + Taps;
          filters.advance_once(!Traits::kShared && geometry.cooperative ? 2 : 1, geometry.filter_stages);
          bool const ends = i + 1 == k_blocks;
          PipelineState then = input;
          next = KBlock<Taps>(params, storage, first_tap, ends, then, filters);
          input.index = ends ? input.index : then.index;
          input.phase = ends ? input.phase : then.phase;
        }
      }
      if (kHalf + 1 < kMany) warpgroup_commit_batch();
      if (i == handover && leads && is_pingpong(params)) barrier_arrive(storage.order(1 - consumer));
      last = now;
      now = next;
    }
    warpgroup_wait<0>();
    last.release(storage, geometry.resident, true);
  }

 protected:
#if !defined(EVT_DEVICE_PASS)
  template <class Traits>
  static auto input_of(Arguments<Traits> const& arguments, Geometry const& geometry) {
    Problem const& problem = arguments.problem;
    Axis const &height = problem.height, &width = problem.width, &depth = problem.depth;
    auto const& strides = arguments.a_strides;
    int const step_x = Residues ? 1 : width.stride, step_y = Residues ? 1 : height.stride;
    int const columns = (geometry.input_pitch - 1) * step_x + 1;
    int const rows = (geometry.box_rows - 1) * step_y + 1;
    if constexpr (kVolume) {
      return TmaTensor<5>{Mma::kType, Mma::kElementBytes, arguments.a,
                          {problem.channels, width.size, problem.images, height.size, depth.size},
                          {strides[3], strides[0], strides[2], strides[1]},
                          {kChannels, columns, geometry.images, rows, 1}, {width.stride, 1, height.stride}, kPixelBytes};
    } else if constexpr (Traits::kGrouped) {
      int const channels = GroupBlocks::of(problem, Traits::kClass, arguments.groups).channels;
      return TmaTensor<5>{Mma::kType, Mma::kElementBytes, arguments.a,
                          {channels, width.size, problem.images, height.size, problem.channels / channels},
                          {strides[2], strides[0], strides[1], channels},
                          {kChannels, columns, geometry.images, rows, 1}, {width.stride, 1, height.stride}, kPixelBytes};
    } else {
      return TmaTensor<4>{Mma::kType, Mma::kElementBytes, arguments.a,
                          {problem.channels, width.size, problem.images, height.size},
                          {strides[2], strides[0], strides[1]},
                          {kChannels, columns, geometry.images, rows}, {step_x, 1, step_y}, kPixelBytes};
    }
  }

  template <class Traits>
  static auto filters_of(Arguments<Traits> const& arguments) {
    Problem const& problem = arguments.problem;
    Axis const &height = problem.height, &width = problem.width, &depth = problem.depth;
    auto const& strides = arguments.b_strides;
    int const groups = Traits::kGrouped ? arguments.groups : 1;
    int const along = (Mma::kTransposed ? problem.filters : problem.channels) / groups;
    int const rows = Mma::kTransposed ? problem.channels : problem.filters;
    if constexpr (kVolume) {
      return TmaTensor<5>{Mma::kType, Mma::kElementBytes, arguments.b,
                          {along, rows, width.taps, height.taps, depth.taps},
                          {strides[0], strides[3], strides[2], strides[1]},
                          {Filters::kLength, Filters::kRows, 1, 1, 1}, {1, 1}, Filters::kRowBytes};
    } else {
      return TmaTensor<4>{Mma::kType, Mma::kElementBytes, arguments.b,
                          {along, rows, width.taps, height.taps},
                          {strides[0], strides[2], strides[1]},
                          {Filters::kLength, Filters::kRows, 1, 1}, {1, 1}, Filters::kRowBytes};
    }
  }
#endif

  /// Load the boxes of all tiles, by blocks of channels and groups of taps.
  template <class Traits>
  CUTLASS_DEVICE static void load_input(Params<Traits> const& params, SharedStorage const& storage) {
    Geometry const& geometry = params.geometry;
    CtaWork const work(params);
    PipelineState state;
    int const bytes = geometry.box_pixels() * kBlockBytes;
    for (int number = work.first; number < params.work_tiles; number += work.stride) {
      WorkTile const tile(params, number, 0);
      TileWork const part = work.of_tile(params, number);
      if (Residues && part.taps.number == 0) continue;
      DepthBlock<kVolume> block(params.depth, part.blocks.first);
      for (int left = part.blocks.number; left > 0; --left, block.advance(params.depth)) {
        for (int group = 0; group < params.taps.groups; ++group) {
          uint32_t const start = params.taps.starts[group];
          int const column = tile.column * params.stride_width + int16_t(start);
          int const row = tile.row * params.stride_height + int16_t(start >> 16);
          storage.input.producer_acquire(state);
          uint32_t const full = storage.input.full(state.index);
          arrive_and_expect_tx(full, bytes);
          uint32_t const to = storage.input.buffers + state.index * geometry.input_stage_bytes;
          if constexpr (kVolume) {
            tma_load(to, params.input, full, block.channels * kChannels, column, tile.image, row,
                     params.depth.input(tile.slice, block.tap));
          } else if constexpr (Traits::kGrouped) {
            int const channel = tile.place.channel + block.channels * kChannels;
            tma_load(to, params.input, full, channel, column, tile.image, row, tile.place.slice);
          } else {
            tma_load(to, params.input, full, block.channels * kChannels, column, tile.image, row);
          }
          state.advance_once(1, geometry.input_stages);
        }
      }
    }
  }

  /// Load the filters of all tiles, or once if they are resident.
  template <class Traits>
  CUTLASS_DEVICE static void load_filters(Params<Traits> const& params, SharedStorage const& storage) {
    Geometry const& geometry = params.geometry;
    CtaWork const work(params);
    PipelineState state;
    int const consumers = geometry.cooperative ? 2 : 1;
    for (int number = work.first; number < params.work_tiles; number += work.stride) {
      WorkTile const tile(params, number, 0);
      int const taps = geometry.taps_per_stage;
      bool const all = !Traits::kShared && geometry.resident;
      TileWork const part = work.of_tile(params, number);
      BlockRange const blocks = all ? BlockRange{0, params.channel_blocks} : part.blocks;
      int const end = part.taps.first + part.taps.number;
      DepthBlock<kVolume> block(params.depth, blocks.first);
      for (int left = blocks.number; left > 0; --left, block.advance(params.depth)) {
        for (int first_tap = part.taps.first; first_tap < end; first_tap += taps) {
          for (int consumer = 0; consumer < consumers; ++consumer) {
            storage.filters.producer_acquire(state);
            uint32_t const full = storage.filters.full(state.index);
            arrive_and_expect_tx(full, taps * Traits::Mainloop::filter_bytes(params));
            int channel = block.channels * kChannels;
            int first = tile.filter + consumer * kFilters;
            if constexpr (Traits::kGrouped && Mma::kTransposed) {
              channel += tile.place.slice * params.operands.groups.channels;
              first = tile.place.filter;
            }
            int const along = Mma::kTransposed ? first : channel, row = Mma::kTransposed ? channel : first;
            for (int i = 0; i < taps; ++i) {
              Tap const tap = params.taps.tap[first_tap + i];
              uint32_t const to =
                  storage.filters.buffers + state.index * geometry.filter_stage_bytes + i * Filters::kBytes;
              if constexpr (kVolume) {
                int const z = params.depth.tap_of_filters(block.tap, Mma::kTransposed);
                tma_load(to, params.filters, full, along, row, tap.x(), tap.y(), z);
              } else {
                tma_load(to, params.filters, full, along, row, tap.x(), tap.y());
              }
            }
            state.advance_once(1, geometry.filter_stages);
          }
        }
      }
      if (geometry.resident) break;
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_HPP
