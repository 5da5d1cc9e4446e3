#ifndef EVT_EPILOGUE_GROUPED_HPP
#define EVT_EPILOGUE_GROUPED_HPP

// The epilogues of grouped kernels of CUTLASS 3.x. The third tile coordinate is the group, and each group has its own
// tensors. Vectors use CUTLASS's broadcasts, which take arrays of pointers.

#include <cstdint>

#include "cute/tensor.hpp"

#include "evt/epilogue/operation.hpp"
#include "evt/epilogue/tree_3x.hpp"

namespace evt {
namespace epilogue {

/// A leaf: the group's value.
template <class Element>
struct GroupScalar {
  struct Arguments {
    Element const* const* pointers = nullptr;
  };

  template <class Lanes>
  struct On {
    Element value;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes) : value(*arguments.pointers[lanes.batch()]) {}

    CUTLASS_DEVICE auto visit(typename Lanes::At const&) const {
      return Lanes::template generate<Element, Lanes::kSize>([&](int) { return value; });
    }
  };
};

/// A leaf: the group's extent of a mode.
struct GroupSize {
  struct Arguments {
    int64_t const* extents = nullptr;
  };

  template <class Lanes>
  struct On {
    int32_t extent;

    CUTLASS_DEVICE On(Arguments const& arguments, Lanes const& lanes)
        : extent(int32_t(arguments.extents[lanes.batch()])) {}

    CUTLASS_DEVICE auto visit(typename Lanes::At const&) const {
      return Lanes::template generate<int32_t, Lanes::kSize>([&](int) { return extent; });
    }
  };
};

}  // namespace epilogue

namespace fusion {

// One address per group, and one stride in elements for each mode with a dynamic stride.
struct GroupTensorArguments {
  void* const* pointers = nullptr;
  int64_t const* strides_m = nullptr;
  int64_t const* strides_n = nullptr;
};

// A node for the tensor of the tile's group. Inner is CUTLASS's auxiliary load or store without shared memory, or an
// evt node with `ptr` and `stride_m`. Inner sees a problem with one batch.
template <class Inner>
struct GroupTensor : Node<GroupTensorArguments> {
  using Node<GroupTensorArguments>::Node;

  typename Inner::Params current;  // of the tile's group; Inner's callbacks point to it

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(ConsumerStoreArgs<Args...> const& args) {
    int const group = int(cute::get<3>(args.tile_coord_mnkl));
    set(current, group);
    auto alone = args;
    cute::get<3>(alone.tile_coord_mnkl) = 0;
    Inner inner(current, typename Inner::SharedStorage{});
    return inner.template get_consumer_store_callbacks<ReferenceSrc>(alone);
  }

 private:
  template <class Params>
  CUTLASS_DEVICE auto set(Params& params, int group) -> decltype(void(params.ptr_aux)) {
    params.ptr_aux = static_cast<decltype(params.ptr_aux)>(this->params_ptr->pointers[group]);
    set_stride<0>(params.dAux, this->params_ptr->strides_m, group);
    set_stride<1>(params.dAux, this->params_ptr->strides_n, group);
  }

  template <class Params>
  CUTLASS_DEVICE auto set(Params& params, int group) -> decltype(void(params.stride_m)) {
    params.ptr = static_cast<decltype(params.ptr)>(this->params_ptr->pointers[group]);
    params.stride_m = this->params_ptr->strides_m[group];
    params.stride_l = 0;
  }

  template <int Mode, class Stride>
  CUTLASS_DEVICE static void set_stride(Stride& stride, int64_t const* strides, int group) {
    if constexpr (!cute::is_static<cute::tuple_element_t<Mode, Stride>>::value) {
      cute::get<Mode>(stride) = strides[group];
    }
  }
};

}  // namespace fusion
}  // namespace evt

#endif  // EVT_EPILOGUE_GROUPED_HPP
