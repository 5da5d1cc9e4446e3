"""A program's graph with types, ``typed_graph(request, a, b)``, and after the optimiser, ``optimised_graph(request, a,
b)``.

Equal arguments return one object.
"""

from __future__ import annotations

from evt.diagnostics import Diagnostic, hint, quoted
from evt.errors import ArgumentError, TargetError
from evt.ir import Dag, Operand, TypedDag, infer
from evt.ir.dtype import PACKED_OPERANDS
from evt.ir.node import Inferred
from evt.ir.specialise import without_inputs
from evt.optimise import ROUNDING_KEPT, optimise, round_as_eager
from evt.request.given import read_dtype
from evt.request.request import Request, remembered_for_kernels

DEFAULT_DTYPE = "f16"


def typed_graph(request: Request, a: str | None = None, b: str | None = None) -> TypedDag:
    """Return the graph with types, for operands of types ``a`` and ``b`` (default: the header's, else f16).

    Raise ProgramError, and TargetError: E0303 for an unknown type, E0305 for one that contradicts the header.
    """
    return typed_for(request, operands_of(request, a, b))


def optimised_graph(request: Request, a: str | None = None, b: str | None = None) -> TypedDag:
    """Return the typed graph after the optimiser. Raise the errors of :func:`typed_graph`."""
    return optimised_for(request, operands_of(request, a, b))


#: The stages at which a program is a graph.
STAGES = ("dag", "typed", "optimised")


def graph_at(request: Request, stage: str, a: str | None = None, b: str | None = None) -> Dag:
    """Return the graph after a stage: as written (dag), with types, or optimised.

    Raise ArgumentError (E0607) for another stage, and the errors of :func:`typed_graph`.
    """
    if stage not in STAGES:
        message = f"there is no stage {quoted(stage)}"
        raise ArgumentError(Diagnostic("E0607", message, help=hint(stage, STAGES, "stages")))
    if stage == "dag":
        return request.dag
    return typed_graph(request, a, b) if stage == "typed" else optimised_graph(request, a, b)


@remembered_for_kernels
def typed_for(request: Request, operands: tuple[Operand, ...], absent: tuple[str, ...] = ()) -> TypedDag:
    """Return the graph with types and with the rounding points of the settings.

    ``absent`` are the inputs that a call omits; their defaults become constants. Raise ProgramError.
    """
    dag = request.dag
    if absent:
        defaults = {each.name: each.default for each in dag.inputs if each.name in absent and each.default is not None}
        dag = without_inputs(infer(dag, operands), defaults)
    made = infer(dag, operands)
    return round_as_eager(made) if request.settings.numerics == "eager" else made


@remembered_for_kernels
def optimised_for(request: Request, operands: tuple[Operand, ...], absent: tuple[str, ...] = ()) -> TypedDag:
    """Return :func:`typed_for` after the passes that the settings allow. Raise ProgramError."""
    made = typed_for(request, operands, absent)
    if request.settings.numerics == "eager":
        return optimise(made, ROUNDING_KEPT)
    return optimise(made, relaxed=request.settings.relaxed)


def operands_of(request: Request, a: str | None, b: str | None) -> tuple[Operand, ...]:
    """Return A and B with the requested types. Raise TargetError (E0303, E0305)."""
    if request.dag.operands:
        for operand, asked in zip(request.dag.operands, (a, b), strict=True):
            if asked is not None and read_dtype(asked) != operand.dtype:
                raise TargetError(
                    Diagnostic(
                        "E0305",
                        f"the program declares {operand.name}: {operand.dtype}; {read_dtype(asked)} was asked for",
                        help="omit the type, or change the program's header",
                    )
                )
        return request.dag.operands
    second = None if b is None else read_dtype(b)
    alike = second is not None and second not in PACKED_OPERANDS  # A has the type of B, unless B alone may have it
    first = read_dtype(a if a is not None else b if alike else DEFAULT_DTYPE)
    modes_a, modes_b = request.operand_modes
    second = second or first
    inferred: tuple[Inferred, ...] = ("type", "modes")
    return Operand("A", first, modes_a, None, inferred), Operand("B", second, modes_b, None, inferred)
