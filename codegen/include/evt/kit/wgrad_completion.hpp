#ifndef EVT_KIT_WGRAD_COMPLETION_HPP
#define EVT_KIT_WGRAD_COMPLETION_HPP

// The CTAs of a cluster that share a tile of the gradient complete it. Each keeps its sums in shared memory, in place of
// the stages, and TMA copies the sums of the other CTAs' parts to them, in chunks: a CTA completes the first chunk while
// the next one comes. It adds sums in the order of ranks. Then it computes the epilogue, or writes partial sums for the
// second kernel. A CTA that shares its tile with other clusters alone writes partial sums from registers.

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
  static constexpr int kPairs = Tile::kInstructions * Mma::kPixels / (2 * kTileColumns);  // of strips

  /// Initialize the barriers of the exchange, by one thread.
  CUTLASS_DEVICE static void initialize(Params const& params, Storage const& storage) {
    kit::barrier_init(storage.multiplied(), params.ranks);
    int const bytes = (params.ranks - 1) * Tile::kParts * chunk_of(params) * Storage::kTileBytes;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      kit::barrier_init(storage.exchanged(chunk), 1);
      kit::arrive_and_expect_tx(storage.exchanged(chunk), bytes);
    }
  }

  /// Keep the sums of a consumer in shared memory, once all consumers have read the stages.
  CUTLASS_DEVICE static void keep(Storage const& storage, Consumer const& consumer, OfConsumer const& sums) {
    uint32_t const of_lane = threadIdx.x % 32 * 16;
    for_each_tile<1>(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
      uint32_t const to = storage.sums(consumer.part, strip * Storage::kTileRows + tile_row) + of_lane;
      kit::store_shared(to, halves[0]);
      kit::store_shared(to + TileOrder::kHalf * 4, halves[1]);
    });
    kit::fence_view_async_shared();
  }

  /// Tell the CTAs that share the tile that this CTA's consumers have read the stages, by a warp.
  CUTLASS_DEVICE static void announce(Params const& params, Storage const& storage, Work const& work) {
    int const lane = threadIdx.x % 32;
    if (lane < params.ranks) kit::barrier_arrive_cluster(of_rank(params, work, storage.multiplied(), lane));
  }

  /// Send sums to the CTAs that complete them, by one thread.
  CUTLASS_DEVICE static void send(Params const& params, Storage const& storage, Work const& work) {
    int const tiles = params.completed, of_chunk = chunk_of(params);
    kit::barrier_wait(storage.multiplied(), 0);
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      for (int i = 1; i < params.ranks; ++i) {
        int const to = (work.rank + i) & (params.ranks - 1);  // a power of two
        for (int part = 0; part < Tile::kParts; ++part) {
          uint32_t const place = storage.received(sender_of(work.rank, to), part, tiles, chunk * of_chunk);
          kit::copy_to_cluster(of_rank(params, work, place, to), storage.sums(part, to * tiles + chunk * of_chunk),
                               of_chunk * Storage::kTileBytes, of_rank(params, work, storage.exchanged(chunk), to));
        }
      }
    }
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
    kit::consumers_sync();
    CUTLASS_PRAGMA_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      float* const own = sums[0][0] + pair * 2 * kOfThread;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOfThread; i += 2) {
        float2 const more = kit::load_shared_two(place(1 - consumer.part, pair, i / 4) + i % 4 * 4);
        own[i] += more.x;
        own[i + 1] += more.y;
      }
    }
  }

  /// Write a consumer's sums as partial sums of the cluster: all strips, or every second one of two parts.
  CUTLASS_DEVICE static void write(
      Params const& params, Output const& output, Consumer const& consumer, OfConsumer const& sums) {
    typename Sums::Params const& combined = params.combined;
    int const first_tile = output.filter / kTileRows, first_strip = output.block * kStripsOfBlock;
    float* const of_lane = params.sums + combined.place(output.partial, first_tile, first_strip) + threadIdx.x % 32 * 4;
    for_each_tile<Tile::kParts>(consumer, sums, [&](int tile_row, int strip, float4 const (&halves)[2]) {
      if ((first_tile + tile_row) * kTileRows >= combined.rows || first_strip + strip >= combined.strips) return;
      float* const to = of_lane + combined.place(0, tile_row, strip);
      *reinterpret_cast<float4*>(to) = halves[0];
      *reinterpret_cast<float4*>(to + TileOrder::kHalf) = halves[1];
    });
  }

  /// Complete this CTA's part of the tile, by the warps of all consumers.
  CUTLASS_DEVICE static void complete(
      Params const& params, Storage const& storage, Work const& work, Output const& output, int warp) {
    constexpr int kAll = Tile::kConsumers * kWarps;
    int const tiles = params.completed, of_chunk = chunk_of(params), first_tile = work.rank * tiles;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int first = warp; first < tiles; first += kTogether * kAll) {
      int numbers[kTogether];
      Place places[kTogether];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        numbers[i] = min(first + i * kAll, tiles - 1);
        places[i] = place_of(params, output, first_tile + numbers[i]);
        places[i].exists &= first + i * kAll < tiles;
      }
      if (params.ranks > 1) {
        // TMA sends one chunk after another.
        for (int chunk = 0; chunk * of_chunk <= numbers[kTogether - 1]; ++chunk) {
          kit::barrier_wait(storage.exchanged(chunk), 0);
        }
      }
      float2 sums[kTogether][fragment::kRows] = {};
      CUTLASS_PRAGMA_NO_UNROLL
      for (int rank = 0; rank < params.ranks; ++rank) {
        bool const is_own = rank == work.rank;
        CUTLASS_PRAGMA_UNROLL
        for (int part = 0; part < Tile::kParts; ++part) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kTogether; ++i) {
            add(is_own ? storage.sums(part, first_tile + numbers[i])
                       : storage.received(sender_of(rank, work.rank), part, tiles, numbers[i]), sums[i]);
          }
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (places[i].exists) complete_tile(params, output, places[i], sums[i]);
      }
    }
  }

 private:
  static constexpr int kTogether = 2;  // tiles whose sums a warp loads before it completes the first one
  static constexpr int kChunks = Storage::kChunks;

  /// The tiles of a chunk.
  CUTLASS_DEVICE static int chunk_of(Params const& params) { return params.completed / kChunks; }
  /// An address in the CTA of a rank.
  CUTLASS_DEVICE static uint32_t of_rank(Params const& params, Work const& work, uint32_t address, int rank) {
    return kit::set_block_rank(address, rank * params.neighbours + work.neighbour);
  }
  /// A CTA's number among the senders of another one.
  CUTLASS_DEVICE static int sender_of(int rank, int to) { return rank - (rank > to); }

  /// Add a thread's sums of a tile.
  CUTLASS_DEVICE static void add(uint32_t tile, float2 (&sums)[fragment::kRows]) {
    uint32_t const of_lane = tile + TileOrder::place(threadIdx.x % 32) * 4;
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < fragment::kRows; ++row) {
      float2 const more = kit::load_shared_two(of_lane + row * TileOrder::kRowsApart * 4);
      sums[row].x += more.x;
      sums[row].y += more.y;
    }
  }

  /// The place of a tile of the CTA in the gradient.
  struct Place {
    fragment::Tile tile;
    int row;  // of the lane
    bool exists;
  };

  CUTLASS_DEVICE static Place place_of(Params const& params, Output const& output, uint32_t number) {
    int const down = number % Storage::kTileRows, across = number / Storage::kTileRows;
    int const first_row = output.filter + down * kTileRows;
    // A strip without channels is completed, too: its parts of reductions are added.
    int const strip = strip_of(params, output, across / kStripsOfBlock, across % kStripsOfBlock);
    return {params.combined.tile(first_row / kTileRows, strip), first_row + static_cast<int>(threadIdx.x) % Lanes::kRows,
            strip >= 0 && first_row < params.filters};
  }

  /// Complete a warp's tile of the CTA.
  CUTLASS_DEVICE static void complete_tile(
      Params const& params, Output const& output, Place const& place, float2 const (&sums)[fragment::kRows]) {
    typename Sums::Params const& combined = params.combined;
    if (combined.splits == 1) {
      Sums::visit(combined, place.tile, place.row, sums);
    } else {
      int64_t const first = combined.place(output.partial, place.tile.number, place.tile.strip);
      Sums::write(params.sums + first + TileOrder::place(threadIdx.x % 32), sums);
    }
  }

  /// The strip of a part of a CTA's block of channels; -1 for a block beyond the gradient.
  CUTLASS_DEVICE static int strip_of(Params const& params, Output const& output, int block, int part) {
    if constexpr (Tile::kHasWindow) {
      int const y = output.tap_row + block / Tile::kTapColumns, x = output.tap_column + block % Tile::kTapColumns;
      bool const is_tap = y < params.taps_high && x < params.taps_wide;
      int const tap = y * params.taps_wide + x;
      return is_tap ? tap * params.combined.strips_of_tap() + output.block * kStripsOfBlock + part : -1;
    } else {
      int const strip = (output.block + block) * kStripsOfBlock + part;
      return strip < params.combined.strips ? strip : -1;
    }
  }

  /// Call `function(tile_row, strip, halves)` for each tile of 8 rows and 32 columns of a warp's sums. Step: of the
  /// strips that are in the place of Step strips, one of each part.
  template <int Step, class Function>
  CUTLASS_DEVICE static void for_each_tile(Consumer const& consumer, OfConsumer const& sums, Function const& function) {
    constexpr int kStrips = Mma::kPixels / kTileColumns;  // of an instruction
    int const of_window = Tile::kHasWindow ? consumer.tap_row * Tile::kTapColumns * kStripsOfBlock : 0;
    int const first_strip = of_window + (Step > 1 ? consumer.part : 0);
    int const first_row = consumer.first_block * (kBlock / kTileRows) + threadIdx.x % kWarpGroup / 32 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < Tile::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Tile::kInstructions * kStrips; i += Step) {
        float const* const of_strip = sums[block][i / kStrips] + i % kStrips * (kTileColumns / 2);
        CUTLASS_PRAGMA_UNROLL
        for (int lower = 0; lower < 2; ++lower) {
          float const* const from = of_strip + 2 * lower;
          float4 const halves[2] = {make_float4(from[0], from[1], from[4], from[5]),
                                    make_float4(from[8], from[9], from[12], from[13])};
          function(first_row + block * (kBlock / kTileRows) + lower, first_strip + i, halves);
        }
      }
    }
  }
};

}  // namespace wgrad
}  // namespace evt

#endif  // EVT_KIT_WGRAD_COMPLETION_HPP
