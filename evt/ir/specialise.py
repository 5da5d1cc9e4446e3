"""A program without some of its inputs: ``without_inputs(dag, values) -> Dag``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evt.ir.dag import Builder, Dag, prune
from evt.ir.dtype import B1, BOOL, I32, I64
from evt.ir.node import Cast, Const, Load, direct
from evt.ir.origin import Place
from evt.ir.value_types import canonical


def without_inputs(dag: Dag, values: Mapping[str, float]) -> Dag:
    """Return the program with constants in place of inputs, by name, for inputs that a call omits.

    The constants have the inputs' modes, and their types if those are resolved: a default is rounded as the tensor
    would be. Their origin is the declaration of the default.
    """
    if not values:
        return dag
    builder, renamed = Builder(), list[int]()
    for node in builder.walk(dag):
        op = dag[node]
        if isinstance(op, Load) and op.name in values:
            value = dag.input[op.name]
            dtype, modes = value.dtype, canonical(map(direct, value.modes))
            if value.default_span is not None:
                builder.origin = Place(value.default_span)
            constant = builder.add(Const.of(values[op.name], modes))
            dtype = (
                {I64: I32, BOOL: B1}.get(dtype, dtype) if dtype is not None else None
            )  # the type as which these are read
            renamed.append(constant if dtype is None else builder.add(Cast(dtype), constant))
        else:
            renamed.append(builder.add(op, *(renamed[operand] for operand in dag.arguments(node))))
    inputs = tuple(value for value in dag.inputs if value.name not in values)
    return replace(prune(builder.finish(dag.operation, dag.operands, inputs, dag.outputs, dag.source)), inputs=inputs)
