"""The reference of the Python interface: directives that take the docstrings of every public name."""

from __future__ import annotations

import inspect

import evt
import evt.layout
import evt.nn

#: Pages by name: a title, an introduction, the module, and its public names.
_MODULES = {
    "evt": ("Programs, models and errors", "The names of `import evt`.", evt, evt.__all__),
    "nn": ("evt.nn", "Layers with an epilogue.", evt.nn, evt.nn.__all__),
    "layout": ("evt.layout", "CuTe's layout algebra ([layouts](../layouts.md)).", evt.layout, evt.layout.__all__),
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
    title, introduction, module, names = _MODULES[name]
    documented = [each for each in names if not each.startswith("__") and (module is evt or each not in evt.__all__)]
    directives = (_directive(_kind(getattr(module, each)), f"{module.__name__}.{each}") for each in documented)
    return f"# {title}\n\n{introduction}\n\n" + "\n".join(directives)


def _kind(value: object) -> str:
    """Return the directive for a value."""
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def _directive(kind: str, name: str) -> str:
    members = "\n   :members:" if kind == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {kind}:: {name}{members}\n```\n"
