"""``mean`` and ``var``: moments of rows, columns, tiles and blocks, also where the mean is far from 0."""

from __future__ import annotations

import math

import pytest
import torch

import evt

TEXT = (
    "in C: f32[m, n]; out D: f32[m, n], mu: f32[m], v: f32[m], c: f32[n], s: f32[n], a: f32, e: f32[m]\n"
    "out w: f32[m, n/16]\n"
    "D = acc*0 + C; mu = mean[n](D); v = var[n](D); c = mean[m](D); s = var[m](D, 1); a = var[m, n](D)\n"
    "e = var[n](even(D), 1); w = var[n%16](D, 1)"
)


@pytest.mark.parametrize("far", [0, 1e3, 1e5])
def test_moments_are_right_to_f32_where_the_mean_is_many_standard_deviations(far: float) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(37, 192, generator=generator) + far
    found = evt.gemm(TEXT)(torch.ones(37, 8), torch.ones(8, 192), C=given)
    exact = given.double()
    wanted = {
        "mu": exact.mean(1),
        "v": exact.var(1, correction=0),
        "c": exact.mean(0),
        "s": exact.var(0),
        "a": exact.var(correction=0),
        "e": exact[:, ::2].var(1),
        "w": exact.unflatten(1, (-1, 16)).var(2),
    }
    for name, each in wanted.items():
        off = (getattr(found, name).double() - each).abs()
        scale = max(far, 1.0) if name in ("mu", "c") else each
        assert (off / scale).max() < (1e-6 if far < 1e5 or name != "w" else 1e-3), name


def test_moments_of_other_values() -> None:
    """A value that varies along rows alone, integers, truth values, batches and a single value."""
    op = evt.gemm(
        "in r: f32[m]; out D, v: f32[m], w: f32[m, n/8], p: f32[m], one: f32[l, n], all: f32\n"
        "D = acc; v = var[n](r); w = var[n%8](r); p = var[n](acc > 8); one = var[m](acc, 1); all = var[l, m, n](acc)"
    )
    a = torch.arange(8.0).reshape(2, 1, 4)
    found = op(a, torch.eye(4).repeat(1, 4), r=torch.tensor([3.0]))
    acc = (a @ torch.eye(4).repeat(1, 4)).double()
    assert found.v.eq(0).all()
    assert found.w.eq(0).all()
    assert torch.allclose(found.p.double(), (acc > 8).double().var(-1, correction=0))
    assert found.one.isnan().all()  # of one value, as torch.var
    assert math.isclose(found.all, acc.var(correction=0), rel_tol=1e-6)


def test_a_variance_is_nan_if_a_value_is_not_finite() -> None:
    op = evt.gemm("in C: f32[m, n]; D = acc; mu = mean[n](C); v = var[n](C)")
    given = torch.zeros(3, 8)
    given[0, 5], given[1, 2] = math.inf, math.nan
    found = op(torch.ones(3, 8), torch.ones(8, 8), C=given)
    assert found.v[:2].isnan().all()
    assert found.v[2] == 0


REFUSED = {
    "D = acc; v = var(acc)": ("E0203", "needs the modes"),
    "D = acc; v = var[n](acc, 1, 2)": ("E0203", "x, correction"),
    "D = acc; v = var[k](acc)": ("E0301", "cannot reduce over"),
    "D = acc - mean[n](acc)": ("E0410", "complete only when the kernel ends"),
    "D = acc; v = variance[n](acc)": ("E0201", "var"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    code, said = REFUSED[text]
    with pytest.raises(evt.ProgramError, match=f"{code}(.|\n)*{said}"):
        evt.gemm(text)


def test_a_mean_beside_a_variance_shares_its_parts() -> None:
    def parts(text: str) -> int:
        return len(evt.linear(text).plan("sm90", "bf16", "bf16").reductions)

    assert parts("D = acc; mu = mean[n](acc); rstd = rsqrt(var[n](acc) + 1e-5); z = mean[n](acc)/var[n](acc)") == 1
    assert parts("D = acc; mu = mean[n](acc); c = var[m](acc)") == 2
