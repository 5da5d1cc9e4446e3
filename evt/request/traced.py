"""What a graph of PyTorch's keeps of a program: ``traced(request) -> Traced``, as TorchDynamo can guard on it."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from evt.request.request import Request, remembered


class Traced(NamedTuple):
    """A program as text, which :func:`read_request` reads, the names of its outputs, and the type of several results.

    TorchDynamo compares all of it before each call of what it compiled, and so sees when a name holds another program.
    """

    text: str
    outputs: tuple[str, ...]
    result: Any


@remembered
def traced(request: Request) -> Traced:
    """Return what a traced call of a program needs."""
    return Traced(json.dumps(request.__getstate__(), sort_keys=True), request.outputs, result_type(request.outputs))


def in_digits(text: str) -> str:
    """Return a program's text in hexadecimal digits, for code that is written without a thought of quotes."""
    return text.encode().hex()


def read_request(text: str) -> Request:
    """Return the program that a text describes, also in digits. Raise ArgumentError (E0613, E0657)."""
    try:
        state = json.loads(text if text.startswith("{") else bytes.fromhex(text))
    except ValueError:
        state = None
    request = Request.__new__(Request)
    request.__setstate__(state if isinstance(state, dict) else {})  # which is no program's
    return request


@cache
def result_type(outputs: Sequence[str]) -> Any:
    """Return the namedtuple of several outputs, or None for one; an impossible name is one by position."""
    names: Any = outputs
    return namedtuple("Outputs", names, rename=True) if len(outputs) > 1 else None
