"""Every type to every type in a kernel, by stores and by casts: all bits of the narrow types, edges of the others.

Eight kernels: sources share one where its inputs and outputs have room.
"""

from __future__ import annotations

import pytest
import torch

import evt
from evt.ir.dtype import BY_NAME
from tests.support.patterns import SOURCES, TARGETS, patterns, same_bits

pytestmark = pytest.mark.gpu

#: The sources of each kernel.
GROUPS = (("f64",), ("f32",), ("f16", "bf16"), ("e4m3", "e5m2"), ("i32",), ("i8", "u8"))
COLUMNS = 256


def program(names: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return the formula of a group, and its outputs after D: values as they are stored, and cast and stored wide."""
    inputs, outputs, lines = [], [], []
    for name in names:
        inputs.append(f"in x_{name}: {name}[m, n]")
        for target in TARGETS:
            if target.name != "tf32":
                outputs.append(f"s_{name}_{target}: {target}")
                lines.append(f"s_{name}_{target} = x_{name}")
            wide = "i32" if target.name == "b1" else target.compute.name
            outputs.append(f"c_{name}_{target}: {wide}")
            value = f"{target}(x_{name})"
            lines.append(f"c_{name}_{target} = {f'i32({value})' if target.name == 'b1' else value}")
    return "\n".join([*inputs, f"out D: f16, {', '.join(outputs)}", *lines, "D = acc"]), outputs


@pytest.mark.parametrize(
    ("names", "route"),
    [*((names, "evt-3x") for names in GROUPS), *((names, "evt-2x") for names in (("f32",), ("i8", "u8")))],
    ids=str,
)
def test_conversions(names: tuple[str, ...], route: str) -> None:
    text, _ = program(names)
    given = {name: patterns(BY_NAME[name]) for name in names}
    rows = max(-(-each.numel() // COLUMNS) for each in given.values())
    inputs = {}
    for name, values in given.items():
        codes = values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize])
        repeated = codes.repeat(-(-rows * COLUMNS // codes.numel()))[: rows * COLUMNS]
        inputs[f"x_{name}"] = repeated.view(values.dtype).reshape(rows, COLUMNS).cuda()
    a, b = torch.ones(rows, 8, device="cuda").half(), torch.ones(8, COLUMNS, device="cuda").half()
    op = evt.gemm(text, route=route)
    got = op(a, b, **inputs)
    want = op.reference(a.cpu(), b.cpu(), **{name: value.cpu() for name, value in inputs.items()})
    wrong = {}
    for output, found, expected in zip(op.outputs, got, want, strict=True):
        places = ~same_bits(found.cpu(), expected)
        if bool(places.any()):
            row = int(places.flatten().nonzero()[0])
            shown = (row, found.cpu().float().flatten()[row].item(), expected.float().flatten()[row].item())
            wrong[output] = int(places.sum()), shown
    assert not wrong


def test_all_sources_are_there() -> None:
    assert {name for names in GROUPS for name in names} == {source.name for source in SOURCES}


@pytest.mark.parametrize("route", ["evt-3x", "evt-2x", "gemm-own-3x"])
def test_truth_values_are_stored_as_every_type(route: str) -> None:
    """Visitors hold truth values packed in bits."""
    types = [
        each.name
        for each in TARGETS
        if each.name not in ("tf32", "b1") and (each.name, route) != ("f64", "gemm-own-3x")
    ]
    outputs = ", ".join(f"x_{name}: {name}, y_{name}: {name}" for name in types)
    lines = [f"x_{name} = x; y_{name} = acc > 3.5" for name in types]
    op = evt.gemm("\n".join([f"in x: bool[m, n]; out D: f16, {outputs}", *lines, "D = acc"]), route=route)
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(0, 2, (72, 16), generator=generator).half()
    b = torch.randint(0, 2, (16, 48), generator=generator).half().mT.contiguous().mT
    x = torch.rand(72, 48, generator=generator) < 0.5
    for name, found, expected in zip(
        op.outputs, op(a.cuda(), b.cuda(), x=x.cuda()), op.reference(a, b, x=x), strict=True
    ):
        assert bool(same_bits(found.cpu(), expected).all()), name


@pytest.mark.parametrize("source", ["f16", "i8"])
def test_own_kernels_store_doubles(source: str) -> None:
    """The products include values beyond the range of 8 and 16 bits, and halves."""
    scaled = "f64(acc) * f64(x) / f64(2)"
    types = [each.name for each in TARGETS if each.name not in ("tf32", "b1", "f64")]
    lines = [f"s_{name} = {scaled}; c_{name} = {name}({scaled})" for name in types]
    outputs = ", ".join(f"s_{name}: {name}, c_{name}: {'i32' if name[0] in 'iu' else 'f32'}" for name in types)
    text = "\n".join([f"in x: f32[m, n]; out D: f16, {outputs}", *lines, "D = acc"])
    op = evt.gemm(text, route="gemm-own-3x")
    generator = torch.Generator().manual_seed(1)
    dtype = {"f16": torch.float16, "i8": torch.int8}[source]
    a = torch.randint(-9, 10, (72, 16), generator=generator).to(dtype)
    b = torch.randint(-9, 10, (16, 48), generator=generator).to(dtype).mT.contiguous().mT
    x = torch.tensor([1.0, 3.0, -1e3, 1e9, float("inf"), float("nan")]).repeat(72 * 48 // 6).reshape(72, 48)
    for name, found, expected in zip(
        op.outputs, op(a.cuda(), b.cuda(), x=x.cuda()), op.reference(a, b, x=x), strict=True
    ):
        assert bool(same_bits(found.cpu(), expected).all()), name
