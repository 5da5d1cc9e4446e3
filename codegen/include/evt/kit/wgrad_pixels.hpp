#ifndef EVT_KIT_WGRAD_PIXELS_HPP
#define EVT_KIT_WGRAD_PIXELS_HPP

// Tiles of successive output pixels. A stage has blocks of 64 filters of the output's gradient, then blocks of 64 channels
// of the input, each at its tap. TMA loads a block in im2col mode. The pixels and the blocks of a packed tensor of whole
// blocks are dimensions: TMA then loads all blocks of a stage at a time, since a thread that begins many loads holds up
// small tiles.

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
  /// Whether a tensor has whole blocks, and the output pixels of all images are equally far apart. Strides are of images,
  /// rows and pixels.
  static bool is_packed(Problem const& problem, int columns, int64_t const (&strides)[3]) {
    int64_t const row = strides[2] * problem.width.output, image = row * problem.height.output;
    bool const rows = problem.height.output == 1 || strides[1] == row;
    return columns % kBlock == 0 && rows && (problem.images == 1 || strides[0] == image);
  }

  /// Encode the descriptors of the output's gradient and of the input. Return whether the driver accepts them.
  template <class Mma, class Arguments, class Params>
  static bool encode(Arguments const& arguments, Params& params) {
    Problem const& problem = arguments.problem;
    Axis const &height = problem.height, &width = problem.width;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    auto const matrix = [&](void const* pointer, int columns, int64_t const (&strides)[3], int blocks) {
      int64_t const pixels = int64_t(problem.images) * height.output * width.output;
      return kit::TmaTensor<3>{Mma::kType, Mma::kElementBytes, pointer, {kBlock, pixels, columns / kBlock},
                               {strides[2], kBlock}, {kBlock, kPixels, blocks}, {1, 1}, kBlockBytes};
    };
    params.gradient_is_packed = is_packed(problem, problem.filters, a);
    params.input_is_packed = is_pointwise(problem) && is_packed(problem, problem.channels, b);
    kit::TmaPixels const gradient{
        Mma::kType, Mma::kElementBytes, arguments.a, {problem.filters, width.output, height.output, problem.images},
        {a[2], a[1], a[0]}, {0, 0}, {0, 0}, {1, 1}, kBlock, kPixels};
    kit::TmaPixels const input{
        Mma::kType, Mma::kElementBytes, arguments.b, {problem.channels, width.size, height.size, problem.images},
        {b[2], b[1], b[0]}, {-width.pad, -height.pad}, {last_edge(width), last_edge(height)},
        {width.stride, height.stride}, kBlock, kPixels};
    bool const encoded =
        params.gradient_is_packed
            ? matrix(arguments.a, problem.filters, a, Tile::kFilterBlocks).encode(params.gradient)
            : gradient.encode(params.gradient);
    int const blocks = Tile::kChannelBlocks / params.neighbours;
    return encoded && (params.input_is_packed ? matrix(arguments.b, problem.channels, b, blocks).encode(params.input)
                                              : input.encode(params.input));
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
      if (params.gradient_is_packed && params.input_is_packed) {
        load_packed(params, storage, state);
        return;
      }
      for (; tile < end; find_pixel(params)) {
        kit::barrier_wait(storage.empty(state.index), state.phase ^ 1);
        uint32_t const full = storage.full(state.index);
        kit::arrive_and_expect_tx(full, kStage);
        uint32_t at = storage.stage(state.index);
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < Tile::kFilterBlocks; ++block, at += kBlockOfStage) {
          if (!params.gradient_is_packed) {
            kit::tma_load_pixels(at, params.gradient, full, {filter + block * kBlock, column, row, image}, {0, 0});
          } else if (block == 0) {
            kit::tma_load(at, params.gradient, full, 0, tile * kPixels, filter / kBlock);
          }
        }
        int const x = column * params.stride_width - params.pad_width;
        int const y = row * params.stride_height - params.pad_height;
        at += first_block * kBlockOfStage;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Tile::kChannelBlocks; ++i, at += kBlockOfStage) {
          if (i >= blocks) break;
          kit::PixelPlace const place{channels[i], x, y, image};
          if (params.input_is_packed) {
            if (i == 0) load_input(params, at, full);
          } else if (params.neighbours > 1) {
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
    /// Load the stages of packed tensors.
    template <class Params>
    CUTLASS_DEVICE void load_packed(Params const& params, WgradStorage<Tile> const& storage, kit::PipelineState& state) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (; tile < end; ++tile) {
        kit::barrier_wait(storage.empty(state.index), state.phase ^ 1);
        uint32_t const full = storage.full(state.index), at = storage.stage(state.index);
        kit::arrive_and_expect_tx(full, kStage);
        kit::tma_load(at, params.gradient, full, 0, tile * kPixels, filter / kBlock);
        load_input(params, at + (Tile::kFilterBlocks + first_block) * kBlockOfStage, full);
        state.advance_once(1, params.geometry.stages);
      }
    }

    /// Load the blocks of a packed input of a stage.
    template <class Params>
    CUTLASS_DEVICE void load_input(Params const& params, uint32_t at, uint32_t full) const {
      if (params.neighbours > 1) {
        kit::tma_load_multicast(at, params.input, full, receivers, 0, tile * kPixels, channels[0] / kBlock);
      } else {
        kit::tma_load(at, params.input, full, 0, tile * kPixels, channels[0] / kBlock);
      }
    }

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
