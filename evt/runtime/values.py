"""The checks of a call's values before their types and sizes: names, kinds, ranges of numbers, and devices."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from evt.diagnostics import closest
from evt.ir import Dag, Input, Load, Random
from evt.ir.dtype import BOOL, F32, I32, I64, SCALARS
from evt.ir.interface import declaration
from evt.ir.node import written
from evt.request.given import as_keyword
from evt.runtime.report import CallDiagnostics, copied_back
from evt.runtime.tensor_checks import is_number

#: Types whose numbers are whole.
WHOLE = frozenset({I64, I32, BOOL})


def check_names(dag: Dag, inputs: Mapping[str, object], buffers: Mapping[str, object], report: CallDiagnostics) -> None:
    for name in inputs:
        if name not in dag.input:
            guess = closest(name, [i.name for i in dag.inputs if i.name not in inputs])
            known = ", ".join(i.name for i in dag.inputs) or "none"
            report(
                "E0602",
                f"the program has no input `{name}`",
                f"did you mean `{guess}`?" if guess else f"inputs: {known}",
            )
    for value in dag.inputs:
        if value.name not in inputs and value.default is None:
            report(
                "E0601",
                f"the input `{value.name}` is missing",
                f"pass {as_keyword(value.name)}, {_wanted(value)}"
                + (f" of [{', '.join(map(written, value.modes))}]" if value.modes else ""),
            )
    for name in buffers:
        if name not in dag.output:
            outputs = ", ".join(o.name for o in dag.outputs)
            report("E0602", f"the program has no output `{name}`", f"outputs: {outputs}")


def is_number_of(declared: Input, value: object) -> bool:
    """Return whether a value is a number for an input: True and False are numbers of a truth value."""
    return is_number(value) or (declared.dtype == BOOL and isinstance(value, bool))


def _wanted(value: Input | None) -> str:
    if value is not None and value.flexible:
        return "a vector or a single value"
    return "a number or a one-element tensor" if value is not None and value.is_scalar else "a tensor"


def integer_range(dag: Dag, name: str) -> tuple[int, int]:
    """Return the least and the greatest whole number that an input takes; seeds and offsets may be unsigned."""
    dtype = dag.input[name].dtype
    if dtype == BOOL:
        return 0, 1
    bits = 63 if dtype == I64 else 31
    users = (dag[user] for node in range(len(dag)) if dag[node] == Load(name) for user in dag.users[node])
    return -(2**bits), 2 ** (bits + any(isinstance(user, Random) for user in users)) - 1


def check_number(dag: Dag, declared: Input, value: Any, report: CallDiagnostics) -> None:
    try:
        whole = float(value).is_integer()
    except OverflowError:
        report("E0607", f"`{declared.name}` is a number beyond the range of a double")
        return
    if declared.dtype in WHOLE:
        least, most = integer_range(dag, declared.name)
        if not whole or not least <= value <= most:
            report("E0607", f"`{declared.name}` is {value!r}; expected a whole number from {least} to {most}")


def refuse_kind(name: str, value: object, declared: Input | None, report: CallDiagnostics) -> None:
    """Report a value that is neither a tensor nor an accepted number."""
    message, hint = f"`{name}` is {_describe(value)}; expected {_wanted(declared)}", ""
    if declared is not None and value is None:
        message = f"`{name}` is None, and the program gives it no default; expected {_wanted(declared)}"
        written_so = declaration(name, declared.dtype, declared.modes, declared.flexible)
        hint = f"declare a default to leave it out: `in {written_so} = 0`"
    elif declared is not None and is_number(value):
        hint = f"declare it a scalar: `in {declaration(name, declared.dtype if declared.dtype in SCALARS else F32)}`"
        if declared.modes in (("m",), ("n",)) and declared.dtype is not None:
            hint += f"; or a vector or a scalar: `in {declaration(name, declared.dtype, declared.modes, True)}`"
    elif hasattr(type(value), "__array__") or isinstance(value, list | tuple):
        hint = f"convert it: torch.as_tensor({name})"
    report("E0607", message, hint)


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if is_number(value):
        return "a number"
    return f"of type {type(value).__name__}"


def check_devices(
    tensors: Mapping[str, torch.Tensor], buffers: Container[str], kinds: Sequence[str], report: CallDiagnostics
) -> None:
    device = tensors["A"].device
    for name, tensor in tensors.items():
        if tensor.device != device:
            move = f"to('{device}')"
            hint = copied_back(name, move) if name in buffers else f"move it: {name}.{move}"
            report("E0605", f"`{name}` is on {tensor.device}, A is on {device}", hint)
    if device.type not in kinds:
        report("E0605", f"A is on {device}", "tensors must be on a CUDA device, or on the CPU for the reference")
