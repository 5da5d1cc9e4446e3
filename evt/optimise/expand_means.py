"""Means as sums: ``mean[m, n](x) -> sum[m, n](x) / size(m) / size(n)``, unless ``var[m, n](x)`` shares its parts."""

from __future__ import annotations

from evt.ir.dag import TypedDag
from evt.ir.node import Const, Extent, Reduce, divisor
from evt.optimise.rewrite import TypedBuilder


def expand_means(dag: TypedDag) -> TypedDag:
    """Replace means by sums, which have smaller parts; a mean beside a variance of the same floats remains."""
    if not any(isinstance(op, Reduce) and op.kind == "mean" for op, _ in dag.table):
        return dag
    variances = {
        (op.modes, operands)
        for op, operands in dag.table
        if isinstance(op, Reduce) and op.kind == "var" and dag.types[operands[0]].dtype.is_float
    }
    builder, renamed = TypedBuilder(dag), list[int]()
    for node in builder.walk(dag):
        op, operands = dag.table[node]
        taken = tuple([renamed[operand] for operand in operands])
        within = isinstance(op, Reduce) and op.is_within  # of blocks, whose size a call has
        if isinstance(op, Reduce) and op.kind == "mean" and not within and (op.modes, operands) not in variances:
            renamed.append(_quotient(builder, op.modes, *taken))
        else:
            renamed.append(builder.add(op, *taken))
    return builder.typed()


def _quotient(builder: TypedBuilder, modes: tuple[str, ...], operand: int) -> int:
    """Return the sum divided by the sizes; a value of fewer columns is divided by its number of columns."""
    value = builder.add(Reduce("sum", modes), operand)
    for mode in modes:
        value = builder.apply("div", value, builder.add(Extent(mode)))
    columns = max(map(divisor, builder.types[operand].modes), default=1) if "n" in modes else 1
    return value if columns == 1 else builder.apply("mul", value, builder.add(Const.of(float(columns))))
