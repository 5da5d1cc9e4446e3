#ifndef EVT_KIT_WGRAD_WINDOWS_HPP
#define EVT_KIT_WGRAD_WINDOWS_HPP

// Tiles of pixels whose input is shared by the taps of a window. A stage has blocks of 64 filters of the output's
// gradient, then boxes of 64 channels of the input with its halo. A tap is the same box from some pixels on.

#include <cstdint>

#include "evt/kit/pipeline.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_params.hpp"

namespace evt {
namespace wgrad {

template <class Tile>
struct WgradWindows {
#if !defined(EVT_DEVICE_PASS)
  /// Encode the descriptors of the output's gradient and of the input. Return whether the driver accepts them.
  template <class Mma, class Arguments, class Params>
  static bool encode(Arguments const& arguments, Params& params) {
    Problem const& problem = arguments.problem;
    WgradGeometry const& geometry = params.geometry;
    Axis const &height = problem.height, &width = problem.width;
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    // Tiles of columns that taps reach beyond are a dimension, so that the gradient's next columns are zeros.
    bool const divided = geometry.pitch > geometry.columns && geometry.tiles_wide > 1;
    params.column_step = divided ? 0 : geometry.columns;
    kit::TmaTensor<5> const gradient{
        Mma::kType, Mma::kElementBytes, arguments.a,
        {problem.filters, divided ? geometry.columns : width.output, height.output, divided ? geometry.tiles_wide : 1,
         problem.images},
        {a[2], a[1], divided ? geometry.columns * a[2] : a[0], a[0]},
        {kBlock, geometry.pitch, geometry.rows, 1, 1}, {1, 1}, kBlockBytes};
    kit::TmaTensor<4> const input{
        Mma::kType, Mma::kElementBytes, arguments.b, {problem.channels, width.size, height.size, problem.images},
        {b[2], b[1], b[0]},
        {kBlock, (geometry.pitch - 1) * width.stride + 1, (geometry.box_rows - 1) * height.stride + 1, 1},
        {width.stride, height.stride}, kBlockBytes};
    return gradient.encode(params.gradient) && input.encode(params.input);
  }
#endif

  /// Write zeros after the pixels that TMA loads, by the consumers.
  template <class Params>
  CUTLASS_DEVICE static void initialize(Params const& params, WgradStorage<Tile> const& storage) {
    WgradGeometry const& geometry = params.geometry;
    int const boxes = geometry.boxes_high * geometry.boxes_wide;
    for (int i = 0; i < geometry.stages; ++i) {
      uint32_t at = storage.stage(i);
      for (int block = 0; block < Tile::kFilterBlocks; ++block, at += geometry.gradient_bytes) {
        clear(at, geometry.gradient_pixels() * kBlockBytes, geometry.gradient_bytes);
      }
      for (int box = 0; box < boxes; ++box, at += geometry.box_bytes) {
        clear(at, geometry.box_pixels() * kBlockBytes, geometry.box_bytes);
      }
    }
    kit::fence_view_async_shared();
  }

  /// The loads of an output.
  struct Loads {
    int tile, end, filter, channel;
    int first_row, first_column;  // of the input, from the first pixel of a tile

    template <class Params>
    CUTLASS_DEVICE Loads(Params const& params, WgradWork<Tile> const&, WgradOutput<Tile> const& output)
        : tile(output.first),
          end(output.end),
          filter(output.filter),
          channel(output.block * kBlock),
          first_row(output.tap_row * params.dilation_height - params.pad_height),
          first_column(output.tap_column * params.dilation_width - params.pad_width) {}

    /// Load the stages.
    template <class Params>
    CUTLASS_DEVICE void load(Params const& params, WgradStorage<Tile> const& storage, kit::PipelineState& state) {
      WgradGeometry const& geometry = params.geometry;
      int const boxes = geometry.boxes_high * geometry.boxes_wide;
      int const bytes = (Tile::kFilterBlocks * geometry.gradient_pixels() + boxes * geometry.box_pixels()) * kBlockBytes;
      for (; tile < end; ++tile) {
        int const down = tile / geometry.tiles_wide, across = tile - down * geometry.tiles_wide;
        int const image = down / geometry.tiles_high;
        int const row = (down - image * geometry.tiles_high) * geometry.rows;
        kit::barrier_wait(storage.empty(state.index), state.phase ^ 1);
        uint32_t const full = storage.full(state.index);
        kit::arrive_and_expect_tx(full, bytes);
        uint32_t at = storage.stage(state.index);
        for (int block = 0; block < Tile::kFilterBlocks; ++block, at += geometry.gradient_bytes) {
          kit::tma_load(at, params.gradient, full, filter + block * kBlock, across * params.column_step, row,
                        params.column_step == 0 ? across : 0, image);
        }
        int const y = row * params.stride_height + first_row;
        int const x = across * geometry.columns * params.stride_width + first_column;
        for (int box_y = 0; box_y < geometry.boxes_high; ++box_y) {
          int const from_y = y + remainder_of(box_y, params.dilation_height, params.stride_height);
          for (int box_x = 0; box_x < geometry.boxes_wide; ++box_x, at += geometry.box_bytes) {
            int const from_x = x + remainder_of(box_x, params.dilation_width, params.stride_width);
            kit::tma_load(at, params.input, full, channel, from_x, from_y, image);
          }
        }
        state.advance_once(1, geometry.stages);
      }
    }
  };

  /// The place of a tap in a stage, in bytes from the first box.
  template <class Params>
  CUTLASS_DEVICE static int place_of(Params const& params, int tap_row, int tap_column) {
    WgradGeometry const& geometry = params.geometry;
    int const box = tap_row % geometry.boxes_high * geometry.boxes_wide + tap_column % geometry.boxes_wide;
    int const down = tap_row * params.dilation_height / params.stride_height;
    int const right = tap_column * params.dilation_width / params.stride_width;
    return box * geometry.box_bytes + (down * geometry.pitch + right) * kBlockBytes;
  }

 private:
  /// Write zeros to bytes of shared memory.
  CUTLASS_DEVICE static void clear(uint32_t at, int first, int end) {
    constexpr int kConsuming = Tile::kThreads - kWarpGroup;
    for (int i = first + (threadIdx.x - kWarpGroup) * 4; i < end; i += kConsuming * 4) kit::store_shared(at + i, 0u);
  }

  /// The remainder of a tap's distance modulo the stride. The first taps have a box each.
  CUTLASS_DEVICE static int remainder_of(int tap, int dilation, int stride) { return tap * dilation % stride; }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_WINDOWS_HPP
