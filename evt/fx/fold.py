"""Vectors that parameters alone decide, computed once: ``fold(module)``, in place."""

from __future__ import annotations

from operator import attrgetter

import torch
from torch.fx import GraphModule, Node

from evt.fx.aten import is_tensor
from evt.fx.meaning import Applied, meaning
from evt.fx.views import is_view

#: The most elements of a vector that is kept beside the parameters.
_LARGEST = 1 << 16


def fold(module: GraphModule) -> None:
    """Replace elementwise operators and views of parameters and buffers, if small, by buffers with their values."""
    graph = module.graph
    known: dict[Node, torch.Tensor] = {}
    computed = []
    for node in graph.nodes:
        if node.op == "get_attr" and is_tensor(node):
            known[node] = attrgetter(str(node.target))(module)
        elif _is_elementwise(node) and all(each in known for each in node.all_input_nodes):
            with torch.no_grad():
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = node.target(*args, **kwargs)
            computed.append(node)
    for node in computed:
        if all(user in known for user in node.users):
            continue
        name = f"evt_{node.name}"
        module.register_buffer(name, known[node].detach().clone(), persistent=True)
        with graph.inserting_before(node):
            made = graph.get_attr(name)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
    graph.eliminate_dead_code()
    module.delete_all_unused_submodules()


def _is_elementwise(node: Node) -> bool:
    if node.op != "call_function" or not is_tensor(node) or not node.all_input_nodes:
        return False
    count = node.meta["val"].numel()
    return isinstance(count, int) and count <= _LARGEST and (is_view(node) or isinstance(meaning(node), Applied))


__all__ = ["fold"]
