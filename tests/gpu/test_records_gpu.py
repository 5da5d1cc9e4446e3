"""The samples on a GPU, in both families, against the float64 oracle and against their formulas written by hand.

One line a sample closes the run: record, family, types and errors, where 1 is the bound. ``EVT_RECORDS_TABLE`` names a
file that the lines are appended to.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.one_config import general_config
from tests.support.record_calls import BATCHED, distances, make_call, variants
from tests.support.records import IN_PLACE, MEANINGS, RECORD_OF, SAMPLES

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
#: Multiples of TMA's 16 bytes, and not of a tile. Pairs of blocks of 32 columns need a multiple of 64.
SIZES = {"l": 3, "m": 328, "n": 272, "k": 144}
WIDE = {**SIZES, "n": 320}


def load(name: str, family: str) -> evt.Program:
    op = evt.load(SAMPLES / f"{name}.evt", route=f"evt-{family}")
    return general_config(op) if family == "3x" else op


def cases():
    """Every way to call each sample; without its optional tensors, which is another kernel, in 3.x only."""
    for name in MEANINGS:
        for family in ("3x", "2x"):
            for variant in variants(evt.load(SAMPLES / f"{name}.evt")):
                if variant != "absent" or family == "3x":
                    yield pytest.param(name, family, variant, id=f"{name}-{family}-{variant}")


def call_of(name: str, op: evt.Program, variant: str = "given"):
    divided = any("/" in mode for value in typed_graph(op.request).types for mode in value.modes)
    return make_call(name, op, WIDE if divided else SIZES, variant, DEVICE)


def sources_of(name: str, family: str, variant: str) -> list[KernelSource]:
    op = load(name, family)
    call = call_of(name, op, variant)
    return kernel_sources(
        plan_kernels(op.request, bind(op.request, call.a, call.b, call.inputs, call.buffers), device_target(0))[:1]
    )


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_sample, sources_of)


def every(results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes: torch.equal does not compare all types."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a buffer like an output, of NaN, or of a pattern that is unlikely."""
    return torch.full_like(tensor, float("nan") if tensor.dtype.is_floating_point else 0x55)


def report(name: str, family: str, variant: str, op: evt.Program, errors: list[float], record) -> None:
    """Add the sample's line to the closing table, the output and the file."""
    typed = typed_graph(op.request)
    types = f"{typed.operands[0].dtype}->{','.join(str(output.dtype) for output in typed.outputs)}"
    shown = " ".join(f"{error:.2f}" for error in errors)
    line = f"{RECORD_OF[name]} {family} {types} {shown}"
    print(line)
    record((RECORD_OF[name], family, "", f"{types} {variant}", shown))
    if path := os.environ.get("EVT_RECORDS_TABLE"):
        with Path(path).open("a") as table:
            table.write(f"{line} {name} {variant}\n")


@pytest.mark.parametrize(("name", "family", "variant"), list(cases()))
def test_sample(name, family, variant, record, refused) -> None:
    for source in sources_of(name, family, variant):
        assert source not in refused, refused[source]
    op = load(name, family)
    call = call_of(name, op, variant)
    oracle = every(op.reference(call.a, call.b, float64=True, **call.inputs, **call.buffers))
    fresh = every(op(call.a, call.b, **call.inputs, **call.buffers))
    buffers = [poisoned(each) for each in fresh]
    first: list[torch.Tensor] = []
    for _ in range(2):  # twice on the same buffers
        op(call.a, call.b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **call.inputs)
        errors = distances(name, op, buffers, oracle)
        by_hand = distances(name, op, buffers, call.wanted)
        assert max(errors) <= 1, ("oracle", errors)
        assert max(by_hand) <= 1, ("by hand", by_hand)
        first = first or [each.clone() for each in buffers]
        for buffer, earlier, single in zip(buffers, first, fresh, strict=True):
            assert torch.equal(memory(buffer), memory(earlier))
            assert torch.equal(memory(buffer), memory(single))
    report(name, family, variant, op, [max(pair) for pair in zip(errors, by_hand, strict=True)], record)


@pytest.mark.parametrize("family", ["3x", "2x"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name, family, refused) -> None:
    """The buffer of an output is an input, as the record has it."""
    op = load(name, family)
    call = call_of(name, op)
    output, read = IN_PLACE[name]
    fresh = dict(zip(op.outputs, every(op(call.a, call.b, **call.inputs)), strict=True))
    op(call.a, call.b, **call.inputs, **{output: call.inputs[read]})
    assert torch.equal(call.inputs[read], fresh[output])


@pytest.mark.parametrize("family", ["3x", "2x"])
def test_packed_pairs(family, refused) -> None:
    """quack-dgated-moe: the pair (x, y) lies in neighbouring columns of one tensor."""
    name = "gated_backward_moe"
    op = load(name, family)
    call = call_of(name, op)
    packed = torch.stack([call.inputs["x"], call.inputs["y"]], -1).flatten(1)
    inputs = {**call.inputs, "x": packed[:, 0::2], "y": packed[:, 1::2]}
    assert max(distances(name, op, every(op(call.a, call.b, **inputs)), call.wanted)) <= 1


def test_only_one_sample_is_batched() -> None:
    inputs = {name: load(name, "3x").request.dag.inputs for name in MEANINGS}
    assert {name for name, found in inputs.items() if any("l" in value.modes for value in found)} == BATCHED
