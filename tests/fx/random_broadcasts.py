"""Random operands of permuted products: ``check(seed)`` compares a fused function with eager.

The result of a product is split and permuted. Its operands have some of its dimensions, and are themselves permuted,
reshaped or computed, so the elements of a vector may lie in another order than the rows or columns. In a square
product one vector can be read along the rows and along the columns. With ``--by ones`` dimensions may have one element,
and sums may keep theirs.

    python -m tests.fx.random_broadcasts --count 1000
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from . import training
from .fusing import compare, fused
from .seeds import Value, check_seeds

#: Sizes of rows, of columns and of the contraction.
ROWS, COLUMNS, DEPTH = (2, 3, 4), 6, 8
_UNARY: tuple[Callable[[Value], Value], ...] = (torch.tanh, torch.sigmoid, torch.neg, lambda x: x * 0.5 + 1)
_BINARY: tuple[Callable[[Value, Value], Value], ...] = (torch.add, torch.mul, torch.sub, torch.maximum)


class _Maker:
    """A chain of steps; each step reads the last value and the inputs. ``kept`` are the steps that give results."""

    def __init__(self, seed: int, square: bool = False, ones: bool = False) -> None:
        self.random, self.square, self.ones = random.Random(seed), square, ones
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs: list[Value] = []
        self.steps: list[Callable[[Value, Sequence[Value]], Value]] = []
        self.kept: set[int] = set()

    def __call__(self, *inputs: Value) -> list[Value]:
        value, found = inputs[0], []
        for place, step in enumerate(self.steps):
            value = step(value, inputs)
            if place in self.kept or place == len(self.steps) - 1:
                found.append(value)
        return found

    def input(self, *shape: int) -> int:
        self.inputs.append(torch.randn(shape, generator=self.generator, dtype=torch.float64))
        return len(self.inputs) - 1

    def order(self, count: int) -> list[int]:
        return self.random.sample(range(count), count)

    def make(self) -> _Maker:
        choose = self.random
        rows = ROWS[: choose.randint(1, 3)]
        if self.ones:
            rows = tuple(choose.choice((size, 1)) for size in rows)
        kind = choose.choice(["linear", "linear", "matmul", "conv2d"])
        if self.square:
            kind, rows = choose.choice(["linear", "matmul", "image"]), (COLUMNS,)
        if kind == "conv2d":
            images, height = (choose.choice((2, 1)), choose.choice((5, 3))) if self.ones else (2, 5)
            self.input(images, 4, height, 6), self.input(COLUMNS, 4, 3, 3)
            self.steps.append(lambda x, given: functional.conv2d(x, given[1]))
        elif kind == "image":
            self.input(1, 4, COLUMNS, 1), self.input(COLUMNS, 4, 1, 1)
            self.steps.append(lambda x, given: functional.conv2d(x, given[1]))
        elif kind == "matmul" and self.square:
            self.input(COLUMNS, COLUMNS, DEPTH), self.input(COLUMNS, DEPTH, COLUMNS)
            self.steps.append(lambda x, given: x @ given[1])
        elif kind == "matmul":
            self.input(*rows, 5, DEPTH), self.input(*rows, DEPTH, COLUMNS)
            self.steps.append(lambda x, given: x @ given[1])
        else:
            self.input(*rows, DEPTH), self.input(COLUMNS, DEPTH)
            self.steps.append(lambda x, given: functional.linear(x, given[1]))
            if choose.random() < 0.6 and not self.square:
                self.steps.append(lambda x, _: x.unflatten(-1, (2, 3)))
        for _ in range(choose.randint(0 if self.ones else 1, 4)):
            if not self.ones or choose.random() < 0.5:
                self.permute()
            self.operand()
            if choose.random() < 0.3:
                self.kept.add(len(self.steps) - 1)
        if choose.random() < 0.5:
            dims = choose.sample(range(self.rank), choose.randint(1, self.rank))
            keep = self.ones and choose.random() < 0.3
            self.steps.append(lambda x, _: x.sum(dims, keep))
        return self

    @property
    def shape(self) -> list[int]:
        return list(self(*self.inputs)[-1].shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def permute(self) -> None:
        order = self.order(self.rank)
        self.steps.append(lambda x, _: x.permute(order))

    def operand(self) -> None:
        """Combine the value with an operand that has some of its dimensions."""
        choose = self.random
        combine = choose.choice(_BINARY)
        shape = [size if choose.random() < 0.5 else 1 for size in self.shape][choose.choice([0, 0, 0, 1]) :]
        change = [choose.choice(_UNARY) for _ in range(choose.randint(0, 2))]
        order = self.order(len(shape))
        stored = [shape[place] for place in order]  # and permuted back, or read in another order
        known = [place for place, each in enumerate(self.inputs) if each.numel() == math.prod(stored)]
        place = choose.choice(known) if self.square and known and choose.random() < 0.7 else self.input(*stored)
        back = [order.index(dim) for dim in range(len(shape))]
        again = choose.random() < 0.3

        def step(value: Value, given: Sequence[Value]) -> Value:
            operand = given[place].reshape(stored).permute(order if again else back).reshape(shape)
            for function in change:
                operand = function(operand)
            return combine(value, operand)

        self.steps.append(step)


def check(seed: int) -> int:
    """Assert that a random function gives the same fused; return how many regions it has."""
    made = _Maker(seed).make()
    return len(fused(made, *made.inputs).regions)


def check_square(seed: int) -> int:
    """Assert that a random function of a square product gives the same fused; return how many regions it has."""
    made = _Maker(seed, square=True).make()
    return len(fused(made, *made.inputs).regions)


def check_ones(seed: int) -> int:
    """Assert that a random function with dimensions of one element gives the same fused; return its regions."""
    made = _Maker(seed, ones=True).make()
    return len(fused(made, *made.inputs).regions)


@torch.enable_grad()
def check_gradients(seed: int) -> int:
    """Assert that a random function and its gradients are the same compiled; return how many results it has."""
    torch._dynamo.reset()
    made = _Maker(seed).make()
    found = []
    for call in (made, training.fused(made)):
        given = [each.clone().requires_grad_() for each in made.inputs]
        results = call(*given)
        sum((each * torch.arange(1, 1 + each.numel()).view(each.shape)).sum() for each in results).backward()
        found.append([each.detach() for each in results] + [each.grad for each in given])
    compare(*found)
    return len(results)


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check, "square": check_square, "ones": check_ones, "compile": check_gradients})
