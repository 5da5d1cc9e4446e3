"""Programs without D, and outputs of rows, columns or batches alone, on a GPU, in both families."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected

pytestmark = pytest.mark.gpu

VECTORS = """\
in x: f32[m], v: f16[l], b: f32[n]
out D: f16[{layout}], s: f32[m], t: f16[n], a: f32, r: f32[l], both: bf16[l, m], wide: f32[n]
D  = relu(acc + b)*x
s  = sqrt(abs(x))
t  = b*2
a  = alpha*2
r  = v + 1
both = x*v
wide = b*v
"""
PIXELS = """\
in x: f32[m], b: f32[n]
out s: f32[m], t: f16[n], a: f32, E: f16[m, n]
E = acc*b; s = abs(x); t = b*2; a = alpha*2
"""
PROGRAMS = {
    "vectors": (evt.gemm, VECTORS.format(layout="m, n")),
    "transposed": (evt.gemm, VECTORS.format(layout="n, m")),
    "statistics": (evt.gemm, "out amax: f32, rows: f32[m]; amax = max[m, n](abs(acc)); rows = sum[n](acc*acc)"),
    "matrix": (evt.gemm, "out c: f32[n], E: bf16[m, n]; E = relu(acc) + C; c = sum[m](acc)"),
    "pixels": (evt.conv2d, PIXELS),
}
#: (batch, m, n, k): no multiples of a tile, and no multiples of an access where 2.x alone has to do.
SIZES = {"3x": (3, 200, 136, 72), "2x": (3, 197, 133, 72)}


def program(name: str, family: str) -> evt.Program:
    make, text = PROGRAMS[name]
    return make(text, route=f"{'conv-' if make is evt.conv2d else ''}evt-{family}")


def tensors(name: str, family: str):
    op, generator = program(name, family), torch.Generator("cuda").manual_seed(7)

    def random(*shape: int, dtype=torch.float16):
        return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float32).to(dtype)

    batch, m, n, k = SIZES[family]
    if name == "pixels":
        a, b = random(2, 24, 11, 9), random(40, 24, 3, 3) / 15
        a, b = (each.to(memory_format=torch.channels_last) for each in (a, b))
        return op, a, b, {"x": random(2, 9, 7, dtype=torch.float32), "b": random(40, dtype=torch.float32), "alpha": 1.5}
    if name == "transposed" and family == "2x":
        m = 200  # contiguous along m
    a, b = random(batch, m, k), random(batch, k, n + -n % 8)[..., :n]
    inputs = {
        "x": random(m, dtype=torch.float32),
        "v": random(batch),
        "b": random(n, dtype=torch.float32),
        "alpha": 1.5,
        "C": random(batch, m, n, dtype=torch.bfloat16),
    }
    return op, a, b, {each: inputs[each] for each in op.inputs}


def sources_of(name: str, family: str) -> list[KernelSource]:
    op, a, b, inputs = tensors(name, family)
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0))[:1])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_outputs, sources_of)


@pytest.mark.parametrize("family", ["3x", "2x"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs(name: str, family: str, refused) -> None:
    for source in sources_of(name, family):
        assert source not in refused, refused[source]
    op, a, b, inputs = tensors(name, family)
    buffers = [torch.full_like(each, float("nan")) for each in op(a, b, **inputs)]
    want = op.reference(a, b, float64=True, **inputs)
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=tuple(buffers), **inputs)
        for got, right, output in zip(buffers, want, typed_graph(op.request, "f16").outputs, strict=True):
            inside = output.dtype if output.dtype.bits == 16 else None
            assert got.shape == right.shape, output.name
            assert distance(got, right, output.dtype, inside=inside) <= 1.0, output.name
        first = first or [each.clone() for each in buffers]
        assert all(map(torch.equal, buffers, first))
