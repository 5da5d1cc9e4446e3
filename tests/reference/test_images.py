"""Reductions over the pixels of each image, and over groups of columns."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.ir import format_dag, parse_dag

MOMENTS = """
out D, mean: f32[m/p, n/{0}], rstd: f32[m/p, n/{0}], s, largest, whole
D = acc + bias
mean = mean[m%p, n%{0}](D)
rstd = rsqrt(var[m%p, n%{0}](D) + 1e-5)
s = sum[m%p](D)
largest = max[m, n%{0}](D)
whole = sum[m%p, n](D)
"""


def last(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("width", [2, 5, 10, 16])
@pytest.mark.parametrize("images", [1, 3])
def test_values(width: int, images: int) -> None:
    op = evt.conv2d(MOMENTS.format(width), padding=1, stride=2)
    x, w, bias = last(images, 4, 9, 7), last(4 * width, 4, 3, 3), torch.randn(4 * width, dtype=torch.float64)
    found = op(x, w, bias=bias)
    d = torch.nn.functional.conv2d(x, w, bias, stride=2, padding=1)
    groups = d.reshape(images, 4, -1)
    assert found.mean.shape == (images, 4)
    torch.testing.assert_close(found.mean.double(), groups.mean(2), rtol=1e-5, atol=1e-5)
    rstd = (groups.var(2, correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(found.rstd.double(), rstd, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.s.double(), d.sum((2, 3)))
    torch.testing.assert_close(found.largest.double(), groups.amax((0, 2)))
    torch.testing.assert_close(found.whole.double(), d.sum((1, 2, 3)))


def test_groups_of_columns_of_a_product() -> None:
    op = evt.gemm("out D, s: f64[n/6], low: f64[n/12]; D = acc; s = sum[m, n%6](acc); low = min[m, n%6](even(acc))")
    a, b = torch.randn(5, 8, dtype=torch.float64), torch.randn(8, 24, dtype=torch.float64)
    found, d = op(a, b), a @ b
    torch.testing.assert_close(found.s, d.view(5, 4, 6).sum((0, 2)))
    torch.testing.assert_close(found.low, d[:, ::2].reshape(5, 2, 6).amin((0, 2)))


def test_text_reads_back() -> None:
    op = evt.conv2d(MOMENTS.format(10))
    dag = op.request.dag
    assert parse_dag(format_dag(dag)) == dag
    assert "var[m%p, n%10]" in op.explain("sm90", "f16", "f16").signature or "var[m%p, n%10]" in str(op)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("s = sum[m%q](acc)", "E0301"),
        ("s = sum[m/p](acc)", "E0301"),
        ("s = sum[n%10](acc)", "E0301"),
        ("s = sum[m%p, n%1](acc)", "E0301"),
        ("s = sum[m%p, m](acc)", "E0301"),
        ("s = argmax[m%p](acc)", "E0301"),
        ("in b: f32[m/p]; D = acc + b", "E0301"),
        ("out D: f16[m, n/10]; D = acc", "E0301"),
        ("out s: f32[n]; s = sum[m%p](acc)", "E0304"),
        ("D = acc - mean[m%p](acc)", "E0410"),
        ("s = sum[m%p](acc) + sum[m](acc)", "E0410"),
        ("s = var[m%p](acc, 1)", "E0901"),
    ],
)
def test_mistakes(text: str, code: str) -> None:
    with pytest.raises(evt.ProgramError) as caught:
        evt.conv2d(text)
    assert caught.value.diagnostics[0].code == code


def test_rows_that_are_no_pixels() -> None:
    for make in (evt.gemm, evt.linear, lambda text: evt.conv2d_wgrad(text, kernel_size=3)):
        with pytest.raises(evt.ProgramError, match=r"no pixels|not supported"):
            make("s = sum[m%p](acc)")


def test_columns_that_do_not_divide() -> None:
    op = evt.conv2d("s = sum[m%p, n%10](acc)")
    with pytest.raises(evt.EvtError, match="blocks of 10 columns"):
        op(last(1, 4, 5, 5), last(12, 4, 3, 3))


def test_gradients_are_refused() -> None:
    op = evt.conv2d("out D, s: f64[m/p, n]; D = acc; s = sum[m%p](acc)")
    with pytest.raises(evt.ArgumentError, match="no gradient"):
        op(last(1, 4, 5, 5).requires_grad_(), last(12, 4, 3, 3))


@pytest.mark.parametrize("operation", [evt.conv2d, evt.conv2d_dgrad])
def test_routes(operation) -> None:
    """The halo kernel takes them, and no other kernel; gradients with a stride are refused."""
    op = operation("out D, s: f32[m/p, n]; D = acc; s = sum[m%p](acc)", padding=1)
    assert op.plan("sm90", "f16", "f16").route == "conv-halo-3x"
    with pytest.raises(evt.TargetError):
        op.plan("sm80", "f16", "f16")
    strided = evt.conv2d_dgrad("out D, s: f32[m/p, n]; D = acc; s = sum[m%p](acc)", padding=1, stride=2)
    with pytest.raises(evt.TargetError):
        strided.plan("sm90", "f16", "f16")
