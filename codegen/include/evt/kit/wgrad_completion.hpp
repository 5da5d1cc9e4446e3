#ifndef EVT_KIT_WGRAD_COMPLETION_HPP
#define EVT_KIT_WGRAD_COMPLETION_HPP

// A warp completes the tiles of 8 rows and 32 columns whose sums it has: it computes the epilogue, or writes partial sums
// for the second kernel. If two CTAs of a cluster share a tile of the gradient, each warp sends the sums of every second
// tile to the warp of the other CTA that has the same tile, from registers to its shared memory, and completes the
// others. It adds sums in the order of ranks. Tiles are in shared memory between the order of WGMMA's registers and the
// order of the epilogue, in place of the stages. Partial sums without an exchange are written from registers.

#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/wgrad_geometry.hpp"
#include "evt/kit/wgrad_multiplication.hpp"
#include "evt/kit/wgrad_params.hpp"
#include "evt/kit/wgrad_sums.hpp"

namespace evt {
namespace wgrad {

template <class Tile, class Mma, class Epilogue>
struct WgradCompletion {
  using Storage = WgradStorage<Tile>;
  using Work = WgradWork<Tile>;
  using Output = WgradOutput<Tile>;
  using Consumer = WgradConsumer<Tile>;
  using Sums = SplitSums<Epilogue>;
  using Params = WgradParams<Sums>;
  using OfConsumer = typename WgradMultiplication<Tile, Mma>::Sums;
  static constexpr int kStripsOfBlock = kBlock / kTileColumns;
  static constexpr int kStrips = Tile::kInstructions * Mma::kPixels / kTileColumns;  // of a consumer before parts join
  static constexpr int kPairs = kStrips / 2;

  /// Initialize the barriers of the exchange, by one thread.
  CUTLASS_DEVICE static void initialize(Storage const& storage) {
    kit::barrier_init(storage.multiplied(), 1);
    kit::barrier_init(storage.exchanged(), 1);
    kit::arrive_and_expect_tx(storage.exchanged(), Storage::kTiles / 2 * Storage::kTileBytes);
  }

  /// Add the sums of both parts. Each consumer then has the sums of every second strip, in the place of a pair's first
  /// strip. It sends the other strips through a stage of its part, which its consumer alone has read.
  CUTLASS_DEVICE static void join(Storage const& storage, Consumer const& consumer, OfConsumer& sums) {
    constexpr int kOfThread = kTileColumns / 2, kVectors = kOfThread / 4;  // a thread's sums of a strip
    static_assert(Tile::kBlocks * Tile::kInstructions == 1 && Tile::kConsumers == 2, "both have the same sums");
    static_assert(kPairs * kVectors * kWarpGroup * 16 <= WgradPixels<Tile>::kStage, "a stage has the sums");
    uint32_t const of_thread = threadIdx.x % kWarpGroup * 16;
    auto const place = [&](int part, int pair, int i) {
      return storage.stage(part) + (pair * kVectors + i) * kWarpGroup * 16 + of_thread;
    };
    CUTLASS_PRAGMA_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      float* const own = sums[0][0] + pair * 2 * kOfThread;
      float other[kOfThread];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOfThread; ++i) {
        other[i] = consumer.part == 0 ? own[kOfThread + i] : own[i];
        own[i] = consumer.part == 0 ? own[i] : own[kOfThread + i];
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        kit::store_shared(place(consumer.part, pair, i),
                          make_float4(other[4 * i], other[4 * i + 1], other[4 * i + 2], other[4 * i + 3]));
      }
    }
    sync_consumers();
    CUTLASS_PRAGMA_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      float* const own = sums[0][0] + pair * 2 * kOfThread;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        uint32_t more[4];
        kit::load_shared(more, place(1 - consumer.part, pair, i));
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) own[4 * i + j] += __uint_as_float(more[j]);
      }
    }
  }

  /// Write a consumer's sums as partial sums of the cluster: all strips, or every second one of two parts.
  CUTLASS_DEVICE static void write(
      Params const& params, Output const& output, Consumer const& consumer, OfConsumer const& sums) {
    typename Sums::Params const& combined = params.combined;
    int const first_tile = output.filter / kTileRows;
    float* const of_lane = params.sums + combined.place(output.partial, first_tile, 0) + threadIdx.x % 32 * 4;
    for_each_tile(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
      int const of_gradient = strip_of(params, output, strip);
      if ((first_tile + tile_row) * kTileRows >= combined.rows || of_gradient < 0) return;
      float* const to = of_lane + combined.place(0, tile_row, of_gradient);
      *reinterpret_cast<float4*>(to) = halves[0];
      *reinterpret_cast<float4*>(to + TileOrder::kHalf) = halves[1];
    });
  }

  /// Complete the tiles of a warp.
  CUTLASS_DEVICE static void complete(Params const& params, Storage const& storage, Work const& work,
                                      Output const& output, Consumer const& consumer, OfConsumer const& sums) {
    bool const shared = params.ranks > 1;
    uint32_t const of_lane = threadIdx.x % 32 * 16;
    int const other = work.rank ^ 1;
    if constexpr (Tile::kParts == 1) sync_consumers();  // all have read the stages
    if (shared && threadIdx.x == kWarpGroup) {
      kit::barrier_arrive_cluster(of_rank(params, work, storage.multiplied(), other));
    }
    for_each_tile(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
      if (shared && tile_row % 2 != work.rank) return;
      uint32_t const to = storage.sums(strip, tile_row) + of_lane;
      kit::store_shared(to, halves[0]);
      kit::store_shared(to + TileOrder::kHalf * 4, halves[1]);
    });
    if (shared) {
      kit::barrier_wait(storage.multiplied(), 0);
      uint32_t const barrier = of_rank(params, work, storage.exchanged(), other);
      uint32_t const first = of_rank(params, work, storage.sums(0, 0), other) - storage.sums(0, 0) + of_lane;
      for_each_tile(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
        if (tile_row % 2 == work.rank) return;
        uint32_t const to = first + storage.sums(strip, tile_row ^ 1);  // whose own sums this CTA has
        kit::store_async(to, halves[0], barrier);
        kit::store_async(to + TileOrder::kHalf * 4, halves[1], barrier);
      });
    }
    __syncwarp();
    if (shared) {
      kit::barrier_wait_cluster(storage.exchanged());
      complete_tiles<2>(params, storage, work, output, consumer);
    } else {
      complete_tiles<1>(params, storage, work, output, consumer);
    }
  }

 private:
  /// Wait for all consumers.
  CUTLASS_DEVICE static void sync_consumers() { kit::named_barrier_sync<1>(Tile::kConsumers * kWarpGroup); }

  /// An address in the CTA of a rank.
  CUTLASS_DEVICE static uint32_t of_rank(Params const& params, Work const& work, uint32_t address, int rank) {
    return kit::set_block_rank(address, rank * params.neighbours + work.neighbour);
  }

  /// Complete the tiles of a warp from shared memory. The sums of another CTA are in place of the sums that went there.
  template <int Ranks>
  CUTLASS_DEVICE static void complete_tiles(
      Params const& params, Storage const& storage, Work const& work, Output const& output, Consumer const& consumer) {
    constexpr int kStripsOfPart = kStrips / Tile::kParts, kTiles = kStripsOfPart * Tile::kBlocks * 2 / Ranks;
    constexpr int kTogether = kTiles > 1 ? 2 : 1;  // tiles whose sums are loaded before the first one is completed
    static_assert(kTiles % kTogether == 0, "all tiles are loaded in pairs");
    uint32_t const of_pair = TileOrder::place(threadIdx.x % 32) * 4;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int first = 0; first < kTiles; first += kTogether) {
      int strips[kTogether], tile_rows[kTogether];
      float2 sums[kTogether][fragment::kRows] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        uint32_t const number = Ranks == 1 ? first / 2 : first + i;  // without the other CTA: of 16 rows
        int const row = first_row(consumer) + number / kStripsOfPart * (kBlock / kTileRows);
        strips[i] = first_strip(consumer) + number % kStripsOfPart * Tile::kParts;
        tile_rows[i] = row + (Ranks == 1 ? i : work.rank);
        CUTLASS_PRAGMA_UNROLL
        for (int rank = 0; rank < Ranks; ++rank) {
          add(storage.sums(strips[i], tile_rows[i] ^ int(Ranks > 1 && rank != work.rank)) + of_pair, sums[i]);
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) complete_tile(params, output, tile_rows[i], strips[i], sums[i]);
    }
  }

  /// Add a thread's sums of a tile, from the place of its first pair of columns.
  CUTLASS_DEVICE static void add(uint32_t of_pair, float2 (&sums)[fragment::kRows]) {
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < fragment::kRows; ++row) {
      float2 const more = kit::load_shared_two(of_pair + row * TileOrder::kRowsApart * 4);
      sums[row].x += more.x;
      sums[row].y += more.y;
    }
  }

  /// Complete a tile of the CTA.
  CUTLASS_DEVICE static void complete_tile(Params const& params, Output const& output, int tile_row, int of_cta,
                                           float2 const (&sums)[fragment::kRows]) {
    typename Sums::Params const& combined = params.combined;
    int const first_row = output.filter + tile_row * kTileRows, strip = strip_of(params, output, of_cta);
    // A strip without channels is completed, too: its parts of reductions are added.
    if (strip < 0 || first_row >= params.filters) return;
    if (combined.splits == 1) {
      int const row = first_row + static_cast<int>(threadIdx.x) % Lanes::kRows;
      Sums::visit(combined, combined.tile(first_row / kTileRows, strip), row, sums);
    } else {
      int64_t const first = combined.place(output.partial, first_row / kTileRows, strip);
      Sums::write(params.sums + first + TileOrder::place(threadIdx.x % 32), sums);
    }
  }

  /// The strip of the gradient that is a strip of the CTA; -1 for a strip of a block beyond the gradient.
  CUTLASS_DEVICE static int strip_of(Params const& params, Output const& output, int strip) {
    int const block = uint32_t(strip) / kStripsOfBlock, part = uint32_t(strip) % kStripsOfBlock;
    if constexpr (Tile::kHasWindow) {
      int const y = output.tap_row + block / Tile::kTapColumns, x = output.tap_column + block % Tile::kTapColumns;
      bool const is_tap = y < params.taps_high && x < params.taps_wide;
      int const tap = y * params.taps_wide + x;
      return is_tap ? tap * params.combined.strips_of_tap() + output.block * kStripsOfBlock + part : -1;
    } else {
      int const found = (output.block + block) * kStripsOfBlock + part;
      return found < params.combined.strips ? found : -1;
    }
  }

  /// The first strip of a consumer in the CTA. Both parts have every second strip.
  CUTLASS_DEVICE static int first_strip(Consumer const& consumer) {
    return (Tile::kHasWindow ? consumer.tap_row * Tile::kTapColumns * kStripsOfBlock : 0) + consumer.part;
  }

  /// The first tile of a warp's rows in the CTA: an even number.
  CUTLASS_DEVICE static int first_row(Consumer const& consumer) {
    return consumer.first_block * (kBlock / kTileRows) + threadIdx.x % kWarpGroup / 32 * 2;
  }

  /// Call `function(tile_row, strip, halves)` for each tile of 8 rows and 32 columns of a warp's sums. Two parts have
  /// joined: a strip of each is in the place of two.
  template <class Function>
  CUTLASS_DEVICE static void for_each_tile(Consumer const& consumer, OfConsumer const& sums, Function const& function) {
    constexpr int kOfInstruction = Mma::kPixels / kTileColumns;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kStrips; i += Tile::kParts) {
        float const* const of_strip = sums[block][i / kOfInstruction] + i % kOfInstruction * (kTileColumns / 2);
        CUTLASS_PRAGMA_UNROLL
        for (int lower = 0; lower < 2; ++lower) {
          float const* const from = of_strip + 2 * lower;
          float4 const halves[2] = {make_float4(from[0], from[1], from[4], from[5]),
                                    make_float4(from[8], from[9], from[12], from[13])};
          function(first_row(consumer) + block * (kBlock / kTileRows) + lower, first_strip(consumer) + i, halves);
        }
      }
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_COMPLETION_HPP
