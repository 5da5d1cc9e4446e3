#ifndef EVT_EPILOGUE_VECTOR_HPP
#define EVT_EPILOGUE_VECTOR_HPP

// Scalar, row and column broadcasts with any alignment and stride. A null pointer selects a value from the arguments.
// CUTLASS's kernels use these where CUTLASS has no broadcast.

#include <cstdint>

#include "evt/epilogue/operation.hpp"
#include "evt/epilogue/row.hpp"
#include "evt/epilogue/traits.hpp"

namespace evt {
namespace epilogue {

/// A leaf: one value, at a pointer or by value if the pointer is null.
template <class Element, class Number>
struct Scalar {
  struct Arguments {
    Element const* ptr = nullptr;
    Number number = Number(0);
    int64_t stride_l = 0;
  };

  template <class Lanes>
  struct On {
    using Register = typename Lanes::template Register<Element>;

    Register value;

    CUTLASS_DEVICE On(Arguments const& arguments, [[maybe_unused]] Lanes const& lanes)
        : value(arguments.ptr == nullptr
                    ? Lanes::template rounded<Element>(arguments.number)
                    : Lanes::in_register(arguments.ptr[lanes.batch() * arguments.stride_l])) {}

    CUTLASS_DEVICE auto visit(typename Lanes::At const&) const {
      return Lanes::template generate<Register, Lanes::kSize>([&](int) { return value; });
    }
  };
};

/// Number is the compute type of Element.
template <class Element, class Number>
struct VectorArguments {
  int64_t stride_l = 0;
  Element const* ptr = nullptr;
  int64_t stride = 0;         // 0: one value for all. Fragments of several columns take rows of stride 0 or 1
  Number number = Number(0);  // the value if ptr is null

  /// Value i of a vector, which is Packed if its stride is 1 and its pointer not null. `exists`: whether it may be read.
  template <class Lanes, bool Packed>
  CUTLASS_DEVICE auto load(Element const* vector, int i, bool exists) const {
    auto value = Lanes::template rounded<Element>(number);
    if constexpr (Packed) {
      if (exists) value = Lanes::in_register(vector[i]);
    } else {
      if (ptr != nullptr && exists) value = Lanes::in_register(vector[i * stride]);
    }
    return value;
  }
};

/// A row broadcast: one value per column, loaded at the start of a tile.
template <class Element, class Number, bool Packed = false>
struct RowBroadcast {
  using Arguments = VectorArguments<Element, Number>;

  template <class Lanes>
  struct On {
    using Register = typename Lanes::template Register<Element>;

    Register values[Lanes::kColumns][Lanes::kSize];

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes) {
      Element const* const vector = arguments.ptr + lanes.batch() * arguments.stride_l;
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < Lanes::kColumns; ++column) {
        int const n = lanes.column_of_tile(column, 0);
        if constexpr (Lanes::kSize > 1) {
          if (arguments.ptr != nullptr && arguments.stride != 0) {
            Element run[Lanes::kSize];
            load_row(run, vector + n, lanes.extent_n() - n);
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < Lanes::kSize; ++i) {
              values[column][i] = Lanes::in_register(run[i]);
            }
            continue;
          }
        }
        Register const value = arguments.template load<Lanes, Packed>(vector, n, n < lanes.extent_n());
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          values[column][i] = value;
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at) const {
      return Lanes::template generate<Register, Lanes::kSize>(
          [&](int i) { return values[Lanes::column_number(at)][i]; });
    }
  };
};

/// A column broadcast: one value per row.
template <class Element, class Number, bool Packed = false>
struct ColumnBroadcast {
  using Arguments = VectorArguments<Element, Number>;

  /// Lanes exchange the values of consecutive rows, which they load at the start of a tile.
  template <class Lanes, bool OfTile = (TileRows<Lanes>::value > 0)>
  struct On {
    using Register = typename Lanes::template Register<Element>;

    struct Fetched {};

    typename Lanes::template RowValues<Register> values;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes) : values(lanes, [&](int m, bool exists) {
      Element const* const vector = arguments.ptr + lanes.batch() * arguments.stride_l;
      return arguments.template load<Lanes, Packed>(vector, m, exists);
    }) {}

    CUTLASS_DEVICE void fetch(Fetched&, typename Lanes::Step const&) const {}

    CUTLASS_DEVICE void follow(On const& first) { values.follow(first.values); }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const&) {
      auto const value = values.get(at);
      return Lanes::template generate<Register, Lanes::kSize>([&](int) { return value; });
    }
  };

  template <class Lanes>
  struct On<Lanes, false> : State<Lanes, Arguments> {
    using State<Lanes, Arguments>::State;
    using Register = typename Lanes::template Register<Element>;

    static constexpr bool kOfTile = true;  // all steps are fetched at the start of a tile if their number is known

    struct Fetched {
      Element values[Lanes::kRows];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      auto const& arguments = this->arguments;
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < Lanes::kRows; ++row) {
        int const m = this->lanes.row_of_step(step, row);
        if (arguments.ptr != nullptr && this->lanes.is_row(m)) {
          fetched.values[row] = arguments.ptr[this->lanes.batch() * arguments.stride_l + m * arguments.stride];
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      auto const value = this->arguments.ptr == nullptr ? Lanes::template rounded<Element>(this->arguments.number)
                                                        : Lanes::in_register(fetched.values[Lanes::row_number(at)]);
      return Lanes::template generate<Register, Lanes::kSize>([&](int) { return value; });
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_VECTOR_HPP
