#ifndef EVT_KIT_MAINLOOP_WORDS_HPP
#define EVT_KIT_MAINLOOP_WORDS_HPP

// The main loop of a convolution whose pixels are no multiples of the 16 bytes that TMA needs. Three warps copy each box
// in words of 8 or 4 bytes (cp.async) to the places where TMA would put it. The consumers write the filters before their
// first tile, as for narrow groups. The channels after the last one are zeros.
//
// If pixels are no multiples of 4 bytes, a pixel may begin in the middle of a word. It is copied from this word on, and
// then moved by one element in shared memory.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "evt/kit/mainloop_groups.hpp"

namespace evt {
namespace kit {

/// A convolution of blocks of Channels channels, with groups or without. Vector: see PackedGroupsMainloop. Pixels are
/// multiples of Alignment elements: 4, 2, or 1 for an odd number of channels in one block.
template <class Mma, int Channels, int Vector, int Alignment>
struct WordsMainloop : PackedGroupsMainloop<Mma, Channels, Vector> {
  using Base = PackedGroupsMainloop<Mma, Channels, Vector>;

  static constexpr bool kWords = true, kLoadsByThreads = true, kIsOdd = Alignment == 1;
  static constexpr int kElements = kIsOdd ? 2 : Alignment;  // of a word
  static constexpr int kProducerRegisters = 104, kConsumerRegisters = 200;

  struct Operands : Base::Operands {
    uint16_t const* a;
    int64_t a_image, a_row;  // strides, in elements
    int a_pixel;
    int height, width, words;  // of a pixel, in a block
    SmallDivisor by_words;
  };

#if !defined(EVT_DEVICE_PASS)
  /// Set the operands. Return whether the pixels of a row are within 32 bits of each other, and are as Alignment says.
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
    int const channels = groups.channel_step > 0 ? groups.channel_step : groups.channels;
    operands.words = ceil_div(std::min(channels, Channels), kElements);
    operands.by_words = SmallDivisor::of(operands.words);
    int64_t const columns = (params.geometry.input_pitch - 1) * problem.width.stride + problem.width.pad;
    bool const whole = (a[0] | a[1] | a[2] | channels) % kElements == 0 &&
                       reinterpret_cast<uintptr_t>(arguments.a) % (2 * kElements) == 0;
    bool const odd = channels % 2 == 1 && channels <= Channels;
    return columns * std::abs(a[2]) <= INT32_MAX && (kIsOdd ? odd : whole);
  }
#endif

  template <class Traits>
  CUTLASS_DEVICE static void prefetch(Params<Traits> const&, int) {}

  /// Write zeros to all stages of the input.
  template <class Traits>
  CUTLASS_DEVICE static void arrange(Params<Traits> const& params, SharedStorage const& storage) {
    constexpr uint32_t kZeros[4] = {};
    int const bytes = params.geometry.input_stages * params.geometry.input_stage_bytes;
    for (int i = threadIdx.x * 16; i < bytes; i += Traits::kThreads * 16) store_shared(storage.input.buffers + i, kZeros);
    fence_view_async_shared();
  }

  /// Copy the boxes of all tiles: each warp some pixels of every row. A box is copied while the copies of the next begin.
  template <class Traits>
  CUTLASS_DEVICE static void load(Params<Traits> const& params, SharedStorage const& storage, int warp) {
    if (warp >= kWideners) return;
    Geometry const& geometry = params.geometry;
    Operands const& operands = params.operands;
    CtaWork const work(params);
    PipelineState state;
    Part const part{geometry.input_pitch * warp / kWideners, geometry.input_pitch * (warp + 1) / kWideners};
    int const lane = threadIdx.x % 32, begin = part.first * operands.words, end = part.end * operands.words;
    int const next_row = params.stride_height * int(operands.a_row), row_bytes = geometry.input_pitch * Traits::kPixelBytes;
    // Registers: a row would wait for constants.
    int const box_rows = geometry.box_rows, next_y = params.stride_height, next_to = geometry.images * row_bytes;
    Box last{-1, 0};
    for (int number = work.first; number < params.work_tiles; number += work.stride) {
      WorkTile const tile(params, number, 0);
      int const boxes = params.channel_blocks * params.taps.groups;
      for (int i = 0; i < boxes; ++i, state.advance_once(1, geometry.input_stages)) {
        int const block = i / params.taps.groups, first_channel = tile.place.channel + block * Channels;
        int const channel = tile.place.slice * operands.groups.channels + first_channel;
        uint32_t const start = params.taps.starts[i - block * params.taps.groups];
        int const first_column = tile.column * params.stride_width + int16_t(start);
        int const first_row = tile.row * params.stride_height + int16_t(start >> 16);
        auto const first = operands.a + tile.image * operands.a_image + int64_t(first_row) * operands.a_row;
        // Consumers may release a stage only after they have the last box.
        if (!__shfl_sync(0xffffffffu, int(test_wait(storage.input.empty(state.index), state.phase ^ 1)), 0)) {
          complete<0>(params, storage, part, last);
          last.stage = -1;
        }
        storage.input.producer_acquire(state);
        uint32_t const box = storage.input.buffers + state.index * geometry.input_stage_bytes;
        for (int word = begin + lane; word < end; word += 32) {
          int const pixel = operands.by_words.quotient(word), of_pixel = word - pixel * operands.words;
          int const column = first_column + pixel * params.stride_width;
          int const channels = operands.groups.channels - first_channel - kElements * of_pixel;
          bool const has_column = channels > 0 && uint32_t(column) < uint32_t(operands.width);
          uint32_t of_box = box + pixel * Traits::kPixelBytes + of_pixel * kElements * 2;
          auto from = first + (column * operands.a_pixel + channel + kElements * of_pixel);
          for (int image = 0; image < geometry.images; ++image, from += operands.a_image, of_box += row_bytes) {
            bool const has_image = has_column && tile.image + image < params.images;
            auto of_row = from;
            uint32_t const height = has_image ? operands.height : 0;
            uint32_t to = of_box;
            int y = first_row;
#pragma unroll 4
            for (int row = 0; row < box_rows; ++row, of_row += next_row, to += next_to, y += next_y) {
              bool const exists = uint32_t(y) < height;
              int const before = begins_within_word(of_row);  // the elements of the word before the pixel's
              int const bytes = 2 * (kIsOdd ? min(channels + before, kElements) : kElements);
              copy_word_async<2 * kElements>(swizzled<Traits>(to), exists ? of_row - before : operands.a,
                                             exists ? bytes : 0);
            }
          }
        }
        copies_commit();
        complete<1>(params, storage, part, last);
        last = {state.index, begins_within_word(first + (int64_t(first_column) * operands.a_pixel + channel))};
      }
    }
    complete<0>(params, storage, part, last);
  }

 private:
  /// The pixels of each row that a warp copies.
  struct Part {
    int first, end;
  };

  /// A box whose copies are under way: its stage, or -1, and whether its first pixel begins within a word.
  struct Box {
    int stage, odd;
  };

  /// Wait for a warp's copies of a box, while the copies of Later boxes go on, and tell the consumers.
  template <int Later, class Traits>
  CUTLASS_DEVICE static void complete(Params<Traits> const& params, SharedStorage const& storage, Part const& part,
                                      Box const& box) {
    if (box.stage < 0) return;
    copies_wait<Later>();
    if constexpr (kIsOdd) {
      move_pixels(params, storage.input.buffers + box.stage * params.geometry.input_stage_bytes, part, box.odd);
    }
    fence_view_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(storage.input.full(box.stage));
  }

  template <class Traits>
  CUTLASS_DEVICE static uint32_t swizzled(uint32_t to) {
    return to ^ (to >> 7 & (Traits::kPixelBytes / 16 - 1)) * 16;
  }

  CUTLASS_DEVICE static int begins_within_word(uint16_t const* element) {
    return kIsOdd ? reinterpret_cast<uintptr_t>(element) / 2 % 2 : 0;
  }

  /// Move the pixels of a box that were copied with the element before them. `odd`: whether the first one was.
  template <class Traits>
  CUTLASS_DEVICE static void move_pixels(Params<Traits> const& params, uint32_t box, Part const& part, int odd) {
    constexpr int kTogether = 4;  // rows
    Geometry const& geometry = params.geometry;
    Operands const& operands = params.operands;
    int const lane = threadIdx.x % 32, end = part.end * operands.words;
    int const row_bytes = geometry.row_pitch() * Traits::kPixelBytes;
    uint32_t const next_row = params.stride_height * operands.a_row;  // only whether numbers of elements are odd matters
    uint32_t const next_pixel = params.stride_width * operands.a_pixel;
    __syncwarp();
    for (int begin = part.first * operands.words; begin < end; begin += 32) {  // a word is read before the iteration that changes it
      int const word = begin + lane, pixel = operands.by_words.quotient(word), of_pixel = word - pixel * operands.words;
      bool const has_next = of_pixel + 1 < operands.words;
      uint32_t to = box + pixel * Traits::kPixelBytes + of_pixel * 4;
      for (int image = 0; image < geometry.images; ++image, to += geometry.input_pitch * Traits::kPixelBytes) {
        uint32_t const of_image = odd + image * uint32_t(operands.a_image) + pixel * next_pixel;
        for (int row = 0; row < geometry.box_rows; row += kTogether) {
          uint32_t two[kTogether];
          bool moves[kTogether];
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kTogether; ++i) {
            uint32_t const at = to + (row + i) * row_bytes;
            moves[i] = word < end && row + i < geometry.box_rows && (of_image + (row + i) * next_row) % 2 != 0;
            two[i] = moves[i] ? load_shared_word(swizzled<Traits>(at)) >> 16 : 0;
            if (moves[i] && has_next) two[i] |= load_shared_word(swizzled<Traits>(at + 4)) << 16;
          }
          __syncwarp();
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kTogether; ++i) {
            if (moves[i]) store_shared(swizzled<Traits>(to + (row + i) * row_bytes), two[i]);
          }
        }
      }
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_WORDS_HPP
