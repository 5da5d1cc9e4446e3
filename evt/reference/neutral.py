"""A context in which the reference does not depend on PyTorch's settings: ``with neutral(device): ...``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_LEAST_NORMAL = sys.float_info.min


@contextmanager
def neutral(device: torch.device) -> Iterator[None]:
    """Disable the caller's autocast, gradients, deterministic algorithms and flushing of denormal numbers.

    PyTorch's other settings do not affect the reference: products are summed in f64, without TF32 or bf16; every tensor
    is made with its dtype and device; no order of summation depends on the number of threads; random numbers are the
    reference's own.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind in dict.fromkeys(("cpu", device.type)):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
            warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warn_only)
            torch.use_deterministic_algorithms(False)  # with them cuBLAS may refuse to multiply
        if not _LEAST_NORMAL / 2:
            # PyTorch's other threads may flush too, which no setting prevents.
            stack.callback(torch.set_flush_denormal, True)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_flush_denormal(False)
            torch.set_num_threads(1)
        yield
