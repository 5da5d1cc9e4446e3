"""Calls out of compiled code, without a GPU: launches, and sites whose tensors have changed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

import evt
from evt.runtime import call as call_module
from evt.runtime import prepare as prepare_module
from evt.runtime.call import caller_of
from evt.runtime.kernels import Kernel, Kernels
from evt.runtime.operator import write_program
from evt.runtime.site import Site, forget

F16 = torch.float16
A, B = torch.ones(40, 24, dtype=F16), torch.ones(24, 16, dtype=F16)
BIAS, RESIDUAL = torch.ones(16, dtype=F16), torch.ones(40, 16, dtype=F16)
PROGRAM = evt.gemm("D = relu(acc + bias) + residual")


def buffer(m: int = 40, n: int = 16, dtype: torch.dtype = F16) -> torch.Tensor:
    return torch.full((m, n), 7.0, dtype=dtype)


def site_of(program: evt.Program, *views: Any) -> Site:
    return Site(write_program(program.request), *views)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    caller_of.cache_clear()


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, launches: Any) -> list[object]:
    """Return a list that has an element for each launch that was prepared."""
    made: list[object] = []
    real = call_module.prepare  # type: ignore[attr-defined]
    monkeypatch.setattr(call_module, "prepare", lambda *given: made.append(given) or real(*given))
    return made


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (PROGRAM, {"bias": BIAS, "residual": RESIDUAL}),
        (evt.gemm("D = residual + relu(acc + bias)"), {"bias": BIAS, "residual": RESIDUAL}),
        (evt.gemm("D = relu(acc + bias)", route="evt-2x"), {"bias": BIAS}),
        (evt.gemm("in s: f32; out D, E: f32[m]; D = s*acc; E = sum[n](acc)"), {"s": torch.ones(())}),
        (
            evt.gemm("in x: f32, y: f32, C[m, n]; D = x*acc + y*C"),
            {"x": torch.ones(1), "y": torch.ones(()), "C": RESIDUAL},
        ),
    ],
    ids=["bias, residual", "residual first", "2x", "scalar, reduction", "source"],
)
def test_members_are_those_of_a_users_call(launches: Any, program: evt.Program, inputs: Any) -> None:
    buffers = [buffer() if each == "D" else torch.zeros(40) for each in program.outputs]
    site = site_of(program)
    for _ in range(2):
        site[()](A, B, *buffers, *(inputs[name] for name in program.inputs))
    program(A, B, **inputs, out=tuple(buffers))
    first, second, wanted = launches
    for found in (first, second):
        found.pop("workspace", None)
        assert found == {name: value for name, value in wanted.items() if name != "workspace"}


def test_only_addresses_are_read_again(launches: Any, prepared: Any) -> None:
    site, out = site_of(PROGRAM), buffer()
    for a in (A, A.clone(), A.clone()):
        site[()](a, B, out, BIAS, RESIDUAL)
        assert launches[-1]["A"] == a.data_ptr()
        assert launches[-1]["out_D"] == out.data_ptr()
    assert len(prepared) == 1


def test_other_alignments_are_for_another_kernel(launches: Any, prepared: Any) -> None:
    memory = torch.ones(40 * 16 + 8, dtype=F16)
    aligned, shifted = memory[:640].view(40, 16), memory[1:641].view(40, 16)
    site, out = site_of(PROGRAM), buffer()
    for residual in (aligned, shifted, shifted, aligned, shifted):
        site[()](A, B, out, BIAS, residual)
        assert launches[-1]["in_residual"] == residual.data_ptr()
    assert len(prepared) == 2
    assert len(caller_of(write_program(PROGRAM.request))._built) == 2


def test_what_is_read_may_be_a_part_of_what_is_given(launches: Any, prepared: Any) -> None:
    both = torch.ones(40, 48, dtype=F16)
    views = ((40, 24), (48, 1), 24), ((24, 16), (1, 24), 0), None, None, ((40, 16), (0, 1), 0)
    site = site_of(PROGRAM, lambda: views)
    for wide in (both, both.clone()):
        site[()](wide, B.mT.contiguous(), buffer(), BIAS, BIAS)
        members = launches[-1]
        assert members["A"] == wide.data_ptr() + 2 * 24
        assert (members["m"], members["k"], members["stride_m_of_A"]) == (40, 24, 48)
    assert len(prepared) == 1


def test_a_part_may_be_misaligned(launches: Any, prepared: Any) -> None:
    site = site_of(PROGRAM, lambda: (None, None, None, ((16,), (1,), 3), None))
    for _ in range(2):
        wide = torch.ones(32, dtype=F16)
        site[()](A, B, buffer(), wide, RESIDUAL)
        assert launches[-1]["in_bias"] == wide.data_ptr() + 6
    assert len(prepared) == 1


def test_sizes_that_vary(launches: Any, prepared: Any) -> None:
    site = site_of(PROGRAM, lambda s: (((s, 24), (24, 1), 0), None, None, None, None))
    for rows in (8, 40, 8, 40, 3):
        a = torch.ones(1, rows, 24, dtype=F16)
        site[rows,](a, B, buffer(rows), BIAS, RESIDUAL[:rows])
        assert (launches[-1]["m"], launches[-1]["A"]) == (rows, a.data_ptr())
    assert len(prepared) == 3
    assert len(site) == 3


def test_nothing_is_launched_for_empty_tensors(launches: Any) -> None:
    site = site_of(PROGRAM)
    site[()](A[:0], B, buffer(0), BIAS, RESIDUAL[:0])
    out = buffer()
    no_terms = site_of(PROGRAM)
    for _ in range(2):
        no_terms[()](A[:, :0], B[:0], out.fill_(7), BIAS, RESIDUAL)
        assert torch.equal(out, torch.full_like(out, 2.0))
    assert not launches


def test_on_the_cpu_the_reference_answers() -> None:
    site, out = site_of(PROGRAM), buffer()
    for _ in range(2):
        site[()](A, B, out.fill_(7), BIAS, RESIDUAL)
        assert torch.equal(out, torch.full_like(out, 26.0))


def test_several_launches_and_copies_take_the_way_of_a_users_call(launches: Any) -> None:
    batches = torch.ones(2, 3, 40, 24, dtype=F16).transpose(0, 1)
    out = torch.ones(3, 2, 40, 16, dtype=F16)
    site = site_of(evt.gemm("D = relu(acc)"))
    for _ in range(2):
        site[()](batches, B, out)
    assert len(launches) > 2
    launches.clear()
    x, w = torch.ones(2, 16, 9, 7, dtype=F16), torch.ones(24, 16, 3, 3, dtype=F16)
    result = torch.ones(2, 24, 7, 5, dtype=F16)
    site = site_of(evt.conv2d("in bias[n]; D = relu(acc + bias)"))
    for _ in range(2):
        site[()](x, w, result, torch.ones(24, dtype=F16))
    assert len(launches) == 2
    assert x.data_ptr() not in {members["A"] for members in launches}


def test_a_convolution(launches: Any, prepared: Any) -> None:
    x, w, out = (
        torch.ones(*shape, dtype=F16).contiguous(memory_format=torch.channels_last)
        for shape in ((2, 16, 9, 7), (24, 16, 3, 3), (2, 24, 7, 5))
    )
    site = site_of(evt.conv2d("in bias[n]; D = relu(acc + bias)"))
    for _ in range(2):
        site[()](x, w, out, torch.ones(24, dtype=F16))
    assert [(each["A"], each["B"], each["out_D"]) for each in launches] == 2 * [
        (x.data_ptr(), w.data_ptr(), out.data_ptr())
    ]
    assert len(prepared) == 1


def test_memory_to_work_in_is_allocated_for_each_call(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's allocator, which has a separate pool while a CUDA graph is captured."""
    made: list[torch.Tensor] = []
    real = torch.empty_like
    monkeypatch.setattr(prepare_module, "_empty_like", lambda like: made.append(real(like)) or made[-1])
    site = site_of(evt.gemm("out D, E: f32[m]; D = acc; E = sum[n](acc)"))
    for _ in range(2):
        site[()](A, B, buffer(), torch.zeros(40))
    assert [each["workspace"] for each in launches] == [each.data_ptr() for each in made]
    assert len(set(map(id, made))) == 2


def test_the_current_stream_is_asked_for_at_each_call(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(prepare_module, "_raw_stream", lambda index: asked.append(index) or 77)
    site = site_of(PROGRAM)
    for _ in range(3):
        site[()](A, B, buffer(), BIAS, RESIDUAL)
    assert asked == [0, 0, 0]


def test_the_tensors_device_is_made_the_current_one(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    current = [1]

    @contextmanager
    def device(index: int) -> Any:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(prepare_module, "_current_device", lambda: current[0])
    monkeypatch.setattr(prepare_module, "_raw_stream", lambda index: 77 if current == [0] else 0)
    monkeypatch.setattr(torch.cuda, "device", device)
    site = site_of(PROGRAM)
    for _ in range(2):
        site[()](A, B, buffer(), BIAS, RESIDUAL)
    assert len(launches) == 2
    assert current == [1]


def test_a_failure_is_raised(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(PROGRAM)
    real = call_module.make_kernels  # type: ignore[attr-defined]

    def failing(*given: Any, **keywords: Any) -> Any:
        from dataclasses import replace

        found = real(*given, **keywords)
        libraries = [replace(each.library, run=lambda *_: 2 << 16) for each in found.each]
        return Kernels(tuple(map(Kernel, found.plans, libraries)))

    monkeypatch.setattr(call_module, "make_kernels", failing)
    for _ in range(2):
        with pytest.raises(evt.LaunchError, match="E0804"):
            site[()](A, B, buffer(), BIAS, RESIDUAL)


def test_the_first_call_inside_a_capture_is_refused(launches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    site, out = site_of(PROGRAM), buffer()
    with pytest.raises(evt.LaunchError, match="E0803"):
        site[()](A, B, out, BIAS, RESIDUAL)
    capturing[0] = False
    site[()](A, B, out, BIAS, RESIDUAL)
    capturing[0] = True
    site[()](A, B, out, BIAS, RESIDUAL)
    assert len(launches) == 2


def test_tuning_lets_sites_prepare_again(launches: Any, prepared: Any) -> None:
    site, out = site_of(PROGRAM), buffer()
    site[()](A, B, out, BIAS, RESIDUAL)
    forget(PROGRAM.request)
    site[()](A, B, out, BIAS, RESIDUAL)
    assert len(prepared) == 2


def test_wrong_tensors_are_refused(launches: Any) -> None:
    """Nothing but a bug of the caller's gives such, and it is found at the first call."""
    with pytest.raises(evt.ArgumentError, match="E0604"):
        site_of(PROGRAM)[()](A, B, buffer(), RESIDUAL, RESIDUAL)
