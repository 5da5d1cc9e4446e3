"""Elementwise operators of a lossless graph in fewer kernels: ``join(module, given) -> tuple[Joined, ...]``.

Eager PyTorch launches a kernel for each elementwise operator. Inductor computes a group of them in one kernel. With the
option ``emulate_precision_casts`` it rounds after each operator, as eager does. A group has operators that round once
or not at all, so its bits do not depend on the kernel. They are still compared with eager's on the tensors of a call,
as is the time. A group that differs or is slower stays eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Interpreter, Node

from evt.fx.aten import base_name, is_random, is_tensor
from evt.fx.casts import without_autocast
from evt.fx.measure import compared
from evt.fx.region import LEFT
from evt.fx.rewrite import listed, sort
from evt.fx.views import is_view
from evt.reference.bits import different_bits
from evt.runtime.tensor_checks import PLAIN

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or")
_BITS = ("bitwise_not", "bitwise_and", "bitwise_or")
_ARITHMETIC = ("add", "sub", "mul", "neg", "abs", "relu", "maximum", "minimum", "where")
#: Operators that round once, or not at all.
_EXACT = frozenset((*_ARITHMETIC, *_COMPARISONS, *_BITS, "clone", "cat", "_to_copy"))
#: The arguments by name that they may have.
_KEYWORDS = {"_to_copy": {"dtype"}, "clone": {"memory_format"}}
_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32))
_INTEGERS = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_COPY = torch.ops.prims.copy_strided.default
#: Options of Inductor's, if this PyTorch has them.
_OPTIONS = {"emulate_precision_casts": True, "eager_numerics.disable_ftz": True}
_ROUNDS = "emulate_precision_casts"

Compiler = Callable[[GraphModule, Sequence[torch.Tensor]], Callable[..., Sequence[torch.Tensor]] | None]


class Joined(torch.nn.Module):
    """A group of operators, by a compiled kernel for tensors like the compared ones, else operator by operator."""

    def __init__(
        self, eager: GraphModule, compiled: Callable[..., Sequence[torch.Tensor]], like: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()
        self.eager, self.compiled = eager, compiled
        self.kinds = tuple(map(_kind, like))

    def forward(self, *given: torch.Tensor) -> Sequence[torch.Tensor]:
        if torch.compiler.is_compiling() or tuple(map(_kind, given)) != self.kinds:
            found: Sequence[torch.Tensor] = self.eager(*given)
            return found
        return self.compiled(*given)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kinds": ()}  # a copy in another process has no kernel

    @property
    def count(self) -> int:
        """The number of its operators that are no views."""
        return sum(map(_is_computed, self.eager.graph.nodes))


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return type(tensor) in PLAIN, tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def join(module: GraphModule, given: Sequence[Any], compiler: Compiler | None = None) -> tuple[Joined, ...]:
    """Replace groups of elementwise operators of a graph, if their bits are eager's for the given inputs.

    The graph runs once, with its writes to inputs. A write is one of the last operators, or the only reader of its
    tensor, so the order of other operators does not matter. It matters where operators draw random numbers: such graphs
    stay.
    """
    compiler, graph = compiler or compile_group, module.graph
    if any(map(_has_order, graph.nodes)):
        return ()
    alone = [_alone(graph, found) for found in groups_of(graph) if has_kernels(found[0].meta["val"].device)]
    groups = [group for group in alone if _may_pay(group)]
    if not groups:
        return ()
    judged = _Judged(module, groups, compiler)
    with torch.inference_mode(False), torch.no_grad(), without_autocast():
        judged.run(*given)
    kept = [(group, found) for group, found in zip(groups, judged.found, strict=True) if found is not None]
    for number, (group, found) in enumerate(kept):
        name = f"elementwise_{number}"
        module.add_submodule(name, found)
        _replace(graph, name, group)
    sort(graph)
    graph.lint()
    module.recompile()
    return tuple(found for _, found in kept)


def groups_of(graph: Graph) -> list[list[Node]]:
    """Return groups of operators that a kernel can compute: no path leaves a group and comes back.

    Each operator joins the groups of its operands, unless its other operands depend on them.
    """
    parents: list[int] = []  # of groups that have become parts of others
    before: list[int] = []  # by group the groups on which it depends, as bits
    owner: dict[Node, int] = {}
    needs: dict[Node, int] = {}  # the groups on which other nodes depend

    def root(group: int) -> int:
        while parents[group] != group:
            group = parents[group]
        return group

    def reached(bits: int) -> set[int]:
        found: set[int] = set()
        while bits:
            group = root(bits.bit_length() - 1)
            bits &= ~(1 << bits.bit_length() - 1)
            if group not in found:
                found.add(group)
                bits |= before[group]
        return found

    for node in graph.nodes:
        outside = 0
        for each in node.all_input_nodes:
            outside |= 0 if each in owner else needs[each]
        mine = {root(owner[each]) for each in node.all_input_nodes if each in owner}
        if not _joins(node):
            needs[node] = outside | sum(1 << each for each in mine)
            continue
        reach = reached(outside)
        behind = {each: reached(before[each]) for each in mine}
        joined = {each for each in mine if each not in reach and not any(each in behind[other] for other in mine)}
        new = len(parents)
        parents.append(new)
        before.append(outside | sum(1 << each for each in mine - joined))
        for each in joined:
            parents[each] = new
            before[new] |= before[each]
        owner[node] = new
    found: dict[int, list[Node]] = {}
    for node in owner:
        found.setdefault(root(owner[node]), []).append(node)
    return list(found.values())


def _joins(node: Node) -> bool:
    """Return whether a group may have a node: an operator or view of tensors of one device, of fixed sizes."""
    if not is_tensor(node) or not all(map(is_tensor, node.all_input_nodes)):
        return False
    every = [each.meta["val"] for each in (node, *node.all_input_nodes)]
    if len({each.device for each in every}) > 1 or any(each.layout is not torch.strided for each in every):
        return False
    if not all(isinstance(size, int) for each in every for size in (*each.shape, *each.stride())):
        return False
    if not all(each.dtype in _FLOATS or each.dtype in _INTEGERS for each in every):
        return False
    name = base_name(node)
    if name == "pow":
        return node.args[1:] == (2,)
    if name == "_to_copy" and not all(each.dtype in _FLOATS for each in every):
        return False
    return (
        is_view(node) or node.target is _COPY or (name in _EXACT and node.kwargs.keys() <= _KEYWORDS.get(name, set()))
    )


def split_casts(graph: Graph) -> None:
    """Give readers that wait for a sum or mean of a widening cast another cast, which no region may compute.

    A norm in f32 reads its operand twice. A region would store the wide values for the second reader, but a group casts
    the narrow ones.
    """
    for node in list(graph.nodes):
        if base_name(node) != "_to_copy" or not _joins(node) or not has_kernels(node.meta["val"].device):
            continue
        (operand,) = node.all_input_nodes
        if operand.meta["val"].itemsize >= node.meta["val"].itemsize:
            continue
        late = _behind_others(node)
        for user in [each for each in node.users if _joins(each) and late.intersection(each.all_input_nodes)]:
            with graph.inserting_before(user):
                made = graph.node_copy(node)
            made.meta[LEFT] = ("E1013", "another kernel computes the cast where it is read")
            user.replace_input_with(node, made)


def _behind_others(node: Node) -> set[Node]:
    """Return the nodes that depend on a node by operators that no group has."""
    found: set[Node] = set()
    seen, stack = {node}, [(node, False)]
    while stack:
        each, is_behind = stack.pop()
        for user in each.users:
            behind = is_behind or not _joins(user)
            if user not in seen or (behind and user not in found):
                seen.add(user)
                stack.append((user, behind))
                if behind:
                    found.add(user)
    return found


def _has_order(node: Node) -> bool:
    return node.op == "call_module" or (isinstance(node.target, OpOverload) and is_random(node))


def _is_computed(node: Node) -> bool:
    return node.op == "call_function" and not is_view(node)


def _may_pay(group: Sequence[Node]) -> bool:
    """Return whether a group has several operators, or one of tensors that PyTorch's fastest kernels do not take."""
    computed = list(filter(_is_computed, group))
    every = [each.meta["val"] for node in computed for each in (node, *node.all_input_nodes)]
    return len(computed) > 1 or not all(each.is_contiguous() for each in every)


def _alone(graph: Graph, group: Sequence[Node]) -> list[Node]:
    """Return a group without views that others read: they read copies of these, which share the memory of a result."""
    kept = dict.fromkeys(group)
    for node in reversed(group):
        if not is_view(node):
            continue
        outside = {user for user in node.users if user not in kept}
        if outside:
            with graph.inserting_after(node):
                made = graph.node_copy(node)
            node.replace_all_uses_with(made, delete_user_cb=outside.__contains__)
        if not node.users:
            del kept[node]
            graph.erase_node(node)
    return list(kept)


def _split(group: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return the operands and the results of a group."""
    inside = set(group)
    operands = dict.fromkeys(each for node in group for each in node.all_input_nodes if each not in inside)
    return list(operands), [node for node in group if any(user not in inside for user in node.users)]


def _extracted(group: Sequence[Node]) -> GraphModule:
    """Return the graph of a group; equal groups have equal texts."""
    graph, places = Graph(), dict[Node, Node]()
    operands, results = _split(group)
    for number, node in enumerate(operands):
        places[node] = graph.placeholder(f"x{number}")
    for number, node in enumerate(group):
        places[node] = graph.node_copy(node, places.__getitem__)
        places[node]._rename(f"v{number}")
    graph.output(tuple(places[node] for node in results))
    return GraphModule(torch.nn.Module(), graph)


def _replace(graph: Graph, name: str, group: Sequence[Node]) -> None:
    operands, results = _split(group)
    with graph.inserting_after(group[-1]):
        call = graph.call_module(name, tuple(operands))
    with graph.inserting_after(call):
        made = listed(graph, call, len(results))
    for node, new in zip(results, made, strict=True):
        new.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in group)
    for node in reversed(group):
        graph.erase_node(node)


class _Judged(Interpreter):
    """A run of a graph that compares each group with eager, as soon as its operands and results are known.

    ``found`` has the kernel of each group that is kept, else None.
    """

    def __init__(self, module: GraphModule, groups: Sequence[Sequence[Node]], compiler: Compiler) -> None:
        super().__init__(module)
        self.compiler = compiler
        self.found: list[Joined | None] = [None] * len(groups)
        self.waiting = {number: _split(group) for number, group in enumerate(groups)}
        self.groups, self.values = groups, dict[Node, Any]()
        self.known: dict[Any, Callable[..., Sequence[torch.Tensor]] | None] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if any(n in nodes for split in self.waiting.values() for nodes in split):
            self.values[n] = value
            self._judge()
        return value

    def _judge(self) -> None:
        for number, (operands, results) in list(self.waiting.items()):
            if all(each in self.values for each in (*operands, *results)):
                given, wanted = ([self.values[each] for each in nodes] for nodes in (operands, results))
                self.found[number] = self._kept(_extracted(self.groups[number]), given, wanted)
                del self.waiting[number]
        needed = {each for split in self.waiting.values() for nodes in split for each in nodes}
        self.values = {node: value for node, value in self.values.items() if node in needed}

    def _kept(self, eager: GraphModule, given: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Joined | None:
        """Return a group with its kernel, or None if its bits are others or it is slower."""
        key = eager.code, *map(_kind, given)
        is_new = key not in self.known
        if is_new:
            self.known[key] = self.compiler(eager, given)
        compiled = self.known[key]
        if compiled is None or not _are_equal(compiled(*given), wanted):
            return None
        if is_new and wanted[0].device.type == "cuda":
            benefit = compared(lambda: compiled(*given), lambda: eager(*given), wanted[0].device)
            if benefit is not None and not benefit.wins:
                self.known[key] = None
                return None
        return Joined(eager, compiled, given)


def _are_equal(found: Iterable[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors have equal types, shapes, strides and bits."""
    pairs = list(zip(found, wanted, strict=True))
    return all(_kind(one) == _kind(other) for one, other in pairs) and not any(
        different_bits(one, other) for one, other in pairs
    )


def has_kernels(device: torch.device) -> bool:
    """Return whether Inductor has kernels for a device that round as eager's do."""
    return device.type == "cuda" and _ROUNDS in torch._inductor.list_options()


def compile_group(eager: GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Sequence[torch.Tensor]] | None:
    """Return Inductor's kernel of a group, or None if it has none on this machine."""
    known = torch._inductor.list_options()
    patches: dict[str, Any] = {name: value for name, value in _OPTIONS.items() if name in known}
    patches |= {"post_grad_custom_pre_pass": None, "triton.cudagraphs": False, "size_asserts": False}
    try:
        with torch._guards.tracing(None):
            from torch._inductor.compile_fx import compile_fx

            copied = GraphModule(torch.nn.Module(), eager.graph)
            compiled: Any = compile_fx(copied, [each.detach() for each in given], config_patches=patches)
        compiled(*given)
    except Exception:  # of Inductor, Triton, or a compiler that they call: eager's operators remain
        return None
    found: Callable[..., Sequence[torch.Tensor]] = compiled
    return found


__all__ = ["Joined", "compile_group", "groups_of", "has_kernels", "join", "split_casts"]
