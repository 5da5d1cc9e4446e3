"""What was fused, what not, and why: ``report(model) -> Report``."""

from __future__ import annotations

import html
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Row:
    """A product of a graph: its program and the operators that it absorbed, or the reason why it is left alone.

    ``node`` is its name in the graph, ``formula`` the program as text, ``shapes`` those of A and B, ``absorbed`` the
    names of the operators beside the product, ``behind`` why the operators that read its results are not fused.
    """

    node: str
    operation: str
    shapes: str
    formula: str = ""
    absorbed: tuple[str, ...] = ()
    reason: str = ""
    behind: tuple[str, ...] = ()

    @property
    def fused(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Report:
    """The products of all graphs of a model, in the order in which they were compiled; prints as a table."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        if not self.rows:
            return "no graph with a matrix product or a convolution was compiled"
        fused = [row for row in self.rows if row.fused]
        absorbed = sum(len(row.absorbed) for row in fused)
        lines = [f"{len(fused)} of {len(self.rows)} products fused, with {absorbed} operators"]
        width = max(len(row.node) for row in self.rows)
        for row in self.rows:
            said = row.formula if row.fused else f"not fused: {row.reason}"
            lines.append(f"  {row.node:<{width}}  {row.operation} {row.shapes}  {said}")
            lines += [f"  {'':<{width}}    {each}" for each in row.behind]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        head = "".join(f"<th>{each}</th>" for each in ("product", "operation", "shapes", "formula", "not fused"))
        body = []
        for row in self.rows:
            why = "<br>".join(map(html.escape, filter(None, (row.reason, *row.behind))))
            cells = (*map(html.escape, (row.node, row.operation, row.shapes, row.formula)), why)
            body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f"<table><tr>{head}</tr>{''.join(body)}</table>"


@dataclass
class Record:
    """The rows of one compiled graph, and the parameters that it reads, by which a model finds it."""

    rows: tuple[Row, ...]
    parameters: Sequence[weakref.ref[torch.Tensor]] = field(default_factory=tuple)

    def reads(self, wanted: set[int]) -> bool:
        found = (each() for each in self.parameters)
        return any(each is not None and id(each) in wanted for each in found)


#: Everything that was compiled in this process.
RECORDS: list[Record] = []


def report(model: torch.nn.Module | None = None) -> Report:
    """Return what ``torch.compile(model, backend="evt")`` did, of all models when none is given.

    A graph is compiled at the first call with a kind of inputs, so a model that was not called has no rows.
    """
    found: Iterator[Record] = iter(RECORDS)
    if model is not None:
        wanted = {id(each) for each in (*model.parameters(), *model.buffers())}
        found = (record for record in RECORDS if record.reads(wanted))
    return Report(tuple(row for record in found for row in record.rows))
