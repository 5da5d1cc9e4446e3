// The copies and shared memory layouts of auxiliary tiles on sm120. CUTLASS has no descriptors for them.
#ifndef EVT_AUXILIARY_SM120_HPP
#define EVT_AUXILIARY_SM120_HPP

#include "cutlass/epilogue/collective/collective_builder.hpp"

namespace evt {

/// The arguments of Sm90AuxLoad and Sm90AuxStore for a tile of `Element` in sub-tiles of `EpilogueTile`.
template <class EpilogueTile, class Stride, class Element>
struct AuxiliarySm120 {
  using SmemLayoutAtom = decltype(cutlass::epilogue::collective::detail::sm120_get_epilogue_smem_swizzle_layout_atom<
                                  Stride, Element, EpilogueTile>());
  using CopyOpS2R =
      decltype(cutlass::epilogue::collective::detail::sm120_get_smem_load_op_for_source<Stride, Element>());
  using CopyOpR2S =
      decltype(cutlass::epilogue::collective::detail::sm120_get_smem_store_op_for_accumulator<Stride, Element>());
};

}  // namespace evt

#endif  // EVT_AUXILIARY_SM120_HPP
