"""A module's epilogue, validated: ``epilogue_of(operation, text, weight, bias, keywords) -> Epilogue``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import ProgramError
from evt.ir import Place, Store
from evt.ir.lower import OPERATIONS
from evt.ir.node import shown
from evt.language import with_primary
from evt.program import Program
from evt.request import Request, typed_graph
from evt.request.given import read_text
from evt.runtime.arguments import check_divides
from evt.runtime.report import CallDiagnostics
from evt.runtime.tensors import dtype_of


class Epilogue(NamedTuple):
    """A module's program, and its text.

    ``following`` are the inputs whose type the text leaves open: it follows the type of the operands.
    """

    text: str
    program: Program
    following: tuple[str, ...]


def epilogue_of(
    operation: str,
    text: str | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    keywords: Mapping[str, Any],
) -> Epilogue:
    """Return the epilogue of a module with these parameters; ``keywords`` are the program's.

    Raise ProgramError if the text is not a program of this operation, or if only one of the epilogue and the module has
    a bias; ArgumentError (E0604) if the columns are not a multiple of the epilogue's pairs or blocks; TargetError
    (E0303, E0305) for parameters of another type.
    """
    written = ("acc" if bias is None else "acc + bias") if text is None else read_text(text).text
    program = _shared(Program(with_primary(Source(written, "<epilogue>")), operation, **keywords), written)
    request = program.request
    _check_operation(request, operation)
    _check_names(request)
    dtype = str(weight.dtype).removeprefix("torch.")
    typed = typed_graph(request, dtype, dtype)
    _check_bias(request, bias)
    report = CallDiagnostics()
    check_divides(typed, len(weight), report)
    report.check()
    return Epilogue(written, program, _following(request))


@lru_cache(maxsize=1024)
def _shared(program: Program, text: str) -> Program:
    """Return the first of equal programs of one text, so that layers made alike share prepared calls."""
    return program


def _check_operation(request: Request, operation: str) -> None:
    """Refuse a header whose operation, or whose shapes of A and B, differ from the module's."""
    if request.operation != operation or request.operand_modes != OPERATIONS[operation]:
        message = f"the header of the epilogue is not that of the module, whose operation is {operation}"
        span = request.dag.operands[0].span
        raise ProgramError(Diagnostic("E0501", message, span, "", "omit the header", source=request.source))


def _check_names(request: Request) -> None:
    """Refuse inputs with the name of another argument of forward."""
    for each in request.dag.inputs:
        if each.name in ("self", "input"):
            message = f"`{each.name}` is an argument of forward's own"
            help_text = f"rename it: `{each.name}_`"
            raise ProgramError(Diagnostic("E0108", message, each.span, "", help_text, source=request.source))


def _check_bias(request: Request, bias: torch.Tensor | None) -> None:
    """Check that the epilogue reads the bias, if there is one, as one value for each column."""
    read = request.dag.input.get("bias")
    if read is None:
        if bias is not None:
            span, help_text = _primary(request), "read it, as in `acc + bias`, or pass bias=False"
            message = "the module has a bias, and its epilogue does not read `bias`"
            raise ProgramError(Diagnostic("E0404", message, span, "no `bias`", help_text, source=request.source))
    elif bias is None:
        message = "the epilogue reads `bias`, and the module has none"
        help_text = "pass bias=True; an input of forward has another name"
        raise ProgramError(Diagnostic("E0202", message, read.span, "no parameter", help_text, source=request.source))
    elif read.modes != ("n",):
        message = f"`bias` is [{shown(read.modes)}], and the module's has one value for each column"
        raise ProgramError(Diagnostic("E0302", message, read.span, "", "write `bias[n]`", source=request.source))
    elif read.dtype is not None and read.dtype != dtype_of(bias):
        message = f"`bias` is declared {read.dtype}, and the module's is {bias.dtype}"
        help_text = f"omit the type, or pass dtype=torch.{read.dtype.torch}"
        raise ProgramError(Diagnostic("E0603", message, read.span, "", help_text, source=request.source))


def _primary(request: Request) -> Span | None:
    """Return the place of the statement that assigns the primary output."""
    dag = request.dag
    origins = (origin for (op, _), origin in zip(dag.table, dag.origins, strict=True) if op == Store(dag.primary.name))
    return next((origin.span for origin in origins if isinstance(origin, Place)), None)


def _following(request: Request) -> tuple[str, ...]:
    """Return the inputs whose type changes with the type of the operands."""
    if request.dag.operands:
        return ()
    one, other = (typed_graph(request, dtype, dtype).inputs for dtype in ("f16", "bf16"))
    return tuple(a.name for a, b in zip(one, other, strict=True) if a.dtype != b.dtype)
