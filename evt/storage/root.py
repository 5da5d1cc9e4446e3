"""The cache directory: its place, and whether it can be trusted."""

from __future__ import annotations

import os
from pathlib import Path

from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.storage.trust import require_private, require_safe_path

_HOMELESS = "there is no home directory; HOME is not set"


def default_root() -> Path:
    """Return ``$EVT_CACHE_DIR``, or the user's cache directory. Raise BuildError E0704 without a home directory."""
    named = os.environ.get("EVT_CACHE_DIR")
    if not named:
        import platformdirs

        try:
            root = Path(platformdirs.user_cache_dir("evt", appauthor=False))
        except RuntimeError:  # newer versions raise; older versions keep the `~`
            root = Path("~/.cache/evt")
        if not root.is_absolute():
            raise unusable(str(root), _HOMELESS)
        return root
    expanded = os.path.expanduser(named)
    if expanded.startswith("~"):
        user = expanded[1:].split("/")[0]
        raise unusable(named, f"there is no user {user}" if user else _HOMELESS)
    return Path(expanded)


def unusable(root: str, reason: str) -> BuildError:
    """Return the error for a cache directory that cannot be used."""
    message = f"the cache directory {root} cannot be used: {reason}"
    mend = "set EVT_CACHE_DIR to a directory that you can write, on a disk with space"
    return BuildError(Diagnostic("E0704", message, help=mend))


def make_private(path: Path) -> None:
    """Make a directory and its parents, private to this user."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def is_there(root: Path) -> bool:
    """Return whether a cache directory exists. Raise BuildError E0705 if another user could replace or write it."""
    try:
        names = os.scandir(root)
    except FileNotFoundError:
        return False
    names.close()
    require_safe_path(root)
    require_private(Path(os.path.realpath(root)))
    return True
