// The table of a grouped kernel: rows of one 8-byte word per group (extents, addresses, strides, values). Each call
// makes the table on the host and copies it to the device as parameters of a small kernel. No memory is pinned or must
// outlive the call, and a captured graph keeps its table.
#ifndef EVT_GROUPED_HPP
#define EVT_GROUPED_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#include "evt/entry.hpp"

namespace evt {

/// A part of a table, with the largest size of kernel parameters that every driver supports.
struct TablePart {
  static constexpr int kWords = 510;
  std::uint64_t* to;
  std::int64_t count;
  std::uint64_t words[kWords];
};
static_assert(sizeof(TablePart) <= 4096, "kernel parameters take 4 KiB");

constexpr int kTableThreads = 256;

inline __device__ void copy_part(TablePart const& part) {
  for (int i = static_cast<int>(threadIdx.x); i < part.count; i += kTableThreads) part.to[i] = part.words[i];
}

#if !defined(EVT_DEVICE_PASS)
/// Copy a table by launches of `kernel`, which calls copy_part.
inline cudaError_t copy_table(void const* kernel, std::uint64_t const* words, std::int64_t count, void* to,
                              cudaStream_t stream) {
  TablePart part;
  for (std::int64_t done = 0; done < count; done += part.count) {
    part.to = static_cast<std::uint64_t*>(to) + done;
    part.count = std::min<std::int64_t>(count - done, TablePart::kWords);
    std::memcpy(part.words, words + done, static_cast<std::size_t>(part.count) * sizeof(std::uint64_t));
    cudaError_t const error = launch(kernel, dim3(1), dim3(kTableThreads), dim3(1, 1, 1), 0, stream, &part);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

/// Convert numbers from double to Element. A group without an address of its value gets the address of its number.
/// `values_on_device` is the address of that row on the device.
template <class Element>
void place_values(std::uint64_t* values, std::uint64_t* pointers, std::int64_t groups, void const* values_on_device) {
  static_assert(sizeof(Element) <= sizeof(std::uint64_t), "a value must fit into a word");
  for (std::int64_t group = 0; group < groups; ++group) {
    double number;
    std::memcpy(&number, &values[group], sizeof(number));
    Element const value = static_cast<Element>(number);
    std::memcpy(&values[group], &value, sizeof(value));
    if (pointers[group] == 0) {
      pointers[group] = reinterpret_cast<std::uint64_t>(static_cast<std::uint64_t const*>(values_on_device) + group);
    }
  }
}

#endif  // !EVT_DEVICE_PASS

}  // namespace evt

#endif  // EVT_GROUPED_HPP
