"""The reference of the Python interface: directives that take the docstrings of every public name."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import evt
import evt.layout
import evt.nn

_CONVOLUTIONS = [name for name in evt.__all__ if name.startswith("conv")]
_ERRORS = [name for name in evt.__all__ if name.endswith(("Error", "Warning"))]
#: The names of `import evt` by subject.
_SUBJECTS = {
    "Programs": [
        *("gemm", "linear", "grouped_gemm", *_CONVOLUTIONS, "load", "emit", "supports"),
        *("Program", "GroupedProgram", "Support", "ir.Builder"),
    ],
    "Models": ["fuse", "report", "prebuild", "package", "tune", "fx.fuse.fusion", "fx.backend.FusePass"],
    "Results": [
        *("explanation.Explanation", "estimate.estimate.Estimate", "gradient.derive.Gradient", "tuning.table.Tuning"),
        *("draw.drawing.Drawing", "fx.report.Report", "fx.regions.Fusion"),
    ],
    "Functions and tensors": ["function", "channels_last", "pack_bits", "unpack_bits"],
    "Errors and warnings": _ERRORS,
}


def _others() -> dict[str, list[str]]:
    """Return public names that have no subject yet."""
    placed = {name for names in _SUBJECTS.values() for name in names}
    others = [name for name in evt.__all__ if name not in placed and not name.startswith("__")]
    return {"Others": others} if others else {}


#: Pages by name: a title, an introduction, the module, and its public names by subject.
_MODULES = {
    "evt": ("The package evt", "The names of `import evt`.", evt, {**_SUBJECTS, **_others()}),
    "nn": ("evt.nn", "Layers with an epilogue.", evt.nn, {"": evt.nn.__all__}),
    "layout": (
        "evt.layout",
        "CuTe's layout algebra ([layouts](../layouts.md)).",
        evt.layout,
        {"": [name for name in evt.layout.__all__ if name not in evt.__all__]},
    ),
}


def pages() -> dict[str, str]:
    """Return a page for each public module, and their index."""
    found = {f"api/{name}.md": _page(name) for name in _MODULES}
    names = "\n".join(f"/api/{name}" for name in (*_MODULES, "settings"))
    found["api/index.md"] = (
        "# Python interface\n\n`import evt` is fast: each public name imports its module at its first use.\n\n"
        f"```{{toctree}}\n\n{names}\n```\n"
    )
    found["api/settings.md"] = (
        "# Settings\n\nThe keywords of `evt.gemm`, `evt.conv2d`, `evt.fuse` and the other makers of programs.\n\n"
        + _directive("autoclass", "evt.settings.Settings")
    )
    return found


def _page(name: str) -> str:
    title, introduction, module, subjects = _MODULES[name]
    parts = [f"# {title}\n\n{introduction}\n"]
    for subject, names in subjects.items():
        parts += [f"## {subject}\n"] if subject else []
        for each in names:
            value = _found(module, each)
            parts.append(_directive(_kind(value), f"{module.__name__}.{each}", value))
    return "\n".join(parts)


def _found(module: ModuleType, name: str) -> object:
    """Return a public name of a module, or a name of one of its modules: ``fx.fuse.fusion``."""
    inner, _, last = name.rpartition(".")
    return getattr(importlib.import_module(f"{module.__name__}.{inner}") if inner else module, last)


def _kind(value: object) -> str:
    """Return the directive for a value."""
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def _directive(kind: str, name: str, value: object = None) -> str:
    if isinstance(value, str):  # the name of a type, whose docstring would be the one of strings
        return f"```{{eval-rst}}\n.. py:data:: {name}\n   :value: {value}\n```\n"
    members = "\n   :members:" if kind == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {kind}:: {name}{members}\n```\n"
