"""Functions that are not elementwise: reductions, coordinates, random numbers, pairs of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evt.ir.dag import Builder
from evt.ir.dtype import F32, I32
from evt.ir.interface import declaration
from evt.ir.lower.names import factors
from evt.ir.lower.words import PAIR_BLOCKS, SPECIAL, read_reduced_modes
from evt.ir.node import (
    ELEMENT_MODES,
    MOMENTS,
    PLACES,
    Acc,
    Apply,
    Cast,
    Const,
    Extent,
    Index,
    Interleave,
    Load,
    Node,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    base,
    divisor,
    is_divided,
    shown,
)
from evt.language import tree as syntax

if TYPE_CHECKING:
    from evt.ir.lower.expressions import Expressions

_Form = Callable[["Expressions", syntax.Call, list[int]], int]


def lower_reduction(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Return the value of a reduction: ``sum[n](x)``, ``max[m, n](x)``, or ``max[n%32](x)`` over blocks of columns.

    ``var[n](x, c)`` is the centred sum of squares divided by the count less the correction ``c``, 0 if it is omitted.
    """
    name = call.function.text
    assert call.subscript is not None
    modes = read_reduced_modes(expressions.report, call.subscript)
    form = f"{name}[{', '.join(m.name for m in call.subscript.modes)}]({'x, correction' if name == 'var' else 'x'})"
    if not _takes(expressions, call, operands, form, 1, 1 + (name == "var")):
        return expressions.mistake()
    if modes is None:
        return operands[0]
    if name in PLACES and modes not in (("m",), ("n",)):
        hint = f"write `{name}[n](x)`, the column in each row, or `{name}[m](x)`, the row in each column"
        expressions.report("E0301", f"`{name}` is along one mode", call.subscript.span, "", hint)
        return operands[0]
    if "%" in modes[0]:
        return _fold(expressions, name, int(modes[0].partition("%")[2]), *operands)
    value = expressions.builder.add(Reduce(name, modes), operands[0])
    if len(operands) > 1 and any(map(is_divided, modes)):
        expressions.report.unsupported("a variance of blocks with a correction is", call.span)
    return value if len(operands) == 1 else _corrected(expressions, modes, value, *operands)


def _fold(expressions: Expressions, name: str, width: int, operand: int, correction: int | None = None) -> int:
    add = expressions.builder.add
    if name not in MOMENTS:
        return add(ReduceBlocks(name, width), operand)
    if name == "var" and "n" not in map(base, expressions.modes()[operand]):
        operand = add(Apply("mul"), add(Const.of(1.0, ("n",))), operand)  # a value for each column
    total, count = add(ReduceBlocks("sum", width), operand), add(Const.of(float(width)))
    mean = add(Apply("div"), total, count)
    if name == "mean":
        return mean
    centred = add(Apply("sub"), operand, mean)
    squares = add(ReduceBlocks("sum", width), add(Apply("mul"), centred, centred))
    return add(Apply("div"), squares, count if correction is None else add(Apply("sub"), count, correction))


def _corrected(expressions: Expressions, modes: tuple[str, ...], variance: int, operand: int, correction: int) -> int:
    """Return ``variance * (count / (count - correction))``."""
    add = expressions.builder.add
    count = add(Cast(F32), add(Extent(modes[0])))  # a product of i32 may overflow
    for mode in modes[1:]:
        count = add(Apply("mul"), count, add(Extent(mode)))
    columns = max(map(divisor, expressions.modes()[operand]), default=1) if "n" in modes else 1
    if columns > 1:
        count = add(Apply("div"), count, add(Const.of(float(columns))))
    return add(Apply("mul"), variance, add(Apply("div"), count, add(Apply("sub"), count, correction)))


def _without_modes(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    name = call.function.text
    hint = f"write `{name}[n]` or `{name}[m]`" + (f" or `{name}[m, n]`" if name not in PLACES else "")
    message = f"`{name}` needs the modes to reduce over"
    expressions.report("E0203", message, call.function.span, "no modes", hint)
    return expressions.mistake()


def _of_mode(make: Callable[[str], Node], modes: tuple[str, ...]) -> _Form:
    def lower(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
        """Return the value of ``iota(m)``, the element's coordinate, or ``size(m)``, the extent of a mode."""
        name, arguments = call.function.text, [argument.value for argument in call.arguments]
        if name == "iota" and (operand := expressions.operand_of(call)):
            _no_coordinate(expressions, call, operand)
            return expressions.mistake()
        if len(arguments) == 1 and isinstance(arguments[0], syntax.Name) and arguments[0].name in modes:
            return expressions.builder.add(make(arguments[0].name))
        forms = [f"`{name}({mode})`" for mode in modes]
        hint = f"write {', '.join(forms[:-1])} or {forms[-1]}"
        expressions.report("E0203", f"`{name}` takes a mode", call.span, "", hint)
        return expressions.mistake()

    return lower


def _product(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``matmul(A, up)``, the product of A and an input; ``matmul(A, B)`` is ``acc``."""
    values = [argument.value for argument in call.arguments if argument.keyword is None]
    if len(call.arguments) == 2 and [getattr(each, "name", "") for each in values] == ["A", "B"]:
        return expressions.builder.add(Acc())
    named = [name for name, _ in factors(call.arguments)]
    if not named:
        message, hint = "`matmul` multiplies A with an input", "write `matmul(A, up)`; the product of A and B is `acc`"
        expressions.report("E0203", message, call.span, "not a product of A", hint)
    elif named[0] in ("acc", *expressions.assigns):
        message = f"`{named[0]}` is computed here, and a kernel has no product of a computed value"
        expressions.report("E0203", message, call.span, "not an input", "compute the product in a separate program")
    elif expressions.is_inlined:
        message, hint = "the body of a function has no product", "pass it: `gate(acc, matmul(A, up))`"
        expressions.report("E0203", message, call.span, "in the body of a function", hint)
    elif (value := expressions.inputs.get(named[0])) is not None:
        if set(value.modes) == set(ELEMENT_MODES["B"]) and value.default is None:
            return expressions.builder.add(Acc(value.name))
        found = "has a default" if value.default is not None else f"is [{shown(value.modes)}]"
        hint = f"declare it `in {declaration(value.name, value.dtype, ELEMENT_MODES['B'])}`"
        expressions.report("E0302", f"`{value.name}` {found}, and A is multiplied with it", call.span, "as B is", hint)
    return expressions.mistake()


def _no_coordinate(expressions: Expressions, call: syntax.Call, operand: str) -> None:
    """Report ``iota`` in the formula of an operand, and suggest a vector of coordinates."""
    modes = [argument.value.name for argument in call.arguments if isinstance(argument.value, syntax.Name)]
    mode = next((mode for mode in modes if mode in ELEMENT_MODES[operand]), None)
    message = f"the formula of `{operand}` has a coordinate: `iota` counts rows, columns and batches of the result"
    hint = "compute it in a separate kernel"
    if mode is not None:
        vector = f"at_{mode}"
        hint = (
            f"read a vector: declare `in {vector}: i32[{mode}]`, write `{vector}`, and pass {vector}=torch.arange(...)"
        )
    expressions.report("E0411", message, call.span, "not elementwise", hint)


def _rand(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``rand(seed, offset)``: uniform in [0, 1)."""
    if not _takes(expressions, call, operands, SPECIAL["rand"], 2):
        return expressions.mistake()
    return _random(expressions, *operands)


def _random(expressions: Expressions, *counters: int) -> int:
    """Return random numbers, whose seed and offset are read with all their bits."""
    builder = expressions.builder
    return builder.add(Random(), *(_whole(builder, counter) for counter in counters))


def _whole(builder: Builder, counter: int) -> int:
    """Return a seed or an offset as it is loaded, without the cast of an i64 to i32."""
    loads = builder[counter] == Cast(I32) and isinstance(builder[builder.arguments(counter)[0]], Load)
    return builder.arguments(counter)[0] if loads else counter


def _dropout(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``dropout`` to ``where(rand(seed, offset) >= p, x / (1 - p), 0)``, as torch.nn.functional.dropout."""
    if not _takes(expressions, call, operands, SPECIAL["dropout"], 4):
        return expressions.mistake()
    x, p, seed, offset = operands
    add, probability = expressions.builder.add, expressions.builder[p]
    if isinstance(probability, Const) and not 0 <= probability.value <= 1:
        expressions.refuse_numbers(call, "0 <= p <= 1", {"p": probability.value})
    kept = add(Apply("ge"), _random(expressions, seed, offset), p)
    scale = add(Apply("div"), add(Const.of(1.0)), add(Apply("sub"), add(Const.of(1.0)), p))
    return add(Apply("where"), kept, add(Apply("mul"), x, scale), add(Const.of(0.0)))


def _pick(member: int) -> _Form:
    def lower(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
        """Lower ``even(x)``, ``odd(x, 32)``: deinterleave adjacent columns, or columns at this distance."""
        name = call.function.text
        if not _takes(expressions, call, operands, f"{name}(x, distance)", 1, 2):
            return expressions.mistake()
        hint = f"`{name}(x)` pairs columns 2j and 2j + 1, `{name}(x, 32)` columns 32 apart"
        return expressions.builder.add(Pick(member, _distance(expressions, call, operands, 1, hint)), operands[0])

    return lower


def _interleave(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``interleave(x, y)``, ``interleave(x, y, 32)``: the value whose pairs of columns have these members."""
    if not _takes(expressions, call, operands, "interleave(x, y, distance)", 2, 3):
        return expressions.mistake()
    hint = "`interleave(x, y)` makes columns 2j and 2j + 1, `interleave(x, y, 32)` columns 32 apart"
    return expressions.builder.add(Interleave(_distance(expressions, call, operands, 2, hint)), *operands[:2])


def _swap(expressions: Expressions, call: syntax.Call, operands: list[int]) -> int:
    """Lower ``swap(x)``, ``swap(x, 32)``: each column's partner, ``interleave(odd(x), even(x))``."""
    if not _takes(expressions, call, operands, "swap(x, distance)", 1, 2):
        return expressions.mistake()
    hint = "`swap(x)` exchanges columns 2j and 2j + 1, `swap(x, 32)` columns 32 apart"
    add, distance = expressions.builder.add, _distance(expressions, call, operands, 1, hint)
    first, second = (add(Pick(member, distance), operands[0]) for member in (0, 1))
    return add(Interleave(distance), second, first)


def _distance(expressions: Expressions, call: syntax.Call, operands: list[int], place: int, hint: str) -> int:
    """Return the distance of the columns of a pair: the argument at a place, or 1."""
    if len(operands) <= place:
        return 1
    distance = expressions.builder[operands[place]]
    if isinstance(distance, Const) and distance.value in PAIR_BLOCKS:
        return int(distance.value)
    if expressions.is_mistake(operands[place]):
        return 1
    message = f"the distance of `{call.function.text}` is one of {', '.join(map(str, PAIR_BLOCKS))}"
    expressions.report("E0203", message, call.arguments[place].span, "not a distance", hint)
    return 1


def _takes(
    expressions: Expressions, call: syntax.Call, operands: list[int], form: str, least: int, most: int = 0
) -> bool:
    """Return whether a call has the number of arguments of its form, by position."""
    keyword = next((argument.keyword for argument in call.arguments if argument.keyword is not None), None)
    if keyword is not None:
        expressions.report("E0204", f"`{call.function.text}` is called by position", keyword.span, "", f"`{form}`")
    elif not least <= len(operands) <= max(least, most):
        wanted = f"{least} argument{'s' * (least != 1)}" if most <= least else f"{least} or {most} arguments"
        message = f"`{call.function.text}` takes {wanted}, {len(operands)} given"
        expressions.report("E0203", message, call.span, "", f"write `{form}`")
    return keyword is None and least <= len(operands) <= max(least, most)


SPECIAL_FORMS: dict[str, _Form] = {
    "sum": _without_modes,
    "mean": _without_modes,
    "var": _without_modes,
    "argmax": _without_modes,
    "argmin": _without_modes,
    "iota": _of_mode(Index, ("m", "n", "l")),
    "size": _of_mode(Extent, ("m", "n", "k", "l")),
    syntax.PRODUCT: _product,
    "rand": _rand,
    "dropout": _dropout,
    "even": _pick(0),
    "odd": _pick(1),
    "interleave": _interleave,
    "swap": _swap,
}
