"""The own kernels of sm90 as C++ types, and the members of their arguments: the problem and the operands."""

from __future__ import annotations

from collections.abc import Iterator

from evt.emission.convolution import extent
from evt.emission.expressions import as_int, comment, fragment_element, read
from evt.emission.multiplication import product_class
from evt.emission.text import Assignments, FactorText, OwnText
from evt.emission.workspace import copy_pointer, copy_strides, operand_of, partial_sums
from evt.ir.convolution import SPATIAL
from evt.ir.dtype import I8, U8
from evt.launch.members import structs
from evt.plan.configurations.config import ConfigDepthwise
from evt.plan.fields import Field
from evt.plan.fusions import Factor, FactorInput
from evt.plan.gemm import Tile, multiplies_halves, tile_of
from evt.plan.gemv import Gemv
from evt.plan.geometry.gemv import STRIP
from evt.plan.moved import moved
from evt.plan.overwritten import overwritten
from evt.plan.plan import (
    Convolution,
    DepthwiseConvolution,
    FilterGradient,
    HaloConvolution,
    Image,
    OwnProduct,
    PaddedCopy,
    Plan,
    Tensor,
)
from evt.plan.signature import bytes_of

_PARTS = ("filter", "output", "pad", "stride", "dilation")


def own(plan: Plan) -> OwnText | None:
    """Return the own kernel of a plan that has one."""
    match plan.mainloop:
        case HaloConvolution() as loop:
            numbers = [(name, f"tile_{name}") for name in ("rows", "columns")]
            numbers += [("groups", "groups")] * (loop.groups not in ("one", "taps"))
            tile = tuple((name, extent(size)) for name, size in numbers)
            return OwnText(
                mainloop=_mainloop(plan, loop),
                kernel=_kernel(loop),
                remark="The convolution, and the size of tiles if the caller gives one.",
                problem=(*_sizes(loop), *tile),
                operands=(*_image("a", loop.a), *_image("b", loop.b)),
                structs=structs(plan),
            )
        case OwnProduct() as loop:
            return _product(plan, loop)
        case Gemv() as loop:
            matrices = (("a", loop.a), ("b", loop.b))
            operands = [(letter, read(matrix.pointer)) for letter, matrix in matrices]
            strides = [(f"{letter}_stride", read(matrix.leading)) for letter, matrix in matrices]
            return OwnText(
                mainloop="",
                kernel=_gemv(plan, loop),
                remark="The matrix product.",
                problem=_matrix_sizes(),
                operands=(*operands, *strides),
                structs=structs(plan),
                refused="arguments->l != 1",
            )
        case DepthwiseConvolution() as loop:
            return OwnText(
                mainloop="",
                kernel=f"evt::depthwise::Kernel<{fragment_element(loop.a.dtype)}, {_filter(plan, loop)}, Epilogue>",
                remark="The convolution.",
                problem=_sizes(loop),
                operands=(*_image("a", loop.a), *_image("b", loop.b)),
                structs=structs(plan),
            )
        case FilterGradient() as loop:
            return OwnText(
                mainloop="",
                kernel=f"evt::wgrad::Wgrad<Mma, Epilogue, evt::wgrad::WgradTile<{', '.join(map(str, loop.part))}>>",
                remark="The convolution.",
                problem=_sizes(loop),
                operands=(*_image("a", loop.a), *_image("b", loop.b), ("sums", partial_sums())),
                structs=structs(plan),
            )
        case _:
            return None


def _product(plan: Plan, loop: OwnProduct) -> OwnText:
    """Return the kernel of a matrix product, of its batches, or of groups of rows."""
    sizes = list(_matrix_sizes())
    if loop.partner is not None:
        sizes[1] = ("columns", as_int("2 * arguments.n"))
    operands, strides = list[tuple[str, str]](), list[tuple[str, str]]()
    matrices = [("a", loop.a), ("b", loop.b), *([("partner", loop.partner)] if loop.partner else [])]
    for letter, matrix in matrices:
        pointer, leading, batch = operand_of(loop, matrix)
        operands += [(letter, pointer), (f"{letter}_stride", leading)]
        strides += [(f"{letter}_batch_stride", batch)] * bool(batch)
    if loop.batched:
        sizes.append(("batches", extent("l")))
        operands += strides
    for name, tensors in zip(("loads", "stores"), moved(plan), strict=True):
        for i, each in enumerate(tensors):
            operands += [(f"{name}[{i}].{member}", value) for member, value in _moved(each)]
    if plan.reductions:
        operands.append(("once", "true"))
    elif pairs := overwritten(plan):
        same = (f"{read(output)} == {read(given)}" for output, given in pairs)
        operands.append(("once", " || ".join(same)))
    if loop.ends is not None:
        sizes.append(("groups", extent("l")))
        operands.append(("b_group_stride", read(loop.b.batch)))
        operands.append(("ends", f"static_cast<int32_t const*>({read(loop.ends)})"))
    return OwnText(
        mainloop="",
        kernel=_gemm(plan, loop),
        remark="The matrix product." if loop.ends is None else "The matrix products of the groups.",
        problem=tuple(sizes),
        operands=(*operands, *_factor_arguments(loop)),
        structs=structs(plan),
        refused="" if loop.has_many else "arguments->l != 1",
        factors=tuple(map(_factor, loop.factors)),
    )


def _moved(tensor: Tensor) -> Iterator[tuple[str, str]]:
    """Yield the members of a matrix of the epilogue that the kernel moves."""
    pitch, _, batch = tensor.strides
    yield "pointer", read(tensor.pointer)
    yield "stride", read(pitch) if isinstance(pitch, Field) else str(pitch)
    if isinstance(batch, Field):
        yield "batch_stride", read(batch)


def _matrix_sizes() -> Assignments:
    """Return the members of a matrix product's sizes."""
    return tuple(zip(("rows", "columns", "depth"), map(extent, ("m", "n", "k")), strict=True))


def _kernel(loop: HaloConvolution) -> str:
    flags = loop.shared, loop.by_images, 0 if loop.residues else loop.taps, loop.stored, loop.planar
    given = [str(flag).lower() for i, flag in enumerate(flags) if any(flags[i:])]  # the rest are defaults
    return f"evt::kit::Kernel<{', '.join(('Mainloop', 'Epilogue', *given))}>"


def _gemm(plan: Plan, loop: OwnProduct) -> str:
    """Return the kernel of a product."""
    operand, depth = loop.a.dtype, plan.config.tile[2]
    tile = tile_of(plan.config, bytes_of(operand))
    down, across, splits = tile.cluster
    blocks = tile.columns // tile.block_columns if tile.by_rows else tile.blocks
    numbers = [str(blocks), str(tile.pingpong).lower(), *map(str, (across, down, splits))]
    product = product_class(plan, loop)
    flags = (
        product.promoted,
        loop.ends is not None,
        tile.by_rows,
        loop.pairs,
        loop.batched,
        tile.by_stages,
        loop.partner is not None,
        multiplies_halves(tile, product),
    )
    numbers += [str(flag).lower() for i, flag in enumerate(flags) if any(flags[i:])]  # the rest are defaults
    scales = f", {_scales(loop, tile)}" if loop.factors else ", evt::kit::NoScales" if loop.converts else ""
    if loop.is_packed:
        scales += f", evt::kit::Packed<{fragment_element(operand)}, {loop.bias}>"
    elif loop.converts:
        scales += f", evt::kit::Converted<{fragment_element(loop.b.dtype)}, {fragment_element(operand)}>"
    return f"evt::kit::Gemm<Mma, Epilogue, {depth}, evt::kit::GemmTile<{', '.join(numbers)}>{scales}>"


def _gemv(plan: Plan, loop: Gemv) -> str:
    """Return the kernel of a product of few rows or few columns."""
    tile = loop.tile
    numbers = tile.rows, tile.columns // STRIP, *(each.alignment * bytes_of(each.dtype) for each in (loop.a, loop.b))
    mma = f"evt::gemv::MmaSync<{fragment_element(loop.a.dtype)}>"
    return f"evt::gemv::Kernel<{mma}, Epilogue, {', '.join(map(str, numbers))}, {str(tile.by_rows).lower()}>"


def _scales(loop: OwnProduct, tile: Tile) -> str:
    """Return the factors of a product, and whether they vary over the rows and over the columns of a tile."""
    factors = {each.operand: each for each in loop.factors if each.role == "factor"}
    names = [f"FactorOf{name}" if name in factors else "evt::kit::NoFactor" for name in ("A", "B")]
    of_rows = "A" in factors and factors["A"].varies(tile.rows)
    of_columns = "B" in factors and factors["B"].varies(tile.columns)
    flags = [str(of_rows).lower(), str(of_columns).lower()]
    element = fragment_element(loop.a.dtype)
    zeros = [_zero_points(each, element, loop.bias) for each in loop.factors if each.role != "factor"]
    return f"evt::kit::Scales<{', '.join([*names, *flags, *zeros])}>"


def _zero_points(factor: Factor, element: str, bias: int) -> str:
    """Return the zero points of a packed B. Bytes that are subtracted take one instruction with the conversion."""
    (given,) = factor.inputs
    more = ", true" if factor.role == "added" else f", false, {31 - bias}" if given.dtype in (I8, U8) else ""
    return f"evt::kit::ZeroPoints<{_name(factor)}, {element}{more}>"


def _factor(factor: Factor) -> FactorText:
    inputs = tuple((each.pointer.name, _block_values(each)) for each in factor.inputs)
    role = f"{'factor' if factor.role == 'factor' else 'zero point'} of {factor.operand}"
    return FactorText(_name(factor), role, factor.region.name, inputs, comment(factor.origin))


def _name(factor: Factor) -> str:
    return f"{'Factor' if factor.role == 'factor' else 'ZeroPoint'}Of{factor.operand}"


def _block_values(given: FactorInput) -> str:
    outer, depth = (max(block, 1) for block in given.blocks)
    return f"evt::kit::BlockValues<{fragment_element(given.dtype)}, {outer}, {depth}>"


def _factor_arguments(loop: OwnProduct) -> Iterator[tuple[str, str]]:
    for factor in loop.factors:
        for each in factor.inputs:
            member = f"{factor.member}.{each.pointer.name}"
            yield f"{member}.pointer", f"static_cast<{fragment_element(each.dtype)} const*>({read(each.pointer)})"
            for name, stride in zip(("outer", "depth", "group"), each.strides, strict=True):
                if stride != 0:
                    yield f"{member}.{name}", read(stride)


def _mainloop(plan: Plan, loop: HaloConvolution) -> str:
    channels = plan.config.tile[2]
    if loop.windows:
        assert isinstance(loop.a, Image)
        numbers = (channels, loop.rank, *loop.windows, loop.a.alignment)
        return f"evt::kit::WindowsMainloop<Mma, {', '.join(map(str, numbers))}>"
    match loop.groups:
        case "one":
            return f"evt::kit::HaloMainloop<Mma, {channels}, {loop.rank}{', true' if loop.residues else ''}>"
        case "single":
            return f"evt::kit::GroupsMainloop<Mma, {channels}>"
        case "multiple":
            assert isinstance(loop.b, Image)
            backwards = ", true" if loop.operator == "dgrad" else ""
            return f"evt::kit::PackedGroupsMainloop<Mma, {channels}, {loop.b.alignment}{backwards}>"
        case "taps":
            return f"evt::kit::TapRowsMainloop<Mma, {channels}>"
        case "words":
            assert isinstance(loop.a, Image)
            assert isinstance(loop.b, Image)
            return f"evt::kit::WordsMainloop<Mma, {channels}, {loop.b.alignment}, {loop.a.alignment}>"


def _filter(plan: Plan, loop: DepthwiseConvolution) -> str:
    """Return the filter that a depthwise kernel is specialised for, with the pixels of a thread."""
    assert isinstance(plan.config, ConfigDepthwise)
    numbers = (*loop.filter.taps, *loop.filter.stride, *loop.filter.dilation, *plan.config.unit)
    backwards = "true" if loop.operator == "dgrad" else "false"
    return f"evt::depthwise::Filter<{', '.join(map(str, numbers))}, {backwards}>"


def _sizes(loop: Convolution) -> Assignments:
    """Return the members of the kernel's Problem. A dgrad is the convolution of :func:`evt.plan.halo.forward`."""
    names = ["images", *loop.spatial, "channels", "filters"]
    names += [f"{part}_{name}" for part in _PARTS for name in loop.spatial]
    sizes = {name: extent(name) for name in names}
    if loop.operator == "dgrad":
        for one, other in (("channels", "filters"), *((name, f"output_{name}") for name in loop.spatial)):
            sizes |= {one: extent(other), other: extent(one)}
        for name in () if isinstance(loop, HaloConvolution) and loop.residues else loop.spatial:
            size, dilation, pad = (f"arguments.{part}_{name}" for part in ("filter", "dilation", "pad"))
            sizes[f"pad_{name}"] = as_int(f"{dilation} * ({size} - 1) - {pad}")
    return tuple((f"problem.{_member(name)}", value) for name, value in sizes.items())


def _member(name: str) -> str:
    """Return the member of a Problem that has a size: ``pad_width`` is ``width.pad`` of an Axis."""
    part, _, axis = name.rpartition("_")
    if axis not in SPATIAL:
        return name
    return f"{axis}.{'taps' if part == 'filter' else part or 'size'}"


def _image(letter: str, operand: Image | PaddedCopy) -> Iterator[tuple[str, str]]:
    """Yield the pointer and the strides of A or B, or of its copy."""
    if isinstance(operand, PaddedCopy):
        yield letter, copy_pointer(operand)
        strides = copy_strides(operand)
    else:
        yield letter, read(operand.pointer)
        strides = [read(stride) for stride in operand.strides]
    yield from ((f"{letter}_strides[{i}]", stride) for i, stride in enumerate(strides))
