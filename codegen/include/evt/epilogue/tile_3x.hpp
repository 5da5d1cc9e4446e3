#ifndef EVT_EPILOGUE_TILE_3X_HPP
#define EVT_EPILOGUE_TILE_3X_HPP

// The tile of a CTA in CUTLASS 3.x's kernels, which the epilogue visits in sub-tiles (step_m, step_n).

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"

#include "evt/epilogue/tile_cutlass.hpp"
#include "evt/epilogue/tree_3x.hpp"

namespace evt {
namespace epilogue {

template <int TileM, int TileN, int ColumnParts, int Parts>
struct Tile3x : Tile<TileM, TileN, ColumnParts, Parts> {
  static constexpr int kFragments = 1;
  static constexpr bool kKeepsPart = false;  // whether a reduction keeps its part's address in registers

  struct At {
    int step_m, step_n;
  };
  using Step = At;

  template <class... Args>
  CUTLASS_DEVICE explicit Tile3x(fusion::ConsumerStoreArgs<Args...> const& args)
      : Tile<TileM, TileN, ColumnParts, Parts>{
            int(cute::get<0>(args.problem_shape_mnkl)) - int(cute::get<0>(args.residue_tCcD)),
            int(cute::get<1>(args.problem_shape_mnkl)) - int(cute::get<1>(args.residue_tCcD)),
            int(cute::get<3>(args.tile_coord_mnkl)),
            int(cute::get<0>(args.problem_shape_mnkl)),
            int(cute::get<1>(args.problem_shape_mnkl)),
            int(cute::get<0>(args.tile_coord_mnkl)),
            int(cute::get<1>(args.tile_coord_mnkl)),
            args.thread_idx} {}

  CUTLASS_DEVICE static At at(Step const& step, int) { return step; }
  CUTLASS_DEVICE static int fragment(At const&) { return 0; }
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_TILE_3X_HPP
