"""Random networks of several products: ``make(seed) -> (module, inputs)``.

Products read vectors that other products' kernels compute, reductions of their rows and columns, scales of int8
quantisation, results that nothing reads, and values of checkpoints and of branches of torch.cond. The rewritten graph
runs through the reference; with ``--by inductor`` torch.compile compiles it.

    python -m tests.fx.random_networks --count 1000
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from evt.fx.backend import backend
from evt.fx.records import RECORDS

from .seeds import Steps, Value, check_seeds
from .training import fused

#: Sizes of the rows, and of the columns of matrices: `_int_mm` of a GPU takes no fewer rows, and multiples of 8.
ROWS, WIDTHS = 24, (16, 24, 40)
#: Error relative to the norm of a result. A rounded quotient that meets another rounding changes a step of 1/127.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3}

_MATRIX: tuple[Callable[[Value], Value], ...] = (
    torch.relu, torch.tanh, torch.sigmoid, torch.nn.functional.gelu, torch.nn.functional.silu, torch.abs,
    lambda x: x * 0.5, lambda x: x.clamp(-1, 1), lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: x.t().t(),
)  # fmt: skip
_VECTOR: tuple[Callable[[Value], Value], ...] = (
    torch.tanh, lambda x: torch.rsqrt(x.abs() + 1), lambda x: torch.exp(-x.abs()), lambda x: x.clamp(min=0.1),
    lambda x: 1 / (x.abs() + 1), lambda x: x.reshape(-1).reshape(x.shape) + 1,
)  # fmt: skip
_REDUCE: tuple[Callable[[Value, int], Value], ...] = (
    lambda x, dim: x.sum(dim, keepdim=True), lambda x, dim: x.mean(dim, keepdim=True),
    lambda x, dim: x.amax(dim, keepdim=True), lambda x, dim: x.abs().amax(dim).unsqueeze(dim),
    lambda x, dim: x.amin(dim, keepdim=True), lambda x, dim: (x * x).sum(dim, keepdim=True),
)  # fmt: skip


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = self.random.choice([torch.float64, torch.float64, torch.float32])
        self.inputs: list[Value] = []
        self.network = Steps()
        self.shapes: list[tuple[int, ...]] = []

    def input(self, *shape: int) -> int:
        self.inputs.append(torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def step(self, function: Callable[..., Value], shape: tuple[int, ...], *taken: int) -> int:
        self.network.steps.append((function, taken))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def matrices(self) -> list[int]:
        return [place for place, shape in enumerate(self.shapes) if len(shape) == 2 and shape[0] == ROWS != shape[1]]

    def make(self) -> tuple[Steps, list[Value]]:
        choose = self.random
        self.first = self.input(ROWS, choose.choice(WIDTHS[::2]))
        self.weights = {(k, n): self.input(k, n) for k in WIDTHS for n in WIDTHS}
        self.vectors = [self.input(ROWS, 1), self.input(1, 1), *(self.input(1, n) for n in WIDTHS)]
        recent = [self.product(self.first)]
        for _ in range(choose.randint(3, 12)):
            kinds = (self.product, self.unary, self.unary, self.binary, self.scaled, self.scaled, self.quantised)
            place = choose.choice(kinds)(choose.choice([recent[-1], choose.choice(recent), self.first]))
            recent.append(place)
            if choose.random() < 0.4:
                self.vector(choose.choice(recent))
            if choose.random() < 0.1:
                recent.append(self.dead(recent[-1]))
            if choose.random() < 0.1:
                recent.append(self.inner(recent[-1]))
        last = {recent[-1], *(place for place in recent + self.vectors[5:] if choose.random() < 0.15)}
        self.network.results = sorted(last)
        return self.network, self.inputs

    def product(self, x: int) -> int:
        k, n = self.shapes[x][1], self.random.choice(WIDTHS)
        return self.step(lambda a, b: a @ b / a.shape[1] ** 0.5, (ROWS, n), x, self.weights[k, n])

    def unary(self, x: int) -> int:
        function = self.random.choice(_MATRIX)
        return self.step(function, self.shapes[x], x)

    def binary(self, x: int) -> int:
        others = [place for place, shape in enumerate(self.shapes) if shape == self.shapes[x]]
        function = self.random.choice((torch.add, torch.sub, torch.mul, torch.maximum))
        return self.step(function, self.shapes[x], x, self.random.choice(others))

    def vector(self, x: int) -> int:
        """Reduce rows, columns or all, and compute with the result."""
        dim, reduce = self.random.choice([0, 1, 1]), self.random.choice(_REDUCE)
        shape = (ROWS, 1) if dim else (1, self.shapes[x][1])
        made = self.step(lambda v: reduce(v, dim), shape, x)
        if self.random.random() < 0.15:
            made = self.step(lambda v: v.sum().reshape(1, 1), (1, 1), made)
        for _ in range(self.random.randint(0, 3)):
            function = self.random.choice(_VECTOR)
            made = self.step(function, self.shapes[made], made)
        if self.random.random() < 0.3:
            others = [place for place in self.vectors if self.shapes[place] == self.shapes[made]]
            made = self.step(torch.mul, self.shapes[made], made, self.random.choice([*others, made]))
        self.vectors.append(made)
        return made

    def scaled(self, x: int) -> int:
        fitting = [v for v in self.vectors if self.shapes[v] in ((ROWS, 1), (1, 1), (1, self.shapes[x][1]))]
        if not fitting or self.random.random() < 0.3:
            made = self.vector(x)
        else:
            made = self.random.choice([*fitting, fitting[-1]])
        function = self.random.choice((torch.mul, torch.add, torch.mul, lambda a, b: a / (b.abs() + 1)))
        return self.step(function, self.shapes[x], x, made)

    def quantised(self, x: int) -> int:
        """Quantise a matrix by its rows, or by its largest element, and multiply it as int8."""
        k, n = self.shapes[x][1], self.random.choice(WIDTHS)
        scale = self.step(
            self.random.choice(
                (
                    lambda v: v.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127,
                    lambda v: v.detach().abs().max().reshape(1, 1).clamp(min=1e-5) / 127,
                )
            ),
            (ROWS, 1),
            x,
        )
        whole = torch.randint(-127, 128, (k, n), generator=self.generator, dtype=torch.int8)
        form = self.random.choice((lambda y, s: y.to(s.dtype) * s * 0.01, lambda y, s: torch.relu(y.to(s.dtype) * s)))

        def function(v: Value, s: Value) -> Value:
            rounded = (v / s).round().clamp(-128, 127).to(torch.int8)
            return form(torch._int_mm(rounded, whole), s.to(v.dtype))

        return self.step(function, (ROWS, n), x, scale)

    def dead(self, x: int) -> int:
        """Add an expression that PyTorch folds to 0, and a value that nothing reads."""
        k, n = self.shapes[self.first][1], self.random.choice(WIDTHS)
        self.product(x)
        reduce = self.random.choice((torch.sum, torch.mean, torch.amax))
        return self.step(
            lambda v, a, b: v + 0 * reduce(torch.relu(a @ b)), self.shapes[x], x, self.first, self.weights[k, n]
        )

    def inner(self, x: int) -> int:
        """Compute a product and its reduction under a checkpoint, or in the branches of torch.cond."""
        k, n = self.shapes[x][1], self.random.choice(WIDTHS)

        def block(v: Value, w: Value) -> Value:
            y = torch.relu(v @ w)
            return y / (y.amax(-1, keepdim=True) + 1)

        def other(v: Value, w: Value) -> Value:
            return torch.tanh(v @ w)

        if self.random.random() < 0.5:
            return self.step(
                lambda v, w: checkpoint(block, v, w, use_reentrant=False), (ROWS, n), x, self.weights[k, n]
            )
        return self.step(lambda v, w: torch.cond(v.sum() > 0, block, other, (v, w)), (ROWS, n), x, self.weights[k, n])


def make(seed: int) -> tuple[Steps, list[Value]]:
    """Return a random network, and inputs for it."""
    return _Maker(seed).make()


def check(seed: int, inductor: bool = False) -> int:
    """Assert that a random network gives the same compiled; return how many regions it has."""
    module, inputs = make(seed)
    RECORDS.clear()
    torch._dynamo.reset()
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    chosen: Any = torch.compile(module, backend=lambda *g: backend(*g, options=options)) if inductor else fused(module)
    for wanted, got in zip(module(*inputs), chosen(*inputs), strict=True):
        assert (wanted.shape, wanted.dtype) == (got.shape, got.dtype)
        error = float((wanted.double() - got.double()).norm())
        assert error <= TOLERANCES[wanted.dtype] * max(float(wanted.double().norm()), 1.0), error
    return sum(row.fused for record in RECORDS for row in record.rows)


@torch.no_grad()
def check_inductor(seed: int) -> int:
    """Assert that a random network gives the same compiled by torch.compile; return how many regions it has."""
    return check(seed, inductor=True)


if __name__ == "__main__":
    check_seeds(__doc__, {"reference": torch.no_grad()(check), "inductor": check_inductor})
