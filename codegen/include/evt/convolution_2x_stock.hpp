// The convolution kernels of CUTLASS 2.x with stock epilogues, in the form that launchers need.
#ifndef EVT_CONVOLUTION_2X_STOCK_HPP
#define EVT_CONVOLUTION_2X_STOCK_HPP

#include "evt/convolution_2x.hpp"

namespace evt {
namespace convolution {

namespace detail {

/// The group mode of a stock kernel; kernels with a broadcast vector have none.
template <class StockKernel, class = void>
constexpr cutlass::conv::GroupMode group_mode = cutlass::conv::GroupMode::kNone;

template <class StockKernel>
constexpr cutlass::conv::GroupMode group_mode<StockKernel, decltype(void(StockKernel::kGroupMode))> =
    StockKernel::kGroupMode;

}  // namespace detail

/// DefaultConv2dFprop<...>::Kernel and similar.
template <class StockKernel>
struct Stock {
  using Mma = typename StockKernel::Mma;
  using ThreadblockShape = typename StockKernel::ThreadblockShape;
  using ThreadblockSwizzle = typename StockKernel::ThreadblockSwizzle;
  using Arguments = typename StockKernel::Arguments;
  using SharedStorage = typename StockKernel::SharedStorage;
  static constexpr int kThreadCount = StockKernel::kThreadCount;

  struct Params : StockKernel::Params {
    Params() = default;
    explicit Params(Arguments const& arguments) : StockKernel::Params(arguments, nullptr) {}

    dim3 get_grid_dims() const { return ThreadblockSwizzle().get_grid_shape(this->grid_tiled_shape); }
  };

  /// Whether the kernel supports the problem: iterators, 32-bit arithmetic and grid.
  static cutlass::Status can_implement(Arguments const& arguments) {
    cutlass::Status const status =
        detail::check<Mma, StockKernel::kConvolutionalOperator, detail::group_mode<StockKernel>>(
            arguments.problem_size, arguments.ref_A, arguments.ref_B);
    return status == cutlass::Status::kSuccess ? detail::check_grid(Params(arguments).get_grid_dims()) : status;
  }

  CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared_storage) {
    StockKernel kernel;
    kernel(params, shared_storage);
  }
};

}  // namespace convolution
}  // namespace evt

#endif  // EVT_CONVOLUTION_2X_STOCK_HPP
