"""What evt_run is called with, member by member, without a GPU: the packing of addresses, numbers and sizes."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import evt
from evt.plan import find_target
from evt.runtime import call as call_module
from evt.runtime import prepare as prepare_module
from evt.runtime.kernels import Kernels, plan_kernels
from evt.runtime.library import Library

_FORMATS = {"size": "q", "pointer": "Q", "number": "d"}


@pytest.fixture
def launches(monkeypatch):
    """Programs launch on a machine that only looks like one GPU; each launch's members are recorded by name."""
    recorded: list[dict[str, float]] = []

    def make_kernels(program, bound, target, atomic):
        plans = plan_kernels(program, bound, find_target("sm90"))
        return Kernels(plans, tuple(map(library, plans)))

    def library(plan):
        form = "".join(_FORMATS[field.kind] for field in plan.fields)

        def run(arguments: bytes, size: int, stream: int) -> int:
            assert size == len(arguments) == 8 * len(plan.fields)
            assert stream == 77
            values = struct.unpack(f"={form}", arguments)
            recorded.append(dict(zip((field.name for field in plan.fields), values, strict=True)))
            return 0

        return Library(None, run, form, lambda arguments: 0)

    monkeypatch.setattr(call_module, "make_kernels", make_kernels)
    monkeypatch.setattr(call_module, "_needs_no_kernel", lambda bound: False)
    monkeypatch.setattr(call_module, "device_target", lambda index: find_target("sm90"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(prepare_module, "_current_device", lambda: 0)
    monkeypatch.setattr(prepare_module, "_raw_stream", lambda index: 77)
    return recorded


A, B = torch.zeros(40, 24, dtype=torch.float16), torch.zeros(24, 16, dtype=torch.float16)
C = torch.zeros(40, 16, dtype=torch.float16)


def test_every_member_gets_its_value(launches):
    op = evt.gemm("in gamma = 3; D = relu(alpha*acc + beta*C) + gamma*residual")
    wide = torch.zeros(40, 32, dtype=torch.float16)[:, 8:24]
    beta = torch.ones(1)
    D = op(A, B, residual=wide, alpha=1.5, C=C, beta=beta)  # noqa: N806
    (members,) = launches
    assert (members["m"], members["n"], members["k"], members["l"]) == (40, 16, 24, 1)
    assert (members["A"], members["B"]) == (A.data_ptr(), B.data_ptr())
    assert (members["in_C"], members["in_residual"]) == (C.data_ptr(), wide.data_ptr())
    assert members["out_D"] == D.data_ptr()
    assert (members["value_of_in_alpha"], members["in_alpha"]) == (1.5, 0)
    assert members["in_beta"] == beta.data_ptr()
    assert (members["value_of_in_gamma"], members["in_gamma"]) == (3.0, 0)
    assert members["stride_m_of_A"] == 24
    assert members["stride_k_of_B"] == 16
    assert members["stride_m_of_in_residual"] == 32
    assert members["stride_l_of_out_D"] == 0
    assert (members["swizzle"], members["raster"]) == (0, 0)


def test_the_remembered_call_fills_in_new_addresses_and_numbers(launches):
    op = evt.gemm("out D, E: f32[m, n]; D = alpha*acc + C; E = acc")
    first = op(A, B, alpha=1.0, C=C)
    other = torch.ones(40, 24, dtype=torch.float16)
    second = op(other, B, alpha=-2.5, C=C)
    (known,) = op._caller._prepared.values()
    assert repr(known)  # does not read the prototypes, which have no memory
    assert [members["value_of_in_alpha"] for members in launches] == [1.0, -2.5]
    assert [members["A"] for members in launches] == [A.data_ptr(), other.data_ptr()]
    assert [members["out_E"] for members in launches] == [first.E.data_ptr(), second.E.data_ptr()]
    assert second.E.dtype == torch.float32
    assert second.D.shape == (40, 16)


def test_buffers_are_written_where_they_are(launches):
    op = evt.gemm("out D, E: f32[m, n]; D = acc + C; E = acc")
    e, d = torch.zeros(40, 16), torch.zeros(40, 32, dtype=torch.float16)[:, :16]
    op(A, B, C=C, E=e)
    result = op(A, B, C=C, out=(d, e))
    assert result.D is d
    assert [members["out_E"] for members in launches] == [e.data_ptr()] * 2
    assert (launches[1]["out_D"], launches[1]["stride_m_of_out_D"]) == (d.data_ptr(), 32)
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(A, B, C=C, out={"D": A.view(-1)[:640].view(40, 16)})


def test_batches_and_alignments_are_combinations_of_their_own(launches):
    op = evt.gemm("D = acc + C")
    op(A, B, C=C)
    storage = torch.zeros(40 * 16 + 8, dtype=torch.float16)
    op(A, B, C=storage[1 : 1 + 640].view(40, 16))  # misaligned
    batch = torch.zeros(3, 40, 24, dtype=torch.float16)
    op(batch, B, C=C)
    assert len(op._caller._prepared) == 3
    assert len(op._caller._kernels) == 3
    assert (launches[2]["l"], launches[2]["stride_l_of_A"], launches[2]["stride_l_of_out_D"]) == (3, 960, 640)
    assert "stride_l_of_in_C" not in launches[2]


def test_mistakes_are_found_in_remembered_calls_too(launches):
    op = evt.gemm("D = alpha*acc")
    op(A, B, alpha=2)
    for wrong in ({"alpha": 10**400}, {"alpha": True}, {"alpha": 1, "beta": 2}, {}, {"alpha": "2"}):
        with pytest.raises(evt.ArgumentError):
            op(A, B, **wrong)
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("code", "expected"), [(2 << 16, "E0804"), (3 << 16 | 100, "E0801"), (4 << 16 | 209, "E0802"), (5 << 16, "E0805")]
)
def test_failures_of_the_library_are_diagnostics(launches, code, expected):
    op = evt.gemm("D = acc")
    op(A, B)
    prepared = op._caller._prepared
    ((key, known),) = prepared.items()
    prepared[key] = replace(known, run=lambda *arguments: code)
    with pytest.raises(evt.LaunchError, match=expected):
        op(A, B)
