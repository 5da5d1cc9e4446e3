// evt/entry.hpp beside a CUDA runtime of this file's own, which stands for drivers that are there, too old or missing.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "evt/entry.hpp"

namespace {

enum class Driver { none, old, present } driver = Driver::present;
thread_local int device_of_thread = 0;
std::atomic<int> attribute_calls{0}, allowed[evt::kMaxDevices];
cudaError_t launch_result = cudaSuccess;
cudaLaunchConfig_t launched{};
unsigned cluster_of_launch = 0;
int failures = 0;

void expect(bool holds, char const* what) {
  if (holds) return;
  std::printf("%s\n", what);
  ++failures;
}

bool says(int code, char const* words) { return std::string(evt::error_string(code)).find(words) != std::string::npos; }

}  // namespace

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return driver == Driver::none ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  ++attribute_calls;
  *value = 100 + device;
  return cudaSuccess;
}
char const* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInsufficientDriver ? "CUDA driver version is insufficient" : "another error";
}
cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** entry, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  expect(version == 12000, "an entry point is asked for by its version");
  bool const there = driver == Driver::present && std::string(name) == "cuTensorMapEncodeTiled";
  *entry = there ? reinterpret_cast<void*>(&std::abort) : nullptr;
  *found = there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
  return driver == Driver::none ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(void const*, cudaFuncAttribute, int bytes) {
  if (bytes > 1000) return cudaErrorInvalidValue;
  ++allowed[device_of_thread];
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const*, void**) {
  launched = *config;
  cluster_of_launch = config->numAttrs ? config->attrs[0].val.clusterDim.x : 0;
  return launch_result;
}
}

int main() {
  evt::Device device;
  driver = Driver::none;
  cudaError_t error = evt::current_device(device);
  expect(error == cudaErrorInsufficientDriver, "there is no driver, and a device");
  expect(says(evt::report(evt::Failure::device, error), "no usable CUDA device: CUDA driver version is insufficient"),
         "a missing driver is not said");
  expect(!evt::driver_has("cuTensorMapEncodeTiled"), "a missing driver has an entry point");

  driver = Driver::old;
  expect(!evt::driver_has("cuTensorMapEncodeTiled"), "a driver that is too old has the entry point");
  expect(says(evt::report(evt::Failure::driver), "it has to be one of CUDA 12.0 or newer"),
         "an old driver is not said");

  driver = Driver::present;
  expect(evt::driver_has("cuTensorMapEncodeTiled"), "the driver lacks the entry point");
  expect(!evt::driver_has("cuNoFunction"), "the driver has any entry point");

  device_of_thread = evt::kMaxDevices;
  expect(evt::current_device(device) == cudaErrorInvalidDevice, "a device beyond the last is known");
  device_of_thread = 0;

  // Threads on two devices: facts are asked once for each device, or by threads that race for the first answer.
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 16; ++number) {
    threads.emplace_back([number, &wrong] {
      device_of_thread = number % 2;
      for (int turn = 0; turn < 1000; ++turn) {
        evt::Device own;
        bool const known = evt::current_device(own) == cudaSuccess && own.index == number % 2 &&
                           own.multiprocessors == 100 + number % 2;
        bool const ready = evt::prepare(&wrong, 512, own) == cudaSuccess && allowed[own.index] > 0;
        int const code = evt::report(evt::Failure::module, number);
        char const* const text = evt::error_string(code);
        if (!known || !ready || !says(code, "the kernel cannot be loaded") || text != evt::error_string(code)) ++wrong;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  expect(wrong == 0, "threads see different things");
  expect(attribute_calls >= 2 && attribute_calls <= 16, "a device is asked at every call");

  expect(evt::prepare(&failures, 2000, {2, 1}) == cudaErrorInvalidValue, "a refused size of shared memory is lost");
  expect(evt::prepare(&failures, 2000, {2, 1}) == cudaErrorInvalidValue, "it is lost at the second call");

  char memory[64];
  char* const aligned = memory + (16 - reinterpret_cast<std::uintptr_t>(memory) % 16);
  void const* const null = nullptr;
  expect(!evt::misaligned(aligned, aligned + 16, null), "aligned addresses are refused");
  expect(evt::misaligned(aligned, aligned + 8), "a misaligned address is taken");
  std::int64_t const even = 48, odd = 40;
  expect(!evt::misaligned(aligned, even, std::int64_t{0}), "strides of whole 16 bytes are refused");
  expect(evt::misaligned(aligned, even, odd), "a stride of 40 bytes is taken");
  expect(says(evt::report(evt::Failure::arguments), "multiple of the 16 bytes"), "a misaligned tensor is not said");

  void* params = nullptr;
  auto const stream = reinterpret_cast<cudaStream_t>(0x123);
  expect(evt::launch(&failures, {1, 2, 3}, {128, 1, 1}, {1, 1, 1}, 512, stream, &params) == cudaSuccess, "no launch");
  expect(launched.stream == stream && launched.gridDim.z == 3 && launched.dynamicSmemBytes == 512 &&
             cluster_of_launch == 0, "the launch is another");
  launch_result = cudaErrorLaunchOutOfResources;
  expect(evt::launch(&failures, {1, 1, 1}, {128, 1, 1}, {2, 1, 1}, 0, nullptr, &params) == launch_result,
         "a failed launch is lost");
  expect(cluster_of_launch == 2, "the cluster is lost");
  expect(says(evt::report(evt::Failure::launch, launch_result), "the kernel cannot be launched: another error"),
         "a failed launch is not said");
  expect(std::string(evt::error_string(0)) == "no error" && says(99 << 16, "unknown"), "codes are not said");

  std::printf("%d failures\n", failures);
  return failures != 0;
}
