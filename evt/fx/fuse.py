"""The way of a graph: capture, partition, build, rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from evt.errors import EvtError
from evt.fx.build import Fused, build
from evt.fx.capture import capture
from evt.fx.partition import Partition, partition
from evt.fx.product import Product, shape_of
from evt.fx.report import Row
from evt.fx.rewrite import rewrite


def fuse(module: torch.nn.Module, example_inputs: Sequence[Any]) -> GraphModule:
    """Return a module's graph with its products fused, whatever the device."""
    made = capture(module, example_inputs)
    fuse_graph(made.graph)
    made.recompile()
    return made


def fuse_graph(graph: Graph, devices: Sequence[str] = ("cpu", "cuda")) -> tuple[Row, ...]:
    """Fuse the products of a graph on one of the devices, in place; return what became of each product."""
    found = partition(graph)
    fused: list[Fused] = []
    rows = []
    for region in found.regions:
        kind = region.product.node.meta["val"].device.type
        behind = _behind(found, region.nodes)
        if kind not in devices:
            rows.append(_row(region.product, f"it is on the {kind.upper()}, and kernels run on CUDA devices", behind))
            continue
        try:
            made = build(region)
        except EvtError as error:
            rows.append(_row(region.product, error.diagnostics[0].message, behind))
            continue
        fused.append(made)
        absorbed = tuple(node.name for node in region.nodes[1:])
        rows.append(_row(region.product, "", behind, str(made.program.spec.dag), absorbed))
    rows += [_row(product, "nothing behind it can be fused", _behind(found, [product.node])) for product in found.alone]
    rewrite(graph, fused)
    return tuple(rows)


def _row(
    product: Product, reason: str, behind: tuple[str, ...], formula: str = "", absorbed: tuple[str, ...] = ()
) -> Row:
    shapes = f"{list(shape_of(product.a))} x {list(shape_of(product.b))}"
    return Row(product.node.name, product.operation, shapes, formula, absorbed, reason, behind)


def _behind(found: Partition, nodes: Sequence[Any]) -> tuple[str, ...]:
    """Why the operators that read these are not fused with them."""
    readers = dict.fromkeys(user for node in nodes for user in node.users if user not in nodes)
    return tuple(f"{user.name}: {found.misfits[user].reason}" for user in readers if user in found.misfits)
