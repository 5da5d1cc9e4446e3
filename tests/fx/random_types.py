"""Random PyTorch functions over every type: ``check(seed)`` compares a fused one with eager.

Exact results of eager are compared to the bit.

Each begins with a product of integers, or of floats that have no fraction, and goes on with casts, arithmetic, choices
and comparisons. The data has extremes, infinities, NaN and both zeros. A step is drawn, run and dropped if PyTorch
raises or leaves its result open. A rounded result of a float operation is compared to the bit too, if evt rounds it at
the same point: half precision is rounded where it is stored, cast to integers and compared.

    python -m tests.fx.random_types --count 1000 --first 0 --by fuse
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from evt.fx.fuse import fuse, fusion
from evt.fx.regions import find_regions
from evt.fx.rewrite import rewrite

from .fusing import TOLERANCES
from .seeds import Step, Steps, Value, check_seeds

INTEGERS = (torch.int32, torch.int8, torch.uint8)
HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALF)
TYPES = (*INTEGERS, torch.bool, *FLOATS)
ROWS, COLUMNS, DEPTH = 12, 8, 16


@dataclass(frozen=True)
class Function:
    """A step and its operands: ``exact`` steps round once at most; ``jumps`` marks discontinuous steps.

    ``keeps``: the result of a float has no more digits than its operands.
    """

    run: Step
    integers: bool = True
    floats: bool = True
    exact: bool = True
    jumps: bool = False
    keeps: bool = False


def _plain(run: Step, **facts: bool) -> Function:
    return Function(run, **facts)


#: Operations on one value; numbers have the kinds and sizes that promotion distinguishes.
UNARY: tuple[Function, ...] = (
    *(_plain(f, keeps=True) for f in (torch.neg, torch.abs, torch.relu, functional.relu6, torch.clone)),
    *(_plain(f, jumps=True, keeps=True) for f in (torch.sign, torch.floor, torch.ceil, torch.round, torch.trunc)),
    *(_plain(lambda x, n=n: x + n) for n in (1, -100, 0.5, 70_000, 2**31 + 7, True)),
    *(_plain(lambda x, n=n: n - x) for n in (5, 2.5)),
    *(_plain(lambda x, n=n: x * n) for n in (3, -1, 0.25, 999, 3_000_000_019)),
    *(_plain(lambda x, n=n: x / n) for n in (3, 0.5, -7)),
    *(_plain(lambda x, n=n: x % n, floats=False) for n in (7, -5, 300)),
    *(_plain(lambda x, n=n: torch.fmod(x, n), floats=False) for n in (7, -5, 300)),
    *(_plain(lambda x, n=n: x // n, floats=False) for n in (7, -5, 300)),
    *(_plain(lambda x, n=n: torch.div(x, n, rounding_mode="trunc"), floats=False) for n in (3, -7)),
    *(_plain(lambda x, n=n: x**n, floats=False) for n in (2, 3, 5)),
    _plain(torch.square),
    _plain(lambda x: x**2, floats=False),
    _plain(lambda x: torch.rsub(x, 3, alpha=2)),
    *(_plain(lambda x, n=n: torch.clamp(x, n, 100), keeps=True) for n in (-3, -0.5, 0)),
    _plain(lambda x: torch.clamp(x, max=7.5)),
    _plain(lambda x: functional.hardtanh(x, -20, 90), keeps=True),
    _plain(lambda x: functional.threshold(x, 4, -17), jumps=True, keeps=True),
    *(_plain(lambda x, n=n: x > n, jumps=True) for n in (0, 0.1, 3, 300)),
    *(_plain(lambda x, n=n: x == n, jumps=True) for n in (0, 0.1, 3, 300)),
    *(_plain(f, jumps=True) for f in (torch.isnan, torch.isinf, torch.isfinite, torch.logical_not)),
    _plain(lambda x: torch.where(x > 3, x, 2), jumps=True),
    _plain(lambda x: torch.where(x > 3, x, 2.5), jumps=True),
    _plain(lambda x: x.masked_fill(x < 1, 9), jumps=True),
    *(Function(f, exact=False) for f in (torch.exp, torch.tanh, torch.sigmoid, torch.sqrt, lambda x: x**0.5)),
    *(Function(f, exact=False, integers=False) for f in (functional.gelu, functional.silu, lambda x: x**-0.5)),
)  # fmt: skip
BINARY: tuple[Function, ...] = (
    *(_plain(f) for f in (torch.add, torch.sub, torch.mul)),
    _plain(lambda x, y: torch.add(x, y, alpha=3), floats=False),
    Function(lambda x, y: torch.add(x, y, alpha=3), integers=False, exact=False),  # PyTorch may round once
    *(_plain(f, keeps=True) for f in (torch.maximum, torch.minimum)),
    _plain(lambda x, y: x / y, integers=False),
    *(
        _plain(lambda x, y, f=f: f(x, torch.where(y == 0, 1, y)), floats=False)
        for f in (torch.remainder, torch.fmod, torch.floor_divide)
    ),
    *(_plain(f, jumps=True) for f in (torch.lt, torch.ge, torch.ne)),
    _plain(lambda x, y: torch.where(x > y, x, y), jumps=True, keeps=True),
    *(_plain(f, jumps=True) for f in (torch.logical_and, torch.logical_xor)),
)


@dataclass
class _Made:
    """A value: ``exact`` if fused code has eager's bits where it is stored, ``settled`` if also within the kernel.

    ``tolerance`` is that of the coarsest type on the way.
    """

    place: int
    value: Value
    exact: bool = True
    settled: bool = True
    tolerance: float = 0.0


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs: list[Value] = []
        self.program = Steps()
        self.values: list[_Made] = []

    def data(self, dtype: torch.dtype, shape: tuple[int, ...], special: bool) -> Value:
        """Return numbers of a type, without fractions or with few digits; some are ``special``."""
        if dtype == torch.bool:
            return torch.rand(shape, generator=self.generator) > 0.5
        small = torch.randint(-9, 10, shape, generator=self.generator)
        if not dtype.is_floating_point:
            limits = torch.iinfo(dtype)
            every = torch.randint(limits.min, limits.max + 1, shape, generator=self.generator)
            ends = torch.tensor([limits.min, limits.max, 0, 1, limits.min + 1])
            chosen = ends[torch.randint(0, len(ends), shape, generator=self.generator)]
            wide = torch.where(torch.rand(shape, generator=self.generator) > 0.3, every, chosen)
            return (wide if special else small.abs() if limits.min == 0 else small).to(dtype)
        ends = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 0.0, 1e-3, -6e4, 3e38], dtype=torch.float64)
        chosen = ends[torch.randint(0, len(ends), shape, generator=self.generator)]
        plain = small.double() / self.random.choice([1, 8])
        return torch.where((torch.rand(shape, generator=self.generator) > 0.7) & special, chosen, plain).to(dtype)

    def input(self, value: Value) -> int:
        self.inputs.append(value)
        return len(self.inputs) - 1

    def make(self) -> tuple[Steps, list[Value], list[_Made]]:
        choose = self.random
        kind = choose.choice(["_int_mm", "_int_mm", "_int_mm", "mm", "linear", "addmm", *["floats"] * 4])
        dtype = choose.choice(FLOATS) if kind == "floats" else torch.int8
        wide = kind != "floats"
        a = self.input(self.data(dtype, (ROWS, DEPTH), wide) if wide else self.whole(dtype, (ROWS, DEPTH)))
        b = self.input(self.data(dtype, (DEPTH, COLUMNS), wide) if wide else self.whole(dtype, (DEPTH, COLUMNS)))
        c = self.input(self.data(torch.int8, (COLUMNS,), True))
        shapes: list[tuple[int, ...]] = [(ROWS, COLUMNS)] * 3 + [(COLUMNS,), (ROWS, 1), (1, COLUMNS)]
        operands = []
        for _ in range(4):
            given = self.data(choose.choice(TYPES), choose.choice(shapes), choose.random() < 0.6)
            operands.append(_Made(self.input(given), given))
        products: dict[str, Step] = {
            "_int_mm": torch._int_mm,
            "mm": torch.mm,
            "floats": torch.mm,
            "linear": lambda x, y, z: functional.linear(x, y.t(), z),
            "addmm": lambda x, y, z: torch.addmm(z, x, y, beta=2, alpha=3),
        }
        self.add(products[kind], (a, b, c) if kind in ("linear", "addmm") else (a, b))
        for _ in range(choose.randint(1, 6)):
            self.extend(operands)
        kept = {id(self.values[-1]), *(id(each) for each in self.values if choose.random() < 0.2)}
        results = [each for each in self.values if id(each) in kept]
        self.program.results = [each.place for each in results]
        return self.program, self.inputs, results

    def whole(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Value:
        return torch.randint(-4, 5, shape, generator=self.generator).to(dtype)

    def add(self, step: Step, taken: tuple[int, ...], exact: bool = True, settled: bool = True) -> None:
        every = [*self.inputs, *(each.value for each in self.values)]
        value = step(*(every[place] for place in taken))
        self.program.steps.append((step, taken))
        tolerance = max(TOLERANCES.get(each.dtype, 0.0) for each in (value, *every))
        self.values.append(_Made(len(every), value, exact, settled, tolerance))

    def extend(self, operands: list[_Made]) -> None:
        """Add one of some steps that PyTorch defines for the values that there are."""
        choose = self.random
        for _ in range(40):
            x = self.values[-1] if choose.random() < 0.75 else choose.choice(self.values)
            if choose.random() < 0.3:
                if self.cast(x, choose.choice(TYPES)):
                    return
                continue
            y = choose.choice([*operands, *operands, *self.values])
            unary = choose.random() < 0.55
            function, taken = (choose.choice(UNARY), [x]) if unary else (choose.choice(BINARY), [x, y])
            if not unary and choose.random() < 0.5:
                taken = [y, x]
            if self.apply(function, taken):
                return

    def cast(self, x: _Made, dtype: torch.dtype) -> bool:
        before, after = x.value.dtype, dtype
        if before == after or (not after.is_floating_point and not (x.exact and self.fits(x.value, after))):
            return False
        settled = x.settled or not after.is_floating_point
        self.add(lambda v: v.to(dtype), (x.place,), x.exact and settled, settled)
        return True

    def fits(self, value: Value, dtype: torch.dtype) -> bool:
        """Return whether PyTorch defines the cast of a float to an integer: a uint8 goes through int64."""
        if dtype == torch.bool or not value.dtype.is_floating_point:
            return True
        limits = torch.iinfo(torch.int64 if dtype == torch.uint8 else torch.int32)
        whole = value.double().trunc()
        return bool(((whole >= limits.min) & (whole <= limits.max // 2)).all())

    def apply(self, function: Function, taken: list[_Made]) -> bool:
        values = [each.value for each in taken]
        floats = any(each.dtype.is_floating_point for each in values)
        if not (function.floats if floats else function.integers):
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function.run(*values)
        except (RuntimeError, TypeError):
            return False
        if result.shape != (ROWS, COLUMNS) or result.dtype not in TYPES:
            return False
        if (function.jumps or not result.dtype.is_floating_point) and not all(each.exact for each in taken):
            return False  # a rounding decides
        discrete = function.jumps and not result.dtype.is_floating_point
        exact = function.exact and all(each.exact and (each.settled or discrete) for each in taken)
        if function.run in (torch.logical_and, torch.logical_xor, torch.logical_not) and not all(
            each.settled for each in taken
        ):
            return False  # half precision may vanish where it is rounded
        if not exact and bool((~result.double().isfinite()).any()):
            return False  # overflow depends on the rounding
        if function.jumps and not discrete and not all(each.settled for each in taken):
            return False
        settled = exact and (result.dtype not in HALF or (function.keeps and all(each.settled for each in taken)))
        self.add(function.run, tuple(each.place for each in taken), exact, settled)
        return True


def make(seed: int) -> tuple[Steps, list[Value], list[_Made]]:
    """Return a random module, inputs for it, and its results in eager PyTorch."""
    return _Maker(seed).make()


def differing(expected: _Made, got: Value) -> Value:
    """Return where a result is not eager's; NaN is NaN, and zeros are equal.

    Eager mode overflows in f16 between two operators. A kernel computes both in f32, and rounds its stores.
    """
    wanted = expected.value
    assert (wanted.shape, wanted.dtype) == (got.shape, got.dtype), (wanted.dtype, got.dtype)
    same = (wanted == got) | ((wanted != wanted) & (got != got))
    if expected.exact:
        return ~same
    finite = wanted.double().abs().nan_to_num(0, 0, 0)
    tolerance = expected.tolerance * max(1.0, float(finite.max()))
    beyond = wanted.isinf() & (got.double().abs() > torch.finfo(torch.float16).max) & ((wanted > 0) == (got > 0))
    return ~(same | beyond | ((wanted.double() - got.double()).abs() <= tolerance))


def check(seed: int) -> int:
    """Assert that a random module gives the same fused; return how many regions it has."""
    module, inputs, results = make(seed)
    made = fuse(module.eval(), tuple(inputs)).eval()
    with torch.no_grad():
        got = made(*inputs)
    for place, (expected, found) in enumerate(zip(results, got, strict=True)):
        _raise_if_wrong(seed, place, expected, found)
    return len(fusion(made).regions)


def check_decomposed(seed: int) -> int:
    """Assert equality for a graph as Inductor shows it, whose other operators recompute their operands."""
    module, inputs, results = make(seed)
    with torch.no_grad():
        made = make_fx(module, select_decomp_table(), tracing_mode="fake")(*inputs)
        found = find_regions(made.graph, inlined=True)
        rewrite(made.graph, found.regions)
        made.recompile()
        got = made(*inputs)
    for place, (expected, value) in enumerate(zip(results, got, strict=True)):
        _raise_if_wrong(seed, place, expected, value)
    return len(found.regions)


def check_compiled(seed: int) -> int:
    """Assert equality for torch.compile, except for results that Inductor alone changes too."""
    from evt.fx.records import RECORDS

    module, inputs, results = make(seed)
    torch._dynamo.reset()
    RECORDS.clear()
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    with torch.no_grad():
        got = torch.compile(module.eval(), backend="evt", options=options)(*inputs)
        fused = sum(row.fused for record in RECORDS for row in record.rows)
        if any(bool(differing(*pair).any()) for pair in zip(results, got, strict=True)):
            torch._dynamo.reset()
            alone = torch.compile(module, backend="inductor")(*inputs)
            for place, (expected, found, own) in enumerate(zip(results, got, alone, strict=True)):
                if not torch.equal(found.nan_to_num(), own.nan_to_num()):
                    _raise_if_wrong(seed, place, expected, found)
    return fused


def _raise_if_wrong(seed: int, place: int, expected: _Made, found: Value) -> None:
    wrong = differing(expected, found)
    if bool(wrong.any()):
        pairs = zip(expected.value[wrong][:3].tolist(), found[wrong][:3].tolist(), strict=True)
        raise AssertionError(f"seed {seed}, result {place} ({found.dtype}): eager, ours = {list(pairs)}")


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check, "pass": check_decomposed, "compile": check_compiled})
