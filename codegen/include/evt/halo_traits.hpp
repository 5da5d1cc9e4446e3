#ifndef EVT_HALO_TRAITS_HPP
#define EVT_HALO_TRAITS_HPP

// What the parts of the kernel of halo.hpp know at compile time: the types and constants of one convolution.

#include <type_traits>

#include "cutlass/cutlass.h"
#include "evt/halo_taps.hpp"
#include "evt/halo_windows.hpp"
#include "evt/hopper.hpp"

namespace evt {
namespace halo {

/// Made of the parameters of Kernel, and itself the one parameter, `Traits`, of whatever depends on them.
template <class Mma_, int Plane, class Epilogue_, int Dimensions, bool Shared, int WindowChannels, int StrideWidth>
struct KernelTraits {
  using Mma = Mma_;
  using Epilogue = Epilogue_;
  using Accumulator = typename Mma::Accumulator;
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;

  static constexpr int kPlane = Plane;
  static constexpr int kDimensions = Dimensions;
  static constexpr bool kShared = Shared;
  static constexpr int kWindowChannels = WindowChannels;
  static constexpr int kStrideWidth = StrideWidth;

  static constexpr int kPixels = Mma::kPixels;
  static constexpr int kPlaneBytes = kPlane * Mma::kElementBytes;
  static constexpr bool kWindows = kWindowChannels > 0;
  static constexpr int kPixelBytes = kWindows ? kWindowBytes : kPlaneBytes;
  using Widened = FewChannels<Mma::kElementBytes, kWindows ? kWindowChannels : 1, kStrideWidth>;  // f32 is TF32
  using Filters = FilterRows<Mma::kElementBytes, kPlane, Mma::kTransposed>;
  static constexpr int kInstructions = kPlaneBytes / hopper::kDepthBytes;
  static constexpr int kSteps = ceil_div(kPixels, kStepPixels);
  static constexpr int kQuads = kPixels / 8, kQuadBytes = 16;  // four sums of a thread, in half a step
  static constexpr int kEpilogueRow = 2 * kFilters;  // bytes of a pixel of C and D
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr bool kStaged = kLoadsSource || kStoresDestination;
  static constexpr bool kVolume = kDimensions == 3;
  static constexpr KernelClass kClass{kPixels, kPlane, kPlaneBytes, kPixelBytes, kStaged, kVolume, kShared};
  static_assert(kDepthBytes == hopper::kDepthBytes, "bytes of k of one WGMMA");
  static_assert(!kWindows || !(kVolume || Mma::kTransposed), "windows are those of an image that is multiplied forward");
  static_assert(!kWindows || !kShared, "windows are one plane, which thread blocks cannot share");

  static constexpr int kConsumers = kShared ? 1 : 2;
  static constexpr int kThreads = (1 + kConsumers) * kWarpGroup;

  /// Of kPixels the last 8 may be half a step.
  CUTLASS_HOST_DEVICE static constexpr bool is_whole(int step) { return (step + 1) * kStepPixels <= kPixels; }
};

}  // namespace halo
}  // namespace evt

#endif  // EVT_HALO_TRAITS_HPP
