"""The program of a process that compiles for another one: ``python jit_worker.py PARENT``.

NVRTC compiles one text at a time in a process, so :mod:`evt.compilation.jit_pool` starts several processes. Such a
process imports the standard library, ``jit.py`` and ``cuda.bindings``. Its standard input is a socket. The first
message names the directories of ``cuda``; each further message is a task, which has one answer. The process ends with
its parent, or when the parent closes the socket.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: The interval of looking for the parent, in seconds. A process that the parent forked may hold its socket open.
INTERVAL = 0.1
READY, MADE, REFUSED, UNABLE = "ready", "made", "refused", "unable"


def answer(
    jit: Any, find: str, identity: str, method: str, arguments: tuple[object, ...], keywords: dict[str, object]
) -> tuple[object, ...]:
    """Return the answer to a task: the call of a method of the library that a function of ``jit`` finds."""
    try:
        tool = getattr(jit, find)()
        if getattr(tool, "identity", "") != identity:
            return UNABLE, f"{tool} is found instead of {identity}"
        return MADE, getattr(tool, method)(*arguments, **keywords)
    except jit.JitError as error:
        return REFUSED, error.tool, error.result, error.log
    except Exception as error:  # of a damaged installation, or without memory
        return UNABLE, f"{type(error).__name__}: {error}"


def load_jit() -> Any:
    """Return the module ``jit``, without the packages that contain it."""
    spec = importlib.util.spec_from_file_location("jit", Path(__file__).with_name("jit.py"))
    assert spec is not None
    assert spec.loader is not None
    jit = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(jit)
    return jit


def end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os._exit(0)


def main(parent: int) -> None:
    """Answer tasks until the socket is closed."""
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    os.chdir("/")
    connection = Connection(os.dup(0))
    sys.path += connection.recv()
    jit = load_jit()
    with contextlib.suppress(Exception):  # the answer to a task tells
        jit.find_nvrtc().compile("", ())  # loads the library and prepares it
    connection.send((READY,))
    while True:
        connection.send(answer(jit, *connection.recv()))


if __name__ == "__main__":
    del sys.path[0]  # the modules of this directory belong to a package
    try:
        main(int(sys.argv[1]))
    except (EOFError, OSError):  # the parent has closed the socket, or is gone
        os._exit(0)
