"""Operators that stand for products of a graph while its regions are chosen: ``stand(node, target, operands)``.

A stand-in keeps its product's arguments, so that ``undo(node)`` puts the product back. A region
reads its ``operands`` in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

#: The key in ``node.meta`` of the operators that a node has stood for, the last one at the end.
_OWN = "evt_products"


def normed(*_: Any) -> Any:
    """Stand for a product of a norm: see :mod:`evt.fx.norms`."""
    raise AssertionError("a pass replaces it")


def beside(*_: Any) -> Any:
    """Stand for a product in the kernel of another product: see :mod:`evt.fx.dual`."""
    raise AssertionError("a pass replaces it")


def stand(node: Node, target: Callable[..., Any], operands: tuple[Node | None, ...]) -> None:
    """Let a node stand for the product that it is."""
    node.meta[_OWN] = (*node.meta.get(_OWN, ()), (node.target, node.kwargs))
    node.target, node.args, node.kwargs = target, (node.args, operands), {}


def undo(node: Node) -> None:
    """Put back the operator that a node stands for, the last one of several."""
    *before, (node.target, node.kwargs) = node.meta[_OWN]
    node.meta[_OWN] = tuple(before)
    node.args = node.args[0]  # type: ignore[assignment]


def operands_of(node: Node) -> tuple[Node | None, ...] | None:
    """Return the operands of a stand-in; None for other nodes."""
    return node.args[1] if node.target in (normed, beside) else None  # type: ignore[return-value]
