"""The products of a graph: ``find_product(node) -> Product | None``, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from evt.fx.frame import Frame
from evt.fx.meaning import operator_name


@dataclass(frozen=True)
class Term:
    """A summand beside the product: ``factor * value``."""

    value: Node
    factor: float = 1.0


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution.

    ``operation`` is evt's; ``a`` and ``b`` are as that takes them. ``alpha`` scales the product, and ``terms`` are added.
    """

    node: Node
    operation: str
    a: Node
    b: Node
    frame: Frame
    alpha: float = 1.0
    terms: tuple[Term, ...] = ()
    geometry: Mapping[str, Any] = field(default_factory=dict)


def find_product(node: Node) -> Product | None:
    """Return the product that a node is, or None."""
    name = operator_name(node)
    reader = _READERS.get((name or "").partition(".")[0])
    return reader(node) if reader is not None and name is not None else None


def shape_of(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _matrix(node: Node, a: Node, b: Node, operation: str = "gemm", **others: Any) -> Product:
    shape = shape_of(node)
    modes = ("l",) * max(0, len(shape) - 2) + ("m", "n") if operation == "gemm" else ("m",) * (len(shape) - 1) + ("n",)
    return Product(node, operation, a, b, Frame(shape, modes), **others)


def _mm(node: Node) -> Product:
    a, b = node.args[:2]
    assert isinstance(a, Node) and isinstance(b, Node)
    return _matrix(node, a, b)


def _addmm(node: Node) -> Product:
    c, a, b = node.args[:3]
    assert isinstance(a, Node) and isinstance(b, Node) and isinstance(c, Node)
    beta, alpha = (float(node.kwargs.get(name, 1)) for name in ("beta", "alpha"))  # type: ignore[arg-type]
    return _matrix(node, a, b, alpha=alpha, terms=(Term(c, beta),) if beta else ())


def _linear(node: Node) -> Product | None:
    x, weight, *rest = node.args
    assert isinstance(x, Node) and isinstance(weight, Node)
    if len(shape_of(weight)) != 2 or len(shape_of(x)) < 2:
        return None
    bias = rest[0] if rest else node.kwargs.get("bias")
    return _matrix(node, x, weight, "linear", terms=(Term(bias),) if isinstance(bias, Node) else ())


def _matmul(node: Node) -> Product | None:
    a, b = node.args[:2]
    assert isinstance(a, Node) and isinstance(b, Node)
    if len(shape_of(a)) != len(shape_of(b)) or len(shape_of(a)) not in (2, 3):
        return None
    return _matrix(node, a, b)


def _convolution(node: Node) -> Product | None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    if transposed:
        return None
    return _conv(node, x, weight, bias, stride, padding, dilation, groups)


def _conv_nd(node: Node) -> Product | None:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return _conv(node, *(given.get(name, default) for name, default in zip(names, (None, None, None, 1, 0, 1, 1))))


def _conv(node: Node, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> Product | None:
    rank = len(shape_of(weight)) - 2
    if rank not in (1, 2, 3) or len(shape_of(x)) != rank + 2:
        return None
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    geometry = {name: tuple(value) if isinstance(value, list) else value for name, value in geometry.items()}
    frame = Frame(shape_of(node), ("m", "n", *["m"] * rank))
    terms = (Term(bias),) if isinstance(bias, Node) else ()
    return Product(node, f"conv{rank}d", x, weight, frame, terms=terms, geometry=geometry)


_READERS = {
    "mm": _mm,
    "bmm": _mm,
    "matmul": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "linear": _linear,
    "convolution": _convolution,
    "conv1d": _conv_nd,
    "conv2d": _conv_nd,
    "conv3d": _conv_nd,
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
