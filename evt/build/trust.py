"""Who could have written a file: a library runs with the user's rights, so only the user may be able to."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from evt.diagnostics import Diagnostic
from evt.errors import BuildError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def require_private(path: Path) -> None:
    """``path`` itself is ours, is no link, and nobody else may write it.

    Raises BuildError E0705 when it is not so, OSError when it cannot be looked at.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise _refusal(f"{path} is a symbolic link", f"rm {shlex.quote(str(path))}")
    if status.st_uid != os.getuid():
        message = f"{path} belongs to uid {status.st_uid}, and evt runs as uid {os.getuid()}"
        raise _refusal(message, "set EVT_CACHE_DIR to a directory of your own")
    if status.st_mode & _OTHERS_WRITE:
        raise _writable(path, status.st_mode)


def require_safe_path(path: Path) -> None:
    """Nobody but us and root can put something else in the place of any step that leads to ``path``.

    Raises BuildError E0705 when it is not so, OSError when a step cannot be looked at.
    """
    owners = {0, os.getuid(), os.lstat("/").st_uid}  # in a user namespace, "/" belongs to an unmapped root
    for step in _steps(path):
        status = step.lstat()
        if status.st_uid not in owners:
            message = f"{step}, on the way to {path}, belongs to uid {status.st_uid}"
            raise _refusal(message, "set EVT_CACHE_DIR to a directory of your own")
        mode = status.st_mode
        if stat.S_ISLNK(mode) or mode & stat.S_ISVTX or not mode & _OTHERS_WRITE:
            continue
        if mode & stat.S_IWOTH or not _is_private_group(status.st_gid):
            raise _writable(step, mode)


def _steps(path: Path) -> Iterator[Path]:
    """Every directory and link that leads to ``path``, without what it ends in."""
    absolute = Path(os.path.abspath(path))
    at, todo, links = Path("/"), list(reversed(absolute.parts[1:])), 0
    while todo:
        yield at
        part = todo.pop()
        at = at.parent if part == ".." else at / part
        if part != ".." and at.is_symlink() and links < 40:
            links += 1
            yield at
            target = at.readlink()
            todo.extend(reversed([name for name in target.parts if name != "/"]))
            at = Path("/") if target.is_absolute() else at.parent


def _is_private_group(gid: int) -> bool:
    """Root's group, or the user's own of one member: with umask 002 most directories are group-writable."""
    import grp
    import pwd

    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def _writable(path: Path, mode: int) -> BuildError:
    who = "everybody" if mode & stat.S_IWOTH else "its group"
    message = f"{path} can be written by {who} (mode {stat.S_IMODE(mode):04o})"
    return _refusal(message, f"chmod go-w {shlex.quote(str(path))}")


def _refusal(message: str, mend: str) -> BuildError:
    note = "a library that another user could have written is not loaded"
    return BuildError(Diagnostic("E0705", message, help=mend, notes=(note,)))
