"""A checked call: ``Bound``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from evt.ir import Input, Output, TypedDag
from evt.ir.convolution import ConvolutionProblem
from evt.ir.dtype import B1
from evt.ir.node import base, blocks_of, divisor
from evt.plan import LayoutClass, Signature, Sizes, convolution_class
from evt.runtime.layout import TensorArgument

#: The layout of a flexible vector (``[m?]``) that is given as a number.
_NUMBER = LayoutClass(None, 1)


@dataclass(frozen=True)
class Bound:
    """A checked call. ``sizes`` has m, n, k, l; ``leads`` has the dimensions of m and l in the tensors' shapes.

    For a call of several launches, ``offsets`` are the bytes that each launch adds to the addresses of tensors, by
    name, and ``sizes`` and ``tensors`` describe one launch. ``dag`` is the program without the ``absent`` inputs:
    tensors with a default that the call leaves out. ``values`` are the call's values by name, tensors as plain memory.

    ``invariant``: layout classes do not depend on the number of rows, also if that is 1. ``ragged``: the rows of all
    groups, which l counts, are consecutive.

    In a ``convolution``, ``copied`` names the tensors that are not channels_last. ``tensors`` describes their copies:
    the kernel reads a copy of an input, and writes a copy of a buffer. ``planar``: it stores contiguous images itself.
    """

    dag: TypedDag
    sizes: Mapping[str, int]
    leads: Mapping[str, tuple[int, ...]]
    device: torch.device
    tensors: Mapping[str, TensorArgument] = field(default_factory=dict)
    convolution: ConvolutionProblem | None = None
    copied: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    operand_bytes: int = 0  # of a convolution's larger operand, from its first to its last element
    absent: tuple[str, ...] = ()
    offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    invariant: bool = False
    ragged: bool = False
    planar: bool = False

    @property
    def index(self) -> int:
        """The index of the CUDA device."""
        return self.device.index if self.device.index is not None else torch.cuda.current_device()

    @property
    def is_empty(self) -> bool:
        """Whether the product has no elements or no terms."""
        return any(size == 0 for name, size in self.sizes.items() if "pad_" not in name)

    @property
    def layer(self) -> tuple[object, ...]:
        """The extents of a convolution's weights; for a matrix product, whether there are several batches."""
        problem = self.convolution
        return (self.has_batches,) if problem is None else (problem.filters, problem.channels, problem.filter_size)

    @property
    def has_batches(self) -> bool:
        """Whether there are several batches."""
        return self.sizes.get("l", 1) > 1

    @property
    def plan_sizes(self) -> Sizes:
        """The sizes that choose among kernels."""
        return Sizes(self.convolution, self.operand_bytes, self.has_batches)

    @property
    def signature(self) -> Signature:
        values: tuple[Input | Output, ...] = (*self.dag.inputs, *self.dag.outputs)
        vectors = [value for value in values if set(map(base, value.modes)) & {"m", "n"}]
        named = [(v.name, self.tensors[v.name].layout if v.name in self.tensors else _NUMBER) for v in vectors]
        a, b = (self.tensors[operand.name].layout for operand in self.dag.operands)
        of = None
        if self.convolution is not None:
            packed = all(self.tensors[name].strides["pixel"] for name in ("A", "B"))
            operand = self.dag.operands[0].dtype
            of = convolution_class(self.convolution.geometry, self.convolution, operand, packed)
        return Signature(a, b, tuple(named), of)

    def dims(self, mode: str) -> tuple[int, ...]:
        """Return the dimensions of a mode in shapes; divided modes have one."""
        return self.leads[mode] if divisor(mode) == 1 else (blocks_of(mode, self.sizes[base(mode)]),)

    def extent(self, mode: str) -> int:
        return math.prod(self.dims(mode))

    def memory_modes(self, output: Output) -> tuple[str, ...]:
        """Return an output's modes in memory; the batch comes first if the output has no ``l``."""
        return output.modes if self.ragged else output.memory_modes

    def output_shape(self, output: Output) -> tuple[int, ...]:
        """Return an output's shape in memory; the batch comes first if the output has no ``l``."""
        shape = tuple(size for mode in self.memory_modes(output) for size in self.dims(mode))
        return packed(shape) if output.dtype == B1 else shape


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of packed bits in bytes."""
    return (*shape[:-1], -(-shape[-1] // 8))
