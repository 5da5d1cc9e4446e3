"""Random functions of tensors whose sizes change: ``check(seed)`` compares one compiled with symbolic sizes with eager.

Steps are products, views whose shapes are formulas of sizes, reductions, lookups, and operators in place on values, on
slices and on inputs. One compiled function is called with several sizes, which include 0 and 1. Results and changed
inputs are eager's.

    python -m tests.fx.random_sizes --count 1000
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from evt.fx.records import RECORDS

from .fusing import TOLERANCES
from .seeds import Step, Steps, Value, check_seeds
from .training import fused

N, K = 6, 4
#: The images or sentences of a call, and the length of each.
SIZES = ((3, 5), (2, 7), (4, 3), (1, 6), (5, 1), (0, 4), (2, 0), (3, 5))
#: The places of the inputs: values of (batch, length, K), numbers, weights.
X, Y, IDS, W, SQUARE, BIAS, ROW = range(7)

_UNARY: tuple[Step, ...] = (
    torch.relu, torch.sigmoid, functional.gelu, lambda x: x * 0.5, lambda x: x + x.shape[0], lambda x: x * x.shape[-1],
    lambda x: x.float(), lambda x: x.double(), lambda x: x.bfloat16(), lambda x: x.half(), lambda x: x.int(),
    lambda x: x.softmax(-1), lambda x: x / max(x.shape[0], 1), lambda x: x.cumsum(0), lambda x: x.flip(0),
    lambda x: x.mean(-1, keepdim=True), lambda x: x.sum(0), lambda x: x.sum(tuple(range(x.dim() - 1))),
    lambda x: x - x.mean(-1, keepdim=True), lambda x: functional.layer_norm(x, x.shape[-1:]), lambda x: x > 0,
    lambda x: x.clone(), lambda x: x.contiguous(), lambda x: functional.pad(x, (1, 2)), lambda x: x.tril(),
    lambda x: x + torch.arange(x.shape[-1], dtype=x.dtype), lambda x: x * torch.arange(x.shape[0]).sum(),
    lambda x: x.masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool).tril(), 0.5), lambda x: x.new_ones(x.shape) - x,
)  # fmt: skip
_VIEWS: tuple[Step, ...] = (
    lambda x: x.reshape(-1, x.shape[-1]), lambda x: x.view(x.shape[0], -1), lambda x: x.flatten(0, 1), lambda x: x.mT,
    lambda x: x.transpose(0, 1), lambda x: x[:, -1:], lambda x: x[:, : x.shape[1] // 2], lambda x: x[1:],
    lambda x: x[..., ::2], lambda x: x[: x.shape[0] - 1], lambda x: x.unsqueeze(1), lambda x: x.squeeze(),
    lambda x: x[0],
    lambda x: x.unflatten(-1, (2, -1)), lambda x: x.unflatten(-1, (2, -1)).transpose(1, 2), lambda x: x.chunk(2, -1)[1],
    lambda x: x[None].expand(2, *x.shape), lambda x: x.expand(x.shape[0], *x.shape), lambda x: x.permute(2, 0, 1),
    lambda x: x.narrow(-1, 1, 2), lambda x: x.reshape(x.numel() // 2, 2), lambda x: x.unbind(-1)[0],
    lambda x: x.view(-1), lambda x: x.diagonal(dim1=-2, dim2=-1), lambda x: x.reshape(x.shape[1], -1),
)  # fmt: skip
_BINARY: tuple[Step, ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.where(y > 0, x, y), lambda x, y: x.to(y.dtype),
    lambda x, y: x + y.shape[0], lambda x, y: torch.cat((x, y)), lambda x, y: torch.cat((x, y), -1),
    lambda x, y: x + y[:1], lambda x, y: x * y[..., :1], lambda x, y: x.masked_fill(y > 0, 0.25),
    lambda x, y: x.reshape(y.shape), lambda x, y: x.expand_as(y), lambda x, y: torch.addcmul(x, x, y),
    lambda x, y: torch.stack((x, y), 1), lambda x, y: x.unsqueeze(-1) + y.unsqueeze(-2),
)  # fmt: skip
_IN_PLACE: tuple[Step, ...] = (
    lambda x: x.relu_(), lambda x: x.mul_(0.5), lambda x: x[..., :1].zero_(), lambda x: x[1:].add_(1),
    lambda x: x.mT.mul_(2), lambda x: x.clamp_(-1, 1), lambda x: x.masked_fill_(x > 0, 0.5), lambda x: x[-1:].neg_(),
    lambda x: x.add_(x.shape[0]), lambda x: x.view(-1).sub_(0.25), lambda x: x[..., ::2].fill_(2),
)  # fmt: skip
_FROM: tuple[Step, ...] = (
    lambda x, y: x.add_(y), lambda x, y: x.copy_(y), lambda x, y: x.mul_(y), lambda x, y: x[..., :1].copy_(y[..., :1]),
    lambda x, y: torch.add(x, y, out=x), lambda x, y: x[1:].sub_(y[1:]),
)  # fmt: skip
_PRODUCTS: tuple[Step, ...] = (
    functional.linear, lambda x, w: x.reshape(-1, x.shape[-1]) @ w.mT, lambda x, w: x.flatten(0, -2) @ w.mT,
    lambda x, w: x @ w, lambda x, w: x @ w.mT, torch.bmm, lambda x, y: torch.bmm(x, y.mT),
    lambda x, y: x.mT @ y, lambda x, y: x @ y.mT * x.shape[-1] ** -0.5, lambda x, y: torch.einsum("btk,bsk->bts", x, y),
    lambda x, w: torch.addmm(x, x, w), lambda x, w: torch.mm(x, w),
    lambda x, y: functional.scaled_dot_product_attention(x, y, y), lambda x, y: torch.baddbmm(x, x, y.mT @ y),
    lambda x, y: functional.conv1d(x.mT, y[:, :, None], padding=1) if y.dim() == 2 else x @ y,
)  # fmt: skip


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.dtype = self.random.choice([torch.float64] * 4 + [torch.float32, torch.bfloat16])
        self.ways = [self.random.choice(("packed", "packed", "transposed", "sliced", "expanded")) for _ in range(2)]

    def inputs(self, batch: int, length: int) -> list[Value]:
        generator = torch.Generator().manual_seed(self.seed)

        def data(*shape: int) -> Value:
            return torch.randn(shape, generator=generator).to(self.dtype)

        def placed(how: str) -> Value:
            if how == "transposed":
                return data(length, batch, K).transpose(0, 1)
            if how == "sliced":
                return data(batch, length + 2, 2 * K)[:, 1:-1, ::2]
            if how == "expanded":
                return data(batch, length, 1).expand(-1, -1, K)
            return data(batch, length, K)

        ids = torch.randint(0, K, (batch, length), generator=generator)
        return [*(placed(how) for how in self.ways), ids, data(N, K), data(K, K), data(N), data(length, 1)]

    def make(self) -> Steps:
        model = Steps()
        self.try_(model, self.random.choice(_PRODUCTS[:4]), (X, self.random.choice((W, SQUARE))))
        self.try_(model, self.random.choice(_UNARY[:6]), (ROW + len(model.steps),))
        for _ in range(self.random.randint(3, 9)):
            step, arity = self.draw()
            count = ROW + 1 + len(model.steps)
            places = [count - 1] * 5 + [count - 2] * 2 + [self.random.randrange(count)]
            taken = [self.random.choice(places), self.random.choice((*range(count), *places))][:arity]
            self.try_(model, step, tuple(taken))
        count = ROW + 1 + len(model.steps)
        model.results = [*self.random.choices(range(ROW + 1, count), k=self.random.randint(1, 2)), count - 1]
        return model

    def draw(self) -> tuple[Step, int]:
        kinds = ((_UNARY, 1), (_VIEWS, 1), (_BINARY, 2), (_IN_PLACE, 1), (_FROM, 2), (_PRODUCTS, 2))
        ((steps, arity),) = self.random.choices(kinds, (5, 4, 5, 1.5, 1, 3))
        return self.random.choice(steps), arity

    def try_(self, model: Steps, step: Step, taken: tuple[int, ...]) -> None:
        """Add a step if eager mode runs it for all sizes."""
        model.steps.append((step, taken))
        model.results = [ROW + len(model.steps)]
        try:
            with torch.no_grad():
                for sizes in SIZES:
                    (result,) = model(*self.inputs(*sizes))
                    if result.numel() > 20_000 or result.dim() > 5:
                        raise ValueError("a result is too large")
        except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError, ZeroDivisionError):
            model.steps.pop()


def _compare(model: Steps, made: Any, maker: _Maker, coarsest: float) -> int:
    """Compare calls of every size; return the most fused regions of a call's graph."""
    regions = 0
    for sizes in SIZES:
        ours, theirs = maker.inputs(*sizes), maker.inputs(*sizes)
        want, got = (*model(*theirs), *theirs), (*made(*ours), *ours)
        for place, (x, y) in enumerate(zip(want, got, strict=True)):
            where = f"sizes {sizes}, place {place} of {len(want)}"
            assert (x.dtype, x.shape) == (y.dtype, y.shape), f"{where}: {y.dtype}, {y.shape} for {x.dtype}, {x.shape}"
            x, y = x.double(), y.double()
            largest = x.nan_to_num(0, 0, 0).abs().max().item() if x.numel() else 0
            assert torch.allclose(x, y, rtol=0, atol=coarsest * max(1.0, largest), equal_nan=True), (
                f"{where}: off by {(x - y).abs().max().item()}"
            )
        regions = max(regions, sum(row.fused for record in RECORDS for row in record.rows))
    return regions


def check(seed: int) -> int:
    """Assert that a random function is the same compiled by evt's pass with symbolic sizes.

    The changes of PyTorch's own compiler are accepted. Return the number of fused regions.
    """
    return _checked(seed, lambda model: fused(model, dynamic=True), _eager_kernels)


def check_inductor(seed: int) -> int:
    """Assert that a random function is the same compiled by evt and Inductor, if Inductor alone keeps it."""
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    return _checked(
        seed,
        lambda model: torch.compile(model, backend="evt", dynamic=True, options=options),
        lambda model: torch.compile(model, dynamic=True),
    )


def _eager_kernels(model: Steps) -> Any:
    return torch.compile(model, backend="aot_eager_decomp_partition", dynamic=True)


def _checked(seed: int, ours: Callable[[Steps], Any], theirs: Callable[[Steps], Any]) -> int:
    maker = _Maker(seed)
    model = maker.make()
    with torch.no_grad():
        types = {each.dtype for each in (*_values(model, maker), *maker.inputs(*SIZES[0]))}
        coarsest = max(TOLERANCES.get(each, 0.0) for each in types)
        RECORDS.clear()
        torch._dynamo.reset()
        try:
            return _compare(model, ours(model), maker, coarsest)
        except Exception:
            torch._dynamo.reset()
            try:
                _compare(model, theirs(model), maker, coarsest)
            except Exception:
                return 0
            raise


def _values(model: Steps, maker: _Maker) -> tuple[Value, ...]:
    results, model.results = model.results, list(range(ROW + 1, ROW + 1 + len(model.steps)))
    try:
        return model(*maker.inputs(*SIZES[0]))
    finally:
        model.results = results


if __name__ == "__main__":
    check_seeds(__doc__, {"compile": check, "inductor": check_inductor})
