"""Random functions whose values share memory: ``check(seed)`` compares a fused one with eager.

Steps are products, views, operators in place on values, on views and on inputs, casts, and operands of other types:
numbers, tensors of no dimension, masks. Inputs are transposed, expanded, sliced and overlap each other. Results are
inputs, views of inputs and views of each other. After each of two calls the results, their types, strides and aliases,
and the inputs are eager's.

    python -m tests.fx.random_memory --count 1000
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evt.errors import ArgumentError
from evt.fx.fuse import fuse, fusion
from evt.fx.records import RECORDS

from .fusing import TOLERANCES
from .seeds import Value, check_seeds
from .training import fused as compiled

Step = Callable[[list[Value]], Value]
M, N, K = 4, 6, 5

_UNARY: tuple[Callable[[Value], Value], ...] = (
    torch.tanh, torch.sigmoid, torch.neg, torch.abs, torch.relu, functional.silu, lambda x: x * 0.5, lambda x: x + 1,
    lambda x: 1 - x, lambda x: x / 4, lambda x: x // 2, lambda x: x.clamp(-1, 1), lambda x: x.clone(),
    lambda x: x.contiguous(), lambda x: x.detach(), lambda x: x > 0, lambda x: torch.where(x > 0, x, -x),
    lambda x: x.flip(0), lambda x: x.roll(1, -1), lambda x: x.cumsum(-1), lambda x: x.softmax(-1),
    lambda x: x.float(), lambda x: x.double(), lambda x: x.bfloat16(), lambda x: x.half(), lambda x: x.int(),
    lambda x: x * True, lambda x: x + torch.tensor(2.5, dtype=torch.float64), lambda x: x * torch.tensor(3),
    lambda x: torch.floor_divide(x, 3), lambda x: torch.div(x, 3, rounding_mode="trunc"), lambda x: x % 3,
    lambda x: x.remainder(-2), lambda x: x.sum(-1, keepdim=True), lambda x: x.mean(0), lambda x: x.amax(-1),
    lambda x: x.triu(), lambda x: x.to(torch.cfloat).real, lambda x: torch.view_as_real(torch.complex(x, -x))[..., 1],
    lambda x: x.new_zeros(x.shape) + x, lambda x: torch.zeros_like(x).copy_(x),
    lambda x: torch.empty_like(x).fill_(1) * x,
)  # fmt: skip
_BINARY: tuple[Callable[[Value, Value], Value], ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x.masked_fill(y > 0, 0.25), lambda x, y: torch.add(x, y, alpha=2), lambda x, y: x * (y > 0),
    lambda x, y: torch.where(y > 0, x, 2.0), lambda x, y: torch.lerp(x, y, 0.25), lambda x, y: torch.hypot(x, y),
    lambda x, y: torch.addcmul(x, x, y, value=0.5), lambda x, y: x.to(y.dtype), lambda x, y: x.type_as(y) - y,
    lambda x, y: torch.logical_xor(x > 0, y > 0), lambda x, y: torch.copysign(x, y), lambda x, y: x.eq(y).to(x.dtype),
)  # fmt: skip
_VIEWS: tuple[Callable[[Value], Value], ...] = (
    lambda x: x.t(), lambda x: x.transpose(0, -1), lambda x: x[1:], lambda x: x[..., ::2], lambda x: x[0],
    lambda x: x[-1:],
    lambda x: x.unsqueeze(0), lambda x: x.squeeze(), lambda x: x.reshape(-1), lambda x: x.view(-1, 2),
    lambda x: x.unflatten(-1, (2, -1)), lambda x: x.flatten(-2), lambda x: x.expand(2, *x.shape), lambda x: x.mT,
    lambda x: x.chunk(2, -1)[1], lambda x: x.diagonal(), lambda x: x.view_as(x), lambda x: x[None].expand(3, -1, -1)[1],
    lambda x: x.as_strided((2, 3), (1, 2), 1), lambda x: x.narrow(-1, 0, 1), lambda x: x.real, lambda x: x.unbind(0)[0],
    lambda x: torch.movedim(x, 0, -1), lambda x: x.unfold(-1, 2, 1), lambda x: x[:, :0], lambda x: x.expand_as(x),
    lambda x: x.type_as(x), lambda x: torch.dropout(x, 0.5, False), lambda x: torch.broadcast_tensors(x, x)[1],
    lambda x: torch.atleast_2d(x), lambda x: x.sum_to_size(x.shape),
)  # fmt: skip
_IN_PLACE: tuple[Callable[[Value], Value], ...] = (
    lambda x: x.relu_(), lambda x: x.mul_(0.5), lambda x: x.add_(1), lambda x: x.clamp_(-2, 2), lambda x: x.tanh_(),
    lambda x: x.zero_(), lambda x: x.fill_(0.75), lambda x: x.neg_(), lambda x: x.masked_fill_(x > 0, 0.5),
    lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.floor_divide_(2), lambda x: x.sub_(x.mean()),
)  # fmt: skip
_FROM: tuple[Callable[[Value, Value], Value], ...] = (
    lambda x, y: x.copy_(y), lambda x, y: x.add_(y), lambda x, y: x.mul_(y), lambda x, y: x.sub_(y, alpha=2),
    lambda x, y: x.masked_fill_(y > 0, 1), lambda x, y: torch.add(x, y, out=x), lambda x, y: x.lerp_(y, 0.5),
    lambda x, y: x.addcmul_(x, y),
)  # fmt: skip


class Model(nn.Module):
    """Steps over a list of values; the values begin with the inputs, a parameter and a buffer."""

    def __init__(self, parameter: Value, buffer: Value) -> None:
        super().__init__()
        self.parameter = nn.Parameter(parameter, requires_grad=False)
        self.buffer: Value
        self.register_buffer("buffer", buffer)
        self.steps: list[Step] = []
        self.results: tuple[int, ...] = ()

    def forward(self, *inputs: Value) -> dict[str, Any]:
        values = [*inputs, self.parameter, self.buffer]
        for step in self.steps:
            values.append(step(values))
        return {"first": [values[place] for place in self.results], "second": (values[self.results[-1]], None, 3)}


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = self.random.choice([torch.float64] * 4 + [torch.float32, torch.bfloat16])
        self.inputs: list[Value] = []

    def data(self, *shape: int, dtype: torch.dtype | None = None) -> Value:
        return torch.randn(shape, generator=self.generator).to(dtype or self.dtype)

    def operand(self, *shape: int, expanded: bool = True) -> Value:
        """Return a tensor of a shape that lies in memory in one of many ways."""
        choose = self.random
        ways = ["packed", "packed", "packed", "transposed", "offset", "sliced", "expanded", "column"]
        how = choose.choice(ways if expanded else ways[:5])
        if how == "transposed":
            return self.data(*reversed(shape)).permute(*reversed(range(len(shape))))
        if how == "expanded":
            return self.data(1, *shape[1:]).expand(*shape)
        if how == "sliced":
            return self.data(*shape[:-1], 2 * shape[-1])[..., ::2]
        if how == "offset":
            return self.data(shape[0] + 2, *shape[1:])[1:-1]
        if how == "column":
            return self.data(*shape[:-1], 1).expand(*shape)
        return self.data(*shape)

    def make(self) -> tuple[Model, list[Value]]:
        choose = self.random
        m = choose.choice([1, 2, M, M, M])
        a, b = self.operand(m, K, expanded=False), self.operand(K, N, expanded=False)
        tile, other = self.operand(m, N), self.operand(m, N)
        others = [
            self.data(N),
            self.data(m, 1),
            self.data(),
            self.data(m, N, dtype=choose.choice([torch.float32, torch.half])),
            torch.randint(-5, 6, (m, N), generator=self.generator),
            torch.randint(-5, 6, (), generator=self.generator),
            torch.rand(m, N, generator=self.generator) > 0.5,
        ]
        inputs = [a, b, tile, other, *others]
        if choose.random() < 0.2:
            inputs[3] = inputs[2]
        elif choose.random() < 0.2:
            inputs[3] = inputs[2][..., :]
        self.inputs = inputs
        model = Model(self.data(N, K), self.data(m, N)).eval()
        count = len(inputs) + 2
        model.results = (count,)
        products: list[Step] = [
            lambda v: v[0] @ v[1],
            lambda v: functional.linear(v[0], v[count - 2]),
            lambda v: torch.addmm(v[2], v[0], v[1]),
            lambda v: torch.addmm(v[3], v[0], v[1], beta=0.5, alpha=2),
            lambda v: torch.mm(v[0], v[1], out=v[2]),
            lambda v: functional.linear(v[0], v[count - 2], v[4]),
            lambda v: (v[1].t() @ v[0].t()).t(),
            lambda v: torch.bmm(v[0][None], v[1][None])[0],
            lambda v: torch.einsum("mk,kn->mn", v[0], v[1]),
            lambda v: v[2].addmm_(v[0], v[1]),
            lambda v: v[2] + v[0] @ v[1],
            lambda v: torch.matmul(v[0].expand(2, -1, -1), v[1]),
            lambda v: functional.conv1d(v[0].t()[None], v[count - 2][..., None], v[4])[0].t(),
            lambda v: functional.conv1d(v[0][..., None], v[count - 2][..., None])[..., 0],
        ]
        if choose.random() < 0.3:
            self.try_(model, self.draw(count))
        self.try_(model, choose.choice(products)) or self.try_(model, products[0])
        for _ in range(choose.randint(2, 9)):
            self.try_(model, choose.choice(products) if choose.random() < 0.12 else self.draw(count))
        values = range(len(inputs) + 2 + len(model.steps))
        drawn = (choose.choice([*values[count:], *values[count:], *values]) for _ in range(choose.randint(1, 4)))
        model.results = (*drawn, values[-1])
        return model, inputs

    def draw(self, count: int) -> Step:
        choose = self.random
        place = choose.choice([-1] * 7 + [choose.randint(-4, -1)] * 2 + [choose.randrange(count)])
        other = choose.choice([2, 3, *range(2, count), -1, -2, -3])
        if choose.random() < 0.2:
            place, other = other, place
        kind = choose.random()
        if kind < 0.25:
            unary = choose.choice(_UNARY[: choose.choice([8, 20, len(_UNARY)])])
            return lambda v: unary(v[place])
        if kind < 0.7:
            binary = choose.choice(_BINARY)
            return lambda v: binary(v[place], v[other])
        if kind < 0.8:
            view = choose.choice(_VIEWS)
            return lambda v: view(v[place])
        if kind < 0.9:
            change = choose.choice(_IN_PLACE)
            return lambda v: change(v[place])
        source = choose.choice(_FROM)
        return lambda v: source(v[place], v[other])

    def try_(self, model: Model, step: Step) -> bool:
        """Add a step if eager mode runs it twice. The places of values are counted from the beginning."""
        model.steps.append(step)
        kept = model.results
        try:
            with torch.no_grad():
                twice = _copy(model)
                for _ in range(2):  # a step may transpose the buffer in place
                    twice(*_copies(self.inputs))
        except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError):
            model.steps.pop()
            return False
        finally:
            model.results = kept
        return True


def _copies(tensors: Sequence[Value]) -> list[Value]:
    """Return copies of tensors that share memory as the tensors do."""
    memories: dict[int, Value] = {}
    found = []
    seen: dict[int, Value] = {}
    for each in tensors:
        storage = each.untyped_storage()
        if id(each) not in seen:
            if storage._cdata not in memories:
                memories[storage._cdata] = each.new_empty(0).set_(storage.clone())
            whole = each.new_empty(0).set_(memories[storage._cdata].untyped_storage())
            seen[id(each)] = whole.as_strided(each.size(), each.stride(), each.storage_offset())
        found.append(seen[id(each)])
    return found


def _copy(model: Model) -> Model:
    made = Model(model.parameter.detach().clone(), model.buffer.clone()).eval()
    made.steps, made.results = list(model.steps), model.results
    return made


def _described(results: Any, inputs: Sequence[Value]) -> tuple[list[Value], list[Any]]:
    """Return the tensors of a result and of the inputs, and their types, sizes, strides and aliases."""
    leaves = [*results["first"], results["second"][0], *inputs]
    memories: dict[int, int] = {}
    for place, each in enumerate(reversed(leaves)):
        memories.setdefault(each.untyped_storage().data_ptr() if each.numel() else -place, place)
    facts = [
        (
            each.dtype,
            tuple(each.shape),
            tuple(s for s, n in zip(each.stride(), each.shape, strict=True) if n > 1) if each.numel() else (),
            memories[each.untyped_storage().data_ptr()] if each.numel() else None,
            each.storage_offset() if each.numel() else 0,
        )
        for each in leaves
    ]
    return leaves, facts


def _compare(model: Model, made: Any, inputs: Sequence[Value], coarsest: float, strict: bool = True) -> None:
    reference = _copy(model)
    for call in range(2):
        ours, theirs = _copies(inputs), _copies(inputs)
        want, facts = _described(reference(*theirs), [*theirs, reference.parameter, reference.buffer])
        got, found = _described(made(*ours), [*ours, model.parameter, model.buffer])
        for place, (wanted, given, x, y) in enumerate(zip(facts, found, want, got, strict=True)):
            where = f"call {call}, place {place} of {len(want)}"
            same = wanted == given or (not strict and _loosely(wanted) == _loosely(given))
            assert same, f"{where}: {given} instead of {wanted}"
            if x.is_complex():
                x, y = torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj())
            x, y = x.double(), y.double()
            largest = x.nan_to_num(0, 0, 0).abs().max().item() if x.numel() else 0
            assert torch.allclose(x, y, rtol=0, atol=coarsest * max(1.0, largest), equal_nan=True), (
                f"{where}: off by {(x - y).abs().max().item()}"
            )


def _loosely(facts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return facts without strides: compiled graphs may return others."""
    return (*facts[:2], facts[3])


def make(seed: int) -> tuple[Model, list[Value], float]:
    """Return a random model, inputs for it, and the tolerance of the coarsest type on the way."""
    model, inputs = _Maker(seed).make()
    types: set[torch.dtype] = set()

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), keywords: Any = None) -> Any:
            result = function(*args, **(keywords or {}))
            types.update(each.dtype for each in tree_leaves((args, result)) if isinstance(each, torch.Tensor))
            return result

    with torch.no_grad(), Watching():
        _copy(model)(*_copies(inputs))
    return model, inputs, max(TOLERANCES.get(each, 0.0) for each in types)


def check(seed: int) -> int:
    """Assert that a random function is the same fused; return how many regions it has."""
    model, inputs, coarsest = make(seed)
    with torch.no_grad():
        try:
            made = fuse(model, tuple(_copies(inputs)))
        except ArgumentError as error:
            if error.diagnostics[0].code != "E1020":
                raise
            return 0
        _compare(model, made, inputs, coarsest)
    return len(fusion(made).regions)


def check_compiled(seed: int) -> int:
    """Assert that a random function is the same compiled by evt's pass; the rest of its graph runs in eager mode.

    PyTorch's own changes of the graph, without the pass, are accepted.
    """
    return _compiled(seed, compiled, lambda model: torch.compile(model, backend="aot_eager_decomp_partition"))


def check_inductor(seed: int) -> int:
    """Assert that a random function is the same compiled by evt and Inductor, where Inductor alone keeps it."""
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    ours = lambda model: torch.compile(model, backend="evt", options=options)  # noqa: E731
    return _compiled(seed, ours, torch.compile, strict=True)


def _compiled(seed: int, ours: Callable[[Any], Any], theirs: Callable[[Any], Any], strict: bool = False) -> int:
    model, inputs, coarsest = make(seed)
    RECORDS.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        try:
            _compare(model, ours(model), inputs, coarsest, strict)
        except Exception:
            torch._dynamo.reset()
            try:
                again, inputs, coarsest = make(seed)
                _compare(again, theirs(again), inputs, coarsest, strict)
            except Exception:
                return 0
            raise
    return sum(row.fused for record in RECORDS for row in record.rows)


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check, "compile": check_compiled, "inductor": check_inductor})
