"""Operators of programs in Inductor's C++ code: ``call_in_cpp(operator, arguments)``, and lowerings that call it.

PyTorch's C++ code does not quote the strings that it passes, so it gets programs in digits. It treats a list of one
tensor as a tensor, so a program of one result is called by the overload ``one``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from evt.request import in_digits, read_request


def is_cpp(graph: Any) -> bool:
    """Return whether Inductor writes a graph in C++ that runs in this process; a package calls operators otherwise."""
    return bool(graph.cpp_wrapper) and not graph.aot_mode


def call_in_cpp(operator: Any, arguments: tuple[Any, ...]) -> Any:
    """Add a call of ``run``, ``launch``, ``allocate`` or ``write`` to Inductor's graph; return its results."""
    from torch._inductor import lowering

    handler: Any = lowering.fallback_handler
    named = {each.name: value for each, value in zip(operator._schema.arguments, arguments, strict=False)}
    outputs = named["outputs"] if "outputs" in named else read_request(named["program"]).outputs
    given = [in_digits(value) if name == "program" else value for name, value in named.items()]
    packet = torch.ops.evt.launch if operator is torch.ops.evt.run.default else operator.overloadpacket
    if len(outputs) == 1 and operator is not torch.ops.evt.write.default:
        return [handler(packet.one, add_to_fallback_set=False)(*given)]
    return handler(operator, add_to_fallback_set=False)(*given)


def _lowered(operator: Any, fallback: Any) -> Callable[..., Any]:
    from torch._inductor.virtualized import V

    def lower(*given: Any) -> Any:
        return call_in_cpp(operator, given) if is_cpp(V.graph) else fallback(*given)

    return lower


def register(lowering: Any) -> None:
    """Let Inductor lower operators of programs so; operands keep the order of the strides that were traced."""
    for name in ("run", "allocate", "write"):
        operator = getattr(torch.ops.evt, name).default
        lowering.make_fallback(operator, lowering.constrain_to_fx_strides, warn=False)
        fallback = lowering.fallback_handler(operator, add_to_fallback_set=False)
        lowering.register_lowering(operator, type_promotion_kind=None)(_lowered(operator, fallback))


__all__ = ["call_in_cpp", "is_cpp", "register"]
