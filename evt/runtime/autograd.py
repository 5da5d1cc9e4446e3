"""Autograd of a program: ``run_recorded(...)`` is ``torch.ops.evt.run`` where its gradients will be asked for.

The forward pass runs the program with outputs for what its gradient needs. The backward pass computes the gradients of
inputs and of the accumulator in PyTorch, or with ``recompute`` by a kernel, and those of A and B by the products of the
libraries. Both consist of operators that PyTorch traces, so torch.compile has a graph of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from evt.gradient import ACCUMULATOR, Gradient, differentiable_outputs
from evt.gradient.evaluate import evaluate, is_symbol, operand
from evt.gradient.products import convolution_gradients, product, product_gradients
from evt.gradient.program import backward_of, declared, forward_of, gradient_of, refused
from evt.ir.dag import reads_accumulator
from evt.ir.node import Operand, base, index_of
from evt.ir.operand import epilogue_of
from evt.reference.convolution import to_view
from evt.reference.extents import Extents
from evt.runtime.arguments import outline
from evt.runtime.bound import Bound
from evt.runtime.plain import transforming
from evt.spec import Spec, read_spec, traced

_read = lru_cache(maxsize=4096)(read_spec)


def run_recorded(
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    program: str,
    names: Sequence[str] | None = None,
    floats: Sequence[float] | None = None,
    integers: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    """Run a program whose gradients autograd records. Raise ArgumentError (E0614) where there are none."""
    spec = _read(program)
    order = tuple(spec.inputs if names is None else names)
    given = dict(zip(order, (*tensors, *(floats or ()), *(integers or ())), strict=True))
    bound = outline(spec, a, b, {name: 0 if is_symbol(value) else value for name, value in given.items()})
    if transforming():
        return run_in_pytorch(spec, bound, a, b, given)
    if bound.dag.feeds:
        return _run_fed(spec, bound, a, b, given)
    wanted = tuple(name for name, value in given.items() if isinstance(value, torch.Tensor) and value.requires_grad)
    if a.requires_grad or b.requires_grad:
        wanted = (ACCUMULATOR, *wanted)
    recorded = _Recorded(spec, bound.dag.operands, bound.absent, wanted, order)
    results = _Program.apply(recorded, bound, floats, integers, a, b, *tensors)  # type: ignore[no-untyped-call]
    return list(results[: len(spec.outputs)])


def _run_fed(
    spec: Spec, bound: Bound, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Run a program with mainloop fusion: compute its operands first, which the gradient of the other one reads."""
    fed_a, fed_b = _fed(spec, bound, a, b, given)
    rest = epilogue_of(bound.dag)
    others = {name: given[name] for name in rest.input if name in given}
    return _run_named(fed_a, fed_b, others, _text(replace(spec, dag=declared(rest))))


def run_in_pytorch(
    spec: Spec, bound: Bound, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Compute a program operation by operation, which torch.func differentiates as often as it is asked to."""
    acc = product(bound.dag.operands, *_fed(spec, bound, a, b, given), bound.convolution)
    rest = epilogue_of(bound.dag)
    found = evaluate(rest, bound.leads, _sizes(bound), given, a.device, spec.convolution, acc)
    return [found[name] for name in spec.outputs]


def _fed(
    spec: Spec, bound: Bound, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B after mainloop fusion."""

    def fed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in bound.dag.feeds:
            return tensor
        return operand(bound.dag, name, tensor, _sizes(bound), given, spec.convolution)

    return fed("A", a), fed("B", b)


def _text(spec: Spec) -> str:
    return traced(spec).text


def _sizes(bound: Bound) -> Mapping[str, int]:
    """Return the extents that a program reads; ``k`` is what its sums run over."""
    return bound.sizes if bound.convolution is None else {**bound.sizes, "k": bound.convolution.contraction}


def _run_named(a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any], program: str) -> list[torch.Tensor]:
    """Run a program on its inputs by name."""
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    integers = {name: value for name, value in given.items() if isinstance(value, int | torch.SymInt)}
    floats = {name: value for name, value in given.items() if name not in tensors and name not in integers}
    names = [*tensors, *floats, *integers]
    found: list[torch.Tensor] = torch.ops.evt.run(
        a, b, [*tensors.values()], program, names, [*floats.values()] or None, [*integers.values()] or None
    )
    return found


@dataclass(frozen=True)
class _Recorded:
    """A call of a program whose gradients of ``wanted`` are asked for; ``names`` are those of the call's values."""

    spec: Spec
    operands: tuple[Operand, ...]
    absent: tuple[str, ...]
    wanted: tuple[str, ...]
    names: tuple[str, ...]

    def gradient(self, arriving: tuple[str, ...] | None = None) -> Gradient:
        """Return the program's gradient for those of some outputs. Raise ArgumentError (E0614)."""
        return gradient_of(self.spec, self.operands, self.absent, self.wanted, arriving)

    def modes(self, name: str) -> tuple[str, ...]:
        """Return the modes of an input, none of the accumulator."""
        return () if name == ACCUMULATOR else self.spec.dag.input[name].modes


class _Program(torch.autograd.Function):
    """Its results are the program's outputs, and then what is saved besides."""

    @staticmethod
    def forward(
        ctx: Any,
        recorded: _Recorded,
        bound: Bound,
        floats: Sequence[float] | None,
        integers: Sequence[int] | None,
        a: torch.Tensor,
        b: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        names, gradient = recorded.names, recorded.gradient()
        program = _text(forward_of(recorded.spec, gradient))
        found = torch.ops.evt.run(a, b, tensors, program, names, floats, integers)
        output = tuple(each.detach() for each in found)  # no views, which could not be modified in place
        results = dict(zip((each.name for each in gradient.forward.outputs), output, strict=True))
        values = {
            **dict(zip(names, tensors, strict=False)),
            **{each.name: results[each.name] for each in gradient.saved},
        }
        read = {each.name for each in gradient.backward.inputs}
        places = {index_of(mode) for name in recorded.wanted for mode in recorded.modes(name)}
        kept = {name: value for name, value in values.items() if name in read or name in places}
        products = ACCUMULATOR in recorded.wanted or recorded.spec.settings.recompute
        ctx.recorded, ctx.kept, ctx.device = recorded, tuple(kept), a.device
        ctx.numbers = dict(zip(names[len(tensors) :], (*(floats or ()), *(integers or ())), strict=True))
        ctx.shapes = {name: tensor.shape for name, tensor in zip(names, tensors, strict=False)}
        ctx.leads, ctx.sizes, ctx.problem = bound.leads, _sizes(bound), bound.convolution
        ctx.save_for_backward(*((a, b) if products else (None, None)), *kept.values())
        ctx.set_materialize_grads(False)
        followed = differentiable_outputs(bound.dag)
        ctx.mark_non_differentiable(*(result for name, result in results.items() if name not in followed))
        return output

    @staticmethod
    def backward(ctx: Any, *arrived: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            message = "a gradient of a gradient is asked for (create_graph=True)"
            raise refused(message, "leave create_graph out, or use torch.func.grad, which computes all in PyTorch")
        recorded: _Recorded = ctx.recorded
        outputs = recorded.spec.outputs
        arrived_by_name = {name: each for name, each in zip(outputs, arrived, strict=False) if each is not None}
        nothing = (None,) * (6 + len(ctx.shapes))
        if not arrived_by_name:
            return nothing
        gradient = recorded.gradient(tuple(arrived_by_name))
        a, b, *kept = ctx.saved_tensors
        values = {**ctx.numbers, **dict(zip(ctx.kept, kept, strict=True))}
        values |= {gradient.arriving[name]: each for name, each in arrived_by_name.items()}
        with torch.autocast(ctx.device.type, enabled=False):
            leaving = _leaving(ctx, gradient, a, b, values)
            to_a, to_b = _to_operands(ctx, leaving, a, b)
            others = (None if name not in leaving else _placed(ctx, name, leaving[name], values) for name in ctx.shapes)
            return (*nothing[:4], to_a, to_b, *others)


def _leaving(
    ctx: Any,
    gradient: Gradient,
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    values: Mapping[str, Any],
) -> dict[str, torch.Tensor]:
    """Return the gradients of inputs and of the accumulator, by the input's name."""
    dag, spec = gradient.backward, ctx.recorded.spec
    if not reads_accumulator(dag):
        found = evaluate(dag, ctx.leads, ctx.sizes, values, ctx.device, spec.convolution)
        return {name: found[output] for name, output in gradient.leaving.items()}
    assert a is not None
    assert b is not None
    given = {each.name: values[each.name] for each in dag.inputs if each.name in values}
    results = _run_named(a, b, given, _text(backward_of(spec, gradient)))
    found = dict(zip((output.name for output in dag.outputs), results, strict=True))
    return {name: found[output] for name, output in gradient.leaving.items()}


def _to_operands(
    ctx: Any, leaving: Mapping[str, torch.Tensor], a: torch.Tensor | None, b: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of A and B."""
    if ACCUMULATOR not in leaving:
        return None, None
    assert a is not None
    assert b is not None
    needed = ctx.needs_input_grad[4:6]
    if ctx.problem is not None:
        return convolution_gradients(ctx.problem, a, b, leaving[ACCUMULATOR], needed)
    return product_gradients(ctx.recorded.operands, a, b, leaving[ACCUMULATOR], needed)


def _placed(ctx: Any, name: str, gradient: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Return an input's gradient in the input's shape, each element where the input was read."""
    shape, modes = ctx.shapes[name], ctx.recorded.modes(name)
    if any(map(index_of, modes)):
        extents = Extents(ctx.leads)
        own, rows = extents.around(modes, shape), [mode for mode in modes if mode != "l"]
        image = ctx.problem is not None and tuple(map(base, rows)) == ("m", "n")
        gradient = to_view(gradient) if image else gradient
        sizes = [extents[base(mode)] for mode in rows]
        gradient = gradient.reshape(extents["l"] if gradient.numel() > math.prod(sizes) else 1, *sizes)
        for dim, mode in enumerate(rows, 1):
            if index_of(mode):
                gradient = _scattered(gradient, values[index_of(mode)].reshape(-1), dim, own[base(mode)])
    if gradient.shape == shape:
        return gradient
    if gradient.numel() == math.prod(shape):
        return gradient.reshape(shape)
    return gradient.sum_to_size(shape) if gradient.dim() >= len(shape) else gradient.sum().reshape(shape)


def _scattered(gradient: torch.Tensor, index: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """Return the sums of what was read at each place along a dimension; what is out of range was read from nowhere."""
    places = torch.where((index >= 0) & (index < extent), index, extent).long()
    sizes = list(gradient.shape)
    sizes[dim] = extent + 1
    return gradient.new_zeros(sizes).index_add(dim, places, gradient).narrow(dim, 0, extent)
