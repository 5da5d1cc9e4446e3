"""Mainloop fusions in the main loops of CUTLASS 2.x."""

from __future__ import annotations

from evt.emission.expressions import comment, element, input_pointer, number, size, value_of
from evt.emission.text import WorkText
from evt.plan import Plan
from evt.plan.epilogue.values import Number, Single, Size
from evt.plan.fusions import Work, WorkVector
from evt.plan.plan import Convolution2x

#: The type that stands for an operand without a mainloop fusion.
_NONE = "evt::mainloop::None"


def work(plan: Plan) -> tuple[WorkText, ...]:
    """Return the mainloop fusion of each operand."""
    return tuple(map(_work, plan.work))


def _work(given: Work) -> WorkText:
    inputs = tuple(map(_input, given.inputs))
    types = (given.region.name, *(type_ for type_, _ in inputs))
    return WorkText(given.operand, types, inputs, comment(given.origin))


def _input(given: Single | Size | Number | WorkVector) -> tuple[str, str]:
    """Return an input of a formula: its type, and the expression that makes it."""
    if isinstance(given, Size | Number):
        value = size(given) if isinstance(given, Size) else number(given)
        return "evt::mainloop::Single<int32_t>", f"{value}, nullptr"
    held = element(given.dtype)
    if isinstance(given, Single):
        values = f"{value_of(given)}, {input_pointer(given.dtype, given.pointer)}"
        return f"evt::mainloop::Single<{held}>", values
    along = "AlongK" if given.along_k else "AlongOuter"
    return f"evt::mainloop::{along}<{held}>", input_pointer(given.dtype, given.pointer)


def worked(plan: Plan) -> tuple[str, ...]:
    """Return the template arguments of evt::mainloop::Worked after the stock main loop."""
    places = {given.operand for given in plan.work}
    types = tuple(f"WorkOn{place}" if place in places else _NONE for place in ("A", "B"))
    if isinstance(plan.mainloop, Convolution2x):
        return (*types, "true" if plan.mainloop.padded else "false")
    return types
