#ifndef EVT_EPILOGUE_RANDOM_HPP
#define EVT_EPILOGUE_RANDOM_HPP

// Random numbers: a float in [0, 1) per element, a function of the seed, the offset and the element's place in the
// logical [L, M, N] tensor. Swapped: the kernel computes the transposed problem, whose columns are the logical m.

#include <cstdint>

#include "evt/epilogue/operation.hpp"
#include "evt/philox.hpp"

namespace evt {
namespace epilogue {

/// The linear index of an element in the logical tensor.
template <bool Swapped, class Lanes>
CUTLASS_DEVICE uint64_t element_of(Lanes const& lanes, typename Lanes::At const& at, int i) {
  uint64_t const m = uint64_t(lanes.row(at, i)), n = uint64_t(lanes.column(at, i)), l = uint64_t(lanes.batch());
  uint64_t const extent_m = uint64_t(lanes.extent_m()), extent_n = uint64_t(uint32_t(lanes.extent_n()));
  return Swapped ? (l * extent_n + n) * extent_m + m : (l * extent_m + m) * extent_n + n;
}

/// A leaf: random numbers by Philox-2x32-10.
template <bool Swapped>
struct Random {
  using Arguments = RandomArguments;

  template <class Lanes>
  struct On {
    using At = typename Lanes::At;
    static constexpr int kRun = Lanes::Runs::kSize;

    Lanes lanes;
    uint32_t seed, offset;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes)
        : lanes(lanes),
          seed(arguments.seed_ptr != nullptr ? *arguments.seed_ptr : arguments.seed),
          offset(arguments.offset_ptr != nullptr ? *arguments.offset_ptr : arguments.offset) {}

    CUTLASS_DEVICE auto visit(At const& at) const {
      typename Lanes::template Array<float, Lanes::kSize> result;
      if (!Swapped && kRun % 2 == 0 && lanes.extent_n() % 2 == 0) {
        // Two neighbouring columns share one block of Philox. Only the low word of its index is used.
        uint32_t const row_pairs = uint32_t(lanes.extent_n()) / 2;
        uint32_t const first = (uint32_t(lanes.batch()) * uint32_t(lanes.extent_m()) + uint32_t(lanes.row(at, 0))) *
                                   row_pairs +
                               uint32_t(lanes.column(at, 0)) / 2;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i + 1 < Lanes::kSize; i += 2) {
          uint32_t const pair =
              first + uint32_t(Lanes::row_offset(i)) * row_pairs + uint32_t(Lanes::column_offset(i) / 2);
          PhiloxWords const words = philox(pair, offset, seed);
          result[i] = uniform(words.x);
          result[i + 1] = uniform(words.y);
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          result[i] = random_uniform(element_of<Swapped>(lanes, at, i), seed, offset);
        }
      }
      return result;
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_RANDOM_HPP
