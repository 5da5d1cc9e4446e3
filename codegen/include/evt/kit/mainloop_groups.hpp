#ifndef EVT_KIT_MAINLOOP_GROUPS_HPP
#define EVT_KIT_MAINLOOP_GROUPS_HPP

// The main loops of convolutions with groups. A block of filters multiplies the channels of its groups only.
//
// The blocks of a wide group load their filters by TMA. Several narrow groups share a block: its filters are
// block-diagonal. The consumers write them to shared memory before their first tile, while TMA loads its input. They
// stay there. A channel that is not finite makes the results of all groups of its block NaN.

#include <cstdint>
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
  using Words = std::conditional_t<Vector == 8, uint4, std::conditional_t<Vector == 4, uint2, uint32_t>>;

  /// Load the elements of a chunk, `step` apart from `from` on: the channels from `first` on that a group has, and
  /// zeros.
  CUTLASS_DEVICE static void load(uint32_t (&chunk)[4], uint16_t const* from, int64_t step, int first, int channels) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kElements; i += Vector) {
      bool const exists = uint32_t(first + i) < uint32_t(channels);
      if constexpr (Vector == 1) {
        uint32_t const element = exists ? __ldg(from + i * step) : 0;
        chunk[i / 2] = i % 2 == 0 ? element : chunk[i / 2] | element << 16;
      } else {
        Words words{};
        if (exists) words = __ldg(reinterpret_cast<Words const*>(from + i));
        if constexpr (Vector == 8) {
          chunk[0] = words.x, chunk[1] = words.y, chunk[2] = words.z, chunk[3] = words.w;
        } else if constexpr (Vector == 4) {
          chunk[i / 2] = words.x, chunk[i / 2 + 1] = words.y;
        } else {
          chunk[i / 2] = words;
        }
      }
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
    int64_t b_group, b_filter, b_channel, b_row, b_column;  // strides, in elements
    int filters, channels;                                  // of a group
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
            Backwards ? 1 : b[0],
            Backwards ? b[0] : 1,
            b[1],
            b[2],
            filters,
            channels};
  }

  template <class Traits>
  static bool encode(Arguments<Traits> const& arguments, Params<Traits>& params) {
    params.operands = operands_of(arguments);
    return Base::input_of(arguments, params.geometry).encode(params.input);
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

  template <class Traits>
  CUTLASS_DEVICE static void prepare(Params<Traits> const& params, SharedStorage const& storage, int thread) {
    write_filters<Traits::kConsumers * kWarpGroup>(params, storage, thread);
  }

 protected:
  /// Write the filters of the CTA's block, each block of channels after the other: a swizzled row of channels for each
  /// filter, with zeros for other groups.
  template <int Threads, class Traits>
  CUTLASS_DEVICE static void write_filters(Params<Traits> const& params, SharedStorage const& storage, int thread) {
    constexpr int kChunkBytes = 16, kChunks = Filters::kRowBytes / kChunkBytes, kInFlight = 9;
    constexpr int kTogether = ceil_div(kFilters * kChunks, Threads);  // chunks of a thread
    Operands const& operands = params.operands;
    GroupPlace const place = WorkTile(params, CtaWork(params).first, 0).place;
    int const first_group = place.filter / operands.filters;  // of the slice
    uint16_t const* from[kTogether];
    int first[kTogether], channels[kTogether];
    uint32_t to[kTogether];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      int const chunk = thread + i * Threads;
      int const filter = place.filter + chunk / kChunks, group = filter / operands.filters;
      first[i] = chunk % kChunks * Chunk::kElements - (group - first_group) * operands.channels;
      channels[i] = place.slice * operands.groups.filters + filter < place.end ? operands.channels : 0;
      from[i] = operands.b + (place.slice + group) * operands.b_group +
                (filter - group * operands.filters) * operands.b_filter + first[i] * operands.b_channel;
      uint32_t const at = storage.filters.buffers + chunk * kChunkBytes;
      to[i] = at ^ (at >> 7 & kChunks - 1) * kChunkBytes;
    }
    // All loads of a thread are in flight together, for filters of up to nine taps.
    int const taps = params.channel_blocks * params.taps.number;
    for (int begin = 0; begin < taps; begin += kInFlight) {
      uint32_t loaded[kTogether][kInFlight][4];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kInFlight; ++j) {
        bool const exists = begin + j < taps;
        int const block = exists ? (begin + j) / params.taps.number : 0, channel = block * Channels;
        Tap const tap = params.taps.tap[exists ? begin + j - block * params.taps.number : 0];
        int64_t const offset = tap.y() * operands.b_row + tap.x() * operands.b_column + channel * operands.b_channel;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          Chunk::load(loaded[i][j], from[i] + offset, operands.b_channel, first[i] + channel, exists ? channels[i] : 0);
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kInFlight; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          bool const exists = begin + j < taps && thread + i * Threads < kFilters * kChunks;
          if (exists) store_shared(to[i] + (begin + j) * Filters::kBytes, loaded[i][j]);
        }
      }
    }
    fence_view_async_shared();
  }
};

}  // namespace kit
}  // namespace evt

#endif  // EVT_KIT_MAINLOOP_GROUPS_HPP
