"""What was fused, what not, and why: ``report(model) -> Report``."""

from __future__ import annotations

import html
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch.fx import GraphModule

from evt.fx.aten import base_name, is_tensor, shape_of
from evt.fx.product import Product, find_product
from evt.fx.regions import Outcome
from evt.fx.worth import Worth
from evt.spec.given import check_kind


@dataclass(frozen=True)
class Row:
    """A product of a graph: its program and the operators that it absorbed, or the reason why it is left alone.

    ``node`` is its name in the graph, ``formula`` the program as text, ``shapes`` those of A and B, ``absorbed`` the
    names of the operators beside the product, ``worth`` what fusing saves and loses, ``behind`` why the operators that
    read its results are not fused. ``graph`` is "forward" or "backward" where gradients are computed.
    """

    node: str
    operation: str
    shapes: str
    formula: str = ""
    absorbed: tuple[str, ...] = ()
    reason: str = ""
    behind: tuple[str, ...] = ()
    worth: Worth | None = None
    graph: str = ""

    @property
    def fused(self) -> bool:
        return not self.reason

    @property
    def gain(self) -> str:
        """What fusing saves, estimated or measured."""
        return str(self.worth) if self.worth is not None and self.fused else ""


def row_of(outcome: Outcome, worth: Worth | None = None, graph: str = "") -> Row:
    """Return what became of a product of a graph."""
    node, fused = outcome.product, outcome.fused
    product = fused.region.product if fused is not None else find_product(node)
    operation, operands = base_name(node), [each for each in node.all_input_nodes if is_tensor(each)][:2]
    if isinstance(product, Product):
        operation, operands = product.operation, [product.a, product.b]
    shapes = " x ".join(str(list(shape_of(each))) for each in operands)
    behind = tuple(map(str, outcome.behind))
    if fused is None:
        return Row(node.name, operation, shapes, "", (), str(outcome.reason), behind, worth, graph)
    absorbed = tuple(each.name for each in fused.nodes[1:])
    return Row(node.name, operation, shapes, str(fused.program), absorbed, "", behind, worth, graph)


@dataclass(frozen=True)
class Report:
    """The products of all graphs of a model, in the order in which they were compiled; prints as a table."""

    rows: tuple[Row, ...]

    @property
    def fused(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.fused)

    def __str__(self) -> str:
        if not self.rows:
            return "no graph with a matrix product or a convolution was compiled"
        lines = [f"{_counted(self.rows)} fused, with {sum(len(row.absorbed) for row in self.fused)} operators"]
        width = max(len(row.node) for row in self.rows)
        for graph, found in groupby(self.rows, lambda row: row.graph):
            rows = tuple(found)
            lines += [f"{graph}: {_counted(rows)} fused"] if graph else []
            for row in rows:
                lines.append(f"  {row.node:<{width}}  {row.operation} {row.shapes}  {row.gain or row.reason}".rstrip())
                lines += [f"  {'':<{width}}    {line}" for line in row.formula.splitlines()]
                lines += [f"  {'':<{width}}    not fused: {each}" for each in row.behind]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        columns = ("graph", "product", "operation", "shapes", "formula", "gain", "not fused")
        head = "".join(f"<th>{each}</th>" for each in columns)
        body = []
        for row in self.rows:
            why = "<br>".join(map(html.escape, filter(None, (row.reason, *row.behind))))
            formula = f"<pre>{html.escape(row.formula)}</pre>" if row.formula else ""
            names = map(html.escape, (row.graph, row.node, row.operation, row.shapes))
            cells = (*names, formula, html.escape(row.gain), why)
            body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f"<table><tr>{head}</tr>{''.join(body)}</table>"


def _counted(rows: Sequence[Row]) -> str:
    return f"{sum(row.fused for row in rows)} of {len(rows)} products"


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
    """The rows of one compiled graph, and whose they are."""

    rows: tuple[Row, ...]
    owner: Owner = field(default_factory=Owner)


#: Everything that was compiled in this process, of models that are still there.
RECORDS: list[Record] = []


def keep(record: Record) -> None:
    """Add a record; drop those of models that are gone."""
    RECORDS[:] = [each for each in RECORDS if not each.owner.is_gone]
    RECORDS.append(record)


def report(model: torch.nn.Module | None = None) -> Report:
    """Return what ``torch.compile(model, backend="evt")`` did, of all models when none is given.

    ``model`` is the module or what torch.compile made of it. A graph is compiled at the first call with a kind of
    inputs, so a model that was not called has no rows; one that was compiled again for other inputs has the rows of
    each time. Raise ArgumentError (E0607) for what is no module.
    """
    check_kind("model", model, torch.nn.Module | None, "a torch.nn.Module")
    found: Iterator[Record] = iter(RECORDS)
    if model is not None:
        wanted = {id(each) for each in (*model.parameters(), *model.buffers())}
        found = (record for record in RECORDS if record.owner.is_part_of(wanted))
    return Report(tuple(row for record in found for row in record.rows))
