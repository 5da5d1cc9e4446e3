#ifndef EVT_KIT_WGRAD_PIXELS_HPP
#define EVT_KIT_WGRAD_PIXELS_HPP

// Tiles of successive output pixels, which TMA loads in im2col mode. A stage has blocks of 64 filters of the output's
// gradient, then blocks of 64 channels of the input, each at its tap.

#include <cstdint>

#include "evt/kit/im2col.hpp"
#include "evt/kit/pipeline.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_params.hpp"

namespace evt {
namespace wgrad {

template <class Tile>
struct WgradPixels {
  static constexpr int kBlockOfStage = kPixels * kBlockBytes;  // bytes
  static constexpr int kStage = (Tile::kFilterBlocks + Tile::kChannelBlocks) * kBlockOfStage;

#if !defined(EVT_DEVICE_PASS)
  /// Encode the descriptors of the output's gradient and of the input. Return whether the driver accepts them.
  template <class Mma, class Arguments, class Params>
  static bool encode(Arguments const& arguments, Params& params) {
    Problem const& problem = arguments.problem;
    Axis const &height = problem.height, &width = problem.width;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    kit::TmaPixels const gradient{
        Mma::kType, Mma::kElementBytes, arguments.a, {problem.filters, width.output, height.output, problem.images},
        {a[2], a[1], a[0]}, {0, 0}, {0, 0}, {1, 1}, kBlock, kPixels};
    kit::TmaPixels const input{
        Mma::kType, Mma::kElementBytes, arguments.b, {problem.channels, width.size, height.size, problem.images},
        {b[2], b[1], b[0]}, {-width.pad, -height.pad}, {last_edge(width), last_edge(height)},
        {width.stride, height.stride}, kBlock, kPixels};
    return gradient.encode(params.gradient) && input.encode(params.input);
  }
#endif

  /// TMA writes all bytes of a stage.
  template <class Params>
  CUTLASS_DEVICE static void initialize(Params const&, WgradStorage<Tile> const&) {}

  /// The loads of an output. The constructor computes the coordinates of the first stage.
  struct Loads {
    int tile, end, filter;
    int blocks, first_block;  // of channels, which this CTA loads for all CTAs of its rank
    uint16_t receivers;
    int column, row, image;  // of the first output pixel
    int channels[Tile::kChannelBlocks];
    kit::TapOffset taps[Tile::kChannelBlocks];

    template <class Params>
    CUTLASS_DEVICE Loads(Params const& params, WgradWork<Tile> const& work, WgradOutput<Tile> const& output)
        : tile(output.first),
          end(output.end),
          filter(output.filter),
          blocks(params.neighbours == 1 ? Tile::kChannelBlocks : Tile::kChannelBlocks / 2),
          first_block(work.neighbour * blocks),
          receivers(work.receivers(params)) {
      // A block beyond the last one has channels beyond the last one: zeros.
      int const all = params.taps_high * params.taps_wide * params.blocks_of_tap;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kChannelBlocks; ++i) {
        int const block = output.block + first_block + i, tap = block < all ? params.by_blocks_of_tap.quotient(block) : 0;
        int const tap_row = params.by_taps_wide.quotient(tap), tap_column = tap - tap_row * params.taps_wide;
        channels[i] = (block - tap * params.blocks_of_tap) * kBlock;
        taps[i] = {uint16_t(tap_column * params.dilation_width), uint16_t(tap_row * params.dilation_height)};
      }
      find_pixel(params);
    }

    /// Load the stages.
    template <class Params>
    CUTLASS_DEVICE void load(Params const& params, WgradStorage<Tile> const& storage, kit::PipelineState& state) {
      for (; tile < end; find_pixel(params)) {
        kit::barrier_wait(storage.empty(state.index), state.phase ^ 1);
        uint32_t const full = storage.full(state.index);
        kit::arrive_and_expect_tx(full, kStage);
        uint32_t at = storage.stage(state.index);
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Tile::kFilterBlocks; ++block, at += kBlockOfStage) {
          kit::tma_load_pixels(at, params.gradient, full, {filter + block * kBlock, column, row, image}, {0, 0});
        }
        int const x = column * params.stride_width - params.pad_width;
        int const y = row * params.stride_height - params.pad_height;
        at += first_block * kBlockOfStage;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Tile::kChannelBlocks; ++i, at += kBlockOfStage) {
          if (i >= blocks) break;
          kit::PixelPlace const place{channels[i], x, y, image};
          if (params.neighbours > 1) {
            kit::tma_load_pixels_multicast(at, params.input, full, receivers, place, taps[i]);
          } else {
            kit::tma_load_pixels(at, params.input, full, place, taps[i]);
          }
        }
        state.advance_once(1, params.geometry.stages);
        ++tile;
      }
    }

   private:
    template <class Params>
    CUTLASS_DEVICE void find_pixel(Params const& params) {
      int const pixel = tile * kPixels;
      image = params.by_image_pixels.quotient(pixel);
      int const of_image = pixel - image * params.output_height * params.output_width;
      row = params.by_output_width.quotient(of_image);
      column = of_image - row * params.output_width;
    }
  };
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_PIXELS_HPP
