"""Convolutions: the geometry, which belongs to a program, and the sizes of one problem.

A convolution is the product of an implicit GEMM. For an activation of N images, C channels and H x W pixels, a weight
[K, C, R, S] and an output of P x Q pixels, the modes of the product are

========  =======  =======  =======  ======================  ======================
operator  m        n        k        A                       B
========  =======  =======  =======  ======================  ======================
fprop     N, P, Q  K        R, S, C  activation              weight
dgrad     N, H, W  C        R, S, K  gradient of the output  weight
wgrad     K        R, S, C  N, P, Q  gradient of the output  activation
========  =======  =======  =======  ======================  ======================

A one-dimensional convolution is a two-dimensional one of height 1. A third dimension comes first, as depth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, TypeGuard, get_args

from evt.diagnostics import Diagnostic, hint
from evt.errors import ArgumentError
from evt.ir.node import IMAGES

Operator = Literal["fprop", "dgrad", "wgrad"]

#: The spatial dimensions, innermost last.
SPATIAL = ("depth", "height", "width")

#: Modes of A and B in the implicit GEMM, in memory order.
_MODES: dict[Operator, tuple[tuple[str, str], tuple[str, str]]] = {
    "fprop": (("m", "k"), ("n", "k")),
    "dgrad": (("m", "k"), ("k", "n")),
    "wgrad": (("k", "m"), ("k", "n")),
}

#: Operations that are convolutions: (operator, spatial rank).
CONVOLUTIONS: dict[str, tuple[Operator, int]] = {
    f"conv{rank}d" + ("" if operator == "fprop" else f"_{operator}"): (operator, rank)
    for operator in get_args(Operator)
    for rank in (1, 2, 3)
}

#: The modes of A and B by operation.
OPERAND_MODES = {name: _MODES[operator] for name, (operator, _) in CONVOLUTIONS.items()}

#: The keywords of a geometry.
GEOMETRY = ("stride", "padding", "dilation", "groups", "output_padding", "kernel_size")

#: (before, after) for each spatial dimension.
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """The geometry of a convolution, as in torch.nn.functional, without the tensors' sizes.

    ``padding`` is (before, after) for each spatial dimension, or None for ``"same"``, which depends on the kernel size.
    ``output_padding`` (dgrad, smaller than the stride) enlarges the result if the stride leaves its size open.
    ``kernel_size`` (wgrad) is the spatial size of the weight.
    """

    operator: Operator
    rank: int
    stride: tuple[int, ...]
    padding: Pairs | None
    dilation: tuple[int, ...]
    groups: int = 1
    output_padding: tuple[int, ...] = ()
    kernel_size: tuple[int, ...] = ()

    @staticmethod
    def of(operation: str, keywords: Mapping[str, Any]) -> Convolution:
        """Return the geometry from the keywords of a call such as :func:`evt.conv2d`.

        Raise ArgumentError (E0602, E0607).
        """
        operator, rank = CONVOLUTIONS[operation]
        allowed = ["stride", "padding", "dilation", "groups"]
        allowed += {"fprop": [], "dgrad": ["output_padding"], "wgrad": ["kernel_size"]}[operator]
        for name in keywords:
            if name not in allowed:
                message = f"{operation} has no keyword `{name}`"
                raise ArgumentError(Diagnostic("E0602", message, help=hint(name, allowed, "keywords")))
        if operator == "wgrad" and "kernel_size" not in keywords:
            help_text = "the size of the filters: `kernel_size=3`"
            raise ArgumentError(Diagnostic("E0601", f"{operation} needs `kernel_size`", help=help_text))
        stride = _numbers("stride", keywords.get("stride", 1), rank, 1)
        groups = _numbers("groups", keywords.get("groups", 1), 1, 1)[0]
        return Convolution(
            operator,
            rank,
            stride,
            _padding(keywords.get("padding", 0), rank, stride),
            _numbers("dilation", keywords.get("dilation", 1), rank, 1),
            groups,
            _numbers("output_padding", keywords.get("output_padding", 0), rank, 0) if operator == "dgrad" else (),
            _numbers("kernel_size", keywords["kernel_size"], rank, 1) if operator == "wgrad" else (),
        )

    @property
    def is_unit_stride(self) -> bool:
        """True if every pixel is visited: all strides are 1."""
        return set(self.stride) == {1}

    def pads(self, filter_size: Sequence[int]) -> Pairs:
        """Return the padding before and after each spatial dimension, for a kernel size.

        With ``"same"``, the smaller half comes first, as in PyTorch.
        """
        if self.padding is not None:
            return self.padding
        totals = [dilation * (size - 1) for dilation, size in zip(self.dilation, filter_size, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)

    def problem(self, a: Sequence[int], b: Sequence[int]) -> ConvolutionProblem:
        """Return the sizes for operands of these shapes, in PyTorch's order.

        Raise ArgumentError (E0604) for shapes that do not fit.
        """
        self._check_ranks(a, b)
        images, channels, filters, pixels, filter_size = self._operand_sizes(a, b)
        for kind, count in (("input", channels), ("output", filters)):
            if count % self.groups:
                help_text = "`groups` must divide the numbers of input and of output channels"
                raise _misfit(f"{count} {kind} channels do not divide into {self.groups} groups", help_text)
        if 0 in filter_size:
            shown = " x ".join(map(str, filter_size))
            raise _misfit(f"the filters have {shown} taps", "pass a weight with a tap in each dimension at least")
        pads = self.pads(filter_size)
        reach = [dilation * (size - 1) + 1 for dilation, size in zip(self.dilation, filter_size, strict=True)]
        if self.operator == "dgrad":
            results, pixels = pixels, self._gradient_pixels(pixels, pads, reach)
        self._check_reach(pixels, pads, reach)
        if self.operator != "dgrad":
            rest = zip(pixels, pads, reach, self.stride, strict=True)
            results = tuple((size + sum(pad) - span) // step + 1 for size, pad, span, step in rest)
        if self.operator == "wgrad" and tuple(a[2:]) != results:
            given, shown = (" x ".join(map(str, sizes)) for sizes in (a[2:], results))
            help_text = "pass the stride, the padding and the dilation of the forward convolution"
            raise _misfit(f"A has {given} pixels; the output of this convolution has {shown}", help_text)
        return ConvolutionProblem(self, images, channels, filters, pixels, tuple(filter_size), results, pads)

    def _gradient_pixels(self, results: Sequence[int], pads: Pairs, reach: Sequence[int]) -> tuple[int, ...]:
        """Return the pixels of the activation whose gradient a dgrad of ``results`` output pixels is."""
        if any(extra >= step for extra, step in zip(self.output_padding, self.stride, strict=True)):
            message = f"output_padding {self.output_padding} is not smaller than the stride {self.stride}"
            raise _misfit(message, "leave out `output_padding`, or take a number from 0 to stride - 1")
        sizes = zip(results, self.stride, pads, reach, self.output_padding, strict=True)
        return tuple((size - 1) * step - sum(pad) + span + extra for size, step, pad, span, extra in sizes)

    def _check_reach(self, pixels: Sequence[int], pads: Pairs, reach: Sequence[int]) -> None:
        """Raise ArgumentError if the dilated filters span more than the padded input, or either is too large."""
        for size, pad, span in zip(pixels, pads, reach, strict=True):
            padded = size + sum(pad)
            # Symbolic sizes have no guard for this check.
            if isinstance(size, int) and max(padded, span) >= 2**31:
                message = f"the padded input or the dilated filters span {max(padded, span)} pixels"
                raise _misfit(message, "reduce `padding` or `dilation`: at most 2147483647 pixels are supported")
            if self.operator == "dgrad":
                if size < 1:
                    raise _misfit(f"the result would have {size} pixels along a dimension", "reduce `padding`")
            elif padded < span:
                message = f"the dilated filters span {span} pixels, and the padded input has {padded}"
                raise _misfit(message, "increase `padding`, or reduce `dilation`")

    def _check_ranks(self, a: Sequence[int], b: Sequence[int]) -> None:
        """Raise ArgumentError for shapes with another number of dimensions."""
        names = {"fprop": ("x", "weight"), "dgrad": ("the gradient", "weight"), "wgrad": ("the gradient", "x")}
        for name, operand, shape in zip(names[self.operator], "AB", (a, b), strict=True):
            if len(shape) == self.rank + 2:
                continue
            image = {1: "[N, C, L]", 2: "[N, C, H, W]", 3: "[N, C, D, H, W]"}[self.rank]
            weight = {1: "[K, C, S]", 2: "[K, C, R, S]", 3: "[K, C, T, R, S]"}[self.rank]
            expected = weight if name == "weight" else image
            help_text = f"pass a tensor of {self.rank + 2} dimensions"
            if len(shape) == self.rank + 1 and name != "weight":
                help_text = f"a single image needs a dimension of images, too: {operand}[None]"
            raise _misfit(f"{operand} ({name}) has {len(shape)} dimensions; expected {expected}", help_text)

    def _operand_sizes(
        self, a: Sequence[int], b: Sequence[int]
    ) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...]]:
        """Return the images, channels, filters, pixels and filter size that A and B give; for dgrad, pixels of A.

        Raise ArgumentError for A and B that contradict each other.
        """
        if self.operator == "wgrad":
            if a[0] != b[0]:
                message = f"A has {a[0]} images and B has {b[0]}"
                raise _misfit(message, "A is the gradient of the output for the images of B")
            return b[0], b[1], a[1], tuple(b[2:]), self.kernel_size
        filters, channels = b[0], b[1] * self.groups
        if self.operator == "dgrad" and a[1] != filters:
            message = f"A has {a[1]} channels and B has {filters} output channels"
            raise _misfit(message, "A is the gradient of the output: its channels are the first dimension of B")
        if self.operator == "fprop" and a[1] != channels:
            per_group = f" in each of {self.groups} groups" if self.groups > 1 else ""
            help_text = "the second dimension of B is the channels of A, divided by `groups`"
            raise _misfit(f"A has {a[1]} channels and B has {b[1]}{per_group}", help_text)
        return a[0], channels, filters, tuple(a[2:]), tuple(b[2:])


@dataclass(frozen=True)
class ConvolutionProblem:
    """The sizes of one convolution: ``pixels`` of the activation, ``results`` of the output, innermost last."""

    geometry: Convolution
    images: int
    channels: int
    filters: int
    pixels: tuple[int, ...]
    filter_size: tuple[int, ...]
    results: tuple[int, ...]
    pads: Pairs

    @cached_property
    def leads(self) -> dict[str, tuple[int, ...]]:
        """The dimensions of each mode; ``k`` is the channels of A, over which an operand may vary."""
        match self.geometry.operator:
            case "fprop":
                return self._leads((self.images, *self.results), (self.filters,), self.channels)
            case "dgrad":
                return self._leads((self.images, *self.pixels), (self.channels,), self.filters)
            case "wgrad":
                columns = (*self.filter_size, self.channels // self.geometry.groups)
                found = self._leads((self.filters,), columns, self.images * math.prod(self.results))
                del found[IMAGES]  # whose pixels are no rows
                return found

    @staticmethod
    def _leads(rows: tuple[int, ...], columns: tuple[int, ...], inner: int) -> dict[str, tuple[int, ...]]:
        return {"l": (), "m": rows, "n": columns, "k": (inner,), IMAGES: rows[:1]}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The numbers that a kernel is called with, by name."""
        rank = self.geometry.rank
        sizes = {mode: math.prod(dims) for mode, dims in self.leads.items()}
        sizes["contraction"] = self.contraction
        sizes |= {"images": self.images, "channels": self.channels, "filters": self.filters}
        sizes["groups"] = self.geometry.groups
        for position, name in enumerate(SPATIAL[-max(rank, 2) :]):
            at = position - (rank == 1)  # a one-dimensional input has height 1
            absent = at < 0
            sizes[name] = 1 if absent else self.pixels[at]
            sizes[f"filter_{name}"] = 1 if absent else self.filter_size[at]
            sizes[f"output_{name}"] = 1 if absent else self.results[at]
            sizes[f"pad_{name}"], sizes[f"upper_pad_{name}"] = (0, 0) if absent else self.pads[at]
            sizes[f"stride_{name}"] = 1 if absent else self.geometry.stride[at]
            sizes[f"dilation_{name}"] = 1 if absent else self.geometry.dilation[at]
        return sizes

    @property
    def extents(self) -> dict[str, int]:
        """The extents of the modes, and of the operands' channels in memory."""
        first = self.channels if self.geometry.operator == "fprop" else self.filters
        return {**self.sizes, "A": first, "B": self.channels // self.geometry.groups}

    @property
    def is_depthwise(self) -> bool:
        """True if each channel has one filter and gives one channel."""
        return self.channels == self.filters == self.geometry.groups > 1

    @property
    def columns(self) -> int:
        """The columns of the implicit GEMM."""
        return math.prod(self.leads["n"])

    @property
    def depth(self) -> int:
        """The channels of one filter tap, which the sums run over; the pixels for wgrad."""
        return math.prod(self.leads["k"]) // (self.geometry.groups if self.geometry.operator != "wgrad" else 1)

    @property
    def contraction(self) -> int:
        """The length of each sum, padding included: taps times the channels of one group; the pixels for wgrad."""
        return self.depth * (math.prod(self.filter_size) if self.geometry.operator != "wgrad" else 1)

    @property
    def multiplications(self) -> int:
        """The number of multiply-adds, padding included."""
        pixels = self.images * math.prod(self.results)
        return pixels * self.filters * math.prod(self.filter_size) * self.channels // self.geometry.groups

    @property
    def is_empty(self) -> bool:
        """Whether a tensor has no elements: such a call launches nothing."""
        return 0 in (self.images, self.channels, self.filters, *self.pixels, *self.filter_size, *self.results)

    @property
    def largest_operand(self) -> int:
        """The number of elements of the larger of A and B."""
        activation = self.images * math.prod(self.pixels) * self.channels
        output = self.images * math.prod(self.results) * self.filters
        filters = self.filters * math.prod(self.filter_size) * self.channels // self.geometry.groups
        pairs = {"fprop": (activation, filters), "dgrad": (output, filters), "wgrad": (output, activation)}
        return max(pairs[self.geometry.operator])


def _misfit(message: str, help_text: str) -> ArgumentError:
    """Return the error of operands whose shapes do not fit."""
    return ArgumentError(Diagnostic("E0604", message, help=help_text))


def _numbers(name: str, value: object, rank: int, least: int, note: str = "") -> tuple[int, ...]:
    """Return a whole number for every spatial dimension, from one number or a sequence. ``note`` ends the message."""
    wanted = f"expected a whole number of at least {least}" + (f", or {rank} of them" if rank > 1 else "") + note
    given = tuple(value) if _is_sequence(value) else (value,) * rank
    numbers = tuple(number for number in given if _is_whole(number) and number >= least)
    if len(given) != rank or len(numbers) != rank:
        raise ArgumentError(Diagnostic("E0607", f"`{name}` is {value!r}; {wanted}"))
    return tuple(map(int, numbers))


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_whole(value: object) -> TypeGuard[int]:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) < 2**31


def _padding(value: object, rank: int, stride: tuple[int, ...]) -> Pairs | None:
    """Return the padding of ``padding``: a number, a number or (before, after) pair for each dimension, "valid" or
    "same".
    """
    if isinstance(value, str) and value == "valid":
        return ((0, 0),) * rank
    if isinstance(value, str) and value == "same":
        if set(stride) != {1}:
            raise ArgumentError(Diagnostic("E0607", f"`padding` is 'same', and the stride {stride} is not 1"))
        return None
    if _is_sequence(value) and len(value) == rank and any(map(_is_sequence, value)):
        pairs = (_numbers("padding", each, 2, 0) for each in value)
        return tuple((before, after) for before, after in pairs)
    if isinstance(value, str):
        known = 'expected numbers, "same" or "valid"'
        raise ArgumentError(Diagnostic("E0607", f"`padding` is {value!r}; {known}"))
    note = "; each may be a pair (before, after)" if rank > 1 else ", or a sequence of a pair (before, after)"
    return tuple((each, each) for each in _numbers("padding", value, rank, 0, note))
