"""Gathered inputs and scattered outputs on a GPU, by every family, against the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.dag import index_inputs
from evt.ir.dtype import BY_NAME
from evt.ir.node import index_of
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu

LEAST, MOST = -(2**31), 2**31 - 1


@dataclass(frozen=True)
class Case:
    """A program, the type of A and B, and the sizes (l or None, m, n, k); ``rows``: extents that indices address."""

    text: str
    dtype: str
    sizes: tuple[int | None, int, int, int] = (None, 333, 200, 144)
    rows: int = 517
    operation: str = "gemm"


CASES = {
    "rows": Case("D = acc + x[index[m], n]", "bf16"),
    "combine": Case("D[index[m], n] = w[m]*acc", "bf16", (None, 333, 157, 144), operation="linear"),
    "vectors": Case("D = acc*s[index[m]] + b[along[n]]", "f16", rows=90),
    "both": Case(
        "in x: f32[p[m], q[n]]\nout D: f32[p[m], q[n]]\nD = acc + x", "f32", (None, 201, 156, 84), operation="linear"
    ),
    "batched": Case("D[index[l, m], n] = acc + x[l, p[m], n]*s[p[m]]", "f16", (3, 136, 192, 80)),
    "strided": Case("in x: f16[n, index[m]]\nout D, E: bf16[n, index[m]]\nD = acc + x; E = 2*D", "f16"),
    "convolution": Case("D[index[m], n] = acc + x[index[m], n]", "f16", operation="conv2d"),
    "convolution-both": Case(
        "in x: f32[p[m], q[n]], s: f32[p[m]]\nout D, E: f16[p[m], q[n]]\nE = acc*s + x\nD = relu(E)",
        "bf16",
        operation="conv2d",
    ),
}
#: Which families have them: the halo kernel is for convolutions.
FAMILIES = [
    (name, family) for name, case in CASES.items() for family in ("3x", "2x", *["halo"] * (case.operation == "conv2d"))
]


def program(name: str, family: str) -> evt.Program:
    case = CASES[name]
    kind = f"conv-{'halo-3x' if family == 'halo' else f'evt-{family}'}"
    route = kind if case.operation == "conv2d" else f"evt-{family}"
    op = getattr(evt, case.operation)(case.text, route=route)
    return general_config(op, case.dtype, case.dtype) if family == "3x" and case.operation != "conv2d" else op


def tensors(name: str, op: evt.Program):
    """Return A, B, the inputs, and for each scattered output NaN where the call stores, numbers elsewhere."""
    case = CASES[name]
    generator = torch.Generator("cuda").manual_seed(len(name))
    kind = getattr(torch, BY_NAME[case.dtype].torch)

    def random(shape, dtype, scale: float = 1.0):
        made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
        return made.to(dtype)

    batch, m, n, k = case.sizes
    lead = () if batch is None else (batch,)
    if case.operation == "conv2d":
        a, b = random((2, 64, 13, 11), kind), random((96, 64, 3, 3), kind, 1 / 24)
        a, b = evt.channels_last(a), evt.channels_last(b)
        m, n = 2 * 11 * 9, 96
    else:
        a, b = random((*lead, m, k), kind, k**-0.25), random((n, k), kind, k**-0.25)
        b = b if case.operation == "linear" else b.T.contiguous()
    typed = typed_graph(op.request, case.dtype, case.dtype)
    extents = {"m": m, "n": n, "l": batch or 1}

    def shape_of(modes):
        return [case.rows if index_of(mode) else extents[mode] for mode in modes]

    scattered = {index_of(mode) for output in typed.outputs for mode in output.modes} - {""}
    inputs = {}
    for value in typed.inputs:
        shape = shape_of(value.modes)
        if value.name not in index_inputs(typed):
            inputs[value.name] = random(shape, getattr(torch, value.dtype.torch))
            continue
        if value.name in scattered:  # each place at most once
            order = torch.rand((*shape[:-1], case.rows), device="cuda", generator=generator).argsort(-1)
            at = order[..., : shape[-1]].to(torch.int32)
        else:
            at = torch.randint(0, case.rows, shape, device="cuda", generator=generator, dtype=torch.int32)
        at[..., :4] = torch.tensor([-1, case.rows, LEAST, MOST], device="cuda")
        image = case.operation == "conv2d" and value.modes == ("m",)
        inputs[value.name] = at.reshape(2, 11, 9) if image else at
    buffers = {
        output.name: random([*lead, *shape_of(output.modes)], getattr(torch, output.dtype.torch))
        for output in typed.outputs
        if output.is_indexed
    }
    if buffers:
        unwritten = {name: torch.full_like(held, float("nan")) for name, held in buffers.items()}
        marked = dict(zip(op.outputs, every(op.reference(a, b, **inputs, **unwritten)), strict=True))
        buffers = {name: torch.where(marked[name].isnan(), held, float("nan")) for name, held in buffers.items()}
    return a, b, inputs, buffers


def sources_of(name: str, family: str) -> list[KernelSource]:
    op = program(name, family)
    a, b, inputs, buffers = tensors(name, op)
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, buffers), device_target(0))[:1])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_indexed, sources_of)


def every(results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.mark.parametrize(("name", "family"), FAMILIES)
def test_indexed(name, family, record, refused) -> None:
    for source in sources_of(name, family):
        assert source not in refused, refused[source]
    op, dtype = program(name, family), CASES[name].dtype
    a, b, inputs, buffers = tensors(name, op)
    want = every(op.reference(a, b, float64=True, **inputs, **buffers))
    outputs = typed_graph(op.request, dtype, dtype).outputs
    made = [
        buffers[output.name].clone()
        if output.is_indexed
        else torch.full_like(right, float("nan"), dtype=getattr(torch, output.dtype.torch))
        for output, right in zip(outputs, want, strict=True)
    ]
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=tuple(made) if len(made) > 1 else made[0], **inputs)
        errors = []
        for got, right, output in zip(made, want, outputs, strict=True):
            if output.is_indexed:
                kept = ~buffers[output.name].isnan()
                assert bool(kept.any())
                assert torch.equal(got[kept], buffers[output.name][kept])
                got, right = got[~kept], right[~kept]
            errors.append(distance(got, right, output.dtype, operand=BY_NAME[dtype] if dtype == "f32" else None))
        assert max(errors) <= 1, errors
        first = first or [each.clone() for each in made]
        assert all(map(torch.equal, made, first))
    record((name, family, dtype, "", " ".join(f"{each:.2f}" for each in errors)))


@pytest.mark.parametrize("family", ["3x", "2x"])
def test_captured(family, refused) -> None:
    """The kernel reads the index: a replay uses its values at that time."""
    op = program("combine", family)
    a, b, inputs, buffers = tensors("combine", op)
    op(a, b, **inputs, out=buffers["D"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(a, b, **inputs, out=buffers["D"])
    inputs["index"].copy_(inputs["index"].flip(0))
    buffers["D"].zero_()
    graph.replay()
    want = op.reference(a, b, float64=True, **inputs, D=torch.zeros_like(buffers["D"]))
    assert distance(buffers["D"], want, BY_NAME["bf16"]) <= 1


@pytest.mark.parametrize("family", ["3x", "2x"])
def test_duplicates_store_elements_of_their_rows(family, refused) -> None:
    op = program("combine", family)
    a, b, inputs, buffers = tensors("combine", op)
    rows, place = torch.zeros_like(buffers["D"]), 5
    inputs["index"].copy_(torch.arange(len(inputs["index"])))
    op(a, b, **inputs, out=rows)
    buffers["D"].zero_()
    inputs["index"].fill_(place)
    op(a, b, **inputs, out=buffers["D"])
    assert bool((buffers["D"][place] == rows).any(0).all())
    buffers["D"][place] = 0
    assert not buffers["D"].any()
