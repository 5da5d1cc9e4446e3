// The loads of codegen/include/evt/kit/im2col.hpp on the host: TMA's im2col mode, over the barriers of sm90.hpp.

#pragma once

#include "evt/kit/sm90.hpp"

namespace evt {
namespace kit {

struct PixelPlace {
  int channel, column, row, image;
};

struct TapOffset {
  uint16_t columns, rows;
};

struct TmaPixels;

}  // namespace kit
}  // namespace evt

namespace host {

struct PixelMap {
  char* pointer;
  int element_bytes;
  int64_t extents[4], strides[4];  // strides in bytes
  int first[2], last[2], steps[2], channels, pixels;
};

inline std::vector<PixelMap> pixel_maps;

/// `copy(is_inside, in global memory, in shared memory)` for the elements of a box.
template <class Copy>
void for_each_pixel(PixelMap const& map, uint32_t shared, evt::kit::PixelPlace at, evt::kit::TapOffset const& tap,
                    Copy const& copy) {
  for (int pixel = 0; pixel < map.pixels; ++pixel) {
    for (int i = 0; i < map.channels; ++i) {
      int64_t const places[4] = {at.channel + i, at.column + tap.columns, at.row + tap.rows, at.image};
      bool is_inside = true;
      int64_t offset = 0;
      for (int axis = 0; axis < 4; ++axis) {
        is_inside = is_inside && places[axis] >= 0 && places[axis] < map.extents[axis];
        offset += places[axis] * map.strides[axis];
      }
      uint32_t const to = uint32_t((pixel * map.channels + i) * map.element_bytes);
      copy(is_inside, map.pointer + offset, host::at(swizzled(shared + to, 128)));
    }
    at.column += map.steps[0];
    if (at.column < map.extents[1] + map.last[0]) continue;
    at.column = map.first[0];
    at.row += map.steps[1];
    if (at.row < map.extents[2] + map.last[1]) continue;
    at.row = map.first[1];
    ++at.image;
  }
}

inline void load_pixels(uint32_t to, CUtensorMap const& from, uint32_t barrier, evt::kit::PixelPlace const& place,
                        evt::kit::TapOffset const& tap) {
  size_t number;
  std::memcpy(&number, &from, sizeof(number));
  PixelMap const map = pixel_maps.at(number);
  size_t const size = size_t(map.element_bytes);
  for_each_pixel(map, to, place, tap, [=](bool, char const*, char* shared) { std::memset(shared, 0xff, size); });
  uint32_t const there = with_rank(to);
  send(kTma, barrier, [=, &signal = barrier_at(barrier)] {
    for_each_pixel(map, there, place, tap, [&](bool is_inside, char const* global, char* shared) {
      is_inside ? std::memcpy(shared, global, size) : std::memset(shared, 0, size);
    });
    arrive(signal, 0, -int64_t(map.pixels) * map.channels * map.element_bytes);
  });
}

}  // namespace host

namespace evt {
namespace kit {

inline void tma_load_pixels(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, PixelPlace const& at, TapOffset const& tap) {
  host::load_pixels(to, map, barrier, at, tap);
}
inline void tma_load_pixels_multicast(
    uint32_t to, CUtensorMap const& map, uint32_t barrier, uint16_t receivers, PixelPlace const& at, TapOffset const& tap) {
  for (int rank = 0; rank < host::kMaxBlocks; ++rank) {
    if ((receivers >> rank & 1) == 0) continue;
    host::require_running(rank);
    host::load_pixels(set_block_rank(to, rank), map, set_block_rank(barrier, rank), at, tap);
  }
}

struct TmaPixels {
  CUtensorMapDataType type;
  int element_bytes;
  void const* pointer;
  int64_t extents[4];
  int64_t strides[3];
  int first[2], last[2], steps[2];
  int channels, pixels;

  bool encode(CUtensorMap& map) const {
    host::PixelMap made{static_cast<char*>(const_cast<void*>(pointer)), element_bytes, {}, {}, {}, {}, {}, channels, pixels};
    for (int i = 0; i < 4; ++i) {
      made.extents[i] = extents[i];
      made.strides[i] = (i == 0 ? 1 : strides[i - 1]) * element_bytes;
    }
    for (int i = 0; i < 2; ++i) made.first[i] = first[i], made.last[i] = last[i], made.steps[i] = steps[i];
    size_t const number = host::pixel_maps.size();
    host::pixel_maps.push_back(made);
    std::memcpy(&map, &number, sizeof(number));
    return true;
  }
};

}  // namespace kit
}  // namespace evt
