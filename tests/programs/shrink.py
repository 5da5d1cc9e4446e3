"""The smallest program that still fails in the same way: ``shrink(program, fails)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from .generator import normalised
from .tree import Acc, Assign, Define, Expression, Input, Number, Program, Sizes, children, index_name, with_children

_LEAVES: tuple[Expression, ...] = (Acc(), Number("1"))


def shrink(program: Program, fails: Callable[[Program], bool], most: int = 600) -> Program:
    """Take the first smaller program that fails, until there is none or ``most`` were tried."""
    return shrink_together(program, lambda group: next(filter(fails, group), None), 1, most)


def shrink_together(
    program: Program, first: Callable[[Sequence[Program]], Program | None], together: int, most: int
) -> Program:
    """Shrink a program as :func:`shrink` does; ``first`` returns the first of several programs that fails, or None."""
    tried = set[str]()

    def untried() -> Iterator[Program]:
        for smaller in _smaller(program):
            key = str(smaller)
            if key not in tried and smaller != program and len(tried) < most:
                tried.add(key)
                yield smaller

    while True:
        candidates = untried()
        while group := list(islice(candidates, together)):
            found = first(group)
            if found is not None:
                program = found
                break
        else:
            return program


def _smaller(program: Program) -> Iterator[Program]:
    """Smaller programs, the boldest changes first. They may be invalid."""
    for output in program.outputs:
        if output.name != "D" and len(program.outputs) > 1:
            yield normalised(replace(program, outputs=tuple(each for each in program.outputs if each != output)))
    plain = {
        "settings": (),
        "feeds": (),
        "factors": (),
        "header": None,
        "separator": "\n",
        "data": "plain",
        "views": False,
    }
    for name, value in plain.items():
        if getattr(program, name) != value:
            yield normalised(replace(program, **{name: value}))
    for setting in program.settings:
        yield replace(program, settings=tuple(each for each in program.settings if each != setting))
    for feed in program.feeds:
        yield normalised(replace(program, feeds=tuple(each for each in program.feeds if each != feed)))
    yield from _sizes(program)
    yield from _expressions(program)
    for index, output in enumerate(program.outputs):
        if output.indexed:
            yield normalised(_with(program, "outputs", index, replace(output, indexed=())))
        for change in ({"modes": ("m", "n")}, {"modes": tuple(m for m in output.modes if m != "l")}, {"type": None}):
            yield _with(program, "outputs", index, replace(output, **change))
        if output.type not in (None, "f32", "b1", "bool"):
            yield _with(program, "outputs", index, replace(output, type="f32"))
    for index, given in enumerate(program.inputs):
        for simple in _inputs(given):
            yield _with(program, "inputs", index, simple)


def _with(program: Program, name: str, index: int, value: object) -> Program:
    values = list(getattr(program, name))
    values[index] = value
    return replace(program, **{name: tuple(values)})


def _sizes(program: Program) -> Iterator[Program]:
    if program.operation != "gemm":
        geometry = None
        yield replace(program, operation="gemm", geometry=geometry, sizes=replace(program.sizes, rows=(2,)), groups=())
    if len(program.groups) > 1:
        yield replace(program, groups=program.groups[:1])
    if program.transposed != (False, False):
        yield replace(program, transposed=(False, False))
    sizes = program.sizes
    for smaller in (Sizes((), (2,), sizes.n, sizes.k), Sizes((2,), (2,), sizes.n, 2)):
        if program.geometry is None and smaller != sizes and (smaller.batch == () or sizes.batch not in ((), (2,))):
            yield replace(program, sizes=smaller)
    for n in (1, 2, 16, 32, 64):
        if n < sizes.n:
            yield replace(program, sizes=replace(sizes, n=n))
    if sizes.k not in (0, 1):
        yield replace(program, sizes=replace(sizes, k=1))
    for types in (("f32", "f32"), ("f16", "f16")):
        if (program.a, program.b) not in (("f32", "f32"), types) and program.header is None:
            yield replace(program, a=types[0], b=types[1])


def _expressions(program: Program) -> Iterator[Program]:
    for field in ("assigns", "feeds", "defines"):
        for index, each in enumerate(getattr(program, field)):
            for value in _simpler(each.body if isinstance(each, Define) else each.value):
                changed: Define | Assign = (
                    replace(each, body=value) if isinstance(each, Define) else replace(each, value=value)
                )
                yield normalised(_with(program, field, index, changed))


def _simpler(node: Expression) -> Iterator[Expression]:
    """Yield a part in place of the whole, a leaf, and the same for every part."""
    parts = children(node)
    yield from parts
    if parts:
        yield from _LEAVES
    elif isinstance(node, Number) and node.text not in ("1", "2"):
        yield from (Number("1"), Number("2"))
    for index, part in enumerate(parts):
        for simpler in _simpler(part):
            yield with_children(node, (*parts[:index], simpler, *parts[index + 1 :]))


def _inputs(value: Input) -> Iterator[Input]:
    if value.indexed:
        yield replace(value, indexed=())
        return
    if value.name in map(index_name, ("m", "n", "lm", "ln")):
        return
    if value.given not in ("tensor", "number") and (value.given != "absent" or value.default):
        yield replace(value, given="tensor" if value.modes else "number")
    if value.default:
        yield replace(value, default="", given="tensor" if value.modes else "number")
        if value.default not in ("0", "1"):
            yield replace(value, default="1")
    if value.flexible:
        yield replace(value, flexible=False, given="tensor")
    if value.type not in (None, "f32", "b1") and value.name not in ("seed", "offset"):
        yield replace(value, type="f32")
    if value.type in ("b1", "bool"):
        return
    if value.declared and value.modes and value.modes not in (("m",), ("n",)):
        yield replace(value, modes=("m",), given="tensor" if value.given == "batched" else value.given)
