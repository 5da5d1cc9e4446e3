"""A model that tests package, and a program of C++ that runs its package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from evt.fx.package import Package

_SOURCE = Path(__file__).parents[1] / "cxx/package.cpp"


class Layers(torch.nn.Module):
    """Two products of rows of 16; the second has a residual and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.second(torch.relu(self.first(x))) + x
        return torch.sigmoid(found), found


def run_in_cxx(made: Package, folder: Path, *shape: int, device: str = "cpu") -> str:
    """Return the output of a program, built once in ``folder``: it loads a package and calls it with ones."""
    root = Path(torch.__file__).parent
    headers = ("-isystem", str(root / "include"), "-isystem", str(root / "include/torch/csrc/api/include"))
    torch_libraries = ["-ltorch", "-ltorch_cpu", "-lc10", *(["-ltorch_cuda"] if device == "cuda" else [])]
    libraries = (f"-L{root / 'lib'}", "-Wl,--no-as-needed", *torch_libraries, "-ldl", f"-Wl,-rpath,{root / 'lib'}")
    program = str(folder / "package")
    if not Path(program).exists():
        words = ["g++", "-std=c++17", "-O0", *headers, str(_SOURCE), "-o", program, *libraries]
        built = subprocess.run(words, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[-2000:]
    assert made.library is not None
    words = [program, str(made.model), str(made.library), device, *map(str, shape)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
