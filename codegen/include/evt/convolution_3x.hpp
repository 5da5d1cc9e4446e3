#ifndef EVT_CONVOLUTION_3X_HPP
#define EVT_CONVOLUTION_3X_HPP

// Convolution kernels of sm90, over CUTLASS's implicit-GEMM main loop (TMA im2col, WGMMA) and its epilogue. CUTLASS's
// kernel has one consumer warp group and gives every thread the same number of registers. These kernels move registers
// from the producer to the consumers.
//
// A CTA of Sm90Kernel has one tile, shared by one or two consumers. Two or three CTAs share an SM, so that one
// multiplies while another stores. If an SM has one CTA alone, the epilogue's tiles have separate shared memory and are
// loaded during the main loop.
//
// Sm90Pingpong has persistent CTAs and two consumers with one tile each, which alternate at the tensor cores. One
// consumer multiplies while the other computes its epilogue. The operands of a tile are loaded during the previous
// tile.

#include "cutlass/cutlass.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/pipeline/pipeline.hpp"
#include "cutlass/kernel_hardware_info.h"
#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/conv/kernel/conv_universal.hpp"
#include "cute/tensor.hpp"

namespace evt {
namespace convolution {

/// Shared memory of an SM, and the part that is reserved for each CTA.
constexpr int kSharedPerMultiprocessor = 233472;
constexpr int kSharedReserved = 1024;
/// An upper bound of the shared memory of a CTA's barriers.
constexpr int kBarriers = 1024;

/// The shared memory of an epilogue's tiles: the main loop's, after its end, or separate.
enum class EpilogueMemory { shared, own };

/// The main loop's stages if MinBlocks CTAs share an SM, in the form of collective builders.
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

/// The role of a thread. Warp 0 of the first warp group loads operands. Warp 0 or 1 loads the epilogue's tiles.
struct Role {
  int const group = cutlass::canonical_warp_group_idx();
  bool const is_consumer = group > 0;
  bool const loads_operands, loads_tiles;

  CUTLASS_DEVICE explicit Role(int load_warp)
      : loads_operands(cutlass::canonical_warp_idx_sync() == 0),
        loads_tiles(cutlass::canonical_warp_idx_sync() == load_warp) {}
};

/// The pipelines of operands, of the tiles that the epilogue loads, and of the tiles that it stores. Consumers is the
/// number of consumer threads of each tile.
template <class CollectiveMainloop, class CollectiveEpilogue, int Consumers>
struct Pipelines {
  using Operands = typename CollectiveMainloop::MainloopPipeline;
  using Loads = typename CollectiveEpilogue::LoadPipeline;
  using Stores = typename CollectiveEpilogue::StorePipeline;

  struct SharedStorage {
    alignas(16) typename CollectiveMainloop::PipelineStorage operands;
    alignas(16) typename CollectiveEpilogue::PipelineStorage loads;
  };

  Operands operands;
  Loads loads;
  Stores stores;

  template <class Params>
  CUTLASS_DEVICE Pipelines(SharedStorage& shared, Params const& params, Role const& role)
      : operands(shared.operands, of_operands(params, role), typename CollectiveMainloop::DispatchPolicy::ClusterShape{}),
        loads(shared.loads, of_loads(params, role)),
        stores(of_stores()) {}

  template <class Params>
  CUTLASS_DEVICE static auto of_operands(Params const& params, Role const& role) {
    typename Operands::Params made;
    if (role.loads_operands) made.role = Operands::ThreadCategory::Producer;
    if (role.is_consumer) made.role = Operands::ThreadCategory::Consumer;
    made.is_leader = threadIdx.x % cutlass::NumThreadsPerWarpGroup == 0;
    made.num_consumers = Consumers;
    made.transaction_bytes = params.mainloop.tma_transaction_bytes;
    return made;
  }

  template <class Params>
  CUTLASS_DEVICE static auto of_loads(Params const& params, Role const& role) {
    typename Loads::Params made;
    if (role.loads_tiles) made.role = Loads::ThreadCategory::Producer;
    if (role.is_consumer) made.role = Loads::ThreadCategory::Consumer;
    made.dst_blockid = cute::block_rank_in_cluster();
    made.producer_arv_count = cutlass::NumThreadsPerWarp;
    made.consumer_arv_count = Consumers;
    if constexpr (CollectiveEpilogue::RequiresTransactionBytes) {
      made.transaction_bytes = params.epilogue.tma_transaction_bytes;
    }
    return made;
  }

  CUTLASS_DEVICE static auto of_stores() {
    typename Stores::Params made;
    made.always_wait = true;
    return made;
  }
};

/// Registers of a producer thread: enough for the epilogue's load. With fewer, ptxas ignores setmaxnreg.
constexpr int kProducerRegisters = 40;

/// The kernel. Its host side (Arguments, Params, grid and checks) is CUTLASS's.
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

  // Registers of a thread: the compiler's limit is the same for all, then the producer releases some.
  static constexpr int kRegisters = 65536 / ((kWarpGroup + kConsumers) * MinBlocks) / 8 * 8;
  static constexpr int kMostRegisters = 240;
  static constexpr int kLeft = (kRegisters * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8;
  static constexpr int kConsumerRegisters = kLeft < kMostRegisters ? kLeft : kMostRegisters;
  static constexpr bool kMovesRegisters = kConsumerRegisters > kRegisters;

  using Pipes = Pipelines<CollectiveMainloop, CollectiveEpilogue, kConsumers>;
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
    typename Pipes::SharedStorage pipelines;
  };
  static constexpr int SharedStorageSize = static_cast<int>(sizeof(SharedStorage));

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SharedStorage& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    Role const role(Memory == EpilogueMemory::own ? 1 : 0);  // a separate warp does not wait for the main loop
    int const lane = cutlass::canonical_lane_idx();
    uint32_t const rank = cute::block_rank_in_cluster();

    if (role.loads_operands && cute::elect_one_sync()) {
      CollectiveMainloop::prefetch_tma_descriptors(params.mainloop);
      CollectiveEpilogue::prefetch_tma_descriptors(params.epilogue);
    }
    Pipes pipes(shared.pipelines, params, role);
    auto& [operands, loads, stores] = pipes;

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

    if (!role.is_consumer) {
      if constexpr (kMovesRegisters) cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (role.loads_operands) {
        auto state = cutlass::make_producer_start_state<typename Pipes::Operands>();
        mainloop.load(params.mainloop, operands, state, tensors, tile, k_tile, k_tiles, lane, rank,
                      shared.tensors.mainloop);
        state.advance(k_tiles);
        mainloop.load_tail(operands, state);  // the consumers have read all stages: their memory is free
        __syncwarp();
      }
      if (role.loads_tiles && epilogue.is_producer_load_needed()) {
        auto state = cutlass::make_producer_start_state<typename Pipes::Loads>();
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
      auto store_state = cutlass::make_producer_start_state<typename Pipes::Stores>();
      auto [next_load, next_store] =
          epilogue.store(loads, load_state, stores, store_state, shape, TileShape{}, tile, accumulators, tiled_mma,
                         thread, shared.tensors.epilogue);
      epilogue.store_tail(loads, next_load, stores, next_store);
    }
#endif
  }
};

/// The kernel with persistent CTAs. Its host side is CUTLASS's, except for the grid. Tiles that share rows run at the
/// same time, so that the activation is read once.
template <class ProblemShape, class CollectiveMainloop, class CollectiveEpilogue>
struct Sm90Pingpong : cutlass::conv::kernel::ConvUniversal<ProblemShape, CollectiveMainloop, CollectiveEpilogue> {
  using Base = cutlass::conv::kernel::ConvUniversal<ProblemShape, CollectiveMainloop, CollectiveEpilogue>;
  using Arguments = typename Base::Arguments;
  using TileShape = typename CollectiveMainloop::TileShape;
  using TiledMma = typename CollectiveMainloop::TiledMma;

  static constexpr int kWarpGroup = cutlass::NumThreadsPerWarpGroup;
  static constexpr int kGroups = 2;
  static constexpr uint32_t MaxThreadsPerBlock = (1 + kGroups) * kWarpGroup;
  static constexpr uint32_t MinBlocksPerMultiprocessor = 1;
  static constexpr int kConsumerRegisters = 232;
  static_assert(cute::size(TiledMma{}) == kWarpGroup, "each consumer must have a separate tile");
  static_assert(cute::size(typename Base::ClusterShape{}) == 1, "clusters have one CTA");

  using Pipes = Pipelines<CollectiveMainloop, CollectiveEpilogue, kWarpGroup>;
  /// The ordered barriers of the main loop and of the epilogue.
  using Order = cutlass::OrderedSequenceBarrier<2, kGroups>;

  struct Params : Base::Params {
    cutlass::FastDivmod by_columns;  // of tiles
    int tiles;
    int grid;
  };

  static Params to_underlying_arguments(Arguments const& arguments, void* workspace = nullptr) {
    Params params{};
    static_cast<typename Base::Params&>(params) = Base::to_underlying_arguments(arguments, workspace);
    dim3 const tiles = Base::get_grid_shape(params);
    params.by_columns = cutlass::FastDivmod(static_cast<int>(tiles.y));
    params.tiles = static_cast<int>(tiles.x * tiles.y);
    params.grid = cute::min(params.tiles, arguments.hw_info.sm_count);
    return params;
  }

  static dim3 get_grid_shape(Params const& params) { return dim3(params.grid); }
  static dim3 get_block_shape() { return dim3(MaxThreadsPerBlock); }

  struct SharedStorage {
    struct {
      typename CollectiveMainloop::TensorStorage mainloop;
      typename CollectiveEpilogue::TensorStorage epilogue;
    } tensors;
    typename Pipes::SharedStorage pipelines;
    alignas(16) typename Order::SharedStorage order;
  };
  static constexpr int SharedStorageSize = static_cast<int>(sizeof(SharedStorage));

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SharedStorage& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    Role const role(1);
    int const lane = cutlass::canonical_lane_idx();

    if (role.loads_operands && cute::elect_one_sync()) {
      CollectiveMainloop::prefetch_tma_descriptors(params.mainloop);
      CollectiveEpilogue::prefetch_tma_descriptors(params.epilogue);
    }
    Pipes pipes(shared.pipelines, params, role);
    auto& [operands, loads, stores] = pipes;
    Order order(shared.order, typename Order::Params{static_cast<uint32_t>(role.group - 1), kWarpGroup});

    CollectiveMainloop mainloop;
    CollectiveEpilogue epilogue(params.epilogue, shared.tensors.epilogue);
    TiledMma tiled_mma;
    auto const shape = cute::append<4>(params.problem_shape, cute::_1{});
    auto const tensors = mainloop.load_init(shape, params.mainloop);
    int const k_tiles = cute::size<3>(cute::get<0>(tensors));
    auto const tile_at = [&](int number) {
      int row, column;
      params.by_columns(row, column, number);
      auto const m = cute::idx2crd(row, cute::shape<2>(cute::get<0>(tensors)));
      auto const n = cute::idx2crd(column, cute::shape<2>(cute::get<1>(tensors)));
      return cute::make_coord(m, n, cute::_, cute::_0{});
    };
    __syncthreads();

    int const first = blockIdx.x;
    if (!role.is_consumer) {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (role.loads_operands) {
        auto state = cutlass::make_producer_start_state<typename Pipes::Operands>();
        for (int number = first; number < params.tiles; number += params.grid) {
          auto k_tile = cute::make_coord_iterator(cute::shape<3>(cute::get<0>(tensors)));
          mainloop.load(params.mainloop, operands, state, tensors, tile_at(number), k_tile, k_tiles, lane, 0,
                        shared.tensors.mainloop);
          state.advance(k_tiles);
        }
        mainloop.load_tail(operands, state);
      }
      if (role.loads_tiles && epilogue.is_producer_load_needed()) {
        auto state = cutlass::make_producer_start_state<typename Pipes::Loads>();
        for (int number = first; number < params.tiles; number += params.grid) {
          state = epilogue.load(loads, state, shape, TileShape{}, tile_at(number), tiled_mma, lane,
                                shared.tensors.epilogue);
        }
        epilogue.load_tail(loads, state);
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      int const thread = threadIdx.x % kWarpGroup, turn = role.group - 1;
      // Each consumer skips the pipeline stages of the other consumer's tiles.
      int const parts = CollectiveEpilogue::get_load_pipe_increment(TileShape{});
      typename CollectiveMainloop::PipelineState state;
      typename CollectiveEpilogue::LoadPipelineState load_state;
      auto store_state = cutlass::make_producer_start_state<typename Pipes::Stores>();
      state.advance(turn * k_tiles);
      load_state.advance(turn * parts);
      store_state.advance(turn * parts);
      for (int number = first + turn * params.grid; number < params.tiles; number += kGroups * params.grid) {
        cute::Tensor accumulators = cute::partition_fragment_C(tiled_mma, cute::take<0, 2>(TileShape{}));
        order.wait();
        mainloop.mma(operands, state, accumulators, k_tiles, thread, shared.tensors.mainloop, params.mainloop);
        order.arrive();
        mainloop.mma_tail(operands, state, k_tiles);
        state.advance(kGroups * k_tiles);

        order.wait();
        auto const [loaded, stored] =
            epilogue.store(loads, load_state, stores, store_state, shape, TileShape{}, tile_at(number), accumulators,
                           tiled_mma, thread, shared.tensors.epilogue);
        // Wait for the stores now: the other consumer uses their memory next.
        auto const [next_load, next_store] = epilogue.store_tail(loads, loaded, stores, stored);
        load_state = next_load;
        store_state = next_store;
        load_state.advance(parts);
        store_state.advance(parts);
        order.arrive();
      }
    }
#endif
  }
};

/// A kernel over windows of rows. TMA fills the part of the last vector behind a window with zeros. The channels may
/// therefore end within a vector, which CUTLASS does not allow.
template <class Kernel>
struct OverWindows : Kernel {
  using Arguments = typename Kernel::Arguments;

  static bool can_implement(Arguments arguments) {
    constexpr int kChannels = Kernel::ProblemShape::RankT - 1;
    constexpr int kVector = 16 / static_cast<int>(sizeof(typename Kernel::CollectiveMainloop::ElementA));
    for (auto* shape : {&arguments.problem_shape.shape_A, &arguments.problem_shape.shape_B}) {
      (*shape)[kChannels] = ((*shape)[kChannels] + kVector - 1) / kVector * kVector;
    }
    return Kernel::can_implement(arguments);
  }
};

}  // namespace convolution
}  // namespace evt

#endif  // EVT_CONVOLUTION_3X_HPP
