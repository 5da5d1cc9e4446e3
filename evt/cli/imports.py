"""``--import``: import of modules that register functions for the programs of a command."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import click


def import_all(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> None:
    """Import modules, which register functions: by name, also from the current folder, or by the path of a file.

    Raise the EvtErrors of the modules, and click.BadParameter for any other failure.
    """
    for name in names:
        if error := _failure(name):
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise click.BadParameter(f"`{name}` cannot be imported: {what}", ctx, parameter) from error


def _failure(name: str) -> Exception | SystemExit | None:
    """Import a module. Return the exception that it raises, unless that is an EvtError."""
    from evt.errors import EvtError

    try:
        with _current_folder():
            _from_file(name) if name.endswith(".py") else importlib.import_module(name)
    except EvtError:
        raise
    except (Exception, SystemExit) as error:  # a module may raise any exception
        return error
    return None


def _from_file(path: str) -> ModuleType:
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Search the current folder for modules first, as Python does for a script."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.pop(0)
