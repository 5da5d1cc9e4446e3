#ifndef EVT_KIT_EPILOGUE_HPP
#define EVT_KIT_EPILOGUE_HPP

// The epilogue of a tile of a convolution: the pixels of its steps, and the buffers of C and D, which a producer warp
// moves by TMA.

#include <algorithm>
#include <cstdint>

#include "evt/fragment.hpp"
#include "evt/kit/params.hpp"
#include "evt/kit/scheduler.hpp"
#include "evt/kit/sm90.hpp"
#include "evt/kit/step.hpp"
#include "evt/kit/storage.hpp"

namespace evt {
namespace kit {

/// The pixels of a thread's four rows of a step, for successive steps.
template <class Traits>
struct Pixels {
  Params<Traits> const& params;
  WorkTile const& tile;
  int row, column;                // of the first of this thread's next 8 pixels, in the tile: rows of all its images
  int step_rows, step_columns;    // 8 pixels further
  int rows, columns, first;       // the rows and columns in the image, and the matrix row of the first
  int row_pixels, column_pixels;  // from a row, and from a column, to the next
  int number = 0;                 // of the next step
  uint32_t loaded = 0;            // the words of packed bits of the tile's pixels, in shared memory

  CUTLASS_DEVICE Pixels(Params<Traits> const& params, WorkTile const& tile, int begin) : params(params), tile(tile) {
    int const pitch = params.geometry.accumulator_pitch, pixel = begin + threadIdx.x % 4 * 2;
    row = params.by_pitch.quotient(pixel);
    column = pixel - row * pitch;
    step_rows = params.by_pitch.quotient(8);
    step_columns = 8 - step_rows * pitch;
    int y = tile.row, x = tile.column, high = params.output_height, wide = params.output_width;
    row_pixels = params.output_width;
    column_pixels = 1;
    if constexpr (Traits::kResidues) {
      Residues const& residues = params.operands.residues;
      high = residues.rows[tile.residue];
      wide = residues.columns[tile.residue];
      y = y * residues.stride_height + residues.row[tile.residue];
      x = x * residues.stride_width + residues.column[tile.residue];
      row_pixels *= residues.stride_height;
      column_pixels = residues.stride_width;
    }
    rows = min(params.geometry.rows, high - tile.row);
    columns = min(params.geometry.columns, wide - tile.column);
    first = tile.image * params.image_rows + y * params.output_width + x;
    if constexpr (Traits::kVolume) first += tile.slice * params.output_height * params.output_width;
  }

  CUTLASS_DEVICE void advance(int& row, int& column, int by_rows, int by_columns) const {
    row += by_rows;
    column += by_columns;
    if (column >= params.geometry.accumulator_pitch) {
      column -= params.geometry.accumulator_pitch;
      ++row;
    }
  }

  /// The matrix row of a pixel of the tile, -1 outside of the images.
  CUTLASS_DEVICE int place(int row, int column) const {
    int pixel = first;
    bool has = column < columns;
    if (!Traits::kByImages && params.geometry.images > 1) {
      int const of_image = params.by_images.quotient(row), image = row - of_image * params.geometry.images;
      row = of_image;
      pixel += image * params.image_rows;
      has = has && image < min(params.geometry.images, params.images - tile.image);
    }
    return has && row < rows ? pixel + row * row_pixels + column * column_pixels : -1;
  }

  /// The matrix rows of the tile's pixels.
  CUTLASS_DEVICE auto places() const {
    return [this](int pixel) {
      int const row = params.by_pitch.quotient(pixel);
      return place(row, pixel - row * params.geometry.accumulator_pitch);
    };
  }

  CUTLASS_DEVICE void next(fragment::Places& places) {
    places.number = number++;
    places.loaded = loaded;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < fragment::kRows; i += 2) {
      places.rows[i] = place(row, column);
      int next_row = row, next_column = column;
      advance(next_row, next_column, 0, 1);
      places.rows[i + 1] = place(next_row, next_column);
      advance(row, column, step_rows, step_columns);
    }
  }
};

/// The columns of a consumer's thread; `number` is its tile of rows.
template <class Traits>
CUTLASS_DEVICE fragment::Tile columns_of(Params<Traits> const& params, WorkTile const& tile, int number) {
  constexpr int kStrips = kFilters / Lanes::kStrip;
  int const thread = threadIdx.x % kWarpGroup, strip = thread / 32;
  if constexpr (Traits::kTapRows) {
    return {thread % 32 / Lanes::kRows, params.filter_count, number * (kWarpGroup / 32) + strip, 0, 1};
  }
  int const first = tile.filter + strip * Lanes::kStrip + thread % 32 / Lanes::kRows;
  if constexpr (Traits::kGrouped) {
    GroupPlace const& place = tile.place;
    int const strips = params.filter_blocks * kStrips;
    return {first, params.filter_count, number, place.block * kStrips + strip, strips, 0, place.end};
  } else {
    return {first, params.filter_count, number, tile.filter / Lanes::kStrip + strip, strips_of(params.filter_count)};
  }
}

/// Load a tile of C into its buffer.
template <class Traits>
CUTLASS_DEVICE void load_tile(Params<Traits> const& params, WorkTile const& tile, uint32_t buffer, uint32_t loaded) {
  if constexpr (Traits::kVolume) {
    tma_load(buffer, params.source, loaded, tile.filter, tile.column, tile.image, tile.row, tile.slice);
  } else if constexpr (Traits::kGrouped) {
    tma_load(buffer, params.source, loaded, tile.place.filter, tile.column, tile.image, tile.row, tile.place.slice);
  } else {
    tma_load(buffer, params.source_of(tile.residue), loaded, tile.filter, tile.column, tile.image, tile.row);
  }
}

/// Load C for a CTA that completes steps of a shared tile. The CTA stores D without TMA.
template <class Traits>
CUTLASS_DEVICE void load_source(Params<Traits> const& params, SharedStorage const& storage) {
  CtaWork const work(params);
  if (work.quads <= 0) return;
  WorkTile const tile(params, work.first, 0);
  uint32_t const loaded = storage.source_loaded(0);
  arrive_and_expect_tx(loaded, params.source_bytes);
  load_tile(params, tile, storage.epilogues, loaded);
}

/// Store a tile of D from its buffer. The end of the kernel waits for the last stores.
template <class Traits>
CUTLASS_DEVICE void store_tile(Params<Traits> const& params, WorkTile const& tile, uint32_t buffer) {
  Geometry const& geometry = params.geometry;
  auto const store = [&](uint32_t from, int row) {
    if constexpr (Traits::kVolume) {
      tma_store(params.destination, from, tile.filter, tile.column, tile.image, row, tile.slice);
    } else if constexpr (Traits::kGrouped) {
      tma_store(params.destination, from, tile.place.filter, tile.column, tile.image, row, tile.place.slice);
    } else {
      tma_store(params.destination_of(tile.residue), from, tile.filter, tile.column, tile.image, row);
    }
  };
  if (params.stores_rows) {
    for (int row = 0; row < geometry.rows; ++row) {
      store(buffer + row * geometry.accumulator_pitch * Traits::kEpilogueRow, tile.row + row);
    }
  } else {
    store(buffer, tile.row);
  }
  tma_store_arrive();
}

/// Store a consumer's tile of D from its buffer, for pixels that TMA cannot store: a row of pixels by a warp, or by all
/// warps if there are few rows. A lane stores a word of a pixel, or two words. `end` is the end of the tile's columns.
template <class Traits>
CUTLASS_DEVICE void store_pixels(Params<Traits> const& params, WorkTile const& tile, int end, uint32_t buffer) {
  constexpr int kStored = Traits::kStored, kWarps = kWarpGroup / 32, kPasses = kFilters / kStored / 32;
  constexpr int kAtOnce = 4, kPass = 32 * kStored;  // pixels of a lane at a time; filters of a pass: all, or half
  int const filters = min(kFilters, end - tile.filter), words = ceil_div(filters, kStored);
  int log_lanes = 0;  // of a pixel
  while (1 << log_lanes < words && log_lanes < 5) ++log_lanes;
  int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32, word = lane & ((1 << log_lanes) - 1);
  int const rows = params.geometry.rows * params.geometry.images, sharing = rows < kWarps ? kWarps : 1;  // warps
  int const first = (sharing > 1 ? threadIdx.x % kWarpGroup : lane) >> log_lanes, step = 32 * sharing >> log_lanes;
  int const filter = word * kStored;
  uint32_t const column_bytes = buffer + filter % 8 * 2;
  Pixels<Traits> const pixels(params, tile, 0);
  int64_t const next = step * pixels.column_pixels * params.d_stride;
  int const first_row = sharing > 1 ? 0 : warp, next_row = sharing > 1 ? 1 : kWarps;
  int of_lane = -1;  // the place of one of the warp's next 32 rows
  for (int row = first_row, number = 0; row < rows; row += next_row, ++number) {
    if (number % 32 == 0) of_lane = pixels.place(row + lane * next_row, 0);
    int const place = __shfl_sync(0xffffffffu, of_lane, number % 32);
    if (place < 0) continue;
    auto* to = params.d + (place + first * pixels.column_pixels) * params.d_stride + tile.filter + filter;
    uint32_t pixel = row * params.geometry.accumulator_pitch + first;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int column = first; column < pixels.columns; column += kAtOnce * step) {
      uint32_t values[kAtOnce * kPasses];
      auto const exists = [&](int i) {
        return column + i / kPasses * step < pixels.columns && word + i % kPasses * 32 < words;
      };
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce * kPasses; ++i) {
        uint32_t const at = pixel + i / kPasses * step, number = filter + i % kPasses * kPass;
        uint32_t const from = column_bytes + at * Traits::kEpilogueRow + (number / 8 ^ at % 8) * 16;
        if (exists(i)) values[i] = kStored == 2 ? load_shared_word(from) : load_shared_half(from);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce * kPasses; ++i) {
        if (!exists(i)) continue;
        auto* const place = to + i / kPasses * next + i % kPasses * kPass;
        if constexpr (kStored == 2) {
          *reinterpret_cast<uint32_t*>(place) = values[i];
        } else {
          place->bits = uint16_t(values[i]);
        }
      }
      pixel += kAtOnce * step;
      to += kAtOnce * next;
    }
  }
}

/// Store a consumer's tile of D from its buffer to planes of its images: eight filters of 32 pixels at a time.
template <class Traits>
CUTLASS_DEVICE void store_planes(Params<Traits> const& params, WorkTile const& tile, int end, uint32_t buffer) {
  constexpr int kWarps = kWarpGroup / 32, kRuns = ceil_div(Traits::kPixels, 32);  // of pixels
  int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
  int const filters = min(kFilters, end - tile.filter), parts = kRuns * ceil_div(filters, 8);
  Pixels<Traits> const pixels(params, tile, 0);
  auto const place_of = pixels.places();
#pragma unroll 2
  for (int part = warp; part < parts; part += kWarps) {
    int const eighth = part / kRuns, pixel = part % kRuns * 32 + lane;
    int const place = pixel < Traits::kPixels ? place_of(pixel) : -1;
    if (place < 0) continue;
    uint32_t words[4];
    load_shared(words, buffer + pixel * Traits::kEpilogueRow + (eighth ^ pixel % 8) * 16);
    auto* to = params.d + place + (tile.filter + 8 * eighth) * params.d_stride;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i, to += params.d_stride) {
      if (8 * eighth + i < filters) to->bits = uint16_t(words[i / 2] >> i % 2 * 16);
    }
  }
}

/// Store zeros to the pixels of the residue classes without taps that are neighbours of a tile's pixels, by a warp.
template <class Traits>
CUTLASS_DEVICE void store_zeros(Params<Traits> const& params, WorkTile tile) {
  constexpr int kVector = Traits::kStored == 0 ? 8 : Traits::kStored;  // filters that a lane stores at a time
  constexpr int kLanes = std::min(kFilters / kVector, 32), kColumns = 32 / kLanes;
  constexpr int kPasses = kFilters / (kLanes * kVector);
  int const lane = threadIdx.x % 32, first_column = lane / kLanes, first_filter = tile.filter + lane % kLanes * kVector;
  int const end = min(tile.filter + kFilters, params.filter_count);
  bool const is_whole = first_filter + kVector <= end;
  for (tile.residue = 1; tile.residue < params.classes(); ++tile.residue) {
    if (params.operands.residues.taps(tile.residue).number > 0) continue;
    Pixels<Traits> const pixels(params, tile, 0);
    int64_t const step = kColumns * pixels.column_pixels * params.d_stride;
    int const rows = params.geometry.rows * params.geometry.images;
    int of_lane = -1;  // the place of one of the next 32 rows
    for (int row = 0; row < rows; ++row) {
      if (row % 32 == 0) of_lane = pixels.place(row + lane, 0);
      int const place = __shfl_sync(0xffffffffu, of_lane, row % 32);
      if (place < 0) continue;
      auto* to = params.d + (place + first_column * pixels.column_pixels) * params.d_stride + first_filter;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int column = first_column; column < pixels.columns; column += kColumns, to += step) {
        if (kVector == 8 && is_whole) {
          *reinterpret_cast<uint4*>(to) = uint4{};
          continue;
        }
        CUTLASS_PRAGMA_NO_UNROLL
        for (int i = 0; i < kPasses * kVector; ++i) {
          int const filter = i / kVector * kLanes * kVector + i % kVector;
          if (first_filter + filter < end) to[filter].bits = 0;
        }
      }
    }
  }
}

/// Call a function by a thread: by an elected one if the threads are a whole warp.
template <bool Warp, class Move>
CUTLASS_DEVICE void elected(Move const& move) {
  if constexpr (Warp) {
    if (elect_one_sync()) move();
    __syncwarp();
  } else {
    move();
  }
}

/// Load C and store D in the buffers of one consumer, or of both pingpong consumers, by a thread. If a warp stores
/// zeros too, by the warp.
template <class Traits>
CUTLASS_DEVICE void move_tiles(Params<Traits> const& params, SharedStorage const& storage, int consumer, bool both) {
  Geometry const& geometry = params.geometry;
  CtaWork const work(params);
  ConsumerWork const of_consumer(params, work, consumer);
  int const stride = both ? work.stride : of_consumer.stride, ahead = both ? 2 : 1;
  auto const load = [&](int number, int consumer) {
    if (number >= params.work_tiles) return;
    uint32_t const loaded = storage.source_loaded(consumer);
    if constexpr (Traits::kLoadsSource) {
      WorkTile const tile(params, number, consumer);
      uint32_t const buffer = storage.epilogues + consumer * geometry.epilogue_bytes;
      arrive_and_expect_tx(loaded, params.source_bytes);
      load_tile(params, tile, buffer, loaded);
    } else {
      barrier_arrive(loaded);
    }
  };
  elected<Traits::kKeepsZeros>([&] {
    for (int i = 0; i < ahead; ++i) load(of_consumer.first + i * stride, consumer + i);
  });
  for (int i = 0, number = of_consumer.first; number < params.work_tiles; ++i, number += stride) {
    int const now = both ? i % 2 : consumer;
    WorkTile const tile(params, number, now);
    if constexpr (Traits::kKeepsZeros) {
      if (tile.residue == 0) store_zeros(params, tile);
    }
    elected<Traits::kKeepsZeros>([&] {
      barrier_wait(storage.result_written(now), i / ahead % 2);
      if constexpr (Traits::kStoresDestination && Traits::kStored == 0) {
        store_tile(params, tile, storage.epilogues + now * geometry.epilogue_bytes);
        tma_store_wait();
      }
      load(number + ahead * stride, now);
    });
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_EPILOGUE_HPP
