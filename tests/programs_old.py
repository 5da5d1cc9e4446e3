"""Random programs for property tests: ``programs()`` draws a :class:`Sample`, text and inputs that fit it.

Everything that the language has is in reach: several outputs, shared names, constants, casts and storage of all types,
operands of all types, scalars, vectors, matrices, masks, inputs with defaults and of ``[m?]``, comparisons and choices,
reductions, blocks and pairs of columns, coordinates, random numbers, definitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from evt.functions import TABLE
from evt.ir import Fold, Input, Operand, Pick, TypedDag, infer, lower
from evt.ir.dtype import BY_NAME, OPERANDS, SCALARS, STORAGE, DType
from evt.language import parse

#: Functions whose value on constants is the same to the bit in f32 however it is computed.
EXACT = ("add", "sub", "mul", "neg", "square", "abs", "sign", "min", "max", "clamp", "floor", "ceil", "round")
EXACT += ("relu", "relu6", "hardtanh", "fma", "trunc")
#: Functions of PyTorch's that tell the zeros apart, or differ between numbers and tensors.
_UNSTEADY = ("rcp", "rsqrt", "div", "celu", "copysign", "atan2", "fmod", "remainder", "lerp", "pow")
_LOGIC = frozenset(name for name, row in TABLE.items() if row.result == "predicate" or row.conditions)
#: pow of two variables is mostly NaN, and PyTorch's differs from a product in the last place.
FUNCTIONS = tuple(name for name in TABLE if name != "pow" and name not in _LOGIC)
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
CONSTANTS = ("0", "-0.0", "1", "-1", "2", "3", "0.5", "6", "0.1", "1e-3", "-2.5", "100")
#: Inputs by name: the subscript at a use, and the one for a declaration.
INPUTS = {
    "alpha": ("", "[]"),
    "s": ("[]", "[]"),
    "bias": ("", "[n]"),
    "v": ("[n]", "[n]"),
    "row": ("[m]", "[m]"),
    "flex": ("[m?]", "[m?]"),
    "C": ("", ""),
    "E": ("[m, n]", "[m, n]"),
    "T": ("[n, m]", "[n, m]"),
    "mask": ("", "[m, n]"),
}
_TILES = tuple(name for name, (_, subscript) in INPUTS.items() if subscript in ("", "[m, n]", "[n, m]"))
#: Operands of programs that are compared to the bit, often 16-bit floats.
_OPERANDS = ("f16", "bf16", *(dtype.name for dtype in OPERANDS))
_COLUMNS = 64


@dataclass(frozen=True)
class Sample:
    """A program's text, the type of A and B, and the names of its inputs."""

    text: str
    operand: str
    inputs: tuple[str, ...]

    @property
    def dag(self) -> TypedDag:
        return typed(self.text, self.operand)

    def data(self, m: int = 5, n: int = 7, k: int = 3) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """A, B and the inputs, in the types and shapes of the program; the same at every call."""
        generator = torch.Generator().manual_seed(len(self.text))
        dag = self.dag
        if any(isinstance(dag[node], Fold | Pick) for node in range(len(dag))):
            n = _COLUMNS
        sizes = {"m": m, "n": n}

        def make(shape: Sequence[int], dtype: DType) -> torch.Tensor:
            # Halves and quarters, zeros among them: sums and products of a few are exact, ties are hit.
            if dtype.is_float:
                values = torch.randint(-12, 13, tuple(shape), generator=generator) / 4
            else:
                low = 0 if dtype.name in ("u8", "b1") else -5
                values = torch.randint(low, 6 if dtype.name != "b1" else 256, tuple(shape), generator=generator)
            return values.to(getattr(torch, dtype.torch))

        inputs: dict[str, Any] = {}
        for value in dag.inputs:
            if value.default is not None and len(self.text) % 2:
                continue
            inputs[value.name] = self._input(value, sizes, make)
        a, b = (operand.dtype for operand in dag.operands)
        return make((m, k), a), make((k, n), b), inputs

    def _input(self, value: Input, sizes: dict[str, int], make: Callable[[Sequence[int], DType], torch.Tensor]) -> Any:
        assert value.dtype is not None
        shape = [sizes[mode] for mode in value.modes]
        if value.flexible and len(self.text) % 3:
            shape = [1]
        if value.dtype.name == "b1":
            shape[-1] = -(-shape[-1] // 8)
        tensor = make(shape, value.dtype)
        return tensor if value.modes else tensor.item()


def typed(text: str, operand: str = "f16") -> TypedDag:
    """A program's typed graph, for a gemm of row-major operands."""
    dtype = BY_NAME[operand]
    return infer(lower(parse(text)), (Operand("A", dtype, ("m", "k")), Operand("B", dtype, ("k", "n"))))


class _Program:
    """One program in the making: expressions as text, drawn from hypothesis."""

    def __init__(self, draw: st.DrawFn, functions: Sequence[str], exact: bool) -> None:
        self.draw = draw
        self.exact = exact
        self.functions = [name for name in functions if not exact or name not in _UNSTEADY]
        self.folding = [name for name in self.functions if name in EXACT]
        self.block = draw(st.sampled_from((16, 32)))
        self.used: dict[str, None] = {}
        self.names: list[str] = []
        self.defined = draw(st.booleans())

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == 0

    def pick(self, choices: Sequence[str]) -> str:
        return self.draw(st.sampled_from(choices))

    def load(self, name: str) -> str:
        self.used[name] = None
        return name + INPUTS[name][0]

    def leaf(self) -> tuple[str, bool]:
        match self.pick(("acc", "name", "input", "input", "constant", "other")):
            case "name" if self.names:
                return self.pick(self.names), False
            case "input":
                return self.load(self.pick(tuple(INPUTS))), False
            case "constant":
                return self.pick(CONSTANTS), True
            case "other" if self.chance(3):
                return self.pick(("iota(m)", "iota(n)", "iota(l)", "rand(1, 2)")), False
        return "acc", False

    def expression(self, depth: int) -> tuple[str, bool]:
        """Text, and whether it is a constant."""
        if depth == 0 or self.chance(4):
            return self.leaf()
        match self.draw(st.integers(0, 15)):
            case 0 | 1:
                text, constant = self.expression(depth - 1)
                return f"{self.pick(tuple(BY_NAME))}({text})", constant
            case 2 if self.exact:
                text, constant = self.expression(depth - 1)
                return f"({text} / {self.pick(('2', '-0.25', '3', '8', '0.1'))})", constant
            case 3:
                (x, one), (y, two) = self.expression(depth - 1), self.expression(depth - 1)
                return f"where({self.condition(depth - 1)}, {x}, {y})", one and two
            case 4:
                return f"({self.condition(depth - 1)})", False
            case 5 if self.chance(2):
                # A value of each block is met by whole columns at once, so that widths agree wherever it goes.
                kind = self.pick(("max", "min", "sum"))
                return f"({kind}[n%{self.block}]({self.whole(depth - 1)}) + iota(n))", False
            case 6 if self.defined:
                return f"twice({self.expression(depth - 1)[0]})", False
        return self.call(depth)

    def whole(self, depth: int) -> str:
        """A value of every column."""
        return f"({self.expression(depth)[0]} + acc)"

    def call(self, depth: int) -> tuple[str, bool]:
        function = self.pick(self.functions)
        parameters = TABLE[function].parameters
        given = [p for p in parameters if p.default is None] if self.draw(st.booleans()) else parameters
        arguments = [self.expression(depth - 1) for _ in given]
        constant = all(each for _, each in arguments)
        if self.exact and constant and function not in EXACT:
            function = self.pick(self.folding)
            count = TABLE[function].required
            arguments = [arguments[slot % len(arguments)] for slot in range(count)]
        texts = [text for text, _ in arguments]
        operator = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(function)
        if operator and self.draw(st.booleans()):
            return f"({texts[0]} {operator} {texts[1]})", constant
        if function == "neg":
            return f"(-{texts[0]})", constant
        return f"{function}({', '.join(texts)})", constant

    def condition(self, depth: int) -> str:
        match self.draw(st.integers(0, 6)):
            case 0 if depth > 0:
                return f"!({self.condition(depth - 1)})"
            case 1 | 2 if depth > 0:
                one, two = self.condition(depth - 1), self.condition(depth - 1)
                return f"({one}) {self.pick(('&&', '||'))} ({two})"
            case 3:
                return f"{self.pick(('isnan', 'isinf', 'isfinite'))}({self.expression(max(0, depth - 1))[0]})"
            case 4:
                return self.load("mask")
        one, two = (self.expression(max(0, depth - 1))[0] for _ in range(2))
        return f"({one}) {self.pick(COMPARISONS)} ({two})"

    def declarations(self) -> list[str]:
        lines = []
        for name in self.used:
            scalar = INPUTS[name][1] == "[]"
            if name == "mask":
                lines.append("in mask: b1[m, n]")
            elif self.chance(2):
                dtype = self.pick([each.name for each in (SCALARS if scalar else STORAGE[:-1])])
                default = f" = {self.pick(('0', '1', '-2', '3'))}" if self.chance(4) and dtype != "u8" else ""
                subscript = INPUTS[name][1] or "[m, n]" * bool(default)
                lines.append(f"in {name}: {dtype}{subscript}{default}")
        return lines


@st.composite
def programs(
    draw: st.DrawFn, functions: Sequence[str] = FUNCTIONS, exact: bool = False, max_statements: int = 5
) -> Sample:
    """A valid program.

    ``exact``: every rewriting of it that is exact in f32 gives the same bits in PyTorch too. Constants then meet
    only functions that fold exactly, and divisors are constants: PyTorch leaves the signs of some zeros open.
    """
    program = _Program(draw, functions, exact)
    statements = []
    count = draw(st.integers(1, max_statements))
    for index in range(count):
        text, _ = program.expression(draw(st.integers(1, 4)))
        name = "D" if index == count - 1 else f"t{index}"
        statements.append(f"{name} = {text}" if name != "D" else f"D = ({text}) + acc")
        program.names.append(name)
    names = program.names[:-1]
    outputs: list[tuple[str, bool]] = [("D", True)]
    for index, name in enumerate(draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []):
        statements.append(f"Y{index} = {name} + acc")
        outputs.append((f"Y{index}", True))
    for index in range(draw(st.integers(0, 2))):
        modes = program.pick(("n", "m", "m, n", "l, m, n"))
        statements.append(f"R{index} = {program.pick(('sum', 'max', 'min'))}[{modes}]({program.expression(2)[0]})")
        outputs.append((f"R{index}", False))
    if program.chance(4):
        distance = program.pick(("", ", 8", ", 32"))
        one, two = (f"{name}({program.whole(2)}{distance})" for name in ("even", "odd"))
        statements.append(f"H = {one} {program.pick(('+', '*', '<'))} {two}")
        outputs.append(("H", False))
    if program.chance(4):
        statements.append(f"M = {program.condition(2)}")
        outputs.append(("M", True))
    unread = [name for i, name in enumerate(names) if not re.search(rf"\b{name}\b", " ".join(statements[i + 1 :]))]
    outputs += [(name, True) for name in unread]
    head = []
    for name, tile in outputs:
        dtype = program.pick([each.name for each in STORAGE if (tile and name != "D") or each.name != "b1"])
        modes = program.pick(("[m, n]", "[n, m]", "")) if tile and dtype != "b1" else ""
        head.append(f"out {name}: {dtype}{modes}" if draw(st.booleans()) else f"out {name}{modes}")
    body = "\n".join(statements)
    head += program.declarations()
    head += ["def twice(x) = x + x"] * ("twice(" in body)
    operand = program.pick(_OPERANDS)
    return Sample("\n".join([*head, *statements]), operand, tuple(program.used))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, NaN being one value; the two zeros are equal."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.itemsize == 1 and a.dtype.is_floating_point:
        a, b = a.float(), b.float()
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
