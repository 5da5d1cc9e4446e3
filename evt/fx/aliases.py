"""Memory that values of an exported graph share, and PyTorch's functional graph does not: ``name_aliases(exported)``.

Some operators return their operand, and their schemas do not say so: ``type_as`` of the same type, and dropout in
evaluation. PyTorch takes the results for copies, and loses writes to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree

from evt.fx.aten import base_name, is_tensor
from evt.fx.index_map import all_same
from evt.fx.results import memory_of

#: Operators (operand, p, train) that return their operand if ``train`` is false or p is 0.
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
#: Operators whose results are views for a caller, and the operators that say so.
_VIEWS = {
    torch.ops.aten.unsafe_chunk.default: torch.ops.aten.chunk.default,
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
}


def name_aliases(exported: ExportedProgram) -> None:
    """Replace operators that return their operand's memory without saying so by their operand, or by views of it."""
    for module in exported.graph_module.modules():
        for node in list(module.graph.nodes) if isinstance(module, GraphModule) else ():
            if node.target in _VIEWS:
                node.target = _VIEWS[node.target]
            elif base_name(node) in _DROPOUTS and len(node.args) == 3 and not (node.args[1] and node.args[2]):
                operand = node.args[0]
                node.replace_all_uses_with(operand)
                module.graph.erase_node(node)
                if module is exported.graph_module:
                    exported.graph_signature.replace_all_uses(node.name, operand.name)


def aliasing(exported: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions of operators that return an operand's memory, and do not say so."""
    every, found = decompositions(), dict[Any, Callable[..., Any]]()
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if isinstance(node.target, torch._ops.OpOverload) and node.target in every and _is_alias(node):
                found[node.target] = every[node.target]
    return found


def _is_alias(node: Node) -> bool:
    """Return whether a result of an operator has the memory of an operand."""
    given = {memory_of(each) for each in node.all_input_nodes if is_tensor(each)}
    values = (each for each in _pytree.tree_leaves(node.meta.get("val")) if isinstance(each, torch.Tensor))
    return any(each.layout is torch.strided and each.untyped_storage()._cdata in given for each in values)


@cache
def decompositions() -> Any:
    """Return PyTorch's decompositions of all operators."""
    return torch.export.default_decompositions()


def refuse_shared_writes(module: torch.nn.Module) -> None:
    """Raise NotImplementedError for a write to an expanded tensor: PyTorch's functional graph adds it up instead."""
    for node in module.graph.nodes if isinstance(module, GraphModule) else ():
        if node.op != "call_function" or not writes(node) or not is_tensor(node.args[0]):
            continue
        value = node.args[0].meta["val"]
        if any(stride == 0 and size != 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
            raise NotImplementedError(f"`{node.name}` writes to elements that share memory")


def refuse_changed_shapes(module: torch.nn.Module) -> None:
    """Raise NotImplementedError if an input has another shape or other strides at the end, as after ``input.t_()``."""
    changed: dict[Node, Node] = {}
    for node in module.graph.nodes if isinstance(module, GraphModule) else ():
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.inplace_view in node.target.tags:
            root = node
            while root.op == "call_function" and writes(root):
                root = root.args[0]
            if root.op == "placeholder":
                changed[root] = node
    for root, node in changed.items():
        before, now = root.meta["val"], node.meta["val"]
        if before.dim() != now.dim() or not all_same((*before.shape, *before.stride()), (*now.shape, *now.stride())):
            raise NotImplementedError(f"`{node.name}` changes the shape of `{root.name}`, and no graph can")


def writes(node: Node) -> bool:
    """Return whether an operator writes to an operand."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


__all__ = ["aliasing", "decompositions", "name_aliases", "refuse_changed_shapes", "refuse_shared_writes", "writes"]
