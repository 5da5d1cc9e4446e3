"""A program's gradient as two programs: ``derive(dag, outputs, wanted) -> Gradient``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evt.gradient.cut import choose_saved
from evt.gradient.reverse import Joint, differentiate, read_back, untyped
from evt.html import code, page, table
from evt.ir.dag import Builder, Dag, TypedDag, prune, reads_accumulator
from evt.ir.formula import formula
from evt.ir.interface import declaration
from evt.ir.node import Load, Output, Store, ValueType
from evt.ir.value_types import value_type


@dataclass(frozen=True, eq=False, repr=False)
class Gradient:
    """A program's gradient.

    ``forward`` is the program with outputs for the ``saved`` values; these outputs, by name, may be the program's
    outputs. ``backward`` computes the gradients of inputs, and of the accumulator, from inputs, saved values and the
    gradients of outputs. It reads the accumulator only if the product is recomputed. ``arriving`` maps an output's name
    to the name of the backward input for its gradient; ``leaving`` maps an input's name to the backward output for its
    gradient.
    """

    forward: Dag
    saved: tuple[Output, ...]
    backward: TypedDag
    arriving: Mapping[str, str]
    leaving: Mapping[str, str]

    def __str__(self) -> str:
        saved = ", ".join(declaration(each.name, each.dtype, each.modes) for each in self.saved) or "nothing"
        parts = {"forward": formula(self.forward), "saved": saved, "backward": formula(self.backward)}
        return "\n".join(line for name, text in parts.items() for line in (f"{name}:", *_indented(text)))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from evt.draw.program import graph_html

        saved = [(each.name, str(each.dtype or ""), f"[{', '.join(each.modes)}]") for each in self.saved]
        return page(
            table(("forward",), [(code(formula(self.forward)),)]),
            table(("saved", "type", "modes"), saved or [("nothing", "", "")]),
            table(("backward",), [(code(formula(self.backward)),)]),
            graph_html(self.backward, "graph of the backward program"),
        )


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def derive(
    dag: TypedDag,
    outputs: Sequence[str],
    wanted: Sequence[str],
    *,
    recompute: bool = False,
    arriving: Sequence[str] | None = None,
) -> Gradient:
    """Return the gradient of a program without mainloop fusion, for inputs and :data:`evt.gradient.ACCUMULATOR`.

    The saved values serve the gradients of all ``outputs``; the backward program reads the gradients of ``arriving``
    only. With ``recompute`` nothing is saved, and the backward program reads the accumulator; it does not sum over
    batches. Raise NoDerivativeError for a function without a derivative.
    """
    whole = differentiate(dag, outputs, wanted, each_batch=recompute)
    saved = {} if recompute else choose_saved(whole, _types(untyped(whole)))
    forward = _forward(whole, saved)
    part = whole
    if arriving is not None and set(arriving) != set(outputs):
        part = differentiate(dag, arriving, wanted, each_batch=recompute)
    backward = _backward(part, {node: saved[same] for node, same in _shared(part, whole).items() if same in saved})
    assert recompute or not reads_accumulator(backward)
    return Gradient(
        forward,
        tuple(saved.values()),
        backward,
        {name: each.name for name, each in part.arriving.items()},
        {name: each.name for name, each in part.leaving.items()},
    )


def _shared(part: Joint, whole: Joint) -> dict[int, int]:
    """Return the nodes that two graphs share, and their ids in the other graph."""
    ids = {entry: node for node, entry in enumerate(whole.table)}
    found: dict[int, int] = {}
    for node, (op, operands) in enumerate(part.table):
        if all(operand in found for operand in operands):
            same = ids.get((op, tuple(found[operand] for operand in operands)))
            if same is not None:
                found[node] = same
    return found


def _types(dag: Dag) -> list[ValueType]:
    """Return the types of a graph's values, without the checks for kernels."""
    types: list[ValueType] = []
    for op, operands in dag.table:
        types.append(value_type(dag, op, [types[operand] for operand in operands]))
    return types


def _forward(joint: Joint, saved: Mapping[int, Output]) -> Dag:
    """Return the program with outputs for the saved values."""
    dag, builder = joint.dag, Builder()
    for op, operands in joint.table:
        builder.add(op, *operands)
    new = {node: output for node, output in saved.items() if output.name not in dag.output}
    for node, output in new.items():
        builder.add(Store(output.name), node)
    made = builder.finish(dag.operation, dag.operands, dag.inputs, (*dag.outputs, *new.values()), dag.source)
    return replace(prune(made), inputs=dag.inputs)


def _backward(joint: Joint, saved: Mapping[int, Output]) -> TypedDag:
    """Return the program that computes the leaving gradients from the saved values."""
    dag, builder, renamed = joint.dag, Builder(), dict[int, int]()
    live = joint.needed(saved.keys())
    inputs = {each.name: each for each in (*dag.inputs, *joint.arriving.values())}
    for node, output in saved.items():
        if node in live:
            loaded = read_back(dag, output, output.name)
            inputs[loaded.name] = loaded
            renamed[node] = builder.add(Load(loaded.name))
    for node in sorted(live - set(renamed)):
        op, operands = joint.table[node]
        renamed[node] = builder.add(op, *(renamed[operand] for operand in operands))
    made = builder.finish(dag.operation, dag.operands, inputs.values(), joint.leaving.values(), dag.source)
    made = prune(made)
    fields = (made.operation, made.operands, made.inputs, made.outputs, made.table, made.source, made.origins)
    return TypedDag(*fields, tuple(_types(made)))
