"""The host's time for a call of a region, on a machine without a GPU: ``python -m tests.fx.host_time``.

The called library is a C function that returns 0, so the rest is evt's time: Python and ctypes. Beside it
stand Inductor's products of a few elements, which are all dispatch, and its allocation of a result. Calls that autograd
records stand beside a function of PyTorch's autograd that does nothing; their backward passes do compute, of few
elements. ``--profile`` shows the time by function.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._inductor.select_algorithm import extern_kernels

import evt
from evt.bench.host import host_samples
from evt.runtime.operator import launch, write_program
from evt.runtime.site import Site
from tests.support.stub_device import c_library, stub_device

#: The inputs of a region, and its formula.
REGIONS = {
    "bias": "in x0: f16[n]; out D: f16[m, n]; D = gelu(acc + x0)",
    "bias, residual": "in x0: f16[n], x1: f16[m, n]; out D: f16[m, n]; D = (acc + x0) + x1",
    "statistics": "in x0: f16[n]; out D: f16[m, n], E: f32[m]; D = acc + x0; E = sum[n](D*D)",
}

#: Formulas whose calls autograd records.
RECORDED = ("relu(acc + bias)", "gelu(acc + bias)", "silu(even(acc))*odd(acc)")


def calls(m: int = 64, n: int = 64, k: int = 64) -> dict[str, Callable[[], object]]:
    """Return the timed calls, by name."""
    f16 = torch.float16
    a, b, bias = torch.zeros(m, k, dtype=f16), torch.zeros(k, n, dtype=f16), torch.zeros(n, dtype=f16)
    d, residual, rows = torch.zeros(m, n, dtype=f16), torch.zeros(m, n, dtype=f16), torch.zeros(m)
    tiny, row, result = torch.zeros(2, 2), torch.zeros(2), torch.zeros(2, 2)
    guards: Any = torch._C._dynamo.guards
    products: Any = extern_kernels
    found: dict[str, Callable[[], object]] = {
        "extern_kernels.mm(out=), 2x2": partial(products.mm, tiny, tiny, out=result),
        "extern_kernels.addmm(out=), 2x2": partial(products.addmm, row, tiny, tiny, alpha=1, beta=1, out=result),
        "empty_strided": partial(guards._empty_strided_cpu, (m, n), (n, 1), f16),
        "reinterpret_tensor": partial(guards._reinterpret_tensor, a, (m, k), (k, 1), 0),
    }
    given = {"bias": (bias,), "bias, residual": (bias, residual), "statistics": (bias,)}
    for name, text in REGIONS.items():
        program, inputs = write_program(evt.gemm(text).request), given[name]
        tensors = a, b, *((d, rows) if name == "statistics" else (d,)), *inputs
        others = [None] * (len(tensors) - 1)
        static, dynamic = Site(program), Site(program, lambda s, others=others: (((s, k), (k, 1), 0), *others))
        found[f"site: {name}"] = partial(_at, static, (), tensors)
        found[f"site: {name}, dynamic"] = partial(_at, dynamic, (m,), tensors)
        found[f"launch: {name}"] = partial(launch, a, b, [*inputs], program)
    return found


def recorded_calls(m: int = 16, n: int = 16, k: int = 16) -> dict[str, Callable[[], object]]:
    """Return calls that autograd records, and their backward passes, by name."""
    a, b, bias = (torch.zeros(shape, dtype=torch.float16, requires_grad=True) for shape in ((m, k), (k, n), (n,)))
    calls: dict[str, tuple[Callable[[], Any], tuple[torch.Tensor, ...]]] = {
        "nothing": (partial(_Nothing.apply, a, b, bias), (a, b, bias))
    }
    for formula in RECORDED:
        inputs = {"bias": bias} if "bias" in formula else {}
        calls[formula] = partial(evt.gemm(f"D = {formula}"), a, b, **inputs), (a, b, *inputs.values())
    found: dict[str, Callable[[], object]] = {}
    for name, (call, leaves) in calls.items():
        recorded = torch.enable_grad()(call)
        result = recorded()
        backward = partial(torch.autograd.grad, result, leaves, torch.zeros_like(result), retain_graph=True)
        found |= {f"recorded: {name}": recorded, f"backward: {name}": backward}
    return found


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx: Any, *arrived: torch.Tensor) -> Any:
        return ctx.saved_tensors


def _at(site: Site, sizes: tuple[int, ...], tensors: tuple[torch.Tensor, ...]) -> None:
    site[sizes](*tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="what is left of a site's call, by function")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        stub_device(setattr, c_library(Path(folder)))
        found = {**calls(), **recorded_calls()}
        for name, samples in host_samples(found, 15, lambda: None).items():
            print(f"{name:<36} {statistics.median(samples):7.2f} us")
        if wanted.profile:
            profile = cProfile.Profile()
            call = found["site: bias, residual"]
            profile.runcall(lambda: [call() for _ in range(20000)])
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
