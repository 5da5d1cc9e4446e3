// The convolution kernels of CUTLASS 2.x with their own epilogues, as launchers take them.
#ifndef EVT_CONVOLUTION_2X_STOCK_HPP
#define EVT_CONVOLUTION_2X_STOCK_HPP

#include <climits>
#include <cstdint>

#include "evt/convolution_2x.hpp"

namespace evt {
namespace convolution {

/// DefaultConv2dFprop<...>::Kernel and the like.
template <class StockKernel>
struct Stock {
  using Mma = typename StockKernel::Mma;
  using IteratorA = typename Mma::IteratorA;
  using IteratorB = typename Mma::IteratorB;
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

  /// Whether the kernel can run: what the iterators, their 32-bit arithmetic and the grid allow.
  static cutlass::Status can_implement(Arguments const& arguments) {
    auto const& problem = arguments.problem_size;
    if (problem.split_k_slices != 1 || problem.groups < 1 || problem.K < 1 || problem.C < 1) {
      return cutlass::Status::kErrorInvalidProblem;
    }
    cutlass::Status const statuses[] = {IteratorA::can_implement(problem), IteratorB::can_implement(problem),
                                        check<IteratorA>(extent_A(problem), arguments.ref_A),
                                        check<IteratorB>(extent_B(problem), arguments.ref_B)};
    for (cutlass::Status const status : statuses) {
      if (status != cutlass::Status::kSuccess) return status;
    }
    dim3 const grid = Params(arguments).get_grid_dims();
    constexpr unsigned kMaxBlocks = 65535;  // along y and z
    return grid.y <= kMaxBlocks && grid.z <= kMaxBlocks ? cutlass::Status::kSuccess
                                                        : cutlass::Status::kErrorInvalidProblem;
  }

  CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared_storage) {
    StockKernel kernel;
    kernel(params, shared_storage);
  }

 private:
  template <class Problem>
  static auto extent_A(Problem const& problem) {
    return cutlass::conv::implicit_gemm_tensor_a_extent(StockKernel::kConvolutionalOperator, problem);
  }

  template <class Problem>
  static auto extent_B(Problem const& problem) {
    return cutlass::conv::implicit_gemm_tensor_b_extent(StockKernel::kConvolutionalOperator, problem);
  }

  /// An operand that iterators reach with 32-bit offsets, in aligned accesses.
  template <class Iterator>
  static cutlass::Status check(typename Iterator::Layout::TensorCoord const& extent,
                               typename Iterator::TensorRef const& tensor) {
    if (!detail::is_aligned<Iterator>(tensor)) return cutlass::Status::kErrorMisalignedOperand;
    constexpr int64_t kBits = cutlass::sizeof_bits<typename Iterator::Element>::value;
    return detail::span(extent, tensor.layout()) * kBits / 8 > INT_MAX ? cutlass::Status::kErrorInvalidProblem
                                                                       : cutlass::Status::kSuccess;
  }
};

}  // namespace convolution
}  // namespace evt

#endif  // EVT_CONVOLUTION_2X_STOCK_HPP
