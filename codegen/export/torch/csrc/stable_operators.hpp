// A program as an operator of PyTorch, by its stable interface: one build serves releases from 2.10 on. The interface has
// neither symbols for sizes nor rules of gradients. The package adds these in Python: see operators.py.
#ifndef EVT_TORCH_STABLE_OPERATORS_HPP
#define EVT_TORCH_STABLE_OPERATORS_HPP

#include "call.hpp"

namespace evt_torch {

/// The arguments of a call, with checked types and devices. Kinds: a letter for each, as in the schema; upper case ones
/// may be None: Tensor, float, int and bool. All values are taken before one is refused: the call owns them.
inline Given given_to(Program const& program, char const* kinds, StableIValue const* stack) {
  using torch::stable::detail::to;
  std::vector<Tensor> tensors(program.values.size());
  std::vector<std::optional<Number>> numbers(program.values.size());
  for (std::size_t at = 0; kinds[at] != 0; ++at) {
    StableIValue value = stack[at];
    char kind = kinds[at];
    if (kind == 'T' || kind == 'F') {
      auto* const held = to<StableIValue*>(value);
      if (held == nullptr) continue;
      value = *held;
      delete held;
      kind = kind == 'T' ? 't' : 'f';
    }
    switch (kind) {
      case 't': tensors[at] = Tensor(to<AtenTensorHandle>(value)); break;
      case 'f': numbers[at] = Number(to<double>(value)); break;
      case 'i': numbers[at] = Number(to<std::int64_t>(value)); break;
      default: numbers[at] = Number(std::int64_t{to<bool>(value)});
    }
  }
  Given given(program);
  for (std::size_t at = 0; kinds[at] != 0; ++at) {
    if (tensors[at].defined()) take(program, given, at, std::move(tensors[at]));
    if (numbers[at]) take(program, given, at, *numbers[at]);
  }
  return given;
}

/// The operator of a program, for a schema.
template <Program const& program, auto const& kinds>
void call(StableIValue* stack, std::uint64_t, std::uint64_t) {
  auto const results = run(program, given_to(program, kinds, stack));
  for (std::size_t at = 0; at < results.size(); ++at) {
    stack[at] = torch::stable::detail::from(results[at].viewed());
  }
}

/// The operator of a program for tensors of a device without kernels.
template <Program const& program, auto const& kinds>
void refused(StableIValue* stack, std::uint64_t, std::uint64_t) {
  refuse(program, given_to(program, kinds, stack).a());
}

}  // namespace evt_torch

#endif  // EVT_TORCH_STABLE_OPERATORS_HPP
