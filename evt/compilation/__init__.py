"""From C++ text to a loadable library: find the tools, compile, cache the result.

In the order of the data: :mod:`toolchain` and :mod:`environment` (the tools), :mod:`inputs` (the files that compilers
read, by :mod:`fingerprint`), :mod:`source` (a source and its cache key), :mod:`skeleton` (a CUTLASS kernel without its
formula), :mod:`jit` (NVRTC and nvJitLink), :mod:`recipe` (the commands for a library and its parts), :mod:`cache`
(libraries and parts on disk; :mod:`lock` guards them, :mod:`contents` describes them), :mod:`compilation` (one recipe,
by :mod:`process` and its :mod:`supervisor`; :mod:`dependencies` are the files that compilers read, :mod:`verdict`
judges failures), :mod:`own` (own kernels by NVRTC), :mod:`claims` (each key is built by one process), :mod:`policy`
(whether this process may compile), :mod:`builder` (many sources at once, by :mod:`pool`, in the :mod:`places` of the
machine; :mod:`progress` shows it), :mod:`each` (sources that may fail), :mod:`ahead` (sources that later calls may
need), :mod:`pack` (kernels from and for other machines), :mod:`doctor` (missing parts).
"""

from evt.compilation.ahead import build_ahead
from evt.compilation.builder import build, build_and_use, has_tools, missing_tools, tools_digest
from evt.compilation.cache import Cache, Entry
from evt.compilation.contents import Contents, contents, source_of
from evt.compilation.doctor import Check, diagnose
from evt.compilation.each import build_each
from evt.compilation.event import BuildEvent, Phases
from evt.compilation.pack import Packed, pack_sources, read_pack, write_pack
from evt.compilation.pool import Cancellation
from evt.compilation.source import KernelSource, cache_key, source_key
from evt.compilation.toolchain import Toolchain, find_toolchain

__all__ = [
    "BuildEvent",
    "Cache",
    "Cancellation",
    "Check",
    "Contents",
    "Entry",
    "KernelSource",
    "Packed",
    "Phases",
    "Toolchain",
    "build",
    "build_ahead",
    "build_and_use",
    "build_each",
    "cache_key",
    "contents",
    "diagnose",
    "find_toolchain",
    "has_tools",
    "missing_tools",
    "pack_sources",
    "read_pack",
    "source_key",
    "source_of",
    "tools_digest",
    "write_pack",
]
