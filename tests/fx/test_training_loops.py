"""Training loops of compiled models: the code around the steps changes no numbers, and compiles once."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import evt
from evt.fx.backend import backend
from evt.fx.records import RECORDS
from tests.support.replicas import spawn

from .training import TOLERANCE, Network, Transformer, images, loss, sentences, worst

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler", "h200"),
]

Batch = tuple[torch.Tensor, torch.Tensor]
#: A training loop: the model, and the callable in its place.
Loop = Callable[[nn.Module, Callable[..., torch.Tensor]], dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def _gradients(fresh_compiler: None) -> Iterator[None]:
    with torch.enable_grad():
        yield


class Mlp(nn.Module):
    def __init__(self, rate: float = 0.0, outputs: int = 10) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, outputs)
        self.dropout = nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x + self.dropout(self.down(nn.functional.gelu(self.up(x)))))
        return y


def vectors(count: int = 8) -> Batch:
    """Return vectors and their classes."""
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 10


def convolutional() -> nn.Module:
    return Network().to(memory_format=torch.channels_last)


def compiled(function: Callable[..., Any], dynamic: bool | None = None) -> Any:
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    return torch.compile(function, backend=partial(backend, options=options), dynamic=dynamic)


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach().double().clone() for name, value in named}


def train(
    model: nn.Module,
    call: Callable[..., torch.Tensor],
    batches: Sequence[Batch],
    after: Callable[[], object] = lambda: None,
    optimizer: Any = None,
) -> dict[str, torch.Tensor]:
    """Take a step for each batch; return the parameters and buffers."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        loss(call, *batch).backward()
        optimizer.step()
        after()
    return state(model)


def compare(
    make: Callable[[], nn.Module], loop: Loop, dynamic: bool | None = None, tolerance: float = TOLERANCE
) -> nn.Module:
    """Check that a loop ends where eager's does; return the model that was compiled."""
    torch.manual_seed(0)
    model = make()
    eager = copy.deepcopy(model)
    want = loop(eager, eager)
    assert worst(loop(model, compiled(model, dynamic)), want) < tolerance
    fused = Counter(row.graph for row in evt.report(model).fused)
    assert fused["forward"] > 0
    assert fused["backward"] > 0
    return model


def graphs() -> Counter[str]:
    """Return the number of compiled graphs with products, by kind."""
    return Counter(record.rows[0].graph for record in RECORDS if record.rows)


@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (Mlp, [vectors(count) for count in (8, 5, 12, 3)]),
        pytest.param(Transformer, [sentences(*each) for each in ((4, 12), (3, 7), (5, 9))], marks=pytest.mark.slow),
        # Even counts: with PyTorch 2.13, Inductor's own code for odd ones ends the process on CPUs.
        pytest.param(convolutional, [images(count) for count in (4, 2, 6)], marks=pytest.mark.slow),
    ],
)
def test_batches_of_any_size_are_compiled_once(make: Any, batches: list[Batch]) -> None:
    compare(make, lambda model, call: train(model, call, batches), dynamic=True, tolerance=1e-3)
    assert graphs() == {"forward": 1, "backward": 1}


def test_another_size_makes_a_graph_for_any() -> None:
    batches = [vectors(count) for count in (8, 5, 12, 3)]
    compare(Mlp, lambda model, call: train(model, call, batches))
    assert graphs() == {"forward": 2, "backward": 2}


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(16, 16), Mlp(), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.inner, torch.relu(self.first(x)), use_reentrant=False)
        out: torch.Tensor = self.last(torch.relu(y))
        return out


def test_checkpoints_inside_of_a_graph() -> None:
    """The inner products are computed again in the backward graph, with the derivative as their epilogue."""
    model = compare(Checkpointed, lambda model, call: train(model, call, [vectors()] * 3))
    backward = [row.formula for row in evt.report(model).fused if row.graph == "backward"]
    assert any("v1 = acc + x0\n" in each and "exp(v1*v1*-0.5)" in each for each in backward)
    assert graphs() == {"forward": 1, "backward": 1}


def test_checkpoints_around_a_graph() -> None:
    def loop(model: nn.Module, call: Any) -> dict[str, torch.Tensor]:
        return train(model, lambda x: checkpoint(call, x, use_reentrant=False), [vectors()] * 3)

    compare(Mlp, loop)
    assert graphs() == {"forward": 1, "backward": 1}


def test_gradients_add_up() -> None:
    def loop(model: nn.Module, call: Any) -> dict[str, torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            for shift in range(3):
                x, wanted = vectors()
                (loss(call, x + shift, wanted) / 3).backward()
            optimizer.step()
        return state(model)

    compare(Mlp, loop)
    assert graphs() == {"forward": 1, "backward": 1}


def test_a_graph_may_be_gone_through_again_and_inputs_followed() -> None:
    def loop(model: Any, call: Any) -> dict[str, torch.Tensor]:
        x, wanted = vectors()
        value = loss(call, x, wanted)
        value.backward(retain_graph=True)
        value.backward()
        model.up.weight.requires_grad_(False)
        loss(call, x, wanted).backward()
        model.up.weight.requires_grad_(True)
        loss(call, x.requires_grad_(), wanted).backward()
        return {"x": x.grad, **{name: each.grad for name, each in model.named_parameters()}}

    compare(Mlp, loop)


def test_evaluation_between_steps() -> None:
    """Inference and training each have one graph."""
    losses: list[list[float]] = []

    def loop(model: nn.Module, call: Any) -> dict[str, torch.Tensor]:
        losses.append([])

        def evaluate() -> None:
            with torch.no_grad():
                losses[-1].append(float(loss(call, *vectors())))

        return train(model, call, [vectors()] * 3, evaluate)

    compare(Mlp, loop)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert graphs() == {"forward": 1, "backward": 1, "": 1}


@pytest.mark.parametrize("make", [partial(Mlp, 0.0), pytest.param(convolutional, marks=pytest.mark.slow)])
def test_modes_between_steps(make: Any) -> None:
    """Batch norms and dropouts are others in each mode, so each has its graphs, once."""
    batch, losses = (images if make is convolutional else vectors)(), list[list[float]]()

    def loop(model: nn.Module, call: Any) -> dict[str, torch.Tensor]:
        losses.append([])

        def evaluate() -> None:
            model.eval()
            with torch.no_grad():
                losses[-1].append(float(loss(call, *batch)))
            model.train()

        return train(model, call, [batch] * 3, evaluate)

    compare(make, loop, tolerance=1e-3)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert graphs() == {"forward": 1, "backward": 1, "": 1}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scaled_losses_under_autocast(dtype: torch.dtype) -> None:
    """A step whose gradients are infinite is left out, and the scale halved."""
    scales: list[list[float]] = []

    def loop(model: nn.Module, call: Any) -> dict[str, torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        scales.append([])
        for factor in (1.0, float("inf"), 1.0, 1.0, 1.0):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                value = loss(call, *vectors())
            scaler.scale(value * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            scales[-1].append(scaler.get_scale())
        return state(model)

    compare(Mlp, loop, tolerance={torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype])
    assert scales[0] == scales[1] == [64.0, 32.0, 32.0, 64.0, 64.0]
    assert graphs() == {"forward": 1, "backward": 1}


class Interrupted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(16, 16), Eager(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.relu(self.inner(torch.relu(self.first(x)))))
        return y


class Eager(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(16, 16), list[bool]()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(torch.compiler.is_compiling())
        y: torch.Tensor = torch.tanh(self.linear(x)) + x
        return y


@pytest.mark.slow
def test_submodules_that_are_not_compiled() -> None:
    model: Any = compare(Interrupted, lambda model, call: train(model, call, [vectors()] * 3))
    assert model.inner.calls == [False] * 3
    assert graphs() == {"forward": 2, "backward": 2}


@pytest.mark.slow
@pytest.mark.parametrize("make", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.AdamW, lr=0.01)])
def test_compiled_optimizers(make: Any) -> None:
    def loop(model: nn.Module, call: Any) -> dict[str, torch.Tensor]:
        optimizer = make(model.parameters())
        if call is not model:
            optimizer.step = compiled(optimizer.step)
        return train(model, call, [vectors()] * 3, optimizer=optimizer)

    compare(Mlp, loop, tolerance=1e-3)


# Several processes


def split(model: nn.Module) -> Any:
    """Return a model that is replicated, and whose graph is divided where gradients are exchanged."""
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1024
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)


def train_replica(rank: int, folder: Path, count: int) -> None:
    from tests.support.stub_device import compute_launches, plan_for_h200

    plan_for_h200(setattr)
    compute_launches(setattr)
    torch.manual_seed(0)
    model = Mlp()
    x, y = (each.chunk(count)[rank] for each in vectors())
    mine = x, y
    found = train(model, compiled(split(model)), [mine] * 3)
    rows = evt.report(model).rows
    torch.save((found, Counter((row.graph, row.fused) for row in rows), len(RECORDS)), folder / f"{rank}.pt")


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_replicas_whose_graphs_are_divided(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = Mlp()
    want = train(one, one, [vectors()] * 3)
    for got, rows, graphs in spawn(train_replica, tmp_path, "gloo"):
        assert worst(got, want) < TOLERANCE
        assert rows["forward", True] == 3
        assert rows["backward", True] + rows["backward", False] > 3
        assert graphs > 2
