"""A machine that only looks like one GPU: programs plan, pack and launch, and a library of C that does nothing runs."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from evt.ir import Dag
from evt.plan import Plan, find_target
from evt.request import Request
from evt.runtime import call, prepare
from evt.runtime.bound import Bound
from evt.runtime.cpu_fallback import run_reference
from evt.runtime.kernels import Kernel, Kernels, best_of, plan_kernels
from evt.runtime.library import Library

#: Takes the place of ``setattr``, such as pytest's, which undoes it.
Patch = Callable[[Any, str, Any], None]
#: A function that makes a kernel's library for a plan.
Make = Callable[[Plan, Request, Bound], Library]
STREAM = 77
#: The path of a library that is not there: a call then plans its kernels, which are stubs.
_UNBUILT = Path("no such library")
_FORMATS = {"size": "q", "pointer": "Q", "number": "d", "integer": "q"}
_C = "int stub_run(void const* arguments, unsigned long size, void* stream) { return 0; }\n"


def form_of(plan: Plan) -> str:
    """Return the struct format of a kernel's arguments."""
    return "".join(_FORMATS[field.kind] for field in plan.fields)


def workspace_of(plan: Plan) -> int:
    """Return the bytes of memory to work in that calls of a kernel get here."""
    return 64 if any(field.role == "workspace" for field in plan.fields) else 0


def stub_device(patch: Patch, library: Make) -> None:
    """Let programs launch on the CPU's tensors, as on device 0 of a machine with an H200."""

    def make_kernels(request: Any, bound: Any, target: Any, atomic: bool, *, alone: bool = False) -> Kernels:
        plans = plan_kernels(request, bound, find_target("sm90"))
        plans = (plans[best_of(plans, bound, 132)],) if alone else plans
        return Kernels(tuple(Kernel(plan, library(plan, request, bound)) for plan in plans))

    patch(call, "make_kernels", make_kernels)
    patch(call, "_needs_no_kernel", lambda bound: bound.is_empty)
    patch(call, "device_target", lambda index: find_target("sm90"))
    patch(torch.cuda, "get_device_capability", lambda index: (9, 0))
    _be_an_h200(patch)
    patch(prepare, "_current_device", lambda: 0)
    patch(prepare, "_raw_stream", lambda index: STREAM)


def plan_for_h200(patch: Patch) -> None:
    """Let graphs on the CPU take the regions that have a kernel on an H200, without building any."""
    from evt.fx import kernels

    patch(kernels, "_DEVICES", ("cpu",))
    patch(kernels, "build", lambda sources, **others: [_UNBUILT] * len(sources))
    patch(kernels, "missing_tools", lambda sources: "")
    patch(kernels, "device_target", lambda index: find_target("sm90"))
    patch(kernels, "measured_best", lambda request, bound, atomic: request)
    _be_an_h200(patch)


def _be_an_h200(patch: Patch) -> None:
    patch(torch.cuda, "current_device", lambda: 0)
    patch(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(multi_processor_count=132, gcnArchName="", name="H200"),
    )


def record_launches(patch: Patch) -> list[dict[str, float]]:
    """Let programs launch as :func:`stub_device` does; return the members of each launch, by name."""
    recorded: list[dict[str, float]] = []

    def library(plan: Plan, request: Request, bound: Bound) -> Library:
        form = form_of(plan)

        def run(arguments: bytes, size: int, stream: int) -> int:
            assert size == len(arguments) == 8 * len(plan.fields)
            assert stream == STREAM
            values = struct.unpack(f"={form}", arguments)
            recorded.append(dict(zip((field.name for field in plan.fields), values, strict=True)))
            return 0

        return Library(Path(), run, form, lambda arguments: workspace_of(plan))

    stub_device(patch, library)
    return recorded


def compute_launches(patch: Patch) -> None:
    """Let programs launch as :func:`stub_device` does; the reference computes where the launch's arguments point.

    Everything but the addresses comes from the call for which the launch was prepared, as in a kernel's arguments. In a
    call with several launches the first one computes everything.
    """
    requests: dict[int, Request] = {}
    prepared = call.prepare  # type: ignore[attr-defined]

    def prepare_computing(dag: Dag, bound: Bound, kernels: Kernels, *rest: Any) -> Any:
        turns = count()
        steps: list[Any] = [()]
        made = tuple(
            Kernel(plan, _computing(plan, requests[id(plan)], bound, lambda: next(turns) % len(steps) == 0))
            for plan in kernels.plans
        )
        found = prepared(dag, bound, Kernels(made), *rest)
        steps[:] = found.steps or steps
        return found

    def library(plan: Plan, request: Request, bound: Bound) -> Library:
        return Library(Path(), lambda *arguments: 1, form_of(plan), lambda arguments: workspace_of(plan))

    stub_device(patch, library)
    make_kernels = call.make_kernels  # type: ignore[attr-defined]

    def make_known(request: Any, bound: Any, target: Any, atomic: bool, *, alone: bool = False) -> Kernels:
        made = make_kernels(request, bound, target, atomic, alone=alone)
        requests.update((id(plan), request) for plan in made.plans)
        return made

    patch(call, "make_kernels", make_known)
    patch(call, "prepare", prepare_computing)


def _computing(plan: Plan, request: Request, bound: Bound, computes: Callable[[], bool]) -> Library:
    pointers = [field.tensor for field in plan.fields if field.kind == "pointer"]

    def run(arguments: bytes, size: int, stream: int) -> int:
        if not computes():
            return 0
        words = struct.unpack(f"={len(pointers)}Q", arguments[: 8 * len(pointers)])
        addresses = dict(zip(pointers, words, strict=True))
        given = {name: value for name, value in bound.values.items() if isinstance(value, torch.Tensor)}
        values = {name: _at(addresses[name], value) for name, value in given.items()}
        buffers = {name: values[name] for name in request.outputs}
        run_reference(request, replace(bound, values={**bound.values, **values}), buffers)
        return 0

    return Library(Path(), run, form_of(plan), lambda arguments: workspace_of(plan))


def _at(address: int, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor at an address."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_char * (elements * like.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


def c_library(folder: Path) -> Make:
    """Return a maker of libraries whose ``run`` is a C function that is called like a kernel's, and returns 0."""
    source, built = folder / "stub.c", folder / "stub.so"
    source.write_text(_C)
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    run = ctypes.CDLL(str(built))["stub_run"]
    run.restype = ctypes.c_int
    run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    return lambda plan, request, bound: Library(built, run, form_of(plan), lambda arguments: workspace_of(plan))
