"""The key of a library: everything that decides its contents, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import evt.compilation.source
from evt import version
from evt.compilation import KernelSource, Toolchain, cache_key

TOOLS = Toolchain(Path("/opt/nvcc"), "13.0.88", Path("/opt/cutlass/include"), "4.2.0")
SOURCE = KernelSource("void kernel();\n", "sm_90a")
KEY = cache_key(SOURCE, TOOLS)


def test_the_key_is_stable_and_safe_as_a_file_name() -> None:
    assert cache_key(KernelSource(SOURCE.text, "sm_90a"), dataclasses.replace(TOOLS)) == KEY
    assert len(KEY) == 64
    assert set(KEY) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("source", "tools"),
    [
        (KernelSource("void kernel() {}\n", "sm_90a"), TOOLS),
        (KernelSource(SOURCE.text, "sm_90"), TOOLS),
        (SOURCE, dataclasses.replace(TOOLS, nvcc_version="13.0.89")),
        (SOURCE, dataclasses.replace(TOOLS, nvcc=Path("/usr/bin/nvcc"))),
        (SOURCE, dataclasses.replace(TOOLS, cutlass_version="4.2.1")),
    ],
    ids=["text", "gencode", "version", "nvcc", "cutlass"],
)
def test_the_key_depends_on(source: KernelSource, tools: Toolchain) -> None:
    assert cache_key(source, tools) != KEY


def test_the_key_depends_on_our_version_flags_and_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    module = evt.compilation.source
    for target, name, value in (
        (version, "__version__", "999"),
        (module, "FLAGS", (*module.FLAGS, "-lineinfo")),
        (module, "LINK_FLAGS", (*module.LINK_FLAGS, "-s")),
        (module, "SCHEMA", 999),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            assert cache_key(SOURCE, TOOLS) != KEY, name
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    assert cache_key(SOURCE, TOOLS) != KEY


def test_the_key_depends_on_our_headers(tmp_path: Path) -> None:
    keys = set()
    for name, text in (("a", "1"), ("b", "2")):
        header = tmp_path / name / "evt/node.hpp"
        header.parent.mkdir(parents=True)
        header.write_text(text)
        keys.add(cache_key(SOURCE, dataclasses.replace(TOOLS, evt_include=tmp_path / name)))
    assert len(keys | {KEY}) == 3


def test_the_key_does_not_depend_on_where_the_headers_are() -> None:
    moved = dataclasses.replace(TOOLS, cutlass_include=Path("/venv/include"), cutlass_origin="/venv")
    assert cache_key(SOURCE, moved) == KEY


@pytest.mark.parametrize("gencode", ["", "90a", "sm_9", "compute_90", "sm_90a; rm -rf /", "sm_90x"])
def test_a_gencode_is_an_architecture(gencode: str) -> None:
    with pytest.raises(ValueError, match="architecture"):
        KernelSource("", gencode)
