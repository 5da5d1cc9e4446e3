#ifndef EVT_EPILOGUE_REDUCE_HPP
#define EVT_EPILOGUE_REDUCE_HPP

// Reductions. Elements outside of the problem are skipped. Partial stores results in a compact array [l][part][kept],
// which finish.hpp combines; parts() is the number of parts per batch. Atomic combines results in [l][kept] with batch
// stride stride_l (0 reduces over the batch too). That memory holds the identity before the launch. Lanes holds the
// totals of a tile, combines lanes and warps, and numbers the parts.

#include <cstdint>
#include <type_traits>

#include "evt/epilogue/operation.hpp"
#include "evt/reduce.hpp"

namespace evt {
namespace epilogue {

/// The kept mode of a reduction: one value per row, one per column, or one in all.
enum class Kept { kRows, kColumns, kNothing };

template <class Element>
struct ReductionArguments {
  Element* ptr = nullptr;
  int64_t stride_l = 0;  // for Atomic
  int64_t kept = 0;      // the extent of the kept mode, if the lanes do not have it
};

template <Kept Kept_, class Op, class Element, class Write>
struct Reduction {
  using Arguments = ReductionArguments<Element>;
  static constexpr Kept kKept = Kept_;

  template <class Lanes>
  struct On : State<Lanes, Arguments> {
    using Totals = typename Lanes::template Totals<Kept_, Op, Element>;
    using SharedStorage = typename Totals::SharedStorage;

    Totals totals;
    std::conditional_t<Lanes::kKeepsPart, Element*, NoArguments> own_part;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes, SharedStorage& shared)
        : State<Lanes, Arguments>(arguments, lanes), totals(lanes, shared) {
      if constexpr (Lanes::kKeepsPart) {
        own_part = part();
      }
    }

    template <class Input>
    CUTLASS_DEVICE void visit(typename Lanes::At const& at,
                              typename Lanes::template Array<Input, Lanes::kSize> const& input) {
      using Value = typename ReducedValue<Element>::type;
      auto const values = Lanes::template convert<Value>(input);
      if constexpr (std::is_same_v<Value, Element>) {
        totals.add(this->lanes, at, values, writer());
      } else {
        auto const parts = Lanes::template generate<Element, Lanes::kSize>([&](int i) { return Element(values[i]); });
        totals.add(this->lanes, at, parts, writer());
      }
    }

    CUTLASS_DEVICE void reduce(typename Lanes::At const& at) { totals.reduce(this->lanes, at); }
    template <int Rows>
    CUTLASS_DEVICE void end_step(typename Lanes::Step const& step) {
      totals.template end_step<Rows>(this->lanes, step, writer());
    }
    CUTLASS_DEVICE void end() { totals.end(this->lanes, writer()); }

   private:
    /// The first result of the tile's part.
    CUTLASS_DEVICE Element* part() const {
      auto const& arguments = this->arguments;
      int64_t const l = this->lanes.batch();
      if constexpr (Write::kAtomic) {
        return arguments.ptr + l * arguments.stride_l;
      } else {
        return arguments.ptr + (l * this->lanes.template parts<Kept_>() + this->lanes.template part<Kept_>()) *
                                   this->lanes.template kept<Kept_>(arguments);
      }
    }

    /// A functor that stores a result at a row, at a column, or at 0.
    CUTLASS_DEVICE auto writer() const {
      return [this](int at, Element total) {
        if constexpr (Lanes::kKeepsPart) {
          write_result<Op, Write>(own_part + at, total);
        } else {
          write_result<Op, Write>(part() + at, total);
        }
      };
    }
  };
};

/// A reduction over rows: one value per column.
template <class Op, class Element, class Write>
using RowReduction = Reduction<Kept::kColumns, Op, Element, Write>;

/// A reduction over columns: one value per row.
template <class Op, class Element, class Write>
using ColReduction = Reduction<Kept::kRows, Op, Element, Write>;

/// A reduction over rows and columns: one value.
template <class Op, class Element, class Write>
using ScalarReduction = Reduction<Kept::kNothing, Op, Element, Write>;

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_REDUCE_HPP
