#ifndef EVT_VISITORS_3X_GROUPED_SIZE_HPP
#define EVT_VISITORS_3X_GROUPED_SIZE_HPP

// The extent of a mode of each group, for the grouped kernels of CUTLASS 3.x.

#include <cstdint>

#include "evt/visitors_3x.hpp"

namespace evt {
namespace fusion {

struct GroupSizeArguments {
  int64_t const* extents = nullptr;
};

// A leaf: the group's extent.
struct GroupSize : Node<GroupSizeArguments> {
  using Node<GroupSizeArguments>::Node;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    int32_t extent;

    CUTLASS_DEVICE
    Callbacks(int32_t extent_) : extent(extent_) {}

    template <class ElementAccumulator, int FragmentSize>
    CUTLASS_DEVICE cutlass::Array<int32_t, FragmentSize> visit(
        cutlass::Array<ElementAccumulator, FragmentSize> const&, int, int, int) {
      cutlass::Array<int32_t, FragmentSize> result;
      result.fill(extent);
      return result;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    return Callbacks(int32_t(this->params_ptr->extents[int(cute::get<3>(args.tile_coord_mnkl))]));
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_VISITORS_3X_GROUPED_SIZE_HPP
