"""The parts of the language that programs have: ``features(program)``, of all in FEATURES."""

from __future__ import annotations

from collections.abc import Iterator

from evt.functions import TABLE

from .draw import ALL_OPERATIONS
from .dtypes import CASTS, OPERANDS, OUTPUTS, PACKED, STORAGE
from .tree import (
    Acc,
    Block,
    Call,
    Cast,
    Dropout,
    Element,
    Expression,
    Geometry,
    Input,
    Interleave,
    Iota,
    Number,
    Output,
    Pair,
    Program,
    Rand,
    Read,
    Reduce,
    Size,
    walk,
)

_NODES: dict[type[Expression], str] = {
    Acc: "acc",
    Element: "A, B",
    Number: "number",
    Read: "name",
    Call: "function",
    Cast: "cast",
    Size: "size",
    Block: "block",
    Pair: "pair",
    Interleave: "interleave",
    Iota: "iota",
    Rand: "rand",
    Dropout: "dropout",
}
#: Features of kernels: nodes, tensors of each kind, settings and geometries.
LANGUAGE = (
    *_NODES.values(),
    *("sum", "max", "min", "mean", "var", "argmax", "argmin", "over batches", "after a reduction", "derivative", "def"),
    *("mainloop fusion", "header", "batches", "transposed output", "fewer modes", "bits in", "bits out", "bool"),
    *("n/w output", "n/2 input", "default", "left out", "[m?]", "gather", "scatter", "groups", "dilation", "padding"),
    *("stride", "eager", "relaxed", "atomics", "block scales", "packed weight", "converted weight"),
)
#: Further features of the parser.
WRITING = (
    *("keyword argument", "alias", "second derivative", "def without parameters", "untyped declaration", "a[]"),
    *("numbered name", "inf as a default", "declared together", "subscript first", "subscript at the assignment"),
    *("few parentheses", "comment", "several on a line", "no out statement", "undeclared"),
)
FEATURES = (
    *LANGUAGE,
    *WRITING,
    *(f"operation {name}" for name in ALL_OPERATIONS),
    *(f"operand {name}" for name in OPERANDS),
    *(f"input {name}" for name in STORAGE),
    *(f"output {name}" for name in OUTPUTS),
    *(f"cast {name}" for name in CASTS),
    *(f"function {name}" for name in TABLE),
)


def features(program: Program) -> set[str]:
    """Return the parts of the language that a program has, of FEATURES."""
    found = {*_of_nodes(program), *_of_settings(program), *_of_writing(program)}
    for output in program.outputs:
        found |= set(_of_output(program, output))
    for value in program.inputs:
        found |= set(_of_input(value))
    found |= {f"operation {program.operation}", f"operand {program.a}", f"operand {program.b}"}
    return found & set(FEATURES)


def reduced(program: Program) -> set[str]:
    """Return the names whose values are reductions."""
    return {each.name for each in program.assigns if isinstance(each.value, Reduce)}


def _of_nodes(program: Program) -> Iterator[str]:
    for node in program.expressions():
        if type(node) in _NODES:
            yield _NODES[type(node)]
        match node:
            case Reduce(kind, modes):
                yield kind
                yield from ["over batches"] if "l" in modes else []
            case Cast(dtype, _, word):
                yield f"cast {dtype}"
                yield from ["alias"] if word and word != dtype else []
            case Call(function, _, word, names, primes):
                yield f"function {function}"
                yield from ["keyword argument"] if names else []
                yield from ["alias"] if word[:1].isalpha() and word != function else []
                yield from ["derivative"] if primes else []
                yield from ["second derivative"] if primes > 1 else []
            case Read(_, "[]"):
                yield "a[]"
    whole = reduced(program)
    for each in program.assigns:
        if each.name not in whole and any(isinstance(node, Reduce) for node in walk(each.value)):
            yield "after a reduction"


def _of_settings(program: Program) -> Iterator[str]:
    settings, g = dict(program.settings), program.geometry
    flags = {
        "def": program.defines,
        "mainloop fusion": program.feeds,
        "block scales": program.factors,
        "packed weight": program.b in PACKED,
        "converted weight": program.a in ("f16", "bf16") and program.b in ("i8", "u8", "e4m3", "e5m2"),
        "header": program.header,
        "batches": program.sizes.batch and g is None and not program.groups,
        "eager": settings.get("numerics") == "eager",
        "relaxed": settings.get("relaxed"),
        "atomics": settings.get("deterministic") is False,
        "groups": program.groups,
    }
    yield from (name for name, on in flags.items() if on)
    yield from _of_geometry(g) if g else ()


def _of_geometry(g: Geometry) -> Iterator[str]:
    flags = {
        "groups": g.groups > 1,
        "dilation": set(g.dilation) != {1},
        "padding": any(map(any, g.padding)),
        "stride": set(g.stride) != {1},
    }
    yield from (name for name, on in flags.items() if on)


def _of_output(program: Program, output: Output) -> Iterator[str]:
    flags = {
        "transposed output": output.modes[-2:] == ("n", "m"),
        "fewer modes": output.name not in reduced(program) and len(output.modes) < 2,
        "bits out": output.type == "b1",
        "bool": output.type == "bool",
        "n/w output": any("/" in mode for mode in output.modes),
        "scatter": output.indexed,
        f"output {output.type}": True,
    }
    yield from (name for name, on in flags.items() if on)


def _of_input(value: Input) -> Iterator[str]:
    flags = {
        "bits in": value.type == "b1",
        "bool": value.type == "bool",
        "n/2 input": "n/2" in value.modes,
        "default": value.default,
        "left out": value.given == "absent",
        "[m?]": value.flexible,
        "gather": value.indexed,
        "inf as a default": "inf" in value.default,
        "untyped declaration": value.declared and value.type is None,
        "undeclared": not value.declared,
        "numbered name": value.name.endswith("1") and not value.declared and not value.modes,
        f"input {value.type}": True,
    }
    yield from (name for name, on in flags.items() if on)


def _of_writing(program: Program) -> Iterator[str]:
    style = program.style
    flags = {
        "def without parameters": any(not each.parameters for each in program.defines),
        "declared together": style.together and sum(each.declared for each in program.inputs) > 1,
        "subscript first": style.subscript_first,
        "subscript at the assignment": style.assigned and any(each.subscript for each in program.outputs),
        "few parentheses": style.sparse,
        "comment": "#" in program.separator,
        "several on a line": ";" in program.separator,
        "no out statement": not program.declares_outputs,
    }
    yield from (name for name, on in flags.items() if on)
