"""Replace regions by calls of their programs: ``rewrite(graph, fused, caller)``, in place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from evt.fx.aten import CONSTANT, is_constant, operator_name, shape_of
from evt.fx.build import RegionProgram
from evt.fx.example import tensor_of
from evt.fx.gradient import leave_unread
from evt.fx.index_map import Arrangement, Size, all_same, same
from evt.fx.kernels import program_text
from evt.fx.results import keep_strides
from evt.fx.retrace import retrace
from evt.fx.shown import keep_shown
from evt.fx.sizes import shaped
from evt.fx.verify import verify
from evt.reference.convolution import from_view, is_image, to_view
from evt.runtime.convolution import is_readable, pitch_of
from evt.runtime.memory_format import copied_channels_last, follows_channels_last

aten = torch.ops.aten
#: The key of the strides of a call's operands and arguments, for which its kernel is planned. Inductor updates the
#: strides of views after a result of a convolution is stored channels last.
STRIDES = "evt_strides"


class CallWriter(Protocol):
    """A writer of calls of region programs."""

    @property
    def copies(self) -> bool:
        """Whether the graph copies images that kernels cannot read; otherwise the call copies them."""

    @property
    def strided(self) -> bool:
        """Whether results get PyTorch's strides. Inductor accepts any, and restores the graph's."""

    def __call__(
        self, graph: Graph, fused: RegionProgram, operands: Sequence[Node], arguments: Sequence[Node]
    ) -> tuple[Node, list[Node]]:
        """Write a call; return its node and the nodes of its results."""


@dataclass(frozen=True)
class Listed:
    """A call of an operator of evt, with A, B, a list of inputs and the program; it returns a list."""

    operator: OpOverload
    copies: bool
    strided: bool

    def __call__(
        self, graph: Graph, fused: RegionProgram, operands: Sequence[Node], arguments: Sequence[Node]
    ) -> tuple[Node, list[Node]]:
        call = graph.call_function(self.operator, (*operands, list(arguments), program_text(fused)))
        return call, listed(graph, call, len(fused.results))


def listed(graph: Graph, call: Node, count: int) -> list[Node]:
    """Return the elements of a call's list of results."""
    return [graph.call_function(operator.getitem, (call, index)) for index in range(count)]


#: The operator for eager graphs, and the operator that Inductor lowers to a launch.
RUN = Listed(torch.ops.evt.run.default, copies=False, strided=True)
LAUNCH = Listed(torch.ops.evt.launch.default, copies=True, strided=False)


def rewrite(graph: Graph, fused: Sequence[RegionProgram], caller: CallWriter = RUN) -> None:
    """Replace each region by a call of its program, with the region as ``meta["evt"]``.

    The programs in the graph do not contain names of nodes: equal layers share one program, which is checked, planned
    and loaded once. A result may have other strides than PyTorch's, so views of results become reshapes.
    """
    verify(graph, fused)
    now: dict[Node, Node] = {}
    images: dict[Node, Node] = {}
    moved: dict[Node, Sequence[Size]] = {}
    for each in fused:
        _replace(graph, each, now, images, caller)
        if not caller.strided:
            moved.update(_moved(each, now))
    sort(graph)
    graph.eliminate_dead_code()
    keep_shown(graph, moved)
    if fused:
        leave_unread(graph)
    for node in graph.nodes if fused else ():
        if operator_name(node) in ("view.default", "_unsafe_view.default"):
            node.target = aten.reshape.default
    if not caller.strided:
        retrace(graph, now.values(), moved)
    graph.lint()


def _replace(
    graph: Graph, fused: RegionProgram, now: dict[Node, Node], images: dict[Node, Node], caller: CallWriter
) -> None:
    """Replace one region.

    ``now`` maps results of replaced regions to their new nodes, ``images`` maps images to their copies.
    """
    product = fused.region.product
    with graph.inserting_after(fused.region.nodes[-1]):
        mark = graph.call_function(aten.alias.default, (fused.region.nodes[-1],))  # marks the place of the new nodes
    with graph.inserting_before(mark):
        operands = [now.get(each, each) for each in (product.a, product.b)]
        if fused.batches is not None:
            operands = [shaped(graph, each, (*fused.batches, *shape_of(each)[-2:])) for each in operands]
        arguments = [_arranged(graph, now.get(each.node, each.node), each.arrangement) for each in fused.arguments]
        request = fused.program.request
        last = False
        if request.convolution is not None:
            if caller.copies:
                operands = [_image(graph, each, images, is_readable) for each in operands]
                arguments = [_image(graph, each, images, _is_walkable) for each in arguments]
            last = follows_channels_last(request.convolution, *(tensor_of(each, "meta") for each in operands))
            if last:  # PyTorch's results are channels last as well
                operands = [_image(graph, x, images, is_readable) if is_constant(x) else x for x in operands]
        call, values = caller(graph, fused, operands, arguments)
        for made, result in zip(values, fused.results, strict=True):
            node = result.node
            made.meta = {**node.meta, "val": _packed(node.meta["val"], result.stored, last)}
            arranged = _arranged(graph, made, result.arrangement)
            if caller.strided:
                arranged = keep_strides(graph, arranged, node.meta["val"].stride())
            now[node] = arranged
            node.replace_all_uses_with(arranged, delete_user_cb=lambda user: user not in fused.region)
        if call not in values:
            call.meta["val"] = [value.meta["val"] for value in values]
        call.meta["evt"] = fused
        call.meta[STRIDES] = [each.meta["val"].stride() for each in (*operands, *arguments)]
    graph.erase_node(mark)
    for node in reversed(fused.region.nodes):
        if not node.users:
            graph.erase_node(node)


def _moved(fused: RegionProgram, now: Mapping[Node, Node]) -> Iterator[tuple[Node, Sequence[Size]]]:
    """Yield the results of a region that kernels store with other strides than traced, with the traced strides."""
    request = fused.program.request
    outputs = map(request.dag.output.__getitem__, request.outputs)
    for output, result in zip(outputs, fused.results, strict=True):
        traced, made = result.node.meta["val"].stride(), now[result.node]
        value = made.meta["val"]
        is_last = request.convolution is not None and is_image(output)
        if is_last and all_same(tuple(value.shape), result.stored):
            value = _packed(value, result.stored, True)
        elif is_last and value.dim() > 1:
            yield made, traced
            continue
        if not all(same(size, 1) or same(x, y) for size, x, y in zip(value.shape, value.stride(), traced, strict=True)):
            yield made, traced


def _packed(like: torch.Tensor, shape: Sequence[Size], last: bool) -> torch.Tensor:
    """Return a packed tensor; an image is channels last if ``last``."""
    if not last or len(shape) < 3:
        return like.new_empty(tuple(shape))
    images, channels, *sizes = shape
    return from_view(like.new_empty((images, *sizes, channels)))


def _is_walkable(view: torch.Tensor) -> bool:
    """Return whether an epilogue can read a view [N, ..., C]: its pixels have a single stride."""
    return is_readable(view) and pitch_of(view) is not None


def _image(graph: Graph, node: Node, known: dict[Node, Node], fits: Callable[[torch.Tensor], bool]) -> Node:
    """Return an image, or a filter, in channels last, the layout that kernels read.

    The graph contains the copy of an image, so Inductor can make it where the image is computed. Attributes are copied
    now. A parameter that is an input may change between calls: the graph copies it in each call, unless the copy is
    folded (:mod:`evt.fx.fold`).
    """
    value = node.meta["val"]
    if value.dim() < 3 or fits(to_view(tensor_of(node, "meta"))):
        return node
    if node not in known:
        known[node] = _constant(graph, node) if node.op == "get_attr" else _copied(graph, node)
    return known[node]


def _constant(graph: Graph, node: Node) -> Node:
    module: Any = graph.owning_module
    name = f"evt_{node.name}_channels_last"
    with torch.no_grad(), unset_fake_temporarily():
        copied = copied_channels_last(attrgetter(str(node.target))(module).detach())
    module.register_buffer(name, copied)
    made = graph.get_attr(name)
    made.meta = {**node.meta, "val": _packed(node.meta["val"], node.meta["val"].shape, True)}
    return made


def _copied(graph: Graph, node: Node) -> Node:
    """Return a channels-last copy by operators: a permuted view is copied, and permuted back."""
    dims = range(node.meta["val"].dim())
    last, first = [0, *dims[2:], 1], [0, len(dims) - 1, *dims[1:-1]]
    view = graph.call_function(aten.permute.default, (node, last))
    view.meta["val"] = node.meta["val"].permute(last)
    copy = graph.call_function(aten.clone.default, (view,), {"memory_format": torch.contiguous_format})
    copy.meta["val"] = view.meta["val"].clone(memory_format=torch.contiguous_format)
    made = graph.call_function(aten.permute.default, (copy, first))
    made.meta["val"] = copy.meta["val"].permute(first)
    for each in (view, copy, made):
        each.meta[CONSTANT] = is_constant(node)
    return made


def _arranged(graph: Graph, node: Node, how: Arrangement) -> Node:
    """Return a node after the reshapes and the permutation of an arrangement."""
    if how.order != tuple(range(len(how.order))):
        split = shaped(graph, node, how.split)
        node = graph.call_function(aten.permute.default, (split, list(how.order)))
        node.meta["val"] = split.meta["val"].permute(how.order)
    return shaped(graph, node, how.merged)


def sort(graph: Graph) -> None:
    """Sort the nodes topologically, with few changes of their order."""
    placed: set[Node] = set()
    anchor = graph._root
    for node in list(graph.nodes):
        stack = [node]
        while stack:
            each = stack[-1]
            if each in placed:
                stack.pop()
                continue
            missing = [operand for operand in each.all_input_nodes if operand not in placed]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            placed.add(each)
            if anchor.next is not each:  # PyTorch 2.6 warns otherwise
                anchor.append(each)
            anchor = each
