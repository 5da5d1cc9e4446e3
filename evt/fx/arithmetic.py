"""Elementwise operators computed as PyTorch does: ``Arithmetic.applied(found, node, read)`` adds them to a graph.

A value of evt's graph represents a tensor of PyTorch's graph. Integers and truth values equal the tensor's elements bit
for bit. evt computes integers in i32, so results of narrower types are wrapped. Floats have at least the precision of
the tensor. They are rounded at casts, and before discontinuous functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import Node

from evt.functions import TABLE, Fact, Function
from evt.fx.aten import dtype_of, is_tensor, shape_of, type_name
from evt.fx.op_semantics import Applied, is_clamped, number_in, number_of
from evt.ir import Apply, Builder, Cast, Const, Dag, Operand
from evt.ir import Node as Op
from evt.ir.dtype import B1, F32, I32, DType, from_torch_name
from evt.ir.node import ValueType
from evt.ir.value_types import domain, value_type

_HALF = (torch.float16, torch.bfloat16)
#: Types in which kernels compute the same results as PyTorch. i32 holds every value of the integer types.
_FLOATS = (*_HALF, torch.float32, torch.float64)
_INTEGERS = (torch.int32, torch.int8, torch.uint8, torch.bool)
#: Discontinuous functions whose numbers PyTorch does not round to the tensor's type.
_DIVISIONS = ("floor_divide", "trunc_divide")
#: Functions that wrap an i32 to a narrower integer type.
_WRAPS = {torch.int8: "wrap_i8", torch.uint8: "wrap_u8"}


def dtype_in(dtype: torch.dtype) -> DType:
    """Return evt's type for a type of PyTorch that kernels support."""
    found = from_torch_name(type_name(dtype))
    assert found is not None
    return found


def computed_in(node: Node, found: Applied) -> torch.dtype:
    """Return the type to which PyTorch converts the operands: the result's type, unless that is a truth value."""
    if isinstance(found.what, DType) or found.what.result != "predicate" or found.what.conditions:
        return dtype_of(node)
    values = [each.meta.get("val") if isinstance(each, Node) else each for each in (*node.args, *node.kwargs.values())]
    values = [each for each in values if isinstance(each, torch.Tensor | int | float)]
    dtype, _ = elementwise_dtypes(*values, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)
    return dtype


def uncomputed(node: Node, found: Applied) -> str:
    """Return why a kernel's arithmetic would differ from PyTorch's, or ""."""
    if isinstance(found.what, DType):
        return ""
    dtype = computed_in(node, found)
    if dtype in _FLOATS:
        return ""
    if dtype not in _INTEGERS:
        return f"it computes in {type_name(dtype)}"
    return _not_whole(found)


def _is_wide(found: Applied) -> bool:
    """Return whether ``numerics="eager"`` would misread an operator.

    It is several functions, or it divides by a tensor without dimensions, which is not a number of the host.
    """
    inner = [each.what for each in found.operands if isinstance(each, Applied)]
    if any(isinstance(what, DType) or Fact.SELECTING not in what.facts for what in inner):
        return True
    divisor = found.operands[-1]
    divides = isinstance(found.what, Function) and found.what.name == "div"
    return divides and isinstance(divisor, Node) and not shape_of(divisor) and number_of(divisor) is None


def _not_whole(found: Applied) -> str:
    """Return why evt cannot compute a function in integers, or ""."""
    row = found.what
    assert isinstance(row, Function)
    if Fact.INTEGER not in row.facts and not row.conditions:
        return f"evt computes `{row.name}` in floats"
    for slot, operand in enumerate(found.operands):
        if isinstance(operand, Applied) and (reason := _not_whole(operand)):
            return reason
        if is_tensor(operand) and dtype_of(operand).is_floating_point and slot not in row.conditions:
            return f"`{operand.name}` has the type {type_name(dtype_of(operand))}, and the result is of integers"
    return ""


@dataclass
class Arithmetic:
    """A builder that adds operations with PyTorch's types; ``operands`` are A and B.

    ``eager``: the graph is for ``numerics="eager"``, which rounds every function. An operator that it would misread has
    casts: it computes in f32, and rounds once.
    """

    operation: str
    operands: tuple[Operand, Operand]
    eager: bool = False
    builder: Builder = field(default_factory=Builder)
    types: dict[int, ValueType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dag: Dag = Builder().finish(self.operation, self.operands, (), ())

    def add(self, op: Op, *operands: int, dtype: DType | None = None) -> int:
        """Add an operation; ``dtype`` is the type of a loaded tensor."""
        value = self.builder.add(op, *operands)
        if value not in self.types:
            types = [self.types[each] for each in operands]
            self.types[value] = value_type(self.dag, op, types) if dtype is None else ValueType.of(dtype, ())
        return value

    def number(self, value: float) -> int:
        return self.add(Const.of(float(value)))

    def applied(self, found: Applied, node: Node, read: Callable[[Node], int]) -> int:
        """Add an operator of the fx graph; ``read`` returns the value of an operand."""
        if isinstance(found.what, DType):
            (operand,) = found.operands
            return self.cast(read(operand), operand, dtype_of(node))
        if self.eager and dtype_of(node).is_floating_point and _is_wide(found):
            value = self.computed(found, computed_in(node, found), lambda operand: self.add(Cast(F32), read(operand)))
            return self.add(Cast(dtype_in(dtype_of(node))), value)
        value = self.computed(found, computed_in(node, found), read)
        return value if found.what.facts & {Fact.SELECTING, Fact.WHOLE} else self.wrapped(value, dtype_of(node))

    def wrapped(self, value: int, dtype: torch.dtype) -> int:
        """Convert an i32 to a narrower integer type, or to a truth value."""
        if dtype == torch.bool:
            return self.truth(value)
        return self.add(Apply(_WRAPS[dtype]), value) if dtype in _WRAPS else value

    def truth(self, value: int) -> int:
        truth = self.types[value].dtype.compute == B1
        return value if truth else self.add(Apply("ne"), value, self.number(0))

    def cast(self, value: int, operand: Node, after: torch.dtype) -> int:
        """Convert a value as PyTorch does: integers wrap, floats are truncated."""
        before, dtype = dtype_of(operand), dtype_in(after)
        if after == torch.bool:
            return self.truth(self.rounded(value, before))
        if after.is_floating_point:
            return self.add(Cast(dtype), value)
        fits = is_clamped(operand, dtype)
        if not before.is_floating_point:
            source = dtype_in(before)
            fits = fits or (dtype.least <= source.least and source.largest <= dtype.largest)
            return self.add(Cast(dtype), value) if fits else self.wrapped(value, after)
        value = self.rounded(value, before)
        if fits or after == torch.int32:
            return self.add(Cast(dtype), self.add(Apply("trunc"), value))
        return self.add(Cast(I32), self.wrapped(value, after))

    def rounded(self, value: int, dtype: torch.dtype) -> int:
        """Round a value to the type of its tensor, if the value has more precision."""
        exact = dtype not in _HALF or self.types[value].dtype == dtype_in(dtype)
        return value if exact else self.add(Cast(dtype_in(dtype)), value)

    def computed(self, found: Applied, dtype: torch.dtype, read: Callable[[Node], int]) -> int:
        """Add a function whose operands are converted to a type first."""
        assert isinstance(found.what, Function)
        row = TABLE[found.what.name]
        operands = [
            self.condition(each, read) if slot in row.conditions else self.operand(each, dtype, row, read)
            for slot, each in enumerate(found.operands)
        ]
        wanted = dtype_in(dtype).compute if dtype.is_floating_point else I32
        slots = [slot for slot in range(len(operands)) if slot not in row.conditions]
        if slots and domain(self.dag, row.name, [self.types[each] for each in operands]) != wanted:
            slot = next((slot for slot in slots if not self.types[operands[slot]].constant), slots[0])
            operands[slot] = self.add(Cast(wanted), operands[slot])
        return self.add(Apply(row.name), *operands)

    def condition(self, operand: Any, read: Callable[[Node], int]) -> int:
        return read(operand) if isinstance(operand, Node) else self.number(bool(operand))

    def operand(self, operand: Any, dtype: torch.dtype, row: Function, read: Callable[[Node], int]) -> int:
        """Convert an operand to a type, and round it to the type before a discontinuous function.

        PyTorch rounds the tensors that it converts. It does not round numbers and tensors without dimensions.
        """
        if isinstance(operand, Applied):
            return self.computed(operand, dtype, read)
        jumps = Fact.JUMPS in row.facts
        number = number_of(operand) if isinstance(operand, Node) else operand
        if number is not None:
            rounds = not dtype.is_floating_point or (dtype in _HALF and jumps and row.name not in _DIVISIONS)
            return self.number(number_in(dtype, number) if rounds else number)
        value, before = read(operand), dtype_of(operand)
        if not dtype.is_floating_point:
            narrow, wide = dtype_in(dtype), dtype_in(before)
            fits = narrow.least <= wide.least and wide.largest <= narrow.largest
            return value if fits or dtype == torch.bool else self.wrapped(value, dtype)
        if jumps:
            value = self.rounded(value, before)
        single = not shape_of(operand) and not jumps
        if before == torch.float64 != dtype:
            value = self.add(Cast(F32), value)
        loses = before == torch.int32 or (before.is_floating_point and before != dtype and before not in _HALF)
        return self.add(Cast(dtype_in(dtype)), value) if dtype in _HALF and loses and not single else value


__all__ = ["Arithmetic", "computed_in", "dtype_in", "uncomputed"]
