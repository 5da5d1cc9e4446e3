"""The cause of an nvcc failure: the machine, the user's own C++, or a bug in evt."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from evt.compilation.cache import SOURCE
from evt.compilation.environment import FLAGS
from evt.compilation.source import KernelSource
from evt.compilation.toolchain import Toolchain
from evt.diagnostics import Diagnostic

#: A pass that fails without a message may have filled a disk with less free space than this, in bytes.
_PASS_BYTES = 100_000_000
#: The code, message and help of a full disk.
_FULL = (
    "E0704",
    "there is no space left to build in {root}",
    "free some space, or set EVT_CACHE_DIR to a directory on another disk",
)
#: Messages of nvcc if the source is not at fault: (pattern, code, message, help).
_MACHINE = (
    (r"No space left on device|Disk quota exceeded", *_FULL),
    (
        r"Failed to preprocess host compiler|unsupported GNU version|unsupported clang version"
        r"|(?:gcc|g\+\+|cc1plus)['\"]?: (?:command )?not found|(?:gcc|g\+\+): No such file",
        "E0701",
        "nvcc has no host compiler that it can use",
        "apt install g++, or set NVCC_CCBIN to a C++ compiler that this nvcc supports",
    ),
    (
        r"died due to signal 9|terminated by signal 9|^Killed$|std::bad_alloc|virtual memory exhausted",
        "E0703",
        "nvcc was killed, most likely because memory ran out",
        "build with fewer jobs at a time (jobs=1), or with more memory",
    ),
)
#: Messages of compilers for a wrong command line. Evt's part of the command line is equal for all users.
_OPTIONS = re.compile(
    r"^(nvcc|ptxas|nvlink) fatal\s*: |^(gcc|g\+\+|cc1plus|clang\S*|ld|\S*/ld): (fatal )?error: |unrecognized command",
    re.MULTILINE,
)
#: An error's line, as nvcc and gcc print it.
_ERROR_AT = re.compile(rf"^{re.escape(SOURCE)}[(:](\d+)[):].*\berror\b", re.MULTILINE)
#: A user's function, as evt.functions.registry writes it.
_FUNCTION = re.compile(
    r"^namespace (?:\w+::)?evt::user \{\n.*?\bfloat fn_(\w+)\(.*?^\}  // namespace (?:\w+::)?evt::user",
    re.MULTILINE | re.DOTALL,
)


def verdict(source: KernelSource, toolchain: Toolchain, output: str, root: Path, kept: Path) -> Diagnostic:
    """Return the diagnostic of a failure. ``root`` is the cache's directory; ``kept`` has the source and the log."""
    for pattern, code, message, mend in _MACHINE:
        if re.search(pattern, output, re.MULTILINE):
            return Diagnostic(code, message.format(root=root), help=mend)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal|undefined reference)\b", line)]
    if not errors and _full(root):
        code, message, mend = _FULL
        return Diagnostic(code, message.format(root=root), help=mend)
    notes = tuple((errors or lines)[:3])
    flags = [name for name in FLAGS if os.environ.get(name)]
    if flags and _OPTIONS.search(output):
        message = f"nvcc does not accept the options in {' and '.join(flags)}"
        return Diagnostic("E0701", message, help=f"correct or unset {' and '.join(flags)}", notes=notes)
    if name := _failing_function(source.text, output):
        message = f"nvcc does not accept the C++ of `{name}`"
        return Diagnostic("E0653", message, help=f"correct the `cxx` of the registered function `{name}`", notes=notes)
    message = f"nvcc did not accept generated code for {source.gencode}"
    report = _report(kept)
    if doubts := [*flags, *["CUTLASS_PATH"] * (toolchain.cutlass_origin != "wheel")]:
        unset = " and ".join(doubts)
        message += f", built with {', '.join(f'{name}={os.environ.get(name)}' for name in doubts)}"
        return Diagnostic(
            "E0703", message, help=f"unset {unset} and build again; if that fails too, {report}", notes=notes
        )
    return Diagnostic("E0703", f"{message}: this is a bug in evt", help=f"please {report}", notes=notes)


def _full(root: Path) -> bool:
    """Whether a pass can have filled the disk of ``root``. The compilers may have removed their files since."""
    try:
        return shutil.disk_usage(root).free < _PASS_BYTES
    except OSError:
        return False


def verdict_of_nvrtc(source: KernelSource, output: str, root: Path, kept: Path) -> Diagnostic:
    """Return the diagnostic of a text that NVRTC refuses. ``kept`` has the text and the log."""
    notes = tuple([line.strip() for line in output.splitlines() if " error" in line][:3])
    if name := _failing_function(source.text, output):
        message = f"NVRTC does not accept the C++ of `{name}`"
        return Diagnostic("E0653", message, help=f"correct the `cxx` of the registered function `{name}`", notes=notes)
    message = f"NVRTC did not accept generated code for {source.gencode}: this is a bug in evt"
    return Diagnostic("E0703", message, help=f"please {_report(kept)}", notes=notes)


def _report(kept: Path) -> str:
    return f"report it with the source and the log in {kept}"


def _failing_function(text: str, output: str) -> str:
    """Return the name of the user's function that contains an error, or ""."""
    wrong = {int(line) for line in _ERROR_AT.findall(output)}
    for function in _FUNCTION.finditer(text):
        first = text.count("\n", 0, function.start()) + 1
        if not wrong.isdisjoint(range(first, first + function[0].count("\n") + 1)):
            return function[1]
    return ""
