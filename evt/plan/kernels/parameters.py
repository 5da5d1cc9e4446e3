"""The parameters of a kernel in the program's words: operands, inputs and outputs."""

from __future__ import annotations

from evt.plan.plan import Parameter
from evt.plan.problem import Problem


def parameters(problem: Problem) -> tuple[Parameter, ...]:
    """Return the operands, inputs and outputs of a program, each with its layout."""
    dag, signature = problem.program, problem.signature
    layouts = {"A": signature.a, "B": signature.b, **dict(signature.tensors)}
    found = [Parameter("operand", each.name, each.dtype, each.modes, layouts[each.name]) for each in dag.operands]
    for value in dag.inputs:
        assert value.dtype is not None
        layout, single = layouts.get(value.name), value.default if value.is_scalar else None
        found.append(Parameter("input", value.name, value.dtype, value.modes, layout, value.flexible, single))
    for output in dag.outputs:
        assert output.dtype is not None
        found.append(Parameter("output", output.name, output.dtype, output.modes, layouts.get(output.name)))
    return tuple(found)
