// Device functions that CUTLASS's headers name, for a launcher by a plain C++ compiler. The launcher calls none of them.
#ifndef EVT_HOST_HPP
#define EVT_HOST_HPP

#if !defined(__CUDACC__)

#include "cutlass/arch/wmma.h"  // before nvcc's version is known: nvcc alone has nvcuda::wmma
#define __CUDACC_VER_MAJOR__ EVT_NVCC_MAJOR
#define __CUDACC_VER_MINOR__ EVT_NVCC_MINOR

#include <cstddef>

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <device_launch_parameters.h>

void __syncthreads();
void __syncwarp(unsigned = ~0u);
void __threadfence();
int __syncthreads_and(int);
template <class... T>
int __dp4a(T...);
template <class... T>
unsigned __byte_perm(T...);
template <class... T>
int __ffs(T...);
template <class T, class... Rest>
T __shfl_sync(unsigned, T, Rest...);
template <class T, class... Rest>
T __shfl_xor_sync(unsigned, T, Rest...);
template <class T, class... Rest>
T __shfl_down_sync(unsigned, T, Rest...);
template <class T, class... Rest>
T __shfl_up_sync(unsigned, T, Rest...);
template <class T, class U>
T atomicMax(T*, U);
template <class T, class U>
T atomicMin(T*, U);
template <class T, class U>
T atomicOr(T*, U);
template <class T, class U>
T atomicAdd(T*, U);
template <class T>
T atomicCAS(T*, T, T);
unsigned __float_as_uint(float);
float __uint_as_float(unsigned);
std::size_t __cvta_generic_to_shared(void const*);
constexpr int min(int x, int y) { return y < x ? y : x; }
constexpr int max(int x, int y) { return x < y ? y : x; }
inline __half2 __hfma2(__half2 a, __half2, __half2) { return a; }

namespace cutlass::arch {
inline int SmId() { return 0; }
inline int LaneId() { return 0; }
}  // namespace cutlass::arch

#endif

#endif  // EVT_HOST_HPP
