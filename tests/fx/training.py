"""Training steps of small models, and compiled functions with gradients but without Inductor's kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule

from evt.fx.attention import simplify_attention
from evt.fx.backend import FusePass
from evt.fx.compared import SaveCompared
from evt.fx.records import Owner
from evt.fx.rewrite import STRIDES

from . import vision

aten = torch.ops.aten

#: Tolerances of a parameter's gradient, relative to its norm: for f32, and for 16 bits against f64.
TOLERANCE, TOLERANCE_16 = 1e-4, 3e-2


class Network(nn.Module):
    """A residual network of two blocks; the second has a stride."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(vision.BasicBlock(width, width, 1), vision.BasicBlock(width, 2 * width, 2))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(torch.relu(self.norm(self.conv(x))))
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Transformer(nn.Module):
    """Layers of attention and of a GELU's MLP that normalise first, over tokens."""

    def __init__(self, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.layers = nn.Sequential(*(vision.EncoderLayer(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.layers(self.embedding(x))).mean(1))
        return out


def images(count: int = 4, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images that lie channels_last, and their classes, which can be learned."""
    generator = torch.Generator().manual_seed(count)
    wanted = torch.arange(count) % 10
    x = torch.randn(count, 3, size, size, generator=generator) + wanted[:, None, None, None] / 5
    return x.to(memory_format=torch.channels_last), wanted


def sentences(count: int = 4, length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens, and a class of each sentence, which can be learned."""
    tokens = torch.randint(0, 10, (count, length), generator=torch.Generator().manual_seed(count))
    return tokens, tokens[:, 0]


def loss(model: Callable[..., torch.Tensor], x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x).float(), wanted)


def gradients(model: nn.Module, x: torch.Tensor, wanted: torch.Tensor, call: Any = None) -> dict[str, torch.Tensor]:
    """Return the gradients of a model's parameters after one step, called as it is or as ``call``."""
    model.zero_grad()
    loss(model if call is None else call, x, wanted).backward()
    return {name: parameter.grad.double() for name, parameter in model.named_parameters() if parameter.grad is not None}


def exact_gradients(model: nn.Module, x: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients in float64."""
    return gradients(copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x, wanted)


def worst(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """Return the largest error of a parameter's gradient relative to its norm, or a thousandth of the largest norm.

    A gradient may be nothing but rounding, as that of a bias before a softmax.
    """
    assert got.keys() == want.keys()
    least = 1e-3 * max(float(each.norm()) for each in want.values())
    return max(float((got[name] - each).norm()) / max(float(each.norm()), least) for name, each in want.items())


def fused(function: Callable[..., Any], dynamic: bool = False) -> Any:
    """Compile a function as Inductor does before it lowers a graph, with all regions; the reference computes them."""

    def backend(module: GraphModule, inputs: Any) -> Any:
        owner = Owner.of(module, inputs)
        simplify_attention(module, ("cpu",))

        def compile(graph: GraphModule, _: Any) -> Any:
            FusePass("always", ("cpu",), owner)(graph.graph)
            for node in graph.graph.find_nodes(op="call_function", target=aten.view.default):
                node.target = aten.reshape.default  # as Inductor lowers it: strides of saved values may differ
            for node in graph.graph.find_nodes(op="call_function", target=torch.ops.evt.launch.default):
                node.target = _ordered(node.meta[STRIDES])
            graph.recompile()
            return make_boxed_func(graph)

        def partition(joint: GraphModule, *arguments: Any, **keywords: Any) -> Any:
            SaveCompared()(joint.graph)
            return min_cut_rematerialization_partition(joint, *arguments, **keywords)

        compiler = aot_autograd(
            fw_compiler=compile,
            bw_compiler=compile,
            inference_compiler=compile,
            decompositions=select_decomp_table(),
            partition_fn=partition,
        )
        return compiler(module, inputs)

    return torch.compile(function, backend=backend, dynamic=dynamic)


def _ordered(planned: Sequence[Sequence[Any]]) -> Any:
    """Return the operator of a launch that copies operands with other strides than planned, as Inductor does."""

    def launch(a: torch.Tensor, b: torch.Tensor, inputs: list[torch.Tensor], program: str) -> Any:
        given = [
            torch.empty_strided(each.shape, strides, dtype=each.dtype).copy_(each)
            if all(isinstance(stride, int) and stride > 0 for stride in strides) and each.stride() != tuple(strides)
            else each
            for each, strides in zip((a, b, *inputs), planned, strict=True)
        ]
        return torch.ops.evt.launch.default(*given[:2], given[2:], program)

    return launch


def curve(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], steps: int, call: Any = None) -> list[float]:
    """Return the losses of a model over some steps of stochastic gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model if call is None else call, *batch)
        value.backward()
        optimizer.step()
        found.append(float(value))
    return found
