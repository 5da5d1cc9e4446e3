#ifndef EVT_EPILOGUE_MASK_OWN_HPP
#define EVT_EPILOGUE_MASK_OWN_HPP

// Packed bits of the GEMM kernel: the warps of a consumer join the bits of a row in shared memory.

#include <cstdint>

#include "evt/epilogue/lanes_own.hpp"
#include "evt/epilogue/mask.hpp"
#include "evt/fragment.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace own {

/// MaskStore for parts of rows. A warp has 2 bytes of a row, and such stores take L2 as long as stores of whole sectors.
/// Each warp writes its bytes to shared memory. The consumer's threads store the word of a row each.
struct JoinedMaskStore {
  using Arguments = epilogue::MaskStore::Arguments;

  template <class Lanes>
  struct On : epilogue::MaskStore::On<Lanes> {
    using Base = epilogue::MaskStore::On<Lanes>;
    using Base::Base;
    using Bits = typename Base::Bits;
    using Word = epilogue::Word<fragment::kWordBytes>;
    static_assert(Bits::kBytes == 2, "a strip has 2 bytes of a row");

    template <int Rows>
    CUTLASS_DEVICE void end_step(typename Lanes::Step const& step) {
      int const byte = this->lanes.first_of_strip() % Word::kBits / 8;
      Bits::template for_each_row<Rows>(this->lanes, step, this->held, [&](int row, int, uint32_t word, int) {
        kit::store_shared_half(step.words + row * fragment::kWordBytes + byte, word);
      });
    }

    /// Store the words of a part's rows. All threads of the consumer call it.
    CUTLASS_DEVICE void end_part(fragment::PartOfRows const& part) {
      kit::consumer_sync(part.consumer);
      int const row = part.first + part.thread;
      if (part.thread < part.rows && row < part.end) {
        uint32_t words[2];
        kit::load_shared(words, part.words + part.thread * fragment::kWordBytes);
        int const column = this->lanes.first_of_strip() / Word::kBits * Word::kBits;
        Word::store(this->address(row, column), uint64_t(words[1]) << 32 | words[0],
                    min(this->lanes.end_n() - column, Word::kBits));
      }
      kit::consumer_sync(part.consumer);  // warps write the next part's bits
    }
  };
};

}  // namespace own
}  // namespace evt

#endif  // EVT_EPILOGUE_MASK_OWN_HPP
