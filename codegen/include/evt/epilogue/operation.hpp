#ifndef EVT_EPILOGUE_OPERATION_HPP
#define EVT_EPILOGUE_OPERATION_HPP

// The operations of an epilogue, written once for all families of kernels.
//
// An operation is a struct with template arguments and run-time `Arguments`. `On<Lanes>` is its state in one thread
// during a tile. An adaptor calls it: visitor_3x.hpp makes it a node of CUTLASS's visitor trees, lanes_own.hpp a member
// of an own kernel's epilogue.
//
//   On(arguments, lanes, shared)        at the start of a tile; `shared` is its SharedStorage, if it has one
//   begin()                             at the start of a tile, when global memory may be read
//   fetch(fetched, step)                loads a step's elements into `Fetched`, ahead of their use
//   visit(at, [fetched,] inputs...)     the value of a fragment; stores and reductions return nothing
//   follow(first)                       takes the values of rows that lanes exchanged for the first block of columns;
//                                       optional
//   reduce(at), end()                   after all fragments of a step, and after all steps
//
// Lanes describes the places of a thread's elements. A tile is visited in steps. A thread has kFragments fragments of
// each step, with kSize elements each. `at` names one fragment.
//
//   row(at, i), column(at, i), batch()  the coordinates of element i of a fragment
//   row_offset(i), column_offset(i)     the place of element i relative to the fragment's first, at compile time
//   has(at, i), has_row(at, i), has_column(at, i)      whether it is inside of the problem
//   for_each_column(at, f)              f(i) for the elements whose columns are inside of the problem
//   at(step, f)                         fragment f of a step
//   Pairs<Block>, Blocks<Width>, Bits, Runs            the places of pairs, blocks, bits and runs of columns, and
//                                       the exchanges between lanes
//   RowTotals, ColumnTotals, ...        the state of a reduction, and how lanes combine it
//   Array, convert, generate, loaded, stored           the types of fragments: types_cutlass.hpp, types_own.hpp

#include <cstdint>

#include "cutlass/cutlass.h"

namespace evt {
namespace epilogue {

struct NoArguments {};

/// The state of an operation that needs its place alone.
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
