"""Validation of a graph from a user's builder: ``check_graph(dag)``.

The check refuses graphs that the language cannot express, because later stages would not. A graph that was lowered from
text needs no check.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import get_args

from evt.diagnostics import Diagnostic, quoted, shown
from evt.errors import InternalError, ProgramError
from evt.ir import (
    Acc,
    Apply,
    Cast,
    Const,
    Dag,
    Element,
    Extent,
    Feed,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    format_dag,
    parse_dag,
    verify,
)
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import reads_accumulator
from evt.ir.dtype import B1, OUTPUTS, TF32
from evt.ir.factors import zero_point
from evt.ir.lower import OPERATIONS, has_images
from evt.ir.lower.words import FACTOR_BLOCKS, FEWER_COLUMNS, FOLD_WIDTHS, PAIR_BLOCKS
from evt.ir.node import ELEMENT_MODES, IMAGES, MODES, PLACES, base, direct, divisor, index_of, is_divided
from evt.ir.operand import factor_of, formula_of
from evt.language.tree import MOST_OPERATIONS

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Reserved names.
_TAKEN = ("acc", "A", "B")
_TENSOR_MODES = frozenset({*MODES, *FEWER_COLUMNS})


def check_graph(dag: Dag) -> None:
    """Raise ProgramError: E0412 for a graph that is not a program, E0413 for one that is too large, E0405 without
    ``acc``.

    Type inference reports mistakes in types.
    """
    if len(dag) > MOST_OPERATIONS:
        hint = "make several programs; each stores the inputs of the next"
        raise ProgramError(Diagnostic("E0413", f"the graph has more than {MOST_OPERATIONS} nodes", help=hint))
    checks = (
        _entries,
        _values,
        _indices,
        _operands,
        _nodes,
        _structure,
        _operand_formulas,
    )  # in this order
    reasons = next(filter(None, (list(check(dag)) for check in checks)), [])
    if reasons:
        raise ProgramError([Diagnostic("E0412", f"the graph is not a program: {reason}") for reason in reasons])
    if not reads_accumulator(dag):
        message = "the program does not use the accumulator `acc`"
        raise ProgramError(Diagnostic("E0405", message, help="the matrix product is the node evt.ir.Acc()"))


def _entries(dag: Dag) -> Iterator[str]:
    """Yield entries of wrong types, and nodes that precede their operands."""
    for place, entry in enumerate(dag.table):
        node, operands = entry
        if not isinstance(node, get_args(Node)):
            yield f"%{place} is {shown(node)}, which is not a node"
        elif not all(isinstance(operand, int) and 0 <= operand < place for operand in operands):
            yield f"%{place} reads {', '.join(map(str, operands))}, and operands come before their users"
    for values, kind in ((dag.inputs, Input), (dag.outputs, Output)):
        yield from (f"{shown(value)} is no {kind.__name__}" for value in values if not isinstance(value, kind))


def _structure(dag: Dag) -> Iterator[str]:
    """Yield violations of the graph's invariants, and a text that reads back as another graph."""
    try:
        verify(dag)
        if parse_dag(format_dag(dag)) != dag:
            yield "its text is another graph's"
    except InternalError as error:
        yield error.diagnostics[0].message.removeprefix("the graph is malformed at ")
    except ValueError as error:
        yield str(error)


def _values(dag: Dag) -> Iterator[str]:
    """Yield inputs and outputs with names or modes that a program cannot express."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if not _NAME.fullmatch(value.name) or value.name in _TAKEN:
            yield f"`{shown(value.name)}` cannot be the name of an input or output"
        known: frozenset[str] = _TENSOR_MODES | {"k"} if isinstance(value, Input) else _TENSOR_MODES
        if isinstance(value, Input) and value.is_blocked:
            known = frozenset({*ELEMENT_MODES["A"], *ELEMENT_MODES["B"], *FACTOR_BLOCKS})
        bases = [base(mode) for mode in value.modes]
        if isinstance(value, Output) and "m" not in value.modes:  # the result of a reduction
            known |= {IMAGES, *(mode for mode in value.modes if mode == f"n/{divisor(mode)}")}
        if not known.issuperset(map(direct, value.modes)) or len(set(bases)) < len(bases):
            yield f"`{value.name}` has the modes {list(value.modes)}"
        elif "l" in value.modes and dag.operation in CONVOLUTIONS:
            yield f"`{value.name}` has the mode `l`, and {dag.operation} has none"
        if isinstance(value, Input) and value.default is not None and math.isnan(value.default):
            yield f"the default of `{value.name}` is NaN"
        elif isinstance(value, Input) and value.default is not None and value.dtype is not None:
            whole = value.dtype.is_float or isinstance(value.default, int)
            if not whole or not value.dtype.spans(value.default):
                yield f"the default of `{value.name}` is {value.default}; {value.dtype.range_text}"


def _indices(dag: Dag) -> Iterator[str]:
    """Yield indices that are not inputs with one value for each row or column."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value, mode in ((each, mode) for each in values for mode in filter(index_of, each.modes)):
        index = dag.input.get(index_of(mode))
        if isinstance(value, Input) and value.batchable:
            yield f"`{value.name}` has the mode `{mode}`, and is batchable, as inputs without a subscript are"
        if index is None or [each for each in index.modes if each != "l"] != [base(mode)]:
            yield f"`{value.name}` has the mode `{mode}`, and there is no input `{index_of(mode)}[{base(mode)}]`"


def _operands(dag: Dag) -> Iterator[str]:
    """Yield operands that are declared separately, or with modes that the operation does not have."""
    if not dag.operands:
        return
    wanted = OPERATIONS[dag.operation]
    given = tuple((operand.name, operand.modes) for operand in dag.operands)
    in_any_order = [(name, frozenset(modes)) for name, modes in given]
    if in_any_order != [(name, frozenset(modes)) for name, modes in zip("AB", wanted, strict=True)]:
        yield f"its operands are {list(given)}; expected {list(zip('AB', wanted, strict=True))}"


def _nodes(dag: Dag) -> Iterator[str]:
    """Yield blocks and pairs of columns that kernels lack, and nodes without a meaning for a convolution."""
    wgrad = CONVOLUTIONS.get(dag.operation, ("",))[0] == "wgrad"
    for place, (node, _) in enumerate(dag.table):
        match node:
            case ReduceBlocks(_, width) if width not in FOLD_WIDTHS:
                yield f"%{place}: blocks of {width} columns; expected one of {list(FOLD_WIDTHS)}"
            case Pick(member, block) if member not in (0, 1) or block not in PAIR_BLOCKS:
                yield f"%{place}: pairs {block} columns apart; expected one of {list(PAIR_BLOCKS)}"
            case Interleave(block) if block not in PAIR_BLOCKS:
                yield f"%{place}: pairs {block} columns apart; expected one of {list(PAIR_BLOCKS)}"
            case Cast(dtype) if dtype not in (*OUTPUTS, TF32):
                yield f"%{place}: there is no cast to {dtype}"
            case Index(mode) if mode not in MODES:
                yield f"%{place}: there is no mode {quoted(mode)}"
            case Extent(mode) if mode not in (*MODES, "k"):
                yield f"%{place}: there is no mode {quoted(mode)}"
            case Reduce(_, modes) if not _may_reduce(dag, modes):
                yield f"%{place}: a reduction over {list(modes)}; expected some of {list(MODES)}, in this order"
            case Reduce(kind, modes) if kind in PLACES and modes not in (("m",), ("n",)):
                yield f"%{place}: {kind} along {list(modes)}; expected one of m and n"
            case Feed(name) | Scale(name) if name not in ELEMENT_MODES:
                yield f"%{place}: `{shown(name)}` is no operand"
            case Load(name) if name not in dag.input:
                yield f"%{place}: `{shown(name)}` is no input"
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    taken = any(isinstance(node, Pick | Interleave | ReduceBlocks) for node, _ in dag.table)
    if wgrad and (taken or any(value.dtype == B1 or any(map(is_divided, value.modes)) for value in values)):
        yield "bits, pairs and blocks of columns in the gradient of a weight are not supported"


def _may_reduce(dag: Dag, modes: tuple[str, ...]) -> bool:
    """Return whether a reduction's modes are in order, with blocks only of images, or of columns beside rows."""
    bases = tuple(map(base, modes))
    blocks = [mode for mode in modes if is_divided(mode)]
    known = all(mode == IMAGES or mode == f"n/{divisor(mode)}" for mode in blocks)
    fits = known and (IMAGES not in blocks or has_images(dag.operation)) and (not blocks or "m" in bases)
    return fits and bases == tuple(mode for mode in MODES if mode in bases) and bases not in ((), ("l",))


def _operand_formulas(dag: Dag) -> Iterator[str]:
    """Yield operand formulas that read more than the operand's elements, scalars and vectors along the operand."""
    for name in dag.feeds:
        nodes = [dag[node] for node in formula_of(dag, name)]
        if dag.operation in CONVOLUTIONS and (name, CONVOLUTIONS[dag.operation][0]) != ("A", "fprop"):
            yield f"work on the operand `{name}` of {dag.operation} is not supported"
        if Element(name) not in nodes:
            yield f"the formula of the operand `{name}` does not read `{name}`"
        if any(isinstance(node, Acc | Reduce | ReduceBlocks | Pick | Interleave | Index | Random) for node in nodes):
            yield f"the formula of the operand `{name}` is not elementwise"
        along = {"k"} if dag.operation in CONVOLUTIONS else {*ELEMENT_MODES[name]}
        zero = zero_point(dag, name, dag.arguments(dag.feeds[name])[0])
        for value in (dag.input[node.name] for node in nodes if isinstance(node, Load)):
            if zero is not None and value.is_blocked and along.issuperset(map(base, value.modes)):
                continue
            if len(value.modes) > 1 or not along.issuperset(value.modes) or value.flexible:
                yield f"`{value.name}` is neither a scalar nor a vector along `{name}`"
    for name in dag.scales:
        nodes = [dag[node] for node in factor_of(dag, name)]
        if dag.operation in CONVOLUTIONS:
            yield f"a factor of the operand `{name}` of {dag.operation} is not supported"
        if not all(isinstance(node, Load | Const | Apply | Cast | Extent) for node in nodes):
            yield f"the factor of the operand `{name}` is not elementwise"
        loaded = [dag.input[node.name] for node in nodes if isinstance(node, Load)]
        for value in loaded:
            if not {*ELEMENT_MODES[name]}.issuperset(map(base, value.modes)) or "k" in value.modes or value.flexible:
                yield f"`{value.name}` is not constant over blocks of `{name}`"
        if not any(value.is_blocked for value in loaded):
            yield f"the factor of the operand `{name}` does not vary over blocks of k"
    stack, seen = [*dag.stores.values()], set[int]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(dag.arguments(node))
        match dag[node]:
            case Element(name):
                yield f"the epilogue reads the operand `{name}`"
            case Load(name) if "k" in map(base, dag.input[name].modes):
                yield f"the epilogue reads `{name}`, which has the mode k"
