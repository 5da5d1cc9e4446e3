"""Launchers by the host compiler: nvcc is the fallback, and the compiler counts in the key."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from evt.compilation import BuildEvent, KernelSource, build, cache_key, diagnose, source
from evt.compilation.toolchain import find_host_compiler, find_toolchain
from evt.errors import BuildError
from tests.support.fake_nvcc import FAKE_NVCC, Room

SOURCE = "one\n"
KERNEL = KernelSource(SOURCE, "sm_90a")


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def commands(library: Path) -> dict[str, str]:
    record = json.loads((library.parent / "build.json").read_text())
    return {step["name"]: step["command"] for step in record["passes"]}


def test_the_host_compiler_compiles_the_launcher_and_links(room: Room, tmp_path: Path) -> None:
    tools = dataclasses.replace(room.tools, host_compiler=script(tmp_path / "c++", FAKE_NVCC))
    (library,) = build([KERNEL], cache=room.cache, toolchain=tools)
    made = commands(library)
    assert made["device"].startswith(str(room.tools.nvcc))
    assert all(made[name].startswith(str(tools.host_compiler)) for name in ("host", "link"))
    assert "-DEVT_HOST_PASS" in made["host"]
    assert "evt/host.hpp" in made["host"]
    assert "-lcudart_static" in made["link"]
    assert room.starts() == {"device": 1, "host": 1, "link": 1}


@pytest.mark.parametrize("text", ["#!/bin/sh\necho 'kernel.cu:1: error: no' >&2; exit 1\n", "no program"])
def test_nvcc_is_the_fallback(room: Room, tmp_path: Path, text: str) -> None:
    tools = dataclasses.replace(room.tools, host_compiler=script(tmp_path / "c++", text))
    events: list[BuildEvent] = []
    (library,) = build([KERNEL], cache=room.cache, toolchain=tools, on_event=events.append)
    assert library.read_text() == SOURCE
    assert all(command.startswith(str(room.tools.nvcc)) for command in commands(library).values())
    fallbacks = {event.stage: event.text for event in events if event.kind == "fallback"}
    assert fallbacks.keys() == {"host", "link"}
    assert all(text.startswith(f"nvcc instead of {tools.host_compiler}: ") for text in fallbacks.values())


def test_the_host_compiler_counts_in_the_key(room: Room, tmp_path: Path) -> None:
    first, second = script(tmp_path / "g++", "#!/bin/sh\n"), script(tmp_path / "clang++", "#!/bin/sh\necho 2\n")
    chosen = (None, first, second)
    keys = [cache_key(KERNEL, dataclasses.replace(room.tools, host_compiler=each)) for each in chosen]
    script(first, "#!/bin/sh\necho changed\n")
    keys.append(cache_key(KERNEL, dataclasses.replace(room.tools, host_compiler=first)))
    assert len(set(keys)) == 4


@pytest.mark.parametrize("named", ["/nowhere/g++", "g+++", "nothing -O2"])
def test_a_host_compiler_that_is_no_program_is_a_diagnostic(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compiler would be a surprise."""
    monkeypatch.setenv("CXX", named)
    for find in (find_host_compiler, find_toolchain):
        with pytest.raises(BuildError, match=rf"E0701.*CXX is '{re.escape(named)}', which is not a program"):
            find()
    (check,) = [each for each in diagnose() if each.name == "C++ compiler"]
    assert not check.ok
    assert named in check.found


def test_the_choice_of_the_host_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CXX", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_host_compiler() is None
    for name in ("clang++", "g++", "mine", "other"):
        script(tmp_path / name, "#!/bin/sh\n")
    assert find_host_compiler() == tmp_path / "g++"
    (tmp_path / "g++").unlink()
    assert find_host_compiler() == tmp_path / "clang++"
    monkeypatch.setenv("NVCC_CCBIN", "mine")
    assert find_host_compiler() == tmp_path / "mine"
    monkeypatch.setenv("CXX", "other")
    assert find_host_compiler() == tmp_path / "other"
    monkeypatch.setenv("CXX", "other -m64")  # evt calls a program without options
    assert find_host_compiler() == tmp_path / "mine"
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX")  # options for nvcc count for launchers too
    assert find_host_compiler() is None


def test_nvrtc_and_nvjitlink_count_in_the_key(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compile formulas, and link these with skeletons. nvcc alone compiles whole files."""
    parts, whole = (dataclasses.replace(room.tools, by_parts=each) for each in (True, False))
    before = [cache_key(KERNEL, each) for each in (parts, whole)]
    monkeypatch.setattr(source, "jit_versions", lambda: (("nvidia-nvjitlink", "99.0"),))
    after = [cache_key(KERNEL, each) for each in (parts, whole)]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_the_versions_of_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"nvidia-cuda-nvrtc-cu12": "12.8", "nvidia-nvjitlink": "13.0"}

    def version_of(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError
        return known[name]

    monkeypatch.setattr(metadata, "version", version_of)
    assert dict(source.jit_versions.__wrapped__()) == known
