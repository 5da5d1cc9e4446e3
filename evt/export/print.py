"""The templates of exported packages: ``rendered(template, values) -> str``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

from evt import resources
from evt.version import __version__


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Return a template of ``codegen/export`` with everything in its place."""
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
