"""A room to build in with a shell script for nvcc, which logs its runs and obeys comments of the source."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import evt.compilation
from evt.compilation import Cache, KernelSource, Toolchain, build

Process = subprocess.Popen[str]


def hear_hangups() -> None:
    """Let a process end at SIGHUP, also where the tests run under nohup, which has it ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


#: Logs "start" and "stop" beside itself; it obeys lines of the source, or of the file `log.orders`, as `// fail host`.
#: A shell reads such lines byte by byte, so grep finds them.
FAKE_NVCC = """\
#!/bin/sh
case $1 in --*) exit;; esac
log=${0%/*}/log
out= rule= previous=
for word in "$@"; do
  [ "$previous" = -o ] && out=$word
  [ "$previous" = -MF ] && rule=$word
  previous=$word
done
[ -n "$rule" ] && cat "$log.rule" > "$rule" 2> /dev/null
case $out in kernel.cubin) stage=device;; device.ltoir) stage=skeleton;; host.o) stage=host;; *) stage=link;; esac
echo "start $stage $(date +%s%N) $$ $PWD" >> "$log"
orders=$(grep -hoE '// (hang|stay|meet|gate|sleep|fail|die)( .*)?$' kernel.cu "$log.orders" 2> /dev/null)
if [ $stage != link ]; then
  case $orders in
    *"// hang $stage"*) [ -e "$log.calm" ] || { sh -c 'sleep 600 & setsid sleep 600 & wait' & wait; };;
    *"// stay $stage"*) [ -e "$log.calm" ] || { sh -c 'sleep 600 & wait' & wait; };;
    *"// meet"*) until [ $(grep -c start "$log") -ge "$(cat "$log.meet")" ]; do sleep 0.02; done;;
    *"// gate"*) until [ -e "$log.open" ]; do sleep 0.02; done;;
    *"// sleep"*) sleep 0.5;;
  esac
else
  [ -s kernel.cubin ] && [ -s host.o ] && [ -s embed.cpp ] || exit 9
fi
while read -r _ word where what; do
  [ -e "$log.calm" ] && break
  [ "$word $where" = "fail $stage" ] && printf 'kernel.cu(1): warning: w\\n%s\\n' "$what" && exit 2
  [ "$word $where" = "die $stage" ] && kill -9 $$
done << END
$orders
END
cat kernel.cu > "$out"
echo "stop $stage $(date +%s%N) $$ $PWD" >> "$log"
"""


@dataclass(frozen=True)
class Line:
    what: str
    stage: str
    at: int
    pid: int


@dataclass(frozen=True)
class Room:
    """A fake nvcc with the log of its runs, and an empty cache."""

    tools: Toolchain
    cache: Cache
    file: Path
    spawned: list[Process] = field(default_factory=list)

    def log(self) -> list[Line]:
        text = self.file.read_text() if self.file.exists() else ""
        rows = [line.split() for line in text.splitlines()]
        return [Line(row[0], row[1], int(row[2]), int(row[3])) for row in rows]

    def starts(self) -> Counter[str]:
        return Counter(line.stage for line in self.log() if line.what == "start")

    def build(self, *texts: str, jobs: int | None = 4, **more: object) -> list[Path]:
        sources = [KernelSource(text, "sm_90a") for text in texts]
        return build(sources, cache=self.cache, toolchain=self.tools, jobs=jobs, **more)

    def calm(self) -> None:
        """From now on let nvcc neither hang nor fail, for any source."""
        Path(f"{self.file}.calm").touch()

    def left_over(self) -> list[str]:
        """Return the files in the cache besides entries and kept failures."""
        return [path.name for path in self.cache.root.glob("??/.*")]

    def compilers(self) -> list[int]:
        """Return the processes that are at work in the cache."""
        found = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(f"{self.cache.root}/"):
                    found.append(int(link.parent.name))
        return found

    def spawn(self, *texts: str, program: str = "print(json.dumps([path.read_text() for path in go()]))") -> Process:
        """Another process that builds the same; its program calls ``go``, which does."""
        start = (
            "import concurrent.futures, ctypes, json, os, sys, threading, time; from pathlib import Path\n"
            "from evt.compilation import *\n"
            "nvcc, root, *texts = json.loads(sys.argv[1])\n"
            "tools = Toolchain(Path(nvcc), '13.0.88', Path('/opt/cutlass'), '4.2.0')\n"
            "def go(**more):\n"
            "    sources = [KernelSource(text, 'sm_90a') for text in texts]\n"
            "    return build(sources, cache=Cache(Path(root)), toolchain=tools, jobs=4, **more)\n"
        )
        arguments = json.dumps([str(self.tools.nvcc), str(self.cache.root), *texts])
        process = subprocess.Popen(
            [sys.executable, "-c", start + program, arguments],
            env={**os.environ, "PYTHONPATH": str(Path(evt.compilation.__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_hangups,
        )
        self.spawned.append(process)
        return process

    def end(self) -> None:
        """End processes that a failed test has left running, and leave no pipe open."""
        for process in self.spawned:
            process.kill()
            process.communicate()
        for pid in self.compilers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def make_room(folder: Path) -> Room:
    """Return an empty room."""
    nvcc = folder / "nvcc"
    nvcc.write_text(FAKE_NVCC)
    nvcc.chmod(0o755)
    return Room(Toolchain(nvcc, "13.0.88", Path("/opt/cutlass"), "4.2.0"), Cache(folder / "cache"), folder / "log")


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Return whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def build_by_script(folder: Path, set_variable: Callable[[str, str], object]) -> Path:
    """Let evt build with a script for nvcc, in this process and in its children; return the script's log.

    ``set_variable`` sets an environment variable, as ``monkeypatch.setenv`` does.
    """
    room = make_room(folder)
    wrapper = folder / "bin" / "nvcc"
    wrapper.parent.mkdir()
    answer = 'case "$*" in *--version*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit;; esac'
    wrapper.write_text(f'#!/bin/sh\n{answer}\nexec {room.tools.nvcc} "$@"\n')
    wrapper.chmod(0o755)
    set_variable("CUDACXX", str(wrapper))
    set_variable("EVT_BUILD_WAY", "whole")
    set_variable("NVCC_APPEND_FLAGS", "-DSCRIPT")  # nvcc compiles launchers, too
    return room.file
