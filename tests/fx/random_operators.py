"""Random calls of the operators that evt knows: ``check(seed)`` compares a fused call with eager.

The arguments of one operator are drawn from its schema: tensors of other types and smaller shapes, numbers, dimensions,
types and modes. Numbers and elements have special values. One argument is a product whose elements a mask replaces, so
every value is exact before the call. A call that PyTorch refuses is drawn again.

    python -m tests.fx.random_operators --count 1000
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from evt.errors import ArgumentError
from evt.fx.fuse import fuse, fusion
from evt.fx.op_semantics import known_operators

from .fusing import Function
from .seeds import Value, check_seeds

M, N, K = 4, 6, 4
_FLOATS = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
_TYPES = (*_FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
_SHAPES = ((M, N), (M, N), (M, N), (N,), (M, 1), (1, N), (1,), ())
_NUMBERS: Sequence[float] = (
    *(0, 1, -1, 2, 3, -3, 7, 20, 300, 70_000, 2**31 + 7, True, False),
    *(0.0, -0.0, 0.5, -0.5, 1.0, 1.5, -1.5, 2.0, 3.0, 0.1, 1e-5, 1e-30, 1e10, 3e38, math.inf, -math.inf, math.nan),
)
_SPECIAL = (math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-3, -1e-3, -6e4, 6e4, 3e38, 0.5, -0.5, 100.0, -100.0, 1e-40)
#: Arguments that stay at their defaults: PyTorch ends the process for some values, and ``rrelu`` draws in training.
_PLAIN = ("device", "layout", "pin_memory", "non_blocking", "generator", "memory_format", "training")
#: Bits of a type's mantissa, and the largest error in units of the last one.
_DIGITS, _ULPS = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}, 4
_REFUSED = (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError, OverflowError)


class _Place(int):
    """The place of an input."""


@cache
def operators() -> tuple[OpOverload, ...]:
    """Return the operators that evt knows, with every overload of a special operator."""
    found = {}
    for name in sorted(known_operators()):
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        for each in (overload,) if overload else () if packet is None else packet.overloads():
            one = getattr(packet, each, None)
            if one is None or each.startswith("prim_") or any(given.is_out for given in one._schema.arguments):
                continue
            if any(str(given.type) == "Tensor" for given in one._schema.arguments):
                found[str(one)] = one
    return tuple(found.values())


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def data(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Value:
        """Return numbers of few digits; some are special."""
        small = torch.randint(-9, 10, shape, generator=self.generator)
        if dtype == torch.bool:
            return small > 0
        if not dtype.is_floating_point:
            return (small.abs() if dtype == torch.uint8 else small).to(dtype)
        chosen = torch.tensor(_SPECIAL, dtype=torch.float64)
        chosen = chosen[torch.randint(0, len(_SPECIAL), shape, generator=self.generator)]
        special = torch.rand(shape, generator=self.generator) < self.random.choice([0, 0.5])
        return torch.where(special, chosen, small.double() / self.random.choice([1, 8])).to(dtype)

    def whole(self, dtype: torch.dtype, *shape: int) -> Value:
        return torch.randint(-2, 3, shape, generator=self.generator).to(dtype)

    def argument(self, kind: str, name: str) -> Any:
        """Return a value for an argument of a type of the schema."""
        choose = self.random
        if kind.startswith("Optional["):
            return None if choose.random() < 0.4 else self.argument(kind[9:-1], name)
        drawn: dict[str, Callable[[], Any]] = {
            "Tensor": lambda: self.data(choose.choice(_TYPES), choose.choice(_SHAPES)),
            **dict.fromkeys(("number", "Scalar", "float"), lambda: choose.choice(_NUMBERS)),
            "bool": lambda: choose.random() < 0.5,
            "int": lambda: choose.choice(_TYPES) if "dtype" in name else choose.choice([-2, -1, 0, 1, 2]),
            "List[int]": lambda: choose.choice([[], [0], [1], [-1], [-2], [0, 1], [1, 0], [-1, 0], [-2, -1]]),
            "str": lambda: choose.choice(["none", "tanh", "trunc", "floor"]),
        }
        return drawn[kind]()

    def make(self) -> tuple[str, Function, tuple[Value, ...]] | None:
        """Return a call as text, its function and inputs; None if PyTorch refused all drawn ones."""
        choose = self.random
        operator = choose.choice(operators())
        schema = operator._schema.arguments
        for _ in range(50):
            dtype = choose.choice(_FLOATS)
            inputs = [self.whole(dtype, M, K), self.whole(dtype, K, N), self.data(dtype, (M, N))]
            inputs.append(torch.rand(M, N, generator=self.generator) > 0.4)
            read = choose.choice([each.name for each in schema if str(each.type) == "Tensor"])
            values: dict[str, Any] = {}
            for each in schema:
                if each.has_default_value() and (each.name in _PLAIN or choose.random() < 0.4):
                    continue
                if each.name != read:
                    try:
                        values[each.name] = self.argument(str(each.type), each.name)
                    except KeyError:
                        return None
                if isinstance(values.get(each.name), torch.Tensor):
                    inputs.append(values[each.name])
                    values[each.name] = _Place(len(inputs) - 1)
            function = Function(_call(operator, values, read))
            try:
                function(*inputs)
            except _REFUSED:
                continue
            given = [f"{tuple(each.shape)} {each.dtype}" for each in inputs[4:]]
            return f"{operator} reads {dtype} as {read}, {values}, {given}", function, tuple(inputs)
        return None


def _call(operator: OpOverload, values: dict[str, Any], read: str) -> Callable[..., Any]:
    def run(*inputs: Value) -> Any:
        a, b, c, mask = inputs[:4]
        given = {name: inputs[each] if isinstance(each, _Place) else each for name, each in values.items()}
        return operator(**{**given, read: torch.where(mask, a @ b, c)})

    return run


def _compare(want: Value, got: Value) -> None:
    """Assert that a result has eager's type, shape, infinities and NaN, and nearly its numbers."""
    assert (want.dtype, want.shape) == (got.dtype, got.shape), f"{got.dtype} {got.shape}"
    if want.dtype.is_floating_point:
        x, y, limits = want.double(), got.double(), torch.finfo(want.dtype)
        error = (x - y).abs() <= _ULPS * 2.0 ** -_DIGITS[want.dtype] * x.abs().clamp(min=max(limits.tiny, 1e-37))
        ends = torch.minimum(x.abs(), y.abs()) > limits.max * 0.98
        wrong = ~((x == y) | error | ends | (x.isnan() & y.isnan()))
    else:
        wrong = want != got
    assert not wrong.any(), f"{got[wrong][0].item()} instead of {want[wrong][0].item()}"


def check(seed: int) -> int:
    """Assert that a random call is the same fused; return how many regions it has."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if (found := _Maker(seed).make()) is None:
            return 0
        text, function, inputs = found
        try:
            made = fuse(function, inputs)
        except ArgumentError as error:
            if error.diagnostics[0].code != "E1020":
                raise
            return 0  # PyTorch's fake tensors refuse some calls
        results = [found if isinstance(found, tuple) else (found,) for found in (function(*inputs), made(*inputs))]
    try:
        for want, got in zip(*results, strict=True):
            _compare(want, got)
    except AssertionError as error:
        programs = "; ".join(str(each.program) for each in fusion(made).regions)
        raise AssertionError(f"{text}: {error}\n{programs}") from error
    return len(fusion(made).regions)


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check})
