"""Random modules that view, write and keep: ``check(seed)`` compares evt.fuse with eager mode, call by call.

Values, strides, shared memory, buffers and inputs afterwards are compared, over several calls with other layouts and
with parameters and buffers that change between the calls.

    python -m tests.fx.random_modules --count 1000
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils import _pytree

from evt.fx.fuse import fuse
from evt.fx.module import dispatch_of

from .fusing import compare
from .seeds import check_seeds

M, N, K = 4, 6, 8
#: The default number of calls of a module.
CALLS = 4
Step = tuple[str, Callable[..., Any]]

#: Functions of a matrix that return a matrix of its shape.
_UNARY: Sequence[Step] = (
    ("relu", torch.relu), ("tanh", torch.tanh), ("gelu", functional.gelu), ("half", lambda v: v * 0.5),
    ("t.contiguous.t", lambda v: v.t().contiguous().t()), ("clone", torch.clone), ("add_", lambda v: (v + 0).add_(1)),
    ("mul_ of a part", lambda v: (w := v * 1, w[:, ::2].mul_(0.5))[0]), ("neg_", lambda v: v.clone().neg_()),
    ("t.relu_", lambda v: (w := v.clone(), w.t().relu_())[0]), ("flip", lambda v: v.flip(0)),
    ("zero_ of a row", lambda v: (w := v.tanh(), w[1].zero_())[0]), ("copy_", lambda v: torch.empty_like(v).copy_(v)),
    ("reshape", lambda v: v.reshape(-1).mul(2).reshape(v.shape)), ("fill_", lambda v: (v * 2)[:, :].clamp_(-1, 1)),
    ("t.reshape", lambda v: v.t().reshape(v.shape).sigmoid()), ("roll", lambda v: v.roll(1, 1)),
)  # fmt: skip
#: Functions of a matrix that return a result.
_RESULTS: Sequence[Step] = (
    ("same", lambda v: v), ("t", lambda v: v.t()), ("t.contiguous", lambda v: v.t().contiguous()),
    ("part", lambda v: v[:, ::2]), ("row", lambda v: v[1]), ("rows", lambda v: v[1:]),
    ("flat", lambda v: v.reshape(-1)),
    ("expand", lambda v: v.unsqueeze(1).expand(-1, 3, -1)), ("contiguous", lambda v: v.contiguous()),
    ("t.flat", lambda v: v.t().reshape(-1)), ("split", lambda v: v.split(2, 1)[1]), ("sum", lambda v: v.sum(0)),
    ("channels_last", lambda v: v.view(1, 2, v.shape[0] // 2, -1).to(memory_format=torch.channels_last)),
    ("unsqueeze", lambda v: v[None]), ("as_strided", lambda v: v.as_strided((2, 2), (1, 1))),
    ("diagonal", lambda v: v.diagonal()), ("view", lambda v: v.detach().view_as(v)),
)  # fmt: skip
#: Layouts of a matrix of M rows.
_LAYOUTS: Sequence[Callable[[int, int, torch.dtype], torch.Tensor]] = (
    lambda m, n, t: _of(m, n, t), lambda m, n, t: _of(n, m, t).t(), lambda m, n, t: _of(m, 2 * n, t)[:, ::2],
    lambda m, n, t: _of(m + 1, n, t)[1:], lambda m, n, t: _of(2 * m, n, t)[::2],
    lambda m, n, t: _of(m, n + 3, t)[:, 2:-1],
)  # fmt: skip


def _of(*sizes: Any) -> torch.Tensor:
    *shape, dtype = sizes
    return torch.randn(shape).to(dtype)


class Module(torch.nn.Module):
    """Random steps around products; ``steps`` are functions of the module and of its values, by their names."""

    state: torch.Tensor
    cache: torch.Tensor

    def __init__(self, choose: random.Random, dtype: torch.dtype) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(K, N)
        self.norm = torch.nn.BatchNorm1d(N)
        self.vector = torch.nn.Parameter(torch.randn(N))
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 2)
        for name, shape in (("step", ()), ("mean", (N,)), ("state", (M, N)), ("cache", (3, M, N))):
            self.register_buffer(name, torch.zeros(shape))
        self.scale = torch.linspace(0.5, 1.5, N)
        self.to(dtype)
        self.scale = self.scale.to(dtype)
        self.writes = choose.random() < 0.6
        self.steps = [self._choose(choose) for _ in range(choose.randint(1, 6))]
        self.product = choose.choice(["linear", "mm", "addmm", "bmm", "conv"])
        self.results = [("value", choose.choice(_RESULTS))]
        self.results += [(choose.choice(_SOURCES), choose.choice(_RESULTS)) for _ in range(choose.randint(0, 3))]
        self.shape = choose.choice(["tuple", "dict", "single"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        made = copy.copy(self)
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name[0] == "_"})
        made.scale = self.scale.clone()
        return made

    def _choose(self, choose: random.Random) -> Step:
        kind = choose.random()
        if kind < 0.4:
            return choose.choice(_UNARY)
        steps = [*_READS, *(_WRITES if self.writes else ())]
        name, function = choose.choice(steps)
        return name, partial(function, self)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        products = {
            "linear": lambda: self.lin(x),
            "mm": lambda: x @ self.lin.weight.t(),
            "addmm": lambda: torch.addmm(y, x, self.lin.weight.t(), beta=0.5),
            "bmm": lambda: torch.bmm(x.expand(2, -1, -1), self.lin.weight.t().expand(2, -1, -1))[1],
            "conv": lambda: functional.conv1d(x.t()[None], self.lin.weight[..., None], self.lin.bias)[0].t(),
        }
        value = products[self.product]()
        for name, step in self.steps:
            value = step(value) if name not in _OF_MODULE else _OF_MODULE[name](self, value, y)
        found = [function({"x": x, "y": y, "value": value, "state": self.state, "cache": self.cache[1]}[source])
                 for source, (_, function) in self.results]  # fmt: skip
        if self.shape == "dict":
            return {f"r{place}": each for place, each in enumerate(found)} | {"none": None}
        return found[0] if self.shape == "single" else tuple(found)

    def __repr__(self) -> str:
        steps = ", ".join(name for name, _ in self.steps)
        results = ", ".join(f"{source}.{name}" for source, (name, _) in self.results)
        return f"{self.product}; {steps}; -> {self.shape} {results}"


_SOURCES = ("value", "value", "value", "x", "y", "state", "cache")
#: Steps that read the module's tensors, and steps that write to them, as functions of the module and two matrices.
_OF_MODULE: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "+ vector": lambda s, v, y: v + s.vector,
    "norm": lambda s, v, y: s.norm(v),
    "* scale": lambda s, v, y: v * s.scale,
    "+ y": lambda s, v, y: v + y,
    "y * v": lambda s, v, y: y * v,
    "+ step": lambda s, v, y: v + s.step,
    "+ mean": lambda s, v, y: v + torch.exp(s.mean * 0.5),
    "+ state": lambda s, v, y: v + s.state.t().contiguous().t(),
    "+ cache": lambda s, v, y: v + s.cache.sum(0),
    "again": lambda s, v, y: torch.relu(v @ s.lin.weight @ s.lin.weight.t() + s.vector),
    "step.add_": lambda s, v, y: (s.step.add_(1), v + s.step)[1],
    "step +=": lambda s, v, y: (v * s.step, s.step.__iadd__(v.detach().mean().tanh()))[0],
    "mean.lerp": lambda s, v, y: (s.mean.mul_(0.5).add_(v.mean(0).tanh()), v - s.mean)[1],
    "state.copy_": lambda s, v, y: (s.state.copy_(v), v * 0.5)[1],
    "state.relu_": lambda s, v, y: (s.state.add_(v.tanh()).relu_(), v + s.state)[1],
    "state.t": lambda s, v, y: (s.state.t()[1:3].add_(1), v)[1],
    "cache[0]": lambda s, v, y: (s.cache[0].copy_(v), v + s.cache[1])[1],
    "cache[1]": lambda s, v, y: (s.cache.__setitem__(1, v.tanh()), v)[1],
    "index_copy_": lambda s, v, y: (s.cache.index_copy_(0, torch.tensor([1]), v[None].tanh()), v + s.cache[1])[1],
    "cache rows": lambda s, v, y: (s.cache[:, 1:3].copy_(v[1:3]), v + s.cache[2])[1],
    "swap": lambda s, v, y: (old := s.cache[0].clone(), s.cache[0].copy_(s.cache[1]), s.cache[1].copy_(old), v)[3],
    "y.add_": lambda s, v, y: (y.add_(1), v + y)[1],
    "y part": lambda s, v, y: (y[:, 1:].mul_(0.5), v)[1],
    "y.copy_": lambda s, v, y: (y.copy_(v.tanh()), v)[1],
}
_READS = tuple((name, function) for name, function in list(_OF_MODULE.items())[:10])
_WRITES = tuple((name, function) for name, function in list(_OF_MODULE.items())[10:])

#: Changes of a module between calls.
_CHANGES: Sequence[Callable[[Any], object]] = (
    lambda s: None, lambda s: None,
    lambda s: s.lin.weight.mul_(1.25), lambda s: s.vector.add_(0.5), lambda s: s.norm.running_mean.add_(0.7),
    lambda s: s.load_state_dict({name: value * 1.5 for name, value in s.state_dict().items()}),
    lambda s: s.load_state_dict({name: value * 0.5 for name, value in s.state_dict().items()}, assign=True),
    lambda s: setattr(s, "vector", torch.nn.Parameter(s.vector + 1)), lambda s: s.mean.zero_(),
    lambda s: setattr(s, "scale", s.scale * 2), lambda s: s.scale.mul_(2), lambda s: setattr(s.norm, "eps", 0.1),
    lambda s: setattr(s.lin.weight, "data", s.lin.weight * 0.5), lambda s: s.double().to(s.scale.dtype),
)  # fmt: skip


def _call(seed: int, dtype: torch.dtype, layouts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs of a call, equal ones for equal arguments."""
    torch.manual_seed(seed)
    return _LAYOUTS[layouts[0]](M, K, dtype), _LAYOUTS[layouts[1]](M, N, dtype)


def _tensors(module: torch.nn.Module, inputs: Sequence[torch.Tensor], result: Any) -> list[torch.Tensor]:
    leaves = [each for each in _pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    return [*leaves, *inputs, *module.buffers(), *module.parameters()]


def _shared(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return which tensors share memory, with the distances of their first elements."""
    memory = [each.untyped_storage().data_ptr() for each in tensors]
    pairs = ((i, j) for j in range(len(tensors)) for i in range(j) if memory[i] == memory[j])
    return [(i, j, tensors[j].data_ptr() - tensors[i].data_ptr()) for i, j in pairs]


def agree(eager: torch.nn.Module, given: Sequence[torch.Tensor], made: Any, other: Any, inputs: Any) -> None:
    """Assert that two calls have equal results, and leave equal tensors, in memory that is alike."""
    wanted, found = eager(*given), made(*inputs)
    assert _pytree.tree_structure(wanted) == _pytree.tree_structure(found)
    first, second = _tensors(eager, given, wanted), _tensors(other, inputs, found)
    compare(first, second, given[0].dtype)
    assert [each.stride() for each in first] == [each.stride() for each in second]
    assert _shared(first) == _shared(second)


def check(seed: int, *, calls: int = CALLS, compiled: bool = False) -> Counter[str]:
    """Assert that a random module does the same fused; return how the calls ran."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    dtype = choose.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16])
    model = Module(choose, dtype).eval()
    eager = copy.deepcopy(model)
    layouts = [choose.randrange(len(_LAYOUTS)), choose.randrange(len(_LAYOUTS))]
    made: Any = model
    if compiled:
        options = {"evt.rule": "always", "evt.devices": ("cpu",)}
        torch._dynamo.reset()
        made = torch.compile(model, backend="evt", options=options)
    else:
        made = fuse(model, _call(seed, dtype, layouts))
    with torch.no_grad():
        for call in range(calls):
            given, inputs = (_call(seed + call, dtype, layouts) for _ in range(2))
            agree(eager, given, made, model, inputs)
            change = choose.choice(_CHANGES)
            change(eager)
            change(model)
            if choose.random() < 0.3:
                layouts = [choose.randrange(len(_LAYOUTS)), choose.randrange(len(_LAYOUTS))]
    dispatch = dispatch_of(made)
    return Counter() if dispatch is None else dispatch.answers


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    check_seeds(__doc__, {"fuse": check, "compile": partial(check, compiled=True)})
