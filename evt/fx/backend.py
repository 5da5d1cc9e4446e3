"""``torch.compile(model, backend="evt")``: Inductor, with our regions in its graph as custom operators.

The regions are put in by a pass over the graph that Inductor is about to lower, after autograd, decompositions and
functionalisation; all the rest of the graph is compiled as ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule

from evt.fx.fuse import fuse_graph
from evt.fx.report import RECORDS, Record


class FusePass(CustomGraphPass):  # type: ignore[misc]
    """Fuses the products of a graph, and records what it did."""

    def __init__(self, parameters: Sequence[torch.Tensor] = (), devices: Sequence[str] = ("cuda",)) -> None:
        self.parameters = [weakref.ref(each) for each in parameters]
        self.devices = tuple(devices)

    def __call__(self, graph: Graph) -> None:
        RECORDS.append(Record(fuse_graph(graph, self.devices), self.parameters))

    def uuid(self) -> None:
        """Return None: Inductor's cache of graphs would skip the pass, and with it the record."""
        return


def backend(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    devices: Sequence[str] = ("cuda",),
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's. ``mode`` and ``options`` are those of torch.compile with Inductor."""
    patches: dict[str, Any] = {}
    if mode not in (None, "default"):
        patches.update(torch._inductor.list_mode_options(mode))  # type: ignore[no-untyped-call]
    patches.update({name.replace("-", "_"): value for name, value in (options or {}).items()})
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [each for each in inputs if isinstance(each, torch.nn.Parameter | torch.Tensor)]
    patches["post_grad_custom_pre_pass"] = FusePass(tensors, devices)
    compiled: Callable[..., Any] = compile_fx(module, inputs, config_patches=patches)
    return compiled
