// The call of an exported program: checks, the choice of a kernel, and the launch. Every extension has the same file.
#ifndef EVT_TORCH_CALL_HPP
#define EVT_TORCH_CALL_HPP

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <dlfcn.h>

#include <cuda_runtime_api.h>

#include "memory.hpp"
#include "program.hpp"

namespace evt_torch {

/// PyTorch's current stream, a cudaStream_t. The function is looked up in libtorch_cuda if it is loaded. The extension
/// does not link that library, so it builds and imports beside a PyTorch without it.
inline void* current_stream(Tensor const& tensor) {
  using Ask = std::int32_t (*)(std::int32_t, void**);  // PyTorch's C interface, torch/csrc/inductor/aoti_torch/c/shim.h
  static Ask const ask = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<Ask>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  if (!tensor.is_cuda()) return nullptr;
  void* stream = nullptr;
  if (ask == nullptr) fail("this PyTorch has no aoti_torch_get_current_cuda_stream: PyTorch 2.6 or newer is needed");
  if (ask(static_cast<std::int32_t>(tensor.get_device()), &stream) != 0) fail("PyTorch has no current CUDA stream");
  return stream;
}

/// The compute capability of a GPU, as 90 for 9.0.
inline int capability_of(Tensor const& tensor) {
  int major = 0, minor = 0;
  int const at = std::max(static_cast<int>(tensor.get_device()), 0);
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, at);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, at);
  if (error != cudaSuccess) fail(text("there is no usable CUDA device: ", cudaGetErrorString(error), " (evt E0801)"));
  return major * 10 + minor;
}

/// The arguments of a call by the positions of the program's values: a tensor, a number, or neither.
struct Given {
  std::vector<Tensor> tensors;
  std::vector<std::optional<Number>> numbers;

  explicit Given(Program const& program) : tensors(program.values.size()), numbers(program.values.size()) {}

  Tensor const& a() const { return tensors[0]; }
  Tensor const& b() const { return tensors[1]; }
  bool has(std::size_t at) const { return tensors[at].defined(); }
};

/// Take a number as the argument at a position.
inline void take(Program const& program, Given& given, std::size_t at, Number number) {
  Value const& value = program.values[at];
  given.numbers[at] = number;
  if (value.least == value.most) return;
  std::int64_t const whole = number.toLong();
  EVT_CHECK(value.least <= whole && whole <= value.most, program, "E0607", "`", value.name, "` is ", whole,
            "; expected a whole number from ", value.least, " to ", value.most);
}

/// Take a tensor, of the right type and device, as the argument at a position.
inline void take(Program const& program, Given& given, std::size_t at, Tensor tensor) {
  Value const& value = program.values[at];
  EVT_CHECK(tensor.scalar_type() == value.dtype, program, "E0603", "`", value.name, "` is ",
            name_of(tensor.scalar_type()), "; expected ", name_of(value.dtype));
  given.tensors[at] = std::move(tensor);
  Tensor const& taken = given.tensors[at];
  EVT_CHECK(taken.device() == given.a().device(), program, "E0605", "`", value.name, "` is on ", taken.device(),
            ", A is on ", given.a().device());
  EVT_CHECK(is_dense(taken), program, "E0612", "`", value.name, "` is not dense");
}

/// The allowed shape of an input that a tensor has. Throws if it has none.
template <class Int>
Groups<Int> shape_of(Program const& program, Shapes<Int> const& shapes, Value const& value, Span<Int> sizes) {
  auto const known = input_shapes(shapes, value, sizes);
  for (auto const& groups : known) {
    if (has_shape(sizes, groups)) return groups;
  }
  EVT_REFUSE(program, "E0604", "`", value.name, "` has shape ", sizes, "; expected ",
            Span<Int>(flattened(known[0])));
}

/// Whether a tensor is a single value that stands for a vector, or a scalar.
template <class Int>
bool is_single(Program const& program, Value const& value, Span<Int> sizes) {
  Int elements = 1;
  for (Int const& size : sizes) elements = elements * size;
  if (value.kind == Kind::number && value.modes.empty()) {
    EVT_CHECK(elements == 1, program, "E0604", "`", value.name, "` has shape ", sizes,
              ", and the program declares a scalar");
    return true;
  }
  return value.kind == Kind::flexible && elements == 1;
}

/// [N, ..., C] of [N, C, ...]; any other shape is unchanged.
template <class Int>
std::vector<Int> channels_moved(Program const& program, Value const& value, Span<Int> sizes) {
  std::vector<Int> found = sizes.vec();
  if (value.image && sizes.size() == program.geometry.rank() + 2) {
    std::rotate(found.begin() + 1, found.begin() + 2, found.end());
  }
  return found;
}

/// Packed memory for an output; an image is channels last.
template <class Int>
Tensor allocate(Program const& program, Shapes<Int> const& shapes, Value const& value, Tensor const& like) {
  Tensor const made = empty(output_shape(shapes, value), value.dtype, like);
  return value.image && program.is_convolution() ? made.movedim(-1, 1) : made;
}

/// Whether PyTorch's convolution of A and B is channels_last: if one of them is, or for a wgrad if x is.
inline bool follows_channels_last(Program const& program, Given const& given) {
  bool const wgrad = program.geometry.kind == Convolution::wgrad;
  auto const is_last = [&](Tensor const& tensor) {
    return is_channels_last(program.geometry.rank() == 1 ? tensor.unsqueeze(2) : tensor);
  };
  if (program.geometry.rank() > 1) return is_last(wgrad ? given.b() : given.a()) || is_last(given.b());
  Tensor const& first = wgrad ? given.b() : given.a();
  return (first.is_contiguous() && is_last(first)) || (!wgrad && is_last(given.b()));
}

/// The returned form of an output: an image in contiguous memory if PyTorch would return it so.
inline Tensor returned(Program const& program, Value const& value, Given const& given, Tensor const& made) {
  bool const copied = value.image && program.is_convolution() && !follows_channels_last(program, given);
  return copied ? made.contiguous() : made;
}

/// A call with its tensors as kernels see them.
struct Call {
  Program const& program;
  Given given;
  Shapes<std::int64_t> shapes;
  std::map<std::size_t, Argument> arguments;  // by the positions of values
  std::array<std::int64_t, static_cast<std::size_t>(Size::count)> sizes{};
  std::int64_t operand_bytes = 0;

  std::int64_t& size(Size which) { return sizes[static_cast<std::size_t>(which)]; }
};

inline void set_sizes(Call& call) {
  auto const& shapes = call.shapes;
  call.size(Size::m) = product(shapes.m);
  call.size(Size::n) = product(shapes.n);
  call.size(Size::k) = shapes.k;
  call.size(Size::l) = product(shapes.l);
  for (Size each : {Size::m, Size::n, Size::k, Size::l}) {
    EVT_CHECK(call.size(each) <= kLimit, call.program, "E0604", "an extent is ", call.size(each), "; at most ", kLimit,
              " is supported");
  }
  Geometry const& geometry = call.program.geometry;
  if (!call.program.is_convolution()) return;
  bool const wgrad = geometry.kind == Convolution::wgrad;
  call.size(Size::images) = shapes.images;
  call.size(Size::channels) = shapes.channels;
  call.size(Size::filters) = shapes.filters;
  call.size(Size::groups) = 1;
  call.size(Size::contraction) = wgrad ? shapes.k : product(shapes.filter) * shapes.k;
  for (int dimension = 0; dimension < 3; ++dimension) {  // depth, height, width: the same seven sizes of each
    int const at = dimension - 3 + static_cast<int>(geometry.rank());
    auto const set = [&](int offset, std::int64_t present, std::int64_t absent) {
      int const which = static_cast<int>(Size::depth) + 7 * dimension + offset;
      call.sizes[static_cast<std::size_t>(which)] = at < 0 ? absent : present;
    };
    std::size_t const from = at < 0 ? 0 : static_cast<std::size_t>(at);
    set(0, shapes.pixels[from], 1);
    set(1, shapes.filter[from], 1);
    set(2, shapes.results[from], 1);
    set(3, shapes.pads[from].first, 0);
    set(4, shapes.pads[from].second, 0);
    set(5, geometry.stride[from], 1);
    set(6, geometry.dilation[from], 1);
  }
}

/// A or B of a matrix product.
inline Argument matrix_operand(Program const& program, Shapes<std::int64_t> const& shapes, Value const& value,
                               Tensor const& tensor) {
  Groups<std::int64_t> groups;
  std::size_t inner = 0;
  for (Mode const& mode : value.modes) inner += shapes.lead(mode.base).size();
  bool const batched = static_cast<std::size_t>(tensor.dim()) > inner;
  groups.push_back({'l', batched ? shapes.l : std::vector<std::int64_t>{}});
  for (Mode const& mode : value.modes) groups.push_back({mode.base, shapes.lead(mode.base)});
  Argument made = argument_of(program, value, tensor, groups);
  made.extents['l'] = product(shapes.l);
  return made;
}

inline Call call_of(Program const& program, Given given) {
  Shapes<std::int64_t> const shapes = shapes_of<std::int64_t>(program, given.a().sizes(), given.b().sizes());
  Call call{program, std::move(given), shapes, {}, {}, 0};
  set_sizes(call);
  for (std::size_t at = 0; at < program.values.size(); ++at) {
    Value const& value = program.values[at];
    if (!call.given.has(at)) continue;
    Tensor tensor = call.given.tensors[at];
    if (value.kind == Kind::operand) {
      call.arguments[at] = program.is_convolution() ? image_operand(program, value, tensor)
                                                    : matrix_operand(program, shapes, value, tensor);
      call.operand_bytes = std::max(call.operand_bytes, span_of(call.arguments[at].tensor));
      continue;
    }
    if (is_single<std::int64_t>(program, value, tensor.sizes())) {
      call.arguments[at].tensor = tensor;
      continue;
    }
    if (value.image && tensor.dim() == static_cast<std::int64_t>(program.geometry.rank()) + 2) {
      auto const sizes = channels_moved<std::int64_t>(program, value, tensor.sizes());
      shape_of<std::int64_t>(program, shapes, value, sizes);
      tensor = epilogue_image(tensor, shapes.m.size());
    }
    call.arguments[at] =
        argument_of(program, value, tensor, shape_of<std::int64_t>(program, shapes, value, tensor.sizes()));
    if (call.size(Size::l) > 1) call.arguments[at].extents['l'] = call.size(Size::l);
  }
  return call;
}

/// Whether TMA's im2col mode reaches all taps: the corners of the box of taps and its extent have 8 bits each in two
/// dimensions and 5 in three (CUDA driver API, cuTensorMapEncodeIm2col).
inline bool fits_im2col(Call const& call) {
  Geometry const& geometry = call.program.geometry;
  std::int64_t const corner = geometry.rank() < 3 ? 128 : 16;
  for (std::size_t at = 0; at < geometry.rank(); ++at) {
    auto const [before, after] = call.shapes.pads[at];
    std::int64_t const reach = geometry.dilation[at] * (call.shapes.filter[at] - 1);
    for (std::int64_t each : {before, after, std::abs(before - reach), std::abs(after - reach)}) {
      if (each >= corner) return false;
    }
    if (geometry.stride[at] > 8 || reach >= 2 * corner - 1) return false;
  }
  return true;
}

/// The reason a kernel does not serve a call, or "". `capability` is the GPU's.
inline std::string why_not(Kernel const& kernel, Call& call, int capability) {
  auto const& values = call.program.values;
  if (std::find(kernel.capabilities.begin(), kernel.capabilities.end(), capability) == kernel.capabilities.end()) {
    return "it is for another GPU";
  }
  for (std::size_t at = 0; at < values.size(); ++at) {
    bool const absent = std::find(kernel.absent.begin(), kernel.absent.end(), at) != kernel.absent.end();
    bool const optional = values[at].kind == Kind::tensor && values[at].fallback.has_value();
    if (optional && absent == call.given.has(at)) {
      return std::string("it is for calls ") + (absent ? "without `" : "with `") + values[at].name + "`";
    }
  }
  for (Layout const& need : kernel.layouts) {
    auto const found = call.arguments.find(need.value);
    if (found == call.arguments.end() || (found->second.extents.empty() && found->second.channels == 0)) continue;
    if (std::string reason = why_not(need, values[need.value], found->second); !reason.empty()) return reason;
  }
  if (kernel.most_batches > 0 && call.size(Size::l) > kernel.most_batches) {
    return "it takes at most " + std::to_string(kernel.most_batches) + " batches";
  }
  if (kernel.limits.operands_below_2_gib && call.operand_bytes >= std::int64_t{1} << 31) {
    return "A or B has 2 GiB or more";
  }
  auto const& filter = call.shapes.filter;
  bool const large = std::any_of(filter.begin(), filter.end(), [](std::int64_t taps) { return taps > 32; });
  if (kernel.limits.filters_up_to_32 && large) return "the filters have more than 32 taps along a dimension";
  if (kernel.limits.im2col && !fits_im2col(call)) return "TMA does not reach all taps of the filters";
  return "";
}

/// The first kernel that takes the call; the best come first. Throws the reasons if none does.
inline Kernel const& choose(Call& call, int capability) {
  std::ostringstream reasons;
  for (Kernel const& kernel : call.program.kernels) {
    std::string const reason = why_not(kernel, call, capability);
    if (reason.empty()) return kernel;
    reasons << "\n  " << kernel.name << ": " << reason;
  }
  EVT_REFUSE(call.program, "E0606", "no kernel of this extension takes these tensors on a GPU of capability ",
            capability / 10, ".", capability % 10, reasons.str(), "\n");
}

/// One argument of a kernel: eight bytes.
inline std::uint64_t word_of(Member const& member, Call& call, void* workspace) {
  auto const bits = [](auto number) {
    static_assert(sizeof(number) == 8);
    std::uint64_t word;
    std::memcpy(&word, &number, 8);
    return word;
  };
  auto const found = call.arguments.find(member.value);
  switch (member.kind) {
    case Member::Kind::pointer:
      return found == call.arguments.end() ? 0 : bits(found->second.tensor.data_ptr());
    case Member::Kind::workspace: return bits(workspace);
    case Member::Kind::size: return bits(call.sizes[static_cast<std::size_t>(member.index)]);
    case Member::Kind::stride:
      return found == call.arguments.end() ? 0 : bits(found->second.steps[static_cast<std::size_t>(member.index)]);
    default: break;
  }
  auto const& own = call.given.numbers[member.value];
  auto const& fallback = call.program.values[member.value].fallback;
  Number const number = own ? *own : fallback ? *fallback : Number(std::int64_t{0});
  return member.kind == Member::Kind::integer ? bits(number.to<std::int64_t>()) : bits(number.to<double>());
}

/// The page of `evt explain` about a kernel's failure. The upper half of the code has its kind.
inline char const* page_of(int code) {
  switch (code >> 16) {
    case 2: return "E0804";
    case 3: return "E0801";
    case 4: return "E0802";
    case 5: return "E0805";
    default: return "E0803";
  }
}

/// Run a program on tensors of the device.
inline std::vector<Tensor> run(Program const& program, Given given) {
  DeviceGuard const guard(given.a().device());
  Call call = call_of(program, std::move(given));
  std::vector<Tensor> results;
  bool has_results = false;
  for (std::size_t at = 0; at < program.values.size(); ++at) {
    Value const& value = program.values[at];
    if (value.kind != Kind::output) continue;
    Tensor const made = allocate(program, call.shapes, value, call.given.a());
    has_results |= made.numel() > 0;
    results.push_back(made);
    bool const image = value.image && program.is_convolution();
    Groups<std::int64_t> groups;
    for (Mode const& mode : value.modes) groups.push_back({mode.base, dims_of(call.shapes, mode)});
    if (value.bits) groups.back().second.back() = (groups.back().second.back() + 7) / 8;
    call.arguments[at] = argument_of(program, value, image ? made.movedim(1, -1) : made, groups);
    bool const has_layout = !value.modes.empty() && value.modes.back().base != 'l';
    if (!has_layout) call.arguments[at].extents.clear();
  }
  bool is_empty = false;
  for (Size each : {Size::m, Size::n, Size::k, Size::l}) is_empty |= call.size(each) == 0;
  if (is_empty) {
    EVT_CHECK(!has_results, program, "E0604", "the product is empty, and its results are not: m is ",
              call.size(Size::m), ", n ", call.size(Size::n), ", k ", call.size(Size::k));
    return results;
  }
  Kernel const& kernel = choose(call, capability_of(call.given.a()));
  for (Layout const& need : kernel.layouts) {
    auto const found = call.arguments.find(need.value);
    if (found != call.arguments.end() && found->second.extents.count(need.contiguous)) {
      make_legal(found->second, need.contiguous);
    }
  }
  std::vector<std::uint64_t> words;
  for (Member const& member : kernel.members) words.push_back(word_of(member, call, nullptr));
  std::int64_t const bytes = kernel.workspace(words.data());
  Tensor memory;  // the allocator keeps it for the stream until the kernel is done
  if (bytes > 0) memory = empty(std::vector<std::int64_t>{bytes}, types::Byte, call.given.a());
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (bytes > 0 && kernel.members[at].kind == Member::Kind::workspace) {
      words[at] = word_of(kernel.members[at], call, memory.data_ptr());
    }
  }
  int const code = kernel.run(words.data(), words.size() * 8, current_stream(call.given.a()));
  if (code != 0) {
    fail(text(program.name, ": ", kernel.error_string(code), " (evt ", page_of(code), ", kernel ", kernel.name, ")"));
  }
  std::size_t next = 0;
  for (Value const& value : program.values) {
    if (value.kind != Kind::output) continue;
    results[next] = returned(program, value, call.given, results[next]);
    ++next;
  }
  return results;
}

/// Refuse a tensor of a device without kernels.
[[noreturn]] inline void refuse(Program const& program, Tensor const& a) {
  EVT_REFUSE(program, "E0605", "the kernels need CUDA tensors, and `A` is on ", a.device());
}

}  // namespace evt_torch

#endif  // EVT_TORCH_CALL_HPP
