"""Convolutions as CUTLASS names them: kernels, options, and the members of their problems."""

from __future__ import annotations

from evt.emission.expressions import as_int, read
from evt.emission.text import ConvolutionText
from evt.emission.workspace import copy_channels, copy_strides
from evt.plan.plan import Convolution, Convolution2x, Convolution3x, Image, PaddedCopy, Plan

_CONV = "cutlass::conv::"
_ITERATORS = {"optimized": "kOptimized", "analytic": "kAnalytic", "fixed channels": "kFixedChannels"}
_GROUPS = {"one": "", "single": "kSingleGroup", "multiple": "kMultipleGroup"}


def convolution(plan: Plan) -> ConvolutionText | None:
    """Return the convolution of a kernel of CUTLASS."""
    match plan.mainloop:
        case Convolution2x() as loop:
            return _convolution_2x(loop)
        case Convolution3x() as loop:
            return _convolution_3x(loop)
        case _:
            return None


def _operator(loop: Convolution) -> str:
    return f"{_CONV}Operator::k{loop.operator.capitalize()}"


def extent(name: str) -> str:
    """Return one of the sizes of ConvolutionProblem."""
    return as_int(f"arguments.{name}")


# CUTLASS 2.x.


def _convolution_2x(loop: Convolution2x) -> ConvolutionText:
    """Return the stock kernel that supplies the main loop and the epilogue, and the sizes of its call."""
    rank, several = loop.rank, loop.groups != "one"
    names = {"N": "images", "C": "channels", "K": "filters", "groups": "groups"}
    letters = ("dhw"[-rank:], "DHW"[-rank:], "TRS"[-rank:], "ZPQ"[-rank:])
    for name, letter, of_input, of_filter, of_output in zip(loop.spatial, *letters, strict=True):
        names |= {of_input: name, of_filter: f"filter_{name}", of_output: f"output_{name}"}
        names |= {f"{part}_{letter}": f"{part}_{name}" for part in ("pad", "stride", "dilation")}
    extents = {member: extent(name) for member, name in names.items()}
    if isinstance(loop.a, PaddedCopy):
        extents["C"] = as_int(copy_channels(loop.a))
    return ConvolutionText(
        operator=_operator(loop),
        kernel=f"{_CONV}kernel::DefaultConv{rank}d{'Group' if several else ''}{loop.operator.capitalize()}",
        headers=(f"cutlass/conv/kernel/default_conv{rank}d_{'group_' if several else ''}{loop.operator}.h",),
        problem=f"{_CONV}Conv{rank}dProblemSize",
        extents=tuple(extents.items()),
        options=_options(loop),
    )


def _options(loop: Convolution2x) -> tuple[str, ...]:
    """Return the last template arguments of the stock kernel: groups, iterators, strides and alignments."""
    options = [f"{_CONV}GroupMode::{_GROUPS[loop.groups]}"] if loop.groups != "one" else []
    options.append(f"{_CONV}IteratorAlgorithm::{_ITERATORS[loop.iterators]}")
    options.append(f"{_CONV}StrideSupport::{'kStrided' if loop.strided else 'kUnity'}")
    return (*options, *map(str, loop.alignments))


# CUTLASS 3.x.


def _convolution_3x(loop: Convolution3x) -> ConvolutionText:
    """Return the collectives' operator and the lists from which CUTLASS makes the problem."""
    return ConvolutionText(
        operator=_operator(loop),
        kernel="evt::convolution::OverWindows" if loop.window_channels else "",
        headers=("cutlass/conv/kernel/conv_universal.hpp", "cutlass/conv/collective/collective_builder.hpp"),
        problem=f"{_CONV}ConvProblemShape<{_operator(loop)}, {loop.rank}>",
        extents=tuple((what, f"{{{', '.join(values)}}}") for what, values in _lists(loop).items()),
    )


def _lists(loop: Convolution3x) -> dict[str, list[str]]:
    """Return the lists from which CUTLASS makes the problem, by name, with the outermost dimension first."""
    fprop, spatial = loop.operator == "fprop", loop.spatial
    activation = ["images", *spatial, "channels"]
    output = ["images", *(f"output_{name}" for name in spatial), "filters"]
    lists = {
        "extents of the activation": [extent(name) for name in activation],
        "strides of the activation": _strides(loop.a) if fprop else _packed(activation),
        "extents of the filters": [
            extent(name) for name in ("filters", *(f"filter_{name}" for name in spatial), "channels")
        ],
        "strides of the filters": _strides(loop.b),
        "strides of the output": _packed(output) if fprop else _strides(loop.a),
        "padding before": [extent(f"pad_{name}") for name in spatial],
        "padding after": [extent(f"upper_pad_{name}") for name in spatial],
        "stride": [extent(f"stride_{name}") for name in spatial],
        "dilation": [extent(f"dilation_{name}") for name in spatial],
    }
    for what, operand in (("activation", loop.a), ("filters", loop.b)):
        if isinstance(operand, PaddedCopy):
            lists[f"extents of the {what}"][-1] = as_int(copy_channels(operand))
    return _with_windows(loop, lists) if loop.window_channels else lists


def _strides(operand: Image | PaddedCopy) -> list[str]:
    steps = copy_strides(operand) if isinstance(operand, PaddedCopy) else [read(stride) for stride in operand.strides]
    return [*steps, "1"]


def _packed(extents: list[str]) -> list[str]:
    """Return the strides of a packed tensor."""
    return [" * ".join(["std::int64_t{1}", *(extent(name) for name in extents[i + 1 :])]) for i in range(len(extents))]


def _with_windows(loop: Convolution3x, lists: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the lists of a convolution over windows: a row of taps is one tap, and a window is one pixel."""
    window = f"{loop.window_channels} * {extent('filter_width')}"
    step = f"{loop.window_channels} * arguments.stride_width"
    *image, _, _ = lists["strides of the activation"]
    *filter_, _, _ = lists["strides of the filters"]
    lists["extents of the activation"] = [extent("images"), extent("height"), extent("output_width"), window]
    lists["strides of the activation"] = [*image, step, "1"]
    lists["extents of the filters"] = [extent("filters"), extent("filter_height"), "1", window]
    lists["strides of the filters"] = [*filter_, filter_[-1], "1"]
    for what, of_rows in (("padding before", "0"), ("padding after", "0"), ("stride", "1"), ("dilation", "1")):
        lists[what] = [lists[what][0], of_rows]
    return lists
