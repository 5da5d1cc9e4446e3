#ifndef EVT_VISITORS_3X_RANDOM_HPP
#define EVT_VISITORS_3X_RANDOM_HPP

// Random numbers for a seed and an offset of 64 bits, for kernels of CUTLASS 3.x.

#include <cstdint>

#include "evt/philox_wide.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

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
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      uint64_t const extent_m = uint64_t(tile.extent_m), extent_n = uint64_t(tile.extent_n), l = uint64_t(tile.l);
      bool const pairs = !SwapMN && tile.extent_n % 2 == 0;  // a thread's two columns are in one block
      cutlass::Array<float, FragmentSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < FragmentSize; i += 2) {
        uint64_t const m = uint64_t(tile.row(step_m) + detail::row_of(i));
        uint64_t const n = uint64_t(tile.column(step_n) + detail::column_of(i));
        uint64_t const element = SwapMN ? (l * extent_n + n) * extent_m + m : (l * extent_m + m) * extent_n + n;
        if (pairs) {
          random_run<2>(result, i, element, seed, offset);
        } else {
          random_run<1>(result, i, element, seed, offset);
          random_run<1>(result, i + 1, element + (SwapMN ? extent_m : 1), seed, offset);
        }
      }
      return result;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    Tile const tile(args);
    Params const& params = *this->params_ptr;
    return Callbacks<cute::remove_cv_t<decltype(tile)>>(
        tile, params.seed_ptr.read_or(params.seed), params.offset_ptr.read_or(params.offset));
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_RANDOM_HPP
