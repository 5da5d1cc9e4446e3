// A collective of sm100 without a store of D, for visitors that store all outputs. CUTLASS's collective always stores
// D.
#ifndef EVT_UNSTORED_SM100_HPP
#define EVT_UNSTORED_SM100_HPP

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cute/atom/copy_traits_sm90_tma.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"

namespace evt {

/// The copy operation of an absent D: SM90_TMA_STORE without the copy.
struct NoStore : cute::SM90_TMA_STORE {};

/// `Collective` with NoStore as its store. It makes no descriptor of D and does not read ptr_D and dD. It has no C.
template <class Collective>
struct unstored;

template <class Policy, class Tile, class EpilogueTile, class StrideC, class ElementD, class StrideD, class Callbacks,
          class CopyOpT2R, class CopyOpG2S, class SmemLayoutAtomC, class CopyOpS2R, class CopyOpS2G, class... Rest>
struct unstored<cutlass::epilogue::collective::CollectiveEpilogue<
    Policy, Tile, EpilogueTile, void, StrideC, ElementD, StrideD, Callbacks, CopyOpT2R, CopyOpG2S, SmemLayoutAtomC,
    CopyOpS2R, CopyOpS2G, Rest...>>
    : cutlass::epilogue::collective::CollectiveEpilogue<
          Policy, Tile, EpilogueTile, void, StrideC, ElementD, StrideD, Callbacks, CopyOpT2R, CopyOpG2S,
          SmemLayoutAtomC, CopyOpS2R, NoStore, Rest...> {
  using Base = cutlass::epilogue::collective::CollectiveEpilogue<
      Policy, Tile, EpilogueTile, void, StrideC, ElementD, StrideD, Callbacks, CopyOpT2R, CopyOpG2S, SmemLayoutAtomC,
      CopyOpS2R, NoStore, Rest...>;
  using Arguments = typename Base::Arguments;
  using Params = typename Base::Params;

  CUTLASS_DEVICE
  unstored(Params const& params, typename Base::TensorStorage& storage) : Base(params, storage) {}

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& shape, Arguments const& arguments, void* workspace) {
    Params params{};
    params.thread = Callbacks::to_underlying_arguments(shape, arguments.thread, workspace);
    return params;
  }

  template <class ProblemShape>
  static bool can_implement(ProblemShape const& shape, Arguments const& arguments) {
    return Callbacks::can_implement(shape, arguments.thread);
  }

  CUTLASS_DEVICE
  static void prefetch_tma_descriptors(Params const&) {}
};

}  // namespace evt

namespace cute {

template <class NumBitsPerTMA, class AuxParams_>
struct Copy_Traits<::evt::NoStore, NumBitsPerTMA, AuxParams_> : Copy_Traits<SM90_TMA_STORE, NumBitsPerTMA, AuxParams_> {
  template <class Source, class SourceLayout, class Destination, class DestinationLayout>
  CUTE_HOST_DEVICE friend constexpr void copy_unpack(
      Copy_Traits const&, Tensor<Source, SourceLayout> const&, Tensor<Destination, DestinationLayout>&) {}
};

}  // namespace cute

#endif  // EVT_UNSTORED_SM100_HPP
