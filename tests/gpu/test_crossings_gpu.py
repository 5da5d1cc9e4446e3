"""Features of the language together, in one kernel each: both families, against the float64 oracle."""

from __future__ import annotations

import pytest
import torch

from evt.compilation import KernelSource
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.crossings import CASES, bits, poisoned, program, tensors

pytestmark = pytest.mark.gpu


def sources_of(name: str, family: str) -> list[KernelSource]:
    op = program(name, family)
    a, b, inputs, held = tensors(name, op, "cuda")
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, held), device_target(0))[:1])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_crossings, sources_of)


@pytest.mark.parametrize("family", ["3x", "2x"])
@pytest.mark.parametrize("name", CASES)
def test_crossings(name, family, record, refused) -> None:
    for source in sources_of(name, family):
        assert source not in refused, refused[source]
    op, case = program(name, family), CASES[name]
    a, b, inputs, held = tensors(name, op, "cuda")
    want = op.reference(a, b, float64=True, **inputs, **held)._asdict()
    stored = op.reference(a, b, **inputs, **held)._asdict()
    made = {key: held[key].clone() if key in held else poisoned(each) for key, each in stored.items()}
    types = {each.name: each.dtype for each in typed_graph(op.request, case.dtype, case.dtype).outputs}
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=made, **inputs)
        errors = []
        for key, got in made.items():
            if types[key].is_float:
                inside = types[key] if types[key].bits == 16 else None
                errors.append(distance(got, want[key], types[key], inside=inside))
            else:
                assert torch.equal(bits(got), bits(stored[key])), key
        assert max(errors) <= 1, dict(zip(made, errors, strict=False))
        first = first or {key: each.clone() for key, each in made.items()}
        assert all(torch.equal(bits(made[key]), bits(first[key])) for key in made)
    record((name, family, case.dtype, "", " ".join(f"{each:.2f}" for each in errors)))
