"""The reference of the language: the table of functions and the grammar."""

from __future__ import annotations

from collections.abc import Iterable

from evt.functions import TABLE, Function
from evt.functions.activation import ACTIVATIONS
from evt.functions.arithmetic import ARITHMETIC, ROUNDING, WRAPPING
from evt.functions.elementary import ELEMENTARY
from evt.functions.logic import LOGIC
from evt.functions.table import BINARY, UNARY
from evt.ir.dtype import OPERANDS, OUTPUTS, SCALARS, STORAGE, TYPES, accumulator
from evt.ir.lower.words import SPECIAL
from evt.ir.node import MOMENTS, PLACES, REDUCTIONS
from evt.resources import text

_GROUPS = {
    "Arithmetic": ARITHMETIC,
    "Rounding": (*ROUNDING, *WRAPPING),
    "Elementary functions": ELEMENTARY,
    "Activations": ACTIVATIONS,
    "Logic": LOGIC,
}
#: The sections of the language about functions that are not elementwise.
_SECTIONS = {
    **dict.fromkeys((*REDUCTIONS, *MOMENTS, *PLACES), "reductions"),
    "size": "sizes",
    "iota": "coordinates",
    "matmul": "a-second-product",
    **dict.fromkeys(("rand", "dropout"), "random-numbers"),
    **dict.fromkeys(("even", "odd", "interleave", "swap"), "pairs-of-columns"),
}


def functions() -> str:
    """Return a table of each group of functions: the call, the meaning, and the derivative along each parameter."""
    assert [row.name for rows in _GROUPS.values() for row in rows] == list(TABLE)
    groups = "\n".join(f"## {title}\n\n{_table(rows)}" for title, rows in _GROUPS.items())
    return f"{groups}\n## Functions of more than one element\n\n{_special()}"


def _special() -> str:
    """Return a table of the functions that are not elementwise, with their sections of the language."""
    assert SPECIAL.keys() <= _SECTIONS.keys()
    lines = ["| function | section |", "|---|---|"]
    for name, section in _SECTIONS.items():
        call = SPECIAL.get(name, f"{name}[n](x)")
        lines.append(f"| `{call}` | [{section.replace('-', ' ')}](language.md#{section}) |")
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Function]) -> str:
    lines = ["| function | meaning | derivatives |", "|---|---|---|"]
    for row in rows:
        derivatives = "; ".join(f"`{formula}`" for formula in row.derivatives if formula)
        needs = f" It needs `{row.requires}`." if row.requires else ""
        cells = (f"`{row}`", row.text + needs + _names(row), derivatives)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _names(row: Function) -> str:
    """Return the other spellings of a function."""
    operators = [name for name, function in (*UNARY.items(), *BINARY.items()) if function == row.name]
    others = " ".join(f"`{name}`" for name in (*operators, *row.aliases))
    return f" Also {others}." if others else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def types() -> str:
    """Return a table of the types: names, PyTorch's and C++'s types, and their uses."""
    uses = {"operand": OPERANDS, "input": STORAGE, "scalar": SCALARS, "output": OUTPUTS}
    lines = [
        "| type | also | bits | PyTorch | C++ | operand, input, scalar, output | accumulator |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in TYPES:
        names = " ".join(f"`{alias}`" for alias in each.aliases)
        used = ", ".join(use for use, allowed in uses.items() if each in allowed)
        accumulated = f"`{accumulator(each)}`" if each in OPERANDS else ""
        lines.append(
            f"| `{each}` | {names} | {each.bits} | `{each.torch}` | `{each.cutlass}` | {used} | {accumulated} |"
        )
    return "\n".join(lines)


def grammar() -> str:
    """Return the grammar as a block of code."""
    return f"```text\n{text('grammar', 'evt.lark')}```\n"
