#ifndef EVT_EPILOGUE_VECTOR_STORE_HPP
#define EVT_EPILOGUE_VECTOR_STORE_HPP

// Stores of values that are constant over rows, columns or both. The thread with the first row or column of the problem
// writes each value once.

#include <cstdint>

#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// Store one value per column (Kept 1), one per row (Kept 0), or one in all (Kept -1).
template <class Element, int Kept>
struct VectorStore {
  static_assert(Kept >= -1 && Kept <= 1, "Kept is nothing, M or N");

  struct Arguments {
    Element* ptr = nullptr;
    int64_t stride = 0;    // between elements
    int64_t stride_l = 0;  // 0: one result for all batches, written by the first batch
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
