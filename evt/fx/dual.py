"""Two products of one operand, or the halves of one product, in one kernel: ``pair_products(graph, devices)``.

Gated units have such products, or such a product.

The second product becomes :func:`evt.fx.stand_in.beside`, which reads the first one. So the region of the first product
may compute it, as ``matmul(A, up)`` of its program. :func:`part` makes it a separate product again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch.fx import Graph, Node

from evt.fx.aten import base_name, dtype_of, is_tensor, operator_name, shape_of
from evt.fx.halves import divide, is_half, join
from evt.fx.index_map import all_same, same
from evt.fx.op_semantics import Applied, operands_of, semantics
from evt.fx.product import Product, find_product
from evt.fx.stand_in import beside, normed, stand, undo
from evt.fx.stand_in import operands_of as stands_for
from evt.fx.views import base_of, is_view

#: The most operators between a product and the multiplication of both.
_MOST_OPERATORS = 16
_TYPES = (torch.float16, torch.bfloat16)
#: The columns whose rows TMA stores.
_ALIGNED = 8


def pair_products(graph: Graph, devices: Collection[str]) -> list[Node]:
    """Let the first of two products of one operand compute the second, if a product of their elements reads both.

    Return the second products.
    """
    halves = divide(graph, devices)
    found = list[Node]()
    taken = set[Node]()
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if operator_name(node) != "mul.Tensor" or len(node.all_input_nodes) != 2:
            continue
        sources = [list(_products_of(each)) for each in node.all_input_nodes]
        if any(len(each) != 1 for each in sources) or sources[0] == sources[1]:
            continue
        first, second = sorted((each for (each,) in sources), key=order.__getitem__)
        if not taken.isdisjoint((first, second)) or node.meta["val"].device.type not in devices:
            continue
        if (operands := _shared(first, second)) is not None:
            stand(second, beside, (first, *operands))
            taken |= {first, second}
            found.append(second)
    for second in halves:
        if second not in taken:
            join(second)
    return found


def part(second: Node) -> Node:
    """Let a second product be computed apart from the first one; return the first one, or the whole of two halves."""
    (first,) = second.all_input_nodes[:1]
    undo(second)
    return join(second) if is_half(second) else first


def _products_of(node: Node) -> Iterator[Node]:
    """Yield the products that elementwise operators compute a value from; nothing if there are too many operators."""
    found, stack, seen = list[Node](), [node], set[Node]()
    while stack:
        each = stack.pop()
        if each in seen or not is_tensor(each):
            continue
        seen.add(each)
        if len(seen) > _MOST_OPERATORS:
            return
        if base_name(each) in ("mm", "addmm") or each.target is normed:
            found.append(each)
        elif is_view(each):
            stack += each.all_input_nodes
        elif isinstance(known := semantics(each), Applied | Node):
            stack += operands_of(known)
    yield from found


def _shared(first: Node, second: Node) -> tuple[Node, Node | None, Node | None] | None:
    """Return the second product's weight, factor of rows and bias, if both products read one operand alike."""
    a, b = find_product(first), find_product(second)
    if not isinstance(a, Product) or not isinstance(b, Product):
        return None
    if not _is_one(a.a, b.a) or {a.alpha, b.alpha} != {1}:
        return None
    if dtype_of(first) not in _TYPES or {dtype_of(each) for each in (a.a, a.b, b.b, second)} != {dtype_of(first)}:
        return None
    columns = shape_of(first)[-1]
    if not all_same(shape_of(a.b), shape_of(b.b)) or not isinstance(columns, int) or columns % _ALIGNED:
        return None
    if any(not same(each.meta["val"].stride(0), 1) for each in (a.b, b.b)):  # along k
        return None
    one, other = stands_for(first), stands_for(second)
    if one is None and other is None:
        if any(term.factor != 1 or not all_same(shape_of(term.value), (columns,)) for term in b.terms):
            return None
        return b.b, None, b.terms[0].value if b.terms else None
    if one is None or other is None:
        return None
    (x, _, rstd, mean, *_), (same_x, _, factor, other_mean, _, constant) = one, other
    alike = _is_one(x, same_x) and _is_one(rstd, factor) and mean is other_mean is None
    return (b.b, factor, constant) if alike else None


def _is_one(one: Node | None, other: Node | None) -> bool:
    """Return whether two nodes show the same elements of a tensor."""
    if one is None or other is None:
        return False
    shown = [(each.shape, each.stride(), each.storage_offset()) for each in (one.meta["val"], other.meta["val"])]
    return base_of(one) is base_of(other) and shown[0] == shown[1]


__all__ = ["pair_products", "part"]
