"""Nodes that one kernel can compute: ``fit(node, index_maps) -> IndexMap | SkipReason``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from evt.fx.arithmetic import uncomputed
from evt.fx.aten import base_name, dtype_of, is_tensor, operator_name, shape_of, type_name
from evt.fx.index_map import IndexMap
from evt.fx.op_semantics import Applied, Reduced, number_of, operands_of, semantics
from evt.fx.product import Product
from evt.fx.skip_reason import SkipReason
from evt.fx.stand_in import beside
from evt.fx.stand_in import operands_of as operands_of_stand_in
from evt.fx.views import MEMORY, follow, is_arranged, is_view
from evt.ir.node import base, is_divided

#: Types of tensors that a kernel reads, and of single numbers that it reads.
_READ = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int32, torch.int8, torch.uint8)
_READ_SCALARS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int32)
#: Types of results that a kernel stores.
_STORED = (*_READ, torch.float8_e4m3fn, torch.float8_e5m2)


_PARTS = "it reduces neither whole rows nor whole columns"
#: The mark of an operator that no region may compute: a code and a reason.
LEFT = "evt_left"


@dataclass
class FusionRegion:
    """A product and the nodes of its kernel, in the graph's order, with their index maps."""

    product: Product
    index_maps: dict[Node, IndexMap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index_maps.setdefault(self.product.node, self.product.index_map)

    def __contains__(self, node: Node) -> bool:
        return node in self.index_maps

    @property
    def nodes(self) -> list[Node]:
        return list(self.index_maps)

    def without_reductions(self) -> FusionRegion:
        """Return the region without reductions and without operators on reduced values."""
        return FusionRegion(
            self.product, {node: index_map for node, index_map in self.index_maps.items() if not index_map.reduced}
        )

    @property
    def outputs(self) -> list[Node]:
        """The nodes that nodes outside of the region read."""
        return [node for node in self.index_maps if any(user not in self.index_maps for user in node.users)]


def fit(node: Node, index_maps: Mapping[Node, IndexMap]) -> IndexMap | SkipReason:
    """Return the index map of a node that reads nodes of a region, or why the node cannot join the region."""
    if LEFT in node.meta:
        return SkipReason(node, *node.meta[LEFT])
    if any(base_name(user) in MEMORY or operator_name(user) in MEMORY for user in node.users):
        return SkipReason(node, "E1003", "an operator reads its memory regardless of its shape")
    if is_arranged(node) and not index_maps[node.all_input_nodes[0]].is_packed:
        return SkipReason(node, "E1003", "it copies the result into the order that a product or attention reads")
    if is_view(node):
        index_map = follow(node, index_maps[node.all_input_nodes[0]])
        return index_map or SkipReason(
            node, "E1003", "the view selects a part of the product, or mixes its rows and columns"
        )
    if node.target is beside:
        product = next((each for each in operands_of_stand_in(node) or () if each in index_maps), None)
        if product is None:
            return SkipReason(node, "E1012", "it is computed with a product of another kernel")
        return index_maps[product]
    if not is_tensor(node):
        return SkipReason(node, "E1001", f"evt has no function for {operator_name(node) or node.target}")
    if dtype_of(node) not in _STORED:
        return SkipReason(node, "E1002", f"its type is {type_name(dtype_of(node))}")
    found = semantics(node)
    if found is None:
        return SkipReason(node, "E1001", f"evt has no function for {operator_name(node) or node.target}")
    inside = [index_maps[operand] for operand in operands_of(found) if operand in index_maps]
    if not inside:
        return SkipReason(node, "E1001", "it reads the shape of the product, and not its elements")
    first = inside[0]
    if not all(map(first.equals, inside[1:])):
        if any(each.reduced != first.reduced for each in inside):
            return SkipReason(node, "E1009", "it reads a reduction of the product together with the product's elements")
        return SkipReason(node, "E1005", "it combines the product with another view of it")
    if isinstance(found, Reduced):
        return _reduced(node, found, first)
    return _elementwise(node, found, first, index_maps)


def fit_operand(node: Node, index_map: IndexMap) -> bool:
    """Return whether a kernel can compute a tensor that it reads with an index map."""
    found = None if node.op != "call_function" or not is_tensor(node) or is_view(node) else semantics(node)
    if (
        not isinstance(found, Applied)
        or index_map.reduced
        or dtype_of(node) not in _STORED
        or number_of(node) is not None
    ):
        return False
    return not isinstance(_elementwise(node, found, index_map, {}), SkipReason)


def _elementwise(
    node: Node, found: Applied | Node, first: IndexMap, index_maps: Mapping[Node, IndexMap]
) -> IndexMap | SkipReason:
    """Return the index map of an elementwise operator, or why the kernel cannot compute it."""
    if not first.has_shape(shape_of(node)):
        if first.reduced:
            return SkipReason(node, "E1009", "it reads a reduction of the product for every element")
        return SkipReason(node, "E1004", f"its shape {list(shape_of(node))} is not the product's")
    if isinstance(found, Applied) and (wrong := uncomputed(node, found)):
        return SkipReason(node, "E1002", wrong)
    for operand in operands_of(found):
        if operand not in index_maps and (unread := _unread(operand, first, node.meta["val"].device)):
            return SkipReason(node, *unread)
    return first


def _reduced(node: Node, found: Reduced, index_map: IndexMap) -> IndexMap | SkipReason:
    made = index_map.reduce(found.places, found.keep)
    if made is None or index_map.reduced or not made.reduced:
        return SkipReason(node, "E1008", _PARTS)
    bases, blocks = set(map(base, made.reduced)), any(map(is_divided, made.reduced))
    if not bases <= {"m", "n"} or (blocks and ("m" not in bases or found.correction)):
        return SkipReason(node, "E1008", _PARTS)
    return made


def _unread(operand: Node, index_map: IndexMap, device: torch.device) -> tuple[str, str] | None:
    """Return the code and the reason why a kernel cannot read a tensor with an index map, or None."""
    if not is_tensor(operand):
        return "E1007", f"`{operand.name}` is a number that is known at run time only"
    if number_of(operand) is not None:
        return None
    value = operand.meta["val"]
    if value.device != device:
        return "E1007", f"`{operand.name}` is in the memory of {value.device}"
    modes = index_map.varies(tuple(value.shape))
    if modes is None:
        return "E1006", f"`{operand.name}` of shape {_shape(operand)} varies over a part of the rows or of the columns"
    if value.dtype not in (_READ if modes else _READ_SCALARS):
        return "E1002", f"`{operand.name}` has the type {type_name(value.dtype)}"
    return None


def _shape(node: Node) -> str:
    return "[" + ", ".join(map(str, shape_of(node))) + "]"
