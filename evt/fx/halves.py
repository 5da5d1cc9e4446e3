"""Products whose halves of columns are multiplied, as two products: ``divide(graph, devices)``.

Gated units often have one weight: ``gate, up = (x @ W + b).chunk(2, -1)``. The halves are products of slices of the
weight and of the bias, which stay where they are. So one kernel may compute both, and the function of both: see
:mod:`evt.fx.dual`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name, is_tensor, operator_name, shape_of
from evt.fx.index_map import all_same, same
from evt.fx.op_semantics import Applied, semantics
from evt.fx.sizes import shaped
from evt.fx.views import RESHAPES, base_of, is_view

aten = torch.ops.aten
#: The key in ``node.meta`` of a second half, with the first half.
_OTHER = "evt_other_half"


def divide(graph: Graph, devices: Collection[str]) -> list[Node]:
    """Divide products that nothing reads but their halves, and a multiplication of these; return the second halves."""
    _write_units(graph, devices)
    found = []
    for node in filter(_is_product, list(graph.nodes)):
        views = _halves(node) if node.meta["val"].device.type in devices else None
        if views is None or not _are_multiplied(*views):
            continue
        columns = shape_of(node)[1] // 2
        with graph.inserting_before(node):
            first, second = (_half(node, start, start + columns) for start in (0, columns))
        second.meta[_OTHER] = first
        for half, shown in zip((first, second), views, strict=True):
            for view in shown:
                with graph.inserting_before(view):
                    view.replace_all_uses_with(shaped(graph, half, shape_of(view)))
        found.append(second)
    graph.eliminate_dead_code()
    return found


def is_half(node: Node) -> bool:
    """Return whether a node is the second half of a product."""
    return _OTHER in node.meta


def join(second: Node) -> Node:
    """Put a divided product back, and return it."""
    graph, first, columns = second.graph, second.meta[_OTHER], shape_of(second)[1]
    *bias, x, weight = first.args
    with graph.inserting_before(first):
        whole = _call(first, first.target, *(each.args[0] for each in bias), x, weight.args[0])
    for half, start in ((first, 0), (second, columns)):
        with graph.inserting_before(half):
            half.replace_all_uses_with(_call(half, aten.slice.Tensor, whole, 1, start, start + columns))
        *bias, _, weight = half.args
        graph.erase_node(half)
        for part in (*bias, weight):
            graph.erase_node(part)
    return whole


def _write_units(graph: Graph, devices: Collection[str]) -> None:
    """Write gated linear units of products, ``glu(x)``, as the product of a half and the sigmoid of the other half."""
    for node in graph.find_nodes(op="call_function", target=aten.glu.default):
        arguments = Arguments(node)
        x, dim = arguments["self"], arguments["dim"]
        size = shape_of(node)[dim]
        if isinstance(size, int) and _is_product(base_of(x)) and node.meta["val"].device.type in devices:
            with graph.inserting_before(node):
                one, other = (_call(node, aten.slice.Tensor, x, dim, start, start + size) for start in (0, size))
                made = _call(node, aten.mul.Tensor, one, _call(node, aten.sigmoid.default, other))
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _is_product(node: Node) -> bool:
    """Return whether a node is a product, alone or with a bias for each column."""
    if node.target is aten.addmm.default:
        bias = Arguments(node).first
        return not node.kwargs and bias is not None and all_same(shape_of(bias), shape_of(node)[1:])
    return node.target is aten.mm.default


def _half(node: Node, start: int, end: int) -> Node:
    """Return the product of some columns."""
    *bias, x, weight = node.args
    biases = [_call(node, aten.slice.Tensor, each, 0, start, end) for each in bias]
    part = _call(node, aten.slice.Tensor, weight, 1, start, end)
    return _call(node, node.target, *biases, x, part)


def _call(like: Node, target: Any, *arguments: Any) -> Node:
    """Return an operator with the source line of a node."""
    made = like.graph.call_function(target, arguments)
    made.meta = {name: value for name, value in like.meta.items() if name == "stack_trace"}
    made.meta["val"] = target(*(each.meta["val"] if isinstance(each, Node) else each for each in arguments))
    return made


def _halves(product: Node) -> tuple[list[Node], list[Node]] | None:
    """Return the views of the first and of the second half of a product's columns, None if anything else reads it."""
    columns = shape_of(product)[1]
    if not isinstance(columns, int) or columns % 2:
        return None
    found: tuple[list[Node], list[Node]] = [], []
    stack = list(product.users)
    while stack:
        view = stack.pop()
        if not is_view(view):
            return None
        is_list = not is_tensor(view)
        if is_list or (base_name(view) in RESHAPES and same(shape_of(view)[-1], columns)):
            stack += view.users
            continue
        value, operand = view.meta["val"], view.args[0]
        whole = shape_of(operand if is_tensor(operand) else operand.args[0])  # type: ignore[union-attr, arg-type]
        start = value.storage_offset()
        if start not in (0, columns // 2) or not all_same(value.shape, (*whole[:-1], columns // 2)):
            return None
        if not same(whole[-1], columns) or not same(value.stride(-1), 1):
            return None
        found[bool(start)].append(view)
    return found if all(found) else None


def _are_multiplied(one: Iterable[Node], other: Iterable[Node]) -> bool:
    """Return whether an operator multiplies elementwise functions of both halves."""
    return any(operator_name(node) == "mul.Tensor" for node in _functions(one) & _functions(other))


def _functions(nodes: Iterable[Node]) -> set[Node]:
    """Return the elementwise operators and views that read nodes, directly or through others."""
    found, stack = set[Node](), list(nodes)
    while stack:
        for user in stack.pop().users:
            if user not in found and (is_view(user) or isinstance(semantics(user), Applied | Node)):
                found.add(user)
                stack.append(user)
    return found


__all__ = ["divide", "is_half", "join"]
