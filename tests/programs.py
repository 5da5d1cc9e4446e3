"""Random programs for property tests: ``programs()`` draws a :class:`Sample`, text and inputs that fit it.

Everything that the language has today is in reach: several outputs, shared names, constants, casts, scalars and
inputs of [n], [m], [m, n] and [n, m], declared and undeclared, transposed outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from evt.functions import TABLE
from evt.ir import Operand, TypedDag, infer, lower
from evt.ir.dtype import BY_NAME
from evt.language import parse

#: Functions whose value on constants is the same to the bit in f32 however it is computed.
EXACT = ("add", "sub", "mul", "neg", "square", "abs", "sign", "min", "max", "clamp", "floor", "ceil", "round")
EXACT += ("relu", "relu6", "hardtanh", "fma")
#: pow of two variables is mostly NaN, and PyTorch's differs from a product in the last place.
FUNCTIONS = tuple(name for name in TABLE if name != "pow")
CONSTANTS = ("0", "-0.0", "1", "-1", "2", "3", "0.5", "6", "0.1", "1e-3", "-2.5", "100")
INPUTS = {
    "alpha": "",
    "s": "[]",
    "bias": "",
    "v": "[n]",
    "row": "[m]",
    "C": "",
    "E": "[m, n]",
    "T": "[n, m]",
}
_SHAPES = {"alpha": "", "s": "", "bias": "n", "v": "n", "row": "m", "C": "mn", "E": "mn", "T": "nm"}
_DTYPES = ("f16", "bf16", "f32")


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
        sizes = {"m": m, "n": n}

        def make(shape: Sequence[int], dtype: str) -> torch.Tensor:
            # Halves and quarters, zeros among them: sums and products of a few are exact, ties are hit.
            values = torch.randint(-12, 13, tuple(shape), generator=generator) / 4
            return values.to(getattr(torch, BY_NAME[dtype].torch))

        inputs: dict[str, Any] = {}
        for value in self.dag.inputs:
            tensor = make([sizes[mode] for mode in _SHAPES[value.name]], str(value.dtype))
            inputs[value.name] = tensor if value.modes else float(tensor)
        return make((m, k), self.operand), make((k, n), self.operand), inputs


def typed(text: str, operand: str = "f16") -> TypedDag:
    """A program's typed graph, for a gemm of row-major operands."""
    dtype = BY_NAME[operand]
    return infer(lower(parse(text)), (Operand("A", dtype, ("m", "k")), Operand("B", dtype, ("k", "n"))))


@st.composite
def programs(
    draw: st.DrawFn, functions: Sequence[str] = FUNCTIONS, exact: bool = False, max_statements: int = 5
) -> Sample:
    """A valid program.

    ``exact``: every rewriting of it that is exact in f32 gives the same bits in PyTorch too. Constants then meet
    only functions that fold exactly, and divisors are constants: PyTorch leaves the signs of some zeros open.
    """
    functions = [name for name in functions if not exact or name not in ("rcp", "rsqrt", "div", "celu")]
    folding = [name for name in functions if name in EXACT]
    used: dict[str, None] = {}
    names: list[str] = []

    def leaf() -> tuple[str, bool]:
        kind = draw(st.sampled_from(("acc", "name", "input", "input", "constant")))
        if kind == "name" and names:
            return draw(st.sampled_from(names)), False
        if kind == "input":
            name = draw(st.sampled_from(sorted(INPUTS)))
            used[name] = None
            return name + INPUTS[name], False
        if kind == "constant":
            return draw(st.sampled_from(CONSTANTS)), True
        return "acc", False

    def expression(depth: int) -> tuple[str, bool]:
        """Text, and whether it is a constant."""
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            return leaf()
        if draw(st.integers(0, 7)) == 0:
            text, constant = expression(depth - 1)
            return f"{draw(st.sampled_from(_DTYPES))}({text})", constant
        if exact and draw(st.integers(0, 7)) == 0:
            text, constant = expression(depth - 1)
            return f"({text} / {draw(st.sampled_from(('2', '-0.25', '3', '8', '0.1')))})", constant
        function = draw(st.sampled_from(functions))
        parameters = TABLE[function].parameters
        given = [p for p in parameters if p.default is None] if draw(st.booleans()) else parameters
        arguments = [expression(depth - 1) for _ in given]
        constant = all(each for _, each in arguments)
        if exact and constant and function not in EXACT:
            function = draw(st.sampled_from(folding))
            count = TABLE[function].required
            arguments = [arguments[slot % len(arguments)] for slot in range(count)]
        texts = [text for text, _ in arguments]
        operator = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(function)
        if operator and draw(st.booleans()):
            return f"({texts[0]} {operator} {texts[1]})", constant
        if function == "neg":
            return f"(-{texts[0]})", constant
        return f"{function}({', '.join(texts)})", constant

    statements = []
    count = draw(st.integers(1, max_statements))
    for index in range(count):
        text, _ = expression(draw(st.integers(1, 4)))
        name = "D" if index == count - 1 else f"t{index}"
        statements.append(f"{name} = {text}" if name != "D" else f"D = ({text}) + acc")
        names.append(name)
    extra = draw(st.lists(st.sampled_from(names[:-1]), unique=True, max_size=3)) if names[:-1] else []
    for index, name in enumerate(extra):
        statements.append(f"Y{index} = {name} + acc")
    unread = [f"t{i}" for i in range(count - 1) if not any(f"t{i}" in line for line in statements[i + 1 :])]
    outputs = ["D", *(f"Y{index}" for index in range(len(extra))), *unread]
    declarations = []
    for name in outputs:
        dtype, modes = draw(st.sampled_from(_DTYPES)), draw(st.sampled_from(("[m, n]", "[n, m]", "")))
        declarations.append(f"{name}: {dtype}{modes}" if draw(st.booleans()) else f"{name}{modes}")
    head = [f"out {', '.join(declarations)}"]
    typed_inputs = [name for name in used if name not in ("alpha", "s") and draw(st.integers(0, 3)) == 0]
    head += [f"in {name}: {draw(st.sampled_from(_DTYPES))}" for name in typed_inputs]
    return Sample("\n".join([*head, *statements]), draw(st.sampled_from(_DTYPES)), tuple(used))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, NaN being one value; the two zeros are equal."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())
