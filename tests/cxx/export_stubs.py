"""Exported extensions with stubs in the place of kernels, and of the CUDA runtime: built by g++, called on the CPU.

A stub records the arguments of the call to its kernel.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.cxx.cute import GXX, include_flags

_STUBS = """
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>

extern "C" {
char const* stub_kernel = "";
std::size_t stub_size = 0;
std::int64_t stub_words[256];
int stub_code = 0, stub_capability = 80;
int (*stub_compute)() = nullptr;  // what computes in the place of kernels
std::int64_t stub_workspace = 0;

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (stub_capability == 0) return cudaErrorInsufficientDriver;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? stub_capability / 10 : stub_capability % 10;
  return cudaSuccess;
}
char const* cudaGetErrorString(cudaError_t) { return "the driver is too old"; }
"""
_STUB = """
int NAME_run(void const* arguments, std::size_t size, void*) {
  stub_kernel = "NAME";
  stub_size = size;
  std::memcpy(stub_words, arguments, size);
  return stub_compute ? stub_compute() : stub_code;
}
std::int64_t NAME_workspace(void const*) { return stub_workspace; }
char const* NAME_error_string(int) { return "the stub's words"; }
"""


@dataclass(frozen=True)
class Stubbed:
    """A loaded extension. ``fields`` are the (name, kind) of each kernel's arguments."""

    library: ctypes.CDLL
    fields: dict[str, list[tuple[str, str]]]

    def set(self, name: str, value: int, kind: Any = ctypes.c_int) -> None:
        kind.in_dll(self.library, f"stub_{name}").value = value

    @property
    def kernel(self) -> str:
        """The kernel that was called last."""
        return (ctypes.c_char_p.in_dll(self.library, "stub_kernel").value or b"").decode()

    @property
    def arguments(self) -> dict[str, float]:
        """The arguments of the last kernel call, by the names of the members."""
        fields = self.fields[self.kernel]
        assert ctypes.c_size_t.in_dll(self.library, "stub_size").value == 8 * len(fields)
        words = (ctypes.c_int64 * 256).in_dll(self.library, "stub_words")
        numbers = [struct.unpack("d", struct.pack("q", words[at]))[0] for at in range(len(fields))]
        return {name: numbers[at] if kind == "double" else words[at] for at, (name, kind) in enumerate(fields)}


def stubbed(files: dict[str, str], folder: Path, name: str, *, stable: bool = True) -> Stubbed:
    """Compile the binding of an extension with stubs, and import its package from a folder."""
    library, fields = compiled(files, folder, stable=stable)
    library = put(library, folder / name, stable=stable)
    sys.path.insert(0, str(folder))
    importlib.import_module(name)
    sys.path.remove(str(folder))
    return Stubbed(ctypes.CDLL(str(library)), fields)


def put(library: Path, package: Path, *, stable: bool = True) -> Path:
    """Copy a library into its package, as a build does; return the copy."""
    oldest = "2.10" if stable else ""
    (package / "built_with.py").write_text(f'torch = "{torch.__version__}"\noldest = "{oldest}"\n')
    return Path(shutil.copy(library, package / "operators.so"))


def compiled(
    files: dict[str, str], folder: Path, capability: int = 80, device: str = "CPU", *, stable: bool = True
) -> tuple[Path, dict[str, list[tuple[str, str]]]]:
    """Compile the binding of an extension with stubs; return the library, and the arguments of its kernels.

    ``stable``: by PyTorch's stable interface.
    """
    fields = {}
    text = _STUBS.replace("stub_capability = 80", f"stub_capability = {capability}")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
        if path.endswith(".h"):
            name = Path(path).stem
            text += _STUB.replace("NAME", name)
            struct_text = content[content.index("typedef struct") : content.index(f"}} {name}_arguments;")]
            fields[name] = [(member, kind) for kind, member in re.findall(r"^  (.+?) ?\b(\w+);", struct_text, re.M)]
    (folder / "stubs.cpp").write_text(text + "}\n")
    root = Path(torch.__file__).parent
    headers = [root / "include", root / "include/torch/csrc/api/include"]
    own = [f"-I{folder / 'csrc'}", f"-I{folder / 'csrc/kernels'}", f"-DEVT_TORCH_DEVICE={device}"]
    own += ["-DEVT_TORCH_STABLE"] if stable else []
    system = [word for each in headers for word in ("-isystem", str(each))]
    library = folder / "stubbed.so"
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    standard = "-std=c++20" if release >= (2, 13) else "-std=c++17"
    command = [GXX, standard, "-O0", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fPIC", *own, *system]
    command += include_flags()
    command += ["-shared", str(folder / "csrc/binding.cpp"), str(folder / "stubs.cpp"), "-o", str(library)]
    # The stubs are taken where a PyTorch for CUDA has loaded the true functions before.
    command += ["-Wl,-Bsymbolic-functions", f"-L{root / 'lib'}", "-ltorch_cpu", *([] if stable else ["-lc10"]), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr[:4000]
    return library, fields
