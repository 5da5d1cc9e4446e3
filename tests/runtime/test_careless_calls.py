"""Careless calls: the help names the correction, and the corrected call works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt

STACK = torch.randn(3, 8, 16)
A, B, S = torch.randn(8, 16), torch.randn(24, 16), torch.rand(8)
GEMM, LINEAR = evt.gemm("D = acc"), evt.linear("D = acc")
WRITTEN = evt.gemm("gemm(A: f32[m, k], B: f32[n, k]); D = acc")
ROWS, EITHER, SCALAR = (evt.gemm(f"in s: {kind}; D = acc * s") for kind in ("f32[m]", "f32[m?]", "f32"))
SHAPES = (A.shape, B.mT.shape)


def batches(modes: str, shape: tuple[int, ...]) -> tuple[Callable[[], Any], str, tuple[Callable[[], Any], ...]]:
    """Return calls of a linear map, and of a product, with an input for each batch."""
    text, gate = f"D = acc * gate[{modes}]", torch.rand(shape)
    return (
        lambda: evt.linear(text)(STACK, B, gate=gate),
        "for batches, use evt.gemm",
        (lambda: evt.gemm(text)(STACK, B.mT, gate=gate),),
    )


CALLS: dict[str, tuple[Callable[[], Any], str, tuple[Callable[[], Any], ...]]] = {
    "a weight": (
        lambda: GEMM(A, B),
        "pass B.mT; evt.linear takes B as [n, k]",
        (lambda: GEMM(A, B.mT), lambda: LINEAR(A, B)),
    ),
    "no weight": (lambda: LINEAR(A, B.mT), "pass B.mT; evt.gemm takes B as [k, n]", (lambda: GEMM(A, B.mT),)),
    "a declared layout": (lambda: WRITTEN(A, B.mT), "pass B.mT", (lambda: WRITTEN(A, B),)),
    "shapes of a weight": (
        lambda: GEMM.explain(shapes=(A.shape, B.shape)),
        "pass B.mT; evt.linear takes B as [n, k]",
        (lambda: GEMM.explain(shapes=SHAPES), lambda: LINEAR.explain(shapes=(A.shape, B.shape))),
    ),
    "tensors as shapes": (
        lambda: GEMM.explain(shapes=(A, B.mT)),
        "pass shapes=(A.shape, B.shape)",
        (lambda: GEMM.explain(shapes=SHAPES),),
    ),
    "extents as shapes": (
        lambda: GEMM.estimate((8, 24, 16)),
        "pass shapes=(A.shape, B.shape)",
        (lambda: GEMM.estimate(SHAPES),),
    ),
    "an array": (
        lambda: GEMM(A.numpy(), B.mT),
        "convert it: torch.as_tensor(A)",
        (lambda: GEMM(torch.as_tensor(A.numpy()), B.mT),),
    ),
    "a list": (
        lambda: GEMM(A, B.mT.tolist()),
        "convert it: torch.as_tensor(B)",
        (lambda: GEMM(A, torch.as_tensor(B.mT.tolist())),),
    ),
    "a number for a vector": (
        lambda: ROWS(A, B.mT, s=2.0),
        "declare it a scalar: `in s: f32`; or a vector or a scalar: `in s: f32[m?]`",
        (lambda: SCALAR(A, B.mT, s=2.0), lambda: EITHER(A, B.mT, s=torch.tensor(2.0)), lambda: EITHER(A, B.mT, s=S)),
    ),
    "elements of u4": (
        lambda: evt.pack_int4(torch.tensor([[12, 3]])),
        "pack a B of u4 with signed=False",
        (lambda: evt.pack_int4(torch.tensor([[12, 3]]), signed=False),),
    ),
    "batches of a linear map: scalars": batches("l", (3,)),
    "batches of a linear map: vectors": batches("l, n", (3, 24)),
    "batches of a linear map: a matrix": batches("l, m, n", (1, 8, 24)),
    "the geometry of a convolution": (
        lambda: evt.gemm("D = acc", stride=2),  # type: ignore[call-arg]
        "use evt.conv2d or --op conv2d, or omit it",
        (lambda: evt.conv2d("D = acc", stride=2), lambda: evt.gemm("D = acc")),
    ),
    "another library's operation": (
        lambda: evt.load("samples/rope.evt", "matmul"),
        "write `gemm`",
        (lambda: evt.load("samples/rope.evt", "gemm"),),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_help_of_a_careless_call(name: str, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    monkeypatch.chdir(pytestconfig.rootpath)
    call, hint, corrected = CALLS[name]
    with pytest.raises(evt.errors.EvtError) as caught:
        call()
    (each,) = caught.value.diagnostics
    assert hint in each.help
    assert len(each.message) < 150
    for correct in corrected:
        correct()


def test_an_explanation_names_the_route() -> None:
    assert GEMM.explain("h100").route == evt.supports(GEMM, arch="h100").route


def test_an_explanation_names_the_route_that_is_emitted() -> None:
    found = GEMM.explain("h100")
    assert (found.route, found.emitted) == ("gemm-own-3x", "stock-3x")
    assert "evt emit      prints stock-3x, unless --route own asks for this kernel" in str(found)
    assert GEMM.plan("h100").route == found.emitted
    own = evt.gemm("D = acc", route="own")
    assert own.explain("h100").emitted == ""
    assert own.plan("h100").route == own.explain("h100").route


def test_a_forced_route_is_explained() -> None:
    assert evt.gemm("D = acc", route="evt-2x").explain("h100").route == "evt-2x"


@pytest.mark.parametrize("name", ["lambda", "None", "class", "is", "scale", "x1"])
def test_a_missing_input_is_passed_as_the_help_says(name: str) -> None:
    op = evt.gemm(f"in {name}: f32; D = acc * {name}")
    with pytest.raises(evt.ArgumentError) as caught:
        op(A, B.mT)
    (each,) = caught.value.diagnostics
    code, _, rest = each.help.removeprefix("pass ").partition(", ")
    assert rest == "a number or a one-element tensor"
    filled = code.replace("...", "2.0")
    assert torch.allclose(eval(f"op(A, B.mT, {filled})", {"op": op, "A": A, "B": B}), 2 * (A @ B.mT), atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_by_position_are_named(compiled: bool) -> None:
    op = evt.gemm("D = lambda*acc + C")
    C = torch.randn(8, 24)  # noqa: N806
    calls: list[Callable[..., Any]] = [lambda *given: op(A, B.mT, *given)]
    if compiled:
        torch.compiler.reset()
        calls = [torch.compile(calls[0], backend="eager")]
    with pytest.raises(evt.ArgumentError) as caught:
        calls[0](2.0, C)
    (each,) = caught.value.diagnostics
    assert each.code == "E0602"
    assert each.message == "a call takes A and B by position, and no other argument; 2 inputs given"
    assert each.help == 'pass them by keyword: op(A, B, **{"lambda": ...}, C=...)'
    with pytest.raises(evt.ArgumentError, match="the program has no inputs"):
        GEMM(A, B.mT, C)
    ends = torch.tensor([3, 8], dtype=torch.int32)  # by position in torch._grouped_mm
    with pytest.raises(evt.ArgumentError, match=r"by keyword: op\(A, B, offsets=\.\.\., C=\.\.\.\)"):
        evt.grouped_gemm("D = acc + C")(A, torch.stack([B.mT] * 2), ends)
