"""Functions that are not element-wise: reductions, coordinates, random numbers, pairs of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evt.ir.lower.words import PAIR_BLOCKS, SPECIAL, read_reduced_modes
from evt.ir.node import MODES, Apply, Const, Fold, Index, Pick, Random, Reduce
from evt.language import tree as syntax

if TYPE_CHECKING:
    from evt.ir.lower.expressions import Expressions

_Form = Callable[["Expressions", syntax.Call, list[int]], int]


def lower_reduction(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``sum[n](x)``, ``max[m, n](x)``; ``max[n%32](x)`` over blocks of columns."""
    name = call.function.text
    assert call.subscript is not None
    modes = read_reduced_modes(expressions.report, call.subscript)
    if not _takes(expressions, call, operands, f"{name}[{', '.join(m.name for m in call.subscript.modes)}](x)", 1):
        return expressions.constant_node(0.0)
    if modes is None:
        return operands[0]
    if modes[0] not in MODES:
        return expressions.builder.add(Fold(name, int(modes[0].partition("%")[2])), operands[0])
    return expressions.builder.add(Reduce(name, modes), operands[0])


def _sum(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    expressions.report(
        "E0203",
        "`sum` names the modes that it reduces over",
        call.function.span,
        "no modes",
        "write `sum[n](x)`, `sum[m](x)` or `sum[m, n](x)`",
    )
    return expressions.constant_node(0.0)


def _iota(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``iota(m)``: the element's coordinate."""
    arguments = [argument.value for argument in call.arguments]
    if len(arguments) == 1 and isinstance(arguments[0], syntax.Name) and arguments[0].name in MODES:
        return expressions.builder.add(Index(arguments[0].name))
    expressions.report("E0203", "`iota` takes a mode", call.span, "", "write `iota(m)`, `iota(n)` or `iota(l)`")
    return expressions.constant_node(0.0)


def _rand(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``rand(seed, offset)``: uniform in [0, 1)."""
    if not _takes(expressions, call, operands, SPECIAL["rand"], 2):
        return expressions.constant_node(0.0)
    return expressions.builder.add(Random(), *operands)


def _dropout(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``dropout`` to ``where(rand(seed, offset) >= p, x / (1 - p), 0)``, as torch.nn.functional.dropout."""
    if not _takes(expressions, call, operands, SPECIAL["dropout"], 4):
        return expressions.constant_node(0.0)
    x, p, seed, offset = operands
    add = expressions.builder.add
    kept = add(Apply("ge"), add(Random(), seed, offset), p)
    scale = add(Apply("div"), add(Const.of(1.0)), add(Apply("sub"), add(Const.of(1.0)), p))
    return add(Apply("where"), kept, add(Apply("mul"), x, scale), add(Const.of(0.0)))


def _pick(member: int) -> _Form:
    def lower(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
        """Lower ``even(x)``, ``odd(x, 32)``: deinterleave columns, adjacent ones or ones that many columns apart."""
        name = call.function.text
        if not _takes(expressions, call, operands, f"{name}(x, distance)", 1, 2):
            return expressions.constant_node(0.0)
        block = 1
        if len(operands) == 2:
            distance = expressions.builder[operands[1]]
            if not isinstance(distance, Const) or distance.value not in PAIR_BLOCKS:
                expressions.report(
                    "E0203",
                    f"the distance of `{name}` is one of {', '.join(map(str, PAIR_BLOCKS))}",
                    call.arguments[1].span,
                    "not a distance",
                    f"`{name}(x)` pairs columns 2j and 2j + 1, `{name}(x, 32)` columns 32 apart",
                )
            else:
                block = int(distance.value)
        return expressions.builder.add(Pick(member, block), operands[0])

    return lower


def _takes(
    expressions: Expressions, call: syntax.Call, operands: list[int], form: str, least: int, most: int = 0
) -> bool:
    """Return whether a call has as many arguments as its form, by position."""
    keyword = next((argument.keyword for argument in call.arguments if argument.keyword is not None), None)
    if keyword is not None:
        expressions.report("E0204", f"`{call.function.text}` is called by position", keyword.span, "", f"`{form}`")
    elif not least <= len(operands) <= max(least, most):
        expressions.report("E0203", f"write `{form}`", call.span, f"{len(operands)} arguments", f"`{form}`")
    return keyword is None and least <= len(operands) <= max(least, most)


SPECIAL_FORMS: dict[str, _Form] = {
    "sum": _sum,
    "iota": _iota,
    "rand": _rand,
    "dropout": _dropout,
    "even": _pick(0),
    "odd": _pick(1),
}
