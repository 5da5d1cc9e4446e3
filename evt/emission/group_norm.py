"""The kernel of a group norm as text: ``emit_group_norm(kernel) -> str``."""

from __future__ import annotations

from evt.emission import environment
from evt.emission.headers import pasted
from evt.emission.text import namespace
from evt.plan.group_norm import GroupNorm
from evt.version import __version__

#: The name of each such kernel; its parameters are one structure.
NAME = "evt_group_norm"


def emit_group_norm(kernel: GroupNorm) -> str:
    """Print a kernel for NVRTC; evt's headers are pasted in."""
    space = namespace(NAME)
    gain = "float" if kernel.gain == "f32" else f"evt::element::{kernel.gain}"
    template = environment().get_template("group_norm.cu.jinja")
    headers = pasted(["group_norm.hpp"], space)
    return template.render(kernel=kernel, gain=gain, headers=headers, name=NAME, namespace=space, version=__version__)


__all__ = ["NAME", "emit_group_norm"]
