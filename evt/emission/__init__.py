"""Emission: ``emit(plan) -> str``, the text of one self-contained .cu file."""

from __future__ import annotations

import json
from functools import cache

import jinja2

from evt import resources
from evt.emission.headers import needed, pasted
from evt.emission.kernel import spell
from evt.plan import Plan
from evt.version import __version__

__all__ = ["emit"]


def emit(plan: Plan) -> str:
    """Return a plan as text. It needs only the CUTLASS and CUDA headers; what it uses of ours is pasted in."""
    text = spell(plan)
    template = _environment().get_template(f"{plan.template}.cu.jinja")
    return template.render(text=text, headers=pasted(needed(plan, text.functors)), version=__version__)


#: The types of the members of evt_arguments, by kind.
_MEMBERS = {"size": "std::int64_t", "pointer": "void const*", "number": "double", "integer": "std::int64_t"}


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.directory("codegen") / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # it would check every file at every emission
        autoescape=False,  # C++, not HTML; every name that reaches a template is ours
    )
    environment.filters["cute_int"] = lambda number: f"cute::Int<{number}>"
    environment.filters["c_string"] = json.dumps
    environment.filters["declare"] = lambda parameter: f"[[maybe_unused]] {parameter[0]} {parameter[1]}"
    environment.filters["inside"] = lambda name, template: f"{template}<{name}>" if template else name
    environment.filters["member_of"] = lambda name, owner: f"{owner}.{name}"
    environment.filters["member_type"] = _MEMBERS.get
    environment.filters["template_arguments"] = lambda names: f"<{', '.join(names)}>" if names else ""
    return environment
