"""The same program in other words: ``reworded(program)`` draws names, defaults and a style of writing."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from .interface import main_output, type_of
from .tree import (
    GREEK,
    Call,
    Define,
    Expression,
    Input,
    Number,
    Program,
    Read,
    Style,
    children,
    with_children,
)

_INFINITE = {"3": "inf", "-0.3": "-inf"}


def reworded(program: Program) -> Program:
    """Return the program with some of: numbered Greek names, ``a[]``, declarations without a type, infinite defaults,
    a function without parameters, and another style.
    """
    source = random.Random(f"program {program.seed} words")

    def chance(one_in: float) -> bool:
        return source.random() * one_in < 1

    names: dict[str, Read] = {}
    inputs = []
    follows = main_output(program).type not in ("b1", "bool")
    for value in program.inputs:
        changed = value
        if value.name in GREEK and not value.declared and chance(1.5):
            scalar = Read(f"{value.name}1") if chance(2) else Read(f"factor_{value.name}", "[]")
            names[value.name] = scalar
            changed = replace(changed, name=scalar.name)
        if value.default in _INFINITE and value.type in ("f64", "f32", "f16", "bf16"):
            changed = replace(changed, default=_INFINITE[value.default])
        untyped = replace(changed, type=None)
        if follows and changed.declared and _is_inferred(program, untyped, changed.type) and chance(3):
            changed = untyped
        inputs.append(changed)
    made = _renamed(replace(program, inputs=tuple(inputs)), names)
    if chance(2):
        made = _with_constant_function(made)
    style = Style(chance(5), chance(5), chance(5), chance(3))
    if _needs_no_declaration(made) and chance(2):
        return replace(made, declares_outputs=False, style=replace(style, assigned=True))
    return replace(made, style=style)


def _needs_no_declaration(program: Program) -> bool:
    """Return whether outputs are the assigned names that nothing reads, without types."""
    read = {node.name for node in program.expressions() if isinstance(node, Read)}
    return all(each.type is None and each.name not in read for each in program.outputs)


def _is_inferred(program: Program, value: Input, dtype: str | None) -> bool:
    return bool(value.modes) and value.name not in ("seed", "offset") and type_of(program, value) == dtype


def _renamed(program: Program, names: Mapping[str, Read]) -> Program:
    """Return the program with other names for some inputs."""

    def changed(node: Expression) -> Expression:
        if isinstance(node, Read):
            return names.get(node.name, node)
        return with_children(node, tuple(map(changed, children(node))))

    assigns = tuple(replace(each, value=changed(each.value)) for each in program.assigns)
    return replace(program, assigns=assigns, feeds=tuple(replace(e, value=changed(e.value)) for e in program.feeds))


def _with_constant_function(program: Program) -> Program:
    """Return the program with a number that is added or multiplied as a function without parameters."""
    for at, assign in enumerate(program.assigns):
        found: list[Number] = []

        def changed(node: Expression, found: list[Number] = found) -> Expression:
            if (
                not found
                and isinstance(node, Call)
                and node.word in ("+", "*")
                and isinstance(node.arguments[1], Number)
            ):
                found.append(node.arguments[1])
                return replace(node, arguments=(node.arguments[0], Call("own_number", ())))
            return with_children(node, tuple(map(changed, children(node))))

        value = changed(assign.value)
        if found:
            assigns = (*program.assigns[:at], replace(assign, value=value), *program.assigns[at + 1 :])
            return replace(program, assigns=assigns, defines=(*program.defines, Define("own_number", (), found[0])))
    return program
