#ifndef EVT_KIT_GEMM_WARPS_HPP
#define EVT_KIT_GEMM_WARPS_HPP

// The multiplications of warps by themselves: each has 16 filters of a converted B, and a few rows.

#include <cstdint>

#include "evt/kit/converted.hpp"
#include "evt/kit/gemm_traits.hpp"
#include "evt/kit/gemm_work.hpp"
#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

/// A stage in the registers of a warp, with Eights times eight rows.
template <class Traits, int Eights>
struct StageOfWarp {
  using Scales = typename Traits::Scales;
  using Conversion = typename Traits::Conversion;
  using Filters = typename Conversion::template Rows<Traits::Filters::kRowBytes>;
  static constexpr int kOfBox = Traits::kInstructions, kInstructions = Traits::kBoxes * kOfBox;
  /// The sums of a warp, four for each eight rows: of instructions that do not wait for each other.
  static constexpr int kChains = 2, kSums = 4 * Eights;
  using Chains = float[kChains][kSums];

  typename Filters::Codes codes;
  uint32_t zeros[2], rows[Eights][kInstructions][2];

  /// Load a stage's rows, filters and zero points of a block of 64 columns.
  CUTLASS_DEVICE StageOfWarp(GemmStorage<Traits> const& storage, int stage, int block) {
    Filters::load_codes(codes, storage.columns(stage) + Traits::filters_of(0, block));
    if constexpr (Scales::kHasZeros) Traits::Scaled::load_zeros(zeros, storage.scales(stage), block * kFilters);
    CUTLASS_PRAGMA_UNROLL
    for (int eight = 0; eight < Eights; ++eight) {
      CUTLASS_PRAGMA_UNROLL
      for (int box = 0; box < Traits::kBoxes; ++box) {
        load_rows(rows[eight] + box * kOfBox, storage.rows(stage) + box * Traits::kRowsBytes + eight * 8 * Traits::kRowBytes);
      }
    }
  }

  /// Add the product of the stage to the sums.
  CUTLASS_DEVICE void multiply(Chains& chains) const {
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < kInstructions; ++k) {
      uint32_t words[4];
      Filters::template convert<Scales::kHasZeros, Scales::kZerosFromMinuend>(words, codes, zeros, k);
      CUTLASS_PRAGMA_UNROLL
      for (int eight = 0; eight < Eights; ++eight) {
        multiply_by_warp(typename Conversion::To{}, chains[k % kChains] + 4 * eight, words, rows[eight][k]);
      }
    }
  }

 private:
  /// Load eight rows of a box: a thread has row g. Elements of k have the order of the filters'.
  CUTLASS_DEVICE static void load_rows(uint32_t (*to)[2], uint32_t from) {
    int const lane = threadIdx.x % 32;
    if constexpr (Conversion::kPacked) {
      uint32_t const row = from + lane % 8 * Traits::kRowBytes;
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kOfBox; k += 2) {
        uint32_t words[4];
        ldmatrix_rows_x4(words, row + (((2 * k + lane / 8) ^ lane % 8) << 4));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) to[k + i / 2][i % 2] = words[i];
      }
    } else {
      uint32_t const row = from + lane / 4 * Traits::kRowBytes + lane % 2 * 8;
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kOfBox; ++k) load_shared(to[k], row + (((2 * k + lane % 4 / 2) ^ lane / 4) << 4));
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_GEMM_WARPS_HPP
