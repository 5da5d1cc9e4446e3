"""Equal operators of a graph as one: ``merge_equal(graph)``, in place.

Models repeat an operator: each block of a diffusion U-Net applies SiLU to one embedding. Autograd merges such operators
in training graphs, not in graphs for inference. Unmerged, a kernel would store each as a separate result.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload
from torch.fx import Graph, Node

from evt.fx.aten import base_name, is_tensor
from evt.fx.op_semantics import IDENTITIES, semantics
from evt.fx.views import is_view, readers


def merge_equal(graph: Graph) -> None:
    """Let elementwise operators and views of equal operands be one, if nothing but copies to inputs writes to memory.

    A result of the graph stays apart, because its caller may write to it.
    """
    if any(map(_writes, graph.nodes)):
        return
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if _is_function(node) and graph.output_node() not in readers(node):
            first = known.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _writes(node: Node) -> bool:
    """Return whether a node writes to memory, except for the last operators of a graph, which write to its inputs."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable and base_name(node) != "copy_"


def _is_function(node: Node) -> bool:
    """Return whether a node is a view, or has functions of its operands' elements."""
    return is_tensor(node) and base_name(node) not in IDENTITIES and (is_view(node) or semantics(node) is not None)


__all__ = ["merge_equal"]
