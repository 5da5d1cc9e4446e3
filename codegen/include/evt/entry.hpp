// The kernel's code and its launch. A file is compiled in one pass, or in two concurrent passes: EVT_DEVICE_PASS makes
// the cubin, and EVT_HOST_PASS makes the launcher, which links the cubin as evt_cubin. The launcher does not link
// libcuda.
#ifndef EVT_ENTRY_HPP
#define EVT_ENTRY_HPP

#if !defined(EVT_DEVICE_PASS)
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>

#include "cutlass/cutlass.h"

#if defined(EVT_HOST_PASS)
extern "C" __attribute__((visibility("hidden"))) unsigned char const evt_cubin[];
#endif

namespace evt {

/// The result of a kernel's run: the kind of failure in the upper half, and its detail (a cutlass::Status or
/// cudaError_t) in the lower half.
enum class Failure : int { none, arguments, cutlass, device, module, driver, launch };

inline int report(Failure kind, int detail = 0) { return static_cast<int>(kind) << 16 | (detail & 0xffff); }

/// The text of a report, which is valid until the thread's next call.
inline char const* error_string(int code) {
  if (code == 0) return "no error";
  thread_local char text[256];
  int const detail = code & 0xffff;
  char const* const of_cuda = cudaGetErrorString(static_cast<cudaError_t>(detail));
  auto const say = [&](char const* what, char const* why) {
    std::snprintf(text, sizeof(text), "%s%s", what, why);
    return static_cast<char const*>(text);
  };
  switch (static_cast<Failure>(code >> 16)) {
    case Failure::arguments:
      return "wrong arguments: a pointer is null that must not be, a size is negative or no int holds it, an address or "
             "a stride is no multiple of the 16 bytes that TMA needs, or the struct is not of the size of this kernel's";
    case Failure::cutlass:
      return say("CUTLASS refuses the problem: ",
                 cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(detail)));
    case Failure::device:
      return say("there is no usable CUDA device: ", of_cuda);
    case Failure::module:
      return say("the kernel cannot be loaded on this device: ", of_cuda);
    case Failure::driver:
      return "the CUDA driver has no cuTensorMapEncodeTiled: it has to be one of CUDA 12.0 or newer";
    case Failure::launch:
      return say("the kernel cannot be launched: ", of_cuda);
    default:
      return "an unknown error code";
  }
}

constexpr int kMaxDevices = 64;

/// Facts of a device and the kernel's state on it, queried once.
struct Device {
  int index = -1;
  int multiprocessors = 0;
};

/// The current device. SMs are counted once per device; racing threads store equal counts.
inline cudaError_t current_device(Device& device) {
  static std::atomic<int> counts[kMaxDevices];
  cudaError_t error = cudaGetDevice(&device.index);
  if (error != cudaSuccess) return error;
  if (device.index >= kMaxDevices) return cudaErrorInvalidDevice;
  device.multiprocessors = counts[device.index].load(std::memory_order_relaxed);
  if (device.multiprocessors == 0) {
    error = cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, device.index);
    if (error == cudaSuccess) counts[device.index].store(device.multiprocessors, std::memory_order_relaxed);
  }
  return error;
}

/// Whether the driver has an entry point that CUTLASS looks up by name at run time.
inline bool driver_has(char const* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  return cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found) == cudaSuccess &&
         found == cudaDriverEntryPointSuccess && entry != nullptr;
}

inline std::uint64_t in_bytes(void const* address) { return reinterpret_cast<std::uintptr_t>(address); }
inline std::uint64_t in_bytes(std::int64_t stride) { return static_cast<std::uint64_t>(stride); }

/// Whether TMA refuses one of these addresses or byte strides. CUTLASS would print the driver's refusal and launch.
template <class... Values>
bool misaligned(Values... values) {
  return ((in_bytes(values) % 16 != 0) || ...);
}

/// Whether one of these sizes is negative or exceeds an int, the type of sizes in kernels.
template <class... Sizes>
bool no_extent(Sizes... sizes) {
  return ((sizes < 0 || sizes > 0x7fffffff) || ...);
}

/// Whether one of these sizes, which may be negative, exceeds an int.
template <class... Sizes>
bool no_int(Sizes... sizes) {
  return ((sizes < -0x7fffffff - 1 || sizes > 0x7fffffff) || ...);
}

#if defined(EVT_HOST_PASS)
/// The embedded cubin, loaded once per process for all devices.
struct Module {
  cudaLibrary_t library = nullptr;
  cudaError_t error;
  Module() { error = cudaLibraryLoadData(&library, evt_cubin, nullptr, nullptr, 0, nullptr, nullptr, 0); }
};

inline Module const& module() {
  static Module const loaded;
  return loaded;
}

/// The error of loading the kernel.
inline cudaError_t module_error() {
  return module().error == cudaSuccess ? cudaErrorSymbolNotFound : module().error;
}

/// A kernel of the cubin by name, or null.
inline void const* find_entry(char const* name) {
  cudaKernel_t kernel = nullptr;
  if (module().error != cudaSuccess || cudaLibraryGetKernel(&kernel, module().library, name) != cudaSuccess) {
    return nullptr;
  }
  return reinterpret_cast<void const*>(kernel);
}
#define EVT_ENTRY(kernel) evt::find_entry(#kernel)

inline cudaError_t allow_shared_memory(void const* kernel, int bytes, int device) {
  return cudaKernelSetAttributeForDevice(reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel)),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes, device);
}
#else
// Kernels compiled in the same pass have known addresses.
#define EVT_ENTRY(kernel) reinterpret_cast<void const*>(&kernel)

inline cudaError_t module_error() { return cudaErrorSymbolNotFound; }

inline cudaError_t allow_shared_memory(void const* kernel, int bytes, int) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
#endif

/// Raise the kernel's shared memory limit, once per device.
inline cudaError_t prepare(void const* kernel, int shared_bytes, Device const& device) {
  static std::atomic<bool> done[kMaxDevices];
  if (done[device.index].load(std::memory_order_acquire)) return cudaSuccess;
  cudaError_t error = allow_shared_memory(kernel, shared_bytes, device.index);
  if (error == cudaSuccess) done[device.index].store(true, std::memory_order_release);
  return error;
}

/// A thread's last call and its Params. A loop over the same tensors thus encodes its TMA descriptors once.
template <class Arguments, class Params>
struct LastCall {
  int device = -1;
  Arguments arguments{};
  Params params{};

  bool is(Arguments const& other, Device const& current) const {
    return device == current.index && std::memcmp(&arguments, &other, sizeof(Arguments)) == 0;
  }

  void set(Arguments const& other, Device const& current, Params const& made) {
    device = current.index;
    arguments = other;
    params = made;
  }
};

/// A size in bytes, rounded up so that the memory after it is aligned for every type.
constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Launch on a stream. A cluster of (1, 1, 1) is no cluster. A kernel with programmatic dependent launch (PDL) may
/// begin before the previous kernel of the stream ends, and must wait for that end (see pdl.hpp).
inline cudaError_t launch(void const* kernel, dim3 grid, dim3 block, dim3 cluster, int shared_bytes,
                          cudaStream_t stream, void* params, bool with_pdl = false) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (cluster.x * cluster.y * cluster.z > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
  }
  if (with_pdl) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {params};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace evt
#endif  // !EVT_DEVICE_PASS

#endif  // EVT_ENTRY_HPP
