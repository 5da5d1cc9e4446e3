// The sm90 collective builder chooses how many epilogue sub-tiles are in flight; restage chooses others.
#ifndef EVT_RESTAGE_HPP
#define EVT_RESTAGE_HPP

#include "cutlass/epilogue/collective/collective_builder.hpp"

namespace evt {

/// `CollectiveEpilogue` with StagesC sub-tiles of loads and StagesD of stores in flight; ReuseSmemC only where
/// the builder found that D may be written over C, and never when it is false here.
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
