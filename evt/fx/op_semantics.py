"""The elementwise semantics of ATen's operators: ``semantics(node) -> Semantics``, in functions of evt's table.

The rows of :data:`evt.functions.TABLE` name their operators. This module handles the operators and arguments that a row
does not describe: factors (``alpha`` of an addition), limits that are None, casts, reductions and identities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from evt.functions import TABLE, Function
from evt.fx.aten import Arguments, dtype_of, is_tensor, operator_name, shape_of, type_name
from evt.ir.dtype import OUTPUTS, DType, from_torch_name
from evt.optimise.rounding import round_constant

#: Operators that return the elements of their first operand unchanged.
IDENTITIES = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "positive")
#: The key in ``node.meta`` of an operator that stays with Inductor, because no measurement covers it.
UNMEASURED = "evt_unmeasured"
#: The name of tensors that a model's code makes, in exported graphs.
LITERAL = "lifted_tensor"
_PREFIX = "torch.ops.aten."


@dataclass(frozen=True)
class Applied:
    """A function of the table, or a cast to a type, and its operands: nodes, numbers, or nested ``Applied``.

    It does not describe the types of computation: :mod:`evt.fx.arithmetic` adds them.
    """

    what: Function | DType
    operands: tuple[Any, ...]


@dataclass(frozen=True)
class Reduced:
    """A reduction over some dimensions; a variance divides by the number of elements less the ``correction``."""

    kind: str
    operand: Any
    places: tuple[int, ...]
    keep: bool
    correction: float = 0


Semantics = Applied | Reduced | Node


@dataclass(frozen=True)
class _Target:
    """The operator of a row: the row's parameters in the operator's order, and keywords that it must have."""

    row: Function
    order: tuple[str, ...]
    keywords: Mapping[str, str]


def semantics(node: Node) -> Semantics | None:
    """Return the function of an elementwise operator, the operand of an identity, or None for other operators."""
    name = operator_name(node)
    if name is None or UNMEASURED in node.meta:
        return None
    arguments = Arguments(node)
    base = name.partition(".")[0]
    if base in IDENTITIES:
        return arguments.first
    special = _SPECIAL.get(name) or _SPECIAL.get(base)
    if special is not None:
        return special(node, arguments)
    return next((found for target in _targets().get(name, ()) if (found := _apply(arguments, target))), None)


def operands_of(found: Semantics | None) -> Iterator[Node]:
    """Yield the nodes that semantics read."""
    if isinstance(found, Node):
        yield found
    elif isinstance(found, Reduced):
        yield from operands_of(found.operand)
    elif found is not None:
        for operand in found.operands:
            if isinstance(operand, Applied | Node):
                yield from operands_of(operand)


def number_of(node: Node) -> float | None:
    """Return the number that fills a tensor, or None if the graph does not define one."""
    while (name := operator_name(node)) is not None and name.partition(".")[0] in IDENTITIES and node.all_input_nodes:
        node = node.all_input_nodes[0]
    arguments = Arguments(node) if name else None
    if arguments is not None and (fill := _FILLS.get(name or "")) is not None and is_tensor(node):
        value = fill(arguments)
        return number_in(dtype_of(node), value) if isinstance(value, int | float) else None
    if node.op == "get_attr" and is_tensor(node) and shape_of(node) == () and node.meta["val"].device.type == "cpu":
        found: Any = node.graph.owning_module
        for part in str(node.target).split("."):
            found = getattr(found, part, None)
        if isinstance(found, torch.Tensor) and not isinstance(found, torch.nn.Parameter):
            return found.item() if LITERAL in str(node.target).rpartition(".")[2] else None
    return None


def number_in(dtype: torch.dtype, value: float) -> float:
    """Return a number converted to a type as PyTorch does: truncated and wrapped for integers."""
    if dtype == torch.bool:
        return bool(value)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return (int(value) - limits.min) % (limits.max - limits.min + 1) + limits.min if math.isfinite(value) else 0
    known = from_torch_name(type_name(dtype))
    return float(value) if known is None else round_constant(known, float(value))


#: The number that fills the tensor, by operator.
_FILLS: Mapping[str, Callable[[Arguments], Any]] = {
    "full.default": lambda arguments: arguments["fill_value"],
    "full_like.default": lambda arguments: arguments["fill_value"],
    "scalar_tensor.default": lambda arguments: arguments["s"],
    **dict.fromkeys(("zeros.default", "zeros_like.default"), lambda _: 0),
    **dict.fromkeys(("ones.default", "ones_like.default"), lambda _: 1),
}


def _apply(arguments: Arguments, target: _Target) -> Applied | None:
    """Return the row applied to the operands, or None if an argument beside the row's is not its default."""
    for name, wanted in target.keywords.items():
        if repr(arguments[name]) != wanted:
            return None
    row = target.row
    taken, operands = arguments.names[: len(row.parameters)], {}
    for mine, parameter in zip(taken, target.order, strict=False):
        operands[parameter] = arguments[mine]
    factor: float = 1
    for name in arguments.names[len(taken) :]:
        value = arguments[name]
        if name in target.keywords:
            continue
        if name in ("alpha", "value") and row.name in ("add", "sub", "fma") and _is_number(value):
            factor = value
        elif name not in _IGNORED or value not in _IGNORED[name]:
            return None
    if not all(_is_operand(value) for value in operands.values()):
        return None
    ordered = [operands.get(each.name, each.default) for each in row.parameters]
    if any(each is None for each in ordered):
        return None
    return Applied(row, tuple(ordered)) if factor == 1 else _scaled(row.name, ordered, factor)


def _scaled(name: str, operands: Sequence[Any], factor: float) -> Applied:
    """Return ``x + factor*y``, ``x - factor*y`` or ``factor*(a*b) + c``: one multiply-add, as in PyTorch's kernels."""
    *product, x = (operands[1], operands[0]) if name != "fma" else operands
    y = Applied(TABLE["mul"], tuple(product)) if name == "fma" else product[0]
    return Applied(TABLE["fma"], (y, -factor if name == "sub" else factor, x))


#: Values with which arguments beside the row's have no effect.
_IGNORED: Mapping[str, tuple[Any, ...]] = {
    "approximate": ("none",),
    "scale": (1, 1.0),
    "input_scale": (1, 1.0),
    "eps": (None,),
    "generator": (None,),
    "memory_format": (None,),
}


def _cast(node: Node, arguments: Arguments) -> Applied | Node | None:
    """Return a cast to a type that kernels have."""
    operand = arguments.first
    if operand is None or not is_tensor(node) or not is_tensor(operand):
        return None
    if node.meta["val"].device != operand.meta["val"].device:
        return None
    if dtype_of(operand) == dtype_of(node):
        return operand
    dtype = from_torch_name(type_name(dtype_of(node)))
    if dtype is None or dtype not in OUTPUTS:
        return None
    if dtype.is_float and dtype.bits == 8 and not is_clamped(operand, dtype):
        return None  # evt's casts saturate; in some releases of PyTorch large values become NaN
    return Applied(dtype, (operand,))


def _power(node: Node, arguments: Arguments) -> Applied | None:
    """Return ``sqrt(x)`` for ``x**0.5`` and ``rsqrt(x)`` for ``x**-0.5``, as PyTorch computes infinities and -0.

    float16 on a CPU is an exception.
    """
    base, exponent = arguments["self"], arguments["exponent"]
    if not _is_number(exponent):
        return None
    roots = {0.5: "sqrt", -0.5: "rsqrt"}
    value = node.meta["val"]
    if exponent in roots and not (value.dtype == torch.float16 and value.device.type == "cpu"):
        return Applied(TABLE[roots[exponent]], (base,))
    return Applied(TABLE["pow"], (base, exponent))


def is_clamped(node: Node, dtype: DType) -> bool:
    """Return whether a value is clamped to the range of a type."""
    name = operator_name(node)
    if name not in ("clamp.default", "hardtanh.default"):
        return name in ("sigmoid.default", "tanh.default")
    arguments = Arguments(node)
    low, high = (arguments[each] for each in (("min", "max") if name == "clamp.default" else ("min_val", "max_val")))
    return _is_number(low) and _is_number(high) and dtype.least <= low and high <= dtype.largest


def _clamp(_: Node, arguments: Arguments) -> Applied | None:
    """Return ``min(x, 6)`` for ``clamp(x, None, 6)``, and ``relu(x)`` for ``clamp(x, 0)``, as PyTorch does."""
    names = ("min", "max") if "min" in arguments.names or "max" in arguments.names else ()
    result: Any = arguments["self"]
    for row, name in zip(("max", "min"), names, strict=False):
        limit = arguments[name]
        if limit is not None and not _is_operand(limit):
            return None
        if limit is not None:
            floor = row == "max" and not isinstance(limit, Node) and limit == 0
            result = Applied(TABLE["relu"], (result,)) if floor else Applied(TABLE[row], (result, limit))
    return result if isinstance(result, Applied) else None


def _masked_fill(_: Node, arguments: Arguments) -> Applied | None:
    value = arguments["value"]
    return Applied(TABLE["where"], (arguments["mask"], value, arguments["self"])) if _is_operand(value) else None


def _bits(row: str) -> Callable[[Node, Arguments], Applied | None]:
    """Return the reader of a bitwise operator, which is logical for truth values."""

    def read(node: Node, arguments: Arguments) -> Applied | None:
        operands = tuple(arguments[name] for name in arguments.names)
        if not all(is_tensor(each) and dtype_of(each) == torch.bool for each in operands):
            return None
        return Applied(TABLE[row], operands)

    return read


def _reduction(kind: str) -> Callable[[Node, Arguments], Reduced | None]:
    def read(node: Node, arguments: Arguments) -> Reduced | None:
        operand = arguments.first
        if operand is None or not is_tensor(node) or not dtype_of(node).is_floating_point:
            return None
        rank = len(shape_of(operand))
        if not rank:
            return None
        places = arguments["dim"]
        places = [places] if isinstance(places, int) else places
        if not places:
            places = range(rank)
        if any(not isinstance(place, int) for place in places) or not dtype_of(operand).is_floating_point:
            return None
        correction = (1 if arguments["correction"] is None else arguments["correction"]) if kind == "var" else 0
        if not _is_number(correction):
            return None
        kept = bool(arguments["keepdim"])
        return Reduced(kind, operand, tuple(int(place) % rank for place in places), kept, correction)

    return read


_SPECIAL: Mapping[str, Callable[[Node, Arguments], Semantics | None]] = {
    "convert_element_type": _cast,
    "_to_copy": _cast,
    "to": _cast,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "pow.Tensor_Scalar": _power,
    "hardtanh": lambda _, a: Applied(TABLE["hardtanh"], (a["self"], a["min_val"], a["max_val"])),
    "masked_fill": _masked_fill,
    **dict.fromkeys(("bitwise_and", "__and__"), _bits("logical_and")),
    **dict.fromkeys(("bitwise_or", "__or__"), _bits("logical_or")),
    **dict.fromkeys(("bitwise_xor", "__xor__"), _bits("ne")),
    "logical_xor": _bits("ne"),
    "bitwise_not": _bits("logical_not"),
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "var.correction": _reduction("var"),
    "amax": _reduction("max"),
    "amin": _reduction("min"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def _is_operand(value: object) -> bool:
    return isinstance(value, Node) or _is_number(value)


def known_operators() -> frozenset[str]:
    """Return the names of operators that :func:`semantics` handles; special operators by their base name."""
    return frozenset((*_targets(), *_SPECIAL, *IDENTITIES))


@cache
def _targets() -> dict[str, list[_Target]]:
    """Return the rows by operator; rows with required keywords come first."""
    found: dict[str, list[_Target]] = {}
    for row in TABLE.values():
        for text in row.targets:
            if text.startswith(_PREFIX):
                name, target = _read_target(row, text.removeprefix(_PREFIX))
                found.setdefault(name, []).append(target)
    for targets in found.values():
        targets.sort(key=lambda target: -len(target.keywords))
    return found


def _read_target(row: Function, text: str) -> tuple[str, _Target]:
    """Read ``rsub.Scalar(y, x)``, ``gelu.default(approximate='tanh')`` or a plain name."""
    name, _, inside = text.removesuffix(")").partition("(")
    order: Sequence[str] = [parameter.name for parameter in row.parameters]
    keywords = dict(re.findall(r"(\w+)=([^,]+)", inside))
    if inside and not keywords:
        order = inside.split(", ")
    return name, _Target(row, tuple(order), keywords)


__all__ = [
    "IDENTITIES",
    "LITERAL",
    "UNMEASURED",
    "Applied",
    "Reduced",
    "Semantics",
    "is_clamped",
    "known_operators",
    "number_in",
    "number_of",
    "operands_of",
    "semantics",
]
