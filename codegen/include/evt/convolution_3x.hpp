#ifndef EVT_CONVOLUTION_3X_HPP
#define EVT_CONVOLUTION_3X_HPP

// The convolution kernel of sm90, over CUTLASS's implicit-GEMM main loop (TMA im2col, WGMMA) and its epilogue, which are
// used as they are. CUTLASS's own kernel has one consumer warp group and gives every thread the same registers. This one
// has one or two, moves registers from the producer to them, so that two or three thread blocks share a multiprocessor
// and one multiplies while another stores, and where there is a block for each multiprocessor only, loads the tiles of
// the epilogue into memory of their own while the main loop runs. One tile for each thread block.

#include "cutlass/cutlass.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/pipeline/pipeline.hpp"
#include "cutlass/kernel_hardware_info.h"
#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/conv/kernel/conv_universal.hpp"
#include "cute/tensor.hpp"

namespace evt {
namespace convolution {

/// Shared memory of a multiprocessor, and what each of its thread blocks takes besides its own.
constexpr int kSharedPerMultiprocessor = 233472;
constexpr int kSharedReserved = 1024;
/// What barriers take of a thread block's own, generously.
constexpr int kBarriers = 1024;

/// Where an epilogue's tiles lie: over those of the main loop, which is done by then, or beside them.
enum class EpilogueMemory { shared, own };

/// The main loop's stages that fit when MinBlocks thread blocks share a multiprocessor, as collective builders take it.
template <class CollectiveEpilogue, int MinBlocks, EpilogueMemory Memory>
using Stages = cutlass::conv::collective::StageCountAutoCarveout<
    cutlass::gemm::collective::detail::sm90_smem_capacity_bytes -
    (kSharedPerMultiprocessor / MinBlocks - kSharedReserved - kBarriers -
     (Memory == EpilogueMemory::own ? static_cast<int>(sizeof(typename CollectiveEpilogue::TensorStorage)) : 0))>;

/// The builder's main loop with `Groups` consumer warp groups, which share the tile's rows.
template <class CollectiveMainloop, int Groups>
struct WithConsumers;

template <class Policy, class TileShape, class ElementA, class ElementB, class TiledMma, class TraitsA, class TraitsB,
          int Groups>
struct WithConsumers<
    cutlass::conv::collective::CollectiveConv<Policy, TileShape, ElementA, ElementB, TiledMma, TraitsA, TraitsB>,
    Groups> {
  using Mma = decltype(cute::make_tiled_mma(typename TiledMma::Atom{},
                                            cute::Layout<cute::Shape<cute::Int<Groups>, cute::_1, cute::_1>>{}));
  using type = cutlass::conv::collective::CollectiveConv<Policy, TileShape, ElementA, ElementB, Mma, TraitsA, TraitsB>;
};

/// The kernel. Its host side (Arguments, Params, grid and checks) is that of CUTLASS's.
template <class ProblemShape, class CollectiveMainloop, class CollectiveEpilogue, int MinBlocks, EpilogueMemory Memory>
struct Sm90Kernel : cutlass::conv::kernel::ConvUniversal<ProblemShape, CollectiveMainloop, CollectiveEpilogue> {
  using Base = cutlass::conv::kernel::ConvUniversal<ProblemShape, CollectiveMainloop, CollectiveEpilogue>;
  using Params = typename Base::Params;
  using TileShape = typename CollectiveMainloop::TileShape;
  using ClusterShape = typename Base::ClusterShape;
  using TiledMma = typename CollectiveMainloop::TiledMma;

  static constexpr int kWarpGroup = cutlass::NumThreadsPerWarpGroup;
  static constexpr int kConsumers = static_cast<int>(cute::size(TiledMma{}));
  static constexpr int kGroups = kConsumers / kWarpGroup;
  static constexpr int MinBlocksPerMultiprocessor = MinBlocks;
  static_assert(Base::MaxThreadsPerBlock == kWarpGroup + kConsumers, "one warp group produces, the others consume");
  static_assert(kGroups == 1 || Memory == EpilogueMemory::own,
                "a group may store while another still reads the operands");

  // Registers of a thread: what the compiler may use of them is the same for all, then the producer gives some away.
  static constexpr int kRegisters = 65536 / ((kWarpGroup + kConsumers) * MinBlocks) / 8 * 8;
  static constexpr int kProducerRegisters = 40;  // of the epilogue's load; with fewer ptxas ignores setmaxnreg
  static constexpr int kMostRegisters = 240;
  static constexpr int kLeft = (kRegisters * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8;
  static constexpr int kConsumerRegisters = kLeft < kMostRegisters ? kLeft : kMostRegisters;
  static constexpr bool kMovesRegisters = kConsumerRegisters > kRegisters;

  using MainloopTensors = typename CollectiveMainloop::TensorStorage;
  using EpilogueTensors = typename CollectiveEpilogue::TensorStorage;

  union OverlaidTensors {
    MainloopTensors mainloop;
    EpilogueTensors epilogue;
  };

  struct SeparateTensors {
    MainloopTensors mainloop;
    EpilogueTensors epilogue;
  };

  struct SharedStorage {
    cute::conditional_t<Memory == EpilogueMemory::own, SeparateTensors, OverlaidTensors> tensors;
    alignas(16) typename CollectiveMainloop::PipelineStorage operands;
    alignas(16) typename CollectiveEpilogue::PipelineStorage loads;
  };
  static constexpr int SharedStorageSize = static_cast<int>(sizeof(SharedStorage));

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SharedStorage& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    constexpr int kLoadWarp = Memory == EpilogueMemory::own ? 1 : 0;  // on its own, it need not wait for the main loop
    int const warp = cutlass::canonical_warp_idx_sync();
    int const lane = cutlass::canonical_lane_idx();
    bool const is_consumer = cutlass::canonical_warp_group_idx() > 0;
    bool const loads_operands = warp == 0;
    bool const loads_tiles = warp == kLoadWarp;
    uint32_t const rank = cute::block_rank_in_cluster();

    if (loads_operands && cute::elect_one_sync()) {
      CollectiveMainloop::prefetch_tma_descriptors(params.mainloop);
      CollectiveEpilogue::prefetch_tma_descriptors(params.epilogue);
    }

    using Operands = typename CollectiveMainloop::MainloopPipeline;
    typename Operands::Params operands_params;
    if (loads_operands) operands_params.role = Operands::ThreadCategory::Producer;
    if (is_consumer) operands_params.role = Operands::ThreadCategory::Consumer;
    operands_params.is_leader = threadIdx.x % kWarpGroup == 0;
    operands_params.num_consumers = kConsumers;
    operands_params.transaction_bytes = params.mainloop.tma_transaction_bytes;
    Operands operands(shared.operands, operands_params, ClusterShape{});

    using Loads = typename CollectiveEpilogue::LoadPipeline;
    typename Loads::Params loads_params;
    if (loads_tiles) loads_params.role = Loads::ThreadCategory::Producer;
    if (is_consumer) loads_params.role = Loads::ThreadCategory::Consumer;
    loads_params.dst_blockid = rank;
    loads_params.producer_arv_count = cutlass::NumThreadsPerWarp;
    loads_params.consumer_arv_count = kConsumers;
    if constexpr (CollectiveEpilogue::RequiresTransactionBytes) {
      loads_params.transaction_bytes = params.epilogue.tma_transaction_bytes;
    }
    Loads loads(shared.loads, loads_params);

    using Stores = typename CollectiveEpilogue::StorePipeline;
    typename Stores::Params stores_params;
    stores_params.always_wait = true;
    Stores stores(stores_params);

    // All thread blocks of the cluster must see the barriers before any is used.
    if constexpr (cute::size(ClusterShape{}) > 1) {
      cute::cluster_arrive_relaxed();
    }
    CollectiveMainloop mainloop;
    CollectiveEpilogue epilogue(params.epilogue, shared.tensors.epilogue);
    TiledMma tiled_mma;
    auto const shape = cute::append<4>(params.problem_shape, cute::_1{});
    auto const tensors = mainloop.load_init(shape, params.mainloop);
    auto const m = cute::idx2crd(static_cast<int>(blockIdx.x), cute::shape<2>(cute::get<0>(tensors)));
    auto const n = cute::idx2crd(static_cast<int>(blockIdx.y), cute::shape<2>(cute::get<1>(tensors)));
    auto const tile = cute::make_coord(m, n, cute::_, cute::_0{});
    auto k_tile = cute::make_coord_iterator(cute::shape<3>(cute::get<0>(tensors)));
    int const k_tiles = cute::size<3>(cute::get<0>(tensors));
    if constexpr (cute::size(ClusterShape{}) > 1) {
      cute::cluster_wait();
    } else {
      __syncthreads();
    }

    if (!is_consumer) {
      if constexpr (kMovesRegisters) cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (loads_operands) {
        auto state = cutlass::make_producer_start_state<Operands>();
        mainloop.load(params.mainloop, operands, state, tensors, tile, k_tile, k_tiles, lane, rank,
                      shared.tensors.mainloop);
        state.advance(k_tiles);
        mainloop.load_tail(operands, state);  // the consumers have read all stages: their memory is free
        __syncwarp();
      }
      if (loads_tiles && epilogue.is_producer_load_needed()) {
        auto state = cutlass::make_producer_start_state<Loads>();
        state = epilogue.load(loads, state, shape, TileShape{}, tile, tiled_mma, lane, shared.tensors.epilogue);
        epilogue.load_tail(loads, state);
      }
    } else {
      if constexpr (kMovesRegisters) cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      int const thread = static_cast<int>(threadIdx.x) - kWarpGroup;
      cute::Tensor accumulators = cute::partition_fragment_C(tiled_mma, cute::take<0, 2>(TileShape{}));
      typename CollectiveMainloop::PipelineState state;
      mainloop.mma(operands, state, accumulators, k_tiles, thread, shared.tensors.mainloop, params.mainloop);
      mainloop.mma_tail(operands, state, k_tiles);
      typename CollectiveEpilogue::LoadPipelineState load_state;
      auto store_state = cutlass::make_producer_start_state<Stores>();
      auto [next_load, next_store] =
          epilogue.store(loads, load_state, stores, store_state, shape, TileShape{}, tile, accumulators, tiled_mma,
                         thread, shared.tensors.epilogue);
      epilogue.store_tail(loads, next_load, stores, next_store);
    }
#endif
  }
};

/// The kernel over windows of rows: what of the last vector is behind a window TMA fills with zeros, so that the channels
/// need not be whole vectors, which CUTLASS asks for.
template <class ProblemShape, class CollectiveMainloop, class CollectiveEpilogue, int MinBlocks, EpilogueMemory Memory>
struct WindowKernel : Sm90Kernel<ProblemShape, CollectiveMainloop, CollectiveEpilogue, MinBlocks, Memory> {
  using Base = Sm90Kernel<ProblemShape, CollectiveMainloop, CollectiveEpilogue, MinBlocks, Memory>;
  using Arguments = typename Base::Arguments;

  static bool can_implement(Arguments arguments) {
    constexpr int kChannels = ProblemShape::RankT - 1;
    constexpr int kVector = 16 / static_cast<int>(sizeof(typename CollectiveMainloop::ElementA));
    for (auto* shape : {&arguments.problem_shape.shape_A, &arguments.problem_shape.shape_B}) {
      (*shape)[kChannels] = ((*shape)[kChannels] + kVector - 1) / kVector * kVector;
    }
    return Base::can_implement(arguments);
  }
};

}  // namespace convolution
}  // namespace evt

#endif  // EVT_CONVOLUTION_3X_HPP
