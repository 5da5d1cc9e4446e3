"""The timed versions of a case, each as a function without arguments.

:func:`baseline` builds a baseline and calls it for the first time, and thus raises its errors.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from evt.bench.case import Case, Data
from evt.bench.cudnn import cudnn_fused
from evt.diagnostics import Diagnostic, closest
from evt.eager.convolution import convolve
from evt.eager.idiom import check_product
from evt.eager.straight import straight_line
from evt.errors import ArgumentError

Call = Callable[[], Any]

#: The baselines: the formula in eager PyTorch, through torch.compile, by cuDNN's fused convolution; the bare product.
BASELINES = ("eager", "compile", "max-autotune", "cudnn", "mm")
#: Names of the bare product, of matrices and of a convolution; either name selects the case's product.
PRODUCTS = ("mm", "conv")
#: The baselines that torch.compile makes, with its mode.
COMPILED = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
_WARM_UP = 3  # calls: the first compiles


def check_baselines(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without repetitions. Raise ArgumentError (E0602) for an unknown baseline."""
    known = tuple(dict.fromkeys((*BASELINES, *PRODUCTS)))
    for name in names:
        if name not in known:
            guess = closest(name, known)
            hint = f"did you mean `{guess}`?" if guess else f"baselines: {', '.join(known)}"
            raise ArgumentError(Diagnostic("E0602", f"there is no baseline `{name}`", help=hint))
    return tuple(dict.fromkeys(names))


def evt_version(case: Case, data: Data) -> Call:
    """Return the fused kernel, which writes into the buffers of ``data``."""
    program, inputs = case.program, data.inputs
    outputs = tuple(data.outputs.values())
    out = outputs[0] if len(outputs) == 1 else outputs
    return lambda: program(data.A, data.B, out=out, **inputs)


def baseline(name: str, case: Case, data: Data) -> Call:
    """Return a baseline, compiled and warm. Raise UnwrittenError, and any error of PyTorch."""
    if name == "conv":
        alone = product_alone(case, data)
        for _ in range(_WARM_UP):
            alone(data.A, data.B)
        return lambda: alone(data.A, data.B)
    if name == "mm":
        a, b = operand_views(case, data)
        product = product_alone(case, data)
        buffer = product(a, b)
        return lambda: product(a, b, out=buffer)
    if name == "cudnn":
        function: Any = cudnn_fused(case)
    else:
        device = data.A.device.type
        function = straight_line(case.dag, case.scalars, batched=case.batched, device=device, problem=case.problem)
    if name in COMPILED:
        function = torch.compile(function, dynamic=False, mode=COMPILED[name])
    arguments = (data.A, data.B, *data.tensors.values())
    with quiet():
        for _ in range(_WARM_UP):
            function(*arguments)
    return lambda: function(*arguments)


def product_alone(case: Case, data: Data) -> Callable[..., Any]:
    """Return the matrix product as a function of ``(a, b, out=...)``: torch.mm, torch.bmm, or PyTorch's function for
    8-bit.

    A convolution is a function of ``(A, B)``. Raise UnwrittenError if PyTorch has no such product.
    """
    if case.problem is not None:
        problem, device = case.problem, data.A.device.type
        return lambda a, b: convolve(problem, case.dag.operands, a, b, device)[0]
    first = case.dag.operands[0].dtype
    if first.bits > 8:
        product: Callable[..., Any] = torch.bmm if case.batched else torch.mm
        return product
    check_product(case.dag.operands, case.batched)
    if not first.is_float:
        return torch._int_mm
    one = torch.ones((), device=data.A.device)
    return partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def operand_views(case: Case, data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A as [.., m, k] and B as [.., k, n], for any layouts."""
    first, second = case.dag.operands
    a = data.A if first.modes == ("m", "k") else data.A.mT
    b = data.B if second.modes == ("k", "n") else data.B.mT
    return a, b


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, and the tables that max-autotune prints."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def tensor_core_floats() -> Iterator[None]:
    """Let PyTorch multiply f32 operands as tf32, as evt's kernels do."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms at the first call of a convolution, and take the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
