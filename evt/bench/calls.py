"""Random tensors for a call of a program: ``random_call(request, dag, shapes, generator) -> (operands, inputs)``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from evt.bench.tensors import random_index, random_operand, random_tensor
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Input, Operand, TypedDag
from evt.ir.convolution import Convolution
from evt.ir.dag import index_inputs
from evt.ir.dtype import BOOL
from evt.ir.node import base, blocks_of
from evt.reference import is_image
from evt.reference.convolution import from_view
from evt.reference.rounding import torch_type
from evt.request import Request, Shapes, problem_sizes
from evt.runtime.memory_format import channels_last

_LARGEST = 1000  # of integer scalars
#: Default sizes of a convolution by its rank: batch, channels and output channels; input and kernel size.
_IMAGES, _CHANNELS, _TAPS = 2, 64, 3
_PIXELS = {1: (784,), 2: (28, 28), 3: (8, 14, 14)}


def shapes_of(request: Request, given: Shapes | None) -> Shapes:
    """Return the given shapes of A and B, or default shapes of a convolution.

    Raise ArgumentError (E0604) if the default shapes do not fit the program's geometry.
    """
    if given is not None:
        return given
    assert request.convolution is not None
    try:
        return _default_shapes(request.convolution)
    except ArgumentError as error:
        message = f"the default sizes do not fit: {error.diagnostics[0].message}"
        raise ArgumentError(Diagnostic("E0604", message, help="give --a-shape and --b-shape")) from None


def _default_shapes(geometry: Convolution) -> Shapes:
    groups, pixels = geometry.groups, _PIXELS[geometry.rank]
    count = groups * max(1, _CHANNELS // groups)
    x = (_IMAGES, count, *pixels)
    weight = (count, count // groups, *(geometry.kernel_size or (_TAPS,) * geometry.rank))
    gradient = (_IMAGES, count, *replace(geometry, operator="fprop").problem(x, weight).results)
    return {"fprop": (x, weight), "dgrad": (gradient, weight), "wgrad": (gradient, x)}[geometry.operator]


def call_sizes(request: Request, shapes: Shapes) -> dict[str, int]:
    """Return the extents m, n and k of a problem, and l if A has a batch.

    A convolution has the extents of its implicit GEMM. Raise ArgumentError (E0604) for shapes that do not fit.
    """
    extents = problem_sizes(request, shapes)
    if request.convolution is None:
        return {mode: extents[mode] for mode in ("m", "n", "k", *["l"] * (len(shapes[0]) > 2))}
    problem = request.convolution.problem(*shapes)
    m, n = extents["m"], extents["n"]
    return {"m": m, "n": n, "k": max(1, problem.multiplications // (m * n))}


def random_call(
    request: Request, dag: TypedDag, shapes: Shapes, generator: torch.Generator
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return A and B, and the other inputs by name. Inputs with defaults are left out.

    The tensors of a convolution are channels_last. A gathered tensor has the product's number of rows or columns, and
    its index is a permutation. B is scaled so that the accumulator has variance 1.
    """
    sizes = call_sizes(request, shapes)

    def operand(value: Operand, shape: list[int], scale: float = 1.0) -> torch.Tensor:
        if request.convolution is not None:
            return channels_last(random_tensor(shape, value.dtype, generator, scale=scale))
        return random_operand(shape, value.modes, value.dtype, generator, scale=scale)

    operands = [
        operand(value, list(shape), scale)
        for value, shape, scale in zip(dag.operands, shapes, (1.0, max(1, sizes["k"]) ** -0.5), strict=True)
    ]
    inputs: dict[str, Any] = {}
    for value in dag.inputs:
        assert value.dtype is not None
        if value.default is not None:
            continue
        if value.modes:
            inputs[value.name] = _random_input(request, dag, value, shapes, sizes, generator)
        elif value.dtype.is_float:
            inputs[value.name] = float(torch.rand((), generator=generator, device=generator.device) + 0.5)
        else:
            end = 2 if value.dtype == BOOL else _LARGEST
            inputs[value.name] = int(torch.randint(1, end, (), generator=generator, device=generator.device))
    return operands, inputs


def held_buffers(dag: TypedDag, sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Return zeros for each output that is scattered, with the product's numbers of rows and columns."""
    made = {}
    for output in dag.outputs:
        if output.is_indexed:
            assert output.dtype is not None
            batch = [sizes["l"]] if "l" in sizes and output.batchable else []
            shape = [*batch, *(sizes.get(base(mode), 1) for mode in output.modes)]
            made[output.name] = torch.zeros(shape, dtype=torch_type(output.dtype), device=device)
    return made


def _random_input(
    request: Request, dag: TypedDag, value: Input, shapes: Shapes, sizes: Mapping[str, int], generator: torch.Generator
) -> torch.Tensor:
    """Return a tensor for an input: [N, C, ...] in convolutions that take it, else one dimension for each mode."""
    assert value.dtype is not None
    if request.convolution is not None:
        problem = request.convolution.problem(*shapes)
        if is_image(value):
            view = random_tensor((*problem.leads["m"], *problem.leads["n"]), value.dtype, generator)
            return from_view(view)
        sizes = {**sizes, "k": math.prod(problem.leads["k"])}  # the extent that an operand varies over
    if value.name in index_inputs(dag):
        shape = [sizes.get(mode, 1) for mode in value.modes]
        return random_index(shape, shape[-1], value.dtype, generator)
    batch = sizes.get("l", 0)
    own_batch = [batch] if value.is_tile and value.batchable and batch else []
    shape = [*own_batch, *(blocks_of(mode, sizes.get(base(mode), 1)) for mode in value.modes)]
    return random_tensor(shape, value.dtype, generator)
