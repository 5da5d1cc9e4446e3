"""The epilogue of an emitted 2.x kernel on the host: ``run(op, ...)``, with host threads and no product."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import evt
from evt.ir.dtype import accumulator
from evt.plan import Plan, find_target
from evt.reference.rounding import working
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.kernels import plan_kernels
from evt.runtime.plans import kernel_sources
from tests.cxx.gxx import HOST, build

#: The part of an emitted file that wraps the epilogue in the kernel: from the first mark up to the second.
_OF_THE_KERNEL = (
    (r"^using Kernel =", r"struct FinalJobs|#if !defined\(EVT_DEVICE_PASS\)"),
    (r"^#if !defined\(EVT_HOST_PASS\)\n/// Combines", r"#if !defined\(EVT_DEVICE_PASS\)"),
)
#: Headers that the kernel's headers include, and the epilogue's headers need without including them.
_FIRST = [
    f'#include "cutlass/{each}.h"'
    for each in (
        *("numeric_conversion", "gemm_coord", "layout/matrix", "gemm/gemm", "arch/memory"),
        "epilogue/threadblock/default_thread_map_tensor_op",
    )
]
_LAUNCH = r"^/// The extents whose alignment CUTLASS checks"


def run(
    op: evt.Program,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    out: Mapping[str, Any],
    folder: Path,
    arch: str = "sm89",
) -> None:
    """Compute the values that a call's 2.x kernel would write into the output buffers, from the exact product."""
    bound = bind(op.request, a, b, inputs, out)
    plan = plan_kernels(op.request, bound, find_target(arch))[0]
    library = compiled(plan, folder)
    given = {"A": a, "B": b, **inputs, **out}
    acc = product(op, bound, a, b)
    acc = acc.mT.contiguous() if plan.transposed else acc
    library.host_workspace.restype = ctypes.c_int64
    arguments = packed(plan, bound, given, 0)
    workspace = torch.full((library.host_workspace(arguments) + 8,), 0x55, dtype=torch.uint8)
    library.host_run(packed(plan, bound, given, workspace.data_ptr()), ctypes.c_void_p(acc.data_ptr()))


def product(op: evt.Program, bound: Bound, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the exact product [l, m, n] in the accumulator's type."""
    modes_a, modes_b = op.request.operand_modes
    a, b = (a if modes_a == ("m", "k") else a.mT).double(), (b if modes_b == ("k", "n") else b.mT).double()
    if op.request.dag.operation == "linear":
        a = a.reshape(-1, a.shape[-1])
    shape = [bound.sizes[mode] for mode in ("l", "m", "n")]
    return (a @ b).reshape(shape).to(working(accumulator(bound.dag.operands[0].dtype), torch.float32)).contiguous()


def packed(plan: Plan, bound: Bound, given: Mapping[str, Any], workspace: int) -> bytes:
    """Return the members of the kernel's arguments: addresses, numbers and sizes."""
    found = b""
    for member in plan.fields:
        value = given.get(member.tensor)
        if member.kind == "pointer":
            tensor = value.data_ptr() if isinstance(value, torch.Tensor) else 0
            found += struct.pack("q", workspace if member.role == "workspace" else tensor)
        elif member.kind in ("number", "integer"):
            number = 0 if isinstance(value, torch.Tensor) or value is None else value
            found += struct.pack("d", float(number)) if member.kind == "number" else struct.pack("q", int(number))
        elif member.tensor in bound.tensors:
            found += struct.pack("q", bound.tensors[member.tensor].size(member.role))
        else:
            found += struct.pack("q", 0 if member.tensor else bound.sizes.get(member.role, 0))
    return found


def compiled(plan: Plan, folder: Path) -> ctypes.CDLL:
    """Return an emitted 2.x kernel's epilogue, compiled by g++ up to where it is launched."""
    text = kernel_sources([plan])[0].text
    jobs = re.search(r"evt::finish_all\((.*)\);", text)
    text = re.sub(r'^#include "cutlass/gemm/(kernel|device)/.*$', "", text, flags=re.MULTILINE)
    includes = re.findall(r'^#include [<"][^>"]*[>"]$', text, re.MULTILINE)
    for first, after in _OF_THE_KERNEL:
        text = re.sub(first + r".*?^(?=" + after + ")", "", text, count=1, flags=re.MULTILINE | re.DOTALL)
    launched = re.search(_LAUNCH, text, re.MULTILINE)
    assert launched is not None
    defined = f"#define HOST_ROWS {plan.rows}\n#define HOST_COLUMNS {plan.columns}\n"
    defined += f"#define HOST_JOBS {len(jobs[1].split(','))}\n#define HOST_FINISH {jobs[1]}\n" if jobs else ""
    source, library = folder / "epilogue.cpp", folder / "epilogue.so"
    source.write_text(
        f'#define EVT_HOST_PASS\n#include "threads.hpp"\n{chr(10).join([*_FIRST, *includes])}\n'
        f"#undef __shared__\n#define __shared__ static\n{defined}"
        f'{text[: launched.start()]}\n#include "epilogue.hpp"\n#endif\n}}\n'
    )
    return ctypes.CDLL(str(build(source, library, HOST)))
