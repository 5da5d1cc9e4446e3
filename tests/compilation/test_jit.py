"""The bindings to NVRTC and nvJitLink."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evt.compilation import jit
from evt.compilation.jit import JitError, Missing, NvJitLink, Nvrtc, find_nvjitlink, find_nvrtc

OPTIONS = ("--gpu-architecture=sm_90a", "-std=c++17")
KERNEL = 'extern "C" __device__ int f(int);\nextern "C" __global__ void kernel(int* p) { *p = f(*p); }\n'
FORMULA = 'extern "C" __device__ int f(int x) { return x + 1; }\n'


@pytest.fixture
def nvrtc() -> Nvrtc:
    found = find_nvrtc()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found


@pytest.fixture
def nvjitlink() -> NvJitLink:
    found = find_nvjitlink()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found


def test_a_text_becomes_a_cubin_or_ptx(nvrtc):
    text = '#include "value.h"\nextern "C" __global__ void kernel(int* p) { *p = VALUE; }\n'
    headers = {"value.h": "#define VALUE 4321\n"}
    assert nvrtc.compile(text, OPTIONS, headers=headers).startswith(b"\x7fELF")
    assert b"4321" in nvrtc.compile(text, OPTIONS, output="ptx", headers=headers)


def test_ltoir_of_two_texts_links_to_a_cubin(nvrtc, nvjitlink):
    kernel = nvrtc.compile(KERNEL, (*OPTIONS, "-dlto"), output="ltoir")
    formula = nvrtc.compile(FORMULA, (*OPTIONS, "-dlto"), output="ltoir")
    made = nvjitlink.link([("kernel", kernel), ("formula", formula)], ["-arch=sm_90a", "-lto"])
    assert made.startswith(b"\x7fELF")
    assert b"kernel" in made


@pytest.mark.parametrize(("text", "options", "words"), [("int x = ;", OPTIONS, "kernel.cu(1)"), ("", ["-bad"], "-bad")])
def test_a_refused_text_raises_with_the_log(nvrtc, text, options, words):
    with pytest.raises(JitError, match="nvrtc: NVRTC_ERROR") as raised:
        nvrtc.compile(text, options)
    assert words in raised.value.log


@pytest.mark.parametrize(("options", "words"), [(["-arch=sm_90a", "-lto"], "extern function 'f'"), (["-bad"], "")])
def test_a_refused_link_raises_with_the_log(nvrtc, nvjitlink, options, words):
    kernel = nvrtc.compile(KERNEL, (*OPTIONS, "-dlto"), output="ltoir")
    with pytest.raises(JitError, match="nvjitlink: ") as raised:
        nvjitlink.link([("kernel", kernel)], options)
    assert words in raised.value.log


def test_the_identity_distinguishes_files_of_one_version(tmp_path):
    first, second = tmp_path / "first.so", tmp_path / "second.so"
    first.write_bytes(b"1")
    second.write_bytes(b"22")
    assert jit._identity("nvrtc", (13, 0), first) != jit._identity("nvrtc", (13, 0), second)


def test_without_the_package_the_reason_is_returned(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    found = jit._load("nvrtc", "nvidia-cuda-nvrtc")
    assert isinstance(found, Missing)
    assert found.help == "pip install cuda-bindings"


def test_without_the_library_the_reason_is_returned(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def load(name: str) -> None:
        raise RuntimeError(f"no {name}\ndetails")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", load)
    assert jit._load("nvrtc", "nvidia-cuda-nvrtc") == Missing(
        "nvrtc was not found: no nvrtc", "pip install nvidia-cuda-nvrtc, or a CUDA build of PyTorch"
    )


def test_import_of_evt_loads_no_bindings():
    program = (
        "import sys, evt.compilation, evt.compilation.jit; print([n for n in sys.modules if n.startswith('cuda')])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
