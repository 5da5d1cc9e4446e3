"""Common values of the tests of the graph: types, operands, an output, and a program as a graph without types."""

from __future__ import annotations

from evt.ir import Dag, Operand, Output, lower
from evt.ir.dtype import BY_NAME
from evt.language import parse

F16, BF16, F32, TF32 = (BY_NAME[name] for name in ("f16", "bf16", "f32", "tf32"))
D = Output("D", F16, ("m", "n"))
AB = (Operand("A", F16, ("m", "k")), Operand("B", F16, ("k", "n")))


def untyped(text: str) -> Dag:
    return lower(parse(text))
