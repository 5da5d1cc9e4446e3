// The sm90 collective builder chooses the number of epilogue sub-tiles in flight; restage overrides it.
#ifndef EVT_RESTAGE_HPP
#define EVT_RESTAGE_HPP

#include "cutlass/epilogue/collective/collective_builder.hpp"

namespace evt {

/// `CollectiveEpilogue` with StagesC load stages and StagesD store stages. ReuseSmemC is kept only if the builder
/// allows D to overwrite C, and is false if it is false here.
template <class CollectiveEpilogue, int StagesC, int StagesD, bool ReuseSmemC>
struct restage;

template <int BuiltStagesC, int BuiltStagesD, int FragmentSize, bool BuiltReuseSmemC, bool DelayTmaStore,
          class... Rest, int StagesC, int StagesD, bool ReuseSmemC>
struct restage<
    cutlass::epilogue::collective::CollectiveEpilogue<
        cutlass::epilogue::Sm90TmaWarpSpecialized<BuiltStagesC, BuiltStagesD, FragmentSize, BuiltReuseSmemC,
                                                  DelayTmaStore>,
        Rest...>,
    StagesC, StagesD, ReuseSmemC> {
  using type = cutlass::epilogue::collective::CollectiveEpilogue<
      cutlass::epilogue::Sm90TmaWarpSpecialized<StagesC, StagesD, FragmentSize, BuiltReuseSmemC && ReuseSmemC,
                                                DelayTmaStore>,
      Rest...>;
};

}  // namespace evt

#endif  // EVT_RESTAGE_HPP
