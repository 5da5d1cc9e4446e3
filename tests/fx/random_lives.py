"""Random lives of models: ``check(seed)`` compares a fused model with an eager twin after each event.

Events change the parameters, load states, replace and tie layers, add hooks and parametrizations, convert the model,
copy it and pickle it, and freeze parameters. Calls between them have other sizes, strides and modes: with gradients, in
inference mode, under autocast, under transforms of torch.func, and from several threads.

    python -m tests.fx.random_lives --count 1000
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from evt.fx.fuse import fuse
from evt.fx.module import dispatch_of
from evt.fx.records import RECORDS

from . import training
from .seeds import Value, check_seeds

C = 8


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, x: Value) -> Value:
        return x / 2


class Doubled(nn.Module):
    """A hook that can be pickled."""

    def __call__(self, module: nn.Module, args: Any, result: Value) -> Value:
        return result * 2


class Rows(nn.Module):
    """Two linear layers with a norm and a residual, over rows."""

    shape = (4, C)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(C, C), nn.Linear(C, C), nn.LayerNorm(C)
        self.scale: Value
        self.register_buffer("scale", torch.rand(C))

    def forward(self, x: Value) -> tuple[Value, Value]:
        hidden = functional.gelu(self.first(self.norm(x)))
        return x + self.second(hidden) * self.scale, hidden


class Images(nn.Module):
    """Two convolutions with batch norms, and a linear layer."""

    shape = (C, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 1), nn.BatchNorm2d(C)
        self.head = nn.Linear(C, 3)

    def forward(self, x: Value) -> tuple[Value, Value]:
        x = torch.relu(self.norm(self.first(x))) + x
        x = functional.silu(self.second(x))
        return x, self.head(x.mean((2, 3))).sigmoid()


class Attention(nn.Module):
    """Attention of one tensor with itself, and a dictionary as the result."""

    shape = (4, C)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C)
        self.norm = nn.RMSNorm(C)

    def forward(self, x: Value, scale: float = 1.0) -> dict[str, Value]:
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.first(self.norm(x)).chunk(3, -1))
        x = x + self.second((q @ k.mT * scale).softmax(-1).matmul(v).transpose(1, 2).flatten(2)).relu()
        return {"result": x, "sum": x.sum(1)}


class _Life:
    """An eager model, its fused twin, and the events so far."""

    def __init__(self, seed: int, make: Callable[[nn.Module, Value], Any]) -> None:
        self.choose, self.make = random.Random(seed), make
        torch.manual_seed(seed)
        kind: Any = self.choose.choice([Rows, Images, Attention])
        self.eager: Any = kind().double()
        self.eager.train(self.choose.random() < 0.2)
        self.dtype = torch.float64
        self.x = torch.randn(3, *kind.shape, dtype=torch.float64)
        self.model: Any = copy.deepcopy(self.eager)
        self.fused: Any = make(self.model, self.x)
        self.events: list[str] = []

    def both(self, change: Callable[[Any], None]) -> None:
        """Change both models in the same way."""
        for model in (self.eager, self.model):
            state = torch.random.get_rng_state()
            change(model)
            last = torch.random.get_rng_state()
            torch.random.set_rng_state(state)
        torch.random.set_rng_state(last)

    # Calls.

    def input(self) -> Value:
        choose = self.choose
        shape = (choose.choice([3, 3, 3, 2, 1, 5, 0 if self.dtype == torch.float64 else 4]), *self.eager.shape)
        x = torch.randn(shape, dtype=self.dtype)
        how = choose.choice(["packed", "packed", "transposed", "sliced", "last", "inference", "expanded"])
        if how == "transposed":
            x = torch.randn(shape[1], shape[0], *shape[2:], dtype=self.dtype).transpose(0, 1)
        elif how == "sliced":
            x = torch.randn(*shape[:-1], 2 * shape[-1], dtype=self.dtype)[..., ::2]
        elif how == "last" and len(shape) == 4:
            x = x.to(memory_format=torch.channels_last)
        elif how == "inference":
            with torch.inference_mode():
                x = x.clone()
        elif how == "expanded":
            x = x[:1].expand(shape)
        return x

    def call(self) -> None:
        """Call both models in one of the modes, and compare results and gradients."""
        choose, x = self.choose, self.input()
        how = choose.choice(["plain", "plain", "no_grad", "inference", "autocast", "gradients", "keyword"])
        if how in ("plain", "autocast", "gradients"):
            x = x.clone() if x.is_inference() else x  # autograd cannot save it
        self.events.append(f"call {how} {tuple(x.shape)} {x.stride()} {'i' * x.is_inference()}")
        if self.eager.training and not x.numel():
            return None  # a batch norm has no statistics
        if how == "gradients":
            return self.gradients(x)
        contexts: dict[str, Any] = {"inference": torch.inference_mode, "plain": nullcontext, "gradients": nullcontext}
        tolerance = 1e-9 if self.dtype == torch.float64 else 1e-4
        if how == "autocast":
            contexts[how] = partial(torch.autocast, "cpu", torch.bfloat16)
            tolerance = 6e-2 if self.dtype == torch.float32 else tolerance
        with contexts.get(how, torch.no_grad)():
            keywords = {"scale": 0.5} if how == "keyword" and isinstance(self.eager, Attention) else {}
            want, got = self.eager(x, **keywords), self.fused(x, **keywords)
        self.compare(want, got, tolerance)
        if self.eager.training:
            self.compare(list(self.eager.buffers()), list(self.model.buffers()), tolerance)
        return None

    def gradients(self, x: Value) -> None:
        found = []
        for model, call in ((self.eager, self.eager), (self.model, self.fused)):
            model.zero_grad(set_to_none=True)
            results = tree_leaves(call(x.detach()))
            if any(each.requires_grad for each in results):
                sum((each * torch.linspace(-1, 1, each.numel()).view(each.shape)).sum() for each in results).backward()
            found.append((results, [each.grad for each in model.parameters()]))
        self.compare(found[0], found[1], 1e-9 if self.dtype == torch.float64 else 1e-3)

    def transform(self) -> None:
        """Call both under a transform of torch.func."""
        if self.eager.training and isinstance(self.eager, Images):
            return  # a batch norm writes to its statistics
        x = torch.randn(3, *self.eager.shape, dtype=self.dtype)
        how = self.choose.choice(["functional_call", "vmap", "grad", "jvp", "jacrev"])
        self.events.append(how)
        found = []
        other = {name: torch.randn_like(each) for name, each in self.eager.named_parameters()}
        for model, call in ((self.eager, self.eager), (self.model, self.fused)):
            first = lambda x, call=call: tree_leaves(call(x))[0]  # noqa: E731
            if how == "functional_call":
                inner = call if dispatch_of(call) is not None or call is model else model
                found.append(functional_call(inner, other, (x,)))
            elif how == "vmap":
                found.append(torch.func.vmap(lambda each, first=first: first(each[None]))(x))
            elif how == "grad":
                found.append(torch.func.grad(lambda each, first=first: first(each).sum())(x))
            elif how == "jvp":
                found.append(torch.func.jvp(first, (x,), (torch.ones_like(x),)))
            else:
                found.append(torch.func.jacrev(lambda each, first=first: first(each).sum((1, 2)))(x))
        self.compare(found[0], found[1], 1e-9 if self.dtype == torch.float64 else 1e-3)

    def threads(self) -> None:
        """Call from several threads."""
        if self.eager.training:
            return  # batch norms write to their statistics in any order
        inputs = [torch.randn(size, *self.eager.shape, dtype=self.dtype) for size in (3, 2, 3, 6)]
        with torch.no_grad():
            want = [self.eager(x) for x in inputs]

        def call(x: Value) -> Any:
            with torch.no_grad():
                return self.fused(x)

        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(call, inputs))
        self.compare(want, got, 1e-9 if self.dtype == torch.float64 else 1e-4)

    def compare(self, want: Any, got: Any, tolerance: float) -> None:
        wanted, found = tree_leaves(want), tree_leaves(got)
        assert len(wanted) == len(found)
        for x, y in zip(wanted, found, strict=True):
            assert (x is None) == (y is None), "a gradient is missing"
            if x is None:
                continue
            facts = [(each.dtype, each.shape, each.requires_grad, each.is_inference()) for each in (x, y)]
            assert facts[0] == facts[1], f"{facts[1]}, not {facts[0]}"
            x, y = x.detach().double(), y.detach().double()
            error = float((x - y).norm() / x.norm().clamp(min=1.0))
            assert error <= tolerance, f"off by {error}"

    # Events.

    def load(self) -> None:
        state = {name: torch.rand_like(each) if each.is_floating_point() else each.clone()
                 for name, each in self.eager.state_dict().items()}  # fmt: skip
        assign = self.choose.random() < 0.3
        through = self.choose.random() < 0.5 and dispatch_of(self.fused) is not None
        self.eager.load_state_dict(copy.deepcopy(state), assign=assign)
        (self.fused if through else self.model).load_state_dict(copy.deepcopy(state), assign=assign)

    def write(self) -> None:
        @torch.no_grad()
        def change(model: Any) -> None:
            list(model.parameters())[place].mul_(1.5)

        place = self.choose.randrange(len(list(self.eager.parameters())))
        self.both(change)

    def buffer(self) -> None:
        def change(model: Any) -> None:
            for each in model.buffers():
                if each.is_floating_point():
                    with torch.no_grad():
                        each.add_(0.5)

        self.both(change)

    def assign(self) -> None:
        def change(model: Any) -> None:
            if not isinstance(model.second, nn.Sequential):
                model.second.weight = nn.Parameter(torch.randn_like(model.second.weight))

        self.both(change)

    def replace(self) -> None:
        def change(model: Any) -> None:
            model.second = nn.Sequential(copy.deepcopy(model.second), nn.Tanh())

        if not isinstance(self.eager.second, nn.Sequential):
            self.both(change)

    def hook(self) -> None:
        if dispatch_of(self.fused) is None:
            return  # Dynamo does not look for hooks that are added to a compiled model
        self.both(lambda model: model.norm.register_forward_hook(Doubled()))

    def parametrized(self) -> None:
        if not parametrize.is_parametrized(self.eager.first):
            self.both(lambda model: parametrize.register_parametrization(model.first, "weight", Halved()))

    def tie(self) -> None:
        def change(model: Any) -> None:
            if isinstance(model, Rows) and not any(map(parametrize.is_parametrized, (model.first, model.second))):
                model.first.weight = getattr(model.second, "weight", model.first.weight)

        self.both(change)

    def train(self) -> None:
        mode = not self.eager.training
        self.eager.train(mode)
        self.fused.train(mode)

    def freeze(self) -> None:
        place, grad = self.choose.randrange(len(list(self.eager.parameters()))), self.choose.random() < 0.3

        def change(model: Any) -> None:
            if self.choose_all:
                model.requires_grad_(grad)
            else:
                list(model.parameters())[place].requires_grad_(grad)

        self.choose_all = self.choose.random() < 0.6
        self.both(change)

    def convert(self) -> None:
        self.dtype = torch.float32 if self.dtype == torch.float64 else torch.float64
        self.both(lambda model: model.to(self.dtype))

    def format(self) -> None:
        if isinstance(self.eager, Images):
            self.both(lambda model: model.to(memory_format=torch.channels_last))

    def step(self) -> None:
        x = torch.randn(3, *self.eager.shape, dtype=self.dtype)
        for model, call in ((self.eager, self.eager), (self.model, self.fused)):
            parameters = [each for each in model.parameters() if each.requires_grad]
            if parameters:
                optimizer = torch.optim.SGD(parameters, 0.01)
                optimizer.zero_grad()
                tree_leaves(call(x))[0].square().mean().backward()
                optimizer.step()

    def copied(self) -> None:
        """Go on with copies; a compiled model is compiled again."""
        pickled = self.choose.random() < 0.5 and not parametrize.is_parametrized(self.eager.first)

        def duplicate(value: Any) -> Any:
            return pickle.loads(pickle.dumps(value)) if pickled else copy.deepcopy(value)

        self.eager = duplicate(self.eager)
        if dispatch_of(self.fused) is not None:
            if pickled:
                pickle.dumps(self.fused)  # its class is made at run time
            self.fused = copy.deepcopy(self.fused)
            found = dispatch_of(self.fused)
            assert found is not None
            self.model = found.model
        else:
            self.model = duplicate(self.model)
            self.fused = self.make(self.model, self.x.to(self.dtype))

    def run(self) -> None:
        names = ["load", "write", "buffer", "assign", "replace", "hook", "parametrized", "tie", "train", "freeze"]
        names += ["convert", "format", "step", "copied", "transform", "threads"]
        try:
            for _ in range(self.choose.randint(4, 10)):
                for _ in range(self.choose.randint(1, 2)):
                    self.call()
                name = self.choose.choice(names)
                self.events.append(name)
                getattr(self, name)()
            self.call()
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise AssertionError(f"{said} after {type(self.eager).__name__}: {self.events}") from error


@torch.enable_grad()
def _ends(seed: int, make: Callable[[nn.Module, Value], Any]) -> _Life:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        life = _Life(seed, make)
        life.run()
    return life


def check(seed: int) -> int:
    """Assert that a model fused by evt.fuse lives as its eager twin; return the number of fused calls."""
    life = _ends(seed, lambda model, x: fuse(model, (x,)))
    dispatch = dispatch_of(life.fused)
    assert dispatch is not None
    return dispatch.answers["fused"]


def check_compiled(seed: int) -> int:
    """Assert that a compiled model lives as its eager twin, if one compiled without evt does; return its regions."""
    RECORDS.clear()
    torch._dynamo.reset()
    try:
        _ends(seed, lambda model, _: training.fused(model))
    except Exception:
        torch._dynamo.reset()
        try:
            _ends(seed, lambda model, _: torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False))
        except Exception:
            return 0
        raise
    return sum(row.fused for record in RECORDS for row in record.rows)


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check, "compile": check_compiled})
