"""What is built, and the key under which the result is kept."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from evt import version
from evt.build.toolchain import Toolchain

#: Raise it when the launcher's ABI, the embedding or the layout of the cache changes.
SCHEMA = 1
#: Of every pass. The paths of the toolchain come on top and are no part of the key.
FLAGS = (
    *("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr"),
    *("-Xcompiler", "-fPIC,-fvisibility=hidden"),
)
#: ``-z defs`` makes a reference to libcuda an error here, not at the load on a machine without a driver;
#: ``--exclude-libs`` keeps the static runtime's symbols away from those of the process.
LINK_FLAGS = ("-shared", "-nodlink", "-Xlinker", "-z,defs", "-Xlinker", "--exclude-libs,ALL")
#: nvcc reads these by itself.
_NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A translation unit and the real architecture it is for, such as ``sm_90a``.

    The kernel stands in ``#if !defined(EVT_HOST_PASS)``, the launcher in ``#if !defined(EVT_DEVICE_PASS)``;
    the launcher finds the kernel's cubin in ``extern "C" char const evt_cubin[]``.
    Raises ValueError for anything else than ``sm_`` and a number.
    """

    text: str
    gencode: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", self.gencode):
            raise ValueError(f"not a real architecture such as sm_80 or sm_90a: {self.gencode!r}")


def cache_key(source: KernelSource, toolchain: Toolchain) -> str:
    """The SHA-256 of all that decides what the library contains."""
    ingredients = {
        "schema": SCHEMA,
        "text": source.text,
        "gencode": source.gencode,
        "evt": version.__version__,
        "headers": _headers_digest(toolchain.evt_include),
        "nvcc": toolchain.nvcc_version,
        "cutlass": (toolchain.cutlass_version, toolchain.cutlass_origin),
        "flags": (FLAGS, LINK_FLAGS),
        "environment": [os.environ.get(name, "") for name in _NVCC_VARIABLES],
        "host": (os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION")),  # one home, several machines
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


@functools.cache
def _headers_digest(include: Path | None) -> str:
    """Of our own headers, which a source may include. Read once per process."""
    digest = hashlib.sha256()
    for header in sorted(include.rglob("*.hpp")) if include else ():
        digest.update(f"{header.relative_to(include or header)}\0".encode() + header.read_bytes() + b"\0")
    return digest.hexdigest()
