#ifndef EVT_VISITORS_SM100_RANDOM_HPP
#define EVT_VISITORS_SM100_RANDOM_HPP

// Random numbers for a seed and an offset of 64 bits, for the CUTLASS 3.x kernels of sm100 and sm103.

#include <cstdint>

#include "evt/philox_wide.hpp"
#include "evt/visitors_sm100.hpp"

namespace evt {
namespace sm100 {

// A leaf: as Random, by Philox-4x32-10.
template <bool SwapMN>
struct WideRandom : Node<WideRandomArguments> {
  using Node<WideRandomArguments>::Node;

  template <class Tile>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    Tile tile;
    uint64_t seed, offset;

    CUTLASS_DEVICE
    Callbacks(Tile const& tile_, uint64_t seed_, uint64_t offset_) : tile(tile_), seed(seed_), offset(offset_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<float, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int step_n) {
      constexpr int kRun = FragmentSize % 4 == 0 ? 4 : 2;
      static_assert(FragmentSize == Tile::kColumns && FragmentSize % 2 == 0, "a fragment is pairs of columns");
      uint64_t const extent_m = uint64_t(tile.extent_m), extent_n = uint64_t(tile.extent_n), l = uint64_t(tile.l);
      uint64_t const m = uint64_t(tile.m), n = uint64_t(tile.column(step_n));
      uint64_t const first = SwapMN ? (l * extent_n + n) * extent_m + m : (l * extent_m + m) * extent_n + n;
      uint64_t const stride = SwapMN ? extent_m : 1;
      cutlass::Array<float, FragmentSize> result;
      if (!SwapMN && first % kRun == 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; i += kRun) {
          random_run<kRun>(result, i, first + uint64_t(i), seed, offset);
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          random_run<1>(result, i, first + uint64_t(i) * stride, seed, offset);
        }
      }
      return result;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    using KernelTile = TileOf<ConsumerStoreArgs<Args...>>;
    Params const& params = *this->params_ptr;
    return Callbacks<KernelTile>(KernelTile(args), params.seed_ptr.read_or(params.seed),
                                 params.offset_ptr.read_or(params.offset));
  }
};

}  // namespace sm100
}  // namespace evt

#endif  // EVT_VISITORS_SM100_RANDOM_HPP
