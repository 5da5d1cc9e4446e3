"""The samples: accepted as they are, right by an independent evaluation, and emitted for both families."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Inputs
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import evt

SAMPLES = Path(__file__).parents[2] / "samples"
L, M, N, K = 3, 13, 10, 7
SHAPES = {"l": L, "m": M, "n": N}
CALLED_WITH = {"alpha": 1.5, "beta": -0.5}


def column(vector: Tensor) -> Tensor:
    return vector.unsqueeze(-1)


def half(x: Tensor) -> Tensor:
    return x.to(torch.float16).double()


def batched_broadcasts(acc: Tensor, x: Inputs) -> Tensor:
    result: Tensor = acc + x.aux + x.aux_b + x.row[:, None, :] + x.col[:, :, None] + x.s[:, None, None]
    return result


def keep_intermediates(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    tmp2 = torch.addcmul(x.buf2, acc, x.buf1)
    return acc, tmp2, acc + tmp2.square()


def keep_preactivation(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    z = x.alpha * acc + x.beta * x.C + column(x.bias)
    return functional.gelu(z), z


def per_column_residual(acc: Tensor, x: Inputs) -> Tensor:
    result: Tensor = x.beta * x.C + functional.silu(x.alpha * acc + x.bias)
    return result


def store_and_max(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    e = x.alpha * acc + x.C
    return e + column(x.bias).clamp(min=0), e


def two_residuals(acc: Tensor, x: Inputs) -> Tensor:
    result: Tensor = half(half(half(acc) + x.bias) + x.C1) + x.C2
    return result


#: What each sample means, written again by hand; ``x`` has its inputs in f64.
MEANINGS: dict[str, Callable[[Tensor, Inputs], Tensor | tuple[Tensor, ...]]] = {
    "batched_broadcasts": batched_broadcasts,
    "keep_intermediates": keep_intermediates,
    "keep_preactivation": keep_preactivation,
    "linear_combination": lambda acc, x: x.alpha * acc + x.beta * x.C,
    "mixed_types": lambda acc, x: functional.relu(acc) * x.x + x.y,
    "per_column_residual": per_column_residual,
    "reuse_after_tanh": lambda acc, x: torch.tanh(acc + x.b) + x.b,
    "store_and_max": store_and_max,
    "two_biases": lambda acc, x: x.alpha * acc + x.beta * x.C + x.bias_n + column(x.bias_m),
    "two_residuals": two_residuals,
}


@pytest.fixture(params=MEANINGS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def program(name: str) -> evt.Program:
    return evt.load(SAMPLES / f"{name}.evt")


def test_every_sample_is_here() -> None:
    assert sorted(MEANINGS) == sorted(path.stem for path in SAMPLES.iterdir())


def test_says_where_it_comes_from(name: str) -> None:
    header = (SAMPLES / f"{name}.evt").read_text().split("gemm(")[0]
    assert re.search(r"^#   source   \S+/\S+: \S+", header, re.MULTILINE), header
    assert re.search(r"^#   formula  .*=", header, re.MULTILINE), header
    assert re.search(r"\(record [\w-]+\)$", header, re.MULTILINE), header


def test_reference_is_the_formula(name: str, program: evt.Program) -> None:
    torch.manual_seed(0)
    batch = (L,) if name == "batched_broadcasts" else ()
    typed = program.typed()
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}

    def random(shape: tuple[int, ...], dtype: object) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).to(types[str(dtype)])

    shapes = {"k": K, **SHAPES}
    a, b = (random((*batch, *(shapes[mode] for mode in operand.modes)), operand.dtype) for operand in typed.operands)
    inputs: dict[str, Any] = {
        value.name: random(tuple(SHAPES[mode] for mode in value.modes), value.dtype)
        if value.modes
        else CALLED_WITH[value.name]
        for value in typed.inputs
    }
    wide = {key: value.double() if isinstance(value, Tensor) else value for key, value in inputs.items()}
    left, right = a.double(), b.double()
    acc = left @ (right if typed.operands[1].modes == ("k", "n") else right.mT)

    expected = MEANINGS[name](acc, Inputs(**wide))
    got = program.reference(a, b, float64=True, **inputs)
    rounded = program.reference(a, b, **inputs)
    called = program(a, b, **inputs)
    if isinstance(expected, Tensor):
        expected, got, rounded, called = (expected,), (got,), (rounded,), (called,)
    for output, want, exact, near, same in zip(typed.outputs, expected, got, rounded, called, strict=True):
        torch.testing.assert_close(exact, want, rtol=1e-12, atol=1e-12)
        assert near.dtype == types[str(output.dtype)]
        tolerance = 4 * torch.finfo(near.dtype).eps
        torch.testing.assert_close(near.double(), want, rtol=tolerance, atol=tolerance)
        assert torch.equal(same, near)  # tensors on the CPU run the reference


@pytest.mark.parametrize("arch", ["sm80", "sm86", "sm89", "sm90"])
def test_emits(program: evt.Program, arch: str) -> None:
    text = program.emit(arch)
    assert 'extern "C"' in text
    assert "evt_run" in text
    schema = json.loads(program.plan(arch).schema)
    pointers = [field for field, kind in schema["fields"] if kind == "pointer"]
    assert len(pointers) == 2 + len(program.inputs) + len(program.outputs)
