"""The inputs and outputs of a program: their types and modes, for any call."""

from __future__ import annotations

from collections.abc import Iterator

from .dtypes import compute, primary
from .tree import Dropout, Expression, Input, Iota, Output, Program, Rand, Read, Reduce, Size, children


def type_of(program: Program, value: Input) -> str:
    """Return the type of an input."""
    if value.type is not None:
        return value.type
    if is_factor(value):
        return "f32"
    if not set(value.modes) - {"l"}:
        return "f64" if compute(program.a) == "f64" else "f32"
    return tensor_type(program)


def is_factor(value: Input) -> bool:
    """Return whether an input has a value for each block of k."""
    return any(mode.startswith("k/") for mode in value.modes)


def output_type(program: Program, output: Output, reduction: str | None) -> str:
    """Return the type of an output; ``reduction`` is the type that one is computed in, where it is one."""
    return output.type or reduction or tensor_type(program)


def main_output(program: Program) -> Output:
    """D, or its substitute: the first matrix of whole elements, or the first output."""
    named = [each for each in program.outputs if each.name == "D"]
    whole = [each for each in program.outputs if set(each.modes) - {"l"} == {"m", "n"} and each.type != "b1"]
    return (*named, *whole, *program.outputs)[0]


def tensor_type(program: Program) -> str:
    """Return the type of undeclared tensors."""
    main = main_output(program)
    follows = main.name == "D" or set(main.modes) - {"l"} == {"m", "n"}
    return primary(program.a, main.type if follows and main.type != "b1" else None)


def reductions(program: Program) -> dict[str, frozenset[str]]:
    """Return the modes over which each output is reduced, of outputs that are reductions or computed of some."""
    values = {each.name: each.value for each in program.assigns}
    found = {}
    for output in program.outputs:
        stack, seen = [output.name], {output.name}
        while stack:
            for node in walk_values(values[stack.pop()]):
                if isinstance(node, Reduce):
                    found[output.name] = frozenset(node.modes)
                elif isinstance(node, Read) and node.name in values and node.name not in seen:
                    seen.add(node.name)
                    stack.append(node.name)
    return found


def walk_values(node: Expression) -> Iterator[Expression]:
    """Yield the parts of an expression, without the operands of its reductions."""
    yield node
    if not isinstance(node, Reduce):
        for child in children(node):
            yield from walk_values(child)


def memory_modes(output: Output, reduced: frozenset[str]) -> tuple[str, ...]:
    """Return the modes of an output's tensor: an implied batch comes first, where matrices and reductions have one."""
    has_batches = bool(reduced) or len(output.modes) > 1
    implied = has_batches and "l" not in output.modes and "l" not in reduced
    return ("l", *output.modes) if implied else output.modes


def is_image(program: Program, output: Output) -> bool:
    """Return whether an output, not of bits, is [N, C, ...]."""
    return program.geometry is not None and output.modes == ("m", "n") and not output.indexed


def counts(program: Program, mode: str) -> bool:
    """Return whether a program says where along a mode an element is, its extent, or reduces over it."""
    return any(
        isinstance(node, Rand | Dropout)
        or (isinstance(node, Iota | Size) and node.mode == mode)
        or (isinstance(node, Reduce) and mode in node.modes)
        for node in program.expressions()
    )
