"""A library's inputs are in its key or checked again, and nothing else reaches a compiler."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import evt.compilation.fingerprint as fingerprint
import evt.compilation.inputs as inputs
from evt.compilation import BuildEvent, Cache, KernelSource, Toolchain, cache_key
from evt.errors import BuildError
from tests.support.fake_nvcc import Room

SOURCE = KernelSource("void kernel();\n", "sm_90a")
HEADERS = ("include/cutlass/cutlass.h", "include/cute/tensor.hpp", "tools/util/include/cutlass/util/tensor.h")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name in HEADERS:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("// 1\n")
    return root


@pytest.fixture
def tools(checkout: Path) -> Toolchain:
    return Toolchain(Path("/opt/nvcc"), "13.0.88", checkout / "include", "4.2.0", str(checkout))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory on PATH except the shell's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    return folder


def script(path: Path, text: str = "exit 0") -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# Headers


def in_place(header: Path) -> None:
    header.write_text("// 2\n")


def with_the_old_times(header: Path) -> None:
    before = header.stat()
    header.write_text("// 2\n")
    os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_another_file(header: Path) -> None:
    before = header.stat()
    new = header.with_name("new")
    new.write_text("// 2\n")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(header)


def by_a_link(header: Path) -> None:
    target = header.parents[3] / "elsewhere"
    target.write_text("// 2\n")
    header.unlink()
    header.symlink_to(target)


def gone(header: Path) -> None:
    header.unlink()


def one_more(header: Path) -> None:
    header.with_name("another.h").write_text("// 1\n")


@pytest.mark.parametrize("edit", [in_place, with_the_old_times, by_another_file, by_a_link, gone, one_more])
@pytest.mark.parametrize("name", HEADERS)
def test_an_edited_header_makes_another_key(
    tools: Toolchain, checkout: Path, name: str, edit: Callable[[Path], None]
) -> None:
    before = cache_key(SOURCE, tools)
    edit(checkout / name)
    assert cache_key(SOURCE, tools) != before


def test_the_content_counts(tools: Toolchain, checkout: Path, tmp_path: Path) -> None:
    before = cache_key(SOURCE, tools)
    os.utime(checkout / HEADERS[0])
    assert cache_key(SOURCE, tools) == before
    (checkout / HEADERS[0]).write_text("// 2\n")
    (checkout / HEADERS[0]).write_text("// 1\n")
    (checkout / "include/.cutlass.h.swp").write_text("an editor's")
    assert cache_key(SOURCE, tools) == before
    checkout.rename(tmp_path / "moved")
    assert cache_key(SOURCE, dataclasses.replace(tools, cutlass_include=tmp_path / "moved/include")) == before


def test_edits_within_a_tick_of_the_clock(tools: Toolchain, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a file that was just changed, stat may be equal before and after the next change."""
    files = [("cutlass/cutlass.h", 5, 1, time.time_ns(), 7)]
    monkeypatch.setattr(fingerprint, "listing", lambda root: files)
    keys = set()
    for turn in range(5):
        (checkout / HEADERS[0]).write_text(f"// {turn}\n")
        keys.add(cache_key(SOURCE, tools))
    assert len(keys) == 5


def test_a_tree_with_loops_pipes_and_links_to_nowhere(tools: Toolchain, checkout: Path) -> None:
    (checkout / "include/loop").symlink_to(checkout / "include")
    (checkout / "include/nowhere.h").symlink_to("nowhere")
    os.mkfifo(checkout / "include/pipe.h")
    assert len(fingerprint.listing(checkout / "include")) == 3
    before = cache_key(SOURCE, tools)
    (checkout / "linked").mkdir()
    (checkout / "include/linked").symlink_to(checkout / "linked")
    (checkout / "linked/header.h").write_text("// 1\n")
    changed = cache_key(SOURCE, tools)
    (checkout / "linked/header.h").write_text("// 2\n")
    assert len({before, changed, cache_key(SOURCE, tools)}) == 3


@pytest.fixture
def known(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with a digest of the checkout, which this process has forgotten."""
    monkeypatch.setattr(fingerprint, "_RECENT", 0)
    monkeypatch.setattr(fingerprint, "_known", {})
    monkeypatch.setattr(fingerprint, "_kept", set())
    file = tmp_path / "digests.json"
    time.sleep(0.02)
    fingerprint.Digests(file).of(checkout)
    fingerprint._known.clear()
    fingerprint._kept.clear()
    return file


def test_headers_are_read_once(known: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_content", lambda *_: pytest.fail("read again"))
    first = fingerprint.Digests(known).of(checkout)
    fingerprint._kept.clear()
    known.unlink()
    assert fingerprint.Digests(known).of(checkout) == first
    assert json.loads(known.read_text())["digests"] == dict([first])


def test_what_is_known_is_bounded(known: Path, tmp_path: Path) -> None:
    for turn in range(fingerprint.MOST + 5):
        (tmp_path / f"{turn}").mkdir()
        (tmp_path / f"{turn}/header.h").write_text(f"// {turn}\n")
        time.sleep(0.005)
        last = fingerprint.Digests(known).of(tmp_path / f"{turn}")
    rows = json.loads(known.read_text())["digests"]
    assert len(rows) == fingerprint.MOST
    assert list(rows.items())[-1] == last


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 9, "digests": {}}', "[" * 50_000])
def test_what_cannot_be_read_is_found_out_again(known: Path, checkout: Path, text: str) -> None:
    expected = fingerprint.Digests().of(checkout)
    fingerprint._known.clear()
    known.write_text(text)
    assert fingerprint.Digests(known).of(checkout) == expected


def test_a_pipe_for_what_is_known(known: Path, checkout: Path) -> None:
    expected = fingerprint.Digests().of(checkout)
    known.unlink()
    os.mkfifo(known, 0o600)
    assert fingerprint.Digests(known).of(checkout) == expected


def test_what_others_could_have_written_is_not_believed(known: Path, checkout: Path) -> None:
    known.chmod(0o666)
    with pytest.raises(BuildError, match="E0705"):
        fingerprint.Digests(known).of(checkout)


# Compilers


def test_the_key_depends_on_the_compilers_on_path(tools: Toolchain, programs: Path) -> None:
    keys = [cache_key(SOURCE, tools)]
    for name in ("gcc", "g++", "as", "ld"):
        script(programs / name)
        keys.append(cache_key(SOURCE, tools))
    script(programs / "g++", "exit 1")
    keys.append(cache_key(SOURCE, tools))
    assert len(set(keys)) == len(keys)
    script(programs / "unrelated")
    assert cache_key(SOURCE, tools) == keys[-1]


def test_the_key_depends_on_what_a_script_stands_for(
    tools: Toolchain, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(programs / "g++", f"cat {tmp_path}/version")
    keys = set()
    for version in ("g++ 12", "g++ 13"):
        inputs._version.cache_clear()  # each process asks once
        (tmp_path / "version").write_text(version)
        keys.add(cache_key(SOURCE, tools))
    assert len(keys) == 2


@pytest.mark.parametrize("variable", ["NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"])
@pytest.mark.parametrize("form", ["{}", "-ccbin {}", "-ccbin={}", "--compiler-bindir {}"])
def test_the_key_depends_on_a_named_compiler(
    tools: Toolchain, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, form: str
) -> None:
    if (variable == "NVCC_CCBIN") != (form == "{}"):
        return
    (tmp_path / "mine").mkdir()
    for named in (tmp_path / "mine/g++-13", tmp_path / "mine"):
        monkeypatch.setenv(variable, form.format(named))
        changed = named / "gcc" if named.is_dir() else named
        keys = []
        for turn in (1, 2):
            script(changed, f"exit {turn}")
            keys.append(cache_key(SOURCE, tools))
        assert keys[0] != keys[1]


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CUDA_HOME"])
def test_the_key_depends_on_what_reaches_compilers(
    tools: Toolchain, programs: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = cache_key(SOURCE, tools)
    monkeypatch.setenv(name, "-DX" if "FLAGS" in name else "/somewhere")
    assert cache_key(SOURCE, tools) != before


def test_an_nvcc_that_was_replaced(tools: Toolchain, tmp_path: Path) -> None:
    keys = set()
    for text in ("exit 0", "exit 1"):
        keys.add(cache_key(SOURCE, dataclasses.replace(tools, nvcc=script(tmp_path / "nvcc", text))))
    big = tmp_path / "nvcc"
    for size in (100_000, 100_001):
        big.write_bytes(bytes(size))
        keys.add(cache_key(SOURCE, dataclasses.replace(tools, nvcc=big)))
    os.utime(big, (1, 1))
    keys.add(cache_key(SOURCE, dataclasses.replace(tools, nvcc=big)))
    assert len(keys) == 5


def test_nothing_else_reaches_compilers(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither internal files of gcc and nvcc, nor the variables of nvcc's profile, nor preloaded libraries."""
    known = (
        *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
        *("SOURCE_DATE_EPOCH", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "GCC_COMPARE_DEBUG", "LD_PRELOAD"),
        *("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES", "PTXAS_FLAGS", "CUDAFE_FLAGS", "CICC_PATH", "TOP", "BASH_ENV"),
    )
    for name in known:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TMPDIR", "/tmp/a$(touch PWNED)b")
    text = room.tools.nvcc.read_text()
    room.tools.nvcc.write_text(text.replace("out= rule=", 'env > "$log.env"\nout= rule=', 1))
    room.build("one\n")
    lines = Path(f"{room.file}.env").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    shells_own = {"PWD", "SHLVL", "_", "OLDPWD"}
    allowed = {"PATH", "HOME", "LC_ALL", "TMPDIR", *inputs.deciding_variables()}  # type: ignore[attr-defined]
    assert set(found) <= allowed | shells_own
    assert found["TMPDIR"] == "."


# Files that nvcc reports as read


def with_rule(room: Room, *read: Path) -> None:
    names = " \\\n  ".join(str(path).replace(" ", "\\ ") for path in read)
    Path(f"{room.file}.rule").write_text(f"kernel.o : kernel.cu \\\n  cutlass/cutlass/cutlass.h \\\n  {names}\n")


def test_an_entry_lists_what_was_read(room: Room, tmp_path: Path) -> None:
    header = tmp_path / "my toolkit/cuda.h"
    header.parent.mkdir()
    header.write_text("// 1\n")
    with_rule(room, header, Path("/usr/include/../include/stdio.h"))
    (library,) = room.build("one\n")
    read = json.loads((library.parent / "build.json").read_text())["read"]
    assert set(read) == {str(header), "/usr/include/stdio.h"}
    events: list[BuildEvent] = []

    def again() -> list[str]:
        """Build as another process would; return the events."""
        events.clear()
        os.utime(library)
        room.build("one\n", on_event=events.append)
        return [event.kind for event in events if event.kind in ("hit", "damaged", "built")]

    assert again() == ["hit"]
    header.write_text("// 22\n")
    assert again() == ["damaged", "built"]
    assert events[0].text == f"{header} has changed"
    assert again() == ["hit"]
    with_rule(room, Path("/usr/include/stdio.h"))
    header.unlink()
    assert again() == ["damaged", "built"]


@pytest.mark.parametrize("what", ["header", "toolkit"])
def test_what_changes_while_nvcc_reads_it(room: Room, checkout: Path, tools: Toolchain, what: str) -> None:
    """Nobody knows which of the two it has read: nothing is kept."""
    edited = checkout / HEADERS[0] if what == "header" else checkout.parent / "cuda.h"
    edited.write_text("// 1\n")
    with_rule(room, checkout.parent / "cuda.h" if what == "toolkit" else Path("/usr/include/stdio.h"))
    text = room.tools.nvcc.read_text()
    room.tools.nvcc.write_text(text.replace("while read", f'echo "// 2" > "{edited}"\nwhile read', 1))
    tools = dataclasses.replace(tools, nvcc=room.tools.nvcc)
    with pytest.raises(BuildError, match="E0707"):
        evt_build(room.cache, tools)
    assert room.cache.entries() == []
    room.tools.nvcc.write_text(text)
    assert evt_build(room.cache, tools)


def evt_build(cache: Cache, tools: Toolchain) -> list[Path]:
    from evt.compilation import build

    return build([SOURCE], cache=cache, toolchain=tools)


def test_what_is_kept_is_private(room: Room, checkout: Path, tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_RECENT", 0)
    evt_build(room.cache, dataclasses.replace(tools, nvcc=room.tools.nvcc))
    assert stat.S_IMODE((room.cache.root / "digests.json").stat().st_mode) == 0o600
    room.cache.clear()
    assert not (room.cache.root / "digests.json").exists()
