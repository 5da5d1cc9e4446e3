// An exported program as tables, and the shapes of its values. Every extension has the same file. Tensors come from
// aten.hpp or stable.hpp.
#ifndef EVT_TORCH_PROGRAM_HPP
#define EVT_TORCH_PROGRAM_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor.hpp"

namespace evt_torch {

/// The sizes that a call passes to a kernel. Settings of the scheduler are `zero`: the kernel decides.
enum class Size {
  m, n, k, l, contraction, images, channels, filters, groups,
  depth, filter_depth, output_depth, pad_depth, upper_pad_depth, stride_depth, dilation_depth,
  height, filter_height, output_height, pad_height, upper_pad_height, stride_height, dilation_height,
  width, filter_width, output_width, pad_width, upper_pad_width, stride_width, dilation_width,
  zero, count
};

/// The stride of each mode of a tensor, and the extents of modes that an index addresses.
enum class Step { l, m, n, k, outer, depth, height, width, pixel, extent_m, extent_n, count };

/// A mode of a tensor: l, m, n or k; a divided one; or one of any extent that an index addresses.
struct Mode {
  char base;
  std::int64_t divisor = 1;
  bool indexed = false;
};

enum class Kind { operand, tensor, flexible, number, output };

/// An operand, input or output. `image`: a convolution's, shaped [N, C, ...]. `bits`: eight columns in a byte.
struct Value {
  char const* name;
  ScalarType dtype;
  Kind kind;
  std::vector<Mode> modes;
  bool batchable = false;
  bool bits = false;
  bool image = false;
  std::optional<Number> fallback = std::nullopt;
  std::int64_t least = 0, most = 0;  // of an integer

  /// Whether its columns are bits, or fewer than the columns of the accumulator.
  bool has_own_columns() const {
    for (Mode const& mode : modes) {
      if (mode.divisor != 1) return true;
    }
    return bits;
  }
};

enum class Batch { any, strided, shared };

/// A kernel's requirements for a tensor: its contiguous mode, the elements of an access, and whether batches share it.
struct Layout {
  std::size_t value;
  char contiguous;
  std::int64_t alignment;
  Batch batch;
};

/// A member of a kernel's arguments, 8 bytes. `index` is a Step of the value, or a Size.
struct Member {
  enum class Kind { pointer, workspace, number, integer, stride, size } kind;
  std::size_t value = 0;
  int index = 0;
};

/// A compiled kernel. `capabilities`: the GPUs that run it. `absent`: the values that it does not read. `limits`: the
/// bounds of a convolution's problems.
struct Kernel {
  char const* name;
  std::vector<int> capabilities;
  std::vector<std::size_t> absent;
  std::vector<Layout> layouts;
  std::vector<Member> members;
  std::int64_t most_batches;  // 0: any number
  struct Limits {
    bool operands_below_2_gib, filters_up_to_32, im2col;
  } limits;
  int (*run)(void const* arguments, std::size_t size, void* stream);
  std::int64_t (*workspace)(void const* arguments);
  char const* (*error_string)(int code);
};

enum class Convolution { none, fprop, dgrad, wgrad };

/// The geometry of a convolution, innermost dimension last; without `padding` it is PyTorch's "same".
struct Geometry {
  Convolution kind = Convolution::none;
  std::vector<std::int64_t> stride, dilation, output_padding, kernel_size;
  std::optional<std::vector<std::pair<std::int64_t, std::int64_t>>> padding;

  std::size_t rank() const { return stride.size(); }
};

/// Columns must be a multiple of `width`, the size of `what`.
struct Columns {
  std::int64_t width;
  char const* what;
};

/// A program. Its values are A and B, the inputs in the order of the schema, and the outputs. `linear`: the leading
/// dimensions of A are rows.
struct Program {
  char const* name;
  bool linear;
  Geometry geometry;
  std::vector<Value> values;
  std::vector<Columns> columns;
  std::vector<Kernel> kernels;

  bool is_convolution() const { return geometry.kind != Convolution::none; }
};

#define EVT_REFUSE(program, code, ...) fail(text((program).name, ": ", __VA_ARGS__, " (evt " code ")"))

#define EVT_CHECK(condition, program, code, ...) \
  do {                                           \
    if (!(condition)) EVT_REFUSE(program, code, __VA_ARGS__); \
  } while (false)

/// The largest extent and stride of an operand.
constexpr std::int64_t kLimit = (std::int64_t{1} << 31) - 1;

/// The dimensions of each mode; `k` alone is a number. The other members are a convolution's.
template <class Int>
struct Shapes {
  std::vector<Int> l, m, n;
  Int k = 0;
  Int images = 0, channels = 0, filters = 0;
  std::vector<Int> pixels, filter, results;
  std::vector<std::pair<Int, Int>> pads;

  std::vector<Int> lead(char mode) const {
    switch (mode) {
      case 'l': return l;
      case 'm': return m;
      case 'n': return n;
      default: return {k};
    }
  }
};

template <class Int>
Int product(std::vector<Int> const& numbers) {
  Int result = 1;
  for (Int const& number : numbers) result = result * number;
  return result;
}

template <class Int>
std::vector<Int> dims_of(Shapes<Int> const& shapes, Mode const& mode) {
  std::vector<Int> dims = shapes.lead(mode.base);
  if (mode.divisor == 1) return dims;
  return {product(dims) / Int(mode.divisor)};
}

/// The shape of an output in memory; an image has its channels last.
template <class Int>
std::vector<Int> output_shape(Shapes<Int> const& shapes, Value const& output) {
  std::vector<Int> shape;
  for (Mode const& mode : output.modes) {
    for (Int const& size : dims_of(shapes, mode)) shape.push_back(size);
  }
  if (output.bits) shape.back() = (shape.back() + Int(7)) / Int(8);
  return shape;
}

/// A shape as the dimensions of its modes.
template <class Int>
using Groups = std::vector<std::pair<char, std::vector<Int>>>;

/// The shapes that an input may have. The extent of a mode that an index addresses is the tensor's.
template <class Int>
std::vector<Groups<Int>> input_shapes(Shapes<Int> const& shapes, Value const& value, Span<Int> given) {
  auto const made = [&](bool flat, bool batched) {
    Groups<Int> groups;
    std::size_t place = 0;
    if (batched) {
      groups.push_back({'l', shapes.l});
      place = shapes.l.size();
    }
    for (Mode const& mode : value.modes) {
      std::vector<Int> dims = dims_of(shapes, mode);
      if (flat) dims = {product(dims)};
      if (mode.indexed) dims = place < given.size() ? std::vector<Int>{given[place]} : std::vector<Int>{};
      place += dims.size();
      groups.push_back({mode.base, dims});
    }
    if (value.bits) {
      Int& last = groups.back().second.back();
      last = (last + Int(7)) / Int(8);
    }
    return groups;
  };
  if (value.batchable && !shapes.l.empty()) return {made(false, true), made(false, false)};
  return {made(false, false), made(true, false)};
}

template <class Int>
std::vector<Int> flattened(Groups<Int> const& groups) {
  std::vector<Int> shape;
  for (auto const& [mode, dims] : groups) shape.insert(shape.end(), dims.begin(), dims.end());
  return shape;
}

/// Whether a tensor has a shape, its batches broadcast.
template <class Int>
bool has_shape(Span<Int> given, Groups<Int> const& groups) {
  std::vector<Int> const shape = flattened(groups);
  if (given.size() != shape.size()) return false;
  std::size_t const batches = !groups.empty() && groups.front().first == 'l' ? groups.front().second.size() : 0;
  for (std::size_t at = 0; at < shape.size(); ++at) {
    if (!(given[at] == shape[at]) && !(at < batches && given[at] == 1)) return false;
  }
  return true;
}

/// The shapes of a product of matrices.
template <class Int>
Shapes<Int> matrix_shapes(Program const& program, Span<Int> a, Span<Int> b) {
  auto const shown = [](Span<Int> shape) { return text(shape); };
  bool const rows_lead = program.linear && program.values[0].modes[0].base == 'm';
  EVT_CHECK(a.size() >= (rows_lead ? 1 : 2), program, "E0604", "`A` has shape ", shown(a),
            "; expected at least two dimensions");
  EVT_CHECK(b.size() >= 2, program, "E0604", "`B` has shape ", shown(b), "; expected at least two dimensions");
  Shapes<Int> shapes;
  Int k_of_b = 0;
  auto const set = [](Shapes<Int>& to, char mode, Int size) {
    (mode == 'm' ? to.m : to.n).assign(1, size);
  };
  if (rows_lead) {
    EVT_CHECK(b.size() == 2, program, "E0604", "`B` has shape ", shown(b),
              "; the weight of a linear map has two dimensions");
    shapes.m.assign(a.begin(), a.end() - 1);
    shapes.k = a.back();
  } else {
    for (std::size_t at = 0; at < 2; ++at) {
      Int const size = a[a.size() - 2 + at];
      char const mode = program.values[0].modes[at].base;
      if (mode == 'k') shapes.k = size;
      else set(shapes, mode, size);
    }
    auto const own = a.slice(0, a.size() - 2), other = b.slice(0, b.size() - 2);
    std::size_t const rank = std::max(own.size(), other.size());
    for (std::size_t at = 0; at < rank; ++at) {
      Int const one = at + own.size() < rank ? Int(1) : own[at + own.size() - rank];
      Int const two = at + other.size() < rank ? Int(1) : other[at + other.size() - rank];
      EVT_CHECK(one == two || one == 1 || two == 1, program, "E0604", "the batches of A ", shown(own), " and B ",
                shown(other), " do not broadcast together");
      shapes.l.push_back(one == 1 ? two : one);
    }
  }
  for (std::size_t at = 0; at < 2; ++at) {
    Int const size = b[b.size() - 2 + at];
    char const mode = program.values[1].modes[at].base;
    if (mode == 'k') k_of_b = size;
    else set(shapes, mode, size);
  }
  EVT_CHECK(shapes.k == k_of_b, program, "E0604", "A is ", shown(a), " and B is ", shown(b), ": k is ", shapes.k,
            " in A and ", k_of_b, " in B");
  return shapes;
}

/// The shapes of a convolution.
template <class Int>
Shapes<Int> convolution_shapes(Program const& program, Span<Int> a, Span<Int> b) {
  Geometry const& geometry = program.geometry;
  std::size_t const rank = geometry.rank();
  bool const wgrad = geometry.kind == Convolution::wgrad, dgrad = geometry.kind == Convolution::dgrad;
  EVT_CHECK(a.size() == rank + 2, program, "E0604", "`A`, ", wgrad || dgrad ? "the gradient" : "x", ", has ", a.size(),
            " dimensions; expected ", rank + 2);
  EVT_CHECK(b.size() == rank + 2, program, "E0604", "`B`, ", wgrad ? "x" : "weight", ", has ", b.size(),
            " dimensions; expected ", rank + 2);
  Shapes<Int> shapes;
  shapes.channels = b[1];
  if (wgrad) {
    EVT_CHECK(a[0] == b[0], program, "E0604", "A has ", a[0], " images and B has ", b[0]);
    shapes.filters = a[1];
    shapes.images = b[0];
    shapes.pixels.assign(b.begin() + 2, b.end());
    for (std::int64_t size : geometry.kernel_size) shapes.filter.push_back(Int(size));
  } else {
    shapes.filters = b[0];
    shapes.filter.assign(b.begin() + 2, b.end());
    EVT_CHECK(!dgrad || a[1] == shapes.filters, program, "E0604", "A has ", a[1], " channels and B has ",
              shapes.filters, " output channels");
    EVT_CHECK(dgrad || a[1] == shapes.channels, program, "E0604", "A has ", a[1], " channels and B has ", b[1]);
    shapes.images = a[0];
    shapes.pixels.assign(a.begin() + 2, a.end());
  }
  if (dgrad) {
    shapes.results = shapes.pixels;
    shapes.pixels.clear();
  }
  for (std::size_t at = 0; at < rank; ++at) {
    Int const taps = shapes.filter[at], reach = Int(geometry.dilation[at]) * (taps - Int(1));
    EVT_CHECK(taps >= 1, program, "E0604", "the filters have ", taps, " taps along a dimension");
    Int before = reach / Int(2), after = reach - reach / Int(2);
    if (geometry.padding) {
      before = Int((*geometry.padding)[at].first);
      after = Int((*geometry.padding)[at].second);
    }
    shapes.pads.push_back({before, after});
    Int const step = Int(geometry.stride[at]), span = reach + Int(1);
    if (dgrad) {
      Int const size =
          (shapes.results[at] - Int(1)) * step - before - after + span + Int(geometry.output_padding[at]);
      EVT_CHECK(size >= 1, program, "E0604", "the result would have ", size, " pixels along a dimension");
      shapes.pixels.push_back(size);
      continue;
    }
    Int const padded = shapes.pixels[at] + before + after;
    EVT_CHECK(padded >= span, program, "E0604", "the dilated filters span ", span, " pixels, and the padded input has ",
              padded);
    shapes.results.push_back((padded - span) / step + Int(1));
    EVT_CHECK(!wgrad || a[at + 2] == shapes.results[at], program, "E0604", "A has ", a[at + 2],
              " pixels along a dimension; the output of this convolution has ", shapes.results[at]);
  }
  auto const leading = [&](std::vector<Int> const& spatial) {
    std::vector<Int> dims{shapes.images};
    dims.insert(dims.end(), spatial.begin(), spatial.end());
    return dims;
  };
  switch (geometry.kind) {
    case Convolution::fprop:
      shapes.m = leading(shapes.results), shapes.n = {shapes.filters}, shapes.k = shapes.channels;
      break;
    case Convolution::dgrad:
      shapes.m = leading(shapes.pixels), shapes.n = {shapes.channels}, shapes.k = shapes.filters;
      break;
    default:
      shapes.m = {shapes.filters}, shapes.n = shapes.filter, shapes.k = shapes.images * product(shapes.results);
      shapes.n.push_back(shapes.channels);
  }
  return shapes;
}

/// The shapes of a call. Throws for a shape that does not fit.
template <class Int>
Shapes<Int> shapes_of(Program const& program, Span<Int> a, Span<Int> b) {
  Shapes<Int> const shapes =
      program.is_convolution() ? convolution_shapes<Int>(program, a, b) : matrix_shapes<Int>(program, a, b);
  Int const columns = product(shapes.n);
  for (Columns const& each : program.columns) {
    EVT_CHECK(columns % Int(each.width) == 0, program, "E0604", "n is ", columns, ", which does not divide into ",
              each.what, "; n must be a multiple of ", each.width);
  }
  return shapes;
}

}  // namespace evt_torch

#endif  // EVT_TORCH_PROGRAM_HPP
