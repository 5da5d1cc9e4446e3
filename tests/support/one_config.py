"""Programs with one kernel each: the choice between configurations has its own test."""

from __future__ import annotations

import evt
from evt.program import program_of


def general_config(op: evt.Program, a: str | None = None, b: str | None = None, arch: str = "sm90") -> evt.Program:
    """Return the program with the configuration that serves every size, the first one."""
    return with_config(op, op.explain(arch, a, b).configurations[0])


def with_config(op: evt.Program, config: str) -> evt.Program:
    """Return the program in one configuration."""
    return program_of(op.request.forced(op.request.settings.route, config))
