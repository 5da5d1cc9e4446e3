"""Attention without constant masks: ``drop_masks(module) -> bool``, on a captured graph of ATen's operators, in place.

Models of transformers make masks only while PyTorch captures them, and repeat keys and values only beside a mask:

    a constant mask that keeps everything    is dropped
    a constant mask that is causal           is replaced by ``is_causal``
    keys and values repeated for each head   are read once (``enable_gqa``)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from evt.fx.aten import Arguments, base_name, shape_of
from evt.fx.attention import meaning_of_mask

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
#: The operators of a repetition, from the last one.
_REPETITION = (("_unsafe_view", "view", "reshape"), ("clone",), ("expand",), ("unsqueeze",))


def drop_masks(module: GraphModule) -> bool:
    """Drop the constant masks that attention can do without; return whether there are any."""
    constants, values, found = _constants(module), dict[Node, Any](), False
    for node in module.graph.find_nodes(op="call_function", target=_ATTENTION):
        known = Arguments(node).values
        mask = known["attn_mask"]
        meaning = meaning_of_mask(_value(mask, values)) if mask in constants else None
        if meaning is None:
            continue
        known |= meaning
        single = [_before_repetition(known[name]) for name in ("key", "value")]
        if all(single):
            known |= {"key": single[0], "value": single[1], "enable_gqa": True}
        node.args, node.kwargs = tuple(known.pop(name) for name in ("query", "key", "value")), known
        found = True
    module.graph.eliminate_dead_code()
    module.recompile()
    return found


def _constants(module: GraphModule) -> set[Node]:
    """Return the nodes whose values depend on no input, on no random number, and on no tensor of the module."""
    found = set[Node]()
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and found.issuperset(node.all_input_nodes):
            drawn = torch.Tag.nondeterministic_seeded in node.target.tags
            found |= set() if drawn or node.target._schema.is_mutable else {node}
    return found


def _value(node: Node, values: dict[Node, Any]) -> Any:
    """Return the value of a constant, and keep it in ``values``."""
    if node not in values:
        args, keywords = map_arg((node.args, node.kwargs), lambda each: _value(each, values))
        values[node] = node.target(*args, **keywords)  # type: ignore[operator]
    return values[node]


def _before_repetition(node: Node) -> Node | None:
    """Return heads [batch, heads, rows, length] if a node repeats each of them, or None."""
    (batch, heads, *rest), chain = shape_of(node), [node]
    for names in _REPETITION:
        if base_name(chain[-1]) not in names:
            return None
        chain.append(chain[-1].all_input_nodes[0])
    base = chain[-1]
    shapes = [shape_of(each) for each in chain]
    if len(shapes[-1]) != 4 or not shapes[-1][1]:
        return None
    single = shapes[-1][1]
    wanted = (batch, single, heads // single, *rest)
    return base if shapes[2] == wanted and shapes[3] == (batch, single, 1, *rest) else None


__all__ = ["drop_masks"]
