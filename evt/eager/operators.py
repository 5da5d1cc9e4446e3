"""Operators of PyTorch that contain a product's biases and scales: ``Operators(...).applied(function, operands, ...)``.

They are the operators for which ``numerics="eager"`` rounds once: linear, addmm, baddbmm and _scaled_mm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from evt.eager.idiom import Value, scaled_product


@dataclass(frozen=True)
class _Product:
    """The product, times a number ``alpha``; for 8-bit floats, times up to two ``scales``."""

    alpha: float | None = None
    scales: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Addend:
    """A loaded tensor, times a number ``beta``; ``is_matrix``: it varies over rows."""

    value: Any
    is_matrix: bool
    beta: float | None = None


@dataclass
class Operators:
    """A writer of a product's operators. ``call`` writes a call, and ``dtype`` is the type of the product.

    ``left`` and ``right`` are the matrices of the product. ``scaled``: they are 8-bit floats. ``batched``: they have
    three dimensions.
    """

    call: Callable[..., Any]
    left: Any
    right: Any
    dtype: torch.dtype
    scaled: bool
    batched: bool
    #: Values that are parts of an operator, by identity.
    parts: list[tuple[Value, _Product | _Addend]] = field(default_factory=list)

    def accumulator(self, value: Value) -> Value:
        """Return the product, as a part of an operator."""
        self.parts.append((value, _Product()))
        return value

    def loaded(self, value: Value, is_matrix: bool) -> None:
        """Let a loaded tensor be a part of an operator."""
        self.parts.append((value, _Addend(value, is_matrix)))

    def applied(self, function: str, operands: Sequence[Value], otherwise: Callable[[], Value]) -> Value:
        """Return the result of a function: of a product's operator that it ends, or the result of ``otherwise``."""
        if function not in ("add", "mul"):
            return otherwise()
        found = self._ended(function, operands)
        if found is not None:
            return found
        value = otherwise()
        for each, number in (operands, tuple(reversed(operands))) if function == "mul" else ():
            part = self._part(each)
            if not isinstance(number, float | int):
                continue
            if isinstance(part, _Product) and part.alpha is None:
                self.parts.append((value, _Product(number)))
            elif isinstance(part, _Addend) and part.beta is None:
                self.parts.append((value, replace(part, beta=number)))
        return value

    def bare(self) -> Any:
        """Return the product of 8-bit floats without scales."""
        return self.call(scaled_product, self.left, self.right, (), None, self.dtype)

    def _part(self, value: Value) -> _Product | _Addend | None:
        return next((part for known, part in self.parts if known is value), None)

    def _ended(self, function: str, operands: Sequence[Value]) -> Value | None:
        """Return the product's operator that an operation ends, or None."""
        x, y = operands
        product, other, addend = self._part(x), y, self._part(y)
        if not isinstance(product, _Product):
            product, other, addend = self._part(y), x, self._part(x)
        if not isinstance(product, _Product) or isinstance(addend, _Product):
            return None
        if function == "mul":
            return self._with_scale(product, other, addend is not None) if self.scaled else None
        if not isinstance(addend, _Addend) or addend.value[1] != self.dtype:
            return None
        if self.scaled:
            return None if addend.is_matrix else self._scaled(product, addend.value[0])
        if addend.is_matrix and product.alpha is None and addend.beta is None:
            return None
        numbers = {"alpha": product.alpha, "beta": addend.beta}
        given = {name: number for name, number in numbers.items() if number is not None}
        operator = torch.baddbmm if self.batched else torch.addmm
        return self.call(operator, addend.value[0], self.left, self.right, **given), self.dtype

    def _with_scale(self, product: _Product, scale: Any, is_loaded: bool) -> Value | None:
        if len(product.scales) == 2:
            return None
        if not isinstance(scale, float | int):
            if not is_loaded or scale[1] != torch.float32:
                return None
            scale = scale[0]
        made = _Product(scales=(*product.scales, scale))
        value = self._scaled(made, None)
        self.parts.append((value, made))
        return value

    def _scaled(self, product: _Product, bias: Any) -> Value:
        return self.call(scaled_product, self.left, self.right, product.scales, bias, self.dtype), self.dtype


__all__ = ["Operators"]
