"""Rematerialize results of regions in their consumers: ``rematerialize(graph, regions, once)``, in place.

Inductor's kernels compute elementwise operators as they read, for no extra bytes. If only such kernels read a result,
they get a copy of its operators where the inputs of the copy have fewer bytes; the region stores these inputs. For
example, a norm reads a float16 residual and casts it to float32 itself.

A norm of long rows reads its operand twice, in two loops. It gets no error function, which it would evaluate twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from evt.fx.aten import base_name, is_tensor, shape_of
from evt.fx.example import bytes_of, hint
from evt.fx.gradient import is_backward
from evt.fx.op_semantics import Reduced, number_of, semantics
from evt.fx.product import PADS, find_product
from evt.fx.region import FusionRegion
from evt.fx.views import Sources, is_view

#: The longest chain of operators that is rematerialized.
_DEEPEST = 8
#: The longest rows that a kernel of Inductor's keeps in registers; it reads longer ones again after their reduction.
_KEPT = 1024


def rematerialize(graph: Graph, regions: Iterable[FusionRegion], once: Set[Node]) -> None:
    """Rematerialize results of regions where the regions then store fewer bytes, except the tensors in ``once``."""
    regions = list(regions)
    owned = {node for region in regions for node in region.index_maps}
    sources = Sources()
    for region in regions:
        stored = set(region.outputs)
        for node in reversed(region.nodes):
            if node not in stored or not _is_elementwise(node, region, once):
                continue
            if not all(_is_loose(user, owned) for user in node.users if user not in region):
                continue
            again = _Again.of(node, region, stored, sources, once)
            if _is_looped(node, region) and any(base_name(each) == "erf" for each in again.copied):
                continue
            if sum(again.moved.values()) < 2 * bytes_of(node):
                _copy(graph, node, again.copied, region)
                stored.discard(node)
                stored.update(each for each in again.moved if each in region)
        _drop_unread(graph, region)


@dataclass
class _Again:
    """The bytes moved for the inputs of a rematerialized result, and the copied operators, in order."""

    moved: dict[Node, int] = field(default_factory=dict)
    copied: dict[Node, None] = field(default_factory=dict)

    @staticmethod
    def of(
        node: Node, region: FusionRegion, stored: Set[Node], sources: Sources, once: Set[Node], depth: int = 1
    ) -> _Again:
        found = _Again()
        for operand in node.all_input_nodes:
            if number_of(operand) is not None:
                continue
            if operand not in region:
                found.moved[operand] = bytes_of(sources[operand])
                continue
            moved = {operand: bytes_of(operand) * (1 if operand in stored else 2)}
            if depth < _DEEPEST and _is_elementwise(operand, region, once):
                inner = _Again.of(operand, region, stored, sources, once, depth + 1)
                if is_view(operand) or sum(inner.moved.values()) < moved[operand]:
                    moved = inner.moved
                    found.copied.update(inner.copied)
            found.moved.update(moved)
        found.copied[node] = None
        return found


def _is_elementwise(node: Node, region: FusionRegion, once: Set[Node]) -> bool:
    """Return whether an operator of a region is a view or elementwise, and not in ``once``."""
    if node is region.product.node or node in once or region.index_maps[node].reduced:
        return False
    return is_view(node) or not isinstance(semantics(node), Reduced)


def _is_loose(user: Node, owned: Set[Node]) -> bool:
    """Return whether only kernels of Inductor read a tensor through a reader, which may be a view or add zeros.

    A convolution's kernel adds the zeros itself, so it reads the tensor in front of them. The readers of a
    convolution's gradients are products, and the ``convolution_backward`` before them is none.
    """
    stack = [user]
    while stack:
        each = stack.pop()
        if each in owned or each.op != "call_function" or is_backward(each) or find_product(each) is not None:
            return False
        stack += each.users if is_view(each) or base_name(each) in PADS else ()
    return True


def _is_looped(node: Node, region: FusionRegion) -> bool:
    """Return whether outside of a region one operator reduces long rows of a result, and another one reads it, too."""
    readers = {user for user in node.users if user not in region and is_tensor(user)}
    return len(readers) > 1 and any(_elements(node) > _KEPT * _elements(user) for user in readers)


def _elements(node: Node) -> int:
    return math.prod(map(hint, shape_of(node)))


def _copy(graph: Graph, node: Node, copied: Iterable[Node], region: FusionRegion) -> None:
    """Let readers outside of a region read copies of its operators."""
    made: dict[Node, Node] = {}
    readers = {user for user in node.users if user not in region}
    place = node
    for each in copied:
        with graph.inserting_after(place):
            place = made[each] = graph.node_copy(each, lambda operand: made.get(operand, operand))
    node.replace_all_uses_with(made[node], delete_user_cb=readers.__contains__)


def _drop_unread(graph: Graph, region: FusionRegion) -> None:
    """Erase the nodes of a region that have lost their readers."""
    for node in reversed(region.nodes):
        if not node.users and node is not region.product.node:
            del region.index_maps[node]
            graph.erase_node(node)
