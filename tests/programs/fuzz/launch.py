"""A problem run by its kernel: twice, on poisoned buffers with canaries: ``launched(call) -> Launch``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .calls import Call
from .memory import POISON, Kept, differing, unwritten

#: The time limit of a launch, in seconds.
PATIENCE = 30.0

#: An output as bytes, which travel between processes: its elements, its type and its shape.
Stored = tuple[np.ndarray, str, tuple[int, ...]]


class StuckError(Exception):
    """A launch that does not end."""


@dataclass(frozen=True)
class Fault:
    """A fault: ``canary``, ``input``, ``unwritten``, ``bits``, ``value``, ``kernel`` or ``error``, with its details."""

    kind: str
    detail: str


@dataclass
class Launch:
    """The faults of a launch so far, and the outputs of the first run, for each member of the call."""

    faults: list[Fault] = field(default_factory=list)
    outputs: list[Mapping[str, Stored]] = field(default_factory=list)


def launched(
    call: Call, deterministic: bool = True, run: Callable[[Call], None] = Call.run, patience: float = PATIENCE
) -> Launch:
    """Run a call twice, with buffers of different poison. Raise StuckError."""
    result = Launch()
    runs = [call, call.poisoned(POISON[1])]
    for each in runs:
        run(each)
        _wait(each, patience)
    for index, member in enumerate(call.members):
        at = f"group {index}: " if call.grouped else ""
        for name, kept in member.read:
            if not kept.is_unchanged():
                result.faults.append(Fault("input", f"{at}the kernel writes to `{name}`"))
        for name in member.outputs:
            result.faults += _faults(f"{at}{name}", [each.members[index].outputs[name] for each in runs], deterministic)
    result.outputs += [{name: stored(value) for name, value in each.items()} for each in call.results()]
    return result


def _faults(name: str, runs: list[Kept], deterministic: bool) -> list[Fault]:
    found = [Fault("canary", f"{name}: {touched}") for each in runs if (touched := each.touched())][:1]
    left = 0 if runs[0].holds else unwritten(runs)
    if left:
        found.append(Fault("unwritten", f"{name}: {left} elements"))
    elif deterministic and (count := differing(runs)):
        found.append(Fault("bits", f"{name}: {count} elements differ between two runs"))
    return found


def _wait(call: Call, patience: float) -> None:
    """Wait for a launch. Raise StuckError when it does not end in time."""
    if call.members[0].a.buffer.device.type != "cuda":
        return
    event = torch.cuda.Event()
    event.record()
    until = time.monotonic() + patience
    while not event.query():
        if time.monotonic() > until:
            raise StuckError(f"a launch takes more than {patience:.0f} s")
        time.sleep(1e-4)


def stored(tensor: torch.Tensor) -> Stored:
    """Return a tensor's elements as bytes."""
    whole = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return whole.reshape(-1).view(torch.uint8).numpy(), str(whole.dtype).removeprefix("torch."), tuple(whole.shape)


def restored(found: Stored) -> Any:
    """Return the tensor of bytes."""
    elements, dtype, shape = found
    made = torch.empty(shape, dtype=getattr(torch, dtype))
    if made.numel():
        made.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(np.ascontiguousarray(elements)))
    return made
