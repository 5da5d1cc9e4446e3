"""A source to build, and the key under which the result is kept."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from evt import version
from evt.compilation.fingerprint import Digests
from evt.compilation.inputs import Inputs, find_inputs
from evt.compilation.toolchain import Toolchain
from evt.resources import NVCC_FLAGS

#: Increase it when the launcher's ABI, the embedding or the layout of the cache changes.
SCHEMA = 3
#: Options of every pass. The toolchain's paths are added, and are not part of the key.
FLAGS = (*NVCC_FLAGS, "-Xcompiler", "-fPIC,-fvisibility=hidden")
#: Options of the host compiler for launchers. CUTLASS's headers are not strict C++. GCC collects no garbage below 4 GB:
#: for a launcher of CUTLASS 3.x, the collections would take 0.6 of 5 CPU seconds and save 120 MB of 750.
HOST_FLAGS = (
    *("-std=c++17", "-O1", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fpermissive", "-w"),
    "--param=ggc-min-heapsize=4000000",
)
#: Options of nvcc for skeletons, and of NVRTC for formulas: both make LTO-IR.
SKELETON_FLAGS = ("-dc", "-ltoir")
FORMULA_FLAGS = ("-std=c++17", "-DNDEBUG", "-dlto")
#: The option of both for kernels of one region: optimise before the link.
OPTIMISED_FLAGS = ("-gen-opt-lto",)
#: ``-z defs`` makes a reference to libcuda an error here, instead of when loading on a machine without a driver;
#: ``--exclude-libs`` keeps the static runtime's symbols apart from the process's.
LINK_FLAGS = ("-shared", "-nodlink", "-Xlinker", "-z,defs", "-Xlinker", "--exclude-libs,ALL")
#: The same for the host compiler, which links the static CUDA runtime.
HOST_LINK_FLAGS = ("-shared", "-Wl,-z,defs", "-Wl,--exclude-libs,ALL")
HOST_LIBRARIES = ("-lcudart_static", "-lrt", "-lpthread", "-ldl")


#: The packages with NVRTC and nvJitLink.
_JIT = tuple(f"{name}{cuda}" for name in ("nvidia-cuda-nvrtc", "nvidia-nvjitlink") for cuda in ("", "-cu12", "-cu13"))


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A translation unit and the real architecture that it targets, such as ``sm_90a``.

    The kernel is within ``#if !defined(EVT_HOST_PASS)``, the launcher within ``#if !defined(EVT_DEVICE_PASS)``; the
    launcher finds the kernel's cubin in ``extern "C" char const evt_cubin[]``. ``name`` is the prefix of its functions,
    and ``kernel`` is its route and configuration, for people. ``alone``: NVRTC can compile the kernel, and the caller
    can launch a cubin without the launcher. Raise ValueError for anything but ``sm_`` and a number.
    """

    text: str
    gencode: str
    name: str = ""
    kernel: str = field(default="", compare=False)
    alone: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", self.gencode):
            raise ValueError(f"not a real architecture such as sm_80 or sm_90a: {self.gencode!r}")


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text, for keys: the text of an own kernel takes five times as long in JSON."""
    return hashlib.sha256(text.encode()).hexdigest()


def cache_key(source: KernelSource, toolchain: Toolchain, read: Inputs | None = None) -> str:
    """Return the SHA-256 of everything that decides the library's content.

    ``read`` is the result of :func:`find_inputs`.
    """
    ingredients: dict[str, object] = {
        "text": text_digest(source.text),
        "gencode": source.gencode,
        "flags": (FLAGS, LINK_FLAGS, SKELETON_FLAGS, FORMULA_FLAGS, OPTIMISED_FLAGS, HOST_LINK_FLAGS, HOST_LIBRARIES),
        "by parts": jit_versions() if toolchain.by_parts else None,
    }
    return _key(ingredients, read or find_inputs(toolchain, Digests()))


@cache
def jit_versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of the installed packages of NVRTC and nvJitLink.

    Libraries of a toolkit belong to its nvcc, which counts too. Loading them for their versions would take longer than
    finding a library in the cache.
    """
    from importlib import metadata

    found = []
    for name in _JIT:
        with suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return tuple(found)


def source_key(source: KernelSource, part: tuple[str, str] | None = None) -> str:
    """Return the key of an imported library: it depends on no compiler, so machines without one know it too.

    ``part`` is the artifact of a part, and the version of its nvcc, which links only with its own kind.
    """
    ingredients: dict[str, object] = {
        "schema": SCHEMA,
        "text": text_digest(source.text),
        "gencode": source.gencode,
        "evt": version.__version__,
    }
    if part is not None:
        ingredients["part"] = part
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


def part_key(text: str, artifact: str, gencode: str, read: Inputs) -> str:
    """Return the SHA-256 of everything that decides a part of kernels, made from ``text``."""
    flags = (FLAGS, SKELETON_FLAGS, OPTIMISED_FLAGS)
    return _key({"text": text_digest(text), "part": artifact, "gencode": gencode, "flags": flags}, read)


def _key(ingredients: dict[str, object], read: Inputs) -> str:
    common = {"schema": SCHEMA, "evt": version.__version__, "launcher": HOST_FLAGS, "inputs": read.digest}
    return hashlib.sha256(json.dumps({**common, **ingredients}, sort_keys=True).encode()).hexdigest()
