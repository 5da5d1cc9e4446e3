#ifndef EVT_VISITORS_3X_PHILOX_HPP
#define EVT_VISITORS_3X_PHILOX_HPP

// Random numbers as an epilogue visitor of CUTLASS 3.x on sm90.

#include <cstdint>

#include "evt/philox.hpp"
#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

// A leaf: a float in [0, 1) for every element, a function of the seed, the offset and the element's place in the
// logical [L, M, N] tensor. SwapMN: the kernel computes the transposed problem, its columns are the logical m.
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
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int step_m, int step_n) {
      static_assert(FragmentSize == Tile::kFragment, "a fragment is a thread's part of a sub-tile");
      cutlass::Array<float, FragmentSize> result;
      if (!SwapMN && tile.extent_n % 2 == 0) {
        // A thread's two columns are one pair. The low word of its number is all that counts.
        uint32_t const row_pairs = uint32_t(tile.extent_n) / 2;
        uint32_t const first = (uint32_t(tile.l) * uint32_t(tile.extent_m) + uint32_t(tile.row(step_m))) * row_pairs +
                               uint32_t(tile.column(step_n)) / 2;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; i += 2) {
          uint32_t const pair = first + uint32_t(detail::row_of(i)) * row_pairs + uint32_t(detail::column_of(i) / 2);
          PhiloxWords const words = random_pair(pair, seed, offset);
          result[i] = uniform(words.x);
          result[i + 1] = uniform(words.y);
        }
      } else {
        uint64_t const extent_m = uint64_t(tile.extent_m), extent_n = uint64_t(tile.extent_n), l = uint64_t(tile.l);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          uint64_t const m = uint64_t(tile.row(step_m) + detail::row_of(i));
          uint64_t const n = uint64_t(tile.column(step_n) + detail::column_of(i));
          uint64_t const element = SwapMN ? (l * extent_n + n) * extent_m + m : (l * extent_m + m) * extent_n + n;
          result[i] = random_uniform(element, seed, offset);
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
        tile, params.seed_ptr != nullptr ? *params.seed_ptr : params.seed,
        params.offset_ptr != nullptr ? *params.offset_ptr : params.offset);
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_PHILOX_HPP
