#ifndef EVT_KIT_MAINLOOP_GROUPS_HPP
#define EVT_KIT_MAINLOOP_GROUPS_HPP

// The main loops of convolutions with groups. A block of filters multiplies the channels of its groups only.
//
// The blocks of a wide group load their filters by TMA. Several narrow groups share a block: its filters are
// block-diagonal. The consumers write them to shared memory before their first tile, while TMA loads its input. They
// stay there. A channel that is not finite makes the results of all groups of its block NaN.

#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "evt/kit/group_blocks.hpp"
#include "evt/kit/mainloop.hpp"

namespace evt {
namespace kit {

/// A convolution with groups, of blocks of Channels channels of one group.
template <class Mma, int Channels>
struct GroupsMainloop : HaloMainloop<Mma, Channels, 2> {
  using Base = HaloMainloop<Mma, Channels, 2>;
  static constexpr bool kGrouped = true;

  struct Operands {
    GroupBlocks groups;
  };

#if !defined(EVT_DEVICE_PASS)
  static Problem multiplied(Problem const& problem, KernelClass const& kernel, int groups) {
    return over_groups(problem, kernel, groups);
  }

  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    params.operands.groups = GroupBlocks::of(arguments.problem, Traits::kClass, arguments.groups);
    return Base::encode(arguments, params);
  }
#endif
};

/// Chunks of 16 bytes of filters, of 16-bit elements that are loaded Vector at a time.
template <int Vector>
struct FilterChunk {
  static constexpr int kElements = 8;

  /// Copy a chunk from `from` on to shared memory, asynchronously: the channels from `first` on that a group has, and
  /// zeros. `valid` is any address that can be read.
  CUTLASS_DEVICE static void copy(uint32_t to, uint16_t const* from, int first, int channels, uint16_t const* valid) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; i += Vector) {
      bool const exists = uint32_t(first + i) < uint32_t(channels);
      copy_word_async<2 * Vector>(to + 2 * i, exists ? from + i : valid, exists ? 2 * Vector : 0);
    }
  }

  /// Load such a chunk one element at a time, `step` apart.
  CUTLASS_DEVICE static void load(uint32_t (&chunk)[4], uint16_t const* from, int step, int first, int channels) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; ++i) {
      uint32_t const element = uint32_t(first + i) < uint32_t(channels) ? __ldg(from + i * step) : 0;
      chunk[i / 2] = i % 2 == 0 ? element : chunk[i / 2] | element << 16;
    }
  }
};

/// A convolution with several groups in a block of Channels channels. Vector: the elements of B, along a filter's
/// channels, that a thread loads at a time. Backwards: the gradient of the input.
template <class Mma, int Channels, int Vector, bool Backwards = false>
struct PackedGroupsMainloop : GroupsMainloop<Mma, Channels> {
  using Base = GroupsMainloop<Mma, Channels>;
  using Filters = typename Base::Filters;
  using Chunk = FilterChunk<Vector>;

  static_assert(Mma::kElementBytes == 2, "threads load elements of 16 bits");
  static_assert(!Mma::kTransposed, "threads write rows of channels");
  static_assert(!Backwards || Vector == 1, "the channels of a backward filter are not contiguous");
  static constexpr bool kPacked = true, kBackwards = Backwards, kFiltersByThreads = true;

  struct Operands {
    GroupBlocks groups;
    uint16_t const* b;
    int64_t b_group;  // strides, in elements
    int b_filter, b_channel, b_row, b_column;
    int filters, channels;  // of a group
    FastDivisor by_filters;
  };

#if !defined(EVT_DEVICE_PASS)
  template <class Traits>
  static Operands operands_of(Arguments<Traits> const& arguments) {
    Problem const& problem = arguments.problem;
    int const filters = problem.filters / arguments.groups, channels = problem.channels / arguments.groups;
    auto const& b = arguments.b_strides;
    int64_t const rows = Backwards ? channels : filters;  // of B, of a group
    return {GroupBlocks::of(problem, Traits::kClass, arguments.groups),
            static_cast<uint16_t const*>(arguments.b),
            rows * b[0],
            int(Backwards ? 1 : b[0]),
            int(Backwards ? b[0] : 1),
            int(b[1]),
            int(b[2]),
            filters,
            channels,
            FastDivisor::of(filters)};
  }

  /// Return whether the elements of a group of B's rows are within 32 bits of each other.
  template <class Traits>
  static bool has_near_filters(Arguments<Traits> const& arguments) {
    Problem const& problem = arguments.problem;
    auto const& b = arguments.b_strides;
    int64_t const rows = (Backwards ? problem.channels : problem.filters) / arguments.groups;
    return rows * std::abs(b[0]) + problem.height.taps * std::abs(b[1]) + problem.width.taps * std::abs(b[2]) <= INT32_MAX;
  }

  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    params.operands = operands_of(arguments);
    return has_near_filters(arguments) && Base::input_of(arguments, params.geometry).encode(params.input);
  }
#endif

  template <class Traits>
  CUTLASS_DEVICE static void prefetch(Params<Traits> const& params, int warp) {
    if (warp == 0) prefetch_tma_descriptor(params.input);
  }

  template <class Traits>
  CUTLASS_DEVICE static void load(Params<Traits> const& params, SharedStorage const& storage, int warp) {
    if (warp == 0) Base::load_input(params, storage);
  }

  /// Write the filters of the CTA's block, each block of channels after the other: a swizzled row of channels for each
  /// filter, with zeros for other groups.
  template <class Traits>
  CUTLASS_DEVICE static void prepare(Params<Traits> const& params, SharedStorage const& storage, int thread) {
    constexpr int kThreads = Traits::kConsumers * kWarpGroup;
    constexpr int kChunkBytes = 16, kChunks = Filters::kRowBytes / kChunkBytes, kInFlight = 9;
    constexpr int kTogether = ceil_div(kFilters * kChunks, kThreads);  // chunks of a thread
    Operands const& operands = params.operands;
    GroupPlace const place = WorkTile(params, CtaWork(params).first, 0).place;
    int const first_group = operands.by_filters.quotient(place.filter);  // of the slice
    uint16_t const* from[kTogether];
    int first[kTogether], channels[kTogether];
    uint32_t to[kTogether];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      int const chunk = thread + i * kThreads;
      int const filter = place.filter + chunk / kChunks, group = operands.by_filters.quotient(filter);
      first[i] = chunk % kChunks * Chunk::kElements - (group - first_group) * operands.channels;
      channels[i] = place.slice * operands.groups.filters + filter < place.end ? operands.channels : 0;
      from[i] = operands.b + (place.slice + group) * operands.b_group +
                ((filter - group * operands.filters) * operands.b_filter + first[i] * operands.b_channel);
      uint32_t const at = storage.filters.buffers + chunk * kChunkBytes;
      to[i] = at ^ (at >> 7 & kChunks - 1) * kChunkBytes;
    }
    int const taps = params.taps.number;
    for (int channel = 0; channel < params.channel_blocks * Channels; channel += Channels) {
      auto const from_tap = [&](int number, int i) {
        Tap const tap = params.taps.tap[number];
        int const of_tap = tap.y() * operands.b_row + tap.x() * operands.b_column;
        return from[i] + (of_tap + channel * operands.b_channel);
      };
      auto const to_tap = [&](int number, int i) { return to[i] + (channel / Channels * taps + number) * Filters::kBytes; };
      auto const has_chunk = [&](int i) { return thread + i * kThreads < kFilters * kChunks; };
      if constexpr (Vector > 1) {
#pragma unroll 3
        for (int tap = 0; tap < taps; ++tap) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kTogether; ++i) {
            if (has_chunk(i)) Chunk::copy(to_tap(tap, i), from_tap(tap, i), first[i] + channel, channels[i], operands.b);
          }
        }
      } else {
        for (int begin = 0; begin < taps; begin += kInFlight) {
          uint32_t loaded[kTogether][kInFlight][4];
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kInFlight; ++j) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kTogether; ++i) {
              auto const chunk = from_tap(min(begin + j, taps - 1), i);
              Chunk::load(loaded[i][j], chunk, operands.b_channel, first[i] + channel, channels[i]);
            }
          }
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kInFlight; ++j) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kTogether; ++i) {
              if (begin + j < taps && has_chunk(i)) store_shared(to_tap(begin + j, i), loaded[i][j]);
            }
          }
        }
      }
    }
    copies_commit();
    copies_wait<0>();
    fence_view_async_shared();
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_GROUPS_HPP
