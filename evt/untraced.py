"""Control of TorchDynamo: it skips evt's functions, traces replacements, or breaks the graph."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The message of torch.compile with ``fullgraph=True``.
_REASON = "grouped programs and the reference are not traced: omit fullgraph=True, or call them outside"

#: Functions whose frames TorchDynamo must still be told to skip. PyTorch may not be imported yet.
_untold: list[Callable[..., Any]] = []


def untraced(function: _Function) -> _Function:
    """Mark a function so that TorchDynamo neither traces nor compiles it or the functions that it calls."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
    _untold.append(function)
    return function


def inlined_as(traced: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Mark a function so that TorchDynamo traces another one instead, and compiles no frame of it."""

    def mark(function: _Function) -> _Function:
        function._torchdynamo_inline = traced  # type: ignore[attr-defined]
        _untold.append(function)
        return function

    return mark


def skip_frames() -> None:
    """Tell TorchDynamo, if PyTorch is imported, to skip the frames of marked functions and of all functions that they
    call.

    This has no cost per call. torch.compiler.disable would import all of torch.compile and wrap every call. Before
    PyTorch 2.8, TorchDynamo skips the frames of single functions only, so each function of evt is registered.
    """
    torch = sys.modules.get("torch")
    while torch is not None and _untold:
        dynamo, code = torch._C._dynamo.eval_frame, _untold.pop().__code__
        if hasattr(dynamo, "set_code_exec_strategy"):
            skip = dynamo._FrameAction.SKIP
            dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, skip))
        else:
            for each in _codes_of_evt():
                dynamo.skip_code(each)


def _codes_of_evt() -> Iterator[CodeType]:
    """Yield the code of every imported function of evt and of its inner functions, except evt.nn's modules."""
    root, modules = str(Path(__file__).parent), str(Path(__file__).parent / "nn")
    functions = (each for each in gc.get_objects() if type(each) is FunctionType)
    codes = [each.__code__ for each in functions if each.__code__.co_filename.startswith(root)]
    codes = [each for each in codes if not each.co_filename.startswith(modules)]
    while codes:
        yield (code := codes.pop())
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
