// restage for the collective of sm100 and sm103, whose visitors get accumulators from tensor memory.
#ifndef EVT_RESTAGE_SM100_HPP
#define EVT_RESTAGE_SM100_HPP

#include "cutlass/epilogue/collective/collective_builder.hpp"

#include "evt/restage.hpp"

namespace evt {

template <int BuiltStagesC, int BuiltStagesD, int FragmentSize, bool BuiltReuseSmemC, bool DelayTmaStore,
          class... Rest, int StagesC, int StagesD, bool ReuseSmemC>
struct restage<
    cutlass::epilogue::collective::CollectiveEpilogue<
        cutlass::epilogue::Sm100TmaWarpSpecialized<BuiltStagesC, BuiltStagesD, FragmentSize, BuiltReuseSmemC,
                                                   DelayTmaStore>,
        Rest...>,
    StagesC, StagesD, ReuseSmemC> {
  using type = cutlass::epilogue::collective::CollectiveEpilogue<
      cutlass::epilogue::Sm100TmaWarpSpecialized<StagesC, StagesD, FragmentSize, BuiltReuseSmemC && ReuseSmemC,
                                                 DelayTmaStore>,
      Rest...>;
};

}  // namespace evt

#endif  // EVT_RESTAGE_SM100_HPP
