#ifndef EVT_VISITORS_2X_PHILOX_HPP
#define EVT_VISITORS_2X_PHILOX_HPP

// Random numbers as an epilogue visitor of CUTLASS 2.x.

#include <cstdint>

#include "evt/philox.hpp"
#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

// A leaf: a float in [0, 1) per element, a function of the seed, the offset and the element's place in the logical [L,
// M, N] tensor. SwapMN: the kernel computes the transposed problem, whose columns are the logical m.
template <class ThreadMap, bool SwapMN>
struct Random : PlainNode<RandomArguments> {
  using PlainNode<RandomArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;
    uint32_t seed, offset;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_, uint32_t seed_, uint32_t offset_)
        : tile(tile_), seed(seed_), offset(offset_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<float, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      cutlass::Array<float, FragmentSize> result;
      uint64_t const m = tile.m(row, step), n = tile.n(column), l = tile.l;
      uint64_t const extent_m = tile.extent_m, extent_n = tile.extent_n;
      uint64_t const first = SwapMN ? (l * extent_n + n) * extent_m + m : (l * extent_m + m) * extent_n + n;
      uint64_t const stride = SwapMN ? extent_m : 1;
      if (!SwapMN && FragmentSize % 2 == 0 && (first & 1) == 0) {  // both words of a block are used
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i + 1 < FragmentSize; i += 2) {
          auto const words = evt::random_pair((first + uint64_t(i)) >> 1, seed, offset);
          result[i] = evt::uniform(words.x);
          result[i + 1] = evt::uniform(words.y);
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < FragmentSize; ++i) {
          result[i] = evt::random_uniform(first + uint64_t(i) * stride, seed, offset);
        }
      }
      return result;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    auto const& params = *this->params_ptr;
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape),
                     params.seed_ptr != nullptr ? *params.seed_ptr : params.seed,
                     params.offset_ptr != nullptr ? *params.offset_ptr : params.offset);
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_PHILOX_HPP
