"""Calls of the samples: random tensors, the results of the formulas of ``records``, and the distance of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace as Inputs
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evt.ir.dag import index_inputs
from evt.ir.node import base
from evt.reference.compare import distance
from evt.request import typed_graph
from tests.support.records import MEANINGS

if TYPE_CHECKING:
    import evt
    from evt.ir.dtype import DType

#: The values of inputs that a call omits; optional inputs that are not here are 0.
ABSENT = {"alpha": 1.0, "x": 1.0, "token_scale": 1.0, "lower": -1.0, "upper": 1.0}
ABSENT_BETA = {"two_biases": 1.0}
BATCHED = frozenset({"batched_broadcasts"})
#: Samples that give the largest magnitude of D: their data make it that of a negative element, not the maximum.
NEGATIVE_PEAK = frozenset({"amax", "squared_relu", "squared_relu_backward", "swiglu_blocks"})
#: Ways to call: with every input, without the inputs that have a default, single values for vectors marked ``?``.
VARIANTS = ("given", "absent", "single")
#: Scalars by name; a product of integers is large, so that its factor is small.
_SCALARS = {"alpha": 1.5, "beta": -0.5, "lower": -0.75, "upper": 1.25, "norm_const": 1.25, "scale_b": -0.5}
_INTEGER_RANGE = {"i8": (-9, 10), "u8": (0, 10), "i32": (-50, 50), "b1": (0, 256)}


@dataclass(frozen=True)
class Call:
    """The tensors of a call, and the results of the formula; ``buffers`` are the ones that the call must give."""

    a: Tensor
    b: Tensor
    inputs: dict[str, Any]
    wanted: tuple[Tensor, ...]
    buffers: dict[str, Tensor] = field(default_factory=dict)


def variants(program: evt.Program) -> tuple[str, ...]:
    """Return the ways in which a program may be called."""
    optional = any(value.default is not None for value in program.request.dag.inputs)
    flexible = any(value.flexible for value in program.request.dag.inputs)
    return tuple(name for name, fits in zip(VARIANTS, (True, optional, flexible), strict=True) if fits)


def make_call(
    name: str, program: evt.Program, sizes: Mapping[str, int], variant: str = "given", device: str = "cpu"
) -> Call:
    """Random tensors for a sample; ``sizes`` by mode; ``l`` counts for batched samples only."""
    generator = torch.Generator(device).manual_seed(sum(map(ord, name)))
    typed = typed_graph(program.request)
    integers = not typed.operands[0].dtype.is_float

    def random(shape: Sequence[int], dtype: DType, scale: float = 1.0) -> Tensor:
        to: torch.dtype = getattr(torch, dtype.torch)
        if dtype.name in _INTEGER_RANGE:
            return torch.randint(*_INTEGER_RANGE[dtype.name], tuple(shape), device=device, generator=generator).to(to)
        made = torch.randn(tuple(shape), device=device, generator=generator, dtype=torch.float64) * scale
        if made.dim() > 1:
            made[..., :4, :] /= 16  # rows of small values, on which activations are nearly linear
        return made.to(to)

    batch = (sizes["l"],) if name in BATCHED else ()
    a, b = (
        random((*batch, *(sizes[mode] for mode in operand.modes)), operand.dtype, sizes["k"] ** -0.25)
        for operand in typed.operands
    )
    inputs: dict[str, Any] = {}
    indices = index_inputs(typed)
    for value in typed.inputs:
        assert value.dtype is not None
        if variant == "absent" and value.default is not None:
            continue
        if value.name in indices:  # each row once
            order = torch.randperm(sizes[value.modes[-1]], device=device, generator=generator)
            inputs[value.name] = order.to(torch.int32)
        elif value.modes:
            single = value.flexible and variant == "single"
            shape = [1] if single else [sizes[base(mode)] for mode in value.modes]
            large = integers and value.name.startswith("bias")  # to be seen beside an accumulator of integers
            inputs[value.name] = random(shape, value.dtype, 64.0 if large else 1.0)
        elif str(value.dtype) == "i32":
            inputs[value.name] = {"alpha": 3, "beta": -2}[value.name]
        else:
            inputs[value.name] = 0.0625 if integers and value.name == "alpha" else _SCALARS.get(value.name, 0.75)
    wanted = expected(name, program, a, b, inputs)
    while name in NEGATIVE_PEAK and wanted[0].abs().max() == wanted[0].max():
        a = random(a.shape, typed.operands[0].dtype, sizes["k"] ** -0.25)
        wanted = expected(name, program, a, b, inputs)
    scattered = [(each, want) for each, want in zip(typed.outputs, wanted, strict=True) if each.is_indexed]
    buffers = {each.name: torch.zeros_like(want, dtype=getattr(torch, each.dtype.torch)) for each, want in scattered}
    return Call(a, b, inputs, wanted, buffers)


def expected(name: str, program: evt.Program, a: Tensor, b: Tensor, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the outputs in f64 by the formula of :data:`MEANINGS`; bits as bytes."""
    modes_a, modes_b = program.request.operand_modes
    left, right = a.double(), b.double()
    acc = (left if modes_a == ("m", "k") else left.mT) @ (right if modes_b == ("k", "n") else right.mT)
    absent = {**ABSENT, "beta": ABSENT_BETA.get(name, 0.0)}
    given = {key: inputs.get(key, absent.get(key, 0.0)) for key in program.inputs}
    wide = {key: torch.as_tensor(value, device=acc.device).double() for key, value in given.items()}
    outputs = MEANINGS[name](acc, Inputs(**wide))
    return outputs if isinstance(outputs, tuple) else (outputs,)


#: By how much an output may be further off: a sum of rounded values moves by a whole step of f16 where a value falls on
#: the other side of a tie. Without the rounding it is 10 times as far off as its own bound.
SLACK = {"lincomb_row_sums": (1.0, 4.0)}


def distances(name: str, program: evt.Program, got: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[float]:
    """Return the distance of each output of a sample; at most 1 is right."""
    typed = typed_graph(program.request)
    factors = SLACK.get(name, (1.0,) * len(typed.outputs))
    operand = typed.operands[0].dtype
    summed = operand if operand.bits == 8 and got[0].is_cuda else None  # in fewer bits, by the tensor cores
    found = []
    for mine, right, output, more in zip(got, wanted, typed.outputs, factors, strict=True):
        assert output.dtype is not None
        inside = output.dtype if output.dtype.bits == 16 else None
        found.append(distance(mine, right, output.dtype, operand=summed, inside=inside) / more)
    return found
