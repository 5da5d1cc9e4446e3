"""Atomic writing of an exported package: ``write_folder(path, files)``, ``with staged(path) as folder``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def write_folder(path: Path, files: Mapping[str, str], *, replace: bool = False) -> None:
    """Write files into a directory, by their paths in it. Raise the errors of :func:`staged`."""
    with staged(path, replace=replace) as folder:
        write_files(folder, files)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their paths in a folder."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@contextmanager
def staged(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new directory, which gets its name on success: readers see all of its files or none.

    ``replace`` allows an existing directory, which is replaced. Before anything is written, raise OSError:
    FileExistsError for another existing directory with content, NotADirectoryError for a file, FileNotFoundError for a
    missing parent.
    """
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "there is no such directory", str(path.parent))
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(20, "it is not a directory", str(path))
    if path.is_dir() and any(path.iterdir()):
        if not replace:
            raise FileExistsError(17, "the directory is not empty, and `replace` is not set", str(path))
        if is_kept(path):
            raise FileExistsError(17, "the working directory, home and the root are never replaced", str(path))
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield folder
        os.chmod(folder, 0o777 & ~_umask())
        _exchange(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_kept(path: Path) -> bool:
    """Return whether a directory is never replaced: the working directory, home, the root, and their parents."""
    return any(Path(os.path.realpath(each)).is_relative_to(path) for each in (".", os.path.expanduser("~")))


def _exchange(staged: Path, path: Path) -> None:
    """Give a directory its name. Remove the previous directory of that name, or restore it on failure."""
    if not path.exists():
        os.rename(staged, path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    try:
        os.rename(path, old / path.name)
        try:
            os.rename(staged, path)
        except BaseException:
            with suppress(OSError):
                os.rename(old / path.name, path)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    """Return the mask of new files, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
