"""The build of an exported extension by its own setup.py, with a script for nvcc that links a library of stubs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evt
from evt.export import Named, torch_extension
from evt.plan import TARGETS
from tests.cxx.cute import GXX, include_flags
from tests.cxx.export_stubs import compiled, put

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]

NAME = "stub_setup_ops"
PROGRAMS = {"plain": evt.gemm("D = acc"), "scaled": evt.gemm("D = alpha*acc + C")}
#: Logs its runs; a compiler waits until the number of started compilers in the file `meet` is reached, and the link
#: copies a library.
_NVCC = """\
#!/bin/sh
here=$(dirname "$0")
out= previous= link=
for word in "$@"; do
  [ "$previous" = -o ] && out=$word
  [ "$word" = -shared ] && link=1
  previous=$word
done
echo "start $*" >> "$here/log"
if [ "$link" ]; then cp "$here/stubbed.so" "$out"; exit; fi
tries=0
until [ "$(grep -c start "$here/log")" -ge "$(cat "$here/meet")" ]; do
  tries=$((tries + 1)); [ $tries -gt 500 ] && exit 9; sleep 0.02
done
echo made > "$out"
"""


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return torch_extension(NAME, [Named(name, each.request) for name, each in PROGRAMS.items()], [TARGETS["sm80"]])


@pytest.fixture(scope="module")
def library(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(files, tmp_path_factory.mktemp("stubbed"), device="CUDA")[0]


@pytest.fixture
def sources(files: dict[str, str], library: Path, tmp_path: Path) -> Path:
    """Return the folder of the extension's sources; the script for nvcc stands beside it."""
    for path, text in files.items():
        (tmp_path / "sources" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sources" / path).write_text(text)
    shutil.copy(library, tmp_path / "stubbed.so")
    (tmp_path / "nvcc").write_text(_NVCC)
    (tmp_path / "nvcc").chmod(0o755)
    (tmp_path / "meet").write_text("1")
    return tmp_path / "sources"


def run(sources: Path, *words: str | Path, **options: str) -> str:
    environment = {**os.environ, "CUDACXX": str(sources.parent / "nvcc"), "PYTHONPATH": "", **options}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=sources, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def commands(sources: Path) -> list[str]:
    return (sources.parent / "log").read_text().splitlines()


def test_all_sources_are_compiled_at_once_where_processors_and_memory_allow(sources: Path) -> None:
    """The binding, and for each kernel its code and its launcher: five compilers wait for each other."""
    (sources.parent / "meet").write_text("5")
    run(sources, "setup.py", "build_ext", "--build-lib", "built", MAX_JOBS="5")
    *compilers, link = commands(sources)
    assert len(compilers) == 5
    assert (
        sum("-DEVT_DEVICE_PASS" in each for each in compilers)
        == sum("-DEVT_HOST_PASS" in each for each in compilers)
        == 2
    )
    assert "embedded.cpp" in link
    assert (sources / f"built/{NAME}/built_with.py").read_text() == (
        f'torch = "{torch.__version__}"\noldest = "2.10"\n'
    )


@pytest.mark.parametrize(("processors", "free", "limit", "jobs"), [
    (16, 64e9, "max", 14), (16, 640e9, "max", 16), (32, 640e9, "30000000000", 6), (4, 1e9, "max", 1), (2, 64e9, "", 2),
])  # fmt: skip
def test_compilers_at_once(sources: Path, processors: int, free: float, limit: str, jobs: int) -> None:
    text = (sources / "setup.py").read_text().partition("\nsetup(")[0]
    scope: dict[str, object] = {"__name__": "setup", "__file__": str(sources / "setup.py")}
    exec(text, scope)
    contents = {
        "/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {int(free) // 1024} kB\n",
        "/sys/fs/cgroup/memory.max": limit,
    }
    scope["_content"] = contents.__getitem__
    scope["os"] = type("os", (), {"environ": {}, "sched_getaffinity": lambda _: range(processors)})
    assert scope["side_by_side"]() == jobs  # type: ignore[operator]


@pytest.mark.slow
def test_an_editable_installation_is_imported_and_refuses_tensors_of_the_cpu(sources: Path, tmp_path: Path) -> None:
    pip = (
        "-m",
        "pip",
        "install",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--prefix",
        tmp_path / "prefix",
    )
    run(sources, *pip, "-e", sources)
    (site,) = (tmp_path / "prefix").glob("lib*/python*/site-packages")
    code = f"""
import site, torch
site.addsitedir({str(site)!r})
import {NAME}
print({NAME}.__file__, {NAME}.scaled.default._schema)
for each in (lambda x: {NAME}.plain(x, x), lambda x: {NAME}.scaled(x, x, alpha=1.0, C=x)):
    try:
        each(torch.ones(8, 8).half())
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
    imported, *refused = run(tmp_path, "-c", code).splitlines()
    schema = f"{NAME}::scaled(Tensor A, Tensor B, *, float alpha, Tensor C) -> Tensor"
    assert imported == f"{sources / NAME / '__init__.py'} {schema}"
    assert refused == [
        f"{NAME}::{name}: the kernels need CUDA tensors, and `A` is on cpu (evt E0605)" for name in PROGRAMS
    ]


#: Counts fallbacks that Inductor makes of itself, in the lowering of a graph with 40 residual sums.
_COUNT = """
import sys
{before}
import {name}, torch
from torch._inductor import graph, virtualized
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

def model(x, w, alpha):
    for _ in range(40):
        x = x + torch.ops.{name}.plain(x, w) + torch.ops.{name}.scaled.Tensor(x, w, alpha=alpha, C=x)
    return x

implicit = []
make = graph.make_fallback
graph.make_fallback = lambda operator, *rest, **named: implicit.append(str(operator)) or make(operator, *rest, **named)
with FakeTensorMode() as mode:
    given = [*(torch.empty(16, 16, dtype=torch.float16) for _ in range(2)), torch.empty(1)]
    traced = make_fx(model)(*given)
    lowered = graph.GraphLowering(traced)
    with virtualized.V.set_fake_mode(mode), virtualized.V.set_graph_handler(lowered):
        lowered.run(*given)
print([each for each in implicit if "{name}" in each], len(lowered.operations) >= 80)
"""


@pytest.mark.parametrize("before", ["", "import torch._inductor.lowering"])
@pytest.mark.slow
def test_inductor_makes_no_implicit_fallback(sources: Path, before: str) -> None:
    put(sources.parent / "stubbed.so", sources / NAME)
    assert run(sources, "-c", _COUNT.format(name=NAME, before=before)) == "[] True\n"
