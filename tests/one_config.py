"""Programs with one kernel each: the choice between configurations has its own test."""

from __future__ import annotations

from dataclasses import replace

import evt


def general_config(op: evt.Program, a: str | None = None, b: str | None = None, arch: str = "sm90") -> evt.Program:
    """The program with the configuration that serves every size, the first one."""
    op.settings = replace(op.settings, config=op.explain(arch, a, b).configurations[0])
    return op
