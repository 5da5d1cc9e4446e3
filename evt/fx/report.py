"""Report the fused and the unfused products of a model: ``report(model, inputs, arch=...) -> Report``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import CodeType
from typing import Any

import torch
from torch._dynamo import external_utils

from evt.diagnostics import Diagnostic, visible
from evt.errors import ArgumentError
from evt.fx.backend import options_of
from evt.fx.fuse import fuse, fusion
from evt.fx.module import dispatch_of
from evt.fx.options import LOSSLESS
from evt.fx.prebuild import survey
from evt.fx.records import RECORDS, ProductReport, Record, rows_of, tensors_of
from evt.html import code, escaped, page, table
from evt.plan import find_target
from evt.request.given import check_kind


@dataclass(frozen=True, repr=False)
class Report:
    """The products of all graphs of a model, in the order of compilation; prints as a table.

    ``target`` is the target of the report, ``calls`` counts how calls ran, of a fused module or with
    rule="lossless". ``captured`` says that the report describes a graph, which may be without products. ``joined``
    counts elementwise operators that Inductor computes in fewer kernels.
    """

    rows: tuple[ProductReport, ...]
    target: str = ""
    calls: str = ""
    captured: bool = False
    joined: str = ""

    @property
    def fused(self) -> tuple[ProductReport, ...]:
        return tuple(row for row in self.rows if row.fused)

    def __str__(self) -> str:
        if not self.rows:
            return self._without_products
        where = f" on {self.target}" if self.target else ""
        count = sum(len(row.absorbed) for row in self.fused)
        lines = [f"{_counted(self.rows)} fused{where}, with {count} operator{'s' * (count != 1)}"]
        elsewhere = all(row.reason.startswith("E1016") for row in self.rows)
        lines += [_ELSEWHERE] if elsewhere else []
        lines += [f"calls: {self.calls}"] if self.calls else []
        lines += [self.joined] if self.joined else []
        width = max(len(row.node) for row in self.rows)
        for graph, found in groupby(self.rows, lambda row: row.graph):
            rows = tuple(found)
            lines += [f"{graph}: {_counted(rows)} fused"] if graph else []
            for row in rows:
                said = "" if elsewhere else row.said
                lines.append(f"  {row.node:<{width}}  {row.operation} {row.shapes}  {said}".rstrip())
                lines += [f"  {'':<{width}}    {line}" for line in row.formula.splitlines()]
                lines += [f"  {'':<{width}}    not fused: {each}" for each in row.behind]
        return visible("\n".join(lines), keep="\n")

    @property
    def _without_products(self) -> str:
        if not self.captured and self.calls:
            return f"{_NOT_COMPARED}\ncalls: {self.calls}"
        if not self.captured:
            return _NOT_COMPILED
        return "\n".join([_NO_PRODUCT, *([f"calls: {self.calls}"] if self.calls else [])])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        if not self.rows:
            return page(escaped(self._without_products))
        headings = ("graph", "product", "operation", "shapes", "formula", "gain", "kernel", "not fused")
        rows = [
            (row.graph, row.node, row.operation, row.shapes, code(row.formula), row.gain, row.kernel, "\n".join(why))
            for row in self.rows
            for why in [list(filter(None, (row.reason, *row.behind)))]
        ]
        marks = ["" if row.fused else "failed" for row in self.rows]
        return page(table(headings, rows, str(self).partition("\n")[0], marks=marks))


def _counted(rows: Sequence[ProductReport]) -> str:
    return f"{sum(row.fused for row in rows)} of {len(rows)} products"


_NO_PRODUCT = (
    "the graph has no matrix product and no convolution; an operator such as lstm or gru_cell keeps its own products"
)
_NOT_COMPILED = (
    "no graph with a matrix product or a convolution was compiled; a model is compiled when it is called: call it, "
    "or pass the inputs of a call, evt.report(model, inputs)"
)
_NOT_COMPARED = 'rule="lossless" has compared no graph with eager PyTorch'
_ELSEWHERE = (
    "the model is on the CPU, and kernels run on CUDA devices (E1016); these are the formulas, and "
    'evt.report(model, inputs, arch="sm90") says what a target would do'
)


def report(
    model: torch.nn.Module | Callable[..., Any] | None = None,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    arch: str | None = None,
) -> Report:
    """Return the fused products of a model, and the reasons of all others; without a model, of all compiled models.

    ``model`` is a module, the result of :func:`evt.fuse`, or the result of torch.compile with ``backend="evt"``; the
    last selects the graphs that were compiled with its options. The first call with a kind of inputs compiles a graph.
    So a model that was never called has no rows, and a model that was compiled again has the rows of each time. A
    compiled function has the rows of all graphs that were compiled from its lines.

    With ``inputs``, a sequence or keyword arguments, the report describes a call with these inputs. The model is called
    once, uncompiled, and nothing is built. ``arch`` names a target; the model may be on the CPU. Raise ArgumentError
    (E0607) for arguments of other kinds, TargetError (E0501) for an unknown target.
    """
    function = None if isinstance(model, torch.nn.Module) else getattr(model, "_torchdynamo_orig_callable", model)
    if isinstance(owner := getattr(function, "__self__", None), torch.nn.Module):
        model = owner  # of a compiled method
    code = _code_of(function)
    expected = "a torch.nn.Module, or a Python function that torch.compile compiles"
    check_kind("model", model, torch.nn.Module | None if code is None else object, expected)
    check_kind("inputs", inputs, tuple | list | Mapping | None, "a tuple of them, as in `(x,)`, or a mapping")
    target = find_target(arch).name if arch is not None else ""
    if model is None or (inputs is None and target):
        if target:
            message = "a target is asked for without the inputs of a call"
            raise ArgumentError(Diagnostic("E0607", message, help=f'evt.report(model, (x,), arch="{arch}")'))
        return _recorded(RECORDS)
    if not isinstance(model, torch.nn.Module):
        assert callable(function)
        assert code is not None
        if inputs is not None:
            return Report(survey(function, inputs, None, target), target, captured=True)
        return _recorded([each for each in RECORDS if each.owner.is_compiled_from(code)])
    dispatch = dispatch_of(model)
    if dispatch is not None and not target:
        known = fusion(model, inputs)
        unique = {id(each): each for each in dispatch.plans.values() if not isinstance(each, str)}
        plans = [each for each in unique.values() if inputs is None or each.fusion is known]
        found = {id(each): each for each in [*[each.fusion for each in plans], known]}
        rows = tuple(row for each in found.values() for row in rows_of(each.outcomes))
        joined = [each.count for every in plans for each in every.joined]
        return Report(rows, calls=_told(dispatch.answers), captured=True, joined=_joined(joined))
    options, original = options_of(model), getattr(model, "_orig_mod", model) if dispatch is None else dispatch.model
    if options is not None and options.rule == LOSSLESS and inputs is not None and not target:
        return Report(rows_of(fusion(fuse(original, inputs, rule=LOSSLESS)).outcomes), captured=True)
    if inputs is not None:
        return Report(survey(original, inputs, options, target), target, captured=True)
    wanted = set(map(id, tensors_of(model)))
    lines = None if wanted else _code_of(original.forward)  # of a model without parameters
    mine = [each for each in RECORDS if each.owner.is_part_of(wanted) or (lines and each.owner.is_compiled_from(lines))]
    return _recorded(mine if options is None else [record for record in mine if record.options == options])


def _code_of(function: Any) -> CodeType | None:
    """Return the code of a Python function, of a method, or of the function in a partial; None for another object."""
    while True:
        code = getattr(function, "__code__", None)
        if isinstance(function, partial):
            function = function.func
        elif isinstance(code, CodeType) and code.co_filename == external_utils.__file__:  # Dynamo's wrapper
            function = getattr(function, "__wrapped__", None)
        else:
            return code if isinstance(code, CodeType) else None


def _recorded(records: Sequence[Record]) -> Report:
    answers = sum((Counter(record.answers) for record in records), Counter[str]())
    return Report(tuple(row for record in records for row in record.rows), calls=_told(answers))


def _joined(counts: Sequence[int]) -> str:
    """Return the number of elementwise operators in kernels of Inductor's as text."""
    return f"{sum(counts)} elementwise operators in {len(counts)} kernel{'s' * (len(counts) != 1)}" if counts else ""


def _told(answers: Mapping[str, int]) -> str:
    """Return how calls ran as text, from the names that a dispatch counts."""
    ran = ((count, how if how == "fused" else f"by the model itself ({how})") for how, count in answers.items())
    return ", ".join(f"{count} {how}" for count, how in ran)
