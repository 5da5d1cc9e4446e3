"""Every kind of kernel under compute-sanitizer's four tools."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

LAUNCHES = Path(__file__).with_name("launches.py")
SANITIZER = shutil.which("compute-sanitizer") or ""

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not SANITIZER, reason="compute-sanitizer is not installed")]


@pytest.fixture(scope="module")
def kinds() -> list[str]:
    """Return the kinds after running them without a tool: their kernels are built and right."""
    done = subprocess.run([sys.executable, LAUNCHES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^ran (.+)$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_nothing_is_reported(tool: str, kinds: list[str]) -> None:
    command = [SANITIZER, "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kernel_substring=evt"]
    done = subprocess.run([*command, sys.executable, LAUNCHES, *kinds], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.findall(r"^ran (.+)$", done.stdout, re.MULTILINE) == kinds
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "0 hazards displayed" in done.stdout


def test_nothing_is_read_before_it_is_written(kinds: list[str]) -> None:
    """Initcheck watches all kernels, since PyTorch's write the inputs of evt's; reads by PyTorch's are not counted.

    It does not see TMA's stores, so a D that PyTorch reads counts as memory that nothing wrote.
    """
    command = [SANITIZER, "--tool", "initcheck", "--show-backtrace", "no", "--print-limit", "0"]
    done = subprocess.run([*command, sys.executable, LAUNCHES, *kinds], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.findall(r"^ran (.+)$", done.stdout, re.MULTILINE) == kinds
    assert "ERROR SUMMARY: " in done.stdout
    readers = Counter(re.findall(r"^=+ Uninitialized .*\n=+ +at (.+?)\+0x", done.stdout, re.MULTILINE))
    assert sum(readers.values()) == done.stdout.count("= Uninitialized "), done.stdout[:8000]
    ours = {kernel: count for kernel, count in readers.items() if not kernel.startswith(("void at::", "at::"))}
    assert not ours, ours
