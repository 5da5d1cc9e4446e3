"""The rows of the function table for tests: hyper-parameters to try, and PyTorch's results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from evt.functions import TABLE, Function
from evt.functions.target import read_target

# Hyper-parameters other than the defaults. For clamp and prelu they are given for parameters without a default.
OTHERS: dict[str, tuple[tuple[float, ...], ...]] = {
    "leaky_relu": ((0.25,), (-0.5,)),
    "prelu": ((0.25,), (-0.5,)),
    "rrelu": ((0.25, 0.75),),
    "elu": ((2.5,), (-2.0,)),
    "celu": ((2.5,), (0.3,)),
    "softplus": ((2.0, 5.0), (0.75, 30.0)),
    "hardtanh": ((-0.5, 3.0), (0.0, 6.0)),
    "hardshrink": ((1.5,), (-0.5,)),
    "softshrink": ((1.5,), (0.0,)),
    "clamp": ((-0.5, 3.0), (0.0, 6.0)),
}
ROWS = tuple(TABLE.values())


def each(rows: Sequence[Function]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("function", rows, ids=[row.name for row in rows])


def resolve(target: str) -> tuple[Callable[..., Any], list[str], dict[str, Any]]:
    """Return a target's callable, the order of the row's parameters if it says one, and fixed keyword arguments."""
    read = read_target(target)
    root, *path = read.path
    found: Any = {"torch": torch, "operator": operator, "Tensor": torch.Tensor}[root]
    for name in path:
        found = getattr(found, name)
    return found, list(read.order), dict(read.given)


def call_target(function: Function, target: str, arguments: Sequence[Any]) -> Any:
    found, order, fixed = resolve(target)
    named = dict(zip((parameter.name for parameter in function.parameters), arguments, strict=True))
    if isinstance(found, type):
        module = found(0.0, 0.0) if found is torch.nn.Threshold else found(**fixed)
        for name, value in list(named.items())[1:]:
            assert hasattr(module, name)
            setattr(module, name, torch.nn.Parameter(value) if isinstance(value, torch.Tensor) else value)
        return module(arguments[0])
    return found(*([named[name] for name in order] if order else arguments), **fixed)
