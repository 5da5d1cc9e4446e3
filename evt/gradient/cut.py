"""The choice of values that a forward pass saves for its gradients: a minimum cut of the joint graph.

The gradients read values of the forward pass. Each value is either saved, which costs its bytes, or rematerialized from
saved values and the program's inputs, whose cost is negligible next to memory. The accumulator cannot be rematerialized
without the product. The cheapest choice is a minimum cut between the accumulator and the values that the gradients
read. A value's capacity is its size in bytes, or 0 if the program stores it.

The cut finds the usual choices: the output of a sigmoid, one bit per element of a ReLU that is not stored. Among equal
cuts it takes the one nearest to the gradients: for a GELU the derivative instead of the operand, of equal size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from evt.gradient.flow import UNBOUNDED, minimum_cut
from evt.gradient.reverse import Joint
from evt.ir.dag import reduced_modes
from evt.ir.dtype import B1, BF16, BOOL, F32, TF32, DType
from evt.ir.node import MOMENTS, Acc, Cast, Load, Node, Output, Reduce, Store, ValueType, base, divisor, written

#: The extents for weighing values: matrices are large, vectors are small.
_EXTENTS = {"l": 1, "m": 4096, "n": 4096}
_BITS_OF_A_MASK = 1


def choose_saved(joint: Joint, types: list[ValueType]) -> dict[int, Output]:
    """Return the saved values by node, and the outputs that save them: new ones, and outputs of the program.

    ``types`` are the types of the joint graph's values.
    """
    table, count = joint.table, len(joint.dag)
    arriving = {each.name for each in joint.arriving.values()}
    late = dependents(table, (n for n, (op, _) in enumerate(table) if isinstance(op, Load) and op.name in arriving))
    early = dependents(table, (node for node in range(len(table)) if isinstance(table[node][0], Acc)))
    leaving = set(joint.stores.values())
    read = {operand for node in joint.needed() if late[node] or node in leaving for operand in table[node][1]}
    wanted = [node for node in sorted(read) if early[node] and not late[node]]
    stored = _stored(joint)
    reduced: list[tuple[str, ...]] = []
    for op, operands in table:
        reduced.append(reduced_modes(op, [reduced[operand] for operand in operands]))
    edges: list[
        tuple[int, int, int]
    ] = []  # a value's vertices are 2 * node + 1, where it is computed, and 2 * node + 2
    sink = 2 * len(table) + 1
    for node, (op, operands) in enumerate(table):
        if not early[node] or late[node] or isinstance(op, Store):
            continue
        is_moment = isinstance(op, Reduce) and op.kind in MOMENTS
        savable = not reduced[node] or is_moment or (node < count and not _is_extreme(op))
        bits = 0 if node in stored else _bits(joint, types[node]) * _elements(types[node])
        edges.append((2 * node + 1, 2 * node + 2, bits if savable else UNBOUNDED))
        edges += [(2 * operand + 2, 2 * node + 1, UNBOUNDED) for operand in dict.fromkeys(operands) if early[operand]]
        if isinstance(op, Acc):
            edges.append((0, 2 * node + 1, UNBOUNDED))
    edges += [(2 * node + 2, sink, UNBOUNDED) for node in wanted]
    near = minimum_cut(edges, sink)
    cut = [tail // 2 for tail, head, _ in edges if head == tail + 1 and tail % 2 and tail in near and head not in near]
    return {node: stored.get(node) or _saving(joint, types[node], place) for place, node in enumerate(cut)}


def dependents(table: Iterable[tuple[Node, tuple[int, ...]]], roots: Iterable[int]) -> list[bool]:
    """Return for each node whether it is a root or depends on one."""
    known, found = set(roots), list[bool]()
    for node, (_, operands) in enumerate(table):
        found.append(node in known or any(found[operand] for operand in operands))
    return found


def _stored(joint: Joint) -> dict[int, Output]:
    """Return the values that the program stores in a type of equal precision, or of 16 bits."""
    found: dict[int, Output] = {}
    for name, store in joint.dag.stores.items():
        output, (node,) = joint.dag.output[name], joint.dag.arguments(store)
        value = joint.dag.types[node]
        assert output.dtype is not None
        whole = not output.is_indexed and set(map(written, output.memory_modes)) - {"l"} == set(value.modes) - {"l"}
        narrow = output.dtype.bits < 16 and value.dtype.bits >= 16
        if whole and not narrow and output.dtype.is_float == value.dtype.is_float:
            found.setdefault(node, output)
            op = joint.dag[node]
            while isinstance(op, Cast) and output.dtype.is_float:  # before it was rounded to the output's type
                (node,) = joint.dag.arguments(node)
                found.setdefault(node, output)
                op = joint.dag[node]
    return found


def _is_extreme(op: Node) -> bool:
    """Return whether a value is compared for equality with the values that it is selected from.

    Such a value is not rounded when it is saved.
    """
    return isinstance(op, Reduce) and op.kind not in ("sum", *MOMENTS)


def _saved_type(joint: Joint, value: ValueType) -> DType:
    """Return the type in which a value is saved: for matrices, the type of the result, as in eager PyTorch."""
    if value.dtype == B1:
        packs = value.modes == ("m", "n") and not joint.dag.operation.endswith("wgrad")
        return B1 if packs else BOOL
    if not value.dtype.is_float or value.dtype.bits == 64 or {"m", "n"} - set(map(base, value.modes)):
        return value.dtype
    primary = joint.dag.primary.dtype
    if primary is None or not primary.is_float:
        return F32
    return BF16 if primary.bits < 16 else F32 if primary == TF32 else primary


def _bits(joint: Joint, value: ValueType) -> int:
    dtype = _saved_type(joint, value)
    return _BITS_OF_A_MASK if dtype == B1 else dtype.bits


def _elements(value: ValueType) -> int:
    return math.prod(_EXTENTS[base(mode)] // divisor(mode) for mode in value.modes)


def _saving(joint: Joint, value: ValueType, place: int) -> Output:
    """Return an output that saves a value."""
    name = f"saved_{place}"
    while name in joint.dag.input or name in joint.dag.output:
        name += "_"
    modes = tuple(mode for mode in map(written, value.modes) if mode != "l")
    return Output(name, _saved_type(joint, value), modes, batchable=True)
