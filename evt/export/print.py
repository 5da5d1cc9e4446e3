"""The templates of exported packages, ``rendered(template, values) -> str``, and their descriptions of programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jinja2

from evt import resources
from evt.export.kernels import Kernel
from evt.version import __version__


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Return a rendered template of ``codegen/export``."""
    text = _environment().get_template(template).render(version=__version__, **values)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.directory("codegen") / "export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        autoescape=False,
    )


def text_of(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Return the lines of a program's text and of its interface, for comments and READMEs."""
    plan = kernels[0].plan
    lines = (*plan.program.strip().splitlines(), "", *plan.interface)
    return tuple("".join(each if each.isprintable() else "?" for each in line).rstrip("\\ ") for line in lines)


def kernel_row(kernel: Kernel) -> Mapping[str, str]:
    """Return a README's row for a kernel."""
    tensors = (
        f"{need.name}: {need.contiguous} contiguous"
        + (f", in multiples of {need.alignment}" * (need.alignment > 1))
        + (f", {'one for all batches' if need.batch == 'shared' else ''}" if need.batch == "shared" else "")
        for need in kernel.needs
        if need.alignment > 1 or need.batch == "shared"
    )
    takes = "; ".join((*tensors, *(f"without {name}" for name in kernel.absent)))
    capabilities = ", ".join(f"{each // 10}.{each % 10}" for each in kernel.capabilities)
    return {"name": kernel.emitted.name, "capabilities": capabilities, "takes": takes}
