"""Import hooks, which keep ``import evt`` light: ``when_imported(name, then)``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[ModuleType], object]) -> None:
    """Call ``then`` with a module: now if it is imported, otherwise after its first import."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Awaited(name, then))
    else:
        then(module)


class _Awaited:
    """A finder of one module, which the other finders locate and load."""

    def __init__(self, name: str, then: Callable[[ModuleType], object]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.then)  # type: ignore[assignment]
        return spec


class _Loader:
    """A loader that runs a module's own loader, and then calls a function."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], object]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self.loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.then(module)


__all__ = ["when_imported"]
