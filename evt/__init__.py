"""Write the epilogue of a matrix product or a convolution as a formula; get a fused CUDA kernel.

    >>> import evt
    >>> op = evt.gemm("D = relu(alpha*acc + beta*C) + residual")
    >>> D = op(A, B, alpha=1.5, beta=0.5, C=C, residual=R)

``import evt`` is fast: each public name imports its module at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from evt.imported import when_imported
from evt.version import __version__

if TYPE_CHECKING:
    from evt.errors import (
        ArgumentError,
        BuildError,
        EvtError,
        InternalError,
        LaunchError,
        LayoutError,
        NoKernelWarning,
        ProgramError,
        TargetError,
    )
    from evt.functions import function
    from evt.fx.fuse import fuse
    from evt.fx.package import package
    from evt.fx.prebuild import prebuild
    from evt.fx.report import report
    from evt.fx.tune import tune
    from evt.grouped import GroupedProgram, grouped_gemm
    from evt.program import (
        Program,
        conv1d,
        conv1d_dgrad,
        conv1d_wgrad,
        conv2d,
        conv2d_dgrad,
        conv2d_wgrad,
        conv3d,
        conv3d_dgrad,
        conv3d_wgrad,
        emit,
        gemm,
        linear,
        load,
    )
    from evt.reference.int4 import pack_int4, prepare
    from evt.reference.rounding import pack_bits, unpack_bits
    from evt.runtime.memory_format import channels_last
    from evt.support import Support, supports

__all__ = [
    "ArgumentError",
    "BuildError",
    "EvtError",
    "GroupedProgram",
    "InternalError",
    "LaunchError",
    "LayoutError",
    "NoKernelWarning",
    "Program",
    "ProgramError",
    "Support",
    "TargetError",
    "__version__",
    "channels_last",
    "conv1d",
    "conv1d_dgrad",
    "conv1d_wgrad",
    "conv2d",
    "conv2d_dgrad",
    "conv2d_wgrad",
    "conv3d",
    "conv3d_dgrad",
    "conv3d_wgrad",
    "emit",
    "function",
    "fuse",
    "gemm",
    "grouped_gemm",
    "linear",
    "load",
    "pack_bits",
    "pack_int4",
    "package",
    "prebuild",
    "prepare",
    "report",
    "supports",
    "tune",
    "unpack_bits",
]

_HOME = {name: "evt.errors" for name in __all__ if name.endswith(("Error", "Warning"))}
_HOME |= dict.fromkeys(("Program", "emit", "gemm", "linear", "load"), "evt.program")
_HOME |= dict.fromkeys((name for name in __all__ if name.startswith("conv")), "evt.program")
_HOME |= dict.fromkeys(("GroupedProgram", "grouped_gemm"), "evt.grouped")
_HOME |= dict.fromkeys(("pack_bits", "unpack_bits"), "evt.reference.rounding")
_HOME |= dict.fromkeys(("pack_int4", "prepare"), "evt.reference.int4") | {
    "function": "evt.functions",
    "fuse": "evt.fx.fuse",
    "package": "evt.fx.package",
    "prebuild": "evt.fx.prebuild",
    "report": "evt.fx.report",
    "tune": "evt.fx.tune",
    "channels_last": "evt.runtime.memory_format",
    "Support": "evt.support",
    "supports": "evt.support",
}

#: "never" forbids building kernels in this process, as EVT_COMPILE=never does: E0709.
compile: Literal["auto", "never"] = "auto"

#: Packages that users access by name: ``evt.nn.Linear``.
_ROOMS = ("layout", "nn")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"evt.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'evt' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


def _name_backend(registry: Any) -> None:
    """Register ``backend="evt"`` with PyTorch. An installed package has an entry point for this; a source tree has
    none.
    """
    from importlib.metadata import EntryPoint

    known = getattr(registry, "_BACKENDS", None)
    if isinstance(known, dict):
        known.setdefault("evt", EntryPoint("evt", "evt.fx.backend:backend", "torch_dynamo_backends"))


when_imported("torch._dynamo.backends.registry", _name_backend)
