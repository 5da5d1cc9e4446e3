#ifndef EVT_KIT_MAINLOOP_WORDS_HPP
#define EVT_KIT_MAINLOOP_WORDS_HPP

// The main loop of a convolution whose pixels are multiples of 4 bytes, and not of the 16 that TMA needs. Three warps
// copy the input word by word (cp.async) to the places where TMA would put it. All threads write the filters before the
// first tile, as for narrow groups. The channels after the last one are zeros.

#include <cstdint>
#include <cstdlib>

#include "evt/kit/mainloop_groups.hpp"

namespace evt {
namespace kit {

/// A convolution of one block of Channels channels, with groups or without. Vector: see PackedGroupsMainloop.
template <class Mma, int Channels, int Vector>
struct WordsMainloop : PackedGroupsMainloop<Mma, Channels, Vector> {
  using Base = PackedGroupsMainloop<Mma, Channels, Vector>;

  static constexpr bool kWords = true, kLoadsByThreads = true;
  static constexpr int kProducerRegisters = 104, kConsumerRegisters = 200;

  struct Operands : Base::Operands {
    uint16_t const* a;
    int64_t a_image, a_row;  // strides, in elements
    int a_pixel;
    int height, width, words;  // of a pixel, in a block
    SmallDivisor by_words;
  };

#if !defined(EVT_DEVICE_PASS)
  /// Set the operands. Return whether the pixels of a row are within 32 bits of each other, at multiples of 4 bytes.
  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    Problem const& problem = arguments.problem;
    auto const& a = arguments.a_strides;
    Operands& operands = params.operands;
    static_cast<typename Base::Operands&>(operands) = Base::operands_of(arguments);
    GroupBlocks const& groups = operands.groups;
    operands.a = static_cast<uint16_t const*>(arguments.a);
    operands.a_image = a[0], operands.a_row = a[1], operands.a_pixel = int(a[2]);
    operands.height = problem.height.size, operands.width = problem.width.size;
    operands.words = (groups.channel_step > 0 ? groups.channel_step : groups.channels) / 2;
    operands.by_words = SmallDivisor::of(operands.words);
    int64_t const columns = (params.geometry.input_pitch - 1) * problem.width.stride + problem.width.pad;
    return columns * std::abs(a[2]) <= INT32_MAX && (a[0] | a[1] | a[2]) % 2 == 0 &&
           reinterpret_cast<uintptr_t>(arguments.a) % 4 == 0;
  }
#endif

  template <class Traits>
  CUTLASS_DEVICE static void prefetch(Params<Traits> const&, int) {}

  /// Write the filters of the CTA's block, and zeros to all stages of the input.
  template <class Traits>
  CUTLASS_DEVICE static void prepare(Params<Traits> const& params, SharedStorage const& storage) {
    constexpr uint32_t kZeros[4] = {};
    int const bytes = params.geometry.input_stages * params.geometry.input_stage_bytes;
    for (int i = threadIdx.x * 16; i < bytes; i += Traits::kThreads * 16) store_shared(storage.input.buffers + i, kZeros);
    Base::template write_filters<Traits::kThreads>(params, storage, threadIdx.x);
  }

  /// Copy the boxes of all tiles: one warp every kWideners-th box, as WindowsMainloop does.
  template <class Traits>
  CUTLASS_DEVICE static void load(Params<Traits> const& params, SharedStorage const& storage, int warp) {
    if (warp >= kWideners) return;
    Geometry const& geometry = params.geometry;
    Operands const& operands = params.operands;
    CtaWork const work(params);
    PipelineState state;
    int const lane = threadIdx.x % 32, words = geometry.input_pitch * operands.words;
    int const next_row = params.stride_height * int(operands.a_row), row_bytes = geometry.input_pitch * Traits::kPixelBytes;
    int others = warp;  // boxes before the warp's next one
    for (int number = work.first; number < params.work_tiles; number += work.stride) {
      WorkTile const tile(params, number, 0);
      int const channel = tile.place.slice * operands.groups.channels + tile.place.channel;
      for (int group = 0; group < params.taps.groups; ++group, state.advance_once(1, geometry.input_stages)) {
        if (others-- > 0) continue;
        others = kWideners - 1;
        uint32_t const start = params.taps.starts[group];
        int const first_column = tile.column * params.stride_width + int16_t(start);
        int const first_row = tile.row * params.stride_height + int16_t(start >> 16);
        uint32_t const box = storage.input.buffers + state.index * geometry.input_stage_bytes;
        storage.input.producer_acquire(state);
        for (int word = lane; word < words; word += 32) {
          int const pixel = operands.by_words.quotient(word), of_pixel = word - pixel * operands.words;
          int const column = first_column + pixel * params.stride_width;
          bool const has_channel = tile.place.channel + 2 * of_pixel < operands.groups.channels;
          bool const has_column = has_channel && uint32_t(column) < uint32_t(operands.width);
          uint32_t to = box + pixel * Traits::kPixelBytes + of_pixel * 4;
          auto from = operands.a + tile.image * operands.a_image + int64_t(first_row) * operands.a_row +
                      (column * operands.a_pixel + channel + 2 * of_pixel);
          for (int image = 0; image < geometry.images; ++image, from += operands.a_image) {
            bool const has_image = has_column && tile.image + image < params.images;
            auto of_row = from;
            for (int row = 0; row < geometry.box_rows; ++row, of_row += next_row, to += row_bytes) {
              bool const exists = has_image && uint32_t(first_row + row * params.stride_height) < uint32_t(operands.height);
              uint32_t const swizzled = to ^ (to >> 7 & (Traits::kPixelBytes / 16 - 1)) * 16;
              copy_word_async(swizzled, exists ? of_row : operands.a, exists);
            }
          }
        }
        copies_wait();
        fence_view_async_shared();
        __syncwarp();
        if (lane == 0) barrier_arrive(storage.input.full(state.index));
      }
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_WORDS_HPP
