#ifndef EVT_EPILOGUE_VECTOR_STORE_HPP
#define EVT_EPILOGUE_VECTOR_STORE_HPP

// Stores of values that do not vary over rows, columns or both: each is written once, by the thread that has it in the
// first row or column of the problem.

#include <cstdint>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// Stores a value for every column (Kept 1), for every row (Kept 0), or one (Kept -1).
template <class Element, int Kept>
struct VectorStore {
  static_assert(Kept >= -1 && Kept <= 1, "nothing, M or N");

  struct Arguments {
    Element* ptr = nullptr;
    int64_t stride = 0;    // from element to element
    int64_t stride_l = 0;  // 0: there is one for all batches, which the first of them writes
  };

  template <class Lanes>
  struct On : State<Lanes, Arguments> {
    using State<Lanes, Arguments>::State;

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) const {
      auto const& lanes = this->lanes;
      bool const is_first = (Kept == 0 || lanes.row(at, 0) == 0) && (Kept == 1 || lanes.column(at, 0) == 0);
      if (is_first && (lanes.batch() == 0 || this->arguments.stride_l != 0)) {
        Element* const to = this->arguments.ptr + lanes.batch() * this->arguments.stride_l;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          bool const is_kept = (Kept == 0 || Lanes::row_offset(i) == 0) && (Kept == 1 || Lanes::column_offset(i) == 0);
          if (is_kept && lanes.has(at, i)) {
            int64_t const place = Kept == 0 ? lanes.row(at, i) : Kept == 1 ? lanes.column(at, i) : 0;
            to[place * this->arguments.stride] = Lanes::template convert_one<Element>(Input(input[i]));
          }
        }
      }
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_VECTOR_STORE_HPP
