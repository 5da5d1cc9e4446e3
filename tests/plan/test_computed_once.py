"""The values of an own kernel that are constant along its rows: computed once for each column, or once."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import evt
from evt.emission import emit
from evt.functions import TABLE
from evt.ir import Cast
from evt.plan import Plan
from evt.plan.epilogue.broadcasts import RowBroadcast, ScalarBroadcast
from evt.plan.epilogue.computes import Apply
from evt.plan.epilogue.regions import Call, Region, Round
from evt.plan.transposed import is_transposed, transpose

#: Own kernels: the operation, its keywords, the types and the shapes of A and B.
KERNELS: dict[str, tuple[str, dict[str, Any], str, tuple[tuple[int, ...], ...]]] = {
    "product": ("linear", {"route": "gemm-own-3x"}, "bf16", ((4096, 512), (1024, 512))),
    "batches": ("gemm", {"route": "gemm-own-3x"}, "bf16", ((3, 512, 256), (3, 256, 512))),
    "few rows": ("linear", {"route": "gemv-own-3x"}, "bf16", ((4, 511), (1000, 511))),
    "convolution": ("conv2d", {"padding": 1}, "bf16", ((8, 64, 56, 56), (128, 64, 3, 3))),
    "groups": ("conv2d", {"padding": 1, "groups": 32}, "bf16", ((8, 128, 56, 56), (128, 4, 3, 3))),
    "depthwise": ("conv2d", {"padding": 1, "groups": 64}, "bf16", ((8, 64, 56, 56), (64, 1, 3, 3))),
    "filter gradient": (
        "conv2d_wgrad",
        {"padding": 1, "kernel_size": 3, "route": "conv-wgrad-3x"},
        "bf16",
        ((8, 64, 56, 56), (8, 64, 56, 56)),
    ),
    "tiles by rows": (
        "linear",
        {"route": "gemm-own-3x", "config": "own_rows_128x128x128"},
        "e4m3",
        ((4096, 512), (1024, 512)),
    ),
}
UNARY = ("exp", "log", "sqrt", "rcp", "tanh", "silu", "gelu", "sigmoid", "softplus", "abs", "relu", "sin", "erf")
BINARY = ("{} + {}", "{}*{}", "{}/{}", "max({}, {})", "{} - {}", "fmod({}, {})")


def expression(draw: random.Random, leaves: list[str], depth: int) -> str:
    """Return a random expression of these leaves."""
    if depth == 0 or draw.random() < 0.15:
        return draw.choice([*leaves, draw.choice(["0.5", "3"])])
    if draw.random() < 0.5:
        return f"{draw.choice(UNARY)}({expression(draw, leaves, depth - 1)})"
    return f"({draw.choice(BINARY).format(*(expression(draw, leaves, depth - 1) for _ in range(2)))})"


def program(name: str, seed: int) -> str:
    """Return a program that computes values of columns, of rows and of numbers."""
    draw = random.Random(seed)
    column = expression(draw, ["u", "v", "s"], 3)
    value = (
        f"acc*({column}) + {expression(draw, ['u', 'v', 's'], 2)}*{expression(draw, ['acc', 'C', 'w', 'u', 's'], 3)}"
    )
    number = f" + {expression(draw, ['s'], 2)}" if draw.random() < 0.5 else ""
    again = f" + {column}" if draw.random() < 0.3 else ""
    return with_inputs(f"D = {value}{number}{again}", KERNELS[name][2] == "e4m3")


def with_inputs(formula: str, scaled: bool = False) -> str:
    """Return a formula with the inputs that it reads: of columns u and v, of rows w, a number s, a matrix C."""
    column, row = ("m", "n") if scaled else ("n", "m")
    types = {"u": f"f32[{column}]", "v": f"bf16[{column}]", "w": f"f32[{row}]", "s": "f32", "C": "bf16[m, n]"}
    inputs = [f"{name}: {type_}" for name, type_ in types.items() if re.search(rf"\b{name}\b", formula)]
    if scaled:
        inputs += ["sa: f32[m, k/128]", "sb: f32[n/128, k/128]"]
        formula = f"A = sa*A\nB = sb*B\n{formula}"
    return f"in {', '.join(inputs)}\nout D: bf16[m, n]\n{formula}"


def planned(name: str, text: str) -> Plan:
    operation, keywords, dtype, shapes = KERNELS[name]
    return getattr(evt, operation)(text, **keywords).plan("sm90", dtype, dtype, shapes=shapes)


def cost_of_columns(region: Region, constant: set[str]) -> int:
    """Return the largest cost of a value of a region that is computed from constant parameters alone."""
    costs = dict.fromkeys(constant, 0)
    for statement in region.statements:
        operands = statement.operands if isinstance(statement, Call) else (statement.operand,)
        names = [str(each) for each in operands if hasattr(each, "name")]
        if names and all(each in costs for each in names):
            own = TABLE[statement.function].instructions if isinstance(statement, Call) else 0
            own += Cast(statement.dtype).instructions if isinstance(statement, Round) else 0
            costs[statement.result.name] = own + sum(costs[each] for each in names)
    return max(costs.values(), default=0)


def left_in_rows(plan: Plan) -> tuple[int, int]:
    """Return the largest cost of a column's value that is computed for each element, and the values computed once."""
    steps = [transpose(step) if is_transposed(plan) else step for step in plan.steps]
    constant, most, once = set[int](), 0, 0
    for index, step in enumerate(steps):
        if isinstance(step, RowBroadcast | ScalarBroadcast):
            constant.add(index)
        elif isinstance(step, Apply):
            if all(operand in constant for operand in step.operands):
                constant.add(index)
                once += 1
            else:
                names = {
                    parameter.name
                    for parameter, operand in zip(step.region.parameters, step.operands, strict=True)
                    if operand in constant
                }
                most = max(most, cost_of_columns(step.region, names))
    return most, once


@pytest.mark.parametrize("name", KERNELS)
def test_no_element_computes_a_value_of_its_column(name: str) -> None:
    """Random formulas: a column's values of at least 4 instructions are regions, computed before the first step."""
    seen = 0
    for seed in range(16):
        text = program(name, seed)
        try:
            made = planned(name, text)
        except evt.ProgramError:  # a division by the constant 0
            continue
        most, once = left_in_rows(made)
        assert most < 4, text
        emitted = emit(made)
        kept = re.findall(r"^  evt::own::Values<\w+, 2> c\d+;$", emitted, re.MULTILINE)
        assert len(kept) == once, text
        seen += once
    assert seen > 8


@pytest.mark.parametrize(
    ("formula", "regions"),
    [
        ("D = acc*rcp(sqrt(u + 1e-5))*v + u", 1),
        ("D = acc*log(1 + exp(s)) + u", 1),
        ("D = acc*exp(s)*exp(u)", 2),
        ("D = tanh(u) + 0*acc", 1),
        ("D = acc*(u + 1)", 0),  # as cheap as a register
        ("D = acc*rcp(u*w)", 0),
        ("D = acc/u", 0),  # a quotient of each element
    ],
)
def test_values_of_columns(formula: str, regions: int) -> None:
    made = planned("product", with_inputs(formula))
    assert left_in_rows(made)[1] == regions
    assert emit(made).count("[Lanes::column_of(i)] = Region") == regions
