"""The meaning of a program: its tree over numbers, from the language's documentation alone.

``evaluate(program, data, single)`` returns every output as numbers [l, m, n] with their tolerance: in f32, as kernels
and the default reference compute (``single``), or with all floats as doubles. Nothing of evt is used here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .call import Data
from .combined import aligned, either, finite, folded, interleaved, or_zero, place, squared
from .derivatives import Derivatives
from .dtypes import TYPES, compute, primary, promoted
from .eager import Addend, Product, Value, divided, of_product, power
from .functions import COMPARING, EAGER, FUNCTIONS, ExactFunction
from .interface import main_output, output_type, reductions
from .number import FUNCTION, NO_DOUBT, OPERATION, Arithmetic, Array, Number, deviation
from .philox import uniform, uniform_wide
from .products import accumulated
from .rounding import rounded
from .tree import (
    Acc,
    Block,
    Call,
    Cast,
    Dropout,
    Element,
    Expression,
    Interleave,
    Iota,
    Output,
    Pair,
    Program,
    Rand,
    Read,
    Reduce,
    Size,
)
from .tree import Number as Literal

#: The dtype in which eager PyTorch would hold a value made of a derivative: unspecified.
_OPEN = "?"
_AXIS = {"l": 1, "m": 2, "n": 3}


@dataclass(frozen=True)
class Mode:
    """How a program is computed: in f32 (``single``) or with its floats as doubles.

    ``loose``: an optimiser or a kernel may contract or reorder operations; ``finite``: the result of algebra on NaN and
    infinities is unspecified. ``function`` is the tolerance of a function in units in the last place, ``product`` the
    part of it that applies to the product.
    """

    single: bool
    loose: bool = False
    finite: bool = False
    function: float = FUNCTION
    product: float = 0.0


def evaluate(program: Program, data: Data, mode: Mode, seed: int = 0) -> dict[str, Value]:
    """Return the outputs by name, before they are rounded to their types."""
    return Evaluator(program, data, mode, seed).outputs()


class Evaluator:
    def __init__(self, program: Program, data: Data, mode: Mode, seed: int) -> None:
        self.program = program
        self.data = data
        self.mode = mode
        self.single = mode.single
        self.eager = dict(program.settings).get("numerics") in ("eager", "match_eager")
        self.eighths = program.a in ("e4m3", "e5m2")
        self.defined = {each.name: each for each in program.defines}
        self.assigned = {each.name: each.value for each in program.assigns}
        self.values: dict[tuple[str, tuple[str, ...]], Value] = {}
        #: The modes of values' last three axes: the epilogue's, or the modes of an operand's elements.
        self.order: tuple[str, ...] = ("l", "m", "n")
        random = np.random.default_rng(seed)
        self.arithmetic = {
            (kind, exact): Arithmetic(
                mode.single and kind == "f32",
                0.0 if exact and not mode.loose else OPERATION,
                random,
                mode.finite,
                mode.function,
            )
            for kind in ("f32", "f64")
            for exact in (False, True)
        }
        self.double = self.arithmetic["f64", True]
        self.accumulates = compute(program.a)

    def outputs(self) -> dict[str, Value]:
        return {output.name: self.stored(output, self.name(output.name)) for output in self.program.outputs}

    def stored(self, output: Output, value: Value) -> Value:
        """Return a value as it is stored: a literal takes the output's type, another constant is untyped."""
        wide = output_type(self.program, output, None) == "f64"
        if not value.constant or (value.literal and (wide or value.type == "i32")):
            return value
        t = self.arithmetic["f64" if self.accumulates == "f64" else "f32", True]
        return replace(value, number=t.number(value.number))

    def name(self, name: str) -> Value:
        """Return the value of a name that is assigned, or an input."""
        key = name, self.order
        if key not in self.values:
            assigned = self.assigned.get(name)
            self.values[key] = self.input(name) if assigned is None else self.value(assigned, {})
        return self.values[key]

    def plain(self, x: Array, doubt: Array = NO_DOUBT) -> Number:
        return Number(x, doubt, self.double)

    def value(self, node: Expression, scope: Mapping[str, Value]) -> Value:
        def of(child: Expression) -> Value:
            return self.value(child, scope)

        match node:
            case Acc():
                return self.accumulator()
            case Element(operand):
                name = {"A": self.program.a, "B": self.program.b}[operand]
                return Value(self.plain(self.data.elements[operand][None]), name, held=name)
            case Literal():
                return self.literal(node.value)
            case Read(name):
                return scope[name] if name in scope else self.name(name)
            case Cast(dtype, x):
                return self.cast(dtype, of(x))
            case Reduce(kind, modes, x):
                return self.reduce(kind, modes, of(x))
            case Block(kind, width, x):
                return self.blocks(kind, width, of(x))
            case Pair(member, distance, x):
                return self.pair(member, distance, of(x))
            case Interleave(x, y, distance):
                return self.interleave(of(x), of(y), distance)
            case Iota(mode):
                shape = [1, 1, 1, 1]
                shape[_AXIS[mode]] = -1
                count = np.arange(self.data.sizes[mode]).reshape(shape) * 1.0
                return Value(self.plain(count), "i32", columns=mode == "n", held="i32")
            case Size(mode):
                return Value(self.plain(np.full((1, 1, 1, 1), self.data.extents[mode] * 1.0)), "i32")
            case Rand(seed, offset):
                return self.random(seed, offset)
            case Dropout(x, p, seed, offset):
                rate, one, zero = of(p), self.literal(1.0), self.literal(0.0)
                kept = self.apply("ge", [self.random(seed, offset), rate])
                scale = self.apply("div", [one, self.apply("sub", [one, rate])])
                return self.apply("where", [kept, self.apply("mul", [of(x), scale]), zero])
            case Call(primes=primes) if primes:
                return self.derivative(node, scope)
            case Call(function, arguments) if function in self.defined:
                define = self.defined[function]
                return self.value(define.body, dict(zip(define.parameters, map(of, arguments), strict=True)))
            case Call(function, arguments, word, names):
                given = [of(each) for each in arguments]
                if word == "-" and len(given) == 1 and given[0].literal:
                    return self.literal(-float(given[0].number.x.item()))
                bound = FUNCTIONS[function].bind(tuple(given), names)
                return self.apply(function, [self.literal(v) if isinstance(v, float) else v for v in bound])
        raise AssertionError(node)

    # Leaves

    def literal(self, value: float) -> Value:
        """Return a constant; a whole number is an integer among integers."""
        whole = value.is_integer() and -(2**31) <= value < 2**31 and str(value) != "-0.0"
        return Value(self.plain(np.full((1, 1, 1, 1), value)), "i32" if whole else "f32", True, True)

    def input(self, name: str) -> Value:
        """Return an input; an i64 is the nearest i32, and of truth values there is one type."""
        loaded = self.data.inputs[name]
        value = next(each for each in self.program.inputs if each.name == name)
        dtype = {"i64": "i32", "bool": "b1"}.get(loaded.type, loaded.type)
        x = loaded.along(self.order)[None]
        number = self.plain(rounded("i32", x) if loaded.type == "i64" else x)
        held, fewer = dtype if value.modes else "", 2 if "n/2" in value.modes else 1
        made = Value(number, dtype, columns="n" in loaded.modes, held=held, fewer=fewer)
        return replace(made, part=Addend(made, frozenset(re.findall("[lmn]", " ".join(value.modes)))))

    def accumulator(self) -> Value:
        key = "acc", self.order
        if key not in self.values:
            formulas = {each.name: self.operand(each.name, each.value) for each in self.program.feeds}
            t = self.double if self.accumulates == "i32" else self.arithmetic[self.accumulates, False]
            number = accumulated(self.program, self.data, t, formulas, self.mode.product)
            value = Value(number, self.accumulates, columns=True, held=self.accumulates)
            if self.eager and self.accumulates != "i32":
                raw = value
                value = self.hold(value, self.eager_product()) if self.accumulates == "f32" else value
                value = replace(value, part=Product(raw))
            self.values[key] = value
        return self.values[key]

    def eager_product(self) -> str:
        """Return the type of the product in eager PyTorch: A's; for 8-bit operands, that of D or of its substitute."""
        if self.program.a in ("e4m3", "e5m2"):
            main = main_output(self.program)
            reduction = main.name in reductions(self.program)
            return main.type or ("f32" if reduction else primary(self.program.a, None))
        return primary(self.program.a, None)

    def operand(self, name: str, formula: Expression) -> Number:
        """Return the operand after its mainloop fusion, rounded to its type; in doubles only if that is integer."""
        dtype = self.program.a if name == "A" else self.program.b
        outside, self.order = self.order, ("l", "m" if name == "A" else "n", "k")
        value = self.value(formula, {})
        self.order = outside
        shape = self.data.elements[name].shape
        number = value.number
        if self.single or compute(dtype) == "i32":
            number = self.cast(dtype, value).number
        return replace(number, x=np.broadcast_to(number.x, (len(number.x), *shape)))

    # Operations

    def domain(self, row: ExactFunction, values: Sequence[Value]) -> str:
        """Return the type that an application computes in: f64 beside an f64 operand, i32 for integers, else f32."""
        numbers = [value for slot, value in enumerate(values) if slot not in row.conditions]
        if not numbers:
            return "b1"
        varying = {compute(value.type) for value in numbers if not value.constant}
        if "f64" in varying or (not varying and self.accumulates == "f64"):
            return "f64"
        whole = all(compute(value.type) in ("i32", "b1") for value in numbers)
        return "i32" if varying and whole and row.integers else "f32"

    def apply(self, function: str, values: Sequence[Value]) -> Value:
        if not self.eager:
            return self.applied(function, values)
        return of_product(self, function, values) or self.eagerly(function, values)

    def eagerly(self, function: str, values: Sequence[Value]) -> Value:
        """Return an operation as eager PyTorch computes it, storing the result in the promoted type.

        Integers are converted to the type of the floats that they meet, and a number that is compared to the tensor's.
        A division of or by a number multiplies by a reciprocal, and small powers are products.
        """
        if any(value.held == _OPEN for value in values):
            result = self.applied(function, values)
            return replace(result, number=replace(result.number, doubt=~NO_DOUBT), held=_OPEN)
        row = FUNCTIONS[function]
        common = promoted([v.held for slot, v in enumerate(values) if slot not in row.conditions])

        def converted(slot: int, value: Value) -> Value:
            integer = compute(value.held) in ("i32", "b1") if value.held else row.predicate or function in COMPARING
            if not integer or slot in row.conditions or common not in ("f16", "bf16"):
                return value
            return replace(self.cast(common, value), held=value.held and common)

        values = [converted(slot, value) for slot, value in enumerate(values)]
        if row.predicate:
            return replace(self.applied(function, values), held="b1")

        def stored(result: Value) -> Value:
            held = common
            if common and compute(common) != "f32" and result.type != "i32":
                held = "f64" if result.type == "f64" else "f32"
            return self.hold(result, held)

        if function == "div" and common and compute(common) in ("f32", "f64"):
            if not values[0].held:
                reciprocal = stored(self.applied("rcp", values[1:]))
                return stored(self.applied("mul", [reciprocal, values[0]]))
            if not values[1].held:
                return stored(self.applied("mul", [values[0], self.applied("rcp", values[1:])]))
        if function == "softsign" and common:
            one = stored(self.applied("add", [stored(self.applied("abs", values)), self.literal(1.0)]))
            return stored(self.applied("div", [values[0], one]))
        if function == "tanhshrink" and common:
            return stored(self.applied("sub", [values[0], stored(self.applied("tanh", values))]))
        if function == "pow" and common and values[1].literal:
            found = power(self, values[0], values[1], common, stored)
            if found is not None:
                return found
        result = stored(self.applied(function, values))
        if function == "mul":
            for x, beta in (values, reversed(values)):
                if isinstance(x.part, Addend) and x.part.beta is None and x.held and not beta.held:
                    return replace(result, part=replace(x.part, beta=beta))
        return result

    def hold(self, value: Value, held: str) -> Value:
        """Return a value rounded to the half-width type in which PyTorch holds it."""
        if held in ("f16", "bf16"):
            number = self.cast(held, value).number
            value = replace(value, number=number if value.type != "f64" else self.double.number(number))
        return replace(value, held=held)

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        row = EAGER.get(function, FUNCTIONS[function]) if self.eager else FUNCTIONS[function]
        domain = self.domain(row, values)
        constant = all(value.constant for value in values)
        dtype = "b1" if row.predicate else domain
        columns = any(value.columns for value in values)
        fewer = min((value.fewer for value in values if value.columns), default=1)
        found = [v.number.t.truth(v.number) if slot in row.conditions else v.number for slot, v in enumerate(values)]
        numbers = aligned(found, self.data.sizes["n"] // fewer if fewer > 1 else 1)
        if domain == "i32":
            assert row.integers is not None
            return Value(self.in_integers(row.integers, numbers), dtype, constant, columns=columns, fewer=fewer)
        t = self.arithmetic["f64" if domain == "f64" else "f32", row.exact]
        with np.errstate(all="ignore"):
            number = row.meaning(t, *map(t.number, numbers))
        return Value(number, dtype, constant, columns=columns, fewer=fewer)

    def in_integers(self, f: Callable[..., Array], numbers: Sequence[Number]) -> Number:
        """Integers, which are exact and wrap; variants differ only by earlier roundings of floats."""
        doubt = NO_DOUBT
        for each in numbers:
            doubt = doubt | each.doubt | (deviation(each.x) > 0)
        x = f(*(np.nan_to_num(each.x[:1]).astype(np.int64) for each in numbers))
        return self.plain(
            np.asarray(x).astype(float), np.broadcast_to(doubt, np.broadcast_shapes(doubt.shape, x.shape[1:]))
        )

    def cast(self, dtype: str, value: Value) -> Value:
        """Return a rounding point. A type wider than f32 may be rounded to f32 on the way to a narrower one."""
        number = value.number

        def rounds(x: Array) -> Array:
            return rounded(dtype, x)

        dtype = {"bool": "b1"}.get(dtype, dtype)
        if dtype == "b1":
            result = number.t.truth(number)
        elif dtype == "f64":
            result = number
        elif TYPES[dtype].kind == "float":
            result = number.t.stairs(rounds, number)
            other = rounded(dtype, rounded("f32", number.x[:1]))
            result = either(result, other)
        else:
            result = number.t.stairs(rounds, number)
        exact = self.arithmetic["f32", True] if compute(dtype) == "f32" else self.double
        held = {"tf32": "f32"}.get(dtype, dtype)
        return Value(exact.number(result), dtype, columns=value.columns, held=held, fewer=value.fewer)

    # Reductions, pairs, random numbers

    def reduced(self, value: Value) -> tuple[Number, str]:
        """Return a value in the type that it is reduced in."""
        kind = {"b1": "i32"}.get(compute(value.type), compute(value.type))
        if value.constant:
            kind = "f64" if self.accumulates == "f64" else "f32"
        t = self.double if kind == "i32" else self.arithmetic[kind, False]
        return t.number(value.number), kind

    def reduce(self, kind: str, modes: Sequence[str], value: Value) -> Value:
        if kind == "mean":
            return self.mean(modes, value)
        if kind == "var":  # moments of integers are floats; eager PyTorch rounds the result only
            wide = self.apply("div", [replace(value, held=compute(value.type)), self.literal(1.0)])
            centred = self.apply("sub", [wide, self.mean(modes, wide)])
            made, axes = self.mean(modes, self.apply("mul", [centred] * 2)), [_AXIS[mode] for mode in modes]
            return replace(made, number=squared(or_zero(made.number), wide.number, axes))
        number, dtype = self.reduced(value)
        shape = list(number.x.shape)
        for mode in modes:
            shape[_AXIS[mode]] = self.data.sizes[mode] // (value.fewer if mode == "n" else 1)
        full = replace(number, x=np.broadcast_to(number.x, shape))
        if kind in ("argmax", "argmin"):
            return Value(place(kind, full, _AXIS[modes[0]]), "i32", columns="n" not in modes, held="i32")
        reduced = folded(kind, full, tuple(_AXIS[mode] for mode in modes), dtype)
        return Value(reduced, dtype, columns="n" not in modes, held=dtype, fewer=1 if "n" in modes else value.fewer)

    def mean(self, modes: Sequence[str], value: Value) -> Value:
        result = self.reduce("sum", modes, value)  # a kernel's moments overflow elsewhere
        for mode in modes:
            result = divided(self, result, self.value(Size(mode), {}))
        fewer = value.fewer if value.columns and "n" in modes else 1
        result = result if fewer == 1 else self.apply("mul", [result, self.literal(float(fewer))])
        return replace(result, number=finite(result.number))

    def blocks(self, kind: str, width: int, value: Value) -> Value:
        if kind == "mean":
            return divided(self, self.blocks("sum", width, value), self.literal(float(width)))
        if kind == "var":
            value = replace(value, columns=True)
            centred = self.apply("sub", [value, self.blocks("mean", width, value)])
            return self.blocks("mean", width, self.apply("mul", [centred, centred]))
        number, dtype = self.reduced(value)

        def cut(array: Array) -> Array:
            """[..., n] as [..., n / width, width]."""
            if not value.columns:
                return np.broadcast_to(array[..., None], (*array.shape, width))
            if array.shape[-1] == 1 != self.data.sizes["n"] // value.fewer:
                return np.broadcast_to(array[..., None], (*array.shape, width))
            return array.reshape(*array.shape[:-1], array.shape[-1] // width, width)

        cutting = Number(cut(number.x), cut(number.doubt), number.t)
        result = folded(kind, cutting, (4,), dtype)
        result = replace(result, x=result.x[..., 0], doubt=result.doubt[..., 0])
        block = Value(result, dtype, columns=True, fewer=width * value.fewer)
        return self.hold(block, value.held) if self.eager else block

    def pair(self, member: int, distance: int, value: Value) -> Value:
        """Return half of the columns; a value that is equal in all columns is halved too, as a sum over them shows."""

        def pick(array: Array) -> Array:
            if array.shape[-1] == 1:
                return array
            shape = (*array.shape[:-1], array.shape[-1] // (2 * distance), 2, distance)
            picked = array.reshape(shape)[..., member, :]
            return picked.reshape(*array.shape[:-1], -1) if array.size else array[..., : array.shape[-1] // 2]

        picked = Number(pick(value.number.x), pick(value.number.doubt), value.number.t)
        return replace(value, number=picked, literal=False, columns=True, fewer=2, part=None)

    def interleave(self, x: Value, y: Value, distance: int) -> Value:
        kind = self.domain(FUNCTIONS["where"], [self.literal(1.0), x, y])
        t = self.double if kind in ("i32", "b1") else self.arithmetic[kind, True]
        numbers, half = [t.number(each.number) for each in (x, y)], self.data.sizes["n"] // 2
        variants = max(len(each.x) for each in numbers)
        first, second = (np.broadcast_to(each.x, (variants, *each.x.shape[1:])) for each in numbers)
        doubt = interleaved(numbers[0].doubt, numbers[1].doubt, half, distance)
        held = _OPEN if _OPEN in (x.held, y.held) else promoted([x.held, y.held])
        doubt = doubt | (held == _OPEN)
        return Value(Number(interleaved(first, second, half, distance), doubt, t), kind, columns=True, held=held)

    def random(self, seed: Expression, offset: Expression) -> Value:
        """Return random numbers, of 64 bits where one of the two has them; of an i32 the others are zeros."""
        counters = [self.data.counter(each) for each in (seed, offset)]
        sizes = tuple(self.data.sizes[mode] for mode in ("l", "m", "n"))
        draw = uniform_wide if any(bits == 64 for _, bits in counters) else uniform
        first, second = (word % 2**bits for word, bits in counters)
        numbers = draw(first, second, sizes)
        return Value(self.plain(numbers[None]), "f32", columns=True, held="f32")

    def derivative(self, call: Call, scope: Mapping[str, Value]) -> Value:
        """``f''(x, constants)``. Eager PyTorch would round its formula at every step, each in its type."""
        x, *rest = [self.value(each, scope) for each in call.arguments]
        kind = "f64" if compute(x.type) == "f64" else "f32"
        t = self.arithmetic["f32" if self.single else kind, False]  # constants of a formula may be rounded to f32
        number = self.arithmetic[kind, False].number(x.number)
        values, doubt = Derivatives(self.defined, t)(call, number.x, [each.number.x.item() for each in rest])
        held = _OPEN if self.eager else ""
        made = Number(values, number.doubt | doubt | self.eager, t)
        return Value(made, kind, columns=x.columns, held=held, fewer=x.fewer)
