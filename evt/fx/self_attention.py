"""Decompose the self-attention of ``nn.MultiheadAttention``: ``divide_self_attention(module, devices)``, on Dynamo's
graph.

PyTorch's function copies queries, keys and values out of their common product, so that each is contiguous. Decomposed,
attention reads them where the product wrote them:

    packed = linear(x, weight, bias)                     [batch, rows, 3 * heads * length]
    query, key, value = heads of packed                  views
    result = linear(attention(query, key, value), ...)
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional

_WHOLE = functional.multi_head_attention_forward
_SIGNATURE = inspect.signature(_WHOLE)
#: Parameters that have to be None or False.
_ABSENT = (
    *("bias_k", "bias_v", "add_zero_attn", "key_padding_mask", "need_weights", "attn_mask"),
    *("use_separate_proj_weight", "static_k", "static_v", "is_causal"),
)


def divide_self_attention(module: GraphModule, devices: Collection[str]) -> None:
    """Decompose self-attention on some kinds of devices, if it has no mask and returns no attention weights."""
    for node in module.graph.find_nodes(op="call_function", target=_WHOLE):
        bound = _SIGNATURE.bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        x = arguments["query"]
        value = x.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or value.dim() != 3 or value.device.type not in devices:
            continue
        if x is not arguments["key"] or x is not arguments["value"] or any(map(arguments.__getitem__, _ABSENT)):
            continue
        if any(user.args[1] != 0 and user.users for user in node.users):
            continue
        with module.graph.inserting_before(node):
            result = _decomposed(module.graph, arguments)
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(result)
            module.graph.erase_node(user)
        module.graph.erase_node(node)


def _decomposed(graph: Graph, arguments: Mapping[str, Any]) -> Node:
    """Return the self-attention of rows [rows, batch, length] as products, views and attention of heads."""
    heads, dropout = arguments["num_heads"], arguments["dropout_p"] if arguments["training"] else 0.0
    x = graph.call_method("transpose", (arguments["query"], 0, 1))
    packed = graph.call_function(functional.linear, (x, arguments["in_proj_weight"], arguments["in_proj_bias"]))
    split = graph.call_method("unflatten", (packed, -1, (3, heads, arguments["embed_dim_to_check"] // heads)))
    inputs = {
        name: graph.call_method("transpose", (graph.call_method("select", (split, 2, place)), 1, 2))
        for place, name in enumerate(("query", "key", "value"))
    }
    attended = graph.call_function(functional.scaled_dot_product_attention, (), {**inputs, "dropout_p": dropout})
    rows = graph.call_method("flatten", (graph.call_method("transpose", (attended, 1, 2)), 2))
    result = graph.call_function(functional.linear, (rows, arguments["out_proj_weight"], arguments["out_proj_bias"]))
    return graph.call_method("contiguous", (graph.call_method("transpose", (result, 0, 1)),))  # a view may need it


__all__ = ["divide_self_attention"]
