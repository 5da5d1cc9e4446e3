#ifndef EVT_RESTAGE_GROUPED_HPP
#define EVT_RESTAGE_GROUPED_HPP

#include "evt/restage.hpp"

namespace evt {

/// As for kernels without groups.
template <int BuiltStagesC, int BuiltStagesD, int FragmentSize, bool BuiltReuseSmemC, bool DelayTmaStore,
          int WarpGroups, class... Rest, int StagesC, int StagesD, bool ReuseSmemC>
struct restage<
    cutlass::epilogue::collective::CollectiveEpilogue<
        cutlass::epilogue::Sm90PtrArrayTmaWarpSpecialized<BuiltStagesC, BuiltStagesD, FragmentSize, BuiltReuseSmemC,
                                                          DelayTmaStore, WarpGroups>,
        Rest...>,
    StagesC, StagesD, ReuseSmemC> {
  using type = cutlass::epilogue::collective::CollectiveEpilogue<
      cutlass::epilogue::Sm90PtrArrayTmaWarpSpecialized<StagesC, StagesD, FragmentSize, BuiltReuseSmemC && ReuseSmemC,
                                                        DelayTmaStore, WarpGroups>,
      Rest...>;
};

}  // namespace evt

#endif  // EVT_RESTAGE_GROUPED_HPP
