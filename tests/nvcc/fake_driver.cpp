// A CUDA runtime and driver that record launches, to compare launchers without a GPU. A device has 132 SMs.
#include <cstring>
#include <initializer_list>

#include <cuda.h>
#include <cuda_runtime.h>

namespace {

constexpr int kMostLaunches = 4, kMostBytes = 8192;

struct Recorded {
  unsigned grid[3], block[3], shared, cluster[3], with_pdl;
  unsigned char params[kMostBytes];
};

int const* sizes;  // of the parameters of each launch
int launches;
Recorded recorded[kMostLaunches];

template <class Config, class Attribute>
int record(Config const& config, unsigned shared, Attribute const& read, void** arguments) {
  if (launches == kMostLaunches) return 1;
  Recorded& made = recorded[launches];
  made = {};
  made.shared = shared;
  read(config, made);
  std::memcpy(made.params, arguments[0], sizes[launches++]);
  return 0;
}

using Word = unsigned long long;

struct Hash {
  Word value = 14695981039346656037ull;
  void mix(std::initializer_list<Word> words) {
    for (Word each : words) value = (value ^ each) * 1099511628211ull;
  }
};

CUresult describe(CUtensorMap* map, void* address, Word hash, Word rank) {
  std::memset(map, 0, sizeof(*map));
  Word const words[] = {reinterpret_cast<Word>(address), hash, rank};
  std::memcpy(map, words, sizeof(words));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

void record_launches(int const* parameter_bytes) {
  sizes = parameter_bytes;
  launches = 0;
}
int recorded_launches() { return launches; }
void const* recorded_launch(int i) { return &recorded[i]; }

// A descriptor has the address, a hash of the other arguments, and the rank.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                                cuuint32_t const* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  Hash hash;
  for (unsigned i = 0; i < rank; ++i) hash.mix({extents[i], box[i], steps[i], i + 1 < rank ? strides[i] : 0});
  hash.mix({Word(type), Word(interleave), Word(swizzle), Word(promotion), Word(fill)});
  return describe(map, address, hash.value, rank);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 cuuint64_t const* extents, cuuint64_t const* strides, int const* lower,
                                 int const* upper, cuuint32_t channels, cuuint32_t pixels, cuuint32_t const* steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  Hash hash;
  for (unsigned i = 0; i < rank; ++i) hash.mix({extents[i], steps[i], i + 1 < rank ? strides[i] : 0});
  for (unsigned i = 0; i + 2 < rank; ++i) hash.mix({Word(lower[i]), Word(upper[i])});
  hash.mix({channels, pixels, Word(type), Word(interleave), Word(swizzle), Word(promotion), Word(fill)});
  return describe(map, address, hash.value, rank);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  std::memcpy(map, &address, sizeof(address));
  return CUDA_SUCCESS;
}

// The driver.

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return *value = 132, CUDA_SUCCESS; }
CUresult cuLibraryLoadData(CUlibrary* library, void const*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
  return *library = reinterpret_cast<CUlibrary>(1), CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, char const*) {
  return *kernel = reinterpret_cast<CUkernel>(2), CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }

CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction, void** arguments, void**) {
  auto const read = [](CUlaunchConfig const& from, Recorded& to) {
    unsigned const words[] = {from.gridDimX, from.gridDimY, from.gridDimZ, from.blockDimX, from.blockDimY, from.blockDimZ};
    std::memcpy(to.grid, words, sizeof(words));
    for (unsigned i = 0; i < from.numAttrs; ++i) {
      CUlaunchAttribute const& each = from.attrs[i];
      if (each.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) std::memcpy(to.cluster, &each.value, sizeof(to.cluster));
      if (each.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) to.with_pdl = *(int const*)&each.value;
    }
  };
  return static_cast<CUresult>(record(*config, config->sharedMemBytes, read, arguments));
}

// The runtime.

cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *entry = std::strcmp(name, "cuTensorMapEncodeTiled") == 0    ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled)
           : std::strcmp(name, "cuTensorMapEncodeIm2col") == 0 ? reinterpret_cast<void*>(&cuTensorMapEncodeIm2col)
                                                               : nullptr;
  if (result) *result = *entry ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 132, cudaSuccess; }
char const* cudaGetErrorString(cudaError_t) { return ""; }
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, void const*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return *library = reinterpret_cast<cudaLibrary_t>(1), cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, char const*) {
  return *kernel = reinterpret_cast<cudaKernel_t>(2), cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const*, void** arguments) {
  auto const read = [](cudaLaunchConfig_t const& from, Recorded& to) {
    unsigned const words[] = {from.gridDim.x, from.gridDim.y, from.gridDim.z, from.blockDim.x, from.blockDim.y, from.blockDim.z};
    std::memcpy(to.grid, words, sizeof(words));
    for (unsigned i = 0; i < from.numAttrs; ++i) {
      cudaLaunchAttribute const& each = from.attrs[i];
      if (each.id == cudaLaunchAttributeClusterDimension) std::memcpy(to.cluster, &each.val, sizeof(to.cluster));
      if (each.id == cudaLaunchAttributeProgrammaticStreamSerialization) to.with_pdl = *(int const*)&each.val;
    }
  };
  return static_cast<cudaError_t>(record(*config, unsigned(config->dynamicSmemBytes), read, arguments));
}
}
