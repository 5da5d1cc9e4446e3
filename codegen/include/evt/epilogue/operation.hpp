#ifndef EVT_EPILOGUE_OPERATION_HPP
#define EVT_EPILOGUE_OPERATION_HPP

// The operations of an epilogue, each written once for all families of kernels.
//
// An operation is a struct: its template arguments and its `Arguments` say what it does. `On<Lanes>` is its state in one
// thread while a tile is visited. An adaptor calls it: visitor_3x.hpp and visitor_2x.hpp make it a node of CUTLASS's
// visitor trees, part.hpp makes it a member of the epilogue of an own kernel.
//
//   On(arguments, lanes, shared)        at the start of a tile; `shared` is its SharedStorage, if it has one
//   begin()                             at the start of a tile, when global memory may be read
//   fetch(fetched, step)                loads a step's elements into `Fetched`, ahead of their use
//   visit(at, [fetched,] inputs...)     the value of a fragment; a store and a reduction give none
//   reduce(at), end()                   after all fragments of a step, and after all steps
//
// Lanes is the place of a thread's elements. A tile is visited in steps; a thread has kFragments fragments of each step,
// of kSize elements. `at` names one fragment.
//
//   row(at, i), column(at, i), batch()  where element i of a fragment is in the problem
//   row_offset(i), column_offset(i)     the place of element i relative to the fragment's first, at compile time
//   has(at, i), has_row(at, i), has_column(at, i)      whether it is inside of the problem
//   for_each_column(at, f)              f(i) for the elements whose columns are inside of the problem
//   at(step, f)                         fragment f of a step
//   Pairs<Block>, Blocks<Width>, Bits, Runs            where pairs, blocks, bits and neighbours of a row are; how lanes
//                                       exchange their elements
//   RowTotals, ColumnTotals, ...        how the partial results of a reduction are held and combined
//   Array, convert, generate, loaded, stored           the types of fragments: types_cutlass.hpp, types_own.hpp

#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {
namespace epilogue {

struct NoArguments {};

/// The state of an operation that only knows its place.
template <class Lanes_, class Arguments_ = NoArguments>
struct State {
  using Lanes = Lanes_;
  using Arguments = Arguments_;
  using At = typename Lanes::At;

  Lanes lanes;
  Arguments const& arguments;

  CUTLASS_DEVICE State(Arguments const& arguments, Lanes const& lanes) : lanes(lanes), arguments(arguments) {}
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_OPERATION_HPP
