"""The real nvcc: a source becomes a library that loads on a machine without a driver."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evt.compilation import BuildEvent, Cache, KernelSource, build, find_toolchain
from evt.errors import BuildError
from evt.functions import function
from evt.functions.testing import temporarily
from tests.support.depth import in_depth
from tests.support.fake_nvcc import Room, hear_hangups, wait_for

try:
    find_toolchain()
    _missing = ""
except BuildError as error:
    _missing = error.diagnostics[0].message

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(bool(_missing), reason=f"needs nvcc and CUTLASS: {_missing}"),
]

SOURCE = """\
#include <cuda_runtime.h>
#include <cutlass/version.h>
struct Params { float* x; int n; };
#if !defined(EVT_HOST_PASS)
extern "C" __global__ void evt_kernel(Params const params) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < params.n) params.x[i] *= FACTOR;
}
#endif
#if !defined(EVT_DEVICE_PASS)
extern "C" char const evt_cubin[];
static cudaKernel_t entry() {
  cudaLibrary_t library;
  cudaKernel_t kernel = nullptr;
  auto error = cudaLibraryLoadData(&library, evt_cubin, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) return nullptr;
  return cudaLibraryGetKernel(&kernel, library, "evt_kernel") == cudaSuccess ? kernel : nullptr;
}
extern "C" __attribute__((visibility("default"))) char const* evt_image() { return evt_cubin; }
extern "C" __attribute__((visibility("default"))) int evt_cutlass() { return CUTLASS_VERSION; }
extern "C" __attribute__((visibility("default"))) int evt_run(float* x, int n, cudaStream_t stream) {
  cudaKernel_t kernel = entry();
  if (!kernel) return 1;
  Params params{x, n};
  void* arguments[] = {&params};
  return cudaLaunchKernel((void const*)kernel, dim3((n + 255) / 256), dim3(256), arguments, 0, stream);
}
#endif
"""


def source(factor: str, gencode: str) -> KernelSource:
    return KernelSource(SOURCE.replace("FACTOR", factor), gencode)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("nvcc") / "cache")


@pytest.fixture(scope="module")
def libraries(cache: Cache) -> list[Path]:
    events: list[BuildEvent] = []
    built = build([source("2.f", "sm_80"), source("2.f", "sm_90a")], cache=cache, on_event=events.append)
    ends = [event for event in events if event.kind == "end"]
    assert {(event.index, event.stage) for event in ends} == {
        (index, stage) for index in (0, 1) for stage in ("device", "host", "link")
    }
    assert all(event.seconds > 0 for event in ends)
    assert [event.text for event in ends if event.text] == []  # not a warning
    return built


def test_needs_no_driver(libraries: list[Path]) -> None:
    for library in libraries:
        undefined = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        ).stdout
        assert not re.search(r"\bcu[A-Z]", undefined), undefined
        needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        assert "libcuda" not in needed  # the runtime is linked statically


def test_exports_the_launcher_only(libraries: list[Path]) -> None:
    defined = subprocess.run(
        ["nm", "-D", "--defined-only", libraries[0]], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in defined.splitlines()} == {"evt_run", "evt_image", "evt_cutlass"}


def test_stack_is_not_executable(libraries: list[Path]) -> None:
    text = subprocess.run(["readelf", "-lW", libraries[0]], capture_output=True, text=True, check=True).stdout
    assert re.search(r"GNU_STACK.*RW ", text)


@pytest.mark.parametrize(("index", "arch"), [(0, 80), (1, 90)])
def test_carries_its_cubin(libraries: list[Path], index: int, arch: int) -> None:
    library = ctypes.CDLL(str(libraries[index]))
    library.evt_image.restype = ctypes.c_void_p
    address = library.evt_image()
    assert address % 16 == 0
    header = ctypes.string_at(address, 64)
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 190  # EM_CUDA
    flags = int.from_bytes(header[48:52], "little")
    assert arch in (flags & 0xFF, flags >> 8 & 0xFF)
    assert library.evt_cutlass() >= 400


def test_the_entry_is_private_and_says_how_it_was_made(libraries: list[Path], cache: Cache) -> None:
    for library in libraries:
        assert library.stat().st_mode & 0o077 == 0
        record = json.loads((library.parent / "build.json").read_text())
        assert [step["name"] for step in record["passes"]][-1] == "link"
        assert {step["name"] for step in record["passes"]} == {"device", "host", "link"}
    again: list[BuildEvent] = []
    assert build([source("2.f", "sm_90a")], cache=cache, on_event=again.append) == libraries[1:]
    assert [event.kind for event in again] == ["hit"]


def test_what_nvcc_refuses_is_our_bug(cache: Cache) -> None:
    with pytest.raises(BuildError) as caught:
        build([source("undeclared", "sm_80")], cache=cache)
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0703"
    assert "kernel.cu(7): error" in problem.notes[0]
    (kept,) = (cache.root / "failed").iterdir()
    assert str(kept) in problem.help
    assert "undeclared" in (kept / "kernel.cu").read_text()
    assert 'identifier "undeclared" is undefined' in (kept / "nvcc.log").read_text()


def test_what_nvcc_refuses_of_a_function_is_the_users(cache: Cache) -> None:
    with temporarily():
        rows = [
            function(f"{name}(x)", cxx=cxx, torch=lambda x: x)
            for name, cxx in (("before", "x"), ("wave", "undeclared(x)"), ("after", "x"))
        ]
    definitions = "\n\n".join(row.source for row in rows)
    text = f"#define EVT_HOST_DEVICE __host__ __device__\n{definitions}\n{SOURCE.replace('FACTOR', '2')}"
    with pytest.raises(BuildError) as caught:
        build([KernelSource(text, "sm_80")], cache=cache)
    (problem,) = caught.value.diagnostics
    assert (problem.code, problem.message) == ("E0653", "nvcc does not accept the C++ of `wave`")
    assert 'identifier "undeclared" is undefined' in problem.notes[0]


@pytest.mark.parametrize("flags", ["--no-such-option", "-Xcompiler -fno-such-option", "-Xptxas --no-such-option"])
@pytest.mark.parametrize("name", in_depth(["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"], quick=["NVCC_APPEND_FLAGS"]))
def test_flags_that_nvcc_does_not_take(cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str, flags: str) -> None:
    monkeypatch.setenv(name, flags)
    with pytest.raises(BuildError) as caught:
        build([source("2", "sm_80")], cache=cache)
    (problem,) = caught.value.diagnostics
    assert (problem.code, problem.message) == ("E0701", f"nvcc does not accept the options in {name}")
    assert "no-such-option" in " ".join(problem.notes)


def test_paths_are_taken_literally(tmp_path: Path) -> None:
    """Although nvcc hands its command lines to a shell."""
    headers = tmp_path / """a $(touch PWNED)`touch PWNED`;touch PWNED;",'\\&|b"""
    headers.mkdir()
    tools = find_toolchain()
    (headers / "include").symlink_to(tools.cutlass_include)
    cache = Cache(tmp_path / "c ,'(&|;touch PWNED;)d")
    assert build([source("2", "sm_80")], cache=cache, toolchain=replace(tools, cutlass_include=headers / "include"))
    assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize("name", ["a$(touch PWNED)b", "a`touch PWNED`b", 'a"b', "a\\b", "a\nb"])
def test_a_path_that_cannot_be_kept_from_the_shell(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="E0704"):
        build([source("2", "sm_80")], cache=Cache(tmp_path / name))
    assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize(
    "sent",
    in_depth([signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], quick=[signal.SIGKILL]),
    ids=lambda sent: sent.name,
)
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path, sent: signal.Signals) -> None:
    """Not one of the processes that nvcc starts, and no lock: the next build goes on at once."""
    cache = Cache(tmp_path / "cache")
    work = source("2", "sm_80")
    program = "import sys\nfrom evt.compilation import *\nbuild([KernelSource(sys.argv[1], sys.argv[2])])"
    builder = subprocess.Popen(
        [sys.executable, "-c", program, work.text, work.gencode],
        env={**os.environ, "EVT_CACHE_DIR": str(cache.root), "PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=hear_hangups,
    )
    room = Room(find_toolchain(), cache, tmp_path / "log")
    wait_for(lambda: len(room.compilers()) >= 4)
    builder.send_signal(sent)
    assert builder.wait() == -sent
    wait_for(lambda: not room.compilers(), seconds=2)
    wait_for(lambda: not room.left_over(), seconds=2)
    kinds: list[str] = []
    assert build([work], cache=cache, on_event=lambda event: kinds.append(event.kind))
    assert "wait" not in kinds


def test_a_reference_to_the_driver_does_not_link(cache: Cache) -> None:
    text = """
extern "C" int cuInit(unsigned);
#if !defined(EVT_HOST_PASS)
extern "C" __global__ void evt_kernel() {}
#endif
#if !defined(EVT_DEVICE_PASS)
extern "C" __attribute__((visibility("default"))) int evt_run() { return cuInit(0); }
#endif
"""
    with pytest.raises(BuildError, match="undefined reference to `cuInit'"):
        build([KernelSource(text, "sm_80")], cache=cache)
