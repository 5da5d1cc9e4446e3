"""The reason why an operator is not fused: ``SkipReason``, a code with a page, a place and a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch.fx import Node

from evt.diagnostics import Diagnostic

#: The folders of PyTorch and of evt, whose frames are not the user's code.
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class SkipReason:
    """A node that joins no region, or a product that is not fused: the code (E10xx) and the reason."""

    node: Node
    code: str
    reason: str

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"{self.code} {self.node.name}{place}: {self.reason}"

    @cached_property
    def place(self) -> str:
        """The line of the user's code that made the node, ``model.py:12``, or "" if unknown."""
        frames = _FRAME.finditer(self.node.meta.get("stack_trace") or "")
        lines = [f"{each['file']}:{each['line']}" for each in frames if not each["file"].startswith(_LIBRARIES)]
        return lines[-1] if lines else ""

    @property
    def diagnostic(self) -> Diagnostic:
        """The reason as a diagnostic."""
        notes = (f"fx node: {self.node.format_node() or self.node.name}", *((self.place,) if self.place else ()))
        return Diagnostic(self.code, f"`{self.node.name}` is not fused: {self.reason}", notes=notes)
