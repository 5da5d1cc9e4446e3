"""What a graph of PyTorch's keeps of a program: ``traced(spec) -> Traced``, as TorchDynamo can guard on it."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from evt.spec.spec import Spec, remembered


class Traced(NamedTuple):
    """A program as text, which :func:`read_spec` reads, the names of its outputs, and the type of several results.

    TorchDynamo compares all of it before each call of what it compiled, and so sees when a name holds another program.
    """

    text: str
    outputs: tuple[str, ...]
    result: Any


@remembered
def traced(spec: Spec) -> Traced:
    """Return what a traced call of a program needs."""
    return Traced(json.dumps(spec.__getstate__(), sort_keys=True), spec.outputs, result_type(spec.outputs))


def in_digits(text: str) -> str:
    """Return a program's text in hexadecimal digits, for code that is written without a thought of quotes."""
    return text.encode().hex()


def read_spec(text: str) -> Spec:
    """Return the program that a text describes, also in digits. Raise ArgumentError (E0613, E0657)."""
    try:
        state = json.loads(text if text.startswith("{") else bytes.fromhex(text))
    except ValueError:
        state = None
    spec = Spec.__new__(Spec)
    spec.__setstate__(state if isinstance(state, dict) else {})  # which is no program's
    return spec


@cache
def result_type(outputs: Sequence[str]) -> Any:
    """Return the namedtuple of several outputs, or None for one; an impossible name is one by position."""
    names: Any = outputs
    return namedtuple("Outputs", names, rename=True) if len(outputs) > 1 else None
