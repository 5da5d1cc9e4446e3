"""A failure as text, and the problem that the text describes: ``describe(problem, layouts)``, ``read(text)``."""

from __future__ import annotations

from .. import tree
from ..tree import Program

_NAMES = {name: value for name, value in vars(tree).items() if isinstance(value, type)}


def describe(program: Program, layouts: int) -> str:
    """Return a program's text as comments, and a line that :func:`read` reads."""
    comments = "\n".join(f"# {line}" for line in str(program).splitlines())
    return f"{comments}\n({layouts}, {program!r})"


def read(text: str) -> tuple[Program, int]:
    """Return the problem of a description, and its number ``layouts``. Raise ValueError for any other text."""
    line = next((line for line in text.splitlines() if line.startswith("(")), "")
    try:
        layouts, program = eval(line, {"__builtins__": {}}, _NAMES)
    except Exception as error:
        raise ValueError(f"not a problem that the fuzzer printed: {error}") from error
    if not isinstance(program, Program):
        raise ValueError("not a problem that the fuzzer printed")
    return program, layouts
