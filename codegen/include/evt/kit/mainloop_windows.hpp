#ifndef EVT_KIT_MAINLOOP_WINDOWS_HPP
#define EVT_KIT_MAINLOOP_WINDOWS_HPP

// The main loop of a convolution with few channels: a row of taps is one tap over a window of chunks of 16 bytes. If a
// step of the stride has several chunks, each of them is a tap, whose window has every such chunk of the row. TMA does
// not widen pixels, so threads load them: three warps the input, and the consumers the filters, once, for the filters
// are resident. The places of a box's chunks are the same for all tiles: a table in shared memory has them. A window's
// last pixels may be beyond the filter, which has zeros there; if such a pixel is not finite, the product is NaN.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "evt/kit/mainloop.hpp"

namespace evt {
namespace kit {

/// Chunks of kWindowBytes: some pixels, each widened with zeros after its channels.
template <int ElementBytes, int Channels, int Pixels>
struct FewChannels {
  static_assert(ElementBytes == 1 || ElementBytes == 2 || ElementBytes == 4, "WGMMA has no operands of this size");
  static_assert(Pixels * Channels * ElementBytes <= kWindowBytes && kWindowBytes % (Pixels * ElementBytes) == 0,
                "a chunk has whole pixels");
  using Element = std::conditional_t<ElementBytes == 1, uint8_t,
                                     std::conditional_t<ElementBytes == 2, uint16_t, uint32_t>>;
  static constexpr int kWidened = kWindowBytes / ElementBytes / Pixels;  // channels
  static constexpr int kInFlight = std::min(8, std::max(1, 48 / (Pixels * Channels)));  // chunks of a thread

  /// The loaded elements of a chunk, Vector at a time. All chunks are loaded before one of them is widened: the words of
  /// a chunk would wait for its loads.
  template <int Vector = 1>
  struct Loaded {
    static constexpr int kWords = Vector * ElementBytes > 4 ? 2 : 1, kOfPixel = Channels / Vector * kWords;
    uint32_t words[Pixels][kOfPixel];

    /// Load the chunk that begins with pixel `first` of a row of `pixels`, at `from`. Pixels are `stride` elements apart,
    /// and zeros outside of the row.
    CUTLASS_DEVICE void load(Element const* from, int stride, int first, int pixels) {
      CUTLASS_PRAGMA_UNROLL
      for (int pixel = 0; pixel < Pixels; ++pixel, from += stride) {
        CUTLASS_PRAGMA_UNROLL
        for (uint32_t& word : words[pixel]) word = 0;
        if (uint32_t(first + pixel) >= uint32_t(pixels)) continue;  // one branch for all channels
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Channels / Vector; ++i) {
          uint32_t* const to = words[pixel] + i * kWords;
          if constexpr (kWords == 2) {
            uint2 const two = __ldg(reinterpret_cast<uint2 const*>(from + i * Vector));
            to[0] = two.x, to[1] = two.y;
          } else if constexpr (Vector > 1) {
            to[0] = __ldg(reinterpret_cast<uint32_t const*>(from + i * Vector));
          } else {
            to[0] = __ldg(from + i);
          }
        }
      }
    }

    CUTLASS_DEVICE void widen(uint32_t (&chunk)[4]) const {
      CUTLASS_PRAGMA_UNROLL
      for (uint32_t& word : chunk) word = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int pixel = 0; pixel < Pixels; ++pixel) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kOfPixel; ++i) {
          int const byte = pixel * kWidened * ElementBytes + i * (Vector > 1 ? 4 : ElementBytes);
          if constexpr (Vector > 1) {
            chunk[byte / 4] = words[pixel][i];
          } else {
            put(chunk, byte, rounded(words[pixel][i]));
          }
        }
      }
    }
  };

 private:
  /// Round f32 to TF32, as TMA does: WGMMA alone would truncate it.
  CUTLASS_DEVICE static uint32_t rounded(uint32_t element) {
    if constexpr (ElementBytes < 4) return element;
    uint32_t result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(element)));
    return result;
  }

  /// Put an element into a word whose later bytes are zeros.
  CUTLASS_DEVICE static void put(uint32_t (&chunk)[4], int byte, uint32_t element) {
    constexpr uint32_t kPlaced[] = {0x7654, 0x6540, 0x5410, 0x4210};  // bytes of the word, then of the element
    uint32_t& word = chunk[byte / 4];
    word = byte % 4 == 0 ? element : __byte_perm(word, element, kPlaced[byte % 4]);
  }
};

/// A convolution over windows of Channels elements, of 2 dimensions, or 3 of a volume. Its input has WindowChannels
/// channels, and Pixels pixels a chunk, which divide the stride. Threads load Vector of its elements at a time: 1, or 4
/// or 8 bytes.
template <class Mma, int Channels, int Dimensions, int WindowChannels, int Pixels, int Vector>
struct WindowsMainloop : HaloMainloop<Mma, Channels, Dimensions> {
  using Base = HaloMainloop<Mma, Channels, Dimensions>;
  using Widened = FewChannels<Mma::kElementBytes, WindowChannels, Pixels>;  // f32 is TF32

  static_assert(!Mma::kTransposed, "windows require a forward convolution");
  static constexpr int kPixelBytes = kWindowBytes;
  static constexpr bool kLoadsByThreads = true, kFiltersByThreads = true;
  static constexpr int kProducerRegisters = 104, kConsumerRegisters = 200;

  struct Operands {
    typename Widened::Element const *a, *b;
    int64_t a_image, a_slice, a_row, b_filter, b_slice, b_row;  // strides, in elements
    int a_pixel, b_pixel;
    int height, width, filter_width, pad;
    SmallDivisor by_pitch, by_images;
  };

#if !defined(EVT_DEVICE_PASS)
  static Problem multiplied(Problem const& problem, KernelClass const& kernel, int) {
    return over_windows(problem, kernel, Pixels);
  }

  /// Return whether whole chunks are a step of the stride, and the chunks of a row of taps are in a window.
  template <class Traits>
  static bool can_implement(Arguments<Traits> const& arguments) {
    Problem const& problem = arguments.problem;
    constexpr int kLargestStep = 8;  // of TMA's boxes, and of boxes of windows
    return problem.channels == WindowChannels && problem.width.stride % Pixels == 0 && problem.width.dilation == 1 &&
           problem.height.stride <= kLargestStep &&
           ceil_div(problem.width.taps, problem.width.stride) * kWindowBytes <= Base::kBlockBytes;
  }

  /// Set the operands. Return whether the elements of a box, and of a row of taps, are within 32 bits of each other.
  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    using Pointer = typename Widened::Element const*;
    Problem const& problem = arguments.problem;
    Geometry const& geometry = params.geometry;
    constexpr int kRow = Dimensions - 1, kSlice = Base::kVolume ? 1 : 0, kPixel = Dimensions;  // their strides
    auto const &a = arguments.a_strides, &b = arguments.b_strides;
    params.operands = {static_cast<Pointer>(arguments.a), static_cast<Pointer>(arguments.b), a[0], a[kSlice], a[kRow],
                       b[0], b[kSlice], b[kRow], int(a[kPixel]), int(b[kPixel]), problem.height.size,
                       problem.width.size, problem.width.taps, problem.width.pad, SmallDivisor::of(geometry.input_pitch),
                       SmallDivisor::of(geometry.images)};
    int64_t const rows = int64_t(geometry.box_rows) * problem.height.stride;
    int64_t const pixels = int64_t(geometry.input_pitch) * problem.width.stride;
    int64_t const of_window = Base::kBlockBytes / kWindowBytes * problem.width.stride;
    int64_t const of_box =
        (geometry.images - 1) * std::abs(a[0]) + rows * std::abs(a[kRow]) + pixels * std::abs(a[kPixel]);
    return std::max(of_box, of_window * std::abs(b[kPixel])) <= INT32_MAX;
  }
#endif

  template <class Traits>
  CUTLASS_DEVICE static void prefetch(Params<Traits> const&, int) {}

  /// A chunk of a box: its first element, row and column, from the box's first pixel on, and its image in the box.
  struct Place {
    uint32_t words[4];

    CUTLASS_DEVICE int element() const { return int(words[0]); }
    CUTLASS_DEVICE int row() const { return int(words[1]); }
    CUTLASS_DEVICE int column() const { return int(words[2]); }
    CUTLASS_DEVICE int image() const { return int(words[3]); }
  };

  /// Write the places of all chunks of a box to shared memory.
  template <class Traits>
  CUTLASS_DEVICE static void arrange(Params<Traits> const& params, SharedStorage const& storage) {
    Geometry const& geometry = params.geometry;
    Operands const& operands = params.operands;
    int const next_image = int(operands.a_image), next_row = int(operands.a_row);
    for (int chunk = threadIdx.x; chunk < geometry.box_pixels(); chunk += Traits::kThreads) {
      int const line = operands.by_pitch.quotient(chunk), of_image = operands.by_images.quotient(line);
      int const image = line - of_image * geometry.images, row = of_image * params.stride_height;
      int const column = (chunk - line * geometry.input_pitch) * params.stride_width * Pixels;
      int const element = image * next_image + row * next_row + column * operands.a_pixel;
      Place const place{{uint32_t(element), uint32_t(row), uint32_t(column), uint32_t(image)}};
      store_shared(storage.exchange + chunk * kPlaceBytes, place.words);
    }
  }

  /// Widen the CTA's block of filters, each row of taps to a swizzled row of shared memory.
  template <class Traits>
  CUTLASS_DEVICE static void prepare(Params<Traits> const& params, SharedStorage const& storage, int thread) {
    constexpr int kThreads = Traits::kConsumers * kWarpGroup;
    constexpr int kChunks = Base::kBlockBytes / kWindowBytes, kOfTap = kFilters * kChunks;
    constexpr int kSwizzle = Base::kBlockBytes / kWindowBytes - 1;  // of chunks, by the bits of the address from 7 on
    Operands const& operands = params.operands;
    int const filter = WorkTile(params, CtaWork(params).first, 0).filter, chunks = params.taps.number * kOfTap;
    for (int slice = 0; slice < (Base::kVolume ? params.depth.taps : 1); ++slice) {
      auto const of_slice = operands.b + slice * operands.b_slice;
      for (int begin = thread; begin < chunks; begin += Widened::kInFlight * kThreads) {
        typename Widened::template Loaded<> loaded[Widened::kInFlight];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Widened::kInFlight; ++i) {
          int const chunk = begin + i * kThreads, row = filter + chunk / kChunks % kFilters;
          bool const exists = chunk < chunks && row < params.filter_count;
          Tap const tap = params.taps.tap[exists ? chunk / kOfTap : 0];
          int const y = tap.y(), x = (chunk % kChunks * params.stride_width + tap.x()) * Pixels;
          auto const from = of_slice + row * operands.b_filter + y * operands.b_row + x * operands.b_pixel;
          loaded[i].load(from, operands.b_pixel, x, exists ? operands.filter_width : 0);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Widened::kInFlight; ++i) {
          int const chunk = begin + i * kThreads;
          uint32_t const to = storage.filters.buffers + (slice * chunks + chunk) * kWindowBytes;
          uint32_t widened[4];
          loaded[i].widen(widened);
          if (chunk < chunks) store_shared(to ^ (to >> 7 & kSwizzle) * kWindowBytes, widened);
        }
      }
    }
    fence_view_async_shared();
  }

  /// Load the boxes of all tiles, by slices of a volume and groups of taps, and widen them: one warp every kWideners-th
  /// box. The input stages are a multiple of kWideners, so that each warp has its own stages and sees every phase of them.
  template <class Traits>
  CUTLASS_DEVICE static void load(Params<Traits> const& params, SharedStorage const& storage, int warp) {
    if (warp >= kWideners) return;
    Geometry const& geometry = params.geometry;
    Operands const& operands = params.operands;
    CtaWork const work(params);
    PipelineState state;
    int const lane = threadIdx.x % 32, chunks = geometry.box_pixels();
    int others = warp;  // boxes before the warp's next one
    for (int number = work.first; number < params.work_tiles; number += work.stride) {
      WorkTile const tile(params, number, 0);
      BlockRange const taps = Base::kVolume ? work.blocks(params, number) : BlockRange{0, 1};  // along the depth
      for (int tap = taps.first; tap < taps.first + taps.number; ++tap) {
        int const slice = Base::kVolume ? params.depth.input(tile.slice, tap) : 0;
        int const height = !Base::kVolume || uint32_t(slice) < uint32_t(params.depth.size) ? operands.height : 0;
        for (int group = 0; group < params.taps.groups; ++group, state.advance_once(1, geometry.input_stages)) {
          if (others-- > 0) continue;
          others = kWideners - 1;
          uint32_t const start = params.taps.starts[group];
          int const first_column = (tile.column * params.stride_width + int16_t(start)) * Pixels - operands.pad;
          int const first_row = tile.row * params.stride_height + int16_t(start >> 16);
          auto const box = operands.a + tile.image * operands.a_image + slice * operands.a_slice +
                           first_row * operands.a_row + int64_t(first_column) * operands.a_pixel;
          uint32_t const to = storage.input.buffers + state.index * geometry.input_stage_bytes;
          for (int begin = 0; begin < chunks; begin += Widened::kInFlight * 32) {
            typename Widened::template Loaded<Vector> loaded[Widened::kInFlight];
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < Widened::kInFlight; ++i) {
              int const chunk = min(begin + i * 32 + lane, chunks - 1);
              Place place;
              load_shared(place.words, storage.exchange + chunk * kPlaceBytes);
              bool const exists = tile.image + place.image() < params.images &&
                                  uint32_t(first_row + place.row()) < uint32_t(height);
              int const pixels = exists ? operands.width : 0;
              loaded[i].load(box + place.element(), operands.a_pixel, first_column + place.column(), pixels);
            }
            if (begin == 0) storage.input.producer_acquire(state);
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < Widened::kInFlight; ++i) {
              int const chunk = begin + i * 32 + lane;
              uint32_t widened[4];
              loaded[i].widen(widened);
              if (chunk < chunks) store_shared(to + chunk * kWindowBytes, widened);
            }
          }
          fence_view_async_shared();
          __syncwarp();
          if (lane == 0) barrier_arrive(storage.input.full(state.index));
        }
      }
    }
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_WINDOWS_HPP
