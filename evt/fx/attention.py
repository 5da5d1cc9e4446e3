"""Attention that PyTorch's fused kernels compute: ``simplify_attention(module, devices)``, on a graph of Dynamo's.

Models make masks while they are traced. PyTorch multiplies in float32, and keeps the scores in memory, if the last
dimension of a mask is not contiguous; and its fastest kernels take no masks. So here

    a constant mask that keeps everything    is dropped
    a constant mask that is causal           is replaced by ``is_causal``
    another mask                             is made contiguous

Without a mask these kernels also read heads that queries share, and strided heads, as they lie in memory:

    keys and values repeated for each head   are read once (``enable_gqa``)
    contiguous copies of transposed heads    are dropped
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_aggregate

from evt.fx.self_attention import divide_self_attention

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
#: The parameters of attention before the keywords.
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_HEADS = _PARAMETERS[:3]
#: The types of PyTorch's fastest kernels, and the elements between heads: 16 bytes.
_TYPES, _ALIGNED = (torch.float16, torch.bfloat16), 8
#: Their longest heads; and the longest whose gradients they compute on all GPUs.
_LONGEST, _LONGEST_TRAINED = 256, 192
#: Index of the new dimension along which heads are repeated.
_REPEATED = (slice(None), slice(None), None, slice(None), slice(None))
#: The most bytes of a constant that is computed here.
_LARGEST = 1 << 26
#: Functions and methods that make constant masks.
_FUNCTIONS: Collection[Callable[..., Any]] = (
    *(torch.arange, torch.diff, torch.full, torch.ones, torch.tril, torch.triu, torch.where, torch.zeros),
    *(operator.add, operator.and_, operator.getitem, operator.invert, operator.mul, operator.or_, operator.sub),
    *(operator.eq, operator.ge, operator.gt, operator.le, operator.lt, operator.ne),
)
_METHODS = (
    *("bool", "contiguous", "cumsum", "expand", "new_ones", "reshape", "to", "unsqueeze", "view"),
    *("__and__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "__or__"),  # of Dynamo 2.11
)


def simplify_attention(module: GraphModule, devices: Collection[str]) -> None:
    """Give attention on some kinds of devices the arguments that PyTorch's fused kernels take."""
    longest = _LONGEST_TRAINED if torch.is_grad_enabled() else _LONGEST
    divide_self_attention(module, devices)
    constants = _Constants(module)
    copies = dict[Node, Node]()
    for node in module.graph.find_nodes(op="call_function", target=_ATTENTION):
        value = _value_of(node)
        if value is None or value.device.type not in devices or not _is_copied(node):
            continue
        known = {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
        mask = known.get("attn_mask")
        if isinstance(mask, Node):
            if (meaning := constants.meaning(mask)) is not None:
                known |= meaning
            elif _is_strided(mask):
                if mask not in copies:
                    with module.graph.inserting_after(mask):
                        copies[mask] = module.graph.call_method("contiguous", (mask,))
                known["attn_mask"] = copies[mask]
        if known.get("attn_mask") is None and value.dtype in _TYPES and value.shape[-1] <= longest:
            known |= _shared(known) | _strided(known)
        node.args, node.kwargs = (), known
    module.recompile()


def _shared(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys and values before they were repeated for each head of the queries."""
    found = {name: _before_repetition(known[name]) for name in _HEADS[1:]}
    if any(each is None for each in found.values()):
        return {}
    return {**found, "enable_gqa": True}


def _before_repetition(node: Node) -> Node | None:
    """Return heads [batch, heads, rows, length] if a node repeats each of them, or None."""
    if node.op != "call_method" or node.target != "reshape":
        return None
    repeated = node.args[0]
    if not isinstance(repeated, Node) or repeated.op != "call_method" or repeated.target != "expand":
        return None
    indexed = repeated.args[0]
    if not isinstance(indexed, Node) or indexed.target is not operator.getitem or indexed.args[1] != _REPEATED:
        return None
    base = indexed.args[0]
    values = [_value_of(each) for each in (base, repeated, node) if isinstance(each, Node)]
    if [None if each is None else each.dim() for each in values] != [4, 5, 4]:
        return None
    (batch, heads, rows, length), (_, _, times, *_), result = (tuple(each.shape) for each in values if each is not None)
    return base if result == (batch, heads * times, rows, length) and isinstance(base, Node) else None


def _strided(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return heads before they were copied, where they are aligned."""
    found = dict[str, Any]()
    for name in _HEADS:
        node = known[name]
        if node.op == "call_method" and node.target == "contiguous" and len(node.args) == 1 and not node.kwargs:
            value = _value_of(node.args[0])
            if value is not None and value.stride(-1) == 1 and not any(each % _ALIGNED for each in value.stride()[:-1]):
                found[name] = node.args[0]
    return found


def _is_copied(node: Node) -> bool:
    """Return whether only copies of its transpose read the result of attention: kernels give it other strides."""
    transposed = [user for user in node.users if user.op == "call_method" and user.target == "transpose"]
    readers = [user for each in transposed for user in each.users]
    return len(transposed) == len(node.users) and all(
        each.op == "call_method" and each.target in ("contiguous", "flatten", "reshape") for each in readers
    )


class _Constants:
    """The constant masks of a graph."""

    def __init__(self, module: GraphModule) -> None:
        nodes = module.graph.nodes
        written = {_storage(each) for node in nodes if _may_write(node) for each in node.all_input_nodes}
        self._run = Interpreter(module)
        self._nodes = dict.fromkeys(module.graph.nodes, False)
        self._meanings = dict[Node, Mapping[str, Any] | None]()
        for node in nodes:
            known = {"call_function": _FUNCTIONS, "call_method": _METHODS}.get(node.op, ())
            inputs = all(map(self._nodes.__getitem__, node.all_input_nodes))
            self._nodes[node] = inputs and node.target in known and _is_small(node) and _storage(node) not in written

    def meaning(self, mask: Node) -> Mapping[str, Any] | None:
        """Return the arguments of attention that say the same as a mask, or None if there are none."""
        if mask not in self._meanings:
            self._meanings[mask] = meaning_of_mask(self._value(mask)) if self._nodes[mask] else None
        return self._meanings[mask]

    def _value(self, wanted: Node) -> torch.Tensor:
        """Return the value of a constant, on the CPU."""
        needed, values = {wanted}, dict[Node, Any]()
        for node in reversed(self._nodes):
            if node in needed:
                needed.update(node.all_input_nodes)
        with unset_fake_temporarily():
            for node in self._nodes:
                if node in needed:
                    args, keywords = map_aggregate(
                        (node.args, node.kwargs), lambda each: _here(values[each] if isinstance(each, Node) else each)
                    )
                    values[node] = getattr(self._run, node.op)(node.target, args, keywords)
        found: torch.Tensor = values[wanted]
        return found


def meaning_of_mask(mask: torch.Tensor) -> Mapping[str, Any] | None:
    """Return the arguments of attention that say the same as a mask, or None if there are none."""
    is_bool = mask.dtype == torch.bool
    if bool(mask.all() if is_bool else not mask.any()):
        return {"attn_mask": None}
    if not is_bool or mask.dim() < 2 or mask.shape[-2] == 1:  # one row is for all queries
        return None
    if bool((mask == torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()).all()):
        return {"attn_mask": None, "is_causal": True}
    return None


def _here(value: Any) -> Any:
    """Return the CPU for another device."""
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _value_of(node: Node) -> torch.Tensor | None:
    value = node.meta.get("example_value")
    return value if isinstance(value, torch.Tensor) else None


def _is_strided(mask: Node) -> bool:
    """Return whether the last dimension of a mask is not contiguous."""
    value = _value_of(mask)
    return value is not None and value.dim() > 0 and value.shape[-1] != 1 and value.stride(-1) != 1


def _is_small(node: Node) -> bool:
    """Return whether a node is a small tensor of fixed sizes."""
    value, memory = _value_of(node), _memory(node)
    if value is None or memory is None:
        return False
    return all(isinstance(each, int) for each in (*value.shape, *value.stride())) and memory.nbytes() <= _LARGEST


def _memory(node: Node) -> torch.UntypedStorage | None:
    """Return the memory of a node's tensor, also inside torch.func's transforms, or None for a sparse tensor."""
    value = _value_of(node)
    while value is not None and torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return None if value is None or not torch._C._has_storage(value) else value.untyped_storage()


def _storage(node: Node) -> int | None:
    """Return the identity of the memory of a node's tensor."""
    memory = _memory(node)
    return None if memory is None else memory._cdata


def _may_write(node: Node) -> bool:
    """Return whether a call may write to its arguments."""
    target: Any = node.target
    if node.op == "call_method":
        return (target.endswith("_") and not target.endswith("__")) or target == "__setitem__"
    if node.op != "call_function" or target in _FUNCTIONS:
        return node.op == "call_module"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(each.is_mutable for each in target._schemas.values())
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    name = target.__name__
    if getattr(operator, name, None) is target:  # iadd, and not invert
        return target is operator.setitem or (name[0] == "i" and hasattr(operator, name[1:]))
    if isinstance(target, torch._ops.HigherOrderOperator) or not _is_of_torch(target):
        return True
    return name.endswith("_") or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _is_of_torch(target: Any) -> bool:
    """Return whether a function is PyTorch's."""
    known = getattr(target, "__module__", None) or getattr(getattr(target, "__self__", None), "__module__", None)
    return str(known).partition(".")[0] == "torch"


__all__ = ["meaning_of_mask", "simplify_attention"]
