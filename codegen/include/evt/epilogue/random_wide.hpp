#ifndef EVT_EPILOGUE_RANDOM_WIDE_HPP
#define EVT_EPILOGUE_RANDOM_WIDE_HPP

// Random numbers for a seed and an offset of 64 bits.

#include <cstdint>

#include "evt/epilogue/random.hpp"
#include "evt/philox_wide.hpp"

namespace evt {
namespace epilogue {

/// A leaf: Random by Philox-4x32-10.
template <bool Swapped>
struct WideRandom {
  using Arguments = WideRandomArguments;

  template <class Lanes>
  struct On {
    using At = typename Lanes::At;
    static constexpr int kNeighbours = Lanes::Runs::kSize;
    static constexpr int kRun = kNeighbours % 4 == 0 ? 4 : kNeighbours % 2 == 0 ? 2 : 1;

    Lanes lanes;
    uint64_t seed, offset;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes)
        : lanes(lanes),
          seed(arguments.seed_ptr.read_or(arguments.seed)),
          offset(arguments.offset_ptr.read_or(arguments.offset)) {}

    CUTLASS_DEVICE auto visit(At const& at) const {
      bool const whole = !Swapped && lanes.extent_n() % kRun == 0;  // one block of Philox serves neighbours
      typename Lanes::template Array<float, Lanes::kSize> result;
      if constexpr (kRun == 2) {  // on sm90, a branch around each pair needs fewer registers than two loops
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; i += 2) {
          uint64_t const element = element_of<Swapped>(lanes, at, i);
          if (whole) {
            random_run<2>(result, i, element, seed, offset);
          } else {
            random_run<1>(result, i, element, seed, offset);
            random_run<1>(result, i + 1, element + (Swapped ? uint64_t(lanes.extent_m()) : 1), seed, offset);
          }
        }
      } else if (whole) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; i += kRun) {
          random_run<kRun>(result, i, element_of<Swapped>(lanes, at, i), seed, offset);
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Lanes::kSize; ++i) {
          random_run<1>(result, i, element_of<Swapped>(lanes, at, i), seed, offset);
        }
      }
      return result;
    }
  };
};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_RANDOM_WIDE_HPP
