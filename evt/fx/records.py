"""The outcome of each product of a graph, and the records of compiled graphs: ``rows_of(outcomes) -> rows``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from evt.fx.aten import base_name, is_tensor, shape_of
from evt.fx.cost_model import Benefit
from evt.fx.options import Options
from evt.fx.product import Product, find_product
from evt.fx.regions import Outcome, left_out
from evt.fx.skip_reason import SkipReason


@dataclass(frozen=True)
class ProductReport:
    """A product of a graph: its program and the operators that it absorbed, or the reason why it is left alone.

    ``node`` is its name in the graph, ``formula`` the program as text, ``shapes`` those of A and B, ``absorbed`` the
    names of the operators beside the product, ``benefit`` what fusing saves and loses, ``behind`` why the operators
    that read its results are not fused. ``graph`` is "forward" or "backward" where gradients are computed. ``kernel``
    is the route and configuration on the target that a report is asked for. A product whose region is not taken has
    the region's formula, and the reason.
    """

    node: str
    operation: str
    shapes: str
    formula: str = ""
    absorbed: tuple[str, ...] = ()
    reason: str = ""
    behind: tuple[str, ...] = ()
    benefit: Benefit | None = None
    graph: str = ""
    kernel: str = ""

    @property
    def fused(self) -> bool:
        return not self.reason

    @property
    def gain(self) -> str:
        """What fusing saves, estimated or measured."""
        return str(self.benefit) if self.benefit is not None and self.fused else ""

    @property
    def said(self) -> str:
        """What is said beside the shapes: what fusing saves and the kernel, or the reason why it does not happen."""
        return self.reason or "; ".join(filter(None, (self.gain, self.kernel)))


def rows_of(
    outcomes: Sequence[Outcome],
    benefits: Mapping[Node, Benefit] | None = None,
    graph: str = "",
    kernels: Mapping[Node, str] | None = None,
) -> tuple[ProductReport, ...]:
    """Return what became of the products of a graph."""
    behind = left_out(outcomes)
    rows = (_row(each, behind[each.product], (benefits or {}).get(each.product), graph) for each in outcomes)
    names = ((kernels or {}).get(each.product, "") for each in outcomes)
    return tuple(replace(row, kernel=name) for row, name in zip(rows, names, strict=True))


def _row(outcome: Outcome, left: tuple[SkipReason, ...], benefit: Benefit | None, graph: str) -> ProductReport:
    node, fused = outcome.product, outcome.fused
    product = fused.region.product if fused is not None else find_product(node)
    operation, operands = base_name(node), [each for each in node.all_input_nodes if is_tensor(each)][:2]
    if isinstance(product, Product):
        operation, operands = product.operation, [product.a, product.b]
    shapes = " x ".join(str(list(shape_of(each))) for each in operands)
    behind = tuple(map(str, left))
    if fused is None:
        formula = str(outcome.possible.program) if outcome.possible is not None else ""
        return ProductReport(node.name, operation, shapes, formula, (), str(outcome.reason), behind, benefit, graph)
    absorbed = tuple(each.name for each in fused.nodes[1:])
    return ProductReport(node.name, operation, shapes, str(fused.program), absorbed, "", behind, benefit, graph)


@dataclass(frozen=True)
class Owner:
    """The parameters and buffers that a compiled graph reads, by which a model finds what became of its products."""

    tensors: tuple[weakref.ref[torch.Tensor], ...] = ()

    @staticmethod
    def of(module: GraphModule, inputs: Sequence[Any]) -> Owner:
        """Return the owner of a graph of Dynamo's: its attributes, and the tensors behind its inputs."""
        found = [*module.parameters(), *module.buffers(), *inputs]
        for node in module.graph.nodes:
            known = node.meta.get("grapharg") if node.op == "placeholder" else None
            found.append(known.example if known is not None else None)
        return Owner(tuple(weakref.ref(each) for each in found if isinstance(each, torch.Tensor)))

    def is_part_of(self, wanted: set[int]) -> bool:
        """Return whether one of the tensors with these identities is read."""
        found = (each() for each in self.tensors)
        return any(each is not None and id(each) in wanted for each in found)

    @property
    def is_gone(self) -> bool:
        """Whether none of its tensors is alive."""
        return bool(self.tensors) and all(each() is None for each in self.tensors)


@dataclass(frozen=True)
class Record:
    """The rows of one compiled graph, whose they are, and the options of torch.compile that it was compiled with."""

    rows: tuple[ProductReport, ...]
    owner: Owner = field(default_factory=Owner)
    options: Options | None = None


#: Everything that was compiled in this process, of models that are still there.
RECORDS: list[Record] = []


def keep(record: Record) -> None:
    """Add a record; drop those of models that are gone."""
    RECORDS[:] = [each for each in RECORDS if not each.owner.is_gone]
    RECORDS.append(record)
