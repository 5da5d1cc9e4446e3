"""Exported operators of PyTorch on the CPU, with stubs for kernels: their arguments, choices, launches and results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import evt
from evt.cli.examples import example_of
from evt.export import Layouts, Named, torch_extension
from evt.export.kernels import Kernel, kernels_of
from evt.plan import TARGETS
from evt.runtime.arguments import bind
from tests.cxx.cute import GXX, include_flags
from tests.cxx.export_stubs import Stubbed, stubbed

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]

NAME = "stubbed_ops"
PROGRAMS = {
    "plain": evt.gemm("D = acc"),
    "source": evt.gemm("in alpha: f32 = 2, C: f16[m, n] = 0, bias: f16[n]; D = alpha*acc + C + bias"),
    "combination": evt.gemm("D = relu(alpha*acc + beta*C)"),
    "linear": evt.linear("in s: f32[m?], flag: bool; D = where(flag, gelu(s*acc + bias), 0.0) + residual"),
    "transposed": evt.gemm("gemm(A: f16[k, m], B: f16[n, k]); out D: f32[n, m]; D = acc*scale[m]"),
    "statistics": evt.gemm(
        "out D, r: f32[m], amax: f32; D = acc; r = sum[n](acc*acc)/size(n); amax = max[m, n](abs(acc))"
    ),
    "pairs": evt.gemm("in mask: b1[m, n]; out D: f16[m, n/2]; D = silu(even(acc))*odd(where(mask, acc, 0.0))"),
    "gather": evt.gemm("in place: i32[m]; D = acc + table[place[m], n]"),
    "dropout": evt.gemm(
        "in seed: i64 = 9223372036854775807, offset: i64 = -9223372036854775808; D = dropout(acc, 0.5, seed, offset)"
    ),
    "batches": evt.gemm("in s: f32[l], v: f32[l, n]; D = acc*s + v"),
    "conv": evt.conv2d("D = relu(acc + bias) + residual", padding=1, stride=(2, 1)),
    "same": evt.conv1d("D = acc", padding="same", dilation=3),
    "volume": evt.conv3d("D = acc + residual", padding=((0, 1), (1, 1), (2, 0))),
    "dgrad": evt.conv2d_dgrad("D = alpha*acc", stride=2, padding=1, output_padding=1),
    "gated": evt.conv2d_dgrad("D = acc*gate", padding=1, dilation=(1, 2)),
    "wgrad": evt.conv2d_wgrad("D = acc", kernel_size=3, padding=1),
}
LAYOUTS = {"combination": Layouts({"B": ("n", "k")}, ("B", "C"), (16, 4))}


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for name, program in PROGRAMS.items():
        named = Named(name, program.request, layouts=LAYOUTS.get(name, Layouts()))
        made = kernels_of(named, [TARGETS["sm80"], TARGETS["sm90"]], f"{NAME}_{name}")
        found |= {each.emitted.name: each for each in made}
    return found


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Stubbed:
    named = [Named(name, each.request, layouts=LAYOUTS.get(name, Layouts())) for name, each in PROGRAMS.items()]
    files = torch_extension(NAME, named, [TARGETS["sm80"], TARGETS["sm90"]], example_of)
    return stubbed(files, tmp_path_factory.mktemp("stubbed"), NAME)


@pytest.fixture(autouse=True)
def _fresh(stubs: Stubbed) -> None:
    stubs.set("capability", 80)
    stubs.set("code", 0)
    stubs.set("workspace", 1000, ctypes.c_int64)


def f16(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float16)


def f32(*shape: int) -> torch.Tensor:
    return torch.empty(*shape)


def last(tensor: torch.Tensor) -> torch.Tensor:
    return evt.channels_last(tensor)


def i32(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


CALLS: dict[str, tuple[str, Callable[[], tuple[Any, Any, dict[str, Any]]]]] = {
    "plain": ("plain", lambda: (f16(33, 40), f16(40, 24), {})),
    "pitched": ("plain", lambda: (f16(33, 64)[:, 8:48], f16(40, 32)[:, :24], {})),
    "one row": ("plain", lambda: (f16(1, 40), f16(40, 24), {})),
    "batched": ("plain", lambda: (f16(3, 33, 40), f16(3, 40, 24), {})),
    "doubly batched": ("plain", lambda: (f16(2, 3, 33, 40), f16(2, 3, 40, 24), {})),
    "source": ("source", lambda: (f16(33, 40), f16(40, 24), {"C": f16(33, 24), "bias": f16(24), "alpha": 0.5})),
    "without source": ("source", lambda: (f16(33, 40), f16(40, 24), {"bias": f16(24)})),
    "tensor numbers": (
        "combination",
        lambda: (f16(33, 40), f16(40, 24), {"C": f16(33, 24), "alpha": f32(1), "beta": f32(())}),
    ),
    "shared": (
        "combination",
        lambda: (f16(3, 33, 40), f16(40, 24), {"C": f16(33, 24), "alpha": 1.0, "beta": 2.0}),
    ),
    "k contiguous": (
        "combination",
        lambda: (f16(33, 40), f16(24, 40).t(), {"C": f16(33, 24), "alpha": 1.0, "beta": 2.0}),
    ),
    "4 bytes": (
        "combination",
        lambda: (f16(33, 42), f16(42, 26), {"C": f16(33, 26), "alpha": 1.0, "beta": 2.0}),
    ),
    "linear": (
        "linear",
        lambda: (
            f16(3, 5, 40),
            f16(24, 40),
            {"s": f32(3, 5), "flag": True, "bias": f16(24), "residual": f16(3, 5, 24)},
        ),
    ),
    "flat linear": (
        "linear",
        lambda: (f16(3, 5, 40), f16(24, 40), {"s": f32(1), "flag": False, "bias": f16(24), "residual": f16(15, 24)}),
    ),
    "one vector": (
        "linear",
        lambda: (f16(40), f16(24, 40), {"s": f32(()), "flag": False, "bias": f16(24), "residual": f16(24)}),
    ),
    "transposed": ("transposed", lambda: (f16(40, 32), f16(24, 40), {"scale": f32(32)})),
    "statistics": ("statistics", lambda: (f16(33, 40), f16(40, 24), {})),
    "pairs": (
        "pairs",
        lambda: (f16(33, 40), f16(40, 48), {"mask": torch.zeros(33, 6, dtype=torch.uint8)}),
    ),
    "gather": ("gather", lambda: (f16(33, 40), f16(40, 24), {"place": i32(33), "table": f16(7, 24)})),
    "dropout": ("dropout", lambda: (f16(33, 40), f16(40, 24), {"seed": 2**62 + 1})),
    "default seed": ("dropout", lambda: (f16(33, 40), f16(40, 24), {})),
    "batches": ("batches", lambda: (f16(3, 33, 40), f16(3, 40, 24), {"s": f32(3), "v": f32(3, 24)})),
    "conv": (
        "conv",
        lambda: (
            last(f16(2, 16, 9, 7)),
            last(f16(24, 16, 3, 3)),
            {"bias": f16(24), "residual": last(f16(2, 24, 5, 7))},
        ),
    ),
    "contiguous conv": (
        "conv",
        lambda: (f16(2, 16, 9, 7), f16(24, 16, 3, 2), {"bias": f16(24), "residual": f16(2, 24, 5, 8)}),
    ),
    "one image": (
        "conv",
        lambda: (
            last(f16(1, 16, 9, 1)),
            last(f16(24, 16, 1, 1)),
            {"bias": f16(24), "residual": last(f16(1, 24, 6, 3))},
        ),
    ),
    "part of a filter": (
        "conv",
        lambda: (
            last(f16(2, 16, 9, 7)),
            last(f16(24, 40, 3, 1))[:, 8:24],
            {"bias": f16(24), "residual": last(f16(2, 24, 5, 9))},
        ),
    ),
    "some taps of a filter": (
        "conv",
        lambda: (
            last(f16(2, 16, 9, 7)),
            last(f16(24, 16, 5, 4))[:, :, 1:4, :3],
            {"bias": f16(24), "residual": last(f16(2, 24, 5, 7))},
        ),
    ),
    "part of a gradient": ("wgrad", lambda: (last(f16(2, 40, 9, 1))[:, 8:32], last(f16(2, 16, 9, 1)), {})),
    "some pixels of a gradient": (
        "wgrad",
        lambda: (last(f16(2, 24, 11, 9))[:, :, 1:10, 1:8], last(f16(2, 16, 9, 7)), {}),
    ),
    "same": ("same", lambda: (last(f16(2, 16, 31)), last(f16(24, 16, 4)), {})),
    "volume": (
        "volume",
        lambda: (last(f16(2, 16, 5, 6, 7)), last(f16(24, 16, 3, 3, 3)), {"residual": last(f16(2, 24, 4, 6, 7))}),
    ),
    "dgrad": ("dgrad", lambda: (last(f16(2, 24, 5, 4)), last(f16(24, 16, 3, 3)), {"alpha": 2.0})),
    "gated": ("gated", lambda: (last(f16(2, 24, 5, 4)), last(f16(24, 16, 3, 3)), {"gate": last(f16(2, 16, 5, 6))})),
    "wgrad": ("wgrad", lambda: (last(f16(2, 24, 9, 7)), last(f16(2, 16, 9, 7)), {})),
}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("case", CALLS)
def test_kernels_get_what_evt_gives_them(
    stubs: Stubbed, kernels: dict[str, Kernel], case: str, capability: int
) -> None:
    name, made = CALLS[case]
    a, b, inputs = made()
    stubs.set("capability", capability)
    results = getattr(torch.ops, NAME).__getattr__(name)(a, b, **inputs)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    program = PROGRAMS[name]
    bound = bind(program.request, a, b, inputs, {})
    kernel = kernels[stubs.kernel]
    assert kernel.target.number == capability
    found, given = stubs.arguments, {"A": a, "B": b, **inputs}
    assert list(found) == [each.name for each in kernel.plan.fields]
    for field in kernel.plan.fields:
        value = found[field.name]
        if field.role == "workspace":
            assert value % 16 == 0
            assert value != 0
        elif field.kind == "pointer":
            tensor = given.get(field.tensor)
            if isinstance(tensor, torch.Tensor) and field.tensor not in bound.copied:
                assert value == tensor.data_ptr(), field
            else:
                absent = field.tensor in program.inputs and field.tensor not in bound.copied
                assert (value == 0) == absent, field  # a number; else a copy or a new output
        elif field.kind == "size":
            known = bound.tensors.get(field.tensor)
            wanted = known.size(field.role) if known else 0 if field.tensor else bound.sizes.get(field.role, 0)
            one_batch = field.role == "l" and field.tensor and bound.sizes["l"] == 1  # any stride will do
            assert value == (0 if one_batch else wanted), field
        elif not isinstance(given.get(field.tensor), torch.Tensor):
            default = program.request.dag.input[field.tensor].default
            assert value == given.get(field.tensor, default), field
    expected = program.reference(*(torch.zeros_like(each) for each in (a, b)), **inputs)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for result, other in zip(results, expected, strict=True):
        assert (result.shape, result.dtype, result.stride()) == (other.shape, other.dtype, other.stride())
    meta = [each.to("meta") if isinstance(each, torch.Tensor) else each for each in inputs.values()]
    shaped = getattr(torch.ops, NAME).__getattr__(name)(
        a.to("meta"), b.to("meta"), **dict(zip(inputs, meta, strict=True))
    )
    shaped = [shaped] if isinstance(shaped, torch.Tensor) else list(shaped)
    assert [(each.shape, each.stride()) for each in shaped] == [(each.shape, each.stride()) for each in results]


REFUSED: dict[str, tuple[str, Callable[[], tuple[Any, Any, dict[str, Any]]], str]] = {
    "type": (
        "plain",
        lambda: (f32(8, 8), f16(8, 8), {}),
        r"`A` is torch.float32; expected torch.float16 \(evt E0603\)",
    ),
    "k": ("plain", lambda: (f16(8, 16), f16(8, 8), {}), "k is 16 in A and 8 in B"),
    "dimensions": ("plain", lambda: (f16(8), f16(8, 8), {}), "expected at least two dimensions"),
    "batches": ("plain", lambda: (f16(2, 8, 8), f16(3, 8, 8), {}), "do not broadcast together"),
    "alignment": ("plain", lambda: (f16(8, 9), f16(9, 8), {}), "plain_sm80: `A` has to be aligned to 16 bytes"),
    "order": ("plain", lambda: (f16(8, 8).t(), f16(8, 8), {}), "k has to be contiguous in `A`"),
    "a shared B": ("plain", lambda: (f16(2, 8, 8), f16(8, 8), {}), "all batches share `B`"),
    "expanded": ("plain", lambda: (f16(1, 8).expand(8, 8), f16(8, 8), {}), "`A` is expanded"),
    "no single stride": (
        "plain",
        lambda: (f16(3, 2, 8, 8).transpose(0, 1), f16(2, 3, 8, 8), {}),
        r"the leading dimensions of `A` have no single stride; pass A.contiguous\(\)",
    ),
    "shape": ("source", lambda: (f16(8, 8), f16(8, 8), {"bias": f16(9)}), r"`bias` has shape \[9\]; expected \[8\]"),
    "a scalar": (
        "combination",
        lambda: (f16(8, 8), f16(8, 8), {"C": f16(8, 8), "alpha": f32(2), "beta": f32(1)}),
        "and the program declares a scalar",
    ),
    "blocks": (
        "pairs",
        lambda: (f16(8, 8), f16(8, 7), {"mask": torch.zeros(8, 1, dtype=torch.uint8)}),
        "pairs of columns",
    ),
    "channels": (
        "conv",
        lambda: (f16(1, 8, 4, 4), f16(8, 16, 3, 3), {"bias": f16(8), "residual": f16(8)}),
        "A has 8 channels",
    ),
    "few channels": (
        "conv",
        lambda: (f16(1, 3, 8, 8), f16(8, 3, 3, 3), {"bias": f16(8), "residual": f16(1, 8, 4, 8)}),
        "its channels and strides multiples of 8",
    ),
    "large filter": ("same", lambda: (f16(1, 8, 99), f16(8, 8, 33), {}), "more than 32 taps"),
    "residual": (
        "conv",
        lambda: (f16(1, 8, 8, 8), f16(8, 8, 3, 3), {"bias": f16(8), "residual": f16(1, 8, 9, 8)}),
        "`residual` has shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(stubs: Stubbed, case: str) -> None:
    name, made, message = REFUSED[case]
    a, b, inputs = made()
    with pytest.raises(RuntimeError, match=message) as error:
        getattr(torch.ops, NAME).__getattr__(name)(a, b, **inputs)
    assert str(error.value).startswith(f"{NAME}::{name}: ")


def test_a_gpu_without_a_kernel_and_none_at_all(stubs: Stubbed) -> None:
    stubs.set("capability", 75)
    message = r"on a GPU of capability 7\.5\n  stubbed_ops_plain_sm90: it is for another GPU"
    with pytest.raises(RuntimeError, match=message):
        torch.ops.stubbed_ops.plain(f16(8, 8), f16(8, 8))
    stubs.set("capability", 0)
    with pytest.raises(RuntimeError, match=r"there is no usable CUDA device: the driver is too old \(evt E0801\)"):
        torch.ops.stubbed_ops.plain(f16(8, 8), f16(8, 8))


def test_a_failed_launch_says_why(stubs: Stubbed) -> None:
    stubs.set("code", 5 << 16)
    with pytest.raises(
        RuntimeError, match=r"stubbed_ops::plain: the stub's words \(evt E0805, kernel stubbed_ops_plain_sm80"
    ):
        torch.ops.stubbed_ops.plain(f16(8, 8), f16(8, 8))


def test_empty_products(stubs: Stubbed) -> None:
    assert torch.ops.stubbed_ops.plain(f16(0, 8), f16(8, 8)).shape == (0, 8)
    with pytest.raises(RuntimeError, match="the product is empty, and its results are not"):
        torch.ops.stubbed_ops.plain(f16(8, 0), f16(0, 8))


def test_sizes_may_be_symbols(stubs: Stubbed) -> None:
    @torch.compile(fullgraph=True, dynamic=True, backend="eager")
    def called(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.ops.stubbed_ops.plain(a, b).shape

    assert called(f16(8, 16), f16(16, 24)) == (8, 24)
    assert called(f16(24, 8), f16(8, 48)) == (24, 48)


def test_gradients_are_refused(stubs: Stubbed) -> None:
    result = torch.ops.stubbed_ops.plain(f16(8, 8).requires_grad_(), f16(8, 8))
    with pytest.raises(RuntimeError, match="derivative for stubbed_ops::plain is not implemented"):
        result.sum().backward()


def test_capabilities(kernels: dict[str, Kernel]) -> None:
    """A kernel runs on later GPUs of its generation that have as much shared memory; one of sm_90a nowhere else."""
    small, hopper = kernels[f"{NAME}_plain_sm80"], kernels[f"{NAME}_plain_sm90"]
    assert small.capabilities == (80, 86, 89)
    large = replace(small, plan=replace(small.plan, shared_memory=120 * 1024))
    assert large.capabilities == (80,)
    assert hopper.capabilities == (90,)
