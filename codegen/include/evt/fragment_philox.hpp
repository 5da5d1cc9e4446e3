#ifndef EVT_FRAGMENT_PHILOX_HPP
#define EVT_FRAGMENT_PHILOX_HPP

// Random numbers in the epilogue of a kernel of ours.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/philox.hpp"

namespace evt {
namespace fragment {

/// A float in [0, 1) for every element, a function of the seed, the offset and the element's place in the matrix.
struct Random {
  using Params = RandomArguments;

  uint32_t seed, offset;
  Tile tile;

  CUTLASS_DEVICE Random(Params const& params, Tile const& tile)
      : seed(params.seed_ptr != nullptr ? *params.seed_ptr : params.seed),
        offset(params.offset_ptr != nullptr ? *params.offset_ptr : params.offset),
        tile(tile) {}

  CUTLASS_DEVICE float get(int i, Places const& places) const {
    return random_uniform(uint64_t(places.row(i)) * uint32_t(tile.columns) + tile.column(i), seed, offset);
  }
};

}  // namespace fragment
}  // namespace evt

#endif  // EVT_FRAGMENT_PHILOX_HPP
