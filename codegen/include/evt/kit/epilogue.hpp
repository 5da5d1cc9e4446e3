#ifndef EVT_KIT_EPILOGUE_HPP
#define EVT_KIT_EPILOGUE_HPP

// The epilogue of a tile of a convolution: the pixels of its steps, and the buffers of C and D, which a producer warp
// moves by TMA.

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

/// Store a consumer's tile of D from its buffer, for pixels that TMA cannot store: a row of the buffer by the lanes of a
/// warp, or several rows if the filters are few. `end` is the end of the tile's columns.
template <class Traits>
CUTLASS_DEVICE void store_pixels(Params<Traits> const& params, WorkTile const& tile, int end, uint32_t buffer) {
  constexpr int kStored = Traits::kStored, kWarps = kWarpGroup / 32;
  int const filters = min(kFilters, end - tile.filter), words = ceil_div(filters, kStored);
  int lanes = 1, rows = 32;  // of a pixel, and of a warp
  while (lanes < words && lanes < 32) lanes *= 2, rows /= 2;
  int const lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32, first = lane % lanes;
  Pixels<Traits> const pixels(params, tile, 0);
  auto const place_of = pixels.places();
#pragma unroll 4
  for (int pixel = warp * rows + lane / lanes; pixel < Traits::kPixels; pixel += kWarps * rows) {
    int const place = place_of(pixel);
    typename Traits::Destination* const to = params.d + place * params.d_stride + tile.filter;
    CUTLASS_PRAGMA_UNROLL
    for (int pass = 0; pass < kFilters / kStored / 32; ++pass) {  // a warp has all words of a row, or half of them
      int const word = first + 32 * pass, filter = word * kStored;
      if (place < 0 || word >= words) continue;
      uint32_t const from = buffer + pixel * Traits::kEpilogueRow + (filter / 8 ^ pixel % 8) * 16 + filter % 8 * 2;
      if constexpr (kStored == 2) {
        *reinterpret_cast<uint32_t*>(to + filter) = load_shared_word(from);
      } else {
        to[filter].bits = uint16_t(load_shared_half(from));
      }
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

/// Load C and store D in the buffers of one consumer, or of both pingpong consumers.
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
  for (int i = 0; i < ahead; ++i) load(of_consumer.first + i * stride, consumer + i);
  for (int i = 0, number = of_consumer.first; number < params.work_tiles; ++i, number += stride) {
    int const now = both ? i % 2 : consumer;
    barrier_wait(storage.result_written(now), i / ahead % 2);
    if constexpr (Traits::kStoresDestination && Traits::kStored == 0) {
      store_tile(params, WorkTile(params, number, now), storage.epilogues + now * geometry.epilogue_bytes);
      tma_store_wait();
    }
    load(number + ahead * stride, now);
  }
}

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_EPILOGUE_HPP
