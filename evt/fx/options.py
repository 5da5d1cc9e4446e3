"""The options of ``torch.compile(backend="evt")``: ``read_options(mode, options) -> Options``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evt.diagnostics import Diagnostic, shown
from evt.errors import ArgumentError
from evt.request.given import check_kind

#: The rule of :func:`evt.fuse`, and of torch.compile, that changes no bit.
LOSSLESS = "lossless"
#: The rules that decide which regions are fused: if the cost model or a measurement predicts a gain, or always. With
#: the last one, all bits equal eager PyTorch's, and the region is measured to be faster.
RULES = ("estimate", "measure", "always", LOSSLESS)
_OWN = ("evt.rule", "evt.devices", "evt.tune", "evt.frozen")
#: Options of Inductor that choose kernels by measurement. They select the rule "measure".
_MEASURES = ("max_autotune", "max_autotune_gemm")


@dataclass(frozen=True)
class Options:
    """The rule, the kinds of devices whose products are fused, and Inductor's own options (``patches``).

    ``frozen``: parameters do not change between the replays of a CUDA graph.
    """

    rule: str = "estimate"
    devices: Sequence[str] = ("cuda",)
    patches: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            message = f"there is no rule `{self.rule}`"
            raise ArgumentError(Diagnostic("E0607", message, help=f"rules: {', '.join(RULES)}"))
        wanted = 'a tuple of kinds of devices, as in `("cuda",)`'
        check_kind("devices", self.devices, tuple | list, wanted)
        if unknown := [each for each in self.devices if not _is_kind_of_device(each)]:
            raise ArgumentError(Diagnostic("E0607", f"`devices` has {shown(unknown[0])}; expected {wanted}"))
        object.__setattr__(self, "devices", tuple(self.devices))


def _is_kind_of_device(value: object) -> bool:
    """Return whether a value is "cuda", "cpu" or another kind of device, without an index."""
    try:
        return isinstance(value, str) and torch.device(value).type == value
    except RuntimeError:
        return False


def read_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Return the options that torch.compile got as ``mode`` and ``options``. Raise ArgumentError (E0602, E0607).

    ``evt.rule`` is one of :data:`RULES`; ``evt.tune=True`` and Inductor's max-autotune modes select "measure". With
    "lossless" evt fuses regions without a different bit. Inductor compiles groups of elementwise operators alone.
    ``evt.devices`` are kinds of devices. ``evt.frozen=True`` promises that parameters do not change between the replays
    of a CUDA graph. All other options are Inductor's.
    """
    patches: dict[str, Any] = {}
    if mode not in (None, "default"):
        patches.update(torch._inductor.list_mode_options(mode))  # type: ignore[no-untyped-call, unused-ignore]
    if options is not None:
        check_kind("options", options, Mapping, 'a mapping, as in `{"evt.tune": True}`')
    given = dict(options or {})
    if nameless := [name for name in given if not isinstance(name, str)]:
        raise ArgumentError(Diagnostic("E0602", f"there is no option {shown(nameless[0])}", help="options have names"))
    own = {name: given.pop(name) for name in list(given) if name.startswith("evt.")}
    if unknown := next((name for name in own if name not in _OWN), None):
        message = f"there is no option `{unknown}`"
        raise ArgumentError(Diagnostic("E0602", message, help=f"options: {', '.join(_OWN)}; others are Inductor's"))
    for name in ("evt.tune", "evt.frozen"):
        check_kind(name, own.get(name, False), bool, "True or False")
    inductors = {name.replace("-", "_"): value for name, value in given.items()}
    known = torch._inductor.list_options() if inductors else ()
    if unknown := next((name for name in inductors if name not in known), None):
        message = f"neither evt nor Inductor has an option `{unknown}`"
        raise ArgumentError(Diagnostic("E0602", message, help="torch._inductor.list_options() has Inductor's"))
    patches.update(inductors)
    measures = own.get("evt.tune", any(patches.get(name) for name in _MEASURES))
    rule = own.get("evt.rule", "measure" if measures else "estimate")
    return Options(rule, own.get("evt.devices", ("cuda",)), patches, own.get("evt.frozen", False))
