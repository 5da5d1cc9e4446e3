"""Make operands readable by kernels: ``readable(graph, fused) -> RegionProgram``.

A matrix without a contiguous dimension is copied, as for PyTorch's own products. So are matrices of ``linear`` whose
rows have several dimensions that no single stride walks, as transposed batches around attention: a call would launch a
kernel for each index of the outer ones.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch.fx import Graph, Node

from evt.fx.aten import CONSTANT, is_constant
from evt.fx.build import RegionArgument, RegionProgram
from evt.fx.index_map import all_same, same
from evt.fx.product import Product
from evt.fx.region import FusionRegion

aten = torch.ops.aten
#: The operators that write a copy.
_COPIES = (aten.clone.default, aten.transpose.int)


def readable(graph: Graph, fused: RegionProgram) -> RegionProgram:
    """Return the region with copies, in the graph, of operands that have no contiguous dimension."""
    fused = _with_walkable_arguments(graph, fused)
    region = fused.region
    product = region.product
    reads_a = _is_readable(product.a) and (product.operation != "linear" or _is_walkable(product.a))
    if product.is_convolution or (reads_a and _is_readable(product.b)):
        return fused  # the call of a convolution copies its images
    with graph.inserting_before(product.node):
        a = product.a if reads_a else _copied(graph, product.a)
        b = product.b
        if not _is_readable(b) and product.operation == "gemm":  # kernels of all types read contiguous columns
            b = _transposed(graph, _copied(graph, _transposed(graph, b)))
        elif not _is_readable(b):
            b = _copied(graph, b)
    return replace(fused, region=FusionRegion(replace(product, a=a, b=b), region.index_maps))


def _with_walkable_arguments(graph: Graph, fused: RegionProgram) -> RegionProgram:
    """Return the region with copies of the matrices that its epilogue reads, where no stride walks their rows."""
    if fused.region.product.operation != "linear":
        return fused
    with graph.inserting_before(fused.region.nodes[-1]):
        arguments = (
            each if _is_walked(each) else replace(each, node=_copied(graph, each.node)) for each in fused.arguments
        )
        return replace(fused, arguments=tuple(arguments))


def _is_walked(argument: RegionArgument) -> bool:
    """Return whether one stride walks the rows of an argument, or its arrangement copies it."""
    how, shape = argument.arrangement, argument.node.meta["val"].shape
    kept = how.order == tuple(range(len(how.order))) and all_same(how.merged, shape)
    return not kept or len(shape) < 3 or _is_walkable(argument.node)


def _is_readable(node: Node) -> bool:
    value: torch.Tensor = node.meta["val"]
    last = zip(value.shape[-2:], value.stride()[-2:], strict=True)
    return any(same(size, 1) or same(stride, 1) for size, stride in last)


def _is_walkable(node: Node) -> bool:
    """Return whether one stride walks the rows of an operand, in the order of their indices."""
    value: torch.Tensor = node.meta["val"]
    rows = [(size, step) for size, step in zip(value.shape[:-1], value.stride()[:-1], strict=True) if not same(size, 1)]
    return all(same(step, size * below) for (_, step), (size, below) in pairwise(rows))


def given_operand(node: Node, product: Product) -> Node:
    """Return the operand of a product's operator if a node is a copy of it, or the node."""
    while node not in product.node.all_input_nodes and node.target in _COPIES:
        node = node.all_input_nodes[0]
    return node


def _copied(graph: Graph, node: Node) -> Node:
    made = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    return _named(made, node, node.meta["val"].clone(memory_format=torch.contiguous_format))


def _transposed(graph: Graph, node: Node) -> Node:
    return _named(graph.call_function(aten.transpose.int, (node, -2, -1)), node, node.meta["val"].transpose(-2, -1))


def _named(made: Node, node: Node, value: torch.Tensor) -> Node:
    made.meta.update({"val": value, CONSTANT: is_constant(node)})
    return made
