"""Fold operators on parameters and buffers into a separate graph: ``Folding.of(constants).take(graph, fits)``.

The factors of a batch norm, or the channels-last copy of a filter, change only when the model's tensors change. Their
operators move into the folding graph, and the main graph gets an input for each of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

from evt.fx.aten import CONSTANT, is_tensor
from evt.fx.op_semantics import Applied, semantics
from evt.fx.views import is_view, readers

#: The most elements of a vector that is folded.
_LARGEST = 1 << 16


@dataclass
class Folding:
    """Operators on constants, moved out of a main graph.

    ``graph`` computes their values from the constants. ``copies`` maps nodes of the main graph to nodes of ``graph``.
    ``inputs`` are the new inputs of the main graph, in the order of the folded values.
    """

    graph: Graph = field(default_factory=Graph)
    copies: dict[Node, Node] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)

    @staticmethod
    def of(constants: Iterable[Node]) -> Folding:
        """Return an empty folding of constants."""
        made = Folding()
        for node in constants:
            made.copies[node] = made.graph.placeholder(node.name)
        return made

    def take(self, graph: Graph, fits: Callable[[Node], bool]) -> None:
        """Move the operators that fit out of a graph; add an input for each value that the graph still reads.

        Views that the graph returns stay: results may be several views of one value.
        """
        taken, output = [], graph.output_node()
        for node in list(graph.nodes):
            operands = node.all_input_nodes
            if node.op != "call_function" or not operands or not all(each in self.copies for each in operands):
                continue
            if fits(node) and not (is_view(node) and output in readers(node)):
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
                taken.append(node)
        first = next(node for node in graph.nodes if node.op != "placeholder")
        for node in taken:
            if all(user in self.copies for user in node.users):
                continue
            with graph.inserting_before(first):
                made = graph.placeholder(f"evt_{node.name}")
            made.meta = {**node.meta, CONSTANT: True}
            node.replace_all_uses_with(made, delete_user_cb=lambda user: user not in self.copies)
            self.copies[made] = self.copies[node]
            self.inputs.append(made)
        for node in reversed(taken):
            if not node.users:
                graph.erase_node(node)

    def values(self, root: torch.nn.Module, constants: Sequence[torch.Tensor]) -> dict[Node, torch.Tensor]:
        """Return the values of ``inputs`` for values of the constants."""
        graph, copies = Graph(), dict[Node, Node]()
        graph.graph_copy(self.graph, copies)
        graph.output(tuple(copies[self.copies[node]] for node in self.inputs))
        return dict(zip(self.inputs, GraphModule(root, graph)(*constants), strict=True))

    def finish(self, root: torch.nn.Module) -> GraphModule:
        """Return the function from the constants to the values of ``inputs``."""
        self.graph.output(tuple(self.copies[node] for node in self.inputs))
        self.graph.eliminate_dead_code()
        return GraphModule(root, self.graph)


def is_small(node: Node) -> bool:
    """Return whether a node is an elementwise operator or a view with few elements."""
    if not is_tensor(node):
        return False
    count = node.meta["val"].numel()
    return isinstance(count, int) and count <= _LARGEST and (is_view(node) or isinstance(semantics(node), Applied))


__all__ = ["Folding", "is_small"]
