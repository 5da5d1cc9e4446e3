"""Work on the operands in the main loops, on a GPU, against the formula in f32 and the product in float64."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.compilation import build
from evt.ir.dtype import BF16, BY_NAME, E4M3, F32, TF32
from evt.reference import evaluate, operand_values
from evt.reference.compare import relative_error, tolerance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources

pytestmark = pytest.mark.gpu

FORMULAS = {
    "scale-bias-relu": "A = relu(s[k]*A + t[k]); D = acc",
    "normalised": "in t: f32[k]; A = relu(s[k]*(A - mu[m])*r[m] + alpha*t); D = gelu(acc + bias)",
    "no-inputs": "A = silu(A) + 1; D = relu(acc + bias) + C",
    "not-zero-at-zero": "A = exp(A)/2; D = acc",
    "undefined-at-zero": "A = 1/A; D = acc",
    "b": "B = relu(B*u[n] + t[k]); D = acc",
    "both": "A = relu(A - mu[m]); B = B*s[k] + alpha; out D, rows: f32[m]; D = acc; rows = sum[n](acc)",
    "shared-scalar": "A = A*alpha; D = acc*alpha + beta*C",
}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
BOUNDS = {
    **{name: tolerance(BY_NAME[name], inside=BY_NAME[name]) for name in ("f16", "bf16")},
    "f32": tolerance(F32, operand=F32, inside=TF32),
}
#: (l or None, m, n, k): beyond whole tiles in every mode; k is no multiple of 8 in one of them.
SIZES = {"aligned": (None, 333, 264, 136), "batched": (3, 136, 200, 72), "odd": (None, 201, 157, 83)}
MAJORS = {"knn": (True, True), "mkn": (False, False), "kkn": (True, False)}  # A along k?, B along n?
CASES = [
    pytest.param(name, dtype, size, "knn", id=f"{name}-{dtype}-{size}")
    for name in FORMULAS
    for dtype in DTYPES
    for size in SIZES
] + [
    pytest.param(name, dtype, "aligned", majors, id=f"{name}-{dtype}-{majors}")
    for name in ("normalised", "both")
    for dtype in DTYPES
    for majors in ("mkn", "kkn")
]
#: (N, C, H, W), (K, R, S), geometry.
PROBLEMS = {
    "3x3": ((2, 64, 14, 14), (64, 3, 3), {"padding": 1}),
    "3x3-valid": ((2, 64, 14, 14), (72, 3, 3), {}),
    "3x3-stride": ((3, 40, 15, 13), (64, 3, 3), {"padding": 1, "stride": 2}),
    "3x3-dilated": ((2, 24, 17, 19), (48, 3, 3), {"padding": 2, "dilation": 2}),
    "asymmetric": ((2, 64, 12, 10), (64, 3, 3), {"padding": ((0, 1), (2, 0))}),
    "5x5-same": ((1, 32, 13, 9), (40, 5, 5), {"padding": "same"}),
    "1x1": ((3, 64, 9, 11), (128, 1, 1), {}),
    "1x1-padded": ((2, 64, 9, 11), (64, 1, 1), {"padding": 1}),
    "C3": ((2, 3, 33, 35), (64, 7, 7), {"padding": 3, "stride": 2}),
}
#: exp is 1 at zero: a mainloop fusion of padding would show.
CONVOLUTIONS = {
    "scale-bias-relu": "A = relu(s[k]*A + t[k]); D = relu(acc + bias)",
    "exp": "A = exp(-abs(s[k]*A)); D = acc + C",
}


def matrix(rows: int, columns: int, along_columns: bool, lead: tuple[int, ...], dtype, generator):
    shape = (*lead, rows, columns) if along_columns else (*lead, columns, rows)
    made = torch.randn(shape, device="cuda", generator=generator).abs() + 0.25
    made = (made * (torch.rand(shape, device="cuda", generator=generator) < 0.5).mul(2).sub(1)).to(dtype)
    return made if along_columns else made.mT


def gemm_call(name: str, dtype: str, size: str, majors: str):
    generator = torch.Generator("cuda").manual_seed(len(name))
    batch, m, n, k = SIZES[size]
    lead = () if batch is None else (batch,)
    element = DTYPES[dtype]
    op = evt.gemm(FORMULAS[name])
    a = matrix(m, k, MAJORS[majors][0], lead, element, generator)
    b = matrix(k, n, MAJORS[majors][1], lead, element, generator) / k**0.5
    extents, inputs = {"m": m, "n": n, "k": k}, {}
    for value in typed_graph(op.request, dtype, dtype).inputs:
        shape = (*(lead if value.batchable else ()), *(extents[mode] for mode in value.modes))
        made = torch.randn(shape, device="cuda", generator=generator).to(getattr(torch, value.dtype.torch))
        inputs[value.name] = made if value.modes else 1.25
    return op, a, b, inputs


def conv_call(problem: str, formula: str, dtype: str):
    generator = torch.Generator("cuda").manual_seed(len(problem))
    (images, channels, *pixels), (filters, *size), keywords = PROBLEMS[problem]
    element = DTYPES[dtype]

    def random(*shape, scale: float = 1.0):
        return (torch.randn(shape, device="cuda", generator=generator) * scale).to(element)

    x = evt.channels_last(random(images, channels, *pixels))
    w = evt.channels_last(random(filters, channels, *size, scale=(channels * size[0] * size[1]) ** -0.5))
    op = evt.conv2d(CONVOLUTIONS[formula], **keywords)
    extents = (images, filters, *op.request.convolution.problem(x.shape, w.shape).results)
    made = {
        "s": lambda: random(channels),
        "t": lambda: random(channels),
        "bias": lambda: random(filters),
        "C": lambda: evt.channels_last(random(*extents)),
    }
    return op, x, w, {name: made[name]() for name in op.inputs}


@pytest.fixture(scope="session", autouse=True)
def kernels(request) -> None:
    """Build the kernels of all selected tests of this file in one go."""
    sources = []
    for item in request.session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if item.function is test_products:
            call = gemm_call(params["name"], params["dtype"], params["size"], params["majors"])
        elif item.function is test_convolutions:
            call = conv_call(params["problem"], params["formula"], params["dtype"])
        else:
            continue
        op, a, b, inputs = call
        sources += kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0))[:1])
    build(list(dict.fromkeys(sources)))


def check(op, a, b, inputs, want, dtype: str) -> list[float]:
    """Twice on the same poisoned buffers, against the expected results, bit for bit the same."""
    fresh = op(a, b, **inputs)
    fresh = [fresh] if len(op.outputs) == 1 else list(fresh)
    buffers = [torch.full_like(each, float("nan")) for each in fresh]
    for _ in range(2):
        op(a, b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **inputs)
        assert all(torch.equal(x, y) for x, y in zip(fresh, buffers, strict=True))
    errors = [relative_error(got, expected) for got, expected in zip(buffers, want, strict=True)]
    assert max(errors) <= BOUNDS[dtype], errors
    return errors


@pytest.mark.parametrize(("name", "dtype", "size", "majors"), CASES)
def test_products(name, dtype, size, majors, record) -> None:
    op, a, b, inputs = gemm_call(name, dtype, size, majors)
    dag = typed_graph(op.request, dtype, dtype)
    assert plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0))[0].work
    left = operand_values(dag, "A", a, inputs)
    right = operand_values(dag, "B", b.mT, inputs).mT
    results = evaluate(dag, left.double() @ right.double(), inputs, dtype=torch.float64)
    errors = check(op, a, b, inputs, [results[output] for output in op.outputs], dtype)
    record((f"work on {name}", "2x", dtype, f"{size} {majors}", " ".join(f"{each:.1e}" for each in errors)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formula", CONVOLUTIONS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_convolutions(problem, formula, dtype, record) -> None:
    op, x, w, inputs = conv_call(problem, formula, dtype)
    s = inputs["s"].float()[:, None, None]
    work = s * x.float()
    work = torch.exp(-work.abs()) if formula == "exp" else torch.relu(work + inputs["t"].float()[:, None, None])
    plain = evt.conv2d(CONVOLUTIONS[formula].partition("; ")[2], **PROBLEMS[problem][2])
    epilogue = {name: value for name, value in inputs.items() if name in plain.inputs}
    want = plain.reference(evt.channels_last(work.to(DTYPES[dtype])), w, float64=True, **epilogue)
    errors = check(op, x, w, inputs, [want], dtype)
    record((f"conv work {formula}", "2x", dtype, problem, f"{errors[0]:.1e}"))


def test_integers_are_exact() -> None:
    a = torch.randint(-128, 128, (200, 96), device="cuda", dtype=torch.int8)
    b = torch.randint(-9, 10, (72, 96), device="cuda", dtype=torch.int8)
    s = torch.randint(-3, 4, (96,), device="cuda").float()
    op = evt.linear("in s: f32[k]; out D: i32; A = A*s + 1; D = acc")
    left = (a.double() * s.double() + 1).round().clamp(-128, 127)
    assert torch.equal(op(a, b, s=s), (left @ b.double().T).int())


def test_an_eight_bit_float() -> None:
    a = torch.randn(136, 160, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(72, 160, device="cuda").to(torch.float8_e4m3fn)
    s = torch.rand(160, device="cuda") + 0.5
    op = evt.linear("in s: f32[k]; A = relu(A*s); D = acc")
    left = torch.relu(a.float() * s).clamp(max=448).to(torch.float8_e4m3fn)
    assert relative_error(op(a, b, s=s), left.double() @ b.double().T) <= tolerance(BF16, operand=E4M3)


def test_a_scalar_on_the_device_is_read_by_the_kernel() -> None:
    op = evt.gemm("A = A*alpha; D = acc")
    a = torch.randn(264, 136, device="cuda", dtype=torch.float16) / 3
    b = torch.randn(136, 200, device="cuda", dtype=torch.float16)
    alpha = torch.tensor([0.5], device="cuda")
    d = op(a, b, alpha=alpha)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(a, b, alpha=alpha, out=d)
    alpha.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert relative_error(d, 2.0 * (a.double() @ b.double())) <= BOUNDS["f16"]
