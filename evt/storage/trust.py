"""Trust in files: a library runs with the user's rights, so only the user may have written it."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from evt.diagnostics import Diagnostic
from evt.errors import BuildError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_WRITE = 2  # in an entry of an access control list


def require_private(path: Path) -> None:
    """Raise BuildError E0705 unless ``path`` itself belongs to this user, is not a link, and no other user may write
    it.

    Raise OSError if it cannot be examined.
    """
    _require_private(path, path.lstat())


def read_private(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes that only this user may write.

    Raise BuildError E0705 as :func:`require_private` does, ValueError for a larger file or one that is not regular,
    OSError if it cannot be read. It never blocks, as opening a pipe would.
    """
    require_private(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _require_private(path, status)  # check the opened file: the path may have been replaced
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file")
        if status.st_size > most:
            raise ValueError(f"has {status.st_size} bytes, more than {most}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_trusted(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file that only this user and root could have written or replaced.

    Raise BuildError E0705 for another file, OSError if it cannot be opened.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        copy = "copy it to a file of your own, if you trust it"
        if status.st_uid not in (0, os.getuid()):
            raise _refusal(f"{path} belongs to uid {status.st_uid}, and evt runs as uid {os.getuid()}", copy)
        shared = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        if status.st_mode & stat.S_IWOTH or shared:
            raise _writable(path, status.st_mode)
        require_safe_path(path)
        yield file


def _require_private(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _refusal(f"{path} is a symbolic link", f"rm {shlex.quote(str(path))}")
    if status.st_uid != os.getuid():
        message = f"{path} belongs to uid {status.st_uid}, and evt runs as uid {os.getuid()}"
        raise _refusal(message, "set EVT_CACHE_DIR to a directory that belongs to you")
    if status.st_mode & _OTHERS_WRITE:
        raise _writable(path, status.st_mode)


def require_safe_path(path: Path) -> None:
    """Raise BuildError E0705 unless only this user and root can replace each of the steps that lead to ``path``.

    Raise OSError if a step cannot be examined.
    """
    owners = {0, os.getuid(), os.lstat("/").st_uid}  # in a user namespace, "/" belongs to an unmapped root
    for step in _steps(path):
        status = step.lstat()
        if status.st_uid not in owners:
            message = f"{step}, on the way to {path}, belongs to uid {status.st_uid}"
            raise _refusal(message, "set EVT_CACHE_DIR to a directory that belongs to you")
        mode = status.st_mode
        if stat.S_ISLNK(mode) or mode & stat.S_ISVTX or not mode & _OTHERS_WRITE:
            continue
        if mode & stat.S_IWOTH:
            raise _writable(step, mode)
        users, groups = _writers(step, status)
        if not all(map(_is_private_group, groups)):
            raise _writable(step, mode)
        if strangers := users - owners:
            message = f"{step} can be written by uid {min(strangers)}, whom its access control list names"
            raise _refusal(message, _close(step))


def _writers(path: Path, status: os.stat_result) -> tuple[set[int], set[int]]:
    """Return the users and groups to whom the mode's group-write bit applies.

    These are the path's group or, with an access control list, everyone in the list: the bit is its mask.
    """
    try:
        entries = os.getxattr(path, "system.posix_acl_access", follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return set(), {status.st_gid}
        raise
    users, groups = set[int](), set[int]()
    for tag, permissions, number in struct.iter_unpack("<HHI", entries[4:]):
        if permissions & _WRITE:
            match tag:
                case 0x02:
                    users.add(number)
                case 0x04:
                    groups.add(status.st_gid)
                case 0x08:
                    groups.add(number)
    return users, groups


def _steps(path: Path) -> Iterator[Path]:
    """Yield every directory and link that leads to ``path``, except the one it ends in."""
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
    """Return whether a group is root's, or the user's private group.

    With umask 002, most directories are group-writable.
    """
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
    return _refusal(message, _close(path))


def _close(path: Path) -> str:
    """Return the command that denies others write access; with an access control list it changes the mask."""
    return f"chmod go-w {shlex.quote(str(path))}"


def _refusal(message: str, mend: str) -> BuildError:
    note = "a library that another user could have written is not loaded"
    return BuildError(Diagnostic("E0705", message, help=mend, notes=(note,)))
