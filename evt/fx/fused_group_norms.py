"""Group norms, and SiLU after them, that one kernel computes: ``fuse_group_norms(graph, devices)``.

    var_mean, (x - mean)*rsqrt(var + eps)*gain + shift, silu  ->  evt::group_norm

Inductor computes the statistics of a group in up to three kernels, and applies the norm in a fourth one. The kernel of
:mod:`evt.runtime.group_norm` reads the image once. It takes norms that products and results read alone: Inductor's
kernel could apply a norm and compute its other readers at the same time.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name, dtype_of, is_tensor, operator_name, shape_of
from evt.fx.group_norms import call, image_of
from evt.fx.product import find_product
from evt.fx.views import readers
from evt.runtime import group_norm

aten = torch.ops.aten
GROUP_NORM = torch.ops.evt.group_norm.default
_VIEWS = ("view", "reshape")
_CAST = "convert_element_type.default"
_OF_VECTORS = (*_VIEWS, "unsqueeze")


@dataclass(frozen=True, slots=True)
class _Norm:
    """A group norm of an image: its last node, which has the image's type, and the operator's arguments."""

    last: Node
    image: Node
    gain: Node | None
    shift: Node | None
    groups: int
    epsilon: float
    is_silu: bool


def fuse_group_norms(graph: Graph, devices: Collection[str]) -> None:
    """Let one kernel compute the group norms of images that it can keep in shared memory."""
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="call_function", target=aten.var_mean.correction):
        norm = _norm(node)
        if norm is None or not _is_taken(norm, devices):
            continue
        with graph.inserting_before(norm.last):
            arguments = (norm.image, norm.gain, norm.shift, norm.groups, norm.epsilon, norm.is_silu)
            made = call(graph, GROUP_NORM, *arguments)
        norm.last.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _is_taken(norm: _Norm, devices: Collection[str]) -> bool:
    """Return whether the kernel computes a norm on its device, and no operator of Inductor's reads it."""
    device = norm.image.meta["val"].device
    gain = next((dtype_of(each) for each in (norm.gain, norm.shift) if each is not None), None)
    if device.type not in devices or (device.type == "cuda" and not group_norm.is_available(device)):
        return False
    if group_norm.kernel_for(shape_of(norm.image), dtype_of(norm.image), gain, norm.groups, norm.is_silu) is None:
        return False
    return all(each.op == "output" or find_product(each) is not None for each in readers(norm.last))


def _norm(both: Node) -> _Norm | None:
    """Return the norm whose variance and mean a node computes, or None."""
    arguments = Arguments(both)
    x, dims = arguments["self"], arguments["dim"]
    kept = image_of(x)
    if not kept or arguments["correction"] != 0 or not arguments["keepdim"] or tuple(dims or ()) != (2, 3):
        return None
    parts = {user.args[1]: user for user in both.users if user.target is operator.getitem}
    if len(parts) != len(both.users) or set(parts) != {0, 1}:
        return None
    added = _only_user(parts[0], "add.Tensor")
    if added is None or not isinstance(added.args[1], float) or added.kwargs:
        return None
    factor = _only_user(added, "rsqrt.default")
    centred = _only_user(parts[1], "sub.Tensor")
    if factor is None or centred is None or centred.args != (x, parts[1]) or centred.kwargs:
        return None
    product = _only_user(factor, "mul.Tensor")
    if product is None or set(product.args) != {centred, factor} or len(centred.users) != 1:
        return None
    image = kept[-1]
    node = _only_user(product, *_VIEWS)
    if node is None or shape_of(node) != shape_of(image):
        return None
    vectors = list[Node | None]()
    for name in ("mul.Tensor", "add.Tensor"):
        user, vector = _only_user(node, name), None
        if user is not None and not user.kwargs and user.args[0] is node:
            vector = _vector(user.args[1], shape_of(image)[1])
        vectors.append(vector)
        node = node if vector is None else user
        assert node is not None
    last = _only_user(node, _CAST)
    silu = _silu(node) if last is None else _silu(last)
    last = silu or last
    if last is None or dtype_of(last) != dtype_of(image) or len({dtype_of(each) for each in vectors if each}) > 1:
        return None
    gain, shift = vectors
    return _Norm(last, image, gain, shift, shape_of(x)[1], added.args[1], silu is not None)


def _silu(x: Node) -> Node | None:
    """Return the SiLU of a tensor, if nothing else reads the tensor: ``x / (1 + exp(-x))`` in f32, rounded.

    Inductor may have removed the conversion of x to 16 bits and back.
    """
    wide = x if dtype_of(x) == torch.float32 else _only_user(x, _CAST)
    if wide is None or dtype_of(wide) != torch.float32:
        return None
    negative = next((each for each in wide.users if operator_name(each) == "neg.default"), None)
    power = negative and _only_user(negative, "exp.default")
    total = power and _only_user(power, "add.Tensor")
    quotient = total and _only_user(total, "div.Tensor")
    if total is None or quotient is None or total.args[1] != 1 or set(wide.users) != {negative, quotient}:
        return None
    return _only_user(quotient, _CAST) if quotient.args == (wide, total) else None


def _vector(node: object, channels: int) -> Node | None:
    """Return the vector of channels that a tensor is a view of, or None."""
    if not is_tensor(node) or shape_of(node)[-3:] != (channels, 1, 1):
        return None
    while base_name(node) in _OF_VECTORS:
        node = node.all_input_nodes[0]
    return node if shape_of(node) == (channels,) else None


def _only_user(node: Node, *names: str) -> Node | None:
    """Return the only user of a node if it calls one of some operators, named with or without their overloads."""
    (user, *others) = node.users or [None]
    return user if user is not None and not others and {operator_name(user), base_name(user)} & set(names) else None


__all__ = ["GROUP_NORM", "fuse_group_norms"]
