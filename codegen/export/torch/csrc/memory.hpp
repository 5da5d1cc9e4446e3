// Tensors as kernels see them: the stride of each mode, and whether a kernel takes the tensor without a copy.
#ifndef EVT_TORCH_MEMORY_HPP
#define EVT_TORCH_MEMORY_HPP

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>

#include "program.hpp"

namespace evt_torch {

inline constexpr std::size_t index(Step step) { return static_cast<std::size_t>(step); }

inline Step step_of(char mode) {
  switch (mode) {
    case 'l': return Step::l;
    case 'm': return Step::m;
    case 'n': return Step::n;
    default: return Step::k;
  }
}

/// A tensor in a call: its strides and its extents by mode; an image of a convolution is a view [N, ..., C].
struct Argument {
  Tensor tensor;
  std::array<std::int64_t, static_cast<std::size_t>(Step::count)> steps{};
  std::map<char, std::int64_t> extents;  // of the modes in memory, the batch's included
  std::int64_t channels = 0;             // of a convolution's operand, which has no modes here
  std::vector<std::int64_t> wide;        // the strides of its dimensions with more than one element
};

/// The single stride that walks the dimensions, the last running fastest; nothing if there is none.
inline std::optional<std::int64_t> single_stride(Span<std::int64_t> sizes, Span<std::int64_t> strides) {
  std::int64_t stride = 0, reach = 0;
  bool first = true;
  for (std::size_t at = sizes.size(); at-- > 0;) {
    if (sizes[at] == 1) continue;
    if (first) stride = strides[at];
    else if (strides[at] != reach) return std::nullopt;
    first = false;
    reach = strides[at] * sizes[at];
  }
  return stride;
}

/// A tensor of the given shape as a kernel sees it. Throws if a mode has no single stride.
inline Argument argument_of(Program const& program, Value const& value, Tensor const& given,
                            Groups<std::int64_t> const& groups) {
  Argument result;
  result.tensor = given.expand(flattened(groups));
  std::size_t at = 0;
  for (auto const& [mode, dims] : groups) {
    auto const stride = single_stride(dims, result.tensor.strides().slice(at, dims.size()));
    EVT_CHECK(stride.has_value(), program, "E0606", "the leading dimensions of `", value.name,
              "` have no single stride; pass ", value.name, ".contiguous()");
    result.steps[index(step_of(mode))] = *stride;
    result.extents[mode] = product(dims);
    at += dims.size();
  }
  for (Mode const& mode : value.modes) {
    if (mode.indexed) {
      result.steps[index(mode.base == 'm' ? Step::extent_m : Step::extent_n)] = result.extents.at(mode.base);
    }
  }
  return result;
}

/// Give modes of one element strides that TMA takes, once it is known which mode is contiguous.
inline void make_legal(Argument& argument, char contiguous) {
  for (auto const& [mode, extent] : argument.extents) {
    std::int64_t& step = argument.steps[index(step_of(mode))];
    if (mode == 'l') {
      if (extent <= 1) step = 0;
    } else if (extent <= 1 && mode != contiguous) {
      step = (argument.extents.at(contiguous) + 15) / 16 * 16;
    }
  }
}

/// A or B of a convolution, a view [N, ..., C], copied if its channels are not contiguous. CUTLASS's iterators walk the
/// taps of a filter, and the pixels of A in wgrad, with the stride of the innermost dimension.
inline Argument image_operand(Program const& program, Value const& value, Tensor const& given) {
  bool const wgrad = program.geometry.kind == Convolution::wgrad;
  bool const weight = value.name[0] == 'B' && !wgrad;
  Tensor view = given.movedim(1, -1);
  std::int64_t const rank = view.dim() - 2;
  auto const walked = [&](std::int64_t from) {
    return single_stride(view.sizes().slice(from, rank + 1 - from), view.strides().slice(from, rank + 1 - from));
  };
  auto const readable = [&] {
    for (std::int64_t at = 0; at < view.dim(); ++at) {
      bool const last = at + 1 == view.dim();
      if (view.size(at) > 1 && (last ? view.stride(at) != 1 : view.stride(at) <= 0)) return false;
    }
    bool const as_one = weight || (wgrad && value.name[0] == 'A');
    return !as_one || walked(weight ? 1 : 0).has_value();
  };
  if (!readable()) view = view.contiguous();  // to channels last
  Argument result;
  result.tensor = view;
  result.channels = view.size(-1);
  std::vector<Step> names{Step::outer};
  for (std::int64_t at = 3 - rank; at < 3; ++at) {
    names.push_back(static_cast<Step>(static_cast<int>(Step::depth) + static_cast<int>(at)));
  }
  // A dimension of one element gets the stride that merges it with its neighbours.
  std::int64_t step = result.channels;
  for (std::int64_t at = 0; at <= rank; ++at) step = view.size(at) > 1 ? view.stride(at) : step;
  for (std::int64_t at = rank; at >= 0; --at) {
    std::int64_t const stride = view.size(at) > 1 ? view.stride(at) : step;
    if (view.size(at) > 1) result.wide.push_back(stride);
    EVT_CHECK(stride <= kLimit, program, "E0606", "`", value.name, "` has a stride beyond ", kLimit);
    result.steps[index(names[at])] = stride;
    step = stride * view.size(at);
  }
  if (rank == 1) result.steps[index(Step::height)] = result.steps[index(Step::width)] * view.size(1);
  auto const pitch = walked(0);
  std::int64_t const pixel = weight ? 1 : !pitch ? 0 : *pitch == 0 ? result.channels : *pitch;
  result.steps[index(Step::pixel)] = pixel;
  // Filters are a matrix of filters and taps; activations are a matrix of pixels and channels.
  result.steps[index(step_of(value.modes[0].base))] = weight ? result.steps[index(Step::outer)] : pixel;
  result.steps[index(step_of(value.modes[1].base))] = 1;
  return result;
}

/// An image that the epilogue reads: its view [N, ..., C], or a copy if its rows or columns have no single stride.
inline Tensor epilogue_image(Tensor const& given, std::size_t rows) {
  Tensor const view = given.movedim(1, -1);
  auto const sizes = view.sizes(), strides = view.strides();
  auto const row = single_stride(sizes.slice(0, rows), strides.slice(0, rows));
  auto const column = single_stride(sizes.slice(rows), strides.slice(rows));
  bool expanded = false;
  for (std::size_t at = 0; at < sizes.size(); ++at) expanded |= sizes[at] > 1 && strides[at] == 0;
  std::int64_t columns = 1;
  for (std::int64_t size : sizes.slice(rows)) columns *= size;
  return row && column && (columns == 1 || *column == 1) && !expanded ? view : view.contiguous();
}

/// The bytes from the first element of a tensor to the last.
inline std::int64_t span_of(Tensor const& tensor) {
  std::int64_t last = 0;
  for (std::int64_t at = 0; at < tensor.dim(); ++at) last += (tensor.size(at) - 1) * tensor.stride(at);
  return (last + 1) * tensor.element_size();
}

/// The reason a kernel does not take a tensor, or "".
inline std::string why_not(Layout const& need, Value const& value, Argument const& given) {
  std::int64_t const bytes = given.tensor.element_size();
  std::int64_t const address = reinterpret_cast<std::intptr_t>(given.tensor.data_ptr());
  auto const whole = [&](std::int64_t number) { return number % need.alignment == 0; };
  bool aligned = address % (need.alignment * bytes) == 0;
  std::string const name = std::string("`") + value.name + "`";
  if (given.channels > 0) {
    aligned = aligned && whole(given.channels) && std::all_of(given.wide.begin(), given.wide.end(), whole);
    return aligned ? "" : name + " has to be aligned to " + std::to_string(need.alignment * bytes) +
                              " bytes, its channels and strides multiples of " + std::to_string(need.alignment);
  }
  bool const batched = given.extents.count('l') && given.extents.at('l') > 1;
  std::int64_t const batch = given.steps[index(Step::l)];
  if (batched && need.batch == Batch::strided && batch == 0) return "all batches share " + name;
  if (batched && need.batch == Batch::shared && batch != 0) return "every batch has its own " + name;
  char const inner = need.contiguous;
  if (value.has_own_columns()) {
    return given.extents.at('n') <= 1 || given.steps[index(Step::n)] == 1 ? ""
                                                                          : "the columns of " + name + " have gaps";
  }
  if (given.extents.at(inner) > 1 && given.steps[index(step_of(inner))] != 1) {
    return std::string(1, inner) + " has to be contiguous in " + name;
  }
  aligned = aligned && whole(given.extents.at(inner)) && (!batched || whole(batch));
  for (auto const& [mode, extent] : given.extents) {
    if (mode == inner || mode == 'l' || extent <= 1) continue;
    std::int64_t const stride = given.steps[index(step_of(mode))];
    if (stride == 0) return name + " is expanded";
    aligned = aligned && whole(stride);
  }
  if (aligned) return "";
  return name + " has to be aligned to " + std::to_string(need.alignment * bytes) + " bytes, its strides and " + inner +
         " multiples of " + std::to_string(need.alignment);
}

}  // namespace evt_torch

#endif  // EVT_TORCH_MEMORY_HPP
