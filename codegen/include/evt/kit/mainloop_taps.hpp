#ifndef EVT_KIT_MAINLOOP_TAPS_HPP
#define EVT_KIT_MAINLOOP_TAPS_HPP

// The main loop of a convolution with few filters. A row of a tile is a tap of a filter: all pixels of a box are
// multiplied by all taps once, as in a 1x1 convolution. An output is the sum of a filter's taps, each at its pixel. The
// warps of a consumer exchange the products through shared memory. Then each warp completes a quarter of the pixels.

#include <cstdint>

#include "evt/kit/epilogue.hpp"
#include "evt/kit/mainloop.hpp"

namespace evt {
namespace kit {

/// A convolution with a stride of 1 and at most eight filters, which have at most kFilters taps together: a lane sums the
/// taps of one filter.
template <class Mma_, int Channels>
struct TapRowsMainloop : HaloMainloop<Mma_, Channels, 2> {
  using Base = HaloMainloop<Mma_, Channels, 2>;
  using Mma = Mma_;

  static constexpr bool kTapRows = true;
  static constexpr int kOfWarp = Mma::kPixels / 4, kPitch = products_pitch(Mma::kPixels);
  static_assert(kOfWarp % 8 == 0 && !Mma::kTransposed, "a warp has whole rows of WGMMA's accumulators");

  struct Operands {
    int height, width, row_pixels, column_pixels;  // taps, and the pixels from one to the next
    int filter_bytes;                              // of all taps, in a block of channels
  };

#if !defined(EVT_DEVICE_PASS)
  static Problem multiplied(Problem const& problem, KernelClass const&, int) { return over_tap_rows(problem); }

  template <class Traits>
  static bool can_implement(Arguments<Traits> const& arguments) {
    Problem const& problem = arguments.problem;
    return problem.height.stride * problem.width.stride == 1 && problem.filters <= kEight &&
           problem.filters * problem.tap_count() <= kFilters;
  }

  /// Encode the TMA descriptors: all taps of all filters are one box.
  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    Problem const& problem = arguments.problem;
    Axis const &height = problem.height, &width = problem.width;
    Geometry const& geometry = params.geometry;
    int const rows = problem.filters * problem.tap_count();
    params.operands = {height.taps, width.taps, height.dilation * geometry.row_pitch(), width.dilation,
                       rows * Base::kBlockBytes};
    auto filters = Base::filters_of(arguments);
    filters.box[1] = problem.filters;
    filters.box[2] = width.taps;
    filters.box[3] = height.taps;
    return Base::input_of(arguments, geometry).encode(params.input) && filters.encode(params.filters);
  }
#endif

  template <class Traits>
  CUTLASS_DEVICE static int filter_bytes(Params<Traits> const& params) {
    return params.operands.filter_bytes;
  }

  /// Sum the products of a tile, and compute the epilogue of the warp's pixels.
  template <class Traits>
  CUTLASS_DEVICE static void complete(Params<Traits> const& params, WorkTile const& tile, int consumer, uint32_t buffer,
                                      typename Traits::Epilogue& epilogue,
                                      typename Traits::Accumulator const (&products)[Mma::kPixels / 2]) {
    constexpr int kElements = fragment::kElements / 2;  // of eight pixels
    Operands const& operands = params.operands;
    int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32, begin = warp * kOfWarp;
    int const eighth = lane / 4, filters = params.filter_count, rows = filters * operands.height * operands.width;
    uint32_t const exchanged = buffer + lane % 4 * 8;  // at the lane's pair of eight pixels
    if constexpr (!Traits::kStaged) consumer_sync(consumer);
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = warp * Lanes::kStrip + half * 8 + eighth;
      if (row >= rows) continue;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Mma::kPixels / 8; ++i) {
        float const* const two = products + kElements * i + 2 * half;
        store_shared(exchanged + (row * kPitch + 8 * i) * 4, make_float2(two[0], two[1]));
      }
    }
    consumer_sync(consumer);
    float sums[kOfWarp / 8 * kElements] = {};
    if (eighth < filters) {
      uint32_t from = exchanged + (eighth * kPitch + begin) * 4;
      for (int y = 0; y < operands.height; ++y) {
        for (int x = 0; x < operands.width; ++x, from += filters * kPitch * 4) {
          uint32_t const at = from + (y * operands.row_pixels + x * operands.column_pixels) * 4;
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kOfWarp / 8; ++i) {
            sums[kElements * i] += load_shared_float(at + 32 * i);
            sums[kElements * i + 1] += load_shared_float(at + 32 * i + 4);
          }
        }
      }
    }
    consumer_sync(consumer);  // D is written where products were
    kit::complete<Traits, kOfWarp>(epilogue, Pixels<Traits>(params, tile, begin), sums,
                                   buffer + begin * Traits::kEpilogueRow, 0, 0);
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_TAPS_HPP
