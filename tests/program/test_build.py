"""The warm-up of a program: the kernels that its later calls take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, BuildError, TargetError
from evt.plan import find_target
from evt.runtime import kernels
from evt.runtime.arguments import bind
from evt.runtime.kernels import plan_kernels
from evt.runtime.plans import kernel_sources

DEFAULTS = "in C: f16[m, n] = 0, alpha = 1, bias: f32[n?] = 0; D = gelu(alpha*acc + bias) + C"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[list[KernelSource]]:
    """Return the sources that are asked for; nothing is compiled."""
    asked: list[list[KernelSource]] = []

    def build(sources: list[KernelSource]) -> list[None]:
        asked.append(sources)
        return [None] * len(sources)

    monkeypatch.setattr(kernels, "build", build)
    return asked


def called(op: evt.Program, target: str, a: torch.Tensor, b: torch.Tensor, **inputs: Any) -> list[KernelSource]:
    """Return the sources of the kernels that a call takes on a target."""
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), find_target(target)))


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
@pytest.mark.parametrize("shape", [(128, 256, 64), (100, 77, 35)])
def test_the_kernels_are_those_of_a_call(built: Any, arch: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c, bias = torch.ones(m, k).half(), torch.ones(k, n).half(), torch.ones(m, n).half(), torch.ones(n)
    shapes = (tuple(a.shape), tuple(b.shape))
    op = evt.gemm(DEFAULTS)
    assert op.build(arch, shapes=shapes) == len(built[0]) > 0
    assert built[0] == called(op, arch, a, b, C=c, bias=bias)
    op.build(arch, shapes=shapes, omit=("C", "alpha"))  # a scalar's default is a value
    assert built[1] == called(op, arch, a, b, bias=bias)
    assert built[1] != built[0]


def test_a_convolution_and_types(built: Any) -> None:
    op = evt.conv2d("D = relu(acc + bias)", padding=1)
    x, w = torch.ones(2, 64, 28, 28), torch.ones(64, 64, 3, 3)
    x, w = (each.bfloat16().contiguous(memory_format=torch.channels_last) for each in (x, w))
    op.build("h100", "bf16", "bf16", shapes=(tuple(x.shape), tuple(w.shape)))
    assert built[0] == called(op, "sm90", x, w, bias=torch.ones(64).bfloat16())


def test_own_kernels_stand_in_without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[KernelSource]] = []

    def build(sources: list[KernelSource]) -> list[None]:
        asked.append(sources)
        if not all(source.alone for source in sources):
            raise BuildError(Diagnostic("E0701", "no nvcc"))
        return [None] * len(sources)

    monkeypatch.setattr(kernels, "build", build)
    shapes = (4096, 1024), (1024, 4096)
    assert evt.gemm("D = relu(acc)").build("sm90", shapes=shapes) == len(asked[-1]) > 0
    assert len(asked) == 1  # the kernels of evt are the default
    op = evt.gemm("out D[n, m]; D = relu(acc)")
    assert op.build("sm90", shapes=shapes) == len(asked[-1]) > 0
    assert len(asked) == 3
    assert not any(source.alone for source in asked[1])
    with pytest.raises(BuildError, match="no nvcc"):
        evt.gemm("D = relu(acc)").build("sm80", shapes=((64, 64), (64, 64)))


@pytest.mark.parametrize(
    ("keywords", "error", "said"),
    [
        ({"omit": "C"}, ArgumentError, "expected the names of inputs"),
        ({"omit": ("Cc",)}, ArgumentError, "the program has no input `Cc` to omit"),
        ({"omit": ("x",)}, ArgumentError, "`x` has no default"),
        ({"shapes": ((1, 2), (3, 4))}, ArgumentError, "E0604"),
        ({"arch": "sm70"}, TargetError, "E0501"),
        ({"a": "f17"}, TargetError, "E0303"),
    ],
)
def test_refusals(built: Any, keywords: dict[str, Any], error: type[Exception], said: str) -> None:
    op = evt.gemm("in C: f16[m, n] = 0, x: f32[n]; D = acc + C + x")
    with pytest.raises(error) as caught:
        op.build(**{"arch": "sm90", "shapes": ((8, 16), (16, 8)), **keywords})
    assert said in str(caught.value) or said in [each.code for each in caught.value.diagnostics]  # type: ignore[attr-defined]
    assert built == []
