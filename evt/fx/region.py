"""What can be one kernel: ``fit(node, frames) -> Frame | Misfit`` judges a node beside those that are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from evt.fx.frame import Frame, same
from evt.fx.meaning import Applied, meaning, operator_name
from evt.fx.product import Product, shape_of

#: Views by operator: their elements are those of the first operand, in the same order.
VIEWS = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten")
#: Types of the values that a region reads and writes.
_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Misfit:
    """Why a node is in no region."""

    node: Node
    reason: str


@dataclass
class Region:
    """A product and the nodes that are computed with it, in the graph's order; ``frames`` has all of them."""

    product: Product
    frames: dict[Node, Frame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frames.setdefault(self.product.node, self.product.frame)

    def __contains__(self, node: Node) -> bool:
        return node in self.frames

    @property
    def nodes(self) -> list[Node]:
        return list(self.frames)

    @property
    def outputs(self) -> list[Node]:
        """The nodes that something outside of the region reads."""
        return [node for node in self.frames if any(user not in self.frames for user in node.users)]

    def reads(self) -> Iterator[Node]:
        """The nodes outside of the region that it reads."""
        for node in self.frames:
            for operand in node.all_input_nodes:
                if operand not in self.frames:
                    yield operand

    def copy(self) -> Region:
        return Region(self.product, dict(self.frames))


def is_view(node: Node) -> bool:
    name = operator_name(node)
    return name is not None and name.partition(".")[0] in VIEWS


def fit(node: Node, frames: Mapping[Node, Frame]) -> Frame | Misfit:
    """Return the frame of a node whose operands are partly in a region, or why it cannot be in it."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return Misfit(node, "it is no operator with one tensor as its result")
    if is_view(node):
        (source,) = node.all_input_nodes[:1]
        frame = frames[source].view(shape_of(node))
        return frame or Misfit(node, "the view mixes rows and columns")
    found = meaning(node)
    if found is None:
        return Misfit(node, f"evt has no function for {operator_name(node) or node.target}")
    if value.dtype not in (*_TYPES, torch.bool):
        return Misfit(node, f"its type is {value.dtype}")
    inside = [frames[operand] for operand in operands_of(found) if operand in frames]
    if not inside:
        return Misfit(node, "nothing of it depends on the product")
    first = inside[0]
    if any(each != first for each in inside[1:]):
        return Misfit(node, "it combines the product with another view of it")
    if not first.is_shape(shape_of(node)):
        return Misfit(node, f"its shape {list(shape_of(node))} is not the product's")
    for operand in operands_of(found):
        if operand not in frames and (reason := _unreadable(operand, first)):
            return Misfit(node, reason)
    return first


def operands_of(found: Applied | Node) -> Iterator[Node]:
    """The nodes that a meaning reads."""
    if isinstance(found, Node):
        yield found
    else:
        for operand in found.operands:
            if isinstance(operand, Applied | Node):
                yield from operands_of(operand)


def _unreadable(operand: Node, frame: Frame) -> str:
    """Return why a kernel cannot read a tensor at a frame's elements, or nothing."""
    value = operand.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return f"`{operand.name}` is no tensor"
    if value.dtype not in _TYPES:
        return f"`{operand.name}` has the type {value.dtype}"
    if frame.modes_of(tuple(value.shape)) is None:
        return f"`{operand.name}` of shape {list(value.shape)} varies over a part of the rows or of the batches"
    return ""


def is_whole(node: Node, count: object) -> bool:
    """Return whether a tensor has as many elements as this."""
    return same(node.meta["val"].numel(), count)
