#ifndef EVT_EPILOGUE_INDEXED_HPP
#define EVT_EPILOGUE_INDEXED_HPP

// Tensors with indexed rows or columns: gathered by loads, scattered by stores. An index below zero or beyond the
// tensor's extent loads zero and skips the store. A thread moves runs of neighbouring columns at a time.

#include <cstdint>
#include <type_traits>

#include "evt/epilogue/operation.hpp"
#include "evt/epilogue/row.hpp"

namespace evt {

// Rows or columns in order.
struct InOrder {
  CUTLASS_DEVICE int64_t operator()(int, int i) const { return i; }
};

// Rows or columns selected by an index.
template <class Integer>
struct At {
  Integer const* index = nullptr;
  int64_t stride_l = 0;
  int64_t extent = 0;

  // Negative if the index is out of range.
  CUTLASS_DEVICE int64_t operator()(int l, int i) const {
    int64_t const place = int64_t(index[l * stride_l + i]);
    return place < extent ? place : -1;
  }
};

namespace epilogue {

/// Stride holds the strides of rows, columns and batches. Element is const for loads.
template <class Element, class Rows, class Columns, class Stride>
struct IndexedArguments {
  Element* ptr = nullptr;
  Stride stride = {};
  Rows rows = {};
  Columns columns = {};
};

/// The state of an indexed tensor. Lanes::Rows looks up the rows that a thread visits.
template <class Lanes, class Element, class Rows, class Columns, class Stride>
struct IndexedState : State<Lanes, IndexedArguments<Element, Rows, Columns, Stride>> {
  using Base = State<Lanes, IndexedArguments<Element, Rows, Columns, Stride>>;
  using Value = std::remove_const_t<Element>;
  using Runs = typename Lanes::Runs;
  static constexpr int kRun = Runs::kSize;

  // Whether columns are contiguous in memory, or have stride 0.
  static constexpr bool kInOrder = std::is_same_v<Columns, InOrder>;
  static constexpr bool kNeighbours = kInOrder && Lanes::template is_stride<1, 1, Stride>;
  static constexpr bool kAlike = kInOrder && Lanes::template is_stride<1, 0, Stride>;

  using Row = typename Lanes::template RowOf<Element>;

  typename Lanes::template RowTable<Row> found_rows;
  typename Lanes::ColumnTable found_columns;

  using Base::Base;

  CUTLASS_DEVICE void begin() {
    found_rows.begin(this->lanes, [&](int m) { return find_row(m); });
    found_columns.begin(this->lanes, [&](int n) { return find_column(n); });
  }

  /// The tensor's row of an element; null or negative if the index is out of range.
  CUTLASS_DEVICE Row row(typename Lanes::At const& at, int i) {
    return found_rows.get(this->lanes, at, i, [&](int m) { return find_row(m); });
  }

  CUTLASS_DEVICE Row find_row(int m) const {
    auto const& arguments = this->arguments;
    int const l = this->lanes.batch();
    int64_t const place = this->lanes.is_row(m) ? arguments.rows(l, m) : -1;
    return Lanes::make_row(arguments.ptr, arguments.stride, l, place);
  }

  CUTLASS_DEVICE int64_t find_column(int n) const {
    return n < this->lanes.end_n() ? this->arguments.columns(this->lanes.batch(), n) : -1;
  }

  /// Load elements of a row, from element i on. Elements outside of the tensor are zeros.
  CUTLASS_DEVICE void load(Value (&to)[kRun], Row row, typename Lanes::At const& at, int first) const {
    [[maybe_unused]] int const n = this->lanes.column(at, first);
    if constexpr (kAlike) {
      Value const value = Lanes::is_there(row) ? *row : Value{};
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRun; ++i) {
        to[i] = value;
      }
      return;
    }
    if constexpr (kNeighbours) {
      if (Lanes::is_there(row) && n + kRun <= this->lanes.end_n() && Neighbours<Value, kRun>::allows(row + n)) {
        Neighbours<Value, kRun>::load(to, row + n);
        return;
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRun; ++i) {
      int64_t const place = column(row, at, first + i);
      Element const* const from = &element(row, place);  // outside of the branch: elements share parts of their addresses
      to[i] = Lanes::is_there(row) && place >= 0 ? *from : Value{};
    }
  }

  /// Store elements of a row, from element i on, if they are inside of the tensor.
  CUTLASS_DEVICE void store(Value const (&from)[kRun], Row row, typename Lanes::At const& at, int first) const {
    [[maybe_unused]] int const n = this->lanes.column(at, first);
    if constexpr (kNeighbours) {
      if (Lanes::is_there(row) && n + kRun <= this->lanes.end_n() && Neighbours<Value, kRun>::allows(row + n)) {
        Neighbours<Value, kRun>::store(row + n, from);
        return;
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRun; ++i) {
      int64_t const place = column(row, at, first + i);
      if (Lanes::is_there(row) && place >= 0) {
        element(row, place) = from[i];
      }
    }
  }

 private:
  CUTLASS_DEVICE Element& element(Row row, int64_t column) const {
    return Lanes::element(this->arguments.ptr, this->arguments.stride, row, column);
  }

  CUTLASS_DEVICE int64_t column(Row row, typename Lanes::At const& at, int i) const {
    return found_columns.get(this->lanes, at, i, [&](int n) { return Lanes::is_there(row) ? find_column(n) : -1; });
  }
};

/// A leaf: the indexed elements. An element is zero if its index is out of range or if it is outside of the problem.
template <class Element, class Rows, class Columns, class Stride>
struct Gather {
  using Arguments = IndexedArguments<Element const, Rows, Columns, Stride>;

  template <class Lanes>
  struct On : IndexedState<Lanes, Element const, Rows, Columns, Stride> {
    using Base = IndexedState<Lanes, Element const, Rows, Columns, Stride>;
    using Base::Base;
    using Runs = typename Base::Runs;

    struct Fetched {
      Element runs[Lanes::kFragments][Lanes::kSize / Runs::kSize][Runs::kSize];
    };

    CUTLASS_DEVICE void fetch(Fetched& fetched, typename Lanes::Step const& step) const {
      auto const rows = this->found_rows.of_step(this->lanes, step, [&](int m) { return this->find_row(m); });
      CUTLASS_PRAGMA_UNROLL
      for (int f = 0; f < Lanes::kFragments; ++f) {
        auto const at = Lanes::at(step, f);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; i += Runs::kSize) {
          this->load(fetched.runs[f][i / Runs::kSize], rows(at, i), at, i);
        }
      }
    }

    CUTLASS_DEVICE auto visit(typename Lanes::At const& at, Fetched const& fetched) const {
      return Lanes::template loaded<Element, Lanes::kSize>(
          [&](int i) { return fetched.runs[Lanes::fragment(at)][i / Runs::kSize][i % Runs::kSize]; });
    }
  };
};

/// Store the input, converted to Element, at the indexed places.
template <class Element, class Rows, class Columns, class Stride>
struct Scatter {
  using Arguments = IndexedArguments<Element, Rows, Columns, Stride>;

  template <class Lanes>
  struct On : IndexedState<Lanes, Element, Rows, Columns, Stride> {
    using Base = IndexedState<Lanes, Element, Rows, Columns, Stride>;
    using Base::Base;
    using Runs = typename Base::Runs;

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) {
      auto const converted = Lanes::template stored<Element>(input);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Lanes::kSize; i += Runs::kSize) {
        Element run[Runs::kSize];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < Runs::kSize; ++j) {
          run[j] = converted[i + j];
        }
        this->store(run, this->row(at, i), at, i);
      }
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_INDEXED_HPP
