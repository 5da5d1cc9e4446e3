#ifndef EVT_EPILOGUE_VECTOR_HPP
#define EVT_EPILOGUE_VECTOR_HPP

// Scalar, row and column broadcasts with any alignment and stride. A null pointer selects a value from the arguments.
// CUTLASS 3.x's kernels use CUTLASS's broadcasts instead.

#include <cstdint>

#include "evt/element.hpp"
#include "evt/epilogue/operation.hpp"

namespace evt {
namespace epilogue {

/// A leaf: one value, at a pointer or by value if the pointer is null.
template <class Element>
struct Scalar {
  struct Arguments {
    Element const* ptr;
    element::Register<Element> number;
  };

  template <class Lanes>
  struct On {
    element::Register<Element> value;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const&)
        : value(arguments.ptr == nullptr ? element::round_to<Element>(arguments.number)
                                         : element::load(*arguments.ptr)) {}

    CUTLASS_DEVICE auto visit(typename Lanes::At const&) const {
      return Lanes::template generate<element::Register<Element>, Lanes::kSize>([&](int) { return value; });
    }
  };
};

template <class Element>
struct VectorArguments {
  Element const* ptr;
  int64_t stride;                     // 0: one value for all
  element::Register<Element> number;  // the value if ptr is null
};

/// A row broadcast: one value per column, loaded at the start of a tile.
template <class Element>
struct RowBroadcast {
  using Arguments = VectorArguments<Element>;

  template <class Lanes>
  struct On {
    element::Register<Element> values[Lanes::kColumns][Lanes::kSize];

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes) {
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < Lanes::kColumns; ++column) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          int const n = lanes.column_of_tile(column, i);
          values[column][i] = element::round_to<Element>(arguments.number);
          if (arguments.ptr != nullptr && n < lanes.extent_n()) {
            values[column][i] = element::load(arguments.ptr[n * arguments.stride]);
          }
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at) const {
      return Lanes::template generate<element::Register<Element>, Lanes::kSize>(
          [&](int i) { return values[Lanes::column_number(at)][i]; });
    }
  };
};

/// A column broadcast: one value per row.
template <class Element>
struct ColumnBroadcast {
  using Arguments = VectorArguments<Element>;

  template <class Lanes>
  struct On : State<Lanes, Arguments> {
    using State<Lanes, Arguments>::State;

    struct Fetched {
      Element values[Lanes::kRows];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < Lanes::kRows; ++row) {
        int const m = this->lanes.row_of_step(step, row);
        if (this->arguments.ptr != nullptr && this->lanes.is_row(m)) {
          fetched.values[row] = this->arguments.ptr[m * this->arguments.stride];
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      auto const value = this->arguments.ptr == nullptr ? element::round_to<Element>(this->arguments.number)
                                                        : element::load(fetched.values[Lanes::row_number(at)]);
      return Lanes::template generate<element::Register<Element>, Lanes::kSize>([&](int) { return value; });
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_VECTOR_HPP
