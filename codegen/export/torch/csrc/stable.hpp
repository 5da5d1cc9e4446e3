// Tensors by PyTorch's stable interface, which later releases keep. A view is sizes and strides until PyTorch gets it.
#ifndef EVT_TORCH_STABLE_HPP
#define EVT_TORCH_STABLE_HPP

// PyTorch 2.10 has all that is used here. The headers of a later release then call nothing that is newer.
#define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 10) << 48))

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>

namespace evt_torch {

/// PyTorch's numbers of the types of elements.
enum class ScalarType : std::int32_t {};

template <class... Parts>
std::string text(Parts const&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

[[noreturn]] inline void fail(std::string const& message) { throw std::runtime_error(message); }

/// A number of a call: a whole number, or a double.
class Number {
 public:
  Number(double value) : value_(value) {}
  Number(std::int64_t value) : is_whole_(true), whole_(value) {}

  std::int64_t toLong() const { return to<std::int64_t>(); }
  template <class T>
  T to() const {
    return is_whole_ ? static_cast<T>(whole_) : static_cast<T>(value_);
  }

 private:
  bool is_whole_ = false;
  std::int64_t whole_ = 0;
  double value_ = 0;
};

/// Numbers of another owner.
template <class Int>
class Span {
 public:
  Span(Int const* data, std::size_t size) : data_(data), size_(size) {}
  Span(std::vector<Int> const& from) : Span(from.data(), from.size()) {}

  Int const* begin() const { return data_; }
  Int const* end() const { return data_ + size_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Int const& operator[](std::size_t at) const { return data_[at]; }
  Int const& back() const { return data_[size_ - 1]; }
  Span slice(std::size_t from, std::size_t size) const { return {data_ + from, size}; }
  Span slice(std::size_t from) const { return slice(from, size_ - from); }
  std::vector<Int> vec() const { return {begin(), end()}; }

  friend std::ostream& operator<<(std::ostream& stream, Span span) {
    stream << '[';
    for (std::size_t at = 0; at < span.size(); ++at) stream << (at > 0 ? ", " : "") << span[at];
    return stream << ']';
  }

 private:
  Int const* data_;
  std::size_t size_;
};

struct Device {
  std::int32_t type = 0, index = 0;

  bool operator==(Device const& other) const { return type == other.type && index == other.index; }

  friend std::ostream& operator<<(std::ostream& stream, Device const& device) {
    if (device.type == aoti_torch_device_type_cpu()) return stream << "cpu";
    if (device.type == aoti_torch_device_type_meta()) return stream << "meta";
    bool const is_cuda = device.type == aoti_torch_device_type_cuda();
    return stream << (is_cuda ? "cuda:" : "a device of another kind:") << device.index;
  }
};

/// The types, by ATen's names. The PyTorch that runs gives their numbers.
namespace types {
inline ScalarType const Double{aoti_torch_dtype_float64()}, Float{aoti_torch_dtype_float32()};
inline ScalarType const Half{aoti_torch_dtype_float16()}, BFloat16{aoti_torch_dtype_bfloat16()};
inline ScalarType const Float8_e4m3fn{aoti_torch_dtype_float8_e4m3fn()}, Float8_e5m2{aoti_torch_dtype_float8_e5m2()};
inline ScalarType const Long{aoti_torch_dtype_int64()}, Int{aoti_torch_dtype_int32()}, Short{aoti_torch_dtype_int16()};
inline ScalarType const Char{aoti_torch_dtype_int8()}, Byte{aoti_torch_dtype_uint8()}, Bool{aoti_torch_dtype_bool()};
}  // namespace types

inline std::string name_of(ScalarType type) {
  static std::map<ScalarType, char const*> const names{
      {types::Double, "float64"}, {types::Float, "float32"}, {types::Half, "float16"}, {types::BFloat16, "bfloat16"},
      {types::Long, "int64"},     {types::Int, "int32"},     {types::Short, "int16"},  {types::Char, "int8"},
      {types::Byte, "uint8"},     {types::Bool, "bool"},     {types::Float8_e4m3fn, "float8_e4m3fn"},
      {types::Float8_e5m2, "float8_e5m2"}};
  auto const found = names.find(type);
  return found == names.end() ? "of another type" : std::string("torch.") + found->second;
}

/// A view of a tensor.
class Tensor {
 public:
  Tensor() = default;

  /// Take a tensor of PyTorch.
  explicit Tensor(AtenTensorHandle handle)
      : owner_(handle, [](AtenTensorOpaque* given) { aoti_torch_delete_tensor_object(given); }) {
    std::int32_t type = 0, layout = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_.type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device_.index));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(handle, &layout));
    type_ = ScalarType{type};
    is_dense_ = layout == aoti_torch_layout_strided();
    if (!is_dense_) return;
    std::int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &rank));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data_));
    sizes_.assign(sizes, sizes + rank);
    strides_.assign(strides, strides + rank);
  }

  bool defined() const { return owner_ != nullptr; }
  bool is_dense() const { return is_dense_; }
  bool is_cuda() const { return device_.type == aoti_torch_device_type_cuda(); }
  std::int32_t get_device() const { return device_.index; }
  Device device() const { return device_; }
  ScalarType scalar_type() const { return type_; }
  void* data_ptr() const { return data_; }
  std::int64_t element_size() const {
    return static_cast<std::int64_t>(aoti_torch_dtype_element_size(static_cast<std::int32_t>(type_)));
  }

  std::int64_t dim() const { return static_cast<std::int64_t>(sizes_.size()); }
  Span<std::int64_t> sizes() const { return sizes_; }
  Span<std::int64_t> strides() const { return strides_; }
  std::int64_t size(std::int64_t at) const { return sizes_[place(at)]; }
  std::int64_t stride(std::int64_t at) const { return strides_[place(at)]; }
  std::int64_t numel() const {
    std::int64_t number = 1;
    for (std::int64_t size : sizes_) number *= size;
    return number;
  }
  bool is_contiguous() const { return numel() == 0 || strides_ == packed(true); }

  Tensor movedim(std::int64_t from, std::int64_t to) const {
    Tensor moved = *this;
    for (std::vector<std::int64_t>* each : {&moved.sizes_, &moved.strides_}) {
      auto const at = each->begin() + std::ptrdiff_t(place(from));
      std::int64_t const value = *at;
      each->erase(at);
      each->insert(each->begin() + std::ptrdiff_t(place(to)), value);
    }
    return moved;
  }

  Tensor unsqueeze(std::int64_t at) const {
    Tensor longer = *this;
    std::int64_t const stride = at < dim() ? size(at) * this->stride(at) : 1;
    longer.sizes_.insert(longer.sizes_.begin() + at, 1);
    longer.strides_.insert(longer.strides_.begin() + at, stride);
    return longer;
  }

  /// The view of a shape that fits. Further dimensions, and dimensions of one element that become longer, get a stride of 0.
  Tensor expand(std::vector<std::int64_t> const& shape) const {
    Tensor wide = *this;
    std::size_t const added = shape.size() - sizes_.size();
    wide.sizes_ = shape;
    wide.strides_.insert(wide.strides_.begin(), added, 0);
    for (std::size_t at = added; at < shape.size(); ++at) {
      if (shape[at] != sizes_[at - added]) wide.strides_[at] = 0;
    }
    return wide;
  }

  Tensor contiguous() const {
    if (is_contiguous()) return *this;
    Tensor const made = empty(sizes_, type_, *this), view(viewed());
    TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(made.owner_.get(), view.owner_.get(), 0));
    return made;
  }

  /// Packed memory on a tensor's device.
  static Tensor empty(std::vector<std::int64_t> const& shape, ScalarType dtype, Tensor const& like) {
    Tensor planned;
    planned.sizes_ = shape;
    std::vector<std::int64_t> const strides = planned.packed(false);
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(planned.dim(), shape.data(), strides.data(),
                                                    static_cast<std::int32_t>(dtype), like.device_.type,
                                                    like.device_.index, &made));
    return Tensor(made);
  }

  /// A new tensor of PyTorch that is this view.
  AtenTensorHandle viewed() const {
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_as_strided(owner_.get(), sizes_.data(), strides_.data(), &made));
    return made;
  }

 private:
  std::size_t place(std::int64_t at) const { return static_cast<std::size_t>(at < 0 ? at + dim() : at); }

  /// The strides of packed elements. `kept`: dimensions of one element keep their strides.
  std::vector<std::int64_t> packed(bool kept) const {
    std::vector<std::int64_t> strides(sizes_.size());
    std::int64_t step = 1;
    for (std::size_t at = sizes_.size(); at-- > 0;) {
      strides[at] = kept && sizes_[at] == 1 ? strides_[at] : step;
      step *= sizes_[at] > 1 ? sizes_[at] : 1;
    }
    return strides;
  }

  std::shared_ptr<AtenTensorOpaque> owner_;
  std::vector<std::int64_t> sizes_, strides_;
  void* data_ = nullptr;
  ScalarType type_{};
  Device device_;
  bool is_dense_ = true;
};

inline Tensor empty(std::vector<std::int64_t> const& shape, ScalarType dtype, Tensor const& like) {
  return Tensor::empty(shape, dtype, like);
}

inline bool is_dense(Tensor const& tensor) { return tensor.is_dense(); }

/// Whether PyTorch regards the strides of an image of two or three dimensions as channels_last: from the channels over the
/// columns and rows to the batch, no stride is less than the extent before it. An ambiguous image is not.
inline bool is_channels_last(Tensor const& image) {
  if (image.stride(1) == 0) return false;
  std::int64_t least = 0;
  for (std::int64_t number = 0; number < image.dim(); ++number) {  // channels, columns, rows, ..., images
    std::int64_t const at = number == 0 ? 1 : number + 1 < image.dim() ? image.dim() - number : 0;
    std::int64_t const size = image.size(at), stride = image.stride(at);
    if (size == 0 || stride < least || (at == 0 && least == image.stride(1))) return false;
    least = size > 1 ? stride * size : stride;
  }
  return true;
}

/// Makes a tensor's GPU the current one.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) {
    if (device.type != aoti_torch_device_type_cuda()) return;
    DeviceGuardHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_create_device_guard(device.index, &made));
    guard_ = {made, [](DeviceGuardOpaque* given) { aoti_torch_delete_device_guard(given); }};
  }

 private:
  std::shared_ptr<DeviceGuardOpaque> guard_;
};

}  // namespace evt_torch

#endif  // EVT_TORCH_STABLE_HPP
