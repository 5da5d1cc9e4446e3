"""A call that the CPU computes and no GPU would is reported once; the oracle reports nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt.runtime import call as call_module

A, B = torch.ones(32, 64, dtype=torch.int8), torch.ones(64, 48, dtype=torch.int8)
H = torch.ones(32, 32, dtype=torch.float16)
X, WEIGHT = torch.ones(2, 8, 8, 8, dtype=torch.float16), torch.ones(8, 16, 3, 3, dtype=torch.float16)


def warned(run: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return caught


#: Calls without a kernel, a part of the warning, and a call that follows its advice.
REFUSED: dict[str, tuple[Callable[[], Any], str, Callable[[], Any] | None]] = {
    "row-major int8": (
        lambda: evt.gemm("D = relu(acc)")(A, B),
        r"on sm90, only on sm100; .*\nE0503: 8-bit operands must be contiguous along k.*\nhelp: pass B.mT.contiguous",
        lambda: evt.gemm("D = relu(acc)")(A, B.mT.contiguous().mT),
    ),
    "column-major int8": (
        lambda: evt.linear("D = acc")(A.mT.contiguous().mT, B.mT.contiguous()),
        r"E0503: 8-bit operands must be contiguous along k.*\nhelp: pass A.contiguous\(\)",
        lambda: evt.linear("D = acc")(A, B.mT.contiguous()),
    ),
    "odd doubles of int8": (
        lambda: evt.linear("out D: f64; D = acc")(A[:, :61].contiguous(), B.mT[:, :61].contiguous()),
        "any GPU",
        None,
    ),
    "strided dgrad": (
        lambda: evt.conv2d_dgrad("D = silu(acc)*2", stride=3)(X, WEIGHT),
        r"on any GPU; .*\nE0503: CUTLASS permutes the rows of a dgrad with a stride",
        lambda: evt.conv2d_dgrad("D = silu(acc)*2", stride=1)(X, WEIGHT),
    ),
    "depthwise of doubles": (
        lambda: evt.conv2d("D = acc", groups=8)(X.double(), WEIGHT[:, :1].double()),
        "E0503: CUTLASS.s convolutions have no f64",
        lambda: evt.conv2d("D = acc", groups=8)(X, WEIGHT[:, :1]),
    ),
    "forced": (
        lambda: evt.gemm("D = acc", route="evt-3x")(H[:, :9].contiguous(), H[:9]),
        "E0502: the route evt-3x cannot compile this program: `A` is aligned to 2 bytes",
        lambda: evt.gemm("D = acc", route="evt-3x")(H, H),
    ),
    "batches": (
        lambda: evt.gemm("D = acc*iota(l)")(torch.ones(70000, 1, 1).half(), torch.ones(1, 1).half()),
        "E0804: the route evt-2x takes at most 65535 batches in a launch: there are 70000",
        lambda: evt.gemm("D = acc")(torch.ones(70000, 1, 1).half(), torch.ones(1, 1).half()),
    ),
    "grouped reduction": (
        lambda: evt.grouped_gemm("out D, r; D = acc; r = sum[n](acc)")([H], [H]),
        r'E0503: a reduction would be.*\nhelp: route="loop"',
        lambda: evt.grouped_gemm("out D, r; D = acc; r = sum[n](acc)", route="loop")([H], [H]),
    ),
    "groups of two layouts": (
        lambda: evt.grouped_gemm("D = acc")([H, H], [H, H.mT]),
        "E0606: `B` is contiguous along k in group 1, n in group 0",
        lambda: evt.grouped_gemm("D = acc")([H, H], [H.mT, H.mT]),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernel_is_said_where_it_is_called(name: str) -> None:
    run, message, instead = REFUSED[name]
    (found,) = warned(run)
    assert found.category is evt.NoKernelWarning
    assert issubclass(evt.NoKernelWarning, UserWarning)
    assert found.filename == __file__
    with pytest.warns(evt.NoKernelWarning, match=f"(?s){message}"):
        run()
    if instead is not None:
        assert warned(instead) == []


@pytest.mark.parametrize(
    "settings", [{"route": "evt-4x"}, {"config": "x"}, {"route": "evt-2x", "config": "x"}], ids=str
)
def test_a_route_or_configuration_that_no_target_has_is_refused_at_each_call(settings: dict[str, str]) -> None:
    op = evt.gemm("D = acc", **settings)
    for _ in range(2):
        with pytest.raises(evt.TargetError, match="E0501"):
            op(H, H)


def test_a_configuration_that_no_group_has_is_refused() -> None:
    op = evt.grouped_gemm("D = acc", route="evt-3x-grouped", config="x")
    for _ in range(2):
        with pytest.raises(evt.TargetError, match="E0501"):
            op([H], [H])


def test_a_configuration_of_other_targets_is_warned_of() -> None:
    config = evt.gemm("D = acc", route="evt-3x").explain("sm100", a="f16", b="f16").plan.config.name
    with pytest.warns(evt.NoKernelWarning, match="on sm90, only on sm100"):
        evt.gemm("D = acc", route="evt-3x", config=config)(H, H)


def test_it_is_said_once_for_a_program_and_a_signature() -> None:
    op = evt.gemm("D = relu(acc)")
    assert len(warned(lambda: op(A, B))) == 1
    assert warned(lambda: op(A, B)) == []
    assert warned(lambda: op(torch.cat([A, A]), B)) == []  # another size of the same
    assert len(warned(lambda: op(A.mT.contiguous().mT, B))) == 1
    assert len(warned(lambda: evt.gemm("D = relu(acc)")(A, B))) == 1
    grouped = evt.grouped_gemm("D = relu(acc)")
    assert len(warned(lambda: grouped([A, A], [B, B]))) == 1
    assert warned(lambda: grouped([A, A, A], [B, B, B])) == []


def test_the_oracle_and_empty_products_say_nothing() -> None:
    op = evt.gemm("D = relu(acc)")
    assert warned(lambda: op.reference(A, B)) == []
    assert warned(lambda: op.reference(A, B, float64=True)) == []
    assert warned(lambda: evt.grouped_gemm("D = acc").reference([A], [B])) == []
    assert warned(lambda: op(A[:0], B)) == []
    assert warned(lambda: evt.grouped_gemm("D = acc")([A[:0]], [B])) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_has_a_kernel_is_not_warned_of(dtype: torch.dtype) -> None:
    a, b = torch.ones(33, 25, dtype=dtype), torch.ones(25, 17, dtype=dtype)
    op = evt.gemm("out D, r; D = relu(acc + bias); r = sum[n](acc)")
    for operands in ((a, b), (a.mT.contiguous().mT, b), (a, b.mT.contiguous().mT), (a[:32, :24], b[:24, :16])):
        m, n = len(operands[0]), operands[1].shape[1]
        assert m
        assert warned(lambda ab=operands, n=n: op(*ab, bias=torch.ones(n, dtype=dtype))) == []  # type: ignore[misc]


def test_planning_never_takes_the_answer_away(monkeypatch) -> None:
    for error in (KeyError("x"), evt.InternalError(()), RuntimeError("planned")):

        def fail(*arguments: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(call_module, "plan_kernels", fail)
        op = evt.gemm("D = acc")
        assert warned(lambda op=op: op(H, H)) == []  # type: ignore[misc]
        assert op(H, H).shape == (32, 32)


def test_it_may_be_an_error() -> None:
    op = evt.gemm("D = relu(acc)")
    with warnings.catch_warnings():
        warnings.simplefilter("error", evt.NoKernelWarning)
        with pytest.raises(evt.NoKernelWarning, match="no kernel of evt"):
            op(A, B)
