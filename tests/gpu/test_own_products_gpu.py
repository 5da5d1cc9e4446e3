"""Matrix products by the GEMM kernel on a GPU: epilogues, types, layouts, many sizes, poisoned outputs, float64.

Each case runs every size by kernels that are offered, and by a few that users ask for: clusters, splits of k, depths.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.diagnostics import Source
from evt.ir.node import base, blocks_of
from evt.plan import Config, Plan, plan, survey
from evt.plan.sizes import UNKNOWN
from evt.plan.speed import fastest, refusal
from evt.request import packed_problem, typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import call_problem, device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu import own_kernels
from tests.gpu.builds import build_selected
from tests.support.one_config import with_config
from tests.support.patterns import same_bits

pytestmark = pytest.mark.gpu

ROUTE = "gemm-own-3x"
#: (m, n, k): nothing is a multiple of a tile; operands of 8 bits have twice the k, of 32 half of it.
SIZES = (
    (333, 264, 136),
    (1, 8, 1032),
    (5, 72, 520),
    (1001, 136, 328),
    (63, 1096, 200),
    (257, 520, 2056),
    (8191, 40, 136),
    (40_000, 200, 264),
)
RESIDUAL = "D = relu(acc + bias + residual)"
FACTORS = "in sa: f32[m, k/128], sb: f32[n/128, k/128]; A = sa*A; B = sb*B\n"


@dataclass(frozen=True)
class Case:
    """A program, and the types of A and of B: ``weight``, if it is another. ``every``: all offered configurations."""

    text: str
    dtype: str = "f16"
    weight: str = ""
    operation: str = "linear"
    deterministic: bool | None = None
    every: bool = False
    accumulate: Any = "precise"

    @property
    def types(self) -> tuple[str, str]:
        return self.dtype, self.weight or self.dtype

    def program(self, config: str | None = None) -> evt.Program:
        settings = {"deterministic": self.deterministic, "accumulate": self.accumulate}
        op = evt.Program(Source(self.text), self.operation, route=ROUTE, **settings)
        return op if config is None else with_config(op, config)

    def configs(self) -> tuple[Config, ...]:
        """Return the offered configurations, and two of each of three clusters or splits that users ask for."""
        (found,) = survey(packed_problem(self.program().request, "sm90", *self.types), ROUTE).asked
        asked: dict[tuple[object, ...], list[Config]] = {}
        for config in found.search_space.values():
            if config.use == "asked":
                asked.setdefault((config.cluster, config.schedule), []).append(config)
        draw = random.Random(self.text)
        drawn = draw.sample(list(asked.values()), min(len(asked), 3))
        first, *rest = found.default_configs
        offered = rest if self.every else draw.sample(rest, 2)
        return (first, *offered, *(draw.choice(each) for each in drawn))


CASES = {
    "residual": Case(RESIDUAL, every=True),
    "pairs": Case("out D[m, n/2]; D = silu(even(acc))*odd(acc)", "bf16", every=True),
    "pairs-reductions": Case(
        "in s: f32[m], t: f32; out D[m, n/2], r: f32[m], c: f32; x = acc + bias\n"
        "y = gelu(even(x))*odd(x)*t; D = s*y; r = sum[n](y*y); c = max[m, n](acc)"
    ),
    "pairs-e4m3": Case("in s: f32[m], t: f32[n]; out D: bf16[m, n/2]; x = s*t*acc; D = even(x, 8)*odd(x, 8)", "e4m3"),
    "pairs-block-scales": Case(FACTORS + "out D: bf16[m, n/2]; D = silu(even(acc))*odd(acc)", "e4m3", every=True),
    "pairs-block-scales-bytes": Case(
        "in sa: f32[m, k/128], sb: f32[n/256, k/128], t: f32[n], q: f32; A = sa*A; B = sb*B; x = acc + t\n"
        "out D: e4m3[m, n/2], r: f32[m], c: f32[n]; D = q*even(x, 32)*odd(x, 32); r = sum[n](acc); c = max[m](x)",
        "e4m3",
        every=True,
    ),
    "pairs-scales": Case("in s: f32[n, k/128]; B = s*B; out D: bf16[m, n/2]; D = even(acc, 16) - odd(acc, 16)", "e4m3"),
    "pairs-bytes": Case("in q: f32; out D: e4m3[m, n/2]; D = q*silu(even(acc))*odd(acc)", "bf16", every=True),
    "dual": Case("in s: f32[m]; D = silu(s*acc)*matmul(A, up)", "bf16", every=True),
    "dual-bytes": Case("in s: f32[m], q: f32; out D: e4m3; D = gelu(s*acc)*(q*matmul(A, up))", "e4m3"),
    "dual-vectors": Case("in b: f32[n], s: f32[n?] = 2; D = silu(acc + b)*(s*matmul(A, up))", "bf16", every=True),
    "bytes": Case("in s: f32[m], x: f16[m, n]; out D: i8; D = s*acc + x", "i8", every=True),
    "pairs-apart": Case("out D[m, n/2]; D = silu(even(acc, 32)) - odd(acc, 32)", "bf16", every=True),
    "residual-bf16-gemm": Case(RESIDUAL, "bf16", operation="gemm"),
    "residual-f32": Case(RESIDUAL, "f32"),
    "f32-output-gemm": Case("out D: f32[m, n]; D = acc + C", operation="gemm"),
    "broadcasts": Case("in s: f32[m], t: bf16[n], p: f16, q: i32; D = acc*s + t*alpha + p*q + beta*C"),
    "flexible": Case("in s: f32[m?], t: f16[n?] = 0.5; out D: f16; D = acc*s + t"),
    "column-major": Case("in C[n, m]; out D[n, m], E: f32[n, m]; E = acc; D = relu(acc + C)"),
    "two-outputs": Case(
        "in gate: f32[m, n]; out D, E, F: e4m3[m, n]; E = acc + bias; D = hardswish(E) + C*gate; F = 4*E", "bf16"
    ),
    "places": Case("out D: f32[m, n], E: i32[m, n]; D = where(iota(n) <= iota(m) - 32, acc, size(k)); E = 20*acc"),
    "reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32, r: f32[m]\n"
        "D = acc + bias; a = sum[m](D*D); b = max[n](D); c = max[m, n](abs(acc))\n"
        "r = rsqrt(sum[n](acc*acc)/size(n) + 0.1)"
    ),
    "moments": Case(
        "out D, mu: f32[m], r: f32[m], c: f32[n], s: f32[n], a: f32\n"
        "x = acc + 500; D = acc; mu = mean[n](x); r = rsqrt(var[n](x) + 0.1)\n"
        "c = mean[m](x); s = sqrt(var[m](x, 0.5)); a = var[m, n](x)"
    ),
    "atomic": Case(
        "out D, a: f32[n], b: f32[m], c: f32; D = acc; a = sum[m](acc); b = max[n](acc); c = sum[m, n](acc*acc)",
        deterministic=False,
    ),
    "no-tile": Case("out a: f32[n], b: f32[m]; a = sum[m](acc); b = max[n](acc)", operation="gemm"),
    "bits-random-numbers": Case(
        "in keep: b1[m, n], seed: i64; out D, above: b1[m, n]; above = acc > 0.25\n"
        "D = where(keep, dropout(acc + C, 0.4, seed, 7), 0)",
        every=True,
    ),
    "vector-outputs": Case(
        "in s: f32[n], t: f32[m], p: f16; out D, a: f32[n], b: f16[m], c: f32\n"
        "D = acc; a = exp(s); b = sigmoid(t); c = 3*p"
    ),
    "e4m3": Case("out D: f16, E: e4m3[m, n]; E = acc/2; D = relu(acc + bias) + C", "e4m3"),
    "e4m3-fast": Case("D = relu(acc + bias) + C", "e4m3", accumulate="fast"),
    "e4m3-e5m2": Case("D = silu(acc + bias)", "e4m3", "e5m2"),
    "i8": Case(
        "out D: i8, E: i32[m, n], F: bf16[m, n], a: i32[n], p: i32[m], q: i32[n]\n"
        "D = acc/32 + bias; E = acc; F = acc*0.5 + C; a = sum[m](acc); p = argmax[n](acc); q = argmin[m](acc)",
        "i8",
    ),
    "u8-i8": Case("D = relu(acc + C)", "u8", "i8"),
    "block-scales": Case(FACTORS + "D = silu(acc + bias) + C", "e4m3", every=True),
    "block-scales-of-columns": Case(
        "in sa: bf16[m/256, k/256], sb: f32[n, k/128], t: f32[n]; A = sa*A; B = sb*t*B; out D, a: f32[m]; "
        "D = acc; a = max[n](abs(D))",
        "e4m3",
        "e5m2",
    ),
    "converted": Case("in C: bf16[m, n]; B = s[n]*B; D = relu(acc + bias) + C", "bf16", "i8"),
    "converted-u8": Case("D = acc", "f16", "u8"),
    "converted-blocks": Case("in s: bf16[n, k/128]; B = s*B; D = silu(acc + bias)", "f16", "e4m3"),
    "converted-e5m2": Case("out D, a: f32[n]; D = acc + bias; a = sum[m](D)", "bf16", "e5m2"),
    "block-scales-bf16": Case("in s: f32[k/64], t: f32[m]; A = s*t*A; D = acc + C", "bf16", operation="gemm"),
}
#: Matrices of n columns with addresses that TMA does not move as C and D; and operands with a pitch.
ODD = {"odd-columns": (77, 133, 72), "odd-columns-wide": (300, 1, 136)}


def kernels() -> Iterator[Any]:
    for name, case in CASES.items():
        yield from (pytest.param(name, config.name, id=f"{name}-{config.name}") for config in case.configs())


def sized(case: Case, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Return sizes whose rows of A, of B and of half the columns TMA moves."""
    apart = next((each for each in (8, 16, 32) if f", {each})" in case.text), 1)
    halves = 2 * apart if "n/2" in case.text or "matmul" in case.text else 1
    factor = {"i8": 2, "u8": 2, "e4m3": 2, "e5m2": 2, "f32": 0.5}.get(case.types[1], 1)
    return m, halves * -(-n // apart), int(factor * k)


def tensors(case: Case, m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments of a program: A, B and the inputs by name."""
    generator = torch.Generator("cuda").manual_seed(seed)
    of_b = (n, k) if case.operation == "linear" else (k, n)
    a, b = (
        own_kernels.random(shape, dtype, generator, k**-0.25)
        for shape, dtype in zip(((m, k), of_b), case.types, strict=True)
    )
    extents = {"m": m, "n": n, "n/2": n // 2, "k": k}
    inputs: dict[str, Any] = {}
    for value in typed_graph(case.program().request, *case.types).inputs:
        dtype = str(value.dtype)
        if not value.modes:
            inputs[value.name] = {"i32": 3, "i64": 2**40 + 5}.get(dtype, 1.25)
        elif dtype == "b1":
            inputs[value.name] = evt.pack_bits(torch.rand((m, n), device="cuda", generator=generator) < 0.6)
        elif value.flexible and m % 2:
            inputs[value.name] = 0.75
        else:
            inputs[value.name] = own_kernels.random(
                [blocks_of(mode, extents[base(mode)]) for mode in value.modes], dtype, generator
            )
    return a, b, inputs


def plan_of(name: str, config: str) -> Plan:
    case = CASES[name]
    op = case.program(config)
    a, b, inputs = tensors(case, *sized(case, *SIZES[0]))
    bound, atomic = bind(op.request, a, b, inputs, {}), case.deterministic is False
    (made,) = plan_kernels(op.request, bound, device_target(0), atomic)
    return made


def sources_of(name: str, config: str) -> list[KernelSource]:
    return kernel_sources([plan_of(name, config)])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_products, sources_of)


@pytest.mark.parametrize(("name", "config"), list(kernels()))
def test_products(name, config, record, refused) -> None:
    case, worst = CASES[name], 0.0
    for source in sources_of(name, config):
        assert source not in refused, refused[source]
    op, made = case.program(config), plan_of(name, config)
    sizes = [size for size in SIZES if not refusal(made, dict(zip("mnk", sized(case, *size), strict=True)), UNKNOWN)]
    assert len(sizes) >= 2
    for seed, size in enumerate(sizes):
        worst = max(worst, *own_kernels.check_call(op, *tensors(case, *sized(case, *size), seed)))
    record((name, config, case.dtype, f"{len(sizes)} sizes", f"{worst:.2f}"))


@pytest.mark.parametrize("launches", [30, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["residual", "residual-bf16-gemm", "reductions", "i8", "e4m3", "block-scales"])
def test_random_sizes(name, launches, record) -> None:
    """The kernel that is expected to be the fastest for sizes that are drawn."""
    case, draw, worst = CASES[name], random.Random(launches), 0.0
    op = case.program()
    for _ in range(launches):
        m, n = draw.choice((draw.randrange(1, 100), draw.randrange(1, 5000))), 8 * draw.randrange(1, 100)
        size = sized(case, m, n, 8 * draw.randrange(1, draw.choice((20, 300))))
        worst = max(worst, *own_kernels.check_call(op, *tensors(case, *size, seed=draw.randrange(2**31))))
    record((name, "fastest", case.dtype, f"{launches} random sizes", f"{worst:.2f}"))


@pytest.mark.parametrize("name", ODD)
def test_columns_that_tma_does_not_move(name, record) -> None:
    case = CASES["residual"]
    errors = own_kernels.check_call(case.program(), *tensors(case, *ODD[name]))
    record(("residual", name, case.dtype, str(ODD[name]), f"{max(errors):.2f}"))


def test_pitches_and_views(record) -> None:
    """Operands and D in larger tensors, whose other elements are neither read nor written."""
    case = CASES["residual"]
    op, m, n, k = case.program(), 333, 264, 136
    a, b, inputs = tensors(case, m, n, k)
    want = op(a, b, **inputs)
    wide = torch.full((m, 3 * k), float("nan"), device="cuda", dtype=torch.float16)
    wide[:, k : 2 * k] = a
    out = torch.full((m + 2, 3 * n), float("nan"), device="cuda", dtype=torch.float16)
    op(wide[:, k : 2 * k], b, out=out[1:-1, n : 2 * n], **inputs)
    assert torch.equal(out[1:-1, n : 2 * n], want)
    assert bool(out[:, :n].isnan().all() and out[:, 2 * n :].isnan().all())
    assert bool(out[0].isnan().all() and out[-1].isnan().all())
    folded = op(a.view(3, 111, k), b, bias=inputs["bias"], residual=inputs["residual"].view(3, 111, n))
    assert torch.equal(folded.view(m, n), want)
    record(("residual", "pitches", case.dtype, str((m, n, k)), "equal"))


def test_batches_take_a_launch_each() -> None:
    op = evt.gemm("D = acc", route=ROUTE)
    a, b = (torch.randn(shape, device="cuda").half() for shape in ((3, 16, 32), (3, 32, 24)))
    found = op(a, b)
    assert torch.equal(found, torch.stack([op(*each) for each in zip(a, b, strict=True)]))
    torch.testing.assert_close(found, a @ b)
    with pytest.raises(evt.LaunchError, match="E0804"):
        op(a[:1].expand(300, -1, -1).contiguous(), b[:1].expand(300, -1, -1).contiguous())


BATCHED = {
    "residual": Case("D = relu(acc + bias + residual)", operation="gemm"),
    "of-batches": Case(
        "in s: f32[l, m], t: f16[l, n], keep: b1[l, m, n]; out D, above: b1[l, m, n]\n"
        "above = acc > 0.25; D = where(keep, s*acc + t, 0)",
        operation="gemm",
    ),
    "pairs": Case(
        "gemm(A: bf16[m, k], B: bf16[n, k]); out D[m, n/2]; D = silu(even(acc))*odd(acc)", "bf16", operation="gemm"
    ),
    "e4m3": Case(
        "gemm(A: e4m3[m, k], B: e4m3[n, k]); in s: f32[l, m], t: f32[n], C: bf16[l, m, n]\n"
        "out D: bf16; D = s*t*acc + C",
        "e4m3",
        operation="gemm",
    ),
}


def matrices(draw: random.Random, shape: tuple[int, int, int], dtype: str, scale: float, *, shared: bool) -> Any:
    """Return a matrix for each batch: packed, rows of the batches in turns, or one matrix that batches share."""
    batches, rows, columns = shape
    generator = torch.Generator("cuda").manual_seed(draw.randrange(2**31))
    kind = draw.choice(("packed", "in turns", *(("shared", "expanded") if shared else ())))
    if kind in ("shared", "expanded"):
        one = own_kernels.random((rows, columns), dtype, generator, scale)
        return one if kind == "shared" else one.expand(shape)
    first, second = (batches, rows) if kind == "packed" else (rows, batches)
    found = own_kernels.random((first, second, columns), dtype, generator, scale)
    return found if kind == "packed" else found.transpose(0, 1)


@pytest.mark.parametrize("name", BATCHED)
def test_batches_of_any_strides(name, record) -> None:
    case, draw, worst = BATCHED[name], random.Random(name), 0.0
    op = evt.Program(Source(case.text), "gemm", route="gemm-own-batches")
    along_k = op.request.operand_modes[1][0] == "n"
    for seed in range(12):
        batches, m = draw.choice((2, 7, 60)), draw.choice((1, 33, 130, 333))
        n, k = 16 * draw.randint(1, 20), 16 * draw.randint(1, 40)
        extents, generator = {"l": batches, "m": m, "n": n}, torch.Generator("cuda").manual_seed(seed)
        of_b = (batches, n, k) if along_k else (batches, k, n)
        a = matrices(draw, (batches, m, k), case.types[0], k**-0.25, shared=seed % 3 == 0)
        b = matrices(draw, of_b, case.types[1], k**-0.25, shared=seed % 3 == 1)
        inputs: dict[str, Any] = {}
        for value in typed_graph(op.request, *case.types).inputs:
            if str(value.dtype) == "b1":
                inputs[value.name] = evt.pack_bits(
                    torch.rand((batches, m, n), device="cuda", generator=generator) < 0.6
                )
            elif value.is_tile:
                given = matrices(draw, (batches, m, n), str(value.dtype), 1.0, shared=True)
                inputs[value.name] = given.expand(batches, m, n) if "l" in value.modes else given
            else:
                shape = [extents[mode] for mode in value.modes]
                inputs[value.name] = own_kernels.random(shape, str(value.dtype), generator)
        worst = max(worst, *own_kernels.check_call(op, a, b, inputs))
        if name == "residual":
            wide = torch.full((m + 1, batches, n), float("nan"), device="cuda", dtype=torch.float16)
            found = wide[:m].transpose(0, 1)
            op(a, b, out=found, **inputs)
            assert bool(same_bits(found, op(a, b, **inputs)).all())
            assert bool(wide[m].isnan().all())
    record((name, "batches", case.dtype, "12 random sizes", f"{worst:.2f}"))


@pytest.mark.parametrize("splits", [2, 4, 8])
def test_a_split_without_k_is_refused(splits: int) -> None:
    """Each thread block of a cluster that splits k multiplies a stage of k or more."""
    case, least = CASES["residual"], 64 * (splits - 1)
    op = case.program(f"own_cooperative_64x128x64_1x1x{splits}")
    a, b, inputs = tensors(case, 40, 64, least)
    with pytest.raises(evt.LaunchError, match=rf"E0804\]: k = {least}: own_cooperative_64x128x64_1x1x{splits} has"):
        op(a, b, **inputs)
    for k in (least + 8, least + 64, 64 * splits * 3 + 8):
        assert max(own_kernels.check_call(op, *tensors(case, 333, 264, k))) <= 1


def test_one_program_takes_several_kernels() -> None:
    """Narrow tiles serve few rows, wide tiles many rows."""
    op = CASES["residual"].program()
    taken = set()
    for m, n, k in ((16, 4096, 1024), (9000, 1024, 512)):
        a, b, inputs = tensors(CASES["residual"], m, n, k)
        own_kernels.check_call(op, a, b, inputs)
        bound = bind(op.request, a, b, inputs, {})
        plans = survey(call_problem(op.request, bound, device_target(0)), ROUTE).defaults
        taken.add(plans[fastest(plans, bound.sizes, 132)].config.tile[0])
    assert len(taken) == 2
    assert plan(call_problem(op.request, bound, device_target(0))).route == ROUTE


# The sums


#: Sizes of products: whole and partial tiles, and many k.
PRODUCTS = (
    (1, 8, 64),
    (16, 64, 64),
    (17, 72, 136),
    (64, 128, 512),
    (128, 128, 4096),
    (129, 264, 1032),
    (333, 520, 72),
    (512, 512, 512),
    (1000, 768, 3072),
    (1024, 1024, 1024),
    (2048, 256, 8192),
    (2049, 1096, 200),
    (4096, 4096, 256),
    (4097, 136, 2056),
    (8191, 40, 136),
    (8192, 1024, 512),
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operation", ["gemm", "linear"])
def test_the_bits_of_a_product_are_those_of_torch(dtype, operation, record) -> None:
    """WGMMA adds in the order of k, in f32; a kernel of the library that splits k rounds otherwise."""
    op = evt.Program(Source("D = acc"), operation, route=ROUTE)
    equal = 0
    for seed, (m, n, k) in enumerate(PRODUCTS):
        generator = torch.Generator("cuda").manual_seed(seed)
        a = torch.randn((m, k), device="cuda", generator=generator).to(dtype)
        b = torch.randn((k, n) if operation == "gemm" else (n, k), device="cuda", generator=generator).to(dtype)
        found = with_config(op, "own_pingpong_128x128x64")(a, b)
        want = torch.mm(a, b if operation == "gemm" else b.t())
        torch.testing.assert_close(found, want, rtol=2e-2, atol=1e-3 * k**0.5)
        equal += torch.equal(found, want)
        for config in ("own_cooperative_256x128x64_1x2", "own_pingpong_64x64x64", "own_pingpong_16x64x64"):
            assert torch.equal(with_config(op, config)(a, b), found), (m, n, k, config)
    assert equal >= len(PRODUCTS) - 4
    record((operation, str(dtype), "D = acc", f"{equal} of {len(PRODUCTS)} sizes", "equal"))


@pytest.mark.parametrize("name", ["residual", "reductions", "e4m3", "i8"])
def test_two_launches_have_equal_bits(name) -> None:
    """The order of additions is fixed, also where thread blocks split k."""
    case = CASES[name]
    for config in case.configs():
        op = case.program(config.name)
        for size in ((129, 264, 1032), (2049, 520, 2056)):
            a, b, inputs = tensors(case, *sized(case, *size))
            first, second = op(a, b, **inputs), op(a, b, **inputs)
            pairs = [(first, second)] if isinstance(first, torch.Tensor) else zip(first, second, strict=True)
            for one, other in pairs:
                assert bool(same_bits(one, other).all()), config.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "residual-bf16-gemm", "e4m3", "i8", "reductions"])
def test_thousands_of_launches(name, record) -> None:
    """A thousand drawn sizes for each case, by the kernel of the least estimate or a drawn one."""
    case, draw, worst = CASES[name], random.Random(7), 0.0
    programs = [case.program(), *(case.program(config.name) for config in case.configs())]
    plans = [None, *(plan_of(name, config.name) for config in case.configs())]
    for _ in range(1000):
        which = draw.randrange(len(programs))
        m, n = round(2 ** draw.uniform(0, 12)), 8 * round(2 ** draw.uniform(0, 8))
        size = sized(case, m, n, 8 * round(2 ** draw.uniform(0, 8)))
        made = plans[which]
        if made is not None and refusal(made, dict(zip("mnk", size, strict=True)), UNKNOWN):
            which = 0
        worst = max(worst, *own_kernels.check_call(programs[which], *tensors(case, *size, seed=draw.randrange(2**31))))
    record((name, "drawn", case.dtype, "1000 drawn sizes", f"{worst:.2f}"))
