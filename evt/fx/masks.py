"""Attention without masks that keep everything: ``drop_masks(module)``, on a graph of Dynamo's.

Models create masks of constants. PyTorch takes no fused attention for a mask whose last dimension is expanded: it
multiplies in float32, and keeps the scores in memory. A mask that keeps everything is no mask.
"""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Interpreter, Node

#: The most bytes of a constant that is computed here.
_LARGEST = 1 << 24
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_MASK = "attn_mask"
#: The place of the mask among positional arguments.
_PLACE = 3
#: Functions and methods without side effects, of which models make masks.
_FUNCTIONS = frozenset(
    (torch.arange, torch.full, torch.ones, torch.zeros, torch.logical_and, torch.logical_or, torch.where)
    + (operator.add, operator.sub, operator.and_, operator.or_, operator.invert, operator.getitem)
    + (operator.eq, operator.ge, operator.gt, operator.le, operator.lt, operator.ne)
)
_METHODS = frozenset(("bool", "contiguous", "expand", "new_ones", "reshape", "to", "unsqueeze", "view"))


def drop_masks(module: GraphModule) -> None:
    """Call attention without its mask where the mask is constant and keeps everything."""
    kept = dict[Node, bool]()
    constants = _constants(module)
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=_ATTENTION):
        mask = node.kwargs.get(_MASK, node.args[_PLACE] if len(node.args) > _PLACE else None)
        if mask not in constants:
            continue
        if mask not in kept:
            kept[mask] = _keeps_everything(module, mask)
        if kept[mask]:
            node.args = tuple(None if place == _PLACE else each for place, each in enumerate(node.args))
            node.kwargs = {**node.kwargs, **({_MASK: None} if _MASK in node.kwargs else {})}
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _constants(module: GraphModule) -> set[Node]:
    """Return the small functions of constants that only each other and attention read: nothing writes to them."""
    found = set[Node]()
    for node in module.graph.nodes:
        known = _FUNCTIONS if node.op == "call_function" else _METHODS if node.op == "call_method" else ()
        if node.target in known and found.issuperset(node.all_input_nodes) and _is_small(node):
            found.add(node)
    while others := {each for each in found if not _is_closed(each, found)}:
        found -= others
    return found


def _is_closed(node: Node, among: Set[Node]) -> bool:
    """Return whether a node reads only nodes of a set, and only they and attention read it."""
    return among.issuperset(node.all_input_nodes) and all(
        user in among or user.target is _ATTENTION for user in node.users
    )


def _is_small(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and _is_fixed(value) and value.untyped_storage().nbytes() <= _LARGEST


def _is_fixed(value: torch.Tensor) -> bool:
    """Return whether no size of a tensor is symbolic."""
    return all(isinstance(each, int) for each in (*value.shape, *value.stride()))


def _keeps_everything(module: GraphModule, mask: Node) -> bool:
    """Return whether a constant mask keeps everything: it is true, or adds zeros."""
    wanted = {mask}
    for node in reversed(module.graph.nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    values = dict[Node, Any]()
    with unset_fake_temporarily(), torch.device("cpu"):
        run = Interpreter(module)
        for node in module.graph.nodes:
            if node in wanted:
                args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                keywords = {name: "cpu" if name == "device" else each for name, each in keywords.items()}
                values[node] = getattr(run, node.op)(node.target, args, keywords)
    found: torch.Tensor = values[mask]
    return bool(found.all() if found.dtype == torch.bool else not found.any())


__all__ = ["drop_masks"]
