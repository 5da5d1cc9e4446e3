#ifndef EVT_CONVOLUTION_2X_HPP
#define EVT_CONVOLUTION_2X_HPP

// A convolution kernel of CUTLASS 2.x with a visitor epilogue; CUTLASS has visitors for matrix products alone. It runs
// the stock implicit-GEMM main loop, then the stock epilogue that calls visitors.
//
// The visitors see the implicit GEMM as one matrix [m, n], of batch 1:
//   fprop  m = (N, P, Q)   n = K            dgrad  m = (N, H, W)   n = C            wgrad  m = K   n = (R, S, C)
// 3-D convolutions have Z, D or T before P, H or R. In channels-last memory every output is such a matrix, with stride
// 1 along n. The row stride is free.

#include <climits>
#include <cstdint>

#include "cutlass/cutlass.h"
#include "cutlass/conv/conv2d_problem_size.h"
#include "cutlass/conv/conv3d_problem_size.h"
#include "cutlass/conv/convolution.h"
#include "cutlass/gemm_coord.h"
#include "cutlass/layout/tensor.h"
#include "cutlass/matrix_coord.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/threadblock/default_thread_map_tensor_op.h"
#include "cutlass/epilogue/threadblock/epilogue_with_visitor_callbacks.h"
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"

namespace evt {
namespace convolution {

namespace detail {

/// Channels-last layouts. Their strides belong to all modes but the last, in reverse order.
template <class Layout>
constexpr bool is_channels_last = cute::is_same_v<Layout, cutlass::layout::TensorNHWC> ||
                                  cute::is_same_v<Layout, cutlass::layout::TensorNDHWC>;

/// The number of elements from the first to the last element of a tensor, inclusive.
template <class Layout>
int64_t span(typename Layout::TensorCoord const& extent, Layout const& layout) {
  int64_t last = extent[Layout::kRank - 1] - 1;
  for (int i = 0; i < Layout::kStrideRank; ++i) {
    last += int64_t(extent[Layout::kRank - 2 - i] - 1) * layout.stride()[i];
  }
  return last + 1;
}

/// Whether every access of an iterator to a tensor is aligned.
template <class Iterator>
bool is_aligned(typename Iterator::TensorRef const& tensor) {
  using Access = typename Iterator::AccessType;
  bool result = reinterpret_cast<uintptr_t>(tensor.data()) % sizeof(Access) == 0;
  for (int i = 0; i < Iterator::Layout::kStrideRank; ++i) {
    result = result && tensor.layout().stride()[i] % Access::kElements == 0;
  }
  return result;
}

/// A kSingleGroup tile lies within one group's channels; a kMultipleGroup tile has whole groups.
template <class Mma, cutlass::conv::GroupMode Mode, class ProblemSize>
bool fits_groups(ProblemSize const& problem) {
  if constexpr (Mode == cutlass::conv::GroupMode::kNone) {
    return problem.groups == 1;
  } else {
    if (problem.K % problem.groups != 0 || problem.C % problem.groups != 0) return false;
    int const k_per_group = problem.K / problem.groups;
    if constexpr (Mode == cutlass::conv::GroupMode::kSingleGroup) return k_per_group % Mma::Shape::kN == 0;
    return Mma::IteratorA::kIteratorAlgorithm == cutlass::conv::IteratorAlgorithm::kAnalytic &&
           Mma::Shape::kN % k_per_group == 0;
  }
}

/// Whether every access of an iterator to a tensor is aligned and within its 32-bit offsets.
template <class Iterator>
cutlass::Status check_operand(typename Iterator::Layout::TensorCoord const& extent,
                              typename Iterator::TensorRef const& tensor) {
  if (!is_aligned<Iterator>(tensor)) return cutlass::Status::kErrorMisalignedOperand;
  constexpr int64_t kBits = cutlass::sizeof_bits<typename Iterator::Element>::value;
  return span(extent, tensor.layout()) * kBits / 8 > INT_MAX ? cutlass::Status::kErrorInvalidProblem
                                                             : cutlass::Status::kSuccess;
}

/// Whether a main loop supports a problem: its groups, iterators, 32-bit arithmetic and grid.
template <class Mma, cutlass::conv::Operator Operator, cutlass::conv::GroupMode Mode, class ProblemSize>
cutlass::Status check(ProblemSize const& problem, typename Mma::IteratorA::TensorRef const& ref_A,
                      typename Mma::IteratorB::TensorRef const& ref_B) {
  using IteratorA = typename Mma::IteratorA;
  using IteratorB = typename Mma::IteratorB;
  if (problem.split_k_slices != 1 || problem.groups < 1 || problem.K < 1 || problem.C < 1 ||
      !fits_groups<Mma, Mode>(problem)) {
    return cutlass::Status::kErrorInvalidProblem;
  }
  // Extents of the implicit GEMM, rounded up to whole tiles.
  constexpr int64_t kMaxExtent = INT_MAX - int64_t(Mma::Shape::kM + Mma::Shape::kN + Mma::Shape::kK);
  if (problem.activation_size() / problem.C > kMaxExtent || problem.output_size() / problem.K > kMaxExtent ||
      problem.filter_size() > kMaxExtent) {
    return cutlass::Status::kErrorInvalidProblem;
  }
  cutlass::Status const statuses[] = {
      IteratorA::can_implement(problem), IteratorB::can_implement(problem),
      check_operand<IteratorA>(cutlass::conv::implicit_gemm_tensor_a_extent(Operator, problem), ref_A),
      check_operand<IteratorB>(cutlass::conv::implicit_gemm_tensor_b_extent(Operator, problem), ref_B)};
  for (cutlass::Status const status : statuses) {
    if (status != cutlass::Status::kSuccess) return status;
  }
  return cutlass::Status::kSuccess;
}

inline cutlass::Status check_grid(dim3 const& grid) {
  constexpr unsigned kMaxBlocks = 65535;  // along y and z
  return grid.y <= kMaxBlocks && grid.z <= kMaxBlocks ? cutlass::Status::kSuccess
                                                      : cutlass::Status::kErrorInvalidProblem;
}

}  // namespace detail

/// A convolution kernel. Mma is the main loop of a stock kernel, and Epilogue is an EpilogueWithVisitorCallbacks over
/// that kernel's epilogue. Visitors get the output's tile coordinates alone; there is no split-K.
template <class Mma_, class Epilogue_, class ThreadblockSwizzle_, cutlass::conv::Operator Operator_,
          class ProblemSize_ = cutlass::conv::Conv2dProblemSize,
          cutlass::conv::GroupMode GroupMode_ = cutlass::conv::GroupMode::kNone>
struct Kernel {
  using Mma = Mma_;
  using Epilogue = Epilogue_;
  using ThreadblockSwizzle = ThreadblockSwizzle_;
  using ProblemSize = ProblemSize_;
  static constexpr cutlass::conv::Operator kOperator = Operator_;
  static constexpr cutlass::conv::GroupMode kGroupMode = GroupMode_;

  using IteratorA = typename Mma::IteratorA;
  using IteratorB = typename Mma::IteratorB;
  using FusionCallbacks = typename Epilogue::FusionCallbacks;
  using ThreadblockShape = typename Mma::Shape;
  using WarpShape = typename Mma::Policy::Operator::Shape;
  using TensorRefA = typename IteratorA::TensorRef;
  using TensorRefB = typename IteratorB::TensorRef;
  static constexpr cutlass::conv::IteratorAlgorithm kIteratorAlgorithm = IteratorA::kIteratorAlgorithm;
  static constexpr int kThreadCount = 32 * Mma::WarpCount::kCount;

  /// The common base of all visitors' thread maps: an OutputTileThreadLayout with any number of stages.
  using ThreadMap =
      cutlass::epilogue::threadblock::OutputTileThreadLayout<ThreadblockShape, WarpShape,
                                                             typename Epilogue::OutputTileIterator::Element,
                                                             Epilogue::kElementsPerAccess>;

  static_assert(cute::is_same_v<typename ThreadMap::Base, typename Epilogue::OutputTileIterator::ThreadMap>,
                "the visitors must see the epilogue's own thread map");
  static_assert(kOperator == cutlass::conv::Operator::kFprop || kOperator == cutlass::conv::Operator::kDgrad ||
                    kOperator == cutlass::conv::Operator::kWgrad,
                "fprop, dgrad or wgrad");
  static_assert(kOperator != cutlass::conv::Operator::kDgrad ||
                    IteratorA::kStrideSupport == cutlass::conv::StrideSupport::kUnity,
                "strided dgrad permutes the rows of its output, of which visitors know nothing");
  static_assert(kGroupMode == cutlass::conv::GroupMode::kNone ||
                    (kOperator == cutlass::conv::Operator::kFprop && IteratorA::kConvDim == 2 &&
                     kGroupMode != cutlass::conv::GroupMode::kDepthwise),
                "groups are for the fprop of conv2d, and depthwise convolution has no tensor-op kernel");
  static_assert(IteratorA::kConvDim == IteratorB::kConvDim, "both iterators must have the same rank");
  static_assert(detail::is_channels_last<typename IteratorA::Layout> &&
                    detail::is_channels_last<typename IteratorB::Layout>,
                "operands are channels-last");

  /// The operands A and B of the implicit GEMM. fprop: activation and filter. dgrad: output gradient and filter. wgrad:
  /// output gradient and activation.
  struct Arguments {
    ProblemSize problem_size;
    TensorRefA ref_A;
    TensorRefB ref_B;
    typename FusionCallbacks::Arguments epilogue;
  };

  /// The host makes Params without CUDA calls.
  struct Params {
    ProblemSize problem_size;
    cute::Shape<int32_t, int32_t, int32_t> shape_mnl{1, 1, 1};
    cutlass::gemm::GemmCoord grid_tiled_shape;
    int swizzle_log_tile = 0;
    int k_iterations = 0;
    int k_iterations_per_channel = 0;
    typename IteratorA::Params iterator_A;
    typename IteratorA::Element const* ptr_A = nullptr;
    typename IteratorB::Params iterator_B;
    typename IteratorB::Element const* ptr_B = nullptr;
    typename FusionCallbacks::Params epilogue;

    Params() = default;

    explicit Params(Arguments const& arguments)
        : problem_size(arguments.problem_size),
          iterator_A(IteratorA::getParams(arguments.problem_size, arguments.ref_A.layout())),
          ptr_A(arguments.ref_A.data()),
          iterator_B(arguments.problem_size, arguments.ref_B.layout()),
          ptr_B(arguments.ref_B.data()) {
      cutlass::gemm::GemmCoord const mnk = cutlass::conv::implicit_gemm_problem_size(kOperator, problem_size);
      shape_mnl = cute::make_shape(mnk.m(), mnk.n(), 1);
      epilogue = FusionCallbacks::to_underlying_arguments(shape_mnl, arguments.epilogue, nullptr);
      grid_tiled_shape = tiled_shape(mnk);
      swizzle_log_tile = ThreadblockSwizzle().get_log_tile(grid_tiled_shape);
      k_iterations = cutlass::conv::implicit_gemm_k_iterations(kOperator, ThreadblockShape::kK, problem_size,
                                                               kIteratorAlgorithm, kGroupMode, ThreadblockShape::kN);
      k_iterations_per_channel =
          cutlass::conv::implicit_gemm_k_iterations_per_channel(kOperator, problem_size, kIteratorAlgorithm);
    }

    dim3 get_grid_dims() const { return ThreadblockSwizzle().get_grid_shape(grid_tiled_shape); }
  };

  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    typename Epilogue::SharedStorage epilogue;
  };

  /// Whether the kernel supports the problem: iterators, 32-bit arithmetic and grid. The visitors' tensors are not
  /// checked.
  static cutlass::Status can_implement(Arguments const& arguments) {
    ProblemSize const& problem = arguments.problem_size;
    cutlass::Status const status =
        detail::check<Mma, kOperator, kGroupMode>(problem, arguments.ref_A, arguments.ref_B);
    if (status != cutlass::Status::kSuccess) return status;
    return detail::check_grid(ThreadblockSwizzle().get_grid_shape(
        tiled_shape(cutlass::conv::implicit_gemm_problem_size(kOperator, problem))));
  }

  CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared_storage) {
    ThreadblockSwizzle swizzle;
    cutlass::gemm::GemmCoord const tile = swizzle.get_tile_offset(params.swizzle_log_tile);
    if (params.grid_tiled_shape.m() <= tile.m() || params.grid_tiled_shape.n() <= tile.n()) return;

    int const thread = int(threadIdx.x);
    int const warp = cutlass::canonical_warp_idx_sync();
    int const lane = thread % 32;
    typename Mma::FragmentC accumulators;
    accumulators.clear();
    {
      IteratorA iterator_A(
          params.iterator_A, params.problem_size, params.ptr_A, thread,
          cutlass::MatrixCoord(tile.m() * ThreadblockShape::kM, first_channel(params.problem_size, tile.n())));
      IteratorB iterator_B(params.iterator_B, params.problem_size, params.ptr_B, thread,
                           cutlass::MatrixCoord(0, tile.n() * ThreadblockShape::kN));
      Mma mma(shared_storage.main_loop, thread, warp, lane);
      mma(params.k_iterations, accumulators, iterator_A, iterator_B, accumulators, params.k_iterations_per_channel);
    }

    // Compute the tile again, so that it uses no registers during the main loop. Visitors would read the swizzle's
    // split-K index as the batch.
    cutlass::gemm::GemmCoord const output = swizzle.get_tile_offset(params.swizzle_log_tile);
    Epilogue epilogue(params.epilogue, shared_storage.epilogue, thread, warp, lane);
    epilogue(accumulators, cutlass::gemm::GemmCoord(output.m(), output.n(), 0), params.shape_mnl, thread);
  }

 private:
  static cutlass::gemm::GemmCoord tiled_shape(cutlass::gemm::GemmCoord const& mnk) {
    return ThreadblockSwizzle().get_tiled_shape(
        mnk, {ThreadblockShape::kM, ThreadblockShape::kN, ThreadblockShape::kK}, 1);
  }

  /// The first activation channel that a tile of output channels reads.
  CUTLASS_DEVICE static int first_channel(ProblemSize const& problem, int tile_n) {
    if constexpr (kGroupMode == cutlass::conv::GroupMode::kNone) {
      return 0;
    } else {
      int const group = tile_n * ThreadblockShape::kN / (problem.K / problem.groups);
      return group * (problem.C / problem.groups);
    }
  }
};

/// A stock implicit-GEMM kernel (DefaultConv2dFprop<...>::Kernel and similar) with `Visitor` as its epilogue.
template <class StockKernel, class Visitor, int EpilogueStages = 1>
using WithVisitor =
    Kernel<typename StockKernel::Mma,
           cutlass::epilogue::threadblock::EpilogueWithVisitorCallbacks<typename StockKernel::Epilogue, Visitor,
                                                                        EpilogueStages>,
           typename StockKernel::ThreadblockSwizzle, StockKernel::kConvolutionalOperator,
           typename StockKernel::ConvProblemSize, StockKernel::kGroupMode>;

}  // namespace convolution
}  // namespace evt

#endif  // EVT_CONVOLUTION_2X_HPP
