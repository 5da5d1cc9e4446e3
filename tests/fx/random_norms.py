"""Random functions that are nearly norms before a product: ``check(seed)`` compares a compiled one with eager.

Each part of a written norm is drawn from several forms: its mean, its root, its gain, its shift and the product that
reads it. Many are not the form of a norm: factors of additions, statistics of other dimensions or of other values, and
vectors for the rows. Matrices may be square, so that no size tells the dimensions apart.

    python -m tests.fx.random_norms --count 1000
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from evt.fx.records import RECORDS

from .fusing import compare
from .seeds import Value, check_seeds
from .training import fused

WIDTH = 8
ROWS, COLUMNS = (1, 3, WIDTH), (5, WIDTH)

_STATISTICS: Sequence[Callable[[Value], Value]] = (
    *[lambda x: x.mean(-1, keepdim=True)] * 4, lambda x: x.mean(-2, keepdim=True), lambda x: x.amax(-1, keepdim=True),
    lambda x: x.sum(-1, keepdim=True), lambda x: x.mean((-1, -2), keepdim=True), lambda x: x[..., :1],
    lambda x: (2 * x).mean(-1, keepdim=True),
    lambda x: x.mean(-2).unsqueeze(-1) if x.shape[-2] == WIDTH else x[..., :1],
)  # fmt: skip
_CENTRED: Sequence[Callable[[Value, Value], Value]] = (
    *[lambda x, _: x, torch.sub] * 3, torch.add, lambda x, m: m - x, lambda x, m: torch.sub(x, m, alpha=2),
    lambda x, m: torch.sub(m, x, alpha=-1), lambda x, m: torch.add(x, m, alpha=-1), lambda x, m: x - m * m,
)  # fmt: skip
_SQUARES: Sequence[Callable[[Value, Value], Value]] = (
    *[lambda x, _: x * x, lambda _, y: y.pow(2)] * 3, lambda x, y: x * y, lambda x, _: x.abs(),
    lambda x, _: x.abs() ** 3,
)  # fmt: skip
_ROOTS: Sequence[Callable[[Value], Value]] = (
    *[torch.rsqrt] * 3, lambda v: torch.pow(v, -0.5), lambda v: 1 / v.sqrt(), lambda v: v.sqrt().reciprocal(),
    torch.sqrt, torch.reciprocal, lambda v: torch.pow(v, -1.5), lambda v: 2 / v.sqrt(), lambda v: torch.rsqrt(v) * 0.5,
)  # fmt: skip
_GAINS: Sequence[Callable[[Value, Value], Value]] = (
    *[lambda y, _: y, lambda y, w: y * w, lambda y, w: w * y] * 2, lambda y, w: y * (1 + w), lambda y, w: y * (w + 0.5),
    lambda y, w: y * (2 - w), lambda y, w: y * torch.add(w, 1, alpha=2), lambda y, w: y * (w * w), lambda y, w: y / w,
    lambda y, w: y * torch.rsub(w, 1), lambda y, w: y * w * w, lambda y, w: y * w[0], lambda y, w: y * w.flip(0),
    lambda y, w: y * torch.add(w, w), lambda y, w: (y.mT * w).mT if y.shape[-2] == WIDTH else y * y,
)  # fmt: skip
_SHIFTS: Sequence[Callable[[Value, Value], Value]] = (
    *[lambda y, _: y, torch.add, lambda y, b: b + y] * 2, torch.sub, lambda y, b: torch.add(y, b, alpha=3),
    lambda y, b: torch.add(b, y, alpha=3), lambda y, b: torch.sub(y, b, alpha=0.5), lambda y, b: b - y,
    lambda y, b: y + b[1], lambda y, b: (y.mT + b).mT if y.shape[-2] == WIDTH else y + 2 * b, lambda y, b: y + b + b,
)  # fmt: skip
#: Products of a norm with a weight [columns, width] and a bias.
_PRODUCTS: Sequence[Callable[[Value, Value, Value], Value]] = (
    *[lambda y, w, b: y @ w.t(), functional.linear] * 3, lambda y, w, b: functional.linear(y, w),
    lambda y, w, b: functional.linear(y, w * 2, b), lambda y, w, b: functional.linear(y, w, b + b),
    lambda y, w, b: torch.addmm(b, y.flatten(0, -2), w.t(), beta=2), lambda y, w, b: y @ w.t().contiguous(),
    lambda y, w, b: torch.addmm(b, y.flatten(0, -2), w.t(), alpha=0.5),
    lambda y, w, b: y.mT @ w.t() if y.shape[-2] == WIDTH else y.flip(-1) @ w.t(),
    lambda y, w, b: y @ w if w.shape[0] == WIDTH else y @ w.t() + b,
)  # fmt: skip
_READERS: Sequence[Callable[[Value, Value], Value]] = (
    *[lambda z, _: torch.relu(z)] * 4, lambda z, y: z * y.sum(), lambda z, y: z + y if z.shape == y.shape else z * 2,
    lambda z, y: torch.cat([z.flatten(), y.flatten()]), lambda z, y: torch.softmax(z, -1),
)  # fmt: skip


class _Nearly:
    """A function of an input and five parameters: gain, shift, weight, bias, and a weight of a second product."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.dtype = choose.choice([torch.float32, torch.float32, torch.bfloat16])
        parts = (_STATISTICS, _STATISTICS[:7], _CENTRED, _SQUARES, _ROOTS, _GAINS, _SHIFTS, _PRODUCTS, _READERS)
        self.parts: list[Any] = [choose.choice(each) for each in parts]
        self.wide, self.narrow_gain = choose.random() < 0.6, choose.random() < 0.5
        self.has_product, self.second = choose.random() < 0.4, choose.random() < 0.3
        rows = (choose.choice(ROWS), choose.choice(ROWS))[choose.randrange(2) :]
        columns = choose.choice(COLUMNS)
        sizes: list[tuple[int, ...]] = [
            (*rows, WIDTH),
            (WIDTH,),
            (WIDTH,),
            (columns, WIDTH),
            (columns,),
            (WIDTH, WIDTH),
        ]
        drawn = [torch.randn(size, generator=generator) for size in sizes]
        drawn[1] = drawn[1].abs() + 0.5
        self.inputs = [each.to(self.dtype) for each in drawn]

    def __call__(self, x: Value, *parameters: Value) -> Value:
        middle, spread, centre, square, root, gain, shift, product, read = self.parts
        g, b, weight, bias, other = parameters
        x = functional.linear(x, other) if self.has_product else x
        given = x.float() if self.wide else x
        y = centre(given, middle(given))
        y = y * root(spread(square(given, y)).abs() + 0.1)
        if self.narrow_gain:
            y = y.to(x.dtype)
        y = shift(gain(y, g), b).to(x.dtype)
        z = product(y, weight, bias)
        z = z + functional.linear(y, other).tanh().sum() if self.second else z
        return read(z, y)


def check(seed: int) -> int:
    """Assert that a random function is the same compiled; return how many regions it has."""
    made = _Nearly(seed)
    RECORDS.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        compare(made(*made.inputs), fused(made)(*made.inputs), made.dtype)
    return sum(row.fused for record in RECORDS for row in record.rows)


if __name__ == "__main__":
    check_seeds(__doc__, {"compile": check})
