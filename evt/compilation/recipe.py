"""Recipes: the commands that make an artifact of the cache from a source.

A library is made by nvcc from the whole file, or from the parts that all formulas of its structure share: the skeleton,
as LTO-IR, and the launcher. Then NVRTC compiles the formula, and nvJitLink links it with the skeleton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from evt.compilation.cache import LAUNCHER, LIBRARY, SKELETON, SOURCE
from evt.compilation.dependencies import Read
from evt.compilation.jit import Missing, NvJitLink, Nvrtc, find_nvjitlink, find_nvrtc
from evt.compilation.skeleton import Split, formula_headers
from evt.compilation.source import (
    FLAGS,
    FORMULA_FLAGS,
    HOST_FLAGS,
    HOST_LIBRARIES,
    HOST_LINK_FLAGS,
    LINK_FLAGS,
    OPTIMISED_FLAGS,
    SKELETON_FLAGS,
    KernelSource,
)
from evt.compilation.toolchain import Toolchain, numbers
from evt.launch.cubin import parameter_bytes

#: The link to nvcc's toolkit in a working directory, for the host compiler.
TOOLKIT = "toolkit"
_EMBED = "embed.cpp"
_RULE = ("-MD", "-MF")
#: The content of an artifact of the cache, and the files that compilers read for it.
Load: TypeAlias = Callable[[Path], tuple[bytes, Read]]


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of nvcc or of the host compiler; if the host compiler fails, ``instead`` is run."""

    name: str
    argv: tuple[str, ...]
    instead: Pass | None = None


def compile_passes(source: KernelSource, toolchain: Toolchain) -> tuple[Pass, Pass]:
    """Return the two independent passes, the longer one first."""
    nvcc = (str(toolchain.nvcc), *FLAGS, *toolchain.include_flags)
    target = f"-gencode=arch={source.gencode.replace('sm_', 'compute_')},code={source.gencode}"
    host = ("-DEVT_HOST_PASS", *_RULE, "host.d", "-c", SOURCE, "-o", LAUNCHER)
    return (
        Pass(
            "device", (*nvcc, "-DEVT_DEVICE_PASS", target, *_RULE, "device.d", "-cubin", SOURCE, "-o", "kernel.cubin")
        ),
        _by_host_compiler(Pass("host", (*nvcc, *host)), toolchain, (*_host_words(toolchain), *host)),
    )


def link_pass(toolchain: Toolchain) -> Pass:
    """Return the pass that embeds the cubin and links, with the static CUDA runtime."""
    libraries = tuple(f"-L{path}" for path in toolchain.cuda_lib)
    files = (LAUNCHER, _EMBED, "-o", LIBRARY)
    nvcc = Pass("link", (str(toolchain.nvcc), *LINK_FLAGS, *libraries, *files))
    found = (*libraries, f"-L{TOOLKIT}/lib64", f"-L{TOOLKIT}/lib", *HOST_LIBRARIES)
    return _by_host_compiler(nvcc, toolchain, (*HOST_LINK_FLAGS, *files, *found))


def _host_words(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the host compiler's options for launchers."""
    major, minor, *_ = toolchain.nvcc_version.split(".")
    cuda = (word for name in ("include", "include/cccl") for word in ("-isystem", f"{TOOLKIT}/{name}"))
    version = (f"-DEVT_NVCC_MAJOR={major}", f"-DEVT_NVCC_MINOR={minor}")
    stubs = ("-include", f"{toolchain.evt_include}/evt/host.hpp", "-x", "c++")
    return (*HOST_FLAGS, *version, *toolchain.include_flags, *cuda, *stubs)


def _by_host_compiler(nvcc: Pass, toolchain: Toolchain, words: tuple[str, ...]) -> Pass:
    """Return a pass by the host compiler, with nvcc's as the fallback; nvcc's pass without a host compiler."""
    if toolchain.host_compiler is None:
        return nvcc
    return Pass(nvcc.name, (str(toolchain.host_compiler), *words), nvcc)


@dataclass(frozen=True, slots=True)
class Jit:
    """NVRTC and an nvJitLink that links the LTO-IR of NVRTC and nvcc."""

    nvrtc: Nvrtc
    linker: NvJitLink


@dataclass(frozen=True, slots=True)
class Formula:
    """A step within this process: compile a formula, link it with its skeleton, and give both parts its name."""

    split: Split
    gencode: str
    jit: Jit
    skeleton: Path
    launcher: Path
    name: str = "formula"

    def run(self, work: Path, load: Load) -> Read:
        """Write the cubin, the launcher and its constants; return the files that the parts were made from.

        Raise JitError, or ValueError or OSError for a damaged part.
        """
        skeleton, read = load(self.skeleton)
        launcher, read_for_launcher = load(self.launcher)
        options = (f"--gpu-architecture={self.gencode}", *FORMULA_FLAGS, *_lto_flags(self.split))
        made = self.jit.nvrtc.compile(self.split.formula, options, output="ltoir", headers=formula_headers())
        inputs = (("skeleton", skeleton), ("formula", made))
        cubin = self.split.renamed(self.jit.linker.link(inputs, (f"-arch={self.gencode}", "-lto")))
        (work / "kernel.cubin").write_bytes(cubin)
        (work / LAUNCHER).write_bytes(self.split.renamed(launcher))
        (work / _EMBED).write_text(_constants(self.split, parameter_bytes(cubin, f"{self.split.name}_kernel")))
        return {**read, **read_for_launcher}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to one artifact: steps side by side, and a last one.

    ``has_fallback``: whether nvcc compiles the whole file after a failure.
    """

    source: KernelSource
    steps: tuple[Pass | Formula, ...]
    last: Pass | None = None
    artifact: str = LIBRARY
    files: Mapping[str, str] = field(default_factory=dict)
    has_fallback: bool = False


def whole(source: KernelSource, toolchain: Toolchain) -> Recipe:
    """Return the recipe of a library by nvcc; the host compiler compiles the launcher if there is one."""
    return Recipe(source, compile_passes(source, toolchain), link_pass(toolchain), files={_EMBED: _embed()})


def parts(source: KernelSource, split: Split, toolchain: Toolchain) -> dict[str, Recipe]:
    """Return the recipes of the parts by their artifacts; the launcher does not depend on the architecture."""
    target = f"-gencode=arch={source.gencode.replace('sm_', 'compute_')},code={source.gencode.replace('sm_', 'lto_')}"
    device = (
        "-DEVT_DEVICE_PASS",
        *SKELETON_FLAGS,
        *_lto_flags(split),
        target,
        *_RULE,
        "device.d",
        SOURCE,
        "-o",
        SKELETON,
    )
    nvcc = (str(toolchain.nvcc), *FLAGS, *toolchain.include_flags)
    _, host = compile_passes(source, toolchain)
    steps = {SKELETON: Pass("device", (*nvcc, *device)), LAUNCHER: host}
    words = {SKELETON: "skeleton", LAUNCHER: "launcher"}
    found = {}
    for name, step in steps.items():
        part = KernelSource(split.skeleton, source.gencode, kernel=f"{words[name]} of {source.kernel}")
        found[name] = Recipe(part, (step,), artifact=name, has_fallback=True)
    return found


def _lto_flags(split: Split) -> tuple[str, ...]:
    """Return the options that optimise both parts before their link, if the code of the link stays as fast.

    The link inlines the regions. Nodes between two regions are optimised with the regions' code only at the link, which
    then has to optimise all: that takes 1 to 4 CPU seconds longer.
    """
    return OPTIMISED_FLAGS if split.regions == 1 else ()


def by_parts(source: KernelSource, formula: Formula, toolchain: Toolchain) -> Recipe:
    """Return the recipe of a library from its parts."""
    return Recipe(source, (formula,), link_pass(toolchain), has_fallback=True)


def find_jit(toolchain: Toolchain) -> Jit | Missing:
    """Return NVRTC and nvJitLink, or the reason that they cannot make kernels of this nvcc's skeletons."""
    nvrtc, linker = find_nvrtc(), find_nvjitlink()
    for found in (nvrtc, linker):
        if isinstance(found, Missing):
            return found
    assert isinstance(nvrtc, Nvrtc)
    assert isinstance(linker, NvJitLink)
    for name, made in (("nvcc", numbers(toolchain.nvcc_version)[:2]), ("NVRTC", nvrtc.version)):
        if made[0] != linker.version[0] or made > linker.version:
            newer = ".".join(map(str, linker.version))
            reason = f"nvJitLink {newer} does not link the LTO-IR of {name} {'.'.join(map(str, made))}"
            return Missing(reason, "pip install --upgrade nvidia-nvjitlink")
    return Jit(nvrtc, linker)


def _embed() -> str:
    return Path(__file__).with_name(_EMBED).read_text()


def _constants(split: Split, size: int) -> str:
    """Return the text with the cubin and the constants of a kernel: its schema, and the size of its parameters."""
    return f"""{_embed()}
#define EXPORTED __attribute__((visibility("default")))
extern "C" {{
EXPORTED char const* {split.name}_schema() {{ return {split.schema}; }}
extern EXPORTED unsigned const {split.name}_taken;
unsigned const {split.name}_taken = {size};
}}
"""
