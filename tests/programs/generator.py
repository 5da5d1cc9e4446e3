"""Random programs: ``generate(seed) -> Program``, the same whenever and wherever it is called.

A program is drawn in the order in which one is written: the operation and its operands, the outputs and their
expressions, the inputs that were read, then suitable sizes. The draws keep the rules about columns, so that most
programs are accepted; every pair of types occurs.
"""

from __future__ import annotations

import random
from dataclasses import replace

from evt.functions import TABLE

from .draw import Draw, Profile
from .dtypes import OUTPUTS, PACKED, PAIRS, SCALARS, STORAGE
from .expressions import Expressions
from .interface import reductions
from .sizes import geometry, matrices
from .tree import (
    Acc,
    Assign,
    Call,
    Cast,
    Dropout,
    Element,
    Expression,
    Factor,
    Input,
    Output,
    Pair,
    Program,
    Rand,
    Read,
    index_name,
    surviving,
    walk,
)
from .wording import reworded

ALL = Profile()
_KINDS = (
    *("tile", "tile", "tile", "transposed", "bits", "reduced", "reduced", "reduced"),
    *("half", "blocks", "half blocks", "thin", "left out"),
)
#: Modes of outputs that have no rows, no columns, or neither, and are no reductions.
_FEWER = (("l",), ("l",), ("l", "n"), ("m",), ("n",), ("l", "m"))
_HALVES = (("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"))

Layouts = tuple[tuple[str, ...], tuple[str, ...]]


def generate(seed: int, profile: Profile = ALL) -> Program:
    """Return the program of a seed."""
    return _Generator(seed, profile).program()


class _Generator:
    def __init__(self, seed: int, profile: Profile) -> None:
        self.draw = draw = Draw(seed)
        self.profile = profile
        self.seed = seed
        self.operation = draw.pick(profile.operations)
        self.convolved = self.operation.startswith("conv")
        self.a, self.b = self.operands()
        #: The type of a B of 4 bits, whose program is made for a B of A's type.
        self.packed = self.b if self.b in PACKED else ""
        if self.packed:
            self.operation = "linear" if "linear" in profile.operations else self.operation
            self.b = self.a
        self.b = self.converted()
        #: 8-bit operands in the layout that kernels multiply.
        self.narrow = "tf32" not in (self.a, self.b) and self.a in ("e4m3", "e5m2", "i8", "u8") and not draw.chance(6)
        #: D may be of bits, which nothing undeclared can be then.
        self.typed = draw.chance(5)
        self.of = Expressions(draw, profile, self.operation, self.a, self.typed)
        self.fewer = () if self.of.plain_columns else ("half", "block", "half block")
        self.assigns: list[Assign] = []

    def program(self) -> Program:
        draw, of = self.draw, self.of
        header = self.header()
        fed = self.profile.feeds
        feeds = self.feeds() if (draw.chance(8) and not self.profile.tame if fed is None else fed) else ()
        outputs = self.outputs()
        grouped = self.operation == "grouped_gemm"
        made = normalised(
            Program(
                operation=self.operation,
                a=self.a,
                b=self.b,
                header=header,
                inputs=tuple(of.inputs.values()),
                outputs=outputs,
                defines=tuple(of.defines.values()),
                assigns=tuple(self.assigns),
                feeds=feeds,
                settings=() if self.profile.tame else self.settings(),
                sizes=matrices(draw, self.operation, of.step),
                geometry=geometry(draw, self.operation, of.step) if self.convolved else None,
                groups=tuple(matrices(draw, "", of.step) for _ in range(draw.whole(1, 3))) if grouped else (),
                data="plain" if self.profile.tame else draw.pick(("plain", "normal", "normal", "edge")),
                transposed=self.transposed(header),
                views=not self.profile.tame and draw.chance(2.5),
                separator=draw.pick(("\n", "\n", "; ", "\n\n", " # a comment\n")),
                seed=self.seed,
            )
        )
        if self.profile.tame:
            return made
        made = with_packed_weights(made, self.profile.by_offsets, self.packed)
        made = with_factors(made, self.profile.by_offsets)
        return reworded(made if grouped else with_indices(made))

    # Operands and settings

    def operands(self) -> tuple[str, str]:
        """Return the types of A and B: every pair, but rarely the pairs that few kernels support."""
        if self.profile.pairs is not None:
            return self.draw.pick(self.profile.pairs)
        if self.operation.endswith(("dgrad", "wgrad")) and not self.draw.chance(5):
            return self.draw.pick(_HALVES)
        found = self.draw.pick((*PAIRS, ("f64", "f64")))
        return ("f16", "f16") if self.draw.chance(4) or (self.convolved and "f64" in found) else found

    def converted(self) -> str:
        """Return the type of B, or now and then one of 8 bits that is converted to A's."""
        source = random.Random(f"program {self.seed} converted")
        halves = self.a == self.b and self.a in ("f16", "bf16") and self.operation in ("gemm", "linear")
        if self.profile.pairs is not None or self.profile.tame or not halves or source.random() < 0.85:
            return self.b
        return source.choice(("i8", "u8", "e4m3", "e5m2"))

    def header(self) -> Layouts | None:
        """Return the modes of A and B where a header has them; empty ones where it has types only."""
        if "tf32" not in (self.a, self.b) and not self.draw.chance(4):
            return None
        if self.convolved or self.draw.chance(3):
            return (), ()
        if self.narrow:
            return ("m", "k"), ("n", "k")
        a = self.draw.pick((("m", "k"), ("k", "m") if self.operation != "linear" else ("m", "k")))
        return a, self.draw.pick((("k", "n"), ("n", "k")))

    def transposed(self, header: Layouts | None) -> tuple[bool, bool]:
        """Return whether A and B are transposes of contiguous tensors."""
        if self.convolved:
            return False, False
        if self.narrow:
            along = header[1] if header and header[1] else ("n", "k") if self.operation == "linear" else ("k", "n")
            return False, along == ("k", "n")
        return self.draw.chance(4), self.draw.chance(4)

    def settings(self) -> tuple[tuple[str, object], ...]:
        found: dict[str, object] = {}
        if self.draw.chance(6):
            found["numerics"] = "eager"
        else:
            found |= {name: True for name in ("relaxed", "fast_math") if self.draw.chance(5)}
        if self.draw.chance(6):
            found["deterministic"] = self.draw.pick((True, False))
        if self.operation == "grouped_gemm" and self.draw.chance(2):
            found["route"] = "loop"
        return tuple(found.items())

    # Outputs and their expressions

    def outputs(self) -> tuple[Output, ...]:
        draw = self.draw
        for index in range(draw.pick((0, 0, 1, 1, 2, 3))):
            columns = draw.pick(("n",) * 12 + ("thin",) + self.fewer)
            self.assign(f"t{index}", self.of.expression(draw.whole(1, 3), columns), columns)
        made = [self.output("D" if self.seed % 6 else "Q", first=True)]
        made += [self.output(f"Y{index}") for index in range(draw.pick((0, 0, 1, 1, 2, 3)))]
        self.read_accumulator({each.name for each in made})
        return draw.shuffled(made)

    def assign(self, name: str, value: Expression, columns: str) -> None:
        self.assigns.append(Assign(name, value))
        self.of.values[name] = columns

    def output(self, name: str, first: bool = False) -> Output:
        """Return an output, assigned."""
        draw, of, depth = self.draw, self.of, self.draw.whole(1, 3)
        types = [each for each in OUTPUTS if each != "b1"]
        dtype = draw.pick(types) if self.typed or not draw.chance(4) else None
        kind = "tile" if first and draw.chance(1.5) else draw.pick(_KINDS)
        packed = kind in ("bits", "half", "blocks", "half blocks")
        if (of.plain_columns and packed) or (first and kind == "bits" and not self.typed):
            kind = "tile"
        match kind:
            case "reduced":
                over = draw.pick((("n",), ("m",), ("m", "n"), ("l", "m"), ("l", "m", "n"), ("l", "n")))
                over = over if of.batched else tuple(mode for mode in over if mode != "l")
                columns = draw.pick(("n", "n", "n", *self.fewer))
                value: Expression = of.reduction(depth, over, columns)
                if draw.chance(2.5):
                    value = of.completed(depth, over, columns, value)
                self.assign(name, value, "reduced")
                modes = tuple(mode for mode in ("m", of.mode(columns)) if mode.partition("/")[0] not in over)
                return Output(name, modes, dtype, draw.chance(2))
            case "half":
                value = of.pair(depth)
                value = of.meeting(value, of.expression(depth, "half")) if draw.chance(1.3) else value
                self.assign(name, value, "half")
                return Output(name, self.arranged(of.mode("half")), dtype)
            case "blocks":
                value = of.block(depth)
                value = of.meeting(value, of.expression(depth, "block")) if draw.chance(2) else value
                self.assign(name, value, "block")
                return Output(name, self.arranged(of.mode("block")), dtype)
            case "half blocks":
                value = of.half_block(depth)
                value = of.meeting(value, of.expression(depth, "half block")) if draw.chance(2) else value
                self.assign(name, value, "half block")
                return Output(name, self.arranged(of.mode("half block")), dtype)
            case "bits":
                self.assign(name, of.condition(depth, "n"), "n")
                return Output(name, self.batch_first(("m", "n")), draw.pick(("b1", "b1", "bool")))
            case "thin" if not first:  # of fewer modes than it is stored with, or stored with fewer modes
                modes = draw.pick(_FEWER) if of.batched and draw.chance(4) else ()
                value = of.expression(depth, "thin")
                if modes:
                    given = draw.pick(SCALARS if modes == ("l",) else [each for each in STORAGE if each != "b1"])
                    value = of.meeting(Read(of.input(modes, given, always=True).name), of.number())
                self.assign(name, value, "thin")
                return Output(name, modes or ("m", "n"), dtype)
            case "left out" if not first and not self.profile.tame:
                dtype = draw.pick(("f64", "f64", "f32", "f16", "i32"))
                self.assign(name, of.left_out(dtype), "thin")
                return Output(name, ("m", "n"), dtype)
        self.assign(name, of.expression(draw.whole(1, 4), "n"), "n")
        if kind == "transposed":
            return Output(name, self.batch_first(("n", "m")), dtype)
        modes, written = self.batch_first(("m", "n")), draw.chance(2)
        return Output(name, modes, dtype, written or not self.is_whole(self.assigns[-1].value))

    def is_whole(self, value: Expression) -> bool:
        """Whether a value varies over rows and columns beyond doubt: an output of it needs no subscript."""
        match value:
            case Acc() | Rand() | Dropout():
                return True
            case Read(name):
                return name in self.of.inputs and {"m", "n"} <= set(self.of.inputs[name].modes)
            case Call(function, arguments, primes=0) if function in TABLE:
                return any(map(self.is_whole, arguments))
            case Cast(_, x):
                return self.is_whole(x)
        return False

    def batch_first(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        return ("l", *modes) if self.of.batched and self.draw.chance(8) else modes

    def arranged(self, columns: str) -> tuple[str, ...]:
        return self.batch_first((columns, "m") if self.draw.chance(12) else ("m", columns))

    def read_accumulator(self, outputs: set[str]) -> None:
        """Have an output read the accumulator, where none does."""
        values = {each.name: each.value for each in self.assigns}
        stack, seen = sorted(outputs), set(outputs)
        while stack:
            for node in surviving(values[stack.pop()]):
                if isinstance(node, Acc):
                    return
                if isinstance(node, Read) and node.name in values and node.name not in seen:
                    seen.add(node.name)
                    stack.append(node.name)
        for at, each in enumerate(self.assigns):
            acc = {"n": Acc(), "half": Pair(0, self.of.distance, Acc())}.get(self.of.values[each.name])
            if acc is not None and each.name in outputs:
                self.assigns[at] = Assign(each.name, Call("add", (each.value, acc), "+"))
                return

    def feeds(self) -> tuple[Assign, ...]:
        """Formulas of operands: of A of a convolution of one or two dimensions, of either of a product."""
        names: tuple[str, ...] = self.draw.pick((("A",), ("B",), ("A", "B")))
        if (self.a, self.b) not in PAIRS and self.a != "f64":  # a converted B has factors only
            names = ("A",)
        if self.convolved:
            names = ("A",) if self.operation in ("conv1d", "conv2d") else ()
        made = []
        for name in names:
            value = self.of.expression(self.draw.whole(1, 3), name)
            if not any(isinstance(node, Element) for node in surviving(value)):
                value = Call("mul", (Element(name), value), "*")
            made.append(Assign(name, value))
        return tuple(made)


def with_packed_weights(program: Program, by_offsets: bool, asked: str) -> Program:
    """Return the program with a B of 4 bits, whose columns and k are whole tiles, or unchanged; ``asked`` names one."""
    source = random.Random(f"program {program.seed} packed")
    halves = program.a == program.b and program.a in ("f16", "bf16")
    able = halves and not program.feeds and (by_offsets or program.operation == "linear")
    if not able or (source.random() < 0.5 and not asked):
        return program
    sizes = replace(program.sizes, n=8 * program.sizes.n, k=128 * source.choice((1, 1, 2, 3)))
    header, transposed = (("m", "k"), ("n", "k")), (program.transposed[0], False)
    return replace(program, b=asked or source.choice(PACKED), header=header, sizes=sizes, transposed=transposed)


def with_factors(program: Program, by_offsets: bool) -> Program:
    """Return the program with factors of its operands for blocks of k, or unchanged."""
    source = random.Random(f"program {program.seed} factors")
    floats = program.a in ("f16", "bf16", "e4m3", "e5m2")
    able = floats and not program.feeds and program.data != "edge" and (by_offsets or program.operation == "linear")
    if not able or source.random() < 0.4:
        return program
    factors, inputs = [], []
    for operand, outer in source.choice(((("A", "m"),), (("B", "n"),), (("A", "m"), ("B", "n")))):
        for number in range(source.choice((1, 1, 2))):
            block = source.choice(("", "", "/32", "/128"))
            modes: tuple[str, ...] = (
                f"{outer}{block}",
                f"k/{source.choice((128, 128, 256, 64 if program.a in ('f16', 'bf16') else 512))}",
            )
            if block.endswith("128") and len(program.sizes.rows) > 1 and outer == "m":
                modes = modes[1:]  # rows of several dimensions have no blocks
            if by_offsets and outer == "m":
                modes = ("m", modes[-1])  # rows of groups have no blocks
            name = f"s{operand}{number}"
            inputs.append(Input(name, modes if source.random() < 0.8 else modes[::-1], source.choice(("f32", "bf16"))))
            factors.append(Factor(operand, name, source.random() < 0.3))
    return replace(program, factors=tuple(factors), inputs=(*program.inputs, *inputs))


def with_indices(program: Program) -> Program:
    """Return the program with some of its inputs gathered and outputs scattered; all others are unchanged."""
    source = random.Random(f"program {program.seed} indices")
    fed = {node.name for feed in program.feeds for node in walk(feed.value) if isinstance(node, Read)}
    reduced = reductions(program)
    unordered = {"l"} | ({"n"} if program.operation.endswith("wgrad") else set())

    def indices(value: Input | Output, chance: float) -> tuple[str, ...]:
        modes = [mode for mode in value.modes if mode not in unordered and source.random() < chance]
        batched = program.operation == "gemm" and len(value.modes) > 1 and source.random() < 0.3
        return tuple(f"l{mode}" if batched else mode for mode in modes)

    def may(value: Input | Output) -> bool:
        return set(value.modes) <= {"l", "m", "n"} and value.type != "b1" and value.name not in {*reduced, *fed}

    inputs = [
        replace(value, indexed=indices(value, 0.2))
        if may(value) and value.given == "tensor" and value.declared and not value.flexible
        else value
        for value in program.inputs
    ]
    outputs = [
        replace(value, indexed=indices(value, 0.12)) if may(value) and value.subscript else value
        for value in program.outputs
    ]
    named = sorted({index for values in (inputs, outputs) for value in values for index in value.indexed})
    added = [Input(index_name(index), tuple(index), "i32") for index in named]
    return replace(program, inputs=(*inputs, *added), outputs=tuple(outputs))


def normalised(program: Program) -> Program:
    """Return the program without values, functions and inputs that nothing reads."""
    stored = {each.name for each in program.outputs}
    while True:
        nodes = list(program.expressions())
        read = stored | {node.name for node in nodes if isinstance(node, Read)}
        read |= {each.name for each in program.factors}
        indexed = [each.indexed for each in program.inputs if each.name in read]
        indexed += [each.indexed for each in program.outputs]
        indices = {index_name(index) for each in indexed for index in each}
        called = {node.function for node in nodes if isinstance(node, Call)}
        smaller = replace(
            program,
            assigns=tuple(each for each in program.assigns if each.name in read),
            defines=tuple(each for each in program.defines if each.name in called),
            inputs=tuple(each for each in program.inputs if each.name in read | indices),
        )
        if smaller == program:
            return program
        program = smaller


__all__ = ["ALL", "Profile", "generate", "normalised"]
