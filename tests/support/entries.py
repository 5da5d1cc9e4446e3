"""Entries of the cache that are put in by hand: nothing is compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

from evt.compilation import Cache, KernelSource, Toolchain, cache_key
from evt.errors import BuildError

TOOLS = Toolchain(Path("/opt/nvcc"), "13.0.88", Path("/opt/cutlass/include"), "4.2.0")
SOURCE = KernelSource("void kernel();\n", "sm_90a")
KEY = cache_key(SOURCE, TOOLS)


def put(cache: Cache, source: KernelSource = SOURCE, library: bytes = b"library") -> Path:
    """Store a library as the builder does, without a compiler."""
    key = cache_key(source, TOOLS)
    cache.prepare()
    lock = cache.lock(key, wait=True)
    assert lock is not None
    work = cache.workspace(key, {"kernel.cu": source.text})
    (work / "kernel.so").write_bytes(library)
    path = cache.publish(key, work, {"gencode": source.gencode, "nvcc": TOOLS.nvcc_version, "read": {}})
    shutil.rmtree(work)
    lock.release()
    return path


def code_of(error: BuildError) -> str:
    (problem,) = error.diagnostics
    assert problem.help
    return problem.code
