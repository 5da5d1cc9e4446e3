"""The products of a graph: ``find_product(node) -> Product | SkipReason | None``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from evt.fx.aten import Arguments, base_name, dtype_of, is_tensor, shape_of, type_name
from evt.fx.gradient import FILTERS, INPUT, backward_of, has_bias, is_backward
from evt.fx.index_map import Dim, IndexMap, Size, all_same, same
from evt.fx.skip_reason import SkipReason
from evt.fx.stand_in import normed, operands_of

#: Operators that pad, which the kernel of a convolution does if they pad with zeros.
PADS = ("pad", "constant_pad_nd")
_OTHER_TYPE = "its result has another type than its operands"


@dataclass(frozen=True)
class Term:
    """A factor or summand of the product: ``factor * value * by``.

    The value broadcasts to the product, unless ``modes`` has its modes: rows, or columns for each group of rows.
    """

    value: Node
    factor: float = 1.0
    scales: bool = False
    by: Node | None = None
    modes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Factor:
    """A factor of the operand ``operand``, A or B, with the modes of its dimensions: ``("m", "k/128")``."""

    operand: str
    value: Node
    modes: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution.

    ``operation`` is evt's operation with the operands ``a`` and ``b``. ``alpha`` scales the product; then ``terms``
    scale it or are added, in this order. In a convolution, terms are vectors of the output channels. ``ends`` are the
    ends of groups of rows, if each group has its own B. ``factors`` scale blocks of the operands.
    """

    node: Node
    operation: str
    a: Node
    b: Node
    index_map: IndexMap
    alpha: float = 1.0
    terms: tuple[Term, ...] = ()
    factors: tuple[Factor, ...] = ()
    geometry: Mapping[str, Any] = field(default_factory=dict)
    ends: Node | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes of the product, with l if it has batches."""
        return ("l", "m", "n") if self.operation == "gemm" and len(self.index_map.dims) > 2 else ("m", "n")

    @property
    def is_convolution(self) -> bool:
        return self.operation.startswith("conv")

    @property
    def is_rounded_first(self) -> bool:
        """Return whether another kernel of PyTorch adds a bias: to convolutions, and in strided ``linear``."""
        batches = self.operation == "linear" and len(shape_of(self.a)) > 2
        return self.is_convolution or (batches and not self.a.meta["val"].is_contiguous())


def find_product(node: Node) -> Product | SkipReason | None:
    """Return the product that a node computes, why evt cannot compute it, or None for other operators."""
    if is_backward(node):
        return SkipReason(node, "E1021", "PyTorch computes the gradients of biases") if has_bias(node) else None
    if node.target is normed:
        return _normed(node, *operands_of(node))  # type: ignore[misc]
    split = backward_of(node)
    reader = _READERS.get(base_name(node)) if split is None else _GRADIENTS[split[1]]
    if reader is None:
        return None
    if not is_tensor(node):
        return SkipReason(node, "E1010", "it has several results")
    found = reader(node, Arguments(node if split is None else split[0]))
    if isinstance(found, str):
        return SkipReason(node, "E1010", found)
    if fault := _fault(found):
        return SkipReason(node, "E1010", fault)
    if dtype_of(found.a) == torch.float32 and node.meta["val"].device.type == "cuda" and not _allows_tf32(found):
        return SkipReason(node, "E1011", "its operands are float32, and PyTorch is not set to multiply them as TF32")
    return found


def _fault(product: Product) -> str:
    """Return why evt has no kernel for a product, or ""."""
    a, b = dtype_of(product.a), dtype_of(product.b)
    fp8 = (torch.float8_e4m3fn, torch.float8_e5m2)
    converted = (torch.int8, torch.uint8, *fp8) if a in (torch.float16, torch.bfloat16) else ()
    if a != b and not (a in fp8 and b in fp8) and (product.is_convolution or b not in converted):
        return f"its operands are {type_name(a)} and {type_name(b)}"
    if a not in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, *fp8):
        return f"its operands are {type_name(a)}"
    if any(same(size, 0) for size in (*shape_of(product.node), *shape_of(product.a))):
        return "it is empty"
    return ""


def _allows_tf32(product: Product) -> bool:
    """Return whether PyTorch uses TF32: tensor cores, which read 10 bits of a float32's mantissa."""
    if product.is_convolution:
        return bool(torch.backends.cudnn.allow_tf32)
    return torch.get_float32_matmul_precision() != "highest"


def _matrix(node: Node, a: Any, b: Any, operation: str = "gemm", **others: Any) -> Product | str:
    rank = len(shape_of(node))
    modes = ("l",) * max(0, rank - 2) + ("m", "n") if operation == "gemm" else ("m",) * (rank - 1) + ("n",)
    return Product(node, operation, a, b, IndexMap.of(shape_of(node), modes), **others)


def _mm(node: Node, arguments: Arguments) -> Product | str:
    if arguments["out_dtype"] is not None:
        return _OTHER_TYPE
    return _matrix(node, arguments["self"], arguments["mat2"])


def _addmm(node: Node, arguments: Arguments) -> Product | str:
    c, a, b = (node.args[place] for place in range(3))
    beta, alpha = (arguments[name] for name in ("beta", "alpha"))
    if not all(isinstance(each, int | float) for each in (beta, alpha)) or arguments["out_dtype"] is not None:
        return "its factors are known at run time only"
    if not dtype_of(node).is_floating_point and not all(map(float.is_integer, map(float, (beta, alpha)))):
        return "its factors are fractions, and its result is of integers"
    if alpha == 0:
        return "its product has the factor 0, for which PyTorch's libraries do not read A and B"
    assert isinstance(c, Node)
    return _matrix(node, a, b, alpha=float(alpha), terms=(Term(c, float(beta)),) if beta else ())


def _linear(node: Node, arguments: Arguments) -> Product | str:
    x, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    if len(shape_of(weight)) != 2 or len(shape_of(x)) < 2:
        return "its operands are vectors"
    return _matrix(node, x, weight, "linear", terms=(Term(bias),) if isinstance(bias, Node) else ())


def _matmul(node: Node, _: Arguments) -> Product | str:
    a, b = node.args[:2]
    assert isinstance(a, Node)
    assert isinstance(b, Node)
    if min(len(shape_of(a)), len(shape_of(b))) < 2:
        return "its operands are vectors"
    return _matrix(node, a, b)


def _normed(
    node: Node, x: Node, weight: Node, rstd: Node, mean: Node | None, sums: Node | None, constant: Node | None
) -> Product:
    """Return ``rstd * (acc - mean * sums) + constant``, the product of a norm."""
    terms = [] if mean is None else [Term(mean, -1.0, by=sums)]
    terms.append(Term(rstd, scales=True))
    terms += [] if constant is None else [Term(constant)]
    found = _matrix(node, x, weight, terms=tuple(terms))
    assert isinstance(found, Product)
    return found


def _grouped_mm(node: Node, arguments: Arguments) -> Product | str:
    """Return the products of groups of consecutive rows; each group has its own B."""
    return _of_groups(node, arguments) if dtype_of(node) == dtype_of(arguments["self"]) else _OTHER_TYPE


def _scaled_grouped_mm(node: Node, arguments: Arguments) -> Product | str:
    """Return ``scale_a * scale_b * acc`` of groups of rows, with a scale for each row, and for each group's columns."""
    b, scale_a, scale_b = (arguments[name] for name in ("mat2", "scale_a", "scale_b"))
    if arguments["scale_result"] is not None:
        return "its result is scaled for an 8-bit type"
    rows, columns = shape_of(node)[-2:]
    if not (all_same(shape_of(scale_a), (rows,)) and all_same(shape_of(scale_b), (*shape_of(b)[:1], columns))):
        return "its scales are of blocks"
    return _of_groups(
        node, arguments, (Term(scale_a, scales=True, modes=("m",)), Term(scale_b, scales=True, modes=("l", "n")))
    )


def _of_groups(node: Node, arguments: Arguments, terms: tuple[Term, ...] = ()) -> Product | str:
    a, b, ends = (arguments[name] for name in ("self", "mat2", "offs"))
    if not isinstance(ends, Node) or len(shape_of(a)) != 2 or len(shape_of(b)) != 3:
        return "its groups are not consecutive rows"
    return "it has a bias" if arguments["bias"] is not None else _matrix(node, a, b, ends=ends, terms=terms)


#: The extents of PyTorch's blocks of scales.
_BLOCK = 128


def _scaled_mm(node: Node, arguments: Arguments) -> Product | str:
    """Return ``scale_a * scale_b * acc + bias``, with a single scale, one for each row and column, or for blocks."""
    if arguments["scale_result"] is not None:
        return "its result is scaled for an 8-bit type"
    rows, columns = shape_of(node)
    depth = shape_of(arguments["self"])[1]
    terms: list[Term] = []
    factors: list[Factor] = []
    for operand, name, extents in (
        ("A", "scale_a", {"m": rows, "k": depth}),
        ("B", "scale_b", {"k": depth, "n": columns}),
    ):
        scale, whole = arguments[name], [1 if mode == "k" else size for mode, size in extents.items()]
        shape = shape_of(scale)
        if all(same(size, 1) for size in shape) or (len(shape) == 2 and all(map(same, shape, whole))):
            terms.append(Term(scale, scales=True))
        elif modes := _modes_of_blocks(shape, extents):
            factors.append(Factor(operand, scale, modes))
        else:
            return "its scales are of other blocks"
    if isinstance(arguments["bias"], Node):
        terms.append(Term(arguments["bias"]))
    return _matrix(node, arguments["self"], arguments["mat2"], terms=tuple(terms), factors=tuple(factors))


def _modes_of_blocks(shape: Sequence[Size], extents: Mapping[str, Size]) -> tuple[str, ...]:
    """Return the modes of a scale for each block of k, and for each element or block of the other mode; else ()."""
    if len(shape) != 2:
        return ()
    modes = []
    for size, (mode, extent) in zip(shape, extents.items(), strict=True):
        if mode != "k" and same(size, extent):
            modes.append(mode)
        elif isinstance(extent, int) and same(size, -(-extent // _BLOCK)):
            modes.append(f"{mode}/{_BLOCK}")
        else:
            return ()
    return tuple(modes)


def _weight_int8pack_mm(node: Node, arguments: Arguments) -> Product | str:
    """Return ``scales * acc`` of a weight of int8, which the kernel converts."""
    x, weight, scales = (arguments[name] for name in ("self", "mat2", "scales"))
    return _matrix(node, x, weight, "linear", terms=(Term(scales, scales=True),))


def _weight_int4pack_mm(node: Node, arguments: Arguments) -> str:
    """Refuse ``scale*(code - 8) + zero``: whether a zero is a whole number of scales depends on values."""
    return "its zeros are added to the scaled weight; evt subtracts whole zero points from the codes"


def _convolution(node: Node, arguments: Arguments) -> Product | str:
    x, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    rank = len(shape_of(weight)) - 2
    if rank not in (1, 2, 3) or len(shape_of(x)) != rank + 2:
        return f"it is a convolution of {len(shape_of(x))} dimensions"
    names = ["stride", "padding", "dilation", "groups"]
    operation = f"conv{rank}d"
    if arguments["transposed"]:
        operation, names = f"{operation}_dgrad", [*names, "output_padding"]
    geometry = _geometry(arguments, names, rank)
    if isinstance(geometry, str):
        return geometry
    terms = (Term(bias),) if isinstance(bias, Node) else ()
    if not arguments["transposed"]:
        x, geometry = _unpadded(x, geometry, rank)
    return Product(node, operation, x, weight, _pixels(node, rank), terms=terms, geometry=geometry)


def _unpadded(x: Node, geometry: dict[str, Any], rank: int) -> tuple[Node, dict[str, Any]]:
    """Return the input of an operator that pads with zeros, and a geometry that pads as the operator does."""
    padding = geometry["padding"]
    while isinstance(padding, tuple | int) and base_name(x) in PADS:
        given = Arguments(x)
        inner, sizes, value = given.first, given["pad"], given["value"]
        zeros = given["mode"] in (None, "constant") and value in (None, 0)
        if inner is None or not zeros or not all(isinstance(each, int) for each in sizes):
            break
        pairs = list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]  # the last dimension comes first
        added = [(0, 0)] * (rank - len(pairs)) + pairs
        if len(added) > rank or min(map(min, added)) < 0:
            break
        each = padding if isinstance(padding, tuple) else (padding,) * rank
        known = [pair if isinstance(pair, tuple) else (pair, pair) for pair in each]
        padding = tuple((a + c, b + d) for (a, b), (c, d) in zip(known, added, strict=True))
        x = inner
    return x, {**geometry, "padding": padding}


def _input_gradient(node: Node, arguments: Arguments) -> Product | str:
    """Return the input gradient of a convolution: a transposed convolution; of a transposed one, a convolution."""
    gradient, weight = arguments["grad_output"], arguments["weight"]
    rank = len(shape_of(weight)) - 2
    geometry = _geometry(arguments, ["stride", "padding", "dilation", "groups"], rank)
    if isinstance(geometry, str):
        return geometry
    sizes = (shape_of(each)[2:] for each in (node, gradient, weight))
    strides, paddings, dilations = (geometry[name] for name in ("stride", "padding", "dilation"))
    transposed = bool(arguments["transposed"])
    left = [
        _left_over(size, given, stride, dilation * (taps - 1) + 1 - 2 * padding, transposed)
        for size, given, taps, stride, padding, dilation in zip(*sizes, strides, paddings, dilations, strict=True)
    ]
    if any(each is None for each in left):
        return "its output padding is known at run time only"
    operation = f"conv{rank}d"
    if not arguments["transposed"]:
        operation, geometry = f"{operation}_dgrad", {**geometry, "output_padding": tuple(left)}
    return Product(node, operation, gradient, weight, _pixels(node, rank), geometry=geometry)


def _filter_gradient(node: Node, arguments: Arguments) -> Product | str:
    """Return the gradient of a convolution's filters; the operands of a transposed one change places."""
    operands = [arguments[name] for name in ("grad_output", "input")]
    rank = len(shape_of(node)) - 2
    geometry = _geometry(arguments, ["stride", "padding", "dilation", "groups"], rank)
    if isinstance(geometry, str):
        return geometry
    filters, channels, *taps = shape_of(node)
    if not all(isinstance(each, int) for each in taps):
        return "its filter size is known at run time only"
    a, b = reversed(operands) if arguments["transposed"] else operands
    dims, stride = [Dim(channels, "n", 1)], channels
    for size in reversed(taps):
        dims.insert(1, Dim(size, "n", stride))
        stride = stride * size
    found = (Dim(filters, "m", 1), *dims)
    index_map = IndexMap(tuple(Dim(1) if same(each.size, 1) else each for each in found))
    geometry = {**geometry, "kernel_size": tuple(taps)}
    return Product(node, f"conv{rank}d_wgrad", a, b, index_map, geometry=geometry)


def _left_over(size: Size, given: Size, stride: int, reach: int, transposed: bool) -> int | None:
    """Return the number of pixels beyond the last one that a filter tap reaches, by dimension, or None."""
    if transposed:
        return 0 if same((given - reach) // stride + 1, size) else None
    rest = size - (given - 1) * stride - reach
    return next((count for count in range(stride) if same(rest, count)), None)


def _pixels(node: Node, rank: int) -> IndexMap:
    images, _, *pixels = shape_of(node)
    return IndexMap.of(shape_of(node), ("m", "n", *["m"] * rank), 0 if same(images, 1) else math.prod(pixels))


def _geometry(arguments: Arguments, names: Sequence[str], rank: int) -> dict[str, Any] | str:
    """Return the geometry of a convolution, or why evt does not support it."""
    geometry: dict[str, Any] = {}
    for name in names:
        value = arguments[name]
        values: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(each, int | str) for each in values):
            return f"its {name} is known at run time only"
        value = tuple(value) if isinstance(value, list) else value
        geometry[name] = value * rank if isinstance(value, tuple) and len(value) == 1 else value
    return geometry


#: The gradients of ``convolution_backward``.
_GRADIENTS = {INPUT: _input_gradient, FILTERS: _filter_gradient}
_READERS: Mapping[str, Callable[[Node, Arguments], Product | str]] = {
    "mm": _mm,
    "bmm": _mm,
    "matmul": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "linear": _linear,
    "_int_mm": _mm,
    "_scaled_mm": _scaled_mm,
    "_weight_int8pack_mm": _weight_int8pack_mm,
    "_weight_int4pack_mm": _weight_int4pack_mm,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _scaled_grouped_mm,
    "convolution": _convolution,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
}
