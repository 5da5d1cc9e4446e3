"""A launch's outputs against the evaluator, element by element: ``judge(program, outputs) -> Verdict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..call import problems
from ..checks import CheckResult
from ..compare import compare
from ..evaluator import Mode, evaluate
from ..interface import reductions
from ..tree import Program
from .launch import Fault, Stored, restored

#: The part of a product by which tensor cores may be off: operands rounded to tf32, sums of fewer bits.
PRODUCT = {
    **dict.fromkeys(("f16", "bf16"), 2.0**-19),
    "f32": 2.0**-9,
    "tf32": 2.0**-12,
    **dict.fromkeys(("e4m3", "e5m2"), 2.0**-10),
}
#: The tolerance of CUDA's functions and of contracted formulas, in units in the last place.
FUNCTION = 16.0
#: By how much CUTLASS's activations may be off, as gelu is where it is almost 0: erf is added to 1.
STOCK = 2.0**-20


@dataclass(frozen=True)
class Verdict:
    """The faults in the outputs of a launch, the number of compared elements, and the number in doubt."""

    faults: tuple[Fault, ...]
    compared: int
    doubted: int


def judge(program: Program, outputs: Sequence[Mapping[str, Stored]]) -> Verdict:
    """Compare the outputs of a launch with the meaning of the program."""
    report, relaxed = CheckResult(), bool(dict(program.settings).get("relaxed"))
    product = max(PRODUCT.get(each, 0.0) for each in (program.a, program.b))
    mode = Mode(single=True, loose=True, finite=relaxed, function=FUNCTION, product=product)
    slack = STOCK if "stock" in str(dict(program.settings).get("route")) else 0.0
    for data, found in zip(problems(program), outputs, strict=True):
        tensors = {name: restored(each) for name, each in found.items()}
        compare(program, data, "kernel", evaluate(program, data, mode), tensors, reductions(program), report, slack)
    faults = tuple(Fault("value", each.detail) for each in report.failures)
    return Verdict(faults, report.counts["compared kernel"], report.counts["in doubt kernel"])
