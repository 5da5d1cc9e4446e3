"""The textual form of a graph, and back: ``parse_dag(format_dag(x)) == x``.

::

    gemm(A: f16[m, k], B: f16[k, n])
    in C: f16[..., m, n]
    in alpha: f32[] = 1.0
    out D: f16[..., m, n]
    %0 = load alpha : f32[]
    %1 = acc : f32[m, n]
    %2 = mul %0 %1 : f32[m, n]
    ...

Undeclared types print as ``auto``. ``...`` marks a tensor that may have a leading batch mode in a batched call. Only
typed graphs have the type after ``:``. Numbers print exactly: defaults of integer types as hexadecimal integers, others
as hexadecimal floats. On request, a comment names each node's origin, ``# 3:5 relu(acc + bias)``; comments are not read
back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evt.ir.dag import Builder, Dag, TypedDag
from evt.ir.dtype import BY_NAME, I64, DType
from evt.ir.infer import infer
from evt.ir.node import (
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Extent,
    Feed,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Operand,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
)
from evt.ir.origin import describe


def format_dag(dag: Dag, *, origins: bool = False) -> str:
    """Return the graph as text, one node per line; ``origins`` adds the origin of each."""
    operands = ", ".join(f"{o.name}: {o.dtype}{_modes(o.modes)}" for o in dag.operands)
    lines = [f"{dag.operation}({operands})"]
    lines += [
        f"in {i.name}: {i.dtype or 'auto'}{_modes(i.modes, i.batchable, i.flexible)}"
        + (f" = {_exact(i.default)}" if i.default is not None else "")
        for i in dag.inputs
    ]
    lines += [f"out {o.name}: {o.dtype or 'auto'}{_modes(o.modes, o.batchable)}" for o in dag.outputs]
    nodes = [_node_line(dag, node) for node in range(len(dag))]
    if origins:
        width = max(map(len, nodes))
        comments = (describe(origin, dag.source) for origin in dag.origins)
        nodes = [f"{line:<{width}}  # {comment}" for line, comment in zip(nodes, comments, strict=True)]
    return "\n".join([*lines, *nodes]) + "\n"


def _node_line(dag: Dag, node: int) -> str:
    words = [format_node(dag[node]), *(f"%{operand}" for operand in dag.arguments(node))]
    line = f"%{node} = {' '.join(words)}"
    return f"{line} : {dag.types[node]}" if isinstance(dag, TypedDag) else line


def format_node(op: Node) -> str:
    """Return one node without its operands."""
    match op:
        case Acc("B"):
            return "acc"
        case Acc(name):
            return f"acc {name}"
        case Element(name):
            return f"element {name}"
        case Load(name):
            return f"load {name}"
        case Const():
            return f"const {op.value.hex()}" + (f"[{','.join(op.modes)}]" if op.modes else "")
        case Apply(function):
            return function
        case Cast(dtype):
            return f"cast {dtype}"
        case Reduce(kind, modes):
            return f"reduce {kind}[{','.join(modes)}]"
        case ReduceBlocks(kind, width):
            return f"fold {kind}[{width}]"
        case Pick(member, block):
            return f"pick {member}[{block}]"
        case Interleave(block):
            return f"interleave {block}"
        case Index(mode):
            return f"index {mode}"
        case Extent(mode):
            return f"extent {mode}"
        case Random():
            return "random"
        case Store(name):
            return f"store {name}"
        case Feed(name):
            return f"feed {name}"
        case Scale(name):
            return f"scale {name}"


_HEADER = re.compile(r"(\w+)\((.*)\)")
_TENSOR = re.compile(r"(\w+): (\w+)\[((?:[^\[\]]|\[\w+\])*)\](?: = (\S+))?")
_NODE = re.compile(r"%(\d+) = (\w+)(?: ((?!%)[^:\s]+))?((?: %\d+)*)(?: : .*)?")


def parse_dag(text: str) -> Dag:
    """Read the text of format_dag; return a TypedDag if the text has types.

    Raise ValueError for other text. :func:`evt.ir.verify` checks the invariants of the graph.
    """
    lines = [line for each in text.splitlines() if (line := each.partition("#")[0].strip())]
    header = _match(_HEADER, lines[0] if lines else "")
    operands = []
    for word in re.findall(r"\w+: \w+\[[^\]]*\]", header[2]):
        name, dtype, modes, _, _ = _tensor(word)
        operands.append(Operand(name, _known(dtype), modes))
    inputs: list[Input] = []
    outputs: list[Output] = []
    builder = Builder()
    for line in lines[1:]:
        if line.startswith("in "):
            name, dtype, modes, batchable, default = _tensor(line[3:])
            value = None if default is None else _number(default, _dtype(dtype))
            flexible = any(mode.endswith("?") for mode in modes)
            modes = tuple(mode.removesuffix("?") for mode in modes)
            inputs.append(Input(name, _dtype(dtype), modes, value, batchable, flexible))
        elif line.startswith("out "):
            name, dtype, modes, batchable, _ = _tensor(line[4:])
            outputs.append(Output(name, _dtype(dtype), modes, batchable))
        else:
            match = _match(_NODE, line)
            arguments = [int(word[1:]) for word in match[4].split()]
            if not all(argument < len(builder) for argument in arguments):
                raise ValueError(f"an operand comes after its user: {line}")
            if builder.add(_node(match[2], match[3]), *arguments) != int(match[1]):
                raise ValueError(f"node out of order or repeated: {line}")
    dag = builder.finish(header[1], operands, inputs, outputs)
    return infer(dag) if any(" : " in line for line in lines if line.startswith("%")) else dag


def _node(word: str, attribute: str | None) -> Node:
    match word, attribute:
        case "acc", None:
            return Acc()
        case "acc", str(name):
            return Acc(name)
        case "element", str(name):
            return Element(name)
        case "load", str(name):
            return Load(name)
        case "const", str(value):
            number, _, modes = value.removesuffix("]").partition("[")
            return Const.of(float.fromhex(number), tuple(modes.split(",")) if modes else ())
        case "cast", str(name):
            return Cast(_known(name))
        case "store", str(name):
            return Store(name)
        case "feed", str(name):
            return Feed(name)
        case "scale", str(name):
            return Scale(name)
        case "interleave", str(block):
            return Interleave(int(block))
        case "index", str(mode):
            return Index(mode)
        case "extent", str(mode):
            return Extent(mode)
        case "random", None:
            return Random()
        case "reduce" | "fold" | "pick", str(attribute) if match := re.fullmatch(r"(\w+)\[([\w,/]*)\]", attribute):
            if word == "reduce":
                return Reduce(match[1], tuple(match[2].split(",")))
            return ReduceBlocks(match[1], int(match[2])) if word == "fold" else Pick(int(match[1]), int(match[2]))
        case function, None:
            return Apply(function)
    raise ValueError(f"not a node: {word} {attribute}")


def _exact(value: float) -> str:
    """Return a number as a hexadecimal float, or as a hexadecimal integer, which older versions read as a float."""
    return hex(value) if isinstance(value, int) else value.hex()


def _number(text: str, dtype: DType | None) -> float:
    """Return a default. Older versions wrote an i64 as a float, which can lie just beyond the range."""
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        return int(text, 16)
    value = float.fromhex(text)
    return dtype.largest if dtype == I64 and value == 2.0**63 else value


def _modes(modes: Sequence[str], batchable: bool = False, flexible: bool = False) -> str:
    names = [mode + "?" * (flexible and mode != "l") for mode in modes]
    return f"[{', '.join([*['...'] * batchable, *names])}]"


def _tensor(text: str) -> tuple[str, str, tuple[str, ...], bool, str | None]:
    match = _match(_TENSOR, text)
    modes = tuple(mode.strip() for mode in match[3].split(",") if mode.strip())
    batchable = modes[:1] == ("...",)
    return match[1], match[2], modes[batchable:], batchable, match[4]


def _dtype(name: str) -> DType | None:
    return None if name == "auto" else _known(name)


def _known(name: str) -> DType:
    if name not in BY_NAME:
        raise ValueError(f"not a type: {name}")
    return BY_NAME[name]


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a line of a graph: {text!r}")
    return match
