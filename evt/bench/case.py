"""A program at one size, ``Case``, and its tensors, ``draw(case, device) -> Data``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from evt.bench.tensors import poison, random_index, random_operand, random_tensor
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import TypedDag
from evt.ir.convolution import ConvolutionProblem
from evt.ir.dag import index_inputs
from evt.ir.dtype import B1, DType
from evt.ir.node import base, blocks_of, divisor
from evt.program import Program
from evt.reference import is_image
from evt.reference.convolution import from_view
from evt.reference.rounding import packed, torch_type
from evt.request import Shapes, problem_sizes, typed_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Values of scalars without a default, in the order of the program's inputs; constant folding removes none of them.
_SCALARS = (0.7, 0.3, 1.3, -0.6, 0.9)
_INTEGERS = (7, 3, 5, 2, 11)
_FEW = 16  # images of a small convolution, besides a remainder


@dataclass(frozen=True)
class Case:
    """A program at one size. ``bar`` is the largest acceptable ratio of its time to torch.compile's, and ``weight`` its
    weight in the time of a workload.

    A convolution has the ``shapes`` of A and B in PyTorch's order; :func:`convolution_case` makes one.
    """

    name: str
    program: Program
    m: int
    n: int
    k: int
    l: int = 1  # noqa: E741
    dtype: str | None = None
    bar: float | None = None
    shapes: Shapes | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.l > 1 and self.program.request.operation == "linear":
            raise ArgumentError(
                Diagnostic("E0604", "a linear map has no batch", help="fold it into m, as the kernel does")
            )

    @property
    def sizes(self) -> dict[str, int]:
        return {"m": self.m, "n": self.n, "k": self.k, "l": self.l}

    @property
    def batched(self) -> bool:
        return self.l > 1

    @property
    def product(self) -> str:
        """PyTorch's name for the bare product."""
        return "mm" if self.shapes is None else "conv"

    @cached_property
    def problem(self) -> ConvolutionProblem | None:
        """The sizes of a convolution."""
        geometry = self.program.request.convolution
        return None if geometry is None or self.shapes is None else geometry.problem(*self.shapes)

    @cached_property
    def dag(self) -> TypedDag:
        """The typed program, not optimised."""
        return typed_graph(self.program.request, self.dtype, self.dtype)

    @cached_property
    def scalars(self) -> dict[str, float]:
        """The number for each scalar: its default, or one of a few fixed values; whole for an i32."""
        found: dict[str, float] = {}
        for value in self.dag.inputs:
            assert value.dtype is not None
            if not value.modes:
                choices = _SCALARS if value.dtype.is_float else _INTEGERS
                number = choices[len(found) % len(choices)] if value.default is None else value.default
                found[value.name] = number if value.dtype.is_float else int(number)
        return found

    def shape(self, modes: Sequence[str], batchable: bool = False) -> tuple[int, ...]:
        """Return the shape of a tensor of these modes; a single batch has no dimension ``l``."""
        if batchable and self.batched and "l" not in modes:
            modes = ("l", *modes)
        return tuple(size for mode in modes if mode != "l" or self.batched for size in self.dims(mode))

    def dims(self, mode: str) -> tuple[int, ...]:
        """Return the dimensions of a mode in shapes: output pixels of a convolution have several."""
        lead = (self.sizes[base(mode)],) if self.problem is None else self.problem.leads[base(mode)]
        return lead if divisor(mode) == 1 else (blocks_of(mode, math.prod(lead)),)

    @property
    def flops(self) -> int:
        """The floating-point operations of the product; for a convolution including those on the padding."""
        if self.problem is not None:
            return 2 * self.problem.multiplications
        return 2 * self.m * self.n * self.k * self.l

    def small(self) -> Case:
        """Return a small problem of the same kernel: extents keep their remainders, which decide the alignment."""
        if self.shapes is not None:
            a, b = self.shapes
            images = min(a[0], _FEW + a[0] % _FEW)
            of_images = self.problem is not None and self.problem.geometry.operator == "wgrad"
            shapes = (images, *a[1:]), (images, *b[1:]) if of_images else tuple(b)
            return convolution_case(self.name, self.program, shapes, dtype=self.dtype, bar=self.bar)
        m, n, k = (256 + size % 128 for size in (self.m, self.n, self.k))
        return replace(self, m=m, n=n, k=k, l=min(self.l, 2))


def convolution_case(
    name: str, program: Program, shapes: Shapes, *, dtype: str | None = None, bar: float | None = None
) -> Case:
    """Return a convolution with A and B of these shapes; m, n and k are the extents of its implicit GEMM.

    Raise ArgumentError (E0604) for shapes that do not fit.
    """
    sizes = problem_sizes(program.request, shapes)
    assert program.request.convolution is not None
    m, n = sizes["m"], sizes["n"]
    k = max(1, program.request.convolution.problem(*shapes).multiplications // (m * n))
    return Case(name, program, m, n, k, dtype=dtype, bar=bar, shapes=shapes)


@dataclass(frozen=True)
class Data:
    """Tensors of a case. ``inputs`` are a call's arguments: tensors, and numbers for scalars."""

    A: torch.Tensor
    B: torch.Tensor
    inputs: Mapping[str, torch.Tensor | float]
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The input tensors, without A, B and the numbers."""
        return {name: value for name, value in self.inputs.items() if isinstance(value, torch.Tensor)}

    def held(self, dag: TypedDag) -> dict[str, torch.Tensor]:
        """Return the buffers of the outputs that are scattered, which a call must pass."""
        return {output.name: self.outputs[output.name] for output in dag.outputs if output.is_indexed}

    @property
    def bytes(self) -> dict[str, int]:
        """The minimum memory traffic of a fused kernel, in bytes: every tensor once."""
        named = {"A": self.A, "B": self.B, **self.tensors, **self.outputs}
        return {name: tensor.numel() * tensor.element_size() for name, tensor in named.items()}

    def poison(self) -> None:
        """Fill the output buffers, so that elements which a kernel leaves unwritten are visible."""
        for tensor in self.outputs.values():
            poison(tensor)


def draw(case: Case, device: torch.device | str, seed: int = 0, *, positive: bool = False) -> Data:
    """Return random tensors for a case: normal, or in (0.1, 1.1) for formulas that need ``positive`` values.

    B is scaled so that the accumulator is about as large as the other inputs; integers are small. A convolution's
    inputs and weights are channels_last.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def operand(position: int, scale: float = 1.0) -> torch.Tensor:
        value = case.dag.operands[position]
        if case.shapes is not None:
            outer, channels, *pixels = case.shapes[position]
            view = (outer, *pixels, channels)
            return from_view(random_tensor(view, value.dtype, generator, scale=scale, positive=positive))
        shape = case.shape(value.modes, batchable=True)
        return random_operand(shape, value.modes, value.dtype, generator, scale=scale, positive=positive)

    inputs: dict[str, torch.Tensor | float] = {}
    a, b = operand(0), operand(1, case.k**-0.5)
    indices = index_inputs(case.dag)
    for value in case.dag.inputs:
        assert value.dtype is not None
        if value.modes:
            shape = case.shape(value.modes, value.batchable and value.is_tile)
            if value.name in indices:
                inputs[value.name] = random_index(shape, shape[-1], value.dtype, generator)
                continue
            drawn = random_tensor(shape, value.dtype, generator, positive=positive)
            inputs[value.name] = from_view(drawn) if case.shapes is not None and is_image(value) else drawn
        else:
            inputs[value.name] = case.scalars[value.name]
    outputs = {}
    for output in case.dag.outputs:
        assert output.dtype is not None
        buffer = _empty(case.shape(output.modes, output.batchable), output.dtype, device)
        outputs[output.name] = from_view(buffer) if case.shapes is not None and is_image(output) else buffer
    return Data(a, b, inputs, outputs)


def _empty(shape: tuple[int, ...], dtype: DType, device: torch.device | str) -> torch.Tensor:
    memory = packed(shape) if dtype == B1 else shape
    return torch.empty(memory, dtype=torch_type(dtype), device=device)
