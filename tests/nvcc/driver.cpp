// A kernel of sm90 as emitted, launched without a GPU: the CUDA runtime and the driver are this file's.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernel.h"

namespace {
bool old = false;
int encoded = 0, launched = 0, failures = 0;

CUresult encode(CUtensorMap* map, ...) {
  ++encoded;
  std::memset(map, 1, sizeof(*map));
  return CUDA_SUCCESS;
}

void expect(bool holds, char const* what) {
  if (holds) return;
  std::printf("%s\n", what);
  ++failures;
}
}  // namespace

extern "C" {
unsigned char evt_cubin[1] = {0};

// nvcc's registration of the headers' constants.
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 132, cudaSuccess; }
char const* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetDriverEntryPointByVersion(char const*, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *entry = old ? nullptr : reinterpret_cast<void*>(&encode);
  *found = old ? cudaDriverEntryPointVersionNotSufficent : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, void const*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<cudaLibrary_t>(evt_cubin);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, char const*) {
  *kernel = reinterpret_cast<cudaKernel_t>(evt_cubin);
  return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const*, void const*, void**) { return ++launched, cudaSuccess; }
}

int main(int count, char**) {
  old = count > 1;
  static char memory[1024];
  char* const aligned = memory + (256 - reinterpret_cast<std::uintptr_t>(memory) % 256);
  kernel_arguments arguments{};
  arguments.m = 256, arguments.n = 128, arguments.k = 64, arguments.l = 1;
  arguments.stride_m_of_A = 64, arguments.stride_k_of_B = 128, arguments.stride_m_of_out_D = 128;
  auto const run = [&] { return kernel_run(&arguments, sizeof(arguments), nullptr); };
  arguments.A = aligned, arguments.B = aligned, arguments.out_D = aligned;
  if (old) {
    int const code = run();
    std::printf("%d %s\n", launched, kernel_error_string(code));
    return code == kernel_failure_driver << 16 ? 0 : 1;
  }
  arguments.B = aligned + 8;
  expect(run() == kernel_failure_arguments << 16 && launched == 0, "a misaligned B is launched");
  arguments.B = aligned;
  expect(run() == 0 && launched == 1, "the kernel is not launched");
  int const once = encoded;
  expect(once >= 3, "A, B and D are not encoded");
  expect(run() == 0 && launched == 2 && encoded == once, "a call like the last one encodes again");
  arguments.m = 512;
  expect(run() == 0 && encoded == 2 * once, "a call of another size does not");
  arguments.stride_m_of_A = 68;
  expect(run() == kernel_failure_arguments << 16 && launched == 3, "a stride that TMA does not take is launched");
  arguments.stride_m_of_A = 72, arguments.k = 68;
  expect(run() >> 16 == kernel_failure_cutlass && launched == 3, "extents that CUTLASS refuses are launched");
  std::printf("%d failures\n", failures);
  return failures != 0;
}
