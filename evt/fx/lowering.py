"""How Inductor's code calls the program of a region: by a Python function, past PyTorch's dispatcher.

Through ``torch.ops.evt.launch`` each call would pass the schema, the text of the program as a new string, and the
dispatcher, to arrive in Python again. The operator stays what the graph has: Inductor plans memory, CUDA graphs and
symbolic sizes by it, and its code in C++ calls it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V
from torch.utils import _pytree

from evt.runtime.operator import launch

_OPERATOR = torch.ops.evt.launch.default
_NAME = "evt_launch"


class _Launch(ir.FallbackKernel):  # type: ignore[misc, unused-ignore]
    """A call of the operator, written as a call of the function."""

    def codegen(self, wrapper: Any) -> None:
        if not V.graph.cpp_wrapper:
            line = f"from {launch.__module__} import {launch.__name__} as {_NAME}"
            if not wrapper.imports.contains(line):
                wrapper.imports.writeline(line)
            self.python_kernel_name = _NAME
        super().codegen(wrapper)


def _lower(*given: Any) -> Any:
    return _pytree.tree_map(ir.TensorBox.create, _Launch.create(_OPERATOR, *given))


def register() -> None:
    """Let Inductor lower the operator so; operands keep the order of strides for which the kernel was planned."""
    made: Any = lowering
    made.make_fallback(_OPERATOR, made.constrain_to_fx_strides, warn=False)
    made.register_lowering(_OPERATOR, type_promotion_kind=None)(_lower)
