"""Expressions: drawn for the columns that a value may have, over inputs that are made as they are read.

Columns are ``"n"`` (all of them), ``"half"`` (one for each pair), ``"block"`` (one for each block), ``"half block"``
(one for each block of paired columns), ``"thin"`` (a value that may vary over fewer modes), or an operand's name
within its formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evt.functions import TABLE

from .derivatives import varies
from .draw import Draw, Profile
from .dtypes import CASTS, SCALARS, STORAGE, TYPES, compute
from .functions import FUNCTIONS
from .rounding import RANGES
from .tree import (
    GREEK,
    OPERATORS,
    PREFIXES,
    Acc,
    Block,
    Call,
    Cast,
    Define,
    Dropout,
    Element,
    Expression,
    Input,
    Interleave,
    Iota,
    Number,
    Pair,
    Rand,
    Read,
    Reduce,
    Size,
    is_constant,
    walk,
)

_CONSTANTS = ("0", "1", "-1", "2", "3", "-2", "6", "0.5", "-0.5", "0.25", "0.1", "-2.5", "1e-3", "1.702", "-0.0", "100")
_RARE = (
    "inf",
    "-inf",
    "16777217",
    "2147483647",
    "1e10",
    "-1e30",
    "3e38",
    "1e-40",
    "200",
    "0.044715",
    "0.7071067811865476",
)
_GROWING = ("exp", "expm1", "exp2", "cosh", "sinh", "square", "mul")  # beyond f32, of rare numbers
_EXPONENTS = ("2", "3", "-1", "0.5", "4", "1", "0", "-2", "1.5", "2.5")
_INTEGERS = ("0", "1", "2", "3", "7", "-1", "-5", "100", "46341", "2147483647", "-2147483648")
_RATES = ("0.25", "0.5", "0.1")
_VECTORS = ("v", "scale", "shift", "row", "column", "offsets")
_TILES = ("C", "residual", "gate", "other", "source", "extra")
_COUNTERS = ("seed", "offset")
_CONDITIONS = ("lt", "le", "gt", "ge", "eq", "ne")
_MEETINGS = ("add", "mul", "sub", "div", "max", "min")


class Expressions:
    """Draws expressions of one program; ``inputs`` and ``defines`` collect the names that they use.

    ``typed``: every input says its type. ``blocks`` and ``pairs`` tell whether columns are taken so.
    """

    def __init__(self, draw: Draw, profile: Profile, operation: str, a: str, typed: bool) -> None:
        self.draw = draw
        self.profile = profile
        self.floats = compute(a) != "i32"
        self.typed = typed
        self.convolved = operation.startswith("conv")
        self.batched = not self.convolved
        self.plain_columns = operation.endswith("wgrad")  # which are not packed, paired or taken in blocks
        self.batchable = operation == "gemm"
        self.functions = [name for name in TABLE if profile.functions is None or name in profile.functions]
        self.inputs: dict[str, Input] = {}
        self.defines: dict[str, Define] = {}
        self.values: dict[str, str] = {}  # assigned names, and their columns
        self.width = draw.pick((8, 16, 16, 32, 32, 64, 128))
        self.distance = draw.pick((1, 1, 8, 16, 32))
        self.half_width = draw.pick([width for width in (8, 16, 32, 64, 128) if width % self.distance == 0])
        self.half_blocks = False
        self.blocks = self.pairs = False

    @property
    def step(self) -> int:
        """The divisor of the number of columns."""
        blocks = self.width if self.blocks else 1, 2 * self.half_width if self.half_blocks else 1
        return max(*blocks, 2 * self.distance if self.pairs else 1)

    def mode(self, columns: str) -> str:
        """Return the mode of a tensor with the given columns."""
        return {"half": "n/2", "block": f"n/{self.width}", "half block": f"n/{2 * self.half_width}"}.get(columns, "n")

    def expression(self, depth: int, columns: str) -> Expression:
        """Return a value with the given columns."""
        draw = self.draw
        if depth <= 0 or draw.chance(5):
            return self.leaf(columns, depth)
        kind = draw.part()
        if kind < 0.12:
            dtype = draw.pick(CASTS)
            word = draw.pick((dtype, *TYPES[dtype].aliases)) if draw.chance(4) else ""
            return Cast(dtype, self.expression(depth - 1, columns), word)
        if kind < 0.19:
            chosen = (self.expression(depth - 1, columns), self.expression(depth - 1, columns))
            return Call("where", (self.condition(depth - 1, columns), *chosen))
        if kind < 0.23:
            return self.condition(depth, columns)
        if kind < 0.27 and columns == "n" and not self.plain_columns:
            whole = self.meeting(self.expression(depth - 2, "n"), Acc())
            return self.meeting(whole, draw.pick((self.block, self.block, self.half_block))(depth - 2))
        if kind < 0.295 and columns == "n" and not self.plain_columns:
            return self.interleave(depth - 1)
        if kind < 0.31 and columns == "half":
            return self.meeting(self.pair(depth - 2), self.half_block(depth - 2))
        if kind < 0.33 and not self.profile.tame:
            return self.derivative(depth, columns)
        if kind < 0.38:
            return self.own(depth, columns)
        if kind < 0.40 and columns == "n":
            rate = Number(draw.pick(_RATES))
            return Dropout(self.expression(depth - 1, columns), rate, *self.counters())
        if kind < 0.43:
            return self.of_integers(depth, columns)
        if kind < 0.48 and "pow" in self.functions:
            return Call("pow", (self.expression(depth - 1, columns), Number(draw.pick(_EXPONENTS))), "**")
        return self.call(depth, columns)

    def of_integers(self, depth: int, columns: str) -> Expression:
        """Return a function of integers, which is computed in i32."""
        draw = self.draw
        function = draw.pick([name for name in self.functions if FUNCTIONS[name].integers])
        conditions = FUNCTIONS[function].conditions
        arguments: list[Expression] = []
        for slot in range(len(TABLE[function].parameters)):
            value = self.expression(depth - 1, columns)
            if slot not in conditions:
                number = Number(draw.pick(_INTEGERS))
                whole = Cast(draw.pick(("i32", "i32", "i8", "u8")), value)
                value = number if slot and draw.chance(2) else whole
            arguments.append(value)
        return Call(function, tuple(arguments))

    def call(self, depth: int, columns: str) -> Expression:
        """Return a function of the table by operator, name or alias, with or without its optional arguments."""
        draw = self.draw
        arithmetic = [name for name in ("add", "sub", "mul", "div") if name in self.functions]
        function = draw.pick(arithmetic if arithmetic and draw.chance(2.5) else self.functions)
        row = TABLE[function]
        count = row.required if draw.chance(2) else len(row.parameters)
        arguments = tuple(self.expression(depth - 1, columns) for _ in range(count))
        folding = self.profile.folding
        if folding is not None and function not in folding and all(map(is_constant, arguments)):
            arguments = (self.read(columns), *arguments[1:])
        if function in OPERATORS and count == 2 and function != "pow" and draw.chance(1.3):
            return Call(function, arguments, OPERATORS[function])
        if function in PREFIXES and not isinstance(arguments[0], Number) and draw.chance(1.3):
            return Call(function, arguments, PREFIXES[function])
        word = draw.pick((function, *row.aliases)) if draw.chance(3) else ""
        first = draw.whole(1, count - 1) if count > 1 and draw.chance(4) else count
        return Call(function, arguments, word, tuple(each.name for each in row.parameters[first:count]))

    def meeting(self, x: Expression, y: Expression) -> Expression:
        function = self.draw.pick(_MEETINGS)
        return Call(function, (x, y), OPERATORS.get(function, ""))

    def whole(self, depth: int) -> Expression:
        """Return a value of every column; occasionally an input, which may have fewer."""
        if self.draw.chance(4):
            return self.read("n")
        return Acc() if self.draw.chance(3) else self.meeting(self.expression(depth, "n"), Acc())

    def block(self, depth: int) -> Expression:
        self.blocks = True
        return Block(self.draw.pick(("sum", "max", "min", "mean", "var")), self.width, self.whole(depth))

    def half_block(self, depth: int) -> Expression:
        self.half_blocks = True
        return Block(self.draw.pick(("sum", "max", "min", "mean", "var")), self.half_width, self.pair(depth))

    def interleave(self, depth: int) -> Expression:
        self.pairs = True
        other = self.read("block") if self.draw.chance(4) else self.expression(depth, "half")
        halves = [self.pair(depth - 1), other]
        if self.draw.chance(2):
            halves[0] = self.meeting(halves[0], self.expression(depth - 1, "half"))
        even, odd = self.draw.shuffled(halves)
        return Interleave(even, odd, self.distance)

    def reduction(self, depth: int, over: tuple[str, ...], columns: str) -> Expression:
        """Return a reduction of a value of such columns, which varies over them."""
        whole = {"half": self.pair, "block": self.block, "half block": self.half_block}.get(columns)
        value = self.expression(depth, columns)
        if whole is not None:
            value = self.meeting(whole(depth - 1), value)
        elif over in (("m",), ("n",)) and self.draw.chance(2.5):
            value = Cast(self.draw.pick(("f32", "f16", "i32")), value) if self.draw.chance(1.3) else value
            return Reduce(self.draw.pick(("argmax", "argmin")), over, value)
        return Reduce(self.draw.pick(("sum", "max", "min", "mean", "var")), over, value)

    def completed(self, depth: int, over: tuple[str, ...], columns: str, x: Expression) -> Expression:
        """Return arithmetic after a reduction: over the reduction, another one, and values of its modes."""
        draw = self.draw
        for _ in range(draw.whole(1, 3)):
            kind = draw.part()
            if kind < 0.2 and "rsqrt" in self.functions:
                x = Call("rsqrt", (Call("abs", (x,)),))
            elif kind < 0.3:
                x = Cast(draw.pick(CASTS), x)
            elif kind < 0.5:
                x = self.meeting(x, self.size())
            elif kind < 0.65:
                x = self.meeting(x, self.reduction(depth - 1, over, columns))
            elif kind < 0.8:
                left = [mode for mode in ("m", "n") if mode not in over and (mode == "m" or columns == "n")]
                modes = (draw.pick(left),) if left else ()
                value = self.input(modes, None)
                subscript = f"[{', '.join(modes)}]" if modes and not value.declared else ""
                x = self.meeting(x, Read(value.name, subscript))
            else:
                x = self.meeting(x, self.number())
        return x

    def pair(self, depth: int) -> Expression:
        self.pairs = True
        return Pair(self.draw.whole(0, 1), self.distance, self.whole(depth))

    def condition(self, depth: int, columns: str) -> Expression:
        draw, kind, less = self.draw, self.draw.part(), max(depth - 1, 0)
        if kind < 0.1 and depth > 0:
            return Call("logical_not", (self.condition(less, columns),), "!")
        if kind < 0.25 and depth > 0:
            function = draw.pick(("logical_and", "logical_or"))
            return Call(function, (self.condition(less, columns), self.condition(less, columns)), OPERATORS[function])
        if kind < 0.4:
            return Call(draw.pick(("isnan", "isinf", "isfinite")), (self.expression(less, columns),))
        if kind < 0.5 and columns == "n" and not self.plain_columns:
            return Read(self.input(("m", "n"), draw.pick(("b1", "bool"))).name)
        if kind < 0.5 and columns in ("n", "half", "block", "half block"):
            return Read(self.input(("m",), "bool").name)
        if kind < 0.55 and columns == "n":
            return Call("ge", (Rand(*self.counters()), Number(draw.pick(_RATES))), ">=")
        function = draw.pick(_CONDITIONS)
        return Call(function, (self.expression(less, columns), self.expression(less, columns)), OPERATORS[function])

    # Derivatives and functions of the program's own

    def derivative(self, depth: int, columns: str) -> Expression:
        """``f'(x)`` of a float that is not a constant: the type of the others is unspecified."""
        draw = self.draw
        x: Expression = Cast("f32", self.expression(depth - 1, columns))
        if columns == "n" and self.floats and draw.chance(2):
            x = Acc()
        for _ in range(8):
            if draw.chance(4):
                call = Call(self.define(True), (x,), primes=draw.pick((1, 1, 2)))
            else:
                function = draw.pick([name for name in self.functions if TABLE[name].derivatives])
                row = TABLE[function]
                count = draw.pick((max(row.required, 1), len(row.parameters)))
                constants = tuple(Number(draw.pick(("0.5", "1", "2", "3"))) for _ in range(count - 1))
                call = Call(function, (x, *constants), primes=draw.pick((1, 1, 1, 2)))
            if (call.function in FUNCTIONS or call.function in self.defines) and varies(call, self.defines):
                return call
        return x

    def own(self, depth: int, columns: str) -> Expression:
        define = self.defines[self.define(False)]
        return Call(define.name, tuple(self.expression(depth - 1, columns) for _ in define.parameters))

    def define(self, smooth: bool) -> str:
        """Return the name of a function of the program, an old one or a new one; a ``smooth`` one is differentiated."""
        known = [name for name in self.defines if name.startswith("smooth" if smooth else "own")]
        if known and (len(known) > 2 or self.draw.chance(2)):
            return self.draw.pick(known)
        name = f"{'smooth' if smooth else 'own'}{len(known)}"
        parameters = ("x",) if smooth else self.draw.pick((("x",), ("x", "y")))
        body = self.body(2, parameters, smooth)
        read = {node.name for node in walk(body) if isinstance(node, Read)}
        for parameter in parameters:
            body = body if parameter in read else Call("mul", (Read(parameter), body), "*")
        self.defines[name] = Define(name, parameters, body)
        return name

    def body(self, depth: int, parameters: Sequence[str], smooth: bool) -> Expression:
        draw = self.draw
        if depth == 0 or draw.chance(6):
            return Number(draw.pick(_CONSTANTS)) if draw.chance(3) else Read(draw.pick(parameters))
        if draw.chance(12):
            return Cast(draw.pick(("f16", "bf16", "f32", "tf32")), self.body(depth - 1, parameters, smooth))
        if smooth and draw.chance(10):
            inner = self.body(depth - 1, parameters, smooth)
            return Call(draw.pick(("tanh", "sigmoid", "gelu", "sin", "silu")), (inner,), primes=1)
        choices = [name for name in self.functions if not smooth or (name in FUNCTIONS and TABLE[name].derivatives)]
        arithmetic = [name for name in ("add", "sub", "mul", "div") if name in self.functions]
        function = draw.pick(arithmetic if arithmetic and draw.chance(2) else choices)
        arguments = tuple(self.body(depth - 1, parameters, smooth) for _ in range(TABLE[function].required))
        if self.profile.folding is not None and all(map(is_constant, arguments)):
            arguments = tuple(Read(draw.pick(parameters)) for _ in arguments)
        operator = OPERATORS.get(function, "") if len(arguments) == 2 and function != "pow" else ""
        return Call(function, arguments, operator)

    # Leaves

    def leaf(self, columns: str, depth: int) -> Expression:
        draw, kind = self.draw, self.draw.part()
        if kind < 0.03 and self.profile.folding is None:
            function = draw.pick(_GROWING if draw.chance(3) else self.functions)
            pool = _RARE if draw.chance(2) or function in _GROWING else _CONSTANTS
            return Call(function, tuple(Number(draw.pick(pool)) for _ in range(TABLE[function].required)))
        if kind < 0.2:
            return self.number()
        if columns in ("A", "B"):
            return Element(columns) if kind < 0.7 else self.read(columns)
        fitting = ("n", "thin") if columns == "n" else (columns,)
        names = [name for name, have in self.values.items() if have in fitting]
        if kind < 0.35 and names:
            return Read(draw.pick(names))
        if kind < 0.37:
            return self.size()
        if kind < 0.42:
            modes = ("m", "n", "l") if columns in ("n", "thin") else ("m", "l")
            return Iota(draw.pick([mode for mode in modes if mode != "l" or self.batched]))
        if kind < 0.7 and columns == "half":
            return self.pair(depth - 1)
        if kind < 0.7 and columns == "block":
            return self.block(depth - 1)
        if kind < 0.7 and columns == "half block":
            return self.half_block(depth - 1)
        if kind < 0.45 and columns == "n":
            return Rand(*self.counters())
        if kind < 0.7 and columns == "n":
            return Acc()
        return self.read(columns)

    def size(self) -> Size:
        return Size(self.draw.pick([mode for mode in ("m", "n", "k", "l") if mode != "l" or self.batched]))

    def number(self) -> Number:
        rare = not self.profile.tame and self.draw.chance(6)
        return Number(self.draw.pick(_RARE if rare else _CONSTANTS))

    # Inputs

    def counters(self) -> tuple[Expression, Expression]:
        """Return a seed and an offset: numbers, i32 scalars, which their use declares, or i64 scalars."""
        made: list[Expression] = []
        for name in _COUNTERS:
            if self.draw.chance(2):
                made.append(Number(self.draw.pick(("1", "7", "0", "12345"))))
            else:
                dtype = self.draw.pick(("i32", "i64"))
                declared = dtype == "i64" or self.draw.chance(2)
                given = self.draw.pick(("number", "number", "element"))
                self.inputs.setdefault(name, Input(name, (), dtype, declared, given=given))
                made.append(Read(name))
        return made[0], made[1]

    def read(self, columns: str) -> Expression:
        """Return an input that fits the columns, an old one or a new one."""
        draw, operand = self.draw, columns in ("A", "B")
        modes = draw.pick(self.modes(columns)) if not draw.chance(4) else ()
        self.pairs |= "n/2" in modes
        known = [
            each
            for each in self.inputs.values()
            if each.modes == modes
            and each.type != "b1"
            and each.name not in _COUNTERS
            and not (operand and each.flexible)
        ]
        value = draw.pick(known) if known and draw.chance(2.5) else self.input(modes, None, always=operand)
        if value.declared or value.given == "batched" or value.name in (*GREEK, *_TILES, "bias"):
            return Read(value.name)
        return Read(value.name, f"[{', '.join(value.modes)}]")

    def modes(self, columns: str) -> list[tuple[str, ...]]:
        """Return the modes of inputs that fit the columns, some more than once."""
        if self.batched and self.draw.chance(5) and columns not in ("A", "B"):
            batched = [("l",), ("l", "m"), ("l", "n"), ("l", "m", "n"), ("l", "n", "m")]
            return {"n": batched, "thin": batched[:3]}.get(columns, batched[:2])
        paired = [] if self.plain_columns else [("m", "n/2"), ("m", "n/2")]
        fitting: dict[str, list[tuple[str, ...]]] = {
            "n": [*[("m", "n")] * 3, ("n", "m"), *[("n",)] * 2, *[("m",)] * 2],
            "thin": [("m",), ("n",), ()],
            "half": [*paired, ("m",)],
            "block": [("m",), ()],
            "half block": [("m",), ()],
            "A": [("k",)] if self.convolved else [("m",), ("k",)],
            "B": [("n",), ("k",)],
        }
        return fitting[columns]

    def input(self, modes: tuple[str, ...], dtype: str | None, always: bool = False) -> Input:
        """Return a new input; ``always``: a call gives it, and as a vector where it is one."""
        draw = self.draw
        pool = GREEK if modes == () else _TILES if len(modes) > 1 else _VECTORS
        free = [name for name in pool if name not in self.inputs]
        name = free[0] if free else f"input{len(self.inputs)}"
        plain = bool(free) and (pool != _TILES or modes == ("m", "n"))  # the meaning of the name alone
        declared = self.typed or dtype is not None or not plain or draw.chance(1.4)
        if not declared and modes == ("n",) and "bias" not in self.inputs:
            name = "bias"
        scalar = not set(modes) - {"l"}
        if declared and dtype is None:
            dtype = draw.pick(SCALARS if scalar else [each for each in STORAGE if each != "b1"])
        given = draw.pick(("number", "number", "element")) if modes == () else "tensor"
        vector = modes in (("m",), ("n",), ("l", "m"), ("l", "n"))
        flexible = declared and vector and not always and draw.chance(2.5)
        if flexible:
            given = draw.pick(("tensor", "number", "element"))
        default = ""
        if declared and dtype and dtype != "b1" and modes != ("l",) and not always and draw.chance(4):
            default = self.default(dtype)
            given = "absent" if draw.chance(1.6) else given
        if not declared and modes == ("m", "n") and self.batchable and draw.chance(3):
            given = "batched"
        self.inputs[name] = Input(name, modes, dtype, declared, flexible, default, given)
        return self.inputs[name]

    def left_out(self, dtype: str) -> Expression:
        """Return a function only of an input that a call leaves out."""
        value = self.input(self.draw.pick((("m", "n"), ("m",), ("n",))), dtype, always=True)
        self.inputs[value.name] = replace(value, default=self.default(dtype), given="absent")
        function = self.draw.pick([name for name in self.functions if TABLE[name].required == 1])
        return Call(function, (Read(value.name),))

    def default(self, dtype: str) -> str:
        if TYPES[dtype].kind == "float":
            return self.draw.pick(("0", "1", "-2", "0.1", "-0.0", "0.5", "3", "-0.3"))
        if TYPES[dtype].kind == "bit":
            return self.draw.pick(("0", "1"))
        low, high = RANGES[dtype]
        return self.draw.pick(("0", "1", "3", str(low), str(high)))
