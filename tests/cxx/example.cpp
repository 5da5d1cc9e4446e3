// Prints every float of the small types as the tests of exported CMake projects read them: a line for each type.
#include "example.hpp"

int main() {
  using example::Type;
  for (Type type : {Type::f16, Type::bf16, Type::e4m3, Type::e5m2}) {
    unsigned const count = type == Type::f16 || type == Type::bf16 ? 1u << 16 : 1u << 8;
    for (unsigned bits = 0; bits < count; ++bits) {
      unsigned char const bytes[2] = {static_cast<unsigned char>(bits & 0xff), static_cast<unsigned char>(bits >> 8)};
      std::printf("%a ", example::number(type, bytes, 0));
    }
    std::printf("\n");
  }
}

// Stands for the CUDA runtime, which this program does not call.
extern "C" {
cudaError_t cudaGetDevice(int*) { return cudaErrorNoDevice; }
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) { return cudaErrorNoDevice; }
char const* cudaGetErrorString(cudaError_t) { return ""; }
cudaError_t cudaMalloc(void**, std::size_t) { return cudaErrorNoDevice; }
cudaError_t cudaMemset(void*, int, std::size_t) { return cudaErrorNoDevice; }
cudaError_t cudaMemcpy(void*, void const*, std::size_t, cudaMemcpyKind) { return cudaErrorNoDevice; }
cudaError_t cudaFree(void*) { return cudaErrorNoDevice; }
}
