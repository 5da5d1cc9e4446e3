"""Numbers that have to be exactly so: eager PyTorch's bits, random numbers, reductions in any mode."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.functions.testing import temporarily
from evt.ir.dtype import F16, F32
from evt.reference.compare import relative_error, tolerance
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.edges import differences
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu
F = torch.nn.functional


def whole(*shape, dtype, low=-3, high=4):
    """Whole numbers: products and sums of them are exact in every type here."""
    return torch.randint(low, high, shape, device="cuda").to(dtype)


def share(got, want) -> float:
    """Return the share of the elements with other bits."""
    return float((got.view(torch.int16) != want.view(torch.int16)).float().mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_eager_gives_pytorchs_bits(dtype) -> None:
    a, b = whole(264, 72, dtype=dtype), whole(72, 328, dtype=dtype)
    c, r = torch.randn(264, 328, device="cuda").to(dtype), torch.randn(264, 328, device="cuda").to(dtype)
    s, bias = torch.randn(264, 1, device="cuda").to(dtype), torch.randn(328, device="cuda").to(dtype)
    formula = f"in s: {str(dtype)[6:]}[m]; D = relu(1*acc + 2*C)*s + bias - residual"
    for route in ("evt-3x", "evt-2x"):
        op = evt.gemm(formula, numerics="eager", route=route)
        got = op(a, b, C=c, s=s[:, 0], bias=bias, residual=r)
        eager = torch.relu(torch.addmm(c, a, b, beta=2)) * s + bias - r
        assert torch.equal(got, eager)
    if dtype != torch.float32:
        precise = evt.gemm(formula)(a, b, C=c, s=s[:, 0], bias=bias, residual=r)
        assert not torch.equal(precise, eager)  # which rounds less often


#: Functions of a linear layer's result, and PyTorch's code for them.
FUNCTIONS = {
    "gelu(z)": F.gelu,
    "gelu_slope(z)": lambda z: torch.ops.aten.gelu_backward(torch.ones_like(z), z),
    "gelu_tanh(z)": lambda z: F.gelu(z, approximate="tanh"),
    "gelu_tanh_slope(z)": lambda z: torch.ops.aten.gelu_backward(torch.ones_like(z), z, approximate="tanh"),
    "silu(z)": F.silu,
    "sigmoid(z)": torch.sigmoid,
    "mish(z)": F.mish,
    "softplus(z)": F.softplus,
    "logsigmoid(z)": F.logsigmoid,
    "elu(z, 0.7)": lambda z: F.elu(z, 0.7),
    "celu(z, 0.7)": lambda z: F.celu(z, 0.7),
    "selu(z)": F.selu,
    "erf(z)": torch.erf,
    "softsign(z)": F.softsign,
    "tanhshrink(z)": F.tanhshrink,
    "tanh(z)": torch.tanh,
    "exp(z)": torch.exp,
    "hardswish(z)": F.hardswish,
    "z/3": lambda z: z / 3,
    "3/z": lambda z: 3 / z,
    "z**3": lambda z: z**3,
    "z**-2": lambda z: z**-2,
    "abs(z)**0.3": lambda z: z.abs() ** 0.3,
    "acc*z + 0.1": None,
}


def programs_of(dtype, route):
    """Yield four functions at a time, with the program of their values."""
    names = list(FUNCTIONS)
    for formulas in (names[place : place + 4] for place in range(0, len(names), 4)):
        outputs = "; ".join(f"D{place} = {formula}" for place, formula in enumerate(formulas))
        declared = ", ".join(f"D{place}: {str(dtype)[6:]}[m, n]" for place in range(len(formulas)))
        text = f"out {declared}; z = acc + bias; {outputs}"
        op = evt.linear(text, numerics="eager", route=route)
        name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
        yield formulas, general_config(op, name, name)


def tensors_of(dtype):
    """Return the input, the weight and the bias of the programs."""
    x, w = whole(520, 64, dtype=dtype) / 8, whole(1032, 64, dtype=dtype)
    return x, w, torch.randn(1032, device="cuda").to(dtype)


def sources_of(dtype, route):
    """Return the kernels of the programs."""
    x, w, bias = tensors_of(dtype)
    requests = [op.request for _, op in programs_of(dtype, route)]
    calls = [(request, bind(request, x, w, {"bias": bias}, {})) for request in requests]
    plans = [plan_kernels(request, call, device_target(0))[0] for request, call in calls]
    return kernel_sources(plans)


@pytest.fixture(scope="session")
def built(request):
    """All kernels of the functions, built in one go."""
    return build_selected(request, test_functions_have_the_bits_of_pytorchs_kernels, sources_of)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("route", ["evt-3x", "own"])
def test_functions_have_the_bits_of_pytorchs_kernels(dtype, route, built) -> None:
    assert not built
    x, w, bias = tensors_of(dtype)
    z = F.linear(x, w, bias)
    for formulas, op in programs_of(dtype, route):
        for formula, found in zip(formulas, op(x, w, bias=bias), strict=True):
            function = FUNCTIONS[formula]
            want = (x @ w.t()) * z + 0.1 if function is None else function(z)
            differ = (found.view(torch.int16) != want.view(torch.int16)) & ~(found.isnan() & want.isnan())
            assert not differ.any(), f"{formula}: {float(differ.float().mean()):.2%} of the bits differ"


#: Exponents that PyTorch's kernels treat apart, and others.
EXPONENTS = (0.5, -0.5, -1, 2, 3, -2, 0, 1, 4, 1.5, -1.5, 0.3, 0.25, -3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_powers_have_the_bits_of_pytorchs_kernels_at_the_edges(dtype) -> None:
    """Zeros of both signs, infinities, NaN, subnormal numbers, the ends of the range, and 60,000 random bits."""
    limits, bits = torch.finfo(dtype), {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    few = [0.0, torch.inf, torch.nan, limits.max, limits.tiny, limits.smallest_normal / 4, 1.0, 2.0, 0.5]
    edges = torch.tensor([sign * value for value in few for sign in (1, -1)], device="cuda").to(dtype)
    end = 2 ** (8 * dtype.itemsize - 1)
    c = torch.randint(-end, end, (264, 248), device="cuda").to(bits).view(dtype)
    c.view(-1)[: len(edges)] = edges
    a, b = torch.zeros(264, 64, device="cuda").to(torch.float16), torch.zeros(64, 248, device="cuda").to(torch.float16)
    kind = str(dtype)[6:]
    for start in range(0, len(EXPONENTS), 4):
        some = EXPONENTS[start : start + 4]
        outputs = "; ".join(f"D{place} = C**{exponent}" for place, exponent in enumerate(some))
        declared = ", ".join(f"D{place}: {kind}[m, n]" for place in range(len(some)))
        op = evt.gemm(f"in C: {kind}[m, n]; out {declared}, E: f32; {outputs}; E = acc", numerics="eager", route="own")
        for exponent, found in zip(some, op(a, b, C=c), strict=False):
            want = c**exponent
            differ = (found.view(bits) != want.view(bits)) & ~(found.isnan() & want.isnan())
            pairs = [*zip(c[differ].tolist(), found[differ].tolist(), want[differ].tolist(), strict=True)]
            assert not pairs, f"{len(pairs)} of C**{exponent}: {pairs[:4]}"


#: PyTorch's code for functions that end with a product, or start with a sum.
ENDS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "mish": F.mish,
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "square": torch.square,
}


@pytest.mark.parametrize(("route", "names"), [("own", list(ENDS)), ("evt-3x", ["gelu"]), ("evt-2x", ["hardswish"])])
def test_f32_functions_are_not_contracted_with_their_neighbours(route, names) -> None:
    """A product at the end of a function and a sum that reads it round one after the other, as PyTorch's kernels do."""
    a, b = whole(264, 72, dtype=torch.float16), whole(72, 328, dtype=torch.float16)
    c, product = torch.randn(264, 328, device="cuda") * 3, a.float() @ b.float()
    for name in names:
        text = f"in C: f32[m, n]; out D: f32, E: f32, F: f32, H: f32; y = f32(acc); z = {name}(C); "
        text += "D = z + y; E = y - z; F = y + z*y; H = hardsigmoid(z)"
        got = evt.gemm(text, numerics="eager", route=route)(a, b, C=c)
        z = ENDS[name](c)
        wanted = (z + product, product - z, product + z * product, F.hardsigmoid(z))
        for found, want, formula in zip(got, wanted, ("z + y", "y - z", "y + z*y", "hardsigmoid(z)"), strict=True):
            differ = float((found != want).float().mean())
            assert not differ, f"z = {name}(C), {formula}: {differ:.2%} of the bits differ"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_activations_with_numbers_at_the_edges(dtype) -> None:
    assert not list(differences(dtype, "cuda", route="own"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_linear_and_addmm_with_random_numbers(dtype) -> None:
    """Evt's kernel sums as cuBLAS does where cuBLAS does not split k."""
    x, w = torch.randn(1024, 512, device="cuda").to(dtype), torch.randn(2048, 512, device="cuda").to(dtype)
    bias, c = torch.randn(2048, device="cuda").to(dtype), torch.randn(1024, 2048, device="cuda").to(dtype)
    shares = {}
    for formula, want in {
        "D = gelu(acc + bias)": F.gelu(F.linear(x, w, bias)),
        "D = acc + bias + C": F.linear(x, w, bias) + c,
        "D = relu(alpha*acc + beta*C)": torch.relu(torch.addmm(c, x, w.t(), alpha=0.3, beta=-1.7)),
    }.items():
        op = evt.linear(formula, numerics="eager", route="own")
        given = {"bias": bias, "C": c, "alpha": 0.3, "beta": -1.7}
        got = op(x, w, **{name: given[name] for name in op.inputs})
        shares[formula] = share(got, want)
    print(shares)
    assert shares["D = gelu(acc + bias)"] == shares["D = acc + bias + C"] == 0, shares
    assert max(shares.values()) < 0.02, shares


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_addmm_without_factors_rounds_once_here_and_once_or_twice_in_cublas(dtype) -> None:
    x, w = torch.randn(1024, 512, device="cuda").to(dtype), torch.randn(2048, 512, device="cuda").to(dtype)
    c = torch.randn(1024, 2048, device="cuda").to(dtype)
    product = x.double() @ w.double().t()
    once, twice = (product + c).to(dtype), (product.to(dtype).double() + c).to(dtype)
    got, eager = evt.linear("D = 1*acc + C", numerics="eager", route="own")(x, w, C=c), torch.addmm(c, x, w.t())
    assert share(got, once) < 0.02
    assert share(got, twice) > 0.05
    assert min(share(eager, once), share(eager, twice)) < 0.02
    verified = evt.linear("D = 1*acc + C", numerics="eager", route="own").verify(x, w, C=c)
    assert bool(verified) == torch.equal(got, eager)


def test_verify() -> None:
    x, w = torch.randn(1024, 768, device="cuda").bfloat16(), torch.randn(3072, 768, device="cuda").bfloat16()
    bias = torch.randn(3072, device="cuda").bfloat16()
    op = evt.linear("D = gelu(acc + bias)", numerics="eager", route="own")
    found = op.verify(x, w, bias=bias)
    assert found, found
    assert not evt.linear("D = gelu(acc) + bias", route="own").verify(x, w, bias=bias)
    text = "gemm(A: e4m3[m, k], B: e4m3[n, k]); in sa: f32[m], sb: f32[n], bias: bf16[n]; out D: bf16[m, n]"
    scaled = evt.gemm(f"{text}; D = sa*(sb*acc) + bias", numerics="eager")
    a, b = (torch.randn(size, 512, device="cuda").to(torch.float8_e4m3fn) for size in (256, 384))
    given = {"sa": torch.rand(256, device="cuda"), "sb": torch.rand(384, device="cuda")}
    found = scaled.verify(a, b, **given, bias=torch.randn(384, device="cuda").bfloat16())
    assert found.outputs[0].share < 0.2, found  # tensor cores sum 8-bit floats in groups, with fewer bits


def test_reductions_follow_pytorchs_switch() -> None:
    a, b = torch.randn(1000, 264, device="cuda").half(), torch.randn(264, 520, device="cuda").half()
    text = "out D, s: f32[m], t: f32[n], u: f32; D = acc; s = sum[n](acc); t = sum[m](acc); u = sum[m, n](acc)"
    fixed, free = evt.gemm(text), evt.gemm(text, deterministic=False)
    first = fixed(a, b)
    for got in (fixed(a, b), fixed(a, b)):
        assert all(map(torch.equal, first, got))
    for got, want in zip(free(a, b), first, strict=True):
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-2)
    torch.use_deterministic_algorithms(True)
    try:
        assert all(map(torch.equal, first, free(a, b)))
    finally:
        torch.use_deterministic_algorithms(False)


def test_extremes_of_nan_and_infinity() -> None:
    a, b = torch.eye(264, device="cuda").half(), torch.randn(264, 200, device="cuda").half()
    b[3, 5], b[7, 9], b[11, 13] = float("nan"), float("inf"), -float("inf")
    text = "out D, hi: f32[n], lo: f32[m], top: f32; D = acc; hi = max[m](acc); lo = min[n](acc); top = max[m, n](acc)"
    for deterministic in (True, False):
        for route in ("evt-3x", "evt-2x"):
            got = evt.gemm(text, deterministic=deterministic, route=route)(a, b)
            want = torch.nan_to_num(b.float(), nan=float("nan"), posinf=float("inf"), neginf=-float("inf"))
            product = a.float() @ want
            assert torch.equal(got.hi.isnan(), product.amax(0).isnan())
            assert torch.equal(got.lo.isnan(), product.amin(1).isnan())
            assert bool(got.top.isnan())
            finite = ~product.amax(0).isnan()
            assert torch.equal(got.hi[finite], product.amax(0)[finite])


@pytest.mark.parametrize("route", ["evt-3x", "evt-2x"])
def test_random_numbers(route) -> None:
    a, b = torch.ones(1001, 8, device="cuda").half(), torch.ones(8, 520, device="cuda").half()
    op = evt.gemm(
        "in p[]; out D, keep: b1[m, n]; k = rand(seed, offset) >= p; keep = k; D = where(k, acc, 0)", route=route
    )
    got = op(a, b, p=0.3, seed=1234, offset=5)
    want = op.reference(a, b, p=0.3, seed=1234, offset=5)
    assert torch.equal(got.keep, want.keep)
    assert torch.equal(got.D, want.D)
    count = 1001 * 520
    kept = evt.unpack_bits(got.keep, 520).double()
    assert abs(float(kept.mean()) - 0.7) < 5 * (0.21 / count) ** 0.5
    assert float(kept.mean(0).std()) < 2 * (0.21 / 1001) ** 0.5
    assert abs(float(torch.corrcoef(torch.stack([kept[:, :-1].flatten(), kept[:, 1:].flatten()]))[0, 1])) < 0.01
    seed = torch.tensor([1234], dtype=torch.int32, device="cuda")
    again = op(a, b, p=0.3, seed=seed, offset=5)
    assert torch.equal(again.keep, got.keep)
    for other_seed, offset in ((1235, 5), (1234, 6), (2**32 - 1, 0)):
        other = evt.unpack_bits(op(a, b, p=0.3, seed=other_seed, offset=offset).keep, 520).double()
        assert abs(float(torch.corrcoef(torch.stack([kept.flatten(), other.flatten()]))[0, 1])) < 0.01


@pytest.mark.parametrize("route", ["evt-3x", "evt-2x"])
def test_one_kernel_takes_a_vector_or_a_single_value(route) -> None:
    a, b = torch.randn(136, 72, device="cuda").half(), torch.randn(72, 200, device="cuda").half()
    op = evt.gemm("in s: f32[m?], t: f32[n?] = 2; D = s*acc*t", route=route)
    s, t = torch.randn(136, device="cuda"), torch.randn(200, device="cuda")
    product = a.float() @ b.float()
    one = torch.tensor([1.5], device="cuda")
    for given, rows, columns in (
        ({"s": s, "t": t}, s[:, None], t),
        ({"s": one, "t": t}, one, t),
        ({"s": s, "t": one}, s[:, None], one),
        ({"s": 1.5, "t": 0.5}, 1.5, 0.5),
        ({"s": 1.5}, 1.5, 2.0),
    ):
        want = rows * product * columns
        assert relative_error(op(a, b, **given), want) < 2 * tolerance(F16)  # of a reference in f32
    assert len(op._caller._kernels) == 1


def test_in_place_with_other_outputs() -> None:
    a, b = torch.randn(264, 72, device="cuda").half(), torch.randn(72, 200, device="cuda").half()
    c = torch.randn(264, 200, device="cuda").half()
    op = evt.gemm("in C: f16[m, n]; out D, s: f32[n]; D = relu(acc + C); s = sum[m](D)")
    want = op(a, b, C=c.clone())
    s = torch.empty(200, device="cuda")
    op(a, b, C=c, out=(c, s))
    assert torch.equal(c, want.D)
    assert torch.equal(s, want.s)
    memory = torch.empty(264 * 200 + 8, device="cuda").half()
    shifted = memory[8:].view(264, 200)
    with pytest.raises(evt.ArgumentError, match="E0609"):  # every element would overwrite one that is still to be read
        op(a, b, C=memory[: 264 * 200].view(264, 200), out=(shifted, s))


def test_a_function_of_the_users() -> None:
    with temporarily():
        row = evt.function(
            "snake(x, a=1)",
            cxx="x + sinf(a * x) * sinf(a * x) / a",
            torch=lambda t, x, a: x + t.sin(a * x) ** 2 / a,
            derivative="1 + sin(2*a*x)",
        )
        assert row.name == "snake"
        a, b = torch.randn(136, 72, device="cuda").half(), torch.randn(72, 200, device="cuda").half()
        op = evt.gemm("out D: f32[m, n], G: f32[m, n]; D = snake(acc, 0.5); G = snake'(acc, 0.5)")
        got, want = op(a, b), op.reference(a, b, float64=True)
        for each, expected in zip(got, want, strict=True):
            assert relative_error(each, expected) < tolerance(F32)


@pytest.mark.parametrize("switch", ["autocast", "tf32", "deterministic", "default device", "inference"])
def test_the_reference_on_cuda_is_that_on_the_cpu(switch):
    """To the bit, for all settings of PyTorch: sums of products of halves are exact in f64."""
    a, b = torch.randn(136, 72, device="cuda").half(), torch.randn(72, 192, device="cuda").half()
    c = torch.randn(136, 192, device="cuda")
    text = "in C: f32[m, n]; out D: f32, E: e4m3, s: f32[m], k: b1; z = gelu(acc) + sin(C); D = z; E = exp(acc)\n"
    op = evt.gemm(text + "s = sum[n](z); k = max[n%32](z) > C")
    wanted = op.reference(a.cpu(), b.cpu(), C=c.cpu())

    def found():
        return op.reference(a, b, C=c)

    if switch == "autocast":
        with torch.autocast("cuda", dtype=torch.bfloat16):
            got = found()
    elif switch == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            got = found()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    elif switch == "deterministic":
        torch.use_deterministic_algorithms(True)
        try:
            got = found()
            assert torch.are_deterministic_algorithms_enabled()
        finally:
            torch.use_deterministic_algorithms(False)
    elif switch == "default device":
        with torch.device("meta"):
            got = found()
    else:
        with torch.inference_mode():
            got = found()
    for left, right in zip(got, wanted, strict=True):
        left = left.cpu()
        assert left.dtype == right.dtype
        assert torch.equal(left.view(torch.uint8), right.view(torch.uint8))
