"""Emission: ``emit(plan) -> str``, the text of one self-contained .cu file; ``emitted`` has its C header too."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import jinja2
import jinja2.compiler
from jinja2.bccache import Bucket

from evt import resources
from evt.diagnostics import Diagnostic
from evt.emission.headers import needed, pasted
from evt.emission.kernel import spell
from evt.errors import ArgumentError
from evt.plan import Plan
from evt.storage import derived
from evt.version import __version__

__all__ = ["Emitted", "emit", "emitted"]

#: In the place of a kernel's name, while its text is not known: no C++ has it.
_UNNAMED = "\0"
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel's C++ and the C header of its functions, whose names begin with ``name``."""

    name: str
    text: str
    header: str


def emit(plan: Plan, name: str | None = None) -> str:
    """Print a plan. The text needs the CUTLASS and CUDA headers only; evt's headers are pasted in.

    ``name`` begins the names of its functions; the default is a hash of the text. Raises ArgumentError (E0607) for an
    invalid C name.
    """
    return emitted(plan, name).text


def emitted(plan: Plan, name: str | None = None) -> Emitted:
    """Print a plan, and the header of its functions. Raises ArgumentError (E0607) for an invalid C name."""
    if name is not None:
        _check_name(name)
    return _emitted(plan, plan.origins, name)


@lru_cache(maxsize=64)
def _emitted(plan: Plan, origins: tuple[str, ...], name: str | None) -> Emitted:
    """Return the texts of a plan. Equal plans with equal ``origins``, which the text shows, share one result."""
    text = spell(plan, _UNNAMED)
    headers = pasted(needed(plan, text.functors), text.namespace)

    def filled(template: str) -> str:
        """Return a filled-in template, without the empty lines of absent parts."""
        printed = environment().get_template(template).render(text=text, headers=headers, version=__version__)
        while "\n\n\n" in printed:
            printed = printed.replace("\n\n\n", "\n\n")
        return printed.rstrip() + "\n"

    kernel, header = filled(f"{plan.template}.cu.jinja"), filled("header.h.jinja")
    name = name or f"evt_{hashlib.sha256(kernel.encode()).hexdigest()[:12]}"
    return Emitted(name, kernel.replace(_UNNAMED, name), header.replace(_UNNAMED, name))


def _check_name(name: str) -> None:
    """Raise ArgumentError (E0607) for an invalid beginning of a C function's name."""
    if re.fullmatch(rf"[A-Za-z][A-Za-z0-9_]{{0,{_LONGEST_NAME - 1}}}", name):
        return
    message = f"`name` is {name!r}; expected a letter, then letters, digits and underscores, at most {_LONGEST_NAME}"
    suggested = re.sub(r"[^A-Za-z0-9_]+", "_", name).lstrip("_0123456789")[:_LONGEST_NAME]
    raise ArgumentError(Diagnostic("E0607", message, help=f"name it `{suggested or 'my_kernel'}`"))


#: The options that decide a template's code.
_SYNTAX: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}


class _Compiled(jinja2.BytecodeCache):
    """The code of templates, kept on disk: compiling an emission's templates takes 60 ms."""

    def load_bytecode(self, bucket: Bucket) -> None:
        if code := derived.find(bucket.key, self._key(bucket)):
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        derived.keep(bucket.key, self._key(bucket), bucket.bytecode_to_string())

    def _key(self, bucket: Bucket) -> str:
        compiler = os.stat(jinja2.compiler.__file__)
        return f"{compiler.st_size} {compiler.st_mtime_ns}, Python {sys.version}: {_SYNTAX} {bucket.checksum}"

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the template's name, which is unique."""
        return name


@cache
def environment() -> jinja2.Environment:
    """Return the templates."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.directory("codegen") / "templates"),
        undefined=jinja2.StrictUndefined,
        **_SYNTAX,
        bytecode_cache=_Compiled(),
        auto_reload=False,  # it would check every file at every emission
        autoescape=False,  # C++, not HTML; every name that reaches a template is ours
    )
    environment.filters["cute_int"] = lambda number: f"cute::Int<{number}>"
    environment.filters["c_string"] = json.dumps
    environment.filters["declare"] = lambda parameter: f"[[maybe_unused]] {parameter[0]} {parameter[1]}"
    environment.filters["inside"] = lambda name, template: f"{template}<{name}>" if template else name
    environment.filters["member_of"] = lambda name, owner: f"{owner}.{name}"
    environment.filters["template_arguments"] = lambda names: f"<{', '.join(names)}>" if names else ""
    return environment
