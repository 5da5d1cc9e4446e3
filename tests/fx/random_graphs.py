"""Random PyTorch functions around products: ``make(seed) -> (module, inputs)``.

Views, operators in place, several users of a value, mixed dtypes, two products that meet: cases that a partitioner may
get wrong. The module runs in eager mode, and fused; with ``--by gradients`` so do the graphs of its backward.

    python -m tests.fx.random_graphs --count 1000
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from evt.fx.fuse import fuse, fusion
from evt.fx.records import RECORDS

from .fusing import check_answers, compare
from .seeds import Steps, Value, check_seeds
from .training import fused

Function = Callable[[Sequence[Value]], Value]

# Choices are continuous where they change, because a value rounded once is as right as one rounded twice.
_UNARY: tuple[Callable[[Value], Value], ...] = (
    torch.relu, torch.tanh, torch.sigmoid, torch.neg, torch.abs, functional.gelu, functional.silu,
    functional.hardswish, functional.elu, functional.softplus, torch.sin, functional.leaky_relu,
    lambda x: functional.gelu(x, approximate="tanh"), lambda x: x * 0.5 * (1 + torch.erf(x * 0.70710678)),
    lambda x: x.clamp(-1, None), lambda x: torch.clamp(x, max=0.5), lambda x: 1 - x, lambda x: x**2,
    lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: x.masked_fill(x > 0.5, 0.5), lambda x: x.float().to(x.dtype),
    lambda x: x / 3, lambda x: functional.hardtanh(x, -0.5, 2.0), lambda x: torch.exp(-x.abs()), lambda x: x.clone(),
)  # fmt: skip
_BINARY: tuple[Callable[[Value, Value], Value], ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.add(x, y, alpha=2),
    lambda x, y: torch.where(x > y, x - y, y * 0.5 - x * 0.5), lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.rsub(x, y, alpha=0.5),
)  # fmt: skip
_IN_PLACE: tuple[Callable[[Value], Value], ...] = (
    lambda x: x.relu_(), lambda x: x.mul_(0.5), lambda x: x.add_(1), lambda x: x.clamp_(-2, 2), lambda x: x.tanh_(),
)  # fmt: skip


class _Maker:
    def __init__(self, seed: int, dtype: torch.dtype | None = None) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        known = self.random.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        self.dtype = known if dtype is None else dtype
        self.inputs: list[Value] = []
        self.shapes: list[tuple[int, ...]] = []
        self.fresh: set[int] = set()
        self.program = Steps()

    def input(self, *shape: int) -> int:
        assert not self.program.steps, "inputs come before steps"
        self.inputs.append(torch.randn(shape, generator=self.generator).to(self.dtype))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def step(self, function: Function, *taken: int) -> int:
        self.program.steps.append((lambda *values: function(values), taken))
        self.shapes.append((0,))
        return len(self.shapes) - 1

    def make(self) -> tuple[Steps, list[Value]]:
        choose = self.random
        m, n, k, batch = choose.randint(1, 9), choose.randint(2, 9), choose.randint(1, 9), choose.randint(2, 3)
        kind = choose.choice(["mm", "addmm", "linear", "linear", "matmul", "bmm", "conv2d", "conv1d"])
        if kind in ("conv2d", "conv1d"):
            rank = int(kind[4])
            pixels = [choose.randint(3, 6) for _ in range(rank)]
            operands = [self.input(batch, k, *pixels), self.input(n, k, *[choose.choice([1, 3])] * rank), self.input(n)]
            weight = self.inputs[operands[1]]
            stride, padding = choose.choice([1, 2]), weight.shape[-1] // 2
            sizes = [(p + 2 * padding - weight.shape[-1]) // stride + 1 for p in pixels]
            shape: tuple[int, ...] = (batch, n, *sizes)
            vectors = [(n,) + (1,) * rank, (1, n) + (1,) * rank, (1,) * (rank + 2)]
            function = {1: functional.conv1d, 2: functional.conv2d}[rank]
            product: Function = lambda v: function(v[0], v[1], v[2], stride, padding)  # noqa: E731
        elif kind in ("matmul", "bmm"):
            operands = [self.input(batch, m, k), self.input(batch, k, n)]
            shape, vectors = (batch, m, n), [(n,), (m, 1), (batch, 1, 1), (batch, 1, n), (1, m, 1)]
            product = (lambda v: torch.bmm(v[0], v[1])) if kind == "bmm" else (lambda v: v[0] @ v[1])
        elif kind == "linear":
            operands = [self.input(batch, m, k), self.input(n, k), self.input(n)]
            shape, vectors = (batch, m, n), [(n,), (1, 1, n), (batch, m, 1), (1,)]
            product = lambda v: functional.linear(v[0], v[1], v[2])  # noqa: E731
        else:
            operands = [self.input(m, k), self.input(k, n), self.input(n)]
            shape, vectors = (m, n), [(n,), (m, 1), (1, n), ()]
            product = (lambda v: v[0] @ v[1]) if kind == "mm" else (lambda v: torch.addmm(v[2], v[0], v[1], beta=0.5))
        tiles = [self.input(*shape) for _ in range(2)]
        smaller = [self.input(*choose.choice(vectors)) for _ in range(2)]
        partial = self.input(*[1 if index == 0 else size for index, size in enumerate(shape)])
        values = [self.step(product, *operands)]
        if choose.random() < 0.5:
            # of other numbers: where two equal products are compared, the order of summation decides
            other = self.step(lambda v: v[0] * 0.75 + 0.25, operands[0])
            values.append(self.step(product, other, *operands[1:]))
        self._chain(values, shape, tiles, smaller, partial)
        return self.program, self.inputs

    def _chain(
        self, values: list[int], shape: tuple[int, ...], tiles: list[int], smaller: list[int], partial: int
    ) -> None:
        choose = self.random
        for _ in range(choose.randint(1, 7)):
            recent = values[-1] if choose.random() < 0.7 else choose.choice(values)
            what = choose.random()
            if what < 0.4:
                unary = choose.choice(_UNARY)
                values.append(self.step(lambda v, f=unary: f(v[0]), recent))  # type: ignore[misc]
            elif what < 0.8:
                binary = choose.choice(_BINARY)
                other = choose.choice([*values, *tiles, *smaller, partial])
                pair = (recent, other) if choose.random() < 0.6 else (other, recent)
                values.append(self.step(lambda v, f=binary: f(*v), *pair))  # type: ignore[misc]
            elif what < 0.87:
                in_place = choose.choice(_IN_PLACE)
                values[-1] = self.step(lambda v, f=in_place: f(v[0] + 0), recent)  # type: ignore[misc]
            elif what < 0.94:
                flat = (-1, shape[-1])
                values.append(self.step(lambda v, s=flat, t=shape: (v[0].reshape(s) * 2).reshape(t), recent))  # type: ignore[misc]
            else:
                scale = choose.choice(smaller)
                values.append(self.step(lambda v: v[0] * torch.rsqrt(v[1].abs() + 1e-3), recent, scale))
        results = {values[-1], *(each for each in values if choose.random() < 0.15)}
        self.program.results = sorted(results)


def check(seed: int) -> int:
    """Assert that a random module gives the same fused; return how many regions it has."""
    module, inputs = make(seed)
    made = fuse(module, inputs).eval()
    compare(module(*inputs), made(*inputs), *(each.dtype for each in inputs))
    check_answers(made)
    return len(fusion(made).regions)


def check_gradients(seed: int) -> int:
    """Assert that a random module has the same gradients compiled; return how many regions the backward has.

    Its numbers are float32: in 16 bits, rounding decides which gradient relu has near 0.
    """
    module, inputs = make(seed, torch.float32)
    results = []
    RECORDS.clear()
    torch._dynamo.reset()
    for function in (module, fused(module)):
        given = [each.clone().requires_grad_() for each in inputs]
        found = function(*given)
        weights = [torch.linspace(-1, 1, each.numel()).view(each.shape) for each in found]
        total = sum(((x * weight).sum() for x, weight in zip(found, weights, strict=True)), torch.zeros(()))
        got: Any = torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True)
        results.append((*found, *got))
    compare(*(tuple(each.detach() for each in found) for found in results), torch.float32)
    return sum(row.fused for record in RECORDS for row in record.rows if row.graph == "backward")


def make(seed: int, dtype: torch.dtype | None = None) -> tuple[torch.nn.Module, list[Any]]:
    """Return a random module and inputs for it, of a type or of a random one."""
    return _Maker(seed, dtype).make()


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check, "gradients": check_gradients})
