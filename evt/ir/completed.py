"""Arithmetic after reductions, which are complete when the kernel ends: ``check_completed(dag, node, types)``.

The kernel that combines the partial results also computes this arithmetic, once for each remaining row or column. The
arithmetic may read reductions over equal modes, numbers, sizes, and inputs of the remaining modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evt.diagnostics import Diagnostic, Label
from evt.ir.dag import Dag
from evt.ir.node import (
    MODES,
    Interleave,
    Load,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Store,
    ValueType,
    base,
    reduced_text,
    written,
)
from evt.ir.origin import Place, at


def check_completed(dag: Dag, node: int, types: Sequence[ValueType]) -> Iterator[Diagnostic]:
    """Yield the reasons that a node cannot read the reductions among its operands (E0410). ``types`` are its
    operands'.
    """
    op, arguments = dag[node], dag.arguments(node)
    reductions = [operand for operand in dict.fromkeys(arguments) if dag.reduced[operand]]
    if not reductions or isinstance(op, Store):
        return
    first, over = reductions[0], dag.reduced[reductions[0]]

    def refused(message: str, label: str, hint: str, culprit: int) -> Diagnostic:
        secondary = _elsewhere(dag, culprit, node)
        return at(dag.origins[node], dag.source, Diagnostic("E0410", message, None, label, hint, secondary=secondary))

    if isinstance(op, Reduce | ReduceBlocks | Pick | Interleave):
        inner = dag[first]
        joined = isinstance(inner, Reduce) and isinstance(op, Reduce) and inner.kind == op.kind
        both = set(map(base, (*over, *getattr(op, "modes", ()))))
        modes = ", ".join(mode for mode in MODES if mode in both)
        yield refused(
            f"a reduction over [{reduced_text(over)}] is complete only when the kernel ends, so it cannot be reduced "
            "or paired again",
            "made from a reduction",
            f"write `{op.kind}[{modes}](x)`" if joined and isinstance(op, Reduce) else _NEXT,
            first,
        )
        return
    for each in reductions[1:]:
        if dag.reduced[each] != over:
            message = f"reductions over [{reduced_text(over)}] and over [{reduced_text(dag.reduced[each])}] meet"
            hint = "arithmetic after a reduction reads reductions over equal modes only; " + _NEXT
            yield refused(message, "made from both", hint, each)
            return
    whole = set(map(base, over))
    left = [mode for mode in ("m", "n") if mode not in whole]
    for operand in dict.fromkeys(arguments):
        if dag.reduced[operand]:
            continue
        varies = types[operand].modes
        if any(base(mode) in whole for mode in varies):
            yield refused(
                f"a reduction over [{reduced_text(over)}] is complete only when the kernel ends, so it cannot be read "
                f"at {_shown(varies)}",
                f"{_shown(varies)} meets a reduction",
                f"{_NEXT}; arithmetic after a reduction reads sizes, scalars"
                + (f" and inputs of {_shown(left)}" if left else "")
                + ("; a kernel also reads blocks of columns: `max[n%128](x)`" if set(over) == {"n"} else ""),
                first,
            )
            return
        if (found := _computed_by_lanes(dag, operand)) is not None:
            message = (
                "pairs, blocks, random numbers and gathered values cannot combine with a reduction, which is complete "
                "only when the kernel ends"
            )
            yield refused(message, "made from both", _NEXT, found)
            return


_NEXT = "store it (`D = ...; s = sum[n](D)`) and use it in the next kernel"


def _shown(modes: Sequence[str]) -> str:
    return f"[{', '.join(map(written, modes))}]"


def read_when_complete(dag: Dag) -> set[str]:
    """Return the inputs that are read after the kernel's end, by arithmetic after reductions."""
    found: set[str] = set()
    stack = [node for node in range(len(dag)) if dag.reduced[node] and not isinstance(dag[node], Reduce)]
    seen = set(stack)
    while stack:
        node = stack.pop()
        op = dag[node]
        if isinstance(op, Load):
            found.add(op.name)
        if not isinstance(op, Reduce):
            new = [operand for operand in dag.arguments(node) if operand not in seen]
            seen.update(new)
            stack.extend(new)
    return found


def _computed_by_lanes(dag: Dag, value: int) -> int | None:
    """Return the part of a value that lanes of the kernel exchange or count, if any."""
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        op = dag[node]
        gathered = isinstance(op, Load) and op.name in dag.input and dag.input[op.name].is_indexed
        if gathered or isinstance(op, Pick | Interleave | ReduceBlocks | Random):
            return node
        new = [operand for operand in dag.arguments(node) if operand not in seen]
        seen.update(new)
        stack.extend(new)
    return None


def _elsewhere(dag: Dag, node: int, user: int) -> tuple[Label, ...]:
    """Return a label at a node's expression, if that is not part of its user's expression."""
    origin, reading = dag.origins[node], dag.origins[user]
    if not isinstance(origin, Place) or (isinstance(reading, Place) and reading.span.covers(origin.span)):
        return ()
    return (Label(origin.span, "the reduction" if dag.reduced[node] else "computed in the kernel"),)
