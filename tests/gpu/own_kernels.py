"""Own kernels on a GPU: cases of one kernel and many shapes, their tensors, and the check against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.dtype import BY_NAME, I64, from_torch_name
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.support.convolutions import convolution, last
from tests.support.one_config import with_config

#: (images, channels, height, width) of A, (columns of D, rows, columns of the filter), geometry; volumes have a depth.
Shape = tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A program, the shapes that its kernel is given, and the types of A and of B: ``weight``, if it is another.

    The kernel is that of the first shape, or of ``config``.
    """

    text: str
    shapes: tuple[Shape, ...]
    dtype: str = "f16"
    weight: str = ""
    operation: str = "conv2d"
    keywords: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""

    @property
    def types(self) -> tuple[str, str]:
        return self.dtype, self.weight or self.dtype

    def operands(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of A and B."""
        a, (columns, *taps), geometry = self.shapes[number]
        groups = geometry.get("groups", 1)
        inner = columns if "dgrad" in self.operation else a[1]
        return a, ((a[1] if "dgrad" in self.operation else columns), inner // groups, *taps)

    def program(self, geometry: Mapping[str, Any]) -> evt.Program:
        """Return the program in the case's configuration."""
        route = {"route": "conv-halo-3x", **self.keywords}
        chosen = convolution(self.text, self.operation, **self.shapes[0][2], **route)
        config = self.config or chosen.explain("sm90", *self.types, shapes=self.operands(0)).configurations[0]
        return with_config(convolution(self.text, self.operation, **geometry, **route), config)


def parameters(cases: Mapping[str, Case]) -> Iterator[Any]:
    for name, case in cases.items():
        for number in range(len(case.shapes)):
            yield pytest.param(name, number, id=f"{name}-{number}")


def random(shape, dtype: str, generator, scale: float = 1.0):
    found = BY_NAME[dtype]
    if not found.is_float:
        return torch.randint(-9, 10, shape, device="cuda", generator=generator).to(getattr(torch, found.torch))
    made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    return made.to(getattr(torch, found.torch))


def tensors(case: Case, number: int, op: evt.Program):
    """Return the arguments of the program: A, B and the inputs by name."""
    generator = torch.Generator("cuda").manual_seed(number)
    shape, of_weight = case.operands(number)
    x = last(random(shape, case.dtype, generator))
    inner = shape[1] // op.request.convolution.groups
    weight = last(random(of_weight, case.types[1], generator, (inner * math.prod(of_weight[2:])) ** -0.5))
    problem = op.request.convolution.problem(shape, of_weight)
    images, *pixels = problem.leads["m"]
    extents = {"m": math.prod(problem.leads["m"]), "n": problem.columns}
    inputs: dict[str, Any] = {}
    for value in typed_graph(op.request, *case.types).inputs:
        dtype = str(value.dtype)
        if not value.modes:
            inputs[value.name] = {"i32": 3, "i64": 2**40 + 5}.get(dtype, 1.25)
        elif dtype == "b1":
            keep = torch.rand((images, *pixels, problem.columns), device="cuda", generator=generator) < 0.6
            inputs[value.name] = evt.pack_bits(keep)
        elif value.is_tile:
            inputs[value.name] = last(random((images, problem.columns, *pixels), dtype, generator))
        elif value.flexible and number % 2:
            inputs[value.name] = 0.75
        else:
            inputs[value.name] = random(tuple(extents[mode] for mode in value.modes), dtype, generator)
    return x, weight, inputs


def sources_of(case: Case, number: int) -> list[KernelSource]:
    op = case.program(case.shapes[number][2])
    x, weight, inputs = tensors(case, number, op)
    atomic = op.request.settings.deterministic is False
    return kernel_sources(plan_kernels(op.request, bind(op.request, x, weight, inputs, {}), device_target(0), atomic))


def poisoned(tensor):
    """Return a buffer like an output, of NaN, or of a pattern that is unlikely."""
    if tensor.dtype.is_floating_point:
        return torch.full_like(tensor, float("nan"))
    return torch.full_like(tensor, 0x55)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def named(dtype: torch.dtype) -> str:
    found = from_torch_name(str(dtype).removeprefix("torch."))
    assert found is not None
    return found.name


def check(case: Case, number: int) -> list[float]:
    """Run a case's kernel for a shape, twice on the same buffers; return how far its outputs are off, of 1 at most."""
    op = case.program(case.shapes[number][2])
    return check_call(op, *tensors(case, number, op))


def check_call(op: evt.Program, a, b, inputs: Mapping[str, Any]) -> list[float]:
    """Call a program twice on the same buffers; return how far its outputs are off, of 1 at most."""
    types = tuple(named(each.dtype) for each in (a, b))
    fresh = op(a, b, **inputs)
    single = len(op.outputs) == 1
    shapes = [fresh] if single else list(fresh)
    want = op.reference(a, b, float64=True, **inputs)
    want = [want] if single else list(want)
    dtypes = [output.dtype for output in typed_graph(op.request, *types).outputs]
    assert I64 not in dtypes
    buffers = [poisoned(each) for each in shapes]
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=buffers[0] if single else tuple(buffers), **inputs)
        errors = [
            distance(got, right, dtype, operand=BY_NAME[types[0]], inside=dtype if dtype.bits == 16 else None)
            for got, right, dtype in zip(buffers, want, dtypes, strict=True)
        ]
        assert max(errors) <= 1.0, errors
        first = first or [each.clone() for each in buffers]
        if op.request.settings.deterministic is not False:
            for buffer, earlier, other in zip(buffers, first, shapes, strict=True):
                assert torch.equal(bits(buffer), bits(earlier))
                assert torch.equal(bits(buffer), bits(other))
    return errors
