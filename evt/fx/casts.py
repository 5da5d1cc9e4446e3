"""The casts of autocast inside composite operators: ``cast_operands(module)``, in place.

torch.export records the casts before operators that autocast knows, such as ``linear``. It keeps composite operators
whole, such as ``einsum``, and autocast casts the operands of the products inside. PyTorch decomposes them later,
without autocast. Their operands get the casts here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

_16_BITS = (torch.bfloat16, torch.float16)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Run a captured graph, which contains the casts of autocast, without further casts."""
    with torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else nullcontext():
        yield


def cast_operands(module: torch.nn.Module) -> None:
    """Cast the f32 operands of composite operators whose results have 16 bits only under autocast.

    Raise NotImplementedError if such an operator does not give 16 bits for operands of 16 bits.
    """
    for each in module.modules():
        if not isinstance(each, GraphModule):
            continue
        for node in list(each.graph.nodes):
            recorded = _types(node.meta.get("val"))
            if not _casts(node, recorded) or _types(_computed(node)) == recorded:
                continue
            _cast(node, next(dtype for dtype in recorded if dtype in _16_BITS))
            if _types(_computed(node)) != recorded:
                raise NotImplementedError(f"autocast casts values inside of {node.target}")
            each.recompile()


def _casts(node: Node, recorded: Sequence[torch.dtype]) -> bool:
    """Return whether a composite operator has an f32 operand and a result of 16 bits."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._can_decompose():
        return False
    operands = _types([operand.meta.get("val") for operand in node.all_input_nodes])
    return torch.float32 in operands and any(dtype in _16_BITS for dtype in recorded)


def _cast(node: Node, dtype: torch.dtype) -> None:
    """Cast the f32 operands of a node."""

    def cast(operand: Node) -> Node:
        value = operand.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return operand
        with node.graph.inserting_before(node):
            made = node.graph.call_function(torch.ops.aten._to_copy.default, (operand,), {"dtype": dtype})
        made.meta["val"] = torch.ops.aten._to_copy.default(value, dtype=dtype)
        return made

    node.args, node.kwargs = map_arg(node.args, cast), map_arg(node.kwargs, cast)


def _types(values: Any) -> list[torch.dtype]:
    return [each.dtype for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _computed(node: Node) -> Any:
    """Return the value of a node without autocast; None if its operator refuses the types of its operands then."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    mode = detect_fake_mode(tree_leaves((args, kwargs)))
    assert callable(node.target)
    with without_autocast(), mode or nullcontext(), torch.no_grad(), suppress(RuntimeError):
        return node.target(*args, **kwargs)
    return None
