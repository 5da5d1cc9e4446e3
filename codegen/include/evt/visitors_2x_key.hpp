#ifndef EVT_VISITORS_2X_KEY_HPP
#define EVT_VISITORS_2X_KEY_HPP

// Values with their coordinates, for argmax and argmin reductions of the CUTLASS 2.x kernels.

#include <cstdint>

#include "evt/place.hpp"
#include "evt/visitors_2x.hpp"

namespace evt {
namespace threadblock {

// The keys of the input's elements. Their coordinates are rows (Mode 0) or columns (1).
template <class ThreadMap, int Mode, bool Least>
struct PlaceKeys : PlainNode<NoArguments> {
  static_assert(Mode == 0 || Mode == 1, "Mode is M or N");

  using PlainNode<NoArguments>::PlainNode;

  struct Callbacks : EmptyCallbacks {
    Tile<ThreadMap> tile;

    CUTLASS_DEVICE
    Callbacks(Tile<ThreadMap> const& tile_) : tile(tile_) {}

    template <class ElementAccumulator, class ElementInput, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<int64_t, FragmentSize> visit(
        int step, int row, int column, int, cutlass::Array<ElementAccumulator, FragmentSize> const&,
        cutlass::Array<ElementInput, FragmentSize> const& input) {
      using Value = evt::detail::Reduced<ElementInput>;
      auto const values = evt::convert_array<Value>(input);
      int const first = Mode == 0 ? tile.m(row, step) : tile.n(column);
      return evt::generate_array<int64_t, FragmentSize>(
          [&](int i) { return key_of<Least>(Value(values[i]), Mode == 0 ? first : first + i); });
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread_idx, ProblemShape problem_shape) {
    return Callbacks(Tile<ThreadMap>(tile, thread_idx, problem_shape));
  }
};

}  // namespace threadblock
}  // namespace evt

#endif  // EVT_VISITORS_2X_KEY_HPP
