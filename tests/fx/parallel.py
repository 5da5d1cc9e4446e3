"""Models on several processes: replicated, with sharded parameters, and with tensor parallelism.

``compare(strategy, device)`` takes steps in eager mode, by torch.compile and by evt, in each process of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.fx import GraphModule

import evt
from evt.fx.records import RECORDS

Options = Mapping[str, Any]


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
    kinds = (Attention, Block, Attention, Gated)
    return nn.Sequential(*(kinds[at % len(kinds)](width) for at in range(blocks)))


# Strategies: each returns a model that is distributed over a mesh.


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Replicate a model; its graph is divided where gradients are exchanged."""
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the parameters of each block."""
    for block in model:  # type: ignore[attr-defined]
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, *, sequence: bool = False) -> nn.Module:
    """Divide the columns of the first products of a block and the rows of its last one.

    ``sequence`` also divides the rows of the tensors between blocks.
    """
    from torch.distributed.tensor import Replicate, Shard

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
class Watched:
    """The graphs of a compiled model: the collectives of each, by the order of compilation."""

    graphs: list[list[str]]

    def watch(self, graph: GraphModule) -> None:
        """Add a graph."""
        names = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        self.graphs.append([name for name in names if "c10d" in name and "wait_tensor" not in name])
