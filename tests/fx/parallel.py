"""Training on several processes: with replicas, with sharded parameters, and with tensor parallelism.

``train(strategy, mesh, compiler)`` is the work of one process; ``compare`` checks evt against torch.compile and eager.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.fx import Graph

import evt
from evt.fx.records import RECORDS


class Block(nn.Module):
    """A residual block: a norm, a product with GELU, and a product that adds to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Gated(nn.Module):
    """A residual block of Llama: RMS norm, SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Attention(nn.Module):
    """A residual block of attention, whose heads may be on several processes."""

    def __init__(self, width: int, head: int = 8) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), head
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (each(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def network(width: int, blocks: int = 2) -> nn.Sequential:
    """Return blocks of attention and of MLPs."""
    torch.manual_seed(0)
    kinds = (Block, Attention, Gated)
    return nn.Sequential(*(kinds[at % len(kinds)](width) for at in range(blocks)))


# Strategies: each returns a model that is distributed over a mesh.


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Replicate a model; its graph is divided where gradients are exchanged."""
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the parameters of each block."""
    for block in model:  # type: ignore[attr-defined]
        fully_shard(block, mesh=mesh)
    return cast(nn.Module, fully_shard(model, mesh=mesh))


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, *, sequence: bool = False) -> nn.Module:
    """Divide the columns of the first products of a block and the rows of its last one.

    ``sequence`` also divides the rows of the tensors between blocks.
    """
    rowwise = partial(RowwiseParallel, output_layouts=Shard(1)) if sequence else RowwiseParallel
    for block in model:  # type: ignore[attr-defined]
        last = "out" if isinstance(block, Attention) else "down"
        plan: dict[str, Any] = {
            name: ColwiseParallel() for name, each in block.named_children() if isinstance(each, nn.Linear)
        }
        plan[last] = rowwise()
        if sequence:
            plan = {
                name: ColwiseParallel(input_layouts=Shard(1)) if name != last else each for name, each in plan.items()
            }
            plan["norm"] = SequenceParallel(use_local_output=True)
        parallelize_module(block, mesh, plan)
    return model


STRATEGIES: Mapping[str, Callable[[nn.Module, DeviceMesh], nn.Module]] = {
    "ddp": replicated,
    "fsdp": sharded,
    "tensor": tensor_parallel,
    "sequence": partial(tensor_parallel, sequence=True),
}


@dataclass
class Steps:
    """Some steps of training on one process.

    ``graphs`` has the collectives of each compiled graph, in the order of compilation; ``breaks`` counts graph breaks.
    ``losses`` and ``parameters`` are the results; ``fused`` and ``products`` count the rows of :func:`evt.report`.
    """

    losses: list[float] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    graphs: list[list[str]] = field(default_factory=list)
    breaks: int = 0
    fused: int = 0
    products: int = 0
    seconds: float = 0.0

    def watch(self, graph: Graph) -> None:
        """Add a graph that Inductor is about to lower."""
        names = (str(node.target) for node in graph.nodes if node.op == "call_function")
        self.graphs.append([name for name in names if "c10d" in name and "wait_tensor" not in name])


def train(
    strategy: str,
    mesh: DeviceMesh,
    compiler: Callable[[Steps], Any] | None,
    *,
    blocks: int,
    width: int = 32,
    dtype: torch.dtype | None = None,
    steps: int = 3,
) -> Steps:
    """Train a network that is distributed over a mesh; ``compiler`` makes the backend of torch.compile, None is eager.

    ``dtype`` is the type of autocast.
    """
    torch._dynamo.reset()
    counters.clear()
    RECORDS.clear()
    found, rank, count = Steps(), mesh.get_local_rank(), mesh.size()
    model = STRATEGIES[strategy](network(width, blocks).to(mesh.device_type), mesh)
    function = model if compiler is None else torch.compile(model, backend=compiler(found), dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank if strategy in ("ddp", "fsdp") else 0)
    started = time.perf_counter()
    for step in range(steps):
        x = torch.randn(2, 16, width, generator=generator)
        if strategy == "sequence":
            x = x.chunk(count, 1)[rank]
        optimizer.zero_grad()
        with torch.autocast(mesh.device_type, dtype, enabled=dtype is not None):
            loss = function(x.to(mesh.device_type)).float().square().mean()
        loss.backward()
        optimizer.step()
        found.losses.append(loss.item())
        if step == 0:
            found.seconds = time.perf_counter() - started
    for name, each in model.named_parameters():
        local = each.to_local() if isinstance(each, DTensor) else each
        found.parameters[name.removeprefix("module.")] = local.detach().cpu().clone()
    found.breaks = sum(counters["graph_break"].values())
    rows = evt.report(model).rows
    found.fused, found.products = sum(row.fused for row in rows), len(rows)
    return found


def compare(plain: Steps, fused: Steps, eager: Steps, tolerance: float) -> None:
    """Check that evt compiles torch.compile's graphs, with their collectives, and has the results of eager mode."""
    assert fused.graphs == plain.graphs
    assert fused.breaks == plain.breaks
    assert 0 < fused.fused <= fused.products
    torch.testing.assert_close(fused.losses, eager.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fused.parameters, eager.parameters, rtol=tolerance, atol=tolerance)
