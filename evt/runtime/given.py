"""The inputs and the output buffers that a call gives, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Dag, Input


def given_inputs(dag: Dag, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that a call gives: None leaves out an input with a default."""
    return {name: value for name, value in inputs.items() if value is not None or not _has_default(dag, name)}


def _has_default(dag: Dag, name: str) -> bool:
    declared = dag.input.get(name)
    return declared is not None and declared.default is not None


def given_buffers(buffers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the buffers that a call gives; the call allocates an output for None."""
    return {name: value for name, value in buffers.items() if value is not None}


def buffers_of(outputs: Sequence[str], out: object, wanted: str = "") -> Mapping[str, Any]:
    """Return the output buffers of ``out=`` by name. Raise ArgumentError (E0608): ``wanted`` is expected."""
    if len(outputs) == 1 and isinstance(out, torch.Tensor):
        return {outputs[0]: out}
    if isinstance(out, Mapping):
        return out
    if isinstance(out, tuple | list) and len(out) == len(outputs):
        return dict(zip(outputs, out, strict=True))
    several = f"a tuple of {len(outputs)} tensors ({', '.join(outputs)})"
    wanted = wanted or ("a tensor" if len(outputs) == 1 else several)
    raise ArgumentError(Diagnostic("E0608", f"`out` is of type {type(out).__name__}; expected {wanted}"))


def joined_buffers(named: Mapping[str, Any], buffers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the buffers that a call names by keyword, or that ``out=`` has. Raise ArgumentError (E0602) for both."""
    if named and buffers:
        message = f"`out` and `{next(iter(named))}` both name output buffers"
        raise ArgumentError(Diagnostic("E0602", message, help="give one"))
    return {**named, **buffers}


def split_held(dag: Dag, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs among a call's values, and the buffers of scattered outputs, which keep their other rows."""
    held = {output.name for output in dag.outputs if output.is_indexed}
    return (
        {name: value for name, value in given.items() if name not in held},
        {name: value for name, value in given.items() if name in held},
    )


def is_absent(value: Input, inputs: Mapping[str, object]) -> bool:
    """Return whether a call leaves out a tensor that has a default: its kernel is compiled without it."""
    return value.name not in inputs and value.default is not None and not (value.is_scalar or value.flexible)
