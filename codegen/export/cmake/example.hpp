// Shared by the tests: tensors on the GPU, and the comparison of results with exact ones.
#ifndef EVT_EXAMPLE_HPP
#define EVT_EXAMPLE_HPP

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <cuda_runtime_api.h>

namespace example {

constexpr int kSkipped = 77;

inline void check(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// The compute capability of the current device, as 90 for 9.0; 0 and the reason if no device is usable.
inline int capability() {
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess) std::printf("there is no usable CUDA device: %s\n", cudaGetErrorString(error));
  return error == cudaSuccess ? 10 * major + minor : 0;
}

/// Memory on the GPU, filled with the given bytes or with a pattern that no kernel writes by chance.
class Memory {
 public:
  explicit Memory(std::size_t size) : size_(size) {
    check(cudaMalloc(&data_, size ? size : 1), "cudaMalloc");
    check(cudaMemset(data_, 0xff, size), "cudaMemset");
  }
  Memory(unsigned char const* bytes, std::size_t size) : Memory(size) {
    check(cudaMemcpy(data_, bytes, size, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Memory(Memory const&) = delete;
  Memory& operator=(Memory const&) = delete;
  ~Memory() { cudaFree(data_); }

  void* data() const { return data_; }
  void read(unsigned char* bytes) const {
    check(cudaMemcpy(bytes, data_, size_, cudaMemcpyDeviceToHost), "the kernel");
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

enum class Type { f64, f32, f16, bf16, e4m3, e5m2, i64, i32, i8, u8 };

/// The value of a float with the given bits of exponent and fraction. Without infinities, all ones are NaN.
inline double small_float(std::uint32_t bits, int exponent_bits, int fraction_bits, bool infinities) {
  int const exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  int const fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  int const bias = (1 << (exponent_bits - 1)) - 1;
  double const sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    if (infinities) return fraction ? NAN : sign * INFINITY;
    if (fraction == (1 << fraction_bits) - 1) return NAN;
  }
  double const value = exponent ? std::ldexp(1.0 + std::ldexp(fraction, -fraction_bits), exponent - bias)
                                : std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * value;
}

template <class T>
T loaded(unsigned char const* bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes + at * sizeof(T), sizeof(T));
  return value;
}

inline double number(Type type, unsigned char const* bytes, std::size_t at) {
  switch (type) {
    case Type::f64: return loaded<double>(bytes, at);
    case Type::f32: return loaded<float>(bytes, at);
    case Type::f16: return small_float(loaded<std::uint16_t>(bytes, at), 5, 10, true);
    case Type::bf16: return small_float(loaded<std::uint16_t>(bytes, at), 8, 7, true);
    case Type::e4m3: return small_float(bytes[at], 4, 3, false);
    case Type::e5m2: return small_float(bytes[at], 5, 2, true);
    case Type::i64: return static_cast<double>(loaded<std::int64_t>(bytes, at));
    case Type::i32: return loaded<std::int32_t>(bytes, at);
    case Type::i8: return loaded<std::int8_t>(bytes, at);
    default: return bytes[at];
  }
}

/// Whether ||result - exact|| <= tolerance * ||exact||.
inline bool agrees(char const* name, Type type, unsigned char const* result, Type exact_type,
                   unsigned char const* exact, std::size_t elements, double tolerance) {
  double difference = 0, norm = 0;
  for (std::size_t at = 0; at < elements; ++at) {
    double const wanted = number(exact_type, exact, at), apart = number(type, result, at) - wanted;
    difference += apart * apart;
    norm += wanted * wanted;
  }
  double const error = std::sqrt(difference / (norm > 0 ? norm : 1));
  std::printf("  %s: relative error %.3g, at most %.3g\n", name, error, tolerance);
  return error <= tolerance;
}

}  // namespace example

#endif  // EVT_EXAMPLE_HPP
