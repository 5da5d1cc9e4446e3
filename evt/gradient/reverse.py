"""Reverse-mode differentiation of a graph: ``differentiate(dag, outputs, wanted) -> Joint``.

The joint graph has the program's nodes, a load of the gradient of each output, and stores of the wanted gradients. It
is not a program: its values of the forward pass may be saved, as :mod:`evt.gradient.cut` decides.

A node's gradient may vary over modes that the node lacks. It is summed over them in the last step, where a gradient is
stored, so that a kernel can compute the sum. A gradient may also lack modes of its node; then it is constant along
them. Casts count as the identity, as in autograd. The gradient of an extreme value is divided among the elements that
equal it, as in PyTorch's ``amax``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from evt.functions import TABLE
from evt.ir.dag import Builder, Dag, Entry, TypedDag
from evt.ir.dtype import F32, F64, TF32
from evt.ir.lower.derivative import add_formula, partial, times
from evt.ir.node import (
    MODES,
    MOMENTS,
    ROOTS,
    Acc,
    Apply,
    Cast,
    Const,
    Extent,
    Input,
    Interleave,
    Load,
    Output,
    Pick,
    Reduce,
    ReduceBlocks,
    Store,
    base,
    direct,
    divisor,
)
from evt.ir.value_types import canonical, value_modes

#: The name of the accumulator among the wanted gradients, as in programs.
ACCUMULATOR = "acc"


@dataclass(frozen=True)
class Joint:
    """A program and its gradients in one graph.

    ``table`` begins with the program's nodes, stores included. ``arriving`` are the gradients of outputs by the
    output's name; ``leaving`` are the gradients of inputs, and of the accumulator, by the input's name.
    """

    dag: TypedDag
    table: tuple[Entry, ...]
    arriving: Mapping[str, Input]
    leaving: Mapping[str, Output]

    @cached_property
    def stores(self) -> dict[str, int]:
        """The Store node of each leaving gradient, by the input's name."""
        found = {op.name: node for node, (op, _) in enumerate(self.table) if isinstance(op, Store)}
        return {name: found[output.name] for name, output in self.leaving.items()}

    def needed(self, saved: Set[int] = frozenset()) -> set[int]:
        """Return the nodes that the leaving gradients need, down to the saved values."""
        found: set[int] = set()
        stack = [*self.stores.values()]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                if node not in saved:
                    stack.extend(self.table[node][1])
        return found


def differentiable_outputs(dag: TypedDag) -> tuple[str, ...]:
    """Return the outputs that have gradients: the floating-point ones."""
    return tuple(output.name for output in dag.outputs if output.dtype is not None and output.dtype.is_float)


def differentiate(dag: TypedDag, outputs: Iterable[str], wanted: Iterable[str], *, each_batch: bool = False) -> Joint:
    """Return a program, without mainloop fusion, with the gradients of inputs and of :data:`ACCUMULATOR`.

    ``outputs`` are the outputs whose gradients arrive. With ``each_batch`` gradients are not summed over the batches of
    a matrix product, because a launch may have only some of them. Raise NoDerivativeError for a function without one.
    """
    return _Reverse(dag, tuple(outputs), tuple(wanted), each_batch).joint()


def read_back(dag: Dag, output: Output, name: str) -> Input:
    """Return the input that reads an output's tensor."""
    modes = output.modes or (output.memory_modes if dag.operation == "gemm" else ())
    return Input(name, output.dtype, modes, batchable=output.batchable)


class _Reverse:
    def __init__(self, dag: TypedDag, outputs: tuple[str, ...], wanted: tuple[str, ...], each_batch: bool) -> None:
        self.dag = dag
        self.each_batch = each_batch
        self.wanted = wanted
        self.builder = Builder()
        for node in self.builder.walk(dag):
            self.builder.add(dag[node], *dag.arguments(node))
        self.taken = {*dag.input, *dag.output}
        self.arriving = {name: self.arriving_input(dag.output[name]) for name in outputs}
        self.inputs = {**dag.input, **{each.name: each for each in self.arriving.values()}}
        self.has_batches = dag.operation == "gemm"
        self.varies: list[tuple[str, ...]] = []
        #: The terms of the gradient of each node, and of the two members of a node's pairs by their distance.
        self.terms: dict[int, list[int]] = {}
        self.pairs: dict[int, dict[tuple[int, int], list[int]]] = {}
        self.active = self.differentiable_nodes()

    def joint(self) -> Joint:
        for name, source in self.arriving.items():
            (stored,) = self.dag.arguments(self.dag.stores[name])
            self.add_term(stored, self.builder.add(Load(source.name)))
        leaving: dict[str, Output] = {}
        for node in reversed(range(len(self.dag))):
            gradient = self.gradient(node)
            if gradient is None:
                continue
            op = self.dag[node]
            if isinstance(op, Acc | Load):
                name = ACCUMULATOR if isinstance(op, Acc) else op.name
                leaving[name] = self.leave(name, gradient)
            else:
                self.propagate(node, gradient)
        return Joint(self.dag, tuple(self.builder.table), self.arriving, leaving)

    def differentiable_nodes(self) -> list[bool]:
        """Return for each node whether it depends on a wanted input through floating-point values."""
        active: list[bool] = []
        for node, (op, operands) in enumerate(self.dag.table):
            own = (isinstance(op, Acc) and ACCUMULATOR in self.wanted) or (
                isinstance(op, Load) and op.name in self.wanted
            )
            passes = not isinstance(op, ROOTS) and any(active[operand] for operand in operands)
            active.append((own or passes) and self.dag.types[node].dtype.is_float)
        return active

    def name(self, of: str) -> str:
        """Return a name that is not taken."""
        name = f"grad_{of}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def arriving_input(self, output: Output) -> Input:
        return read_back(self.dag, output, self.name(output.name))

    def add(self, op: Apply | Const | Extent | Reduce | ReduceBlocks | Pick | Interleave, *operands: int) -> int:
        return self.builder.add(op, *operands)

    def add_term(self, node: int, term: int) -> None:
        if self.active[node] and self.builder[term] != Const.of(0.0):
            self.terms.setdefault(node, []).append(term)

    def gradient(self, node: int) -> int | None:
        """Return the gradient of a node, the sum of its terms; None if nothing arrives."""
        terms = list(self.terms.get(node, ()))
        halves = self.pairs.get(node, {})
        for block in dict.fromkeys(block for _, block in halves):
            zero = self.add(Const.of(0.0))
            members = [self.total(node, halves.get((member, block), [])) for member in (0, 1)]
            terms.append(self.add(Interleave(block), *(zero if each is None else each for each in members)))
        return self.total(node, terms)

    def total(self, node: int, terms: Sequence[int]) -> int | None:
        """Return the sum of the terms of a node's gradient, which vary over equal modes beyond the node's."""
        if len(terms) > 1:
            terms = [self.of_blocks(node, term) for term in terms]
            if len({self.beyond(node, term) for term in terms}) > 1:
                terms = [self.summed(term, self.beyond(node, term)[0]) for term in terms]
        total: int | None = None
        for term in terms:
            total = term if total is None else self.add(Apply("add"), total, term)
        return total

    def beyond(self, node: int, term: int) -> tuple[frozenset[str], int]:
        """Return the modes over which a term must be summed to a node's gradient, and the width of its columns."""
        modes = self.modes(term)
        over = frozenset(map(base, modes)) - {*map(base, self.modes(node))}
        return over, self.width(modes) if "n" in over else 0

    def summed(self, value: int, over: Set[str]) -> int:
        modes = tuple(mode for mode in MODES if mode in over)
        return self.add(Reduce("sum", modes), value) if modes else value

    def propagate(self, node: int, gradient: int) -> None:
        """Add the contributions of a node's gradient to its operands."""
        op, operands = self.dag[node], self.dag.arguments(node)
        match op:
            case Apply(function):
                for slot, operand in enumerate(operands):
                    if self.active[operand] and slot not in TABLE[function].conditions:
                        whole = self.spread(node, operand, gradient)
                        self.add_term(operand, times(self.builder, self.partial(node, slot), whole))
            case Cast():
                self.add_term(operands[0], gradient)
            case Reduce() | ReduceBlocks():
                self.add_term(operands[0], self.of_reduced(node, operands[0], gradient))
            case Pick(member, block):
                if self.active[operands[0]]:
                    self.pairs.setdefault(operands[0], {}).setdefault((member, block), []).append(gradient)
            case Interleave(block):
                for member, operand in enumerate(operands):
                    self.add_term(operand, self.add(Pick(member, block), gradient))
            case _:
                raise AssertionError(op)

    def partial(self, node: int, slot: int) -> int:
        """Return the derivative of an application of a function with respect to one operand."""
        op, operands = self.dag[node], self.dag.arguments(node)
        assert isinstance(op, Apply)
        row = TABLE[op.function]
        if slot or not row.result_derivative:
            return partial(self.builder, op.function, slot, operands)
        names = (parameter.name for parameter in row.parameters[1:])
        values = {"y": node, **dict(zip(names, operands[1:], strict=True))}
        return add_formula(self.builder, row.result_derivative, values)

    def of_blocks(self, node: int, gradient: int) -> int:
        """Return a gradient for each block of columns, summed over the columns that the block's value combines with."""
        mine, have = self.width(self.modes(node)), self.width(self.modes(gradient))
        return self.add(ReduceBlocks("sum", mine // have), gradient) if have and mine > have else gradient

    @staticmethod
    def width(modes: Iterable[str]) -> int:
        """Return the number of columns for each column of a value; 0 if the value does not vary over columns."""
        return min((divisor(mode) for mode in modes if base(mode) == "n"), default=0)

    def modes(self, node: int) -> tuple[str, ...]:
        """Return the modes over which a node varies, including an implied batch."""
        for each in range(len(self.varies), node + 1):
            op, operands = self.builder[each], [self.varies[operand] for operand in self.builder.arguments(each)]
            found = value_modes(self.inputs, op, operands)
            own = isinstance(op, Acc) or (isinstance(op, Load) and self.inputs[op.name].batchable)
            reduced = isinstance(op, Reduce) and "l" in op.modes
            batched = self.has_batches and not reduced and (own or any("l" in modes for modes in operands))
            self.varies.append(canonical((*found, "l")) if batched else found)
        return self.varies[node]

    def spread(self, node: int, operand: int, gradient: int) -> int:
        """Return a node's gradient along the modes over which an operand's gradient is summed."""
        op = self.dag[node]
        over = op.modes if isinstance(op, Reduce) else ()
        its = self.modes(operand)
        mine = (*self.modes(node), *(mode for mode in over if mode not in map(base, its)))
        lost = {*map(base, mine)} - {*map(base, its)}
        if self.width(its) > self.width(mine):
            lost.add("n")
        have = {*map(base, self.modes(gradient))}
        if "n" in lost and self.width(self.modes(gradient)) > self.width(mine):
            have.discard("n")
        return gradient if lost <= have else self.along(mine, gradient)

    def along(self, modes: Iterable[str], value: int) -> int:
        """Return a value for each element of these modes."""
        return self.add(Apply("mul"), self.add(Const.of(1.0, canonical(modes))), value)

    def of_reduced(self, node: int, operand: int, gradient: int) -> int:
        """Return the gradient of the operand of a reduction."""
        op, value = self.dag[node], operand
        assert isinstance(op, Reduce | ReduceBlocks)
        if isinstance(op, ReduceBlocks):
            modes = self.modes(operand) if self.width(self.modes(operand)) else (*self.modes(operand), "n")
            value = operand if modes == self.modes(operand) else self.along(modes, operand)
            gradient = self.along(modes, self.of_blocks(node, gradient))
        else:
            gradient = self.spread(node, operand, gradient)
        if isinstance(op, Reduce) and op.kind in MOMENTS:
            return self.of_moment(op, operand, gradient)
        return gradient if op.kind == "sum" else self.chosen(node, value, gradient)

    def of_moment(self, op: Reduce, value: int, gradient: int) -> int:
        """Return ``gradient / count`` for a mean, and ``2*(x - mean) * gradient / count`` for a variance."""
        for mode in op.modes:
            gradient = self.add(Apply("div"), gradient, self.add(Extent(mode)))
        columns = self.width(self.modes(value)) if "n" in op.modes else 1
        if columns > 1:
            gradient = self.add(Apply("mul"), gradient, self.add(Const.of(float(columns))))
        if op.kind == "mean":
            return gradient
        centred = self.add(Apply("sub"), value, self.add(Reduce("mean", op.modes), value))
        return self.add(Apply("mul"), self.add(Apply("mul"), self.add(Const.of(2.0)), centred), gradient)

    def chosen(self, node: int, value: int, gradient: int) -> int:
        """Return the gradient of the elements that attain an extreme value, in equal shares."""
        op = self.dag[node]
        assert isinstance(op, Reduce | ReduceBlocks)
        one, zero = self.add(Const.of(1.0)), self.add(Const.of(0.0))
        equal = self.add(Apply("eq"), value, node)
        ones = self.add(Apply("where"), equal, one, zero)
        count = self.add(Reduce("sum", op.modes) if isinstance(op, Reduce) else ReduceBlocks("sum", op.width), ones)
        return self.add(Apply("where"), equal, self.add(Apply("div"), gradient, count), zero)

    def leave(self, name: str, gradient: int) -> Output:
        """Store the gradient of an input or of the accumulator, summed over the modes that it lacks."""
        if name == ACCUMULATOR:
            operand = self.dag.operands[0].dtype
            output = Output(self.name(name), F32 if operand == TF32 else operand, ("m", "n"))
        else:
            source = self.dag.input[name]
            modes, dtype, batchable = tuple(map(direct, source.modes)), source.dtype, source.batchable
            if self.each_batch and self.has_batches and not batchable and "l" not in modes:
                dtype, batchable = (F64 if dtype == F64 else F32), True  # the terms of a sum
            output = Output(self.name(name), dtype, modes, batchable=batchable)
        varies, have = {*map(base, self.modes(gradient))}, {*map(base, output.memory_modes)}
        self.builder.add(Store(output.name), self.summed(gradient, varies - have))
        return output


def untyped(joint: Joint) -> Dag:
    """Return the joint graph with its inputs and outputs declared."""
    dag = joint.dag
    inputs = (*dag.inputs, *joint.arriving.values())
    outputs = (*dag.outputs, *joint.leaving.values())
    return Dag(dag.operation, dag.operands, inputs, outputs, joint.table)
