"""The effect of views on index maps: ``follow(node, index_map) -> IndexMap | None``."""

from __future__ import annotations

import operator

from torch.fx import Node

from evt.fx.aten import base_name, is_tensor, shape_of
from evt.fx.index_map import IndexMap, all_same, same

#: Views that keep the order of elements; ``_PARTS`` do so if they keep the number of elements.
RESHAPES = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "_reshape_alias")
_PARTS = ("slice", "expand", "select", "narrow", "diagonal", "split", "split_with_sizes", "chunk", "unbind")
_PERMUTATIONS = ("permute", "transpose", "t", "numpy_T", "mT", "swapaxes")
_VIEWS = frozenset((*RESHAPES, *_PARTS, *_PERMUTATIONS))
#: Operators that read or reinterpret memory and not elements.
MEMORY = ("as_strided", "as_strided_scatter", "view_as_real", "view_as_complex", "view.dtype")
#: Operators whose operands Inductor copies if their strides differ from the trace: matrix products, and attention by
#: the beginning of its names.
_MATRICES = ("mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm")
_ATTENTION = "_scaled_dot_product"


def is_view(node: Node) -> bool:
    """Return whether a node is a view, or a list of views, of its first operand's memory."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_view(node.args[0])
    return base_name(node) in _VIEWS


def base_of(node: Node) -> Node:
    """Return the tensor whose memory a node has: the base of a chain of views, else the node."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


class Sources(dict[Node, Node]):
    """The tensor whose memory each node has: the base of a view or of a chain of views, else the node."""

    def __missing__(self, node: Node) -> Node:
        views = []
        while node not in self and is_view(node):
            views.append(node)
            node = node.all_input_nodes[0]
        found = self.get(node, node)
        self.update(dict.fromkeys((*views, node), found))
        return found


def is_arranged(node: Node) -> bool:
    """Return whether a node copies its operand into the memory order that a matrix product or attention reads."""
    if base_name(node) != "clone":
        return False
    names = map(base_name, readers(node))
    if not any(name in _MATRICES or name.startswith(_ATTENTION) for name in names):
        return False
    (operand,) = node.all_input_nodes
    return not all(map(same, operand.meta["val"].stride(), node.meta["val"].stride()))


def readers(node: Node) -> set[Node]:
    """Return the operators that read a node's elements, directly or through views."""
    found: set[Node] = set()
    views = [node]
    while views:
        for user in views.pop().users:
            if is_view(user):
                views.append(user)
            else:
                found.add(user)
    return found


def follow(node: Node, index_map: IndexMap) -> IndexMap | None:
    """Return the index map of a view, or None if it shows a part of the value or mixes modes."""
    name = base_name(node)
    if not is_tensor(node) or node.target is operator.getitem:
        return None
    if name in _PERMUTATIONS:
        return index_map.permute(permutation(node))
    if name in _PARTS and not _has_all(node, index_map):
        return None
    return index_map.view(shape_of(node))


def permutation(node: Node) -> tuple[int, ...]:
    """Return the dimensions of the operand in the order of a permutation's result."""
    assert isinstance(node.args[0], Node)
    rank = len(shape_of(node.args[0]))
    name = base_name(node)
    if name == "permute":
        return tuple(int(place) % rank for place in node.args[1])  # type: ignore[union-attr, arg-type]
    order = list(range(rank))
    first, second = node.args[1:3] if name in ("transpose", "swapaxes") else (-2, -1)
    if rank > 1:
        x, y = int(first) % rank, int(second) % rank  # type: ignore[arg-type]
        order[x], order[y] = order[y], order[x]
    return tuple(order)


def keeps_order(node: Node) -> bool:
    """Return whether a view that has all elements of its operand has them in the operand's order."""
    if base_name(node) not in _PERMUTATIONS:
        return True
    long = [place for place, size in zip(permutation(node), shape_of(node), strict=True) if not same(size, 1)]
    return long == sorted(long)


def _has_all(node: Node, index_map: IndexMap) -> bool:
    """Return whether a view that may drop or repeat elements has each element once."""
    shape = [size for size in shape_of(node) if not same(size, 1)]
    before = [dim.size for dim in index_map.dims if dim.mode]
    return all_same(shape, before)


__all__ = [
    "MEMORY",
    "RESHAPES",
    "Sources",
    "base_of",
    "follow",
    "is_arranged",
    "is_view",
    "keeps_order",
    "permutation",
    "readers",
]
