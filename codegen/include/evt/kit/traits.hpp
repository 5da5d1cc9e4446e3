#ifndef EVT_KIT_TRAITS_HPP
#define EVT_KIT_TRAITS_HPP

// The types and constants of a kernel.

#include <type_traits>

#include "cutlass/cutlass.h"
#include "evt/fragment.hpp"
#include "evt/kit/geometry.hpp"
#include "evt/kit/staged.hpp"

namespace evt {
namespace kit {

/// A main loop and an epilogue. Shared: the CTAs of a cluster share tiles. ByImages: a tile has pixels of one image.
/// Taps share a filter stage if they fit; 0 if the size of the filters is not known. Stored: the elements that a thread
/// stores at a time where TMA cannot store D; else 0. Planar: the one matrix of the epilogue is D, whose filters are
/// planes of an image; threads store it.
template <class Mainloop_, class Epilogue_, bool Shared, bool ByImages, int Taps, int Stored, bool Planar>
struct KernelTraits {
  using Mainloop = Mainloop_;
  using Epilogue = Epilogue_;
  using Mma = typename Mainloop::Mma;
  using Accumulator = typename Mma::Accumulator;
  using Source = typename Epilogue::Source;
  using Destination = typename Epilogue::Destination;

  static constexpr int kDimensions = Mainloop::kDimensions;
  static constexpr bool kVolume = kDimensions == 3;
  static constexpr bool kResidues = Mainloop::kResidues, kTapRows = Mainloop::kTapRows;
  static constexpr int kChannels = Mainloop::kChannels;
  static constexpr int kPixels = Mma::kPixels;
  static constexpr int kPixelBytes = Mainloop::kPixelBytes;
  static constexpr bool kShared = Shared, kByImages = ByImages, kPlanar = Planar;
  static constexpr bool kGrouped = Mainloop::kGrouped;

  static constexpr int kSteps = ceil_div(kPixels, kStepPixels);
  static constexpr int kQuads = kPixels / 8, kQuadBytes = 16;  // four sums of a thread, in half a step
  static constexpr int kEpilogueRow = 2 * kFilters;            // bytes of a pixel of C and D
  using Staged = StagedOne<Source, Destination, kFilters>;
  static constexpr bool kLoadsSource = !std::is_void_v<Source>;
  static constexpr bool kStoresDestination = !std::is_void_v<Destination>;
  static constexpr int kStored = Stored;
  static_assert(Stored <= 2 && (Stored == 0 || (kStoresDestination && !Shared)), "a thread stores at most a word");
  static constexpr bool kStaged = kLoadsSource || kStoresDestination;
  static_assert(!Planar || (Stored > 0 && !kLoadsSource), "threads store planes");
  static constexpr bool kLoadsBits = fragment::LoadsBits<Epilogue>::value;
  // Whether a tile without taps is 0, and its buffer does not have C.
  static constexpr bool kKeepsZeros =
      fragment::KeepsZeros<Epilogue>::value && kResidues && kStoresDestination && !kLoadsSource;
  static constexpr bool kPaired = false;
  // Steps whose values a thread loads before their use. They take about 48 registers beside the accumulators.
  static constexpr int kOfStep = fragment::kRows + int(sizeof(typename Epilogue::Fetched)) / 4 + (kLoadsSource ? 4 : 0);
  static constexpr int kAhead = std::is_empty_v<typename Epilogue::Fetched> || kOfStep > 24 ? 1 : 48 / kOfStep;
  static constexpr KernelClass kClass{kPixels, kChannels, Mainloop::kBlockBytes, kPixelBytes, kStaged, kVolume, kShared,
                                      kResidues, kGrouped, Mainloop::kPacked, Mainloop::kWords, ByImages, Taps,
                                      kTapRows, kLoadsBits};
  static_assert(!Shared || !Mainloop::kLoadsByThreads, "CTAs cannot share the single block that threads load");

  static constexpr int kConsumers = kShared ? 1 : 2;
  static constexpr int kThreads = (1 + kConsumers) * kWarpGroup;

  /// The last 8 pixels may be half a step.
  CUTLASS_HOST_DEVICE static constexpr bool is_whole(int step) { return (step + 1) * kStepPixels <= kPixels; }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_TRAITS_HPP
