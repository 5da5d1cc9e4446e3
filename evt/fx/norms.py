"""Norms inside the products that read them: ``apply_norms(graph)``; ``restore(graph)`` undoes the rest.

A norm ``(x - mean) * rstd * g + b`` before a product with constant weights is a row factor and a correction of rank one
in the product's epilogue:

    product = rstd * (x @ weight - mean * sums) + constant

:mod:`evt.runtime.folded` makes ``weight``, ``sums`` and ``constant`` from parameters. Any row vectors may be in the
places of ``mean`` and ``rstd``: the algebra does not depend on how they are computed. The product reads x as it lies in
memory, so the normalised tensor disappears with its last reader.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name, dtype_of, is_tensor, operator_name, shape_of
from evt.fx.group_norms import apply_by_channels
from evt.fx.index_map import all_same
from evt.fx.moments import ROUNDED, join_moments, uncast
from evt.fx.sizes import shaped
from evt.fx.skip_reason import SkipReason
from evt.fx.stand_in import normed, operands_of, stand, undo
from evt.fx.views import base_of, is_view, readers
from evt.runtime.folded import Fold, shapes, text_of

aten = torch.ops.aten
#: The code of a norm that stays a kernel of Inductor's.
STAYS = "E1024"
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_PRODUCTS = ("mm", "addmm")
_REDUCTIONS = ("mean", "var", "sum")


def folding(*_: Any) -> Any:
    """Stand for a :class:`Fold` in a graph: weight, gain, shift and bias, or None; contraction, centred, offset."""
    raise AssertionError("a pass replaces it")


@dataclass(frozen=True)
class Norm:
    """A norm ``(x - mean) * rstd * (gain + offset) + shift``; ``centred``: the mean is the mean of x."""

    x: Node
    rstd: Node
    mean: Node | None
    centred: bool
    gain: Node | None
    offset: float
    shift: Node | None


@dataclass(frozen=True)
class Candidate:
    """A norm that could be part of the products that read it: its operand, the products and their weights.

    ``has_mean``: it subtracts a mean. ``is_made``: a product makes the operand, so it could give the statistics.
    """

    norm: Node
    x: Node
    products: Sequence[Node]
    weights: Sequence[Node]
    has_mean: bool = False
    is_made: bool = False


@dataclass(frozen=True)
class Applied:
    """A norm that is part of the products that read it. ``added``: additions read it as well.

    The regions of these additions have to compute the norm again from its operand. ``statistics`` are the reductions of
    the operand.
    """

    norm: Node
    products: tuple[Node, ...]
    added: bool
    statistics: tuple[Node, ...]

    def holds(self, products: Set[Node], computed: Set[Node]) -> bool:
        """Return whether regions compute all products, and the norm again for its other readers."""
        mine = {*self.products}
        again = not self.added or self.norm in computed or readers(self.norm) <= mine
        return products >= mine and again

    def is_made(self, computed: Set[Node]) -> bool:
        """Return whether a region computes the statistics."""
        return all(each in computed for each in self.statistics)


def apply_norms(
    graph: Graph, judge: Callable[[Candidate], str] = lambda _: ""
) -> tuple[list[Applied], dict[Node, SkipReason]]:
    """Let products with constant weights read the operands of norms, where only they and additions read a norm.

    Return these norms, and by product why its norm stays a kernel of Inductor's (E1024). ``judge`` returns a reason
    against a norm, or "".
    """
    graph.eliminate_dead_code()  # its operators read nothing
    made, left = list[Applied](), dict[Node, SkipReason]()
    for node in list(graph.nodes):
        if not _is_last(node):
            continue
        norm = _norm(node)
        if norm is None:
            continue
        known = readers(node)
        sums = {each for each in known if operator_name(each) == "add.Tensor"}
        products = tuple(each for each in graph.nodes if each in known and base_name(each) in _PRODUCTS)
        weights = [found[0] for each in products if (found := _weights(each, node)) is not None]
        other = next((each for each in graph.nodes if each in known - sums and each not in products), None)
        if other is not None:
            reason = f"`{other.name}` reads the norm too"
        elif dtype_of(node) == torch.float32 and node.meta["val"].is_cuda:
            # tensor cores round x to tf32, and with it a mean that is not subtracted yet
            reason = "tensor cores would round x in float32 before its mean is subtracted"
        elif len(weights) < len(products):
            reason = "the weight of a product that reads the norm is no parameter"
        else:
            reason = judge(Candidate(node, norm.x, products, weights, norm.mean is not None, _is_made(norm.x)))
        if reason:
            left |= {
                each: SkipReason(node, STAYS, f"the norm is a kernel of Inductor's: {reason}") for each in products
            }
            continue
        norm.x.meta[ROUNDED] = True
        for each in products:
            _apply(graph, each, norm)
        made.append(Applied(node, products, bool(sums), tuple(_statistics(norm))))
    return made, left


def restore(graph: Graph, frozen: bool = False) -> Node | None:
    """Put the operators back that no region computes: products that others stand for, and joint variances and means.

    Return the one operator that folds the weights of all other norms, if there are any. ``frozen``: see
    :func:`evt.runtime.folded.fold_norms`.
    """
    for node in list(graph.nodes):
        while operands_of(node) is not None:
            undo(node)
    join_moments(graph)
    apply_by_channels(graph)
    graph.eliminate_dead_code()
    return _fold_together(graph, frozen)


def is_aside(node: Node) -> bool:
    """Return whether only products that take a norm in depend on a node, and only to be restored."""
    stack, seen = [node], {node}
    while stack:  # graphs are deeper than Python's stack
        each = stack.pop()
        if not each.users:
            return False
        for user in each.users:
            operands = operands_of(user)
            if operands is not None and each in operands:
                return False
            if operands is None and user not in seen:
                seen.add(user)
                stack.append(user)
    return True


def reads_aside(user: Node, node: Node) -> bool:
    """Return whether a user of a node depends on it only to be restored: see :func:`is_aside`."""
    operands = operands_of(user)
    return is_aside(user) if operands is None else node not in operands


def _fold_together(graph: Graph, frozen: bool) -> Node | None:
    """Replace all folds of a graph by one operator, and return it."""
    found = graph.find_nodes(op="call_function", target=folding)
    if not found:
        return None
    tensors = list(dict.fromkeys(operand for node in found for operand in node.all_input_nodes))
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    for each in tensors:
        if each.op == "get_attr":
            first.prepend(each)
    folds = []
    for node in found:
        *given, dim, centred, offset = node.args
        places = (-1 if each is None else tensors.index(each) for each in given)
        folds.append(Fold(*places, dim, centred, offset))  # type: ignore[call-arg, arg-type]
    text = text_of(folds, [each.meta["val"] for each in tensors])
    with graph.inserting_before(first):
        every = graph.call_function(torch.ops.evt.fold_norms.default, (tensors, text, frozen))
        every.meta["val"] = [value for node in found for value in node.meta["val"]]
        for place, node in enumerate(found):
            for user in list(node.users):
                part = graph.call_function(operator.getitem, (every, 3 * place + user.args[1]))
                part.meta = dict(user.meta)
                user.replace_all_uses_with(part)
                graph.erase_node(user)
            graph.erase_node(node)
    return every


def _is_last(node: Node) -> bool:
    """Return whether a node may be the result of a norm: a tensor that products read through views."""
    if not is_tensor(node) or is_view(node) or node.op != "call_function" or dtype_of(node) not in _TYPES:
        return False
    return any(base_name(reader) in _PRODUCTS for reader in readers(node))


#: The most elementwise operators after a product for which it could give the statistics of their result.
_MOST_OPERATORS = 4


def _is_made(x: Node) -> bool:
    """Return whether a product makes a tensor, through views and a few elementwise operators."""
    found = {x}
    for _ in range(_MOST_OPERATORS):
        if any(base_name(each) in _PRODUCTS or each.target is normed for each in found):
            return True
        found = {operand for each in found for operand in each.all_input_nodes if is_tensor(operand)}
    return False


def _statistics(norm: Norm) -> Iterator[Node]:
    """Yield the reductions from which a norm's factor and mean are computed."""
    stack = [norm.rstd] if norm.mean is None else [norm.rstd, norm.mean]
    while stack:
        node = stack.pop()
        if base_name(node) in _REDUCTIONS:
            yield node
        else:
            stack += [each for each in node.all_input_nodes if is_tensor(each)]


# The norm.


def _norm(node: Node) -> Norm | None:
    """Return the norm that a node computes, or None."""
    shape, dtype = shape_of(node), dtype_of(node)
    row = (*shape[:-1], 1)
    full, shift = uncast(node), None
    if operator_name(full) == "add.Tensor":
        parts = _operands(full)
        vectors = [each for each in parts if _is_vector(each, shape)]
        if len(parts) != 2 or len(vectors) != 1 or Arguments(full)["alpha"] != 1:
            return None
        shift = _constant(vectors[0])
        if shift is None:
            return None
        full = next(each for each in parts if each is not vectors[0])
    rows, gains, tensors = list[Node](), list[Node](), list[Node]()
    for factor in _factors(full, shape, True):
        kind = rows if all_same(shape_of(factor), row) else gains if _is_vector(factor, shape) else tensors
        kind.append(factor)
    if len(rows) != 1 or len(tensors) != 1 or len(gains) > 1 or not _is_root(rows[0]):
        return None
    gain, offset = (_gain(gains[0]) if gains else (None, 0.0)) or (None, -1.0)
    if gains and gain is None:
        return None
    x, mean = uncast(tensors[0]), None
    if operator_name(x) == "sub.Tensor" and Arguments(x)["alpha"] == 1 and len(_operands(x)) == 2:
        x, mean = _operands(x)
        x = uncast(x)
        if not all_same(shape_of(mean), row):
            return None
    if not all_same(shape_of(x), shape) or dtype_of(x) != dtype or isinstance(shape[-1], torch.SymInt):
        return None
    return Norm(x, rows[0], mean, mean is not None and _is_mean(mean, x), gain, offset, shift)


def _operands(node: Node) -> list[Node]:
    """Return the tensors of a binary operator; one of them if the other is a number."""
    return [each for each in node.args[:2] if is_tensor(each)]


def _factors(node: Node, shape: tuple[Any, ...], is_norm: bool = False) -> Iterator[Node]:
    """Yield the factors of a tensor; x itself, which its statistics read too, is one factor."""
    stack = [node]
    while stack:
        each = uncast(stack.pop())
        product = operator_name(each) == "mul.Tensor" and len(_operands(each)) == 2 and all_same(shape_of(each), shape)
        if product and (is_norm or len(each.users) == 1):
            stack += reversed(_operands(each))
        else:
            yield each
        is_norm = False


def _is_vector(node: Node, shape: tuple[Any, ...]) -> bool:
    return all_same(shape_of(node), shape[-1:])


def _is_root(node: Node) -> bool:
    """Return whether a value is ``1 / sqrt(y)``."""
    node = uncast(node)
    if operator_name(node) == "pow.Tensor_Scalar":
        return bool(node.args[1] == -0.5)
    return base_name(node) == "rsqrt" or (
        base_name(node) == "reciprocal" and base_name(node.all_input_nodes[0]) == "sqrt"
    )


def _is_mean(node: Node, x: Node) -> bool:
    """Return whether a value is the mean of the last dimension of x."""
    if operator_name(node) != "mean.dim" or uncast(node.all_input_nodes[0]) is not x:
        return False
    dims = node.args[1]
    return isinstance(dims, list | tuple) and tuple(dims) in ((-1,), (len(shape_of(x)) - 1,))


def _constant(node: Node) -> Node | None:
    """Return a parameter: an input of the graph or an attribute, before conversions."""
    node = uncast(node)
    return node if node.op in ("placeholder", "get_attr") else None


def _gain(node: Node) -> tuple[Node, float] | None:
    """Return the parameter and the number of ``g`` or ``1 + g``."""
    node = uncast(node)
    if base_name(node) == "add" and len(_operands(node)) == 1:
        (inner,) = _operands(node)
        number = next((each for each in node.args[:2] if isinstance(each, int | float)), None)
        found = _constant(inner)
        return (found, float(number)) if found is not None and number is not None and not node.kwargs else None
    found = _constant(node)
    return None if found is None else (found, 0.0)


# The products.


def _weights(product: Node, norm: Node) -> tuple[Node, int, Node | None] | None:
    """Return the weight, its contraction and the bias of a product that a norm can be folded into, or None."""
    bias = None
    if base_name(product) == "addmm":
        bias, a, b = product.args
        factors = {name: Arguments(product)[name] for name in ("beta", "alpha")}
        if set(factors.values()) != {1} or _constant(bias) is not bias or len(shape_of(bias)) != 1:  # type: ignore[arg-type]
            return None
    elif base_name(product) == "mm":
        a, b = product.args
    else:
        return None
    assert isinstance(a, Node)
    assert isinstance(b, Node)
    while is_view(a) and base_name(a) in ("view", "reshape", "_unsafe_view"):
        a = a.all_input_nodes[0]
    turned = base_name(b) in ("permute", "t", "transpose")
    weight = b.all_input_nodes[0] if turned else b
    if a is not norm or _constant(weight) is not weight or dtype_of(weight) != dtype_of(norm):
        return None
    if Arguments(product)["out_dtype"] is not None or len(shape_of(weight)) != 2:
        return None
    return weight, 1 if turned else 0, bias  # type: ignore[return-value]


def _apply(graph: Graph, product: Node, norm: Norm) -> None:
    """Let a product read the norm's operand."""
    a, b = product.args[-2:]
    assert isinstance(a, Node)
    assert isinstance(b, Node)
    found = _weights(product, base_of(a))
    assert found is not None
    weight, dim, bias = found
    rows = (shape_of(a)[0], 1)
    with graph.inserting_before(product):
        folded = graph.call_function(folding, (weight, norm.gain, norm.shift, bias, dim, norm.centred, norm.offset))
        folded.meta["val"] = shapes(weight.meta["val"], dim)
        parts = [graph.call_function(operator.getitem, (folded, place)) for place in range(3)]
        for part, each in zip(parts, folded.meta["val"], strict=True):
            part.meta["val"] = each
        made, sums, constant = parts
        if dim == 1:
            turned = graph.call_function(aten.permute.default, (made, [1, 0]))
            turned.meta["val"] = made.meta["val"].permute(1, 0)
            made = turned
        x, rstd = shaped(graph, norm.x, shape_of(a)), shaped(graph, norm.rstd, rows)
        mean = None if norm.mean is None else shaped(graph, norm.mean, rows)
        has_constant = norm.shift is not None or bias is not None
        operands = (x, made, rstd, mean, None if mean is None else sums, constant if has_constant else None)
    stand(product, normed, operands)


__all__ = [
    "STAYS",
    "Applied",
    "Candidate",
    "apply_norms",
    "is_aside",
    "reads_aside",
    "restore",
]
