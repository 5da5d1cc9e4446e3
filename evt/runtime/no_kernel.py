"""Calls that the CPU computes and for which no GPU would have a kernel: ``warn_without_kernel(plan)`` warns."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Hashable
from pathlib import Path

from evt.errors import EvtError, InternalError, NoKernelWarning, TargetError
from evt.plan import TARGETS, Target, find_target
from evt.runtime.bound import Bound

#: The target that is tried first: it has every kernel that older targets have.
_YARDSTICK = "sm90"
#: The number of kinds of calls that are remembered before all are dropped.
_MOST_JUDGED = 4096

#: Plans a call's kernels for a target, or raises the errors of such a call.
Planning = Callable[[Target], object]


class KernelWarnings:
    """A warning, once for each kind of call that the CPU computes and that no kernel supports. It is thread-safe."""

    def __init__(self) -> None:
        self._judged: set[Hashable] = set()
        self._lock = threading.Lock()

    def __call__(self, kind: Hashable, plan: Planning, bound: Bound) -> None:
        """Judge the first call of each kind; ``bound`` has the layouts that the advice depends on.

        Raise TargetError (E0501) if the program names a route or a configuration that no target has.
        """
        with self._lock:
            if kind in self._judged:
                return
            if len(self._judged) >= _MOST_JUDGED:
                self._judged.clear()
            self._judged.add(kind)
        try:
            warn_without_kernel(plan, advice(bound))
        except TargetError:
            with self._lock:  # the next call is refused, too
                self._judged.discard(kind)
            raise


def warn_without_kernel(plan: Planning, help_text: str = "") -> None:
    """Warn with NoKernelWarning where ``plan`` has no kernel for sm90; the warning names the targets that have one.

    Other errors in planning are not raised: the CPU's result does not depend on it. Raise TargetError (E0501) if no
    target has the route or the configuration that the program names.
    """
    error = _refusal(plan, find_target(_YARDSTICK))
    if error is None:
        return
    refused = error.diagnostics[0]
    others = [name for name, target in TARGETS.items() if name != _YARDSTICK and _refusal(plan, target) is None]
    if refused.code == "E0501" and not others:
        raise error
    where = f"{_YARDSTICK}, only on {', '.join(others)}" if others else "any GPU"
    help_text = help_text or refused.help or "op.explain(arch, shapes=(A.shape, B.shape)) has the rules of every route"
    reason = refused.message.partition(": ")[2] if refused.code == "E0503" else refused.message
    lines = [
        f"no kernel of evt computes this call on {where}; the CPU computed the reference",
        f"{refused.code}: {reason}",
        f"help: {help_text}",
    ]
    warnings.warn("\n".join(lines), NoKernelWarning, stacklevel=_user_level())


def _refusal(plan: Planning, target: Target) -> EvtError | None:
    """Return why a target has no kernel, or None if it has one, or if planning itself fails."""
    try:
        plan(target)
    except InternalError:
        return None
    except EvtError as error:
        return error
    except Exception:  # a bug that a call on a GPU shows; the CPU's result must not be lost
        return None
    return None


def advice(bound: Bound) -> str:
    """Return the advice about operands, if there is any: 8-bit operands must be contiguous along k."""
    for operand in bound.dag.operands:
        layout = bound.tensors[operand.name].layout
        if operand.dtype.bits == 8 and bound.convolution is None and layout.contiguous != "k":
            shown = operand.name
            return f"pass {shown}.mT.contiguous().mT" if operand.modes[-1] != "k" else f"pass {shown}.contiguous()"
    return ""


def _user_level() -> int:
    """Return the stack level of the first caller outside of evt, for warnings.warn in the calling function."""
    root = str(Path(__file__).parents[1])
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(root):
        frame, level = frame.f_back, level + 1
    return level
