"""The representation of a program in PyTorch's graphs: ``traced(request) -> Traced``, which TorchDynamo can guard
on.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from evt.request.request import Request, remembered


class Traced(NamedTuple):
    """A program as text (see :func:`read_request`), the names of its outputs, and the type of several results.

    TorchDynamo compares these values before each call of a compiled graph, and so detects a name with another program.
    """

    text: str
    outputs: tuple[str, ...]
    result: Any


@remembered
def traced(request: Request) -> Traced:
    """Return the values that a traced call of a program needs."""
    return Traced(json.dumps(request.__getstate__(), sort_keys=True), request.outputs, result_type(request.outputs))


def in_digits(text: str) -> str:
    """Return a program's text in hexadecimal digits, for generated code without quoting."""
    return text.encode().hex()


def read_request(text: str) -> Request:
    """Return the request of a text, which may be in hexadecimal digits. Raise ArgumentError (E0613, E0657)."""
    try:
        state = json.loads(text if text.startswith("{") else bytes.fromhex(text))
    except ValueError:
        state = None
    request = Request.__new__(Request)
    request.__setstate__(state if isinstance(state, dict) else {})  # which is not a program's state
    return request


@cache
def result_type(outputs: Sequence[str]) -> Any:
    """Return the namedtuple type of several outputs, or None for one output.

    A name that cannot be a field is replaced by its position.
    """
    names: Any = outputs
    return namedtuple("Outputs", names, rename=True) if len(outputs) > 1 else None
