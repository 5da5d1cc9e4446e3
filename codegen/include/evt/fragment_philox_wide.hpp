#ifndef EVT_FRAGMENT_PHILOX_WIDE_HPP
#define EVT_FRAGMENT_PHILOX_WIDE_HPP

// Random numbers for a seed and an offset of 64 bits, in the epilogue of a kernel of ours.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/philox_wide.hpp"

namespace evt {
namespace fragment {

/// As Random, by Philox-4x32-10.
struct WideRandom {
  using Params = WideRandomArguments;

  uint64_t seed, offset;
  Tile tile;

  CUTLASS_DEVICE WideRandom(Params const& params, Tile const& tile)
      : seed(params.seed_ptr.read_or(params.seed)), offset(params.offset_ptr.read_or(params.offset)), tile(tile) {}

  CUTLASS_DEVICE float get(int i, Places const& places) const {
    float number[1];
    random_run<1>(number, 0, uint64_t(places.row(i)) * uint32_t(tile.columns) + tile.column(i), seed, offset);
    return number[0];
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_PHILOX_WIDE_HPP
