"""Autograd of a program: ``run_recorded(...)`` is ``torch.ops.evt.run`` for a call that needs gradients.

The forward pass runs the program with further outputs for the values that its gradient needs. The backward pass
computes the gradients of inputs and of the accumulator in PyTorch, or with ``recompute`` by a kernel. The libraries
compute the gradients of A and B, which are matrix products. Both passes consist of operators that PyTorch traces, so
torch.compile has a graph of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from evt.errors import ArgumentError
from evt.gradient import ACCUMULATOR, Gradient, differentiable_outputs
from evt.gradient.evaluate import evaluate, is_symbol, operand
from evt.gradient.products import convolution_gradients, product, product_gradients
from evt.gradient.program import (
    backward_of,
    declared,
    forward_of,
    gradient_of,
    has_kernel,
    refuse_blocks,
    refuse_zero_points,
    refused,
)
from evt.ir.dag import reads_accumulator
from evt.ir.node import base, index_of
from evt.ir.operand import epilogue_of
from evt.reference.convolution import to_view
from evt.reference.dense import not_dense
from evt.reference.extents import Extents, as_scalar
from evt.reference.rounding import torch_type
from evt.request import Request, read_request, traced
from evt.runtime.arguments import outline
from evt.runtime.bound import Bound
from evt.runtime.kernels import device_target
from evt.runtime.repeat import record
from evt.runtime.tensor_checks import PLAIN, is_watched, transforming
from evt.runtime.tensors import squeezed

#: A backward pass: from tensors to gradients.
_Pass = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]

_read = lru_cache(maxsize=4096)(read_request)
#: The facts about calls, by their program and the metadata of their tensors.
_RECORDED: dict[object, _Recorded] = {}
#: The number of calls, and of backward passes of one call, that are kept before all are dropped.
_MAX_RECORDED, _MAX_REPEATED = 4096, 16


def run_recorded(
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    program: str,
    names: Sequence[str] | None = None,
    floats: Sequence[float] | None = None,
    integers: Sequence[int] | None = None,
    *,
    run: Callable[..., Sequence[torch.Tensor]] | None = None,
) -> list[torch.Tensor]:
    """Run a program whose gradients autograd records; ``run``, or else the operator, computes the forward pass.

    Raise ArgumentError (E0614) if there are no gradients.
    """
    request = _read(program)
    refuse_blocks(request.dag)
    order = tuple(request.inputs if names is None else names)
    given = dict(zip(order, (*tensors, *(floats or ()), *(integers or ())), strict=True))
    if transforming() or request.dag.feeds:
        bound = _outline(request, a, b, given)
        given |= {name: bound.values[name] for name, value in given.items() if isinstance(value, torch.Tensor)}
        return (run_in_pytorch if transforming() else _run_fed)(request, bound, a, b, given)
    try:
        facts = [(each.size(), each.dtype, each.device, each.requires_grad) for each in (a, b, *tensors)]
    except RuntimeError:  # a nested tensor has no sizes
        named = zip(("A", "B", *order), (a, b, *tensors), strict=False)
        if refused := [found for name, each in named if (found := not_dense(name, each))]:
            raise ArgumentError(refused) from None
        raise
    key = (program, order, *facts)
    try:
        recorded = _RECORDED.get(key)
    except TypeError:  # symbolic sizes have no hash
        recorded = _Recorded.of(request, a, b, given)
    if recorded is None:
        if len(_RECORDED) >= _MAX_RECORDED:
            _RECORDED.clear()
        recorded = _RECORDED[key] = _Recorded.of(request, a, b, given)
    if recorded.views is not None:
        shapes = zip(tensors, recorded.views, recorded.shapes.values(), strict=True)
        tensors = [each.view(own).expand(shape) for each, own, shape in shapes]
    results = _Program.apply(recorded, run or torch.ops.evt.run, floats, integers, a, b, *tensors)  # type: ignore[no-untyped-call]
    return list(results[: len(request.outputs)])


def _outline(request: Request, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]) -> Bound:
    return outline(request, a, b, {name: 0 if is_symbol(value) else value for name, value in given.items()})


def _run_fed(
    request: Request, bound: Bound, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Run a program with mainloop fusion: compute its operands first, which the gradient of the other one reads."""
    fed_a, fed_b = (  # a formula that reads one vector alone is expanded, which no kernel reads
        each.clone(memory_format=torch.contiguous_format) if 0 in each.stride() else each
        for each in _fed(request, bound, a, b, given)
    )
    rest = epilogue_of(bound.dag)
    others = {name: given[name] for name in rest.input if name in given}
    return _run_named(fed_a, fed_b, others, _text(replace(request, dag=declared(rest))))


def run_in_pytorch(
    request: Request, bound: Bound, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Compute a program operation by operation, which torch.func differentiates as often as it is asked to."""
    acc = product(bound.dag.operands, *_fed(request, bound, a, b, given), bound.convolution)
    rest = epilogue_of(bound.dag)
    found = evaluate(rest, bound.leads, _sizes(bound), given, a.device, request.convolution, acc)
    return [found[name] for name in request.outputs]


def _fed(
    request: Request, bound: Bound, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B after mainloop fusion."""
    refuse_zero_points(bound.dag)

    def fed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in bound.dag.feeds:
            return tensor
        return operand(bound.dag, name, tensor, _sizes(bound), given, request.convolution)

    return fed("A", a), fed("B", b)


def _target(bound: Bound) -> str | None:
    """Return the target of a call's kernels; None if the reference computes the call."""
    return device_target(bound.index).name if bound.device.type == "cuda" and torch.cuda.is_available() else None


def _text(request: Request) -> str:
    return traced(request).text


def _sizes(bound: Bound) -> Mapping[str, int]:
    """Return the extents that a program reads; ``k`` is the length of its sums."""
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


@dataclass(frozen=True, eq=False)
class _Recorded:
    """The common facts of calls whose tensors have equal sizes, types and devices.

    ``wanted`` names the inputs that need gradients, ``names`` the call's values, tensors first. ``shapes`` are the
    shapes of the tensors with all batches. If the call gives other shapes, ``views`` are the shapes that are expanded
    to them. ``bound`` has no values.
    """

    request: Request
    bound: Bound
    wanted: tuple[str, ...]
    names: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    views: Sequence[tuple[int, ...]] | None
    #: Backward passes by the metadata of their tensors; None the first time, since sizes may never come again.
    repeated: dict[object, _Pass | None] = field(default_factory=dict)

    @staticmethod
    def of(request: Request, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, Any]) -> _Recorded:
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        wanted = tuple(name for name, value in tensors.items() if value.requires_grad)
        if a.requires_grad or b.requires_grad:
            wanted = (ACCUMULATOR, *wanted)
        bound = _outline(request, a, b, given)
        shapes = {name: bound.values[name].shape for name in tensors}
        views = [squeezed(bound, request.dag.input[name], value).shape for name, value in tensors.items()]
        usual = all(shapes[name] == value.shape for name, value in tensors.items())
        return _Recorded(request, replace(bound, values={}), wanted, tuple(given), shapes, None if usual else views)

    def gradient(self, arriving: tuple[str, ...] | None = None) -> Gradient:
        """Return the program's gradient, given the gradients of some outputs. Raise ArgumentError (E0614)."""
        return gradient_of(self.request, self.bound.dag.operands, self.bound.absent, self.wanted, arriving)

    @cached_property
    def forward(self) -> str:
        """The program that is run in place of the one that is called. Raise ArgumentError (E0614)."""
        target = _target(self.bound) if self.request.settings.recompute else None
        if target is not None:  # say now, not in the backward pass, that it has no kernel
            has_kernel(self.request, self.gradient(), target)
        return _text(forward_of(self.request, self.gradient()))

    @cached_property
    def products(self) -> bool:
        """Whether the backward pass needs A and B."""
        return ACCUMULATOR in self.wanted or self.request.settings.recompute

    @cached_property
    def kept(self) -> dict[str, int]:
        """The further values that the backward pass needs: their places among tensors and results, by name."""
        gradient = self.gradient()
        results = [each.name for each in gradient.forward.outputs]
        places = {name: place for place, name in enumerate(self.shapes)}
        places |= {each.name: len(places) + results.index(each.name) for each in gradient.saved}
        read = {each.name for each in gradient.backward.inputs}
        read |= {index_of(mode) for name in self.wanted for mode in self.modes(name)}
        return {name: place for name, place in places.items() if name in read}

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """The places of results that have no gradients."""
        followed = differentiable_outputs(self.bound.dag)
        outputs = enumerate(self.gradient().forward.outputs)
        return tuple(place for place, each in outputs if each.name not in followed)

    def modes(self, name: str) -> tuple[str, ...]:
        """Return the modes of an input, none of the accumulator."""
        return () if name == ACCUMULATOR else self.request.dag.input[name].modes


class _Program(torch.autograd.Function):
    """An autograd function whose results are the program's outputs, then the values that are saved for the backward
    pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        recorded: _Recorded,
        run: Callable[..., Sequence[torch.Tensor]],
        floats: Sequence[float] | None,
        integers: Sequence[int] | None,
        a: torch.Tensor,
        b: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        found = run(a, b, tensors, recorded.forward, recorded.names, floats, integers)
        results = tuple([each.detach() for each in found])  # no views, which could not be modified in place
        ctx.recorded, ctx.numbers = recorded, (*(floats or ()), *(integers or ()))
        values = *tensors, *results
        products = (a, b) if recorded.products else (None, None)
        ctx.save_for_backward(*products, *[values[place] for place in recorded.kept.values()])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[results[place] for place in recorded.constant])
        return results

    @staticmethod
    def backward(ctx: Any, *arrived: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            message = "a gradient of a gradient is asked for (create_graph=True)"
            raise refused(message, "leave create_graph out, or use torch.func.grad, which computes all in PyTorch")
        recorded: _Recorded = ctx.recorded
        arriving = {
            name: each for name, each in zip(recorded.request.outputs, arrived, strict=False) if each is not None
        }
        if not arriving:
            return (None,) * len(ctx.needs_input_grad)
        gradient = recorded.gradient(tuple(arriving))
        a, b, *kept = ctx.saved_tensors
        tensors = {"A": a, "B": b} if recorded.products else {}
        tensors |= dict(zip(recorded.kept, kept, strict=True))
        tensors |= {gradient.arriving[name]: each for name, each in arriving.items()}
        numbers = dict(zip(recorded.names[len(recorded.shapes) :], ctx.numbers, strict=True))
        numbers = {name: value for name, value in numbers.items() if name in gradient.backward.input}
        device = recorded.bound.device.type
        casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if casts else nullcontext():
            found = _gradients(recorded, gradient, ctx.needs_input_grad[4:6], tensors, numbers)
        return None, None, None, None, *found


def _gradients(
    recorded: _Recorded,
    gradient: Gradient,
    needed: tuple[bool, bool],
    tensors: Mapping[str, torch.Tensor],
    numbers: Mapping[str, Any],
) -> Sequence[torch.Tensor | None]:
    """Return the gradients of A, B and the inputs; repeat the recorded computation if there is one for such tensors.

    Numbers become tensors for that. A number in place of a vector stays a number, and is part of the key.
    """
    usual = all(type(each) in PLAIN for each in tensors.values())
    if recorded.request.settings.recompute or is_watched() or not usual:
        return _computed(recorded, gradient, needed, {**tensors, **numbers})
    inputs, device = recorded.bound.dag.input, recorded.bound.device
    vectors = {name: value for name, value in numbers.items() if inputs[name].modes}
    scalars = {name: value for name, value in numbers.items() if name not in vectors}
    given = [*tensors.values(), *(as_scalar(inputs[name], value, device) for name, value in scalars.items())]
    names = *tensors, *scalars
    facts = [(each.size(), each.stride(), each.dtype, each.device) for each in given]
    key = (needed, names, *vectors.values(), *facts)
    known = recorded.repeated.get(key)
    if known is not None:
        return known(given)

    def compute(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        return _computed(recorded, gradient, needed, {**dict(zip(names, tensors, strict=True)), **vectors})

    if key in recorded.repeated:
        found, made = record(compute, given)
        recorded.repeated[key] = made or compute
        return found
    if len(recorded.repeated) >= _MAX_REPEATED:
        recorded.repeated.clear()
    recorded.repeated[key] = None
    return compute(given)


def _computed(
    recorded: _Recorded, gradient: Gradient, needed: tuple[bool, bool], values: Mapping[str, Any]
) -> list[torch.Tensor | None]:
    """Return the gradients of A, B and the inputs."""
    leaving = _leaving(recorded, gradient, values)
    to_a, to_b = _to_operands(recorded, leaving.get(ACCUMULATOR), needed, values)
    others = (_placed(recorded, name, leaving[name], values) if name in leaving else None for name in recorded.shapes)
    return [to_a, to_b, *others]


def _leaving(recorded: _Recorded, gradient: Gradient, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the gradients of inputs and of the accumulator, by the input's name."""
    dag, request, bound = gradient.backward, recorded.request, recorded.bound
    if not reads_accumulator(dag):
        found = evaluate(dag, bound.leads, _sizes(bound), values, bound.device, request.convolution)
        return {name: found[output] for name, output in gradient.leaving.items()}
    given = {name: values[name] for name in ("A", "B", *dag.input) if name in values}
    if bound.convolution is None:
        several = len(bound.leads["m"]) > 1  # of whose rows one launch computes the sums
        for name in given if several else gradient.arriving.values():
            if isinstance(given[name], torch.Tensor):
                given[name] = given[name].contiguous()
    a, b = given.pop("A"), given.pop("B")
    results = _run_named(a, b, given, _text(backward_of(request, gradient)))
    found = dict(zip((output.name for output in dag.outputs), results, strict=True))
    return {name: found[output] for name, output in gradient.leaving.items()}


def _to_operands(
    recorded: _Recorded, gradient: torch.Tensor | None, needed: tuple[bool, bool], values: Mapping[str, Any]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of A and B, of the accumulator's."""
    if gradient is None:
        return None, None
    bound = recorded.bound
    if bound.convolution is not None:
        return convolution_gradients(bound.convolution, values["A"], values["B"], gradient, needed)
    return product_gradients(bound.dag.operands, values["A"], values["B"], gradient, needed)


def _placed(recorded: _Recorded, name: str, gradient: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Return an input's gradient in the input's shape, each element where the input was read."""
    shape, modes, bound = recorded.shapes[name], recorded.modes(name), recorded.bound
    if any(map(index_of, modes)):
        extents = Extents(bound.leads)
        own, rows = extents.around(modes, shape), [mode for mode in modes if mode != "l"]
        image = bound.convolution is not None and tuple(map(base, rows)) == ("m", "n")
        gradient = to_view(gradient) if image else gradient
        sizes = [extents[base(mode)] for mode in rows]
        gradient = gradient.reshape(extents["l"] if gradient.numel() > math.prod(sizes) else 1, *sizes)
        for dim, mode in enumerate(rows, 1):
            if index_of(mode):
                gradient = _scattered(gradient, values[index_of(mode)].reshape(-1), dim, own[base(mode)])
    dtype = bound.dag.input[name].dtype
    assert dtype is not None
    return _summed(gradient, shape).to(torch_type(dtype))


def _summed(gradient: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a gradient summed over the batches that an input has once."""
    if gradient.shape == shape:
        return gradient
    if gradient.numel() == math.prod(shape):
        return gradient.reshape(shape)
    return gradient.sum_to_size(shape) if gradient.dim() >= len(shape) else gradient.sum().reshape(shape)


def _scattered(gradient: torch.Tensor, index: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """Return the sum of the gradients of each place along a dimension. An index that is out of range has no place."""
    places = torch.where((index >= 0) & (index < extent), index, extent).long()
    sizes = list(gradient.shape)
    sizes[dim] = extent + 1
    return gradient.new_zeros(sizes).index_add(dim, places, gradient).narrow(dim, 0, extent)
