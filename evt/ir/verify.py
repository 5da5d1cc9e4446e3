"""The invariants of every graph between passes. A violation is a bug in evt, not a mistake of the user."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import InternalError
from evt.functions import TABLE
from evt.ir.dag import Dag, TypedDag
from evt.ir.node import (
    ELEMENT_MODES,
    MOMENTS,
    PLACES,
    REDUCTIONS,
    ROOTS,
    Acc,
    Apply,
    Cast,
    Element,
    Feed,
    Load,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
)
from evt.ir.operand import sides_of
from evt.ir.origin import at
from evt.ir.value_types import value_type


def verify(dag: Dag) -> None:
    """Check the invariants of ``dag``. Raise InternalError (E0902) that names the first violation."""
    if isinstance(dag, TypedDag) and len(dag.types) != len(dag):
        raise InternalError(Diagnostic("E0902", "the graph is malformed: not every value has a type"))
    if len(dag.origins) != len(dag):
        raise InternalError(Diagnostic("E0902", "the graph is malformed: not every value has an origin"))
    seen: set[object] = set()
    for node in range(len(dag)):
        op, operands = dag[node], dag.arguments(node)
        _require(dag, all(0 <= operand < node for operand in operands), node, "an operand comes after its user")
        _require(dag, (op, operands) not in seen, node, "two nodes are equal")
        seen.add((op, operands))
        match op:
            case Element(name):
                _require(dag, name in ELEMENT_MODES, node, f"`{name}` is not an operand")
            case Load(name):
                _require(dag, name in dag.input, node, f"`{name}` is not an input")
            case Acc(name):
                _require(dag, name == "B" or name in dag.input, node, f"`{name}` is not an input")
            case Apply(function):
                _require(dag, function in TABLE, node, f"`{function}` is not in the function table")
            case Reduce(kind, modes) if kind in PLACES:
                _require(dag, len(modes) == 1, node, "a place is along one mode")
            case Reduce(kind) if kind in MOMENTS:
                pass
            case Reduce(kind) | ReduceBlocks(kind):
                _require(dag, kind in REDUCTIONS, node, f"`{kind}` is not a reduction")
        arity = len(TABLE[op.function].parameters) if isinstance(op, Apply) else op.arity
        _require(dag, len(operands) == arity, node, f"it has {len(operands)} operands and needs {arity}")
        _require(
            dag,
            not any(isinstance(dag[operand], ROOTS) for operand in operands),
            node,
            "it reads a store",
        )
        if isinstance(op, Feed):
            _require(dag, not dag.users[node], node, "a feed has users")
            _require(dag, dag.feeds[op.name] == node, node, f"`{op.name}` is fed twice")
        if isinstance(op, Scale):
            _require(dag, not dag.users[node], node, "a scale has users")
            _require(dag, dag.scales[op.name] == node, node, f"`{op.name}` is scaled twice")
        if not isinstance(op, Apply | Cast | Store):
            _require(dag, not any(dag.reduced[operand] for operand in operands), node, "it reads a reduction")
        else:
            over = {dag.reduced[operand] for operand in operands} - {()}
            _require(dag, len(over) <= 1, node, "it reads reductions over different modes")
        if isinstance(op, Store):
            _require(dag, op.name in dag.output, node, f"`{op.name}` is not an output")
            _require(dag, not dag.users[node], node, "a store has users")
    stores = [dag[node].name for node in range(len(dag)) if isinstance(dag[node], Store)]  # type: ignore[union-attr]
    _require(dag, sorted(stores) == sorted(dag.output), 0, "outputs and stores differ")
    _require(dag, bool(dag.outputs), 0, "no output")
    for node, sides in enumerate(sides_of(dag)):
        _require(dag, len(sides) <= 1, node, f"it depends on {', '.join(sorted(sides))} at once")
    names = [*(value.name for value in dag.inputs), *(value.name for value in dag.outputs)]
    _require(dag, len(set(names)) == len(names), 0, "two inputs or outputs have one name")
    if isinstance(dag, TypedDag):
        for node in range(len(dag)):
            expected = value_type(dag, dag[node], [dag.types[operand] for operand in dag.arguments(node)])
            _require(dag, dag.types[node] == expected, node, f"its type is not {expected}")


def _require(dag: Dag, condition: bool, node: int, message: str) -> None:
    if not condition:
        message = f"the graph is malformed at %{node}: {message}"
        made = Diagnostic("E0902", message, notes=tuple(str(dag).splitlines()))
        raise InternalError(at(dag.origins[node], dag.source, made))
