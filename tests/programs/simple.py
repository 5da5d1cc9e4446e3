"""Small programs for tests of one thing: ``gemm(value)``, and the ``kinds`` of its failures."""

from __future__ import annotations

from typing import Any

from .checks import check
from .generator import normalised
from .tree import Assign, Expression, Input, Output, Program, Sizes


def gemm(value: Expression, *inputs: Input, **fields: Any) -> Program:
    """Return the product of 3 rows and 32 columns whose D is a value."""
    outputs = fields.pop("outputs", (Output("D", ("m", "n"), "f32"),))
    program = Program(
        a="f32",
        b="f32",
        inputs=inputs,
        outputs=outputs,
        assigns=(Assign("D", value),),
        sizes=Sizes((), (3,), 32, 4),
        **{"data": "normal", **fields},
    )
    return normalised(program)


def kinds(program: Program, targets: tuple[str, ...] = ()) -> set[str]:
    """Return how a program fails."""
    return {failure.kind for failure in check(program, targets).failures}
