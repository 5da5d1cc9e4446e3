"""Results with memory that other values have too: operators that return their operand, and views of folded values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from evt.fx.fuse import fuse, fusion

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def facts(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return strides, offsets, and for each tensor the first one that shares its memory."""
    memories: dict[int, int] = {}
    places = [memories.setdefault(each.untyped_storage().data_ptr(), place) for place, each in enumerate(tensors)]
    return [
        (each.shape, each.stride(), each.storage_offset(), place) for each, place in zip(tensors, places, strict=True)
    ]


#: Operators that return a [4, 6] operand or views of it. Not all of their schemas say so.
RETURN = {
    "type_as": lambda x: x.type_as(x * 1),
    "to": lambda x: x.to(torch.float32),
    "cast": torch.ops.aten._cast_Float.default,
    "sum_to_size": lambda x: x.sum_to_size(4, 6),
    "atleast": lambda x: torch.atleast_2d([x, x * 2])[0],
    "broadcast": lambda x: torch.broadcast_tensors(x, torch.zeros(6))[0],
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0][:, 0],
    "dropout": lambda x: torch.dropout(x, 0.5, train=False),
    "dropout of nothing": lambda x: torch.dropout(x, 0.0, train=True),
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.5, training=False),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2)[0],
    "unsafe_split": lambda x: torch.unsafe_split(x, 2)[1],
    "einsum": lambda x: torch.einsum("ij->ji", x),
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "result": lambda _, result: result.mul_(2),
    "operand": lambda operand, _: operand.add_(1),
    "out": lambda operand, _: torch.mul(operand, 3, out=operand),
    "product": lambda operand, _: torch.mm(operand.clone(), operand.new_ones(6, 6), out=operand),
    "part": lambda operand, _: operand[:2].zero_(),
}


class Written(nn.Module):
    """A product, and an operator with a write to its operand or result. ``computed``: the operand is no input."""

    def __init__(self, operator: Any, write: Any, computed: bool) -> None:
        super().__init__()
        self.operator, self.write, self.computed = operator, write, computed
        self.linear = nn.Linear(5, 6)

    def forward(self, a: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        operand = x * 1 if self.computed else x
        result = self.operator(operand)
        before = result.sum()
        self.write(operand, result)
        return [self.linear(a).relu(), before, result.sum(), operand.sum(), operand, result]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", RETURN)
def test_writes_to_operands_and_results(name: str, write: str, computed: bool) -> None:
    model = Written(RETURN[name], WRITES[write], computed).eval()
    a, x = torch.randn(4, 5), torch.randn(4, 6)
    mine, theirs = x.clone(), x.clone()
    made = fuse(model, (a, x.clone()))
    assert fusion(made).regions
    for _ in range(2):
        found, wanted = made(a, mine), model(a, theirs)
        torch.testing.assert_close([*found, mine], [*wanted, theirs])
        assert facts([mine, *found]) == facts([theirs, *wanted])


#: Results by a value that is computed from parameters alone.
VIEWS: dict[str, Callable[[torch.Tensor], Sequence[torch.Tensor]]] = {
    "a part": lambda x: [x[1:]],
    "parts": lambda x: [x[1:], x[:3]],
    "the value and a part": lambda x: [x[2], x],
    "steps": lambda x: [x[:, ::2], x[:, 1::2]],
    "chunks": lambda x: [*x.chunk(3), x.t()],
    "expanded": lambda x: [x[1:2].expand(4, 5), x[1]],
    "two values": lambda x: [x[1:], (x * 2)[1:], x.sum(0)],
    "a copy": lambda x: [x[1:].clone(), x[1:]],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_folded_values(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(5, 6), nn.Parameter(torch.randn(6, 5))

        def forward(self, a: torch.Tensor) -> list[torch.Tensor]:
            return [self.linear(a).relu(), *VIEWS[name](self.scale.sigmoid())]

    model, a = Model().eval(), torch.randn(4, 5)
    made = fuse(model, (a,))
    assert fusion(made).regions
    for _ in range(2):
        found, wanted = made(a), model(a)
        torch.testing.assert_close(found, wanted)
        assert facts(found) == facts(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            if 0 not in mine.stride():
                torch.testing.assert_close(mine.add_(1), theirs.add_(1))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.float64, torch.complex64])
@pytest.mark.parametrize("source", ["input", "buffer", "parameter", "computed"])
def test_views_as_another_type(source: str, dtype: torch.dtype) -> None:
    """Results are elements of another type in the memory of a written tensor, a folded value, or another result."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(8, 6), nn.Parameter(torch.randn(4, 8))
            self.buffer: torch.Tensor
            self.register_buffer("buffer", torch.randn(4, 8))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            value = {"input": x, "buffer": self.buffer, "parameter": self.scale * 2, "computed": x * 2}[source]
            if source in ("input", "buffer"):
                value.add_(1)
            return [self.linear(x).relu(), value.view(dtype), value[1:], value[2:].view(dtype)[:, :2]]

    model, x = Model().eval(), torch.randn(4, 8)
    other, mine, theirs = copy.deepcopy(model), x.clone(), x.clone()
    made = fuse(model, (x.clone(),))
    assert fusion(made).regions
    for _ in range(2):
        found, wanted = made(mine), other(theirs)
        torch.testing.assert_close([*found, mine], [*wanted, theirs], equal_nan=True)
        assert facts([mine, *found]) == facts([theirs, *wanted])
        for one, two in zip(found, wanted, strict=True):
            one.zero_()
            two.zero_()
            torch.testing.assert_close([*found, mine], [*wanted, theirs], equal_nan=True)
