#ifndef EVT_VISITORS_2X_PHILOX_WIDE_HPP
#define EVT_VISITORS_2X_PHILOX_WIDE_HPP

// Random numbers for a seed and an offset of 64 bits, for kernels of CUTLASS 2.x.

#include <cstdint>

#include "evt/philox_wide.hpp"
#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

// A leaf: Random by Philox-4x32-10.
template <class ThreadMap, bool SwapMN>
struct WideRandom : PlainNode<WideRandomArguments> {
  using PlainNode<WideRandomArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;
    uint64_t seed, offset;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_, uint64_t seed_, uint64_t offset_)
        : tile(tile_), seed(seed_), offset(offset_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<float, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&) {
      constexpr int kRun = FragmentSize % 4 == 0 ? 4 : FragmentSize % 2 == 0 ? 2 : 1;
      cutlass::Array<float, FragmentSize> result;
      uint64_t const m = tile.m(row, step), n = tile.n(column), l = tile.l;
      uint64_t const extent_m = tile.extent_m, extent_n = tile.extent_n;
      uint64_t const first = SwapMN ? (l * extent_n + n) * extent_m + m : (l * extent_m + m) * extent_n + n;
      uint64_t const stride = SwapMN ? extent_m : 1;
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

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    auto const& params = *this->params_ptr;
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape), params.seed_ptr.read_or(params.seed),
                     params.offset_ptr.read_or(params.offset));
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_PHILOX_WIDE_HPP
