"""Convolutions as CUTLASS names them: kernels, options, and the members of their problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from evt.emission.expressions import as_int, fragment_element, read
from evt.emission.text import Assignments, ConvolutionText
from evt.emission.workspace import copy_channels, copy_strides
from evt.ir.convolution import SPATIAL
from evt.plan.configurations.config import ConfigDepthwise
from evt.plan.plan import (
    Convolution,
    Convolution2x,
    Convolution3x,
    DepthwiseConvolution,
    HaloConvolution,
    HaloProduct,
    Image,
    Matrix,
    MatrixProduct,
    PaddedCopy,
    Plan,
)

_CONV = "cutlass::conv::"
_HALO = "evt::halo::Kernel"
_ITERATORS = {"optimized": "kOptimized", "analytic": "kAnalytic", "fixed channels": "kFixedChannels"}
_GROUPS = {"one": "", "single": "kSingleGroup", "multiple": "kMultipleGroup"}


def convolution(plan: Plan) -> ConvolutionText | None:
    """Return the convolution of a plan that has one."""
    match plan.mainloop:
        case Convolution2x() as loop:
            return _convolution_2x(loop)
        case Convolution3x() as loop:
            return _convolution_3x(loop)
        case HaloConvolution() as loop:
            return _convolution_halo(loop)
        case DepthwiseConvolution() as loop:
            return _convolution_depthwise(plan, loop)
        case HaloProduct() as loop:
            return _product_halo(loop)
        case MatrixProduct():
            return None


def _operator(loop: Convolution) -> str:
    return f"{_CONV}Operator::k{loop.operator.capitalize()}"


def _extent(name: str) -> str:
    """Return one of the sizes of ConvolutionProblem."""
    return as_int(f"arguments.{name}")


# CUTLASS 2.x.


def _convolution_2x(loop: Convolution2x) -> ConvolutionText:
    """Return the stock kernel whose main loop and epilogue are used, and the sizes with which it is called."""
    rank, several = loop.rank, loop.groups != "one"
    names = {"N": "images", "C": "channels", "K": "filters", "groups": "groups"}
    letters = ("dhw"[-rank:], "DHW"[-rank:], "TRS"[-rank:], "ZPQ"[-rank:])
    for name, letter, of_input, of_filter, of_output in zip(loop.spatial, *letters, strict=True):
        names |= {of_input: name, of_filter: f"filter_{name}", of_output: f"output_{name}"}
        names |= {f"{part}_{letter}": f"{part}_{name}" for part in ("pad", "stride", "dilation")}
    extents = {member: _extent(name) for member, name in names.items()}
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
        "extents of the activation": [_extent(name) for name in activation],
        "strides of the activation": _strides(loop.a) if fprop else _packed(activation),
        "extents of the filters": [
            _extent(name) for name in ("filters", *(f"filter_{name}" for name in spatial), "channels")
        ],
        "strides of the filters": _strides(loop.b),
        "strides of the output": _packed(output) if fprop else _strides(loop.a),
        "padding before": [_extent(f"pad_{name}") for name in spatial],
        "padding after": [_extent(f"upper_pad_{name}") for name in spatial],
        "stride": [_extent(f"stride_{name}") for name in spatial],
        "dilation": [_extent(f"dilation_{name}") for name in spatial],
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
    return [" * ".join(["std::int64_t{1}", *(_extent(name) for name in extents[i + 1 :])]) for i in range(len(extents))]


def _with_windows(loop: Convolution3x, lists: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the lists where a row of taps is one tap: each window is a pixel."""
    window = f"{loop.window_channels} * {_extent('filter_width')}"
    step = f"{loop.window_channels} * arguments.stride_width"
    *image, _, _ = lists["strides of the activation"]
    *filter_, _, _ = lists["strides of the filters"]
    lists["extents of the activation"] = [_extent("images"), _extent("height"), _extent("output_width"), window]
    lists["strides of the activation"] = [*image, step, "1"]
    lists["extents of the filters"] = [_extent("filters"), _extent("filter_height"), "1", window]
    lists["strides of the filters"] = [*filter_, filter_[-1], "1"]
    for what, of_rows in (("padding before", "0"), ("padding after", "0"), ("stride", "1"), ("dilation", "1")):
        lists[what] = [lists[what][0], of_rows]
    return lists


# Ours.


def _convolution_halo(loop: HaloConvolution) -> ConvolutionText:
    """Return the members of the kernel's arguments that describe the operands."""
    options = [str(loop.rank)]
    if loop.shared:
        options.append("true")
    if loop.windows:
        options += ["false", *map(str, loop.windows)]
    made = _convolution_of_ours(loop, _HALO, options)
    settings = tuple((name, _extent(f"tile_{name}")) for name in ("rows", "columns"))
    remark = "The convolution, and the size of tiles where the caller has one in mind."
    return replace(made, settings=settings, remark=remark)


def _product_halo(loop: HaloProduct) -> ConvolutionText:
    """Return a product as a convolution with one tap: of one image, whose one row has a pixel for each row of A."""
    spatial = SPATIAL[-2:]
    sizes = dict.fromkeys(_sizes(spatial), "1")
    sizes |= dict.fromkeys([f"pad_{name}" for name in spatial], "0")
    sizes |= {"channels": _extent("k"), "filters": _extent("n"), "width": _extent("m"), "output_width": _extent("m")}
    options = ("2", "true") if loop.shared else ("2",)
    operands = (*_rows("a", loop.a), *_rows("b", loop.b))
    made = _ours(_HALO, sizes, options, operands)
    return replace(made, remark="The product, as a convolution with one tap.", refused="arguments->l != 1")


def _rows(letter: str, matrix: Matrix) -> Iterator[tuple[str, str]]:
    """Yield the members that say where A or B is: all dimensions but the rows have one element."""
    yield letter, read(matrix.pointer)
    yield from ((f"{letter}_strides[{i}]", read(matrix.leading)) for i in range(3))


def _convolution_depthwise(plan: Plan, loop: DepthwiseConvolution) -> ConvolutionText:
    """Return the same, and the filter that the kernel is made for."""
    assert isinstance(plan.config, ConfigDepthwise)
    numbers = (*loop.filter.taps, *loop.filter.stride, *loop.filter.dilation, *plan.config.unit)
    backwards = "true" if loop.operator == "dgrad" else "false"
    filter_ = f"evt::depthwise::Filter<{', '.join(map(str, numbers))}, {backwards}>"
    return _convolution_of_ours(loop, "evt::depthwise::Kernel", [fragment_element(loop.a.dtype), filter_])


def _convolution_of_ours(loop: Convolution, kernel: str, options: list[str]) -> ConvolutionText:
    sizes = {name: _extent(name) for name in _sizes(loop.spatial)}
    if loop.operator == "dgrad":
        sizes |= _as_fprop(loop.spatial)
    return _ours(kernel, sizes, tuple(options), (*_operand("a", loop.a), *_operand("b", loop.b)))


def _sizes(spatial: tuple[str, ...]) -> list[str]:
    """Return the sizes of a convolution, by the names of the kernels' Problem."""
    of_dimensions = [f"{part}_{name}" for part in ("filter", "output", "pad", "stride", "dilation") for name in spatial]
    return ["images", *spatial, "channels", "filters", *of_dimensions]


def _ours(kernel: str, sizes: Mapping[str, str], options: tuple[str, ...], operands: Assignments) -> ConvolutionText:
    extents = tuple((f"problem.{_member(name)}", value) for name, value in sizes.items())
    return ConvolutionText("", kernel, ("",), "", extents, options, operands, remark="The convolution.")


def _member(name: str) -> str:
    """Return the member of the kernels' Problem that has a size: an Axis has ``pad_width`` as ``width.pad``."""
    part, _, axis = name.rpartition("_")
    if axis not in SPATIAL:
        return name
    return f"{axis}.{'taps' if part == 'filter' else part or 'size'}"


def _operand(letter: str, operand: Image | PaddedCopy) -> Iterator[tuple[str, str]]:
    """Yield the members that say where A or B is."""
    assert isinstance(operand, Image)
    yield letter, read(operand.pointer)
    yield from ((f"{letter}_strides[{i}]", read(stride)) for i, stride in enumerate(operand.strides))


def _as_fprop(spatial: tuple[str, ...]) -> dict[str, str]:
    """Return the sizes of the fprop that is a dgrad: see evt.plan.halo.forward."""
    sizes: dict[str, str] = {}
    for one, other in (("channels", "filters"), *((name, f"output_{name}") for name in spatial)):
        sizes |= {one: _extent(other), other: _extent(one)}
    for name in spatial:
        size, dilation, pad = (f"arguments.{part}_{name}" for part in ("filter", "dilation", "pad"))
        sizes[f"pad_{name}"] = as_int(f"{dilation} * ({size} - 1) - {pad}")
    return sizes
