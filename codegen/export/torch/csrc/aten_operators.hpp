// A program as an operator of PyTorch, by its C++ interface: the extension serves one release.
#ifndef EVT_TORCH_ATEN_OPERATORS_HPP
#define EVT_TORCH_ATEN_OPERATORS_HPP

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "call.hpp"

namespace evt_torch {

/// The arguments of a call, with checked types and devices.
inline Given given_to(Program const& program, c10::ArrayRef<c10::IValue> arguments) {
  Given given(program);
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    c10::IValue const& each = arguments[at];
    if (each.isTensor()) {
      take(program, given, at, each.toTensor());
    } else if (!each.isNone()) {
      take(program, given, at, each.toScalar());
    }
  }
  return given;
}

/// The results of a call without their values; sizes may be symbols.
inline std::vector<Tensor> shaped(Program const& program, Given const& given) {
  using Int = c10::SymInt;
  auto const shapes = shapes_of<Int>(program, given.a().sym_sizes(), given.b().sym_sizes());
  std::vector<Tensor> results;
  for (std::size_t at = 0; at < program.values.size(); ++at) {
    Value const& value = program.values[at];
    if (value.kind == Kind::output) {
      results.push_back(returned(program, value, given, allocate(program, shapes, value, given.a())));
    } else if (value.kind != Kind::operand && given.has(at)) {
      auto const sizes = given.tensors[at].sym_sizes();
      if (is_single<Int>(program, value, sizes)) continue;
      shape_of<Int>(program, shapes, value, channels_moved<Int>(program, value, sizes));
    }
  }
  return results;
}

/// The operator of a program, for any of its schemas. With `on_device` it launches; otherwise the results have no values.
template <Program const& program, bool on_device>
void call(c10::OperatorHandle const& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  std::size_t const count = handle.schema().arguments().size();
  Given given = given_to(program, torch::jit::last(*stack, count));
  auto const results = on_device ? run(program, std::move(given)) : shaped(program, given);
  torch::jit::drop(*stack, count);
  for (Tensor const& each : results) torch::jit::push(*stack, each);
}

/// The operator of a program for tensors of a device without kernels.
template <Program const& program>
void refused(c10::OperatorHandle const& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  refuse(program, torch::jit::last(*stack, handle.schema().arguments().size())[0].toTensor());
}

/// Define an operator of a program.
template <Program const& program>
void define(torch::Library& library, char const* name, char const* schema) {
  using torch::CppFunction;
  library.def(schema, {at::Tag::pt2_compliant_tag, at::Tag::needs_fixed_stride_order});
  library.impl(name, torch::dispatch(c10::DispatchKey::EVT_TORCH_DEVICE,
                                     CppFunction::makeFromBoxedFunction<&call<program, true>>()));
  library.impl(name, torch::dispatch(c10::DispatchKey::Meta,
                                     CppFunction::makeFromBoxedFunction<&call<program, false>>()));
  library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                     CppFunction::makeFromBoxedFunction<&refused<program>>()));
  library.impl(name, torch::dispatch(c10::DispatchKey::Autograd, torch::autograd::autogradNotImplementedFallback()));
}

}  // namespace evt_torch

#endif  // EVT_TORCH_ATEN_OPERATORS_HPP
