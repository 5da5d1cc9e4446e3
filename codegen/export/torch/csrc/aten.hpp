// Tensors of ATen, for releases of PyTorch without a stable interface that suffices, and for packages of models.
#ifndef EVT_TORCH_ATEN_HPP
#define EVT_TORCH_ATEN_HPP

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace evt_torch {

using at::ScalarType;
using at::Tensor;
using types = at::ScalarType;  // the types by their names
using c10::DeviceGuard;
using Number = c10::Scalar;
template <class Int>
using Span = c10::ArrayRef<Int>;

template <class... Parts>
std::string text(Parts const&... parts) {
  return c10::str(parts...);
}

[[noreturn]] inline void fail(std::string const& message) { C10_THROW_ERROR(Error, message); }

inline std::string name_of(ScalarType type) {
  static std::map<ScalarType, char const*> const names{
      {at::kDouble, "float64"},  {at::kFloat, "float32"},          {at::kHalf, "float16"}, {at::kBFloat16, "bfloat16"},
      {at::kLong, "int64"},      {at::kInt, "int32"},              {at::kShort, "int16"},  {at::kChar, "int8"},
      {at::kByte, "uint8"},      {at::kBool, "bool"},              {at::kFloat8_e4m3fn, "float8_e4m3fn"},
      {at::kFloat8_e5m2, "float8_e5m2"}};
  auto const found = names.find(type);
  return std::string("torch.") + (found == names.end() ? c10::toString(type) : found->second);
}

inline bool is_dense(Tensor const& tensor) { return tensor.layout() == at::kStrided; }

/// Whether PyTorch regards the strides of an image as channels_last.
inline bool is_channels_last(Tensor const& image) {
  return image.suggest_memory_format() != at::MemoryFormat::Contiguous;
}

/// Packed memory on a tensor's device; sizes may be symbols.
template <class Int>
Tensor empty(std::vector<Int> const& shape, ScalarType dtype, Tensor const& like) {
  std::vector<c10::SymInt> sizes;
  for (Int const& size : shape) sizes.push_back(c10::SymInt(size));
  return at::empty_symint(sizes, like.options().dtype(dtype));
}

}  // namespace evt_torch

#endif  // EVT_TORCH_ATEN_HPP
