"""Compare a call with eager PyTorch, bit for bit: ``verify(request, call, a, b, inputs) -> Verification``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from evt.diagnostics import Diagnostic, visible
from evt.eager import UnwrittenError, straight_line
from evt.errors import ArgumentError
from evt.html import bar, code, details, page, table
from evt.ir import Input
from evt.ir.dtype import B1
from evt.reference import is_image
from evt.reference.bits import different_bits
from evt.reference.int4 import unpacked
from evt.request import Request, typed_for
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.given import split_held


@dataclass(frozen=True)
class OutputBits:
    """The comparison of an output: its elements, and the number of elements with other bits than eager's."""

    name: str
    elements: int
    different: int

    @property
    def share(self) -> float:
        """The share of the elements with other bits."""
        return self.different / self.elements if self.elements else 0.0

    def __str__(self) -> str:
        if not self.different:
            return f"{self.name}: all bits of {self.elements} elements are eager's"
        return f"{self.name}: {self.share:.3%} of {self.elements} elements have other bits than eager's"


@dataclass(frozen=True, repr=False)
class Verification:
    """The comparison of a call with eager PyTorch; it is true if all bits are equal. NaNs are equal.

    ``code`` is the PyTorch code that ran.
    """

    outputs: tuple[OutputBits, ...]
    code: str

    @property
    def equal(self) -> bool:
        return not any(each.different for each in self.outputs)

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        return visible("\n".join(map(str, self.outputs)), keep="\n")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [(each.name, str(each.elements), str(each.different), bar(each.share)) for each in self.outputs]
        headings = ("output", "elements", "other bits than eager's", "")
        return page(table(headings, rows, numbers=headings[1:3]), details("PyTorch's code", code(self.code)))

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON."""
        outputs = [asdict(each) for each in self.outputs]
        return {"equal": self.equal, "outputs": outputs, "code": self.code}


def verify(
    request: Request, call: Callable[..., Any], a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any]
) -> Verification:
    """Run a call, and the formula as a PyTorch user writes it; return the comparison of the bits.

    Raise ArgumentError (E0615) if PyTorch has no operators for the program, and the errors of the call.
    """
    read, held = split_held(request.dag, inputs)
    bound = bind(request, a, b, read, held)
    plain = replace(request, settings=replace(request.settings, numerics="precise"))
    dag = typed_for(plain, bound.dag.operands, bound.absent)
    batched = request.convolution is None and bound.sizes["l"] > 1
    values = {value.name: bound.values.get(value.name, value.default) for value in dag.inputs}
    scalars = {value.name: _number(values[value.name]) for value in dag.inputs if not value.modes}
    try:
        module = straight_line(
            dag,
            scalars,
            batched=batched,
            device=a.device.type,
            problem=bound.convolution,
            operators=True,
        )
    except UnwrittenError as error:
        message = f"PyTorch has no operators for this program: {error}"
        raise ArgumentError(Diagnostic("E0615", message, help="compare with `op.reference`")) from error
    tensors = [_placed(value, values[value.name], bound, batched) for value in dag.inputs if value.modes]
    operands = [_operand(bound, index, batched) for index in (0, 1)]
    with torch.no_grad():
        wanted = module(*operands, *tensors)
        found = call(a, b, inputs, None)
    pairs = zip(request.outputs, _listed(found), _listed(wanted), strict=True)
    bits = (OutputBits(name, got.numel(), different_bits(got, want.reshape(got.shape))) for name, got, want in pairs)
    return Verification(tuple(bits), module.code.strip())


def _listed(results: Any) -> Sequence[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _number(value: Any) -> float:
    return value.item() if isinstance(value, torch.Tensor) else value


def _operand(bound: Bound, index: int, batched: bool) -> torch.Tensor:
    """Return A or B with two dimensions, or three with batches; a convolution's unchanged."""
    operand = bound.dag.operands[index]
    value = unpacked(operand.dtype, bound.values[operand.name])
    if bound.convolution is not None:
        return value
    shape = [bound.extent(mode) for mode in operand.modes]
    if not batched:
        return value.reshape(shape)
    shared = value.dim() == 2
    return value.expand(bound.sizes["l"], *shape) if shared else value.reshape(bound.sizes["l"], *shape)


def _placed(value: Input, given: Any, bound: Bound, batched: bool) -> torch.Tensor:
    """Return an input with one dimension for each mode, and one for undeclared batches."""
    if value.dtype == B1:
        raise ArgumentError(Diagnostic("E0615", f"`{value.name}` is packed bits, which PyTorch does not have"))
    if not isinstance(given, torch.Tensor):  # a vector that is given as a number
        dtype = None if value.dtype is None else getattr(torch, value.dtype.torch)
        return torch.full([bound.extent(mode) for mode in value.modes], given, dtype=dtype, device=bound.device)
    if bound.convolution is not None and (is_image(value) or value.modes == ("n",)):
        return given
    shape = [bound.extent(mode) for mode in value.modes if mode != "l" or batched]
    if given.numel() == 1 and value.flexible:
        return given.expand(shape)
    if batched and "l" not in value.modes and given.dim() > len(shape):
        shape = [bound.sizes["l"], *shape]
    return given.reshape(shape)


__all__ = ["OutputBits", "Verification", "verify"]
