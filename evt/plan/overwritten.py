"""The memory that a kernel may read and write: ``overwritten(plan) -> pairs of addresses``."""

from __future__ import annotations

from evt.plan.epilogue.loads import Auxiliary, Packed
from evt.plan.fields import Field
from evt.plan.plan import Plan


def overwritten(plan: Plan) -> tuple[tuple[Field, Field], ...]:
    """Return the addresses of each output and of the matrices that it may overwrite, element by element.

    A call may give the same address for both: see :mod:`evt.runtime.overlap`.
    """
    inputs, outputs = list[tuple[Field, int]](), list[tuple[Field, int]]()
    for tensors, tensor in ((inputs, plan.source), (outputs, plan.destination)):
        if tensor is not None:
            tensors.append((tensor.pointer, tensor.dtype.bits))
    for step in plan.steps:
        if isinstance(step, Auxiliary | Packed) and step.bytes > 0:
            (outputs if step.passes else inputs).append((step.pointer, step.element.bits))
    return tuple(dict.fromkeys((out, read) for out, bits in outputs for read, other in inputs if bits == other))
