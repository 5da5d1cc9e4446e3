"""Sizes as arguments of a graph's nodes: ``written(graph, size)``, an int or a node that computes it; reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from evt.fx.aten import base_name, shape_of
from evt.fx.index_map import Size, all_same

#: Operators that read a tensor's sizes, and no elements.
_SIZES = ("sym_size", "sym_numel")


def written(graph: Graph, size: Any) -> int | Node:
    """Return a size as an argument; a dynamic size becomes a node that computes it from sizes in the graph."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    tracer = GraphAppendingTracer(graph)  # of all symbols: sym_min and sym_max refuse several
    found = {symbol: Proxy(_symbol(graph, symbol), tracer) for symbol in expression.free_symbols}
    made: Node = sympy_interp(PythonReferenceAnalysis, found, expression).node
    made.meta["val"] = size
    return made


def _symbol(graph: Any, symbol: object) -> Any:
    """Return a node with the value of a symbol: the first such node, or the size of the first tensor that has it.

    The sizes of inputs are symbols, and so are sizes that depend on data, as the number of rows that ``nonzero`` finds.
    """
    for node in graph.nodes:
        value: Any = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
        if not isinstance(value, torch.Tensor):
            continue
        sizes: Any = value.shape
        for place, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                made = graph.call_function(torch.ops.aten.sym_size.int, (node, place))
                made.meta["val"] = size
                return made
    raise LookupError(f"no node of the graph has the size {symbol}")


def read_sizes_of_inputs(graph: Graph) -> None:
    """Compute sizes of computed tensors from the first sizes, in place: no kernel stores a tensor for its size."""
    for node in list(graph.nodes):
        size = node.meta.get("val")
        if base_name(node) in _SIZES and node.args[0].op == "call_function" and isinstance(size, int | torch.SymInt):
            with graph.inserting_before(node):
                node.replace_all_uses_with(written(graph, size), propagate_meta=False)
            graph.erase_node(node)


def shaped(graph: Graph, node: Node, shape: Sequence[Size]) -> Node:
    """Return the node reshaped to a shape."""
    have = shape_of(node)
    if all_same(have, shape):
        return node
    made = graph.call_function(torch.ops.aten.reshape.default, (node, [written(graph, size) for size in shape]))
    made.meta["val"] = node.meta["val"].reshape(tuple(shape))
    return made
