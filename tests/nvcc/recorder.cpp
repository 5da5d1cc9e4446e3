// A CUDA runtime that launches nothing: it records the launches of a launcher, to compare launchers without a GPU.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

extern "C" {

extern unsigned const evt_000000000000_params;
extern unsigned char const evt_cubin[4];
unsigned char const evt_cubin[4] = {};

// The last launch: grid, block, shared memory and attributes; and the kernel's parameters.
std::int64_t recorded_launch[9];
unsigned char recorded_params[16384];

// Make a tensor map of the words of its arguments: other arguments make another map.
static CUresult record(CUtensorMap* map, std::uint32_t const* words, unsigned count) {
  std::memset(map, 0, sizeof(*map));
  auto* to = reinterpret_cast<std::uint32_t*>(map);
  for (unsigned i = 0; i < count; ++i) to[i % 32] = to[i % 32] * 31 + words[i];
  return CUDA_SUCCESS;
}

static CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                             cuuint64_t const* sizes, cuuint64_t const* strides, cuuint32_t const* box,
                             cuuint32_t const* element, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  std::uint64_t words[64] = {1u, std::uint64_t(type), rank, reinterpret_cast<std::uint64_t>(address),
                             std::uint64_t(interleave), std::uint64_t(swizzle), std::uint64_t(promotion),
                             std::uint64_t(fill)};
  unsigned at = 8;
  for (unsigned i = 0; i < rank; ++i) {
    words[at++] = sizes[i];
    words[at++] = i + 1 < rank ? strides[i] : 0;
    words[at++] = box[i];
    words[at++] = element[i];
  }
  return record(map, reinterpret_cast<std::uint32_t const*>(words), 2 * at);
}

static CUresult encode_im2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                              cuuint64_t const* sizes, cuuint64_t const* strides, int const* lower, int const* upper,
                              cuuint32_t channels, cuuint32_t pixels, cuuint32_t const* element,
                              CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                              CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  std::uint64_t words[64] = {2u, std::uint64_t(type), rank, reinterpret_cast<std::uint64_t>(address),
                             std::uint64_t(interleave), std::uint64_t(swizzle), std::uint64_t(promotion),
                             std::uint64_t(fill), channels, pixels};
  unsigned at = 10;
  for (unsigned i = 0; i < rank; ++i) {
    words[at++] = sizes[i];
    words[at++] = i + 1 < rank ? strides[i] : 0;
    words[at++] = element[i];
    words[at++] = i + 2 < rank ? std::uint64_t(lower[i]) : 0;
    words[at++] = i + 2 < rank ? std::uint64_t(upper[i]) : 0;
  }
  return record(map, reinterpret_cast<std::uint32_t const*>(words), 2 * at);
}

cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *entry = std::strcmp(name, "cuTensorMapEncodeTiled") == 0    ? reinterpret_cast<void*>(encode_tiled)
           : std::strcmp(name, "cuTensorMapEncodeIm2col") == 0 ? reinterpret_cast<void*>(encode_im2col)
                                                               : nullptr;
  if (found != nullptr) *found = *entry ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(char const* name, void** entry, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPointByVersion(name, entry, 0, flags, found);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 132 : 0;
  return cudaSuccess;
}
char const* cudaGetErrorString(cudaError_t) { return "an error"; }
char const* cudaGetErrorName(cudaError_t) { return "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, void const*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<cudaLibrary_t>(1);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, char const*) {
  *kernel = reinterpret_cast<cudaKernel_t>(2);
  return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, void const*, std::size_t, cudaMemcpyKind, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void const*, int, std::size_t,
                                                                   unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const*, void** arguments) {
  std::int64_t const launch[9] = {config->gridDim.x,  config->gridDim.y,  config->gridDim.z,
                                  config->blockDim.x, config->blockDim.y, config->blockDim.z,
                                  static_cast<std::int64_t>(config->dynamicSmemBytes), config->numAttrs, 1};
  std::memcpy(recorded_launch, launch, sizeof(launch));
  std::memcpy(recorded_params, arguments[0], evt_000000000000_params);
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

}  // extern "C"
