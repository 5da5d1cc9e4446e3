"""An extension that one release of PyTorch built is imported by another one."""

from __future__ import annotations

import os
import re
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

#: The Python of an environment with another release, from 2.10 on.
OTHER = os.environ.get("EVT_OTHER_PYTORCH", "")
NAME = "served_ops"
PROGRAMS = {
    "scaled": evt.linear("in alpha: f32 = 2, C: f16[m, n] = 0, flag: bool; D = where(flag, alpha*acc, 0.0) + C"),
    "conv": evt.conv2d("D = relu(acc + bias)", padding=1),
}
#: Calls on the CPU, where stubs stand for kernels, without sizes and with gradients.
_CALLS = f"""
import {NAME} as package, torch
print(torch.__version__)

def made(*shape, device="cpu"):
    return torch.zeros(shape, dtype=torch.float16, device=device)

for device in ("cpu", "meta"):
    x, w = made(3, 40, device=device), made(24, 40, device=device)
    C, bias = made(3, 24, device=device), made(24, device=device)
    print(package.scaled(x, w, flag=True).shape, package.scaled(x, w, flag=False, alpha=3, C=C).shape)
    image = package.conv(made(2, 16, 9, 7, device=device), made(24, 16, 3, 3, device=device), bias=bias)
    print(image.shape, image.stride())
for call in (lambda: package.scaled(x.short(), w, flag=True), lambda: package.scaled(made(3, 8), made(8, 9), flag=True),
             lambda: package.scaled(made(3, 40).requires_grad_(), made(24, 40), flag=True).sum().backward()):
    try:
        call()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
run = torch.compile(lambda x, w: package.scaled(x, w, flag=True) + 1, backend="eager", dynamic=True)
print(run(made(5, 40), made(8, 40)).shape)
"""

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]


def answers(python: str, folder: Path) -> tuple[str, list[str]]:
    """Return the release of an environment, and the lines that the calls print there."""
    done = subprocess.run([python, "-W", "ignore", "-c", _CALLS], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    release, *printed = done.stdout.splitlines()
    return release, printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    named = [Named(name, each.request) for name, each in PROGRAMS.items()]
    library, _ = compiled(torch_extension(NAME, named, [TARGETS["sm80"]]), made)
    put(library, made / NAME)
    return made


def test_the_library_needs_nothing_of_pytorchs_cxx(folder: Path) -> None:
    library = str(folder / NAME / "operators.so")
    done = subprocess.run(["nm", "-Du", library], capture_output=True, text=True, check=True)
    assert "aoti_torch_empty_strided" in done.stdout
    assert re.findall(r"_Z\S*(?:3c10|2at|5torch)\S*", done.stdout) == []
    done = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert "libc10.so" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not OTHER, reason="EVT_OTHER_PYTORCH names no Python with another release of PyTorch")
def test_another_release_imports_it(folder: Path) -> None:
    release, printed = answers(sys.executable, folder)
    other, same = answers(OTHER, folder)
    assert release == torch.__version__
    assert other.split(".")[:2] != release.split(".")[:2]
    assert printed == same
    assert printed[-4].startswith("served_ops::scaled: `A` is torch.int16")
