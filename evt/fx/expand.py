"""Decompose composed operators: ``expand(graph)``, in place; ``contract(graph)`` undoes it outside of regions.

Inductor has already decomposed these operators when it runs evt's pass. An exported graph contains them whole. PyTorch
runs such a graph operator by operator: a decomposed batch norm would read and write its image three to five times.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from evt.fx.aten import Arguments, base_name

aten = torch.ops.aten
#: The mark of a decomposition's result: the node of the operator's result.
ORIGINAL = "evt_original"
#: The mark of a decomposition's result: the :class:`Whole` operator.
_WHOLE = "evt_whole"
#: Operators of normalisations that may use the statistics of training.
_NORMALISATIONS = ("_native_batch_norm_legit_no_training", "_batch_norm_no_update")


@dataclass(frozen=True)
class Whole:
    """A batch norm that was decomposed: its operator, with the image ``x`` among ``args``, and the steps from x on."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    x: Node
    steps: tuple[Node, ...]

    @property
    def vectors(self) -> set[Node]:
        """The operator's other operands. A folding computes some of them, which then are no nodes of the graph."""
        return {each for each in (*self.args, *self.kwargs.values()) if isinstance(each, Node)} - {self.x}

    def read_by(self, last: Node) -> Node | None:
        """Return the image that the steps up to ``last`` read now; None if a region computes any of them."""
        if last is not self.steps[-1] or not all(one in other.all_input_nodes for one, other in pairwise(self.steps)):
            return None
        x: Any = self.steps[0].args[0]
        return x if x.meta["val"].dtype == self.x.meta["val"].dtype else None


def expand(graph: Graph, eager: bool = False) -> None:
    """Decompose every batch norm with given statistics, and drop assertions about types.

    ``eager``: with the operations of PyTorch's CUDA kernels, else with one multiply-add.
    """
    for node in list(graph.nodes):
        if base_name(node) == "_assert_tensor_metadata":
            graph.erase_node(node)
        if base_name(node) not in _NORMALISATIONS:
            continue
        if any(user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in node.users):
            continue
        arguments = Arguments(node)
        steps = _batch_norm(_Writer(graph, node), arguments, eager)
        made = steps[-1]
        made.meta[_WHOLE] = Whole(node.target, node.args, dict(node.kwargs), arguments["input"], steps)
        for user in list(node.users):
            if user.args[1] == 0:
                made.meta[ORIGINAL] = user
                user.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def contract(graph: Graph) -> None:
    """Put every batch norm back if no region computes a part of it."""
    present = set(graph.nodes)
    for node in list(graph.nodes):
        whole = node.meta.get(_WHOLE)
        x = None if whole is None else whole.read_by(node)
        if x is None or not whole.vectors <= present:
            continue
        given = {whole.x: x}
        args, kwargs = map_arg((whole.args, whole.kwargs), lambda each: given.get(each, each))  # noqa: B023
        with graph.inserting_before(node):
            made = graph.call_function(whole.target, args, kwargs)
            result = graph.call_function(operator.getitem, (made, 0))
        result.meta["val"] = node.meta[ORIGINAL].meta["val"]
        node.replace_all_uses_with(result)
    graph.eliminate_dead_code()


def fill_zeros(graph: Graph) -> None:
    """Give memory to tensors that are zero by PyTorch's knowledge only, as in derivatives of derivatives."""
    for node in graph.find_nodes(op="call_function", target=aten._efficientzerotensor.default):
        node.target, node.args = aten.full.default, (*node.args, 0)
        with node.meta["val"].fake_mode:
            node.meta["val"] = aten.full.default(*node.args, **node.kwargs)


class _Writer:
    """A writer that inserts nodes before a node, and computes their fake values."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node

    def __call__(self, target: Any, *arguments: Any) -> Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, arguments)
        values = [each.meta["val"] if isinstance(each, Node) else each for each in arguments]
        fake = next(each.fake_mode for each in values if hasattr(each, "fake_mode"))
        with fake:
            made.meta["val"] = target(*values)
        made.meta.update({name: self.node.meta[name] for name in ("stack_trace",) if name in self.node.meta})
        return made


def _batch_norm(write: _Writer, arguments: Arguments, eager: bool) -> tuple[Node, ...]:
    """Return the steps of ``x * scale + shift`` for each channel (dimension 1), in float32 if x has fewer bits.

    ``eager``: return the steps of ``fma(weight * (x - mean), 1 / sqrt(variance + eps), bias)``.
    """
    x, eps = arguments["input"], arguments["eps"]
    weight, bias, mean, variance = (arguments[name] for name in ("weight", "bias", "running_mean", "running_var"))
    dtype = x.meta["val"].dtype
    wide = torch.promote_types(dtype, torch.float32)

    def widened(vector: Node) -> Node:
        if vector.meta["val"].dtype == wide:
            return vector
        return write(torch.ops.prims.convert_element_type.default, vector, wide)

    def channels(vector: Node) -> Node:
        return write(aten.view.default, vector, [-1] + [1] * (x.meta["val"].dim() - 2))

    scale = write(aten.rsqrt.default, write(aten.add.Tensor, widened(variance), eps))
    if eager:
        steps = [x] if x.meta["val"].dtype == wide else [widened(x)]
        steps.append(write(aten.sub.Tensor, steps[-1], channels(widened(mean))))
        if weight is not None:
            steps.append(write(aten.mul.Tensor, channels(widened(weight)), steps[-1]))
        if bias is None:
            steps.append(write(aten.mul.Tensor, steps[-1], channels(scale)))
        else:
            steps.append(write(aten.addcmul.default, channels(widened(bias)), steps[-1], channels(scale)))
    else:
        if weight is not None:
            scale = write(aten.mul.Tensor, scale, widened(weight))
        shift = write(aten.mul.Tensor, widened(mean), scale)
        shift = write(aten.neg.default, shift) if bias is None else write(aten.sub.Tensor, widened(bias), shift)
        steps = [x, write(aten.mul.Tensor, x, channels(scale))]
        steps.append(write(aten.add.Tensor, steps[-1], channels(shift)))
    if dtype != wide:
        steps.append(write(torch.ops.prims.convert_element_type.default, steps[-1], dtype))
    return tuple(steps[1:] if steps[0] is x else steps)
