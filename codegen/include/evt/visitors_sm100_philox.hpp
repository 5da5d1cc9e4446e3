#ifndef EVT_VISITORS_SM100_PHILOX_HPP
#define EVT_VISITORS_SM100_PHILOX_HPP

// Random numbers as an epilogue visitor of CUTLASS 3.x on sm100 and sm103.

#include <cstdint>

#include "evt/philox.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

// A leaf: a float in [0, 1) for every element, as fusion::Random.
template <bool SwapMN>
struct Random : Node<RandomArguments> {
  using Node<RandomArguments>::Node;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;
    uint32_t seed, offset;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_, uint32_t seed_, uint32_t offset_) : tile(tile_), seed(seed_), offset(offset_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<float, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n) {
      static_assert(FragmentSize == Tile::kColumns && FragmentSize % 2 == 0, "a fragment is pairs of columns");
      uint64_t const extent_m = uint64_t(tile.extent_m), extent_n = uint64_t(tile.extent_n), l = uint64_t(tile.l);
      uint64_t const m = uint64_t(tile.m), n = uint64_t(tile.column(step_n));
      cutlass::Array<float, FragmentSize> result;
      if (!SwapMN && tile.extent_n % 2 == 0) {
        // Two neighbouring columns are one pair. The low word of its number is all that counts.
        uint32_t const first = uint32_t(((l * extent_m + m) * extent_n + n) / 2);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; i += 2) {
          PhiloxWords const words = philox(first + uint32_t(i / 2), offset, seed);
          result[i] = uniform(words.x);
          result[i + 1] = uniform(words.y);
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          uint64_t const element =
              SwapMN ? (l * extent_n + n + i) * extent_m + m : (l * extent_m + m) * extent_n + n + i;
          result[i] = random_uniform(element, seed, offset);
        }
      }
      return result;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    Params const& params = *this->params_ptr;
    return Callbacks<KernelTile>(KernelTile(args), params.seed_ptr != nullptr ? *params.seed_ptr : params.seed,
                                 params.offset_ptr != nullptr ? *params.offset_ptr : params.offset);
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_PHILOX_HPP
