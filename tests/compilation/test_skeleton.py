"""Skeletons and formulas: the split of emitted text, its parts in the cache, and the fallback to whole files."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.compilation import BuildEvent, KernelSource, build, cache_key, recipe
from evt.compilation.cache import LAUNCHER, SKELETON
from evt.compilation.inputs import Inputs
from evt.compilation.jit import JitError, Missing, NvJitLink, Nvrtc, find_nvrtc
from evt.compilation.recipe import Jit, find_jit
from evt.compilation.skeleton import NAME, Split, formula_headers, split
from evt.compilation.source import FORMULA_FLAGS, part_key
from evt.errors import EvtError
from evt.launch.cubin import parameter_bytes, registers
from tests.support.fake_nvcc import Room, wait_for

SAMPLES = sorted((Path(evt.__file__).parents[1] / "samples").glob("*.evt"))
FIRST = "D = gelu(alpha*acc + bias[n]) + residual[m, n]"
#: Formulas of the same structure.
SECOND = "D = tanh(alpha*acc + shift[n])*1.5 - f32(f16(skip[m, n]))"
THIRD = "D = where(alpha*acc > b[n], 2, r[m, n])"


def divided(text: str) -> Split:
    found = split(text)
    assert found is not None
    return found


# The split


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
@pytest.mark.parametrize("operation", [evt.gemm, evt.conv2d])
def test_formulas_of_a_structure_share_the_skeleton(arch: str, operation: Any) -> None:
    parts = [divided(operation(each).emit(arch, "bf16", "bf16")) for each in (FIRST, SECOND, THIRD)]
    assert len({each.skeleton for each in parts}) == 1
    assert len({each.formula for each in parts}) == 3
    assert len({each.name for each in parts}) == 3
    assert all(each.name not in each.skeleton for each in parts)


def test_another_structure_is_another_skeleton() -> None:
    programs = [FIRST, f"{FIRST} + other[m, n]", FIRST.replace("[n]", "[m]"), f"{FIRST}\nE = relu(acc)*2"]
    texts = [evt.gemm(program).emit("sm90") for program in programs]
    texts += [evt.gemm(FIRST).emit("sm80"), evt.gemm(FIRST).emit("sm90", "bf16", "bf16")]
    assert len({divided(each).skeleton for each in texts}) == len(texts)


def test_names_that_would_collide_stay() -> None:
    text = evt.gemm("D = tanh(acc + in_0[n]) * x[m, n]").emit("sm90")
    other = evt.gemm("D = tanh(acc + x[n]) * y[m, n]").emit("sm90")
    assert divided(text).skeleton == divided(other).skeleton
    clash = text.replace("struct Entry {", "struct in_0 {};\nstruct Entry {")
    assert "struct in_0 {}" in divided(clash).skeleton
    assert "out_D" not in divided(text).skeleton


@pytest.mark.parametrize("arch", ["sm90", pytest.param("sm80", marks=pytest.mark.slow)])
def test_samples(arch: str) -> None:
    """Each formula compiles without CUTLASS, and an edit of the functors leaves the skeleton unchanged."""
    nvrtc = find_nvrtc()
    for path in SAMPLES:
        try:
            text = evt.load(path).emit(arch)
        except EvtError:
            continue
        parts = split(text)
        assert (parts is None) == ("struct Region0 {\n  using Parameters" not in text or "cutlass" not in text)
        if parts is None:
            continue
        head, mark, own = text.partition("// YOUR EPILOGUE")
        own = re.sub(r"^    return (.*);$(?=\n  \}\n\};)", r"    return \1 + 1;  // more", own, flags=re.MULTILINE)
        edited = head + mark + own
        assert edited != text
        again = divided(edited)
        assert again.skeleton == parts.skeleton
        assert again.formula != parts.formula
        assert not re.search(r"//|/\*", re.sub(r'"[^"\n]*"', "", parts.skeleton))
        assert "cutlass/" not in parts.formula.replace('"cutlass/cutlass.h"', "")
        if isinstance(nvrtc, Nvrtc):
            options = (f"--gpu-architecture={arch.replace('sm', 'sm_')}", *FORMULA_FLAGS)
            assert nvrtc.compile(parts.formula, options, output="ltoir", headers=formula_headers())


@pytest.mark.parametrize("text", ["", "one\n", "struct Region0 {\n};\n"])
def test_other_files_are_not_split(text: str) -> None:
    assert split(text) is None


def test_a_name_of_another_length_is_not_split() -> None:
    assert split(evt.gemm(FIRST).emit("sm90", name="mine")) is None


# The build, with a script for nvcc


class FakeNvrtc:
    """Appends its texts to ``compiled``; refuses a text with ``refused``."""

    version, identity, refused = (13, 0), "nvrtc", "\0"

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def compile(self, text: str, options: object, **more: object) -> bytes:
        if self.refused in text:
            raise JitError("nvrtc", "NVRTC_ERROR_COMPILATION", "kernel.cu(1): error: it is refused")
        self.compiled.append(text)
        return text.encode()


class FakeLinker:
    version, identity = (13, 0), "nvjitlink"

    def link(self, inputs: Any, options: object) -> bytes:
        return b"".join(content for _, content in inputs)


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> FakeNvrtc:
    fake = FakeNvrtc()
    monkeypatch.setattr(recipe, "find_jit", lambda toolchain: Jit(fake, FakeLinker()))
    monkeypatch.setattr(recipe, "parameter_bytes", lambda cubin, kernel: 8)
    return fake


def sources(*programs: str) -> list[KernelSource]:
    return [KernelSource(evt.gemm(each).emit("sm90"), "sm_90a") for each in programs]


def made(room: Room, *programs: str, events: list[BuildEvent] | None = None) -> list[Path]:
    tools = dataclasses.replace(room.tools, by_parts=True)
    on_event = None if events is None else events.append
    return build(sources(*programs), cache=room.cache, toolchain=tools, jobs=4, on_event=on_event)


def part(room: Room, artifact: str) -> Path:
    (found,) = room.cache.root.glob(f"??/*/{artifact}")
    return found


def test_parts_are_made_once(room: Room, nvrtc: FakeNvrtc) -> None:
    first, second = made(room, FIRST, SECOND)
    (third,) = made(room, THIRD)
    assert room.starts() == {"skeleton": 1, "host": 1, "link": 3}
    assert [len({first, second, third}), len(nvrtc.compiled)] == [3, 3]
    assert [each.read_text() for each in (first, second, third)] == [
        each.text for each in sources(FIRST, SECOND, THIRD)
    ]
    assert NAME in part(room, SKELETON).read_text()
    steps = [step["name"] for step in json.loads((third.parent / "build.json").read_text())["passes"]]
    assert steps == ["formula", "link"]
    assert room.left_over() == []
    assert len(room.cache.entries()) == 5  # the parts count, and are removed like libraries
    events: list[BuildEvent] = []
    made(room, FIRST, events=events)
    assert [event.kind for event in events] == ["hit"]
    room.cache.clear()
    assert room.cache.entries() == []


@pytest.mark.parametrize("artifact", [SKELETON, LAUNCHER])
@pytest.mark.parametrize("damage", ["changed", "foreign", "removed", "short", "no record"])
def test_a_damaged_part_is_made_again(room: Room, nvrtc: FakeNvrtc, artifact: str, damage: str) -> None:
    made(room, FIRST)
    path = part(room, artifact)
    content = path.read_bytes()
    match damage:
        case "changed":
            path.write_bytes(content[:-1] + b"x")
        case "foreign":
            path.write_bytes(b"y" * len(content))
        case "removed":
            path.unlink()
        case "short":
            path.write_bytes(content[:9])
        case _:
            (path.parent / "build.json").unlink()
    events: list[BuildEvent] = []
    made(room, SECOND, events=events)
    assert [event.kind for event in events].count("damaged") == 1
    assert not any(event.kind == "fallback" for event in events)
    stage = "skeleton" if artifact == SKELETON else "host"
    assert room.starts() == {"skeleton": 1, "host": 1, "link": 2} | {stage: 2}
    assert part(room, artifact).read_bytes() == content


def orders(room: Room, text: str) -> None:
    Path(f"{room.file}.orders").write_text(text)


def test_nvcc_takes_the_whole_file_if_it_refuses_the_skeleton(room: Room, nvrtc: FakeNvrtc) -> None:
    orders(room, "// fail skeleton error: no skeletons\n")
    events: list[BuildEvent] = []
    first, second = made(room, FIRST, SECOND, events=events)
    assert [first.read_text(), second.read_text()] == [each.text for each in sources(FIRST, SECOND)]
    assert room.starts() == {"skeleton": 1, "host": 3, "device": 2, "link": 2}
    assert [event.index for event in events if event.kind == "fallback"] == [0, 1]
    assert not any(event.kind == "failed" for event in events)


def test_nvcc_takes_the_whole_file_if_nvrtc_refuses_the_formula(room: Room, nvrtc: FakeNvrtc) -> None:
    nvrtc.refused = "tanh(t0)"
    events: list[BuildEvent] = []
    made(room, FIRST, SECOND, events=events)
    assert room.starts() == {"skeleton": 1, "host": 2, "device": 1, "link": 2}
    (fallback,) = [event for event in events if event.kind == "fallback"]
    assert fallback.index == 1
    assert fallback.text == "nvcc for the whole file: nvrtc: NVRTC_ERROR_COMPILATION"
    assert not any(event.kind == "failed" for event in events)


def test_a_missing_library_is_named(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "find_jit", lambda toolchain: Missing("nvJitLink was not found", "install it"))
    events: list[BuildEvent] = []
    made(room, FIRST, events=events)
    assert room.starts() == {"device": 1, "host": 1, "link": 1}
    assert [event.text for event in events if event.kind == "fallback"] == [
        "nvcc for the whole file: nvJitLink was not found"
    ]


@pytest.mark.parametrize(
    ("nvcc", "nvrtc", "linker", "fits"),
    [
        ("13.0.88", (13, 0), (13, 0), True),
        ("12.8.93", (12, 8), (12, 9), True),
        ("12.8.93", (12, 9), (12, 8), False),
        ("13.1.5", (13, 0), (13, 0), False),
        ("12.9.5", (13, 0), (13, 0), False),
        ("13.0.5", (12, 9), (13, 0), False),
    ],
)
def test_the_linker_is_of_the_major_version_and_not_older(
    room: Room,
    monkeypatch: pytest.MonkeyPatch,
    nvcc: str,
    nvrtc: tuple[int, int],
    linker: tuple[int, int],
    fits: bool,
) -> None:
    monkeypatch.setattr(recipe, "find_nvrtc", lambda: Nvrtc(nvrtc, ""))
    monkeypatch.setattr(recipe, "find_nvjitlink", lambda: NvJitLink(linker, ""))
    found = find_jit(dataclasses.replace(room.tools, nvcc_version=nvcc))
    assert isinstance(found, Jit) == fits
    monkeypatch.setattr(recipe, "find_nvjitlink", lambda: Missing("nothing there", "install it"))
    assert find_jit(room.tools) == Missing("nothing there", "install it")


def test_keys(room: Room) -> None:
    (source,) = sources(FIRST)
    alone, parts = room.tools, dataclasses.replace(room.tools, by_parts=True)
    assert cache_key(source, alone) != cache_key(source, parts)
    inputs, others = Inputs("a", ()), Inputs("b", ())
    keys = {
        part_key("text", SKELETON, "sm_90a", inputs),
        part_key("other", SKELETON, "sm_90a", inputs),
        part_key("text", LAUNCHER, "sm_90a", inputs),
        part_key("text", SKELETON, "sm_80", inputs),
        part_key("text", SKELETON, "sm_90a", others),
    }
    assert len(keys) == 5


#: The patches of this file, for another process.
PATCHES = """
import dataclasses
from evt.compilation import recipe
class Tool:
    version = (13, 0)
    def compile(self, text, options, **more):
        log = str(Path(nvcc).parent / "log")
        open(log, "a").write(f"start formula 0 {os.getpid()}\\n")
        while HANG and not os.path.exists(log + ".calm"): time.sleep(0.02)
        return text.encode()
    def link(self, inputs, options): return b"".join(content for _, content in inputs)
recipe.find_jit = lambda toolchain: recipe.Jit(Tool(), Tool())
recipe.parameter_bytes = lambda cubin, kernel: 8
tools = dataclasses.replace(tools, by_parts=True)
"""


@pytest.mark.parametrize("phase", ["skeleton", "host", "formula"])
def test_killed_in_a_phase(room: Room, nvrtc: FakeNvrtc, phase: str) -> None:
    (text,) = (each.text for each in sources(FIRST))
    if phase != "formula":
        orders(room, f"// hang {phase}\n")
    process = room.spawn(text, program=f"HANG = {phase == 'formula'}\n{PATCHES}\ngo()")
    wait_for(lambda: room.starts()[phase])
    process.kill()
    process.communicate()
    wait_for(lambda: not room.compilers())
    room.calm()
    (library,) = made(room, FIRST)
    assert library.read_text() == text
    wait_for(lambda: room.left_over() == [])


@pytest.mark.parametrize("count", [6, pytest.param(32, marks=pytest.mark.slow)])
def test_processes_at_once_make_a_skeleton_once(room: Room, count: int) -> None:
    texts = [evt.gemm(f"{FIRST}*{index + 2}").emit("sm90") for index in range(count)]
    program = f"HANG = False\n{PATCHES}\nprint(json.dumps([path.read_text() for path in go()]))"
    processes = [room.spawn(text, program=program) for text in texts]
    for text, process in zip(texts, processes, strict=True):
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert json.loads(out) == [text]
    assert room.starts() == {"skeleton": 1, "host": 1, "link": count, "formula": count}
    assert room.left_over() == []


# Parameters of a cubin


def cubin(*sections: tuple[str, bytes]) -> bytes:
    """Return an ELF file of these sections."""
    names = "".join(f"\0{name}" for name, _ in (*sections, ("names", b""))).encode() + b"\0"
    data, places = bytearray(64), []
    for content in (*(content for _, content in sections), names):
        places.append((len(data), len(content)))
        data += content
    table = len(data)
    for (name, _), (at, size) in zip((*sections, ("names", b"")), places, strict=True):
        data += struct.pack("<IIQQQQIIQQ", names.index(f"\0{name}\0".encode()) + 1, 0, 0, 0, at, size, 0, 0, 0, 0)
    data[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", data, 0x28, table)
    struct.pack_into("<HH", data, 0x3C, len(places), len(places) - 1)
    return bytes(data)


def test_facts_of_a_cubin() -> None:
    sized = struct.pack("<BBHI", 4, 0x0A, 4, 7)
    used = b"".join(struct.pack("<BBHII", 4, 0x2F, 8, symbol, count) for symbol, count in ((5, 168), (6, 40)))
    made = cubin((".nv.info", sized + used), (".nv.info.k", sized + struct.pack("<BBH", 3, 0x19, 2416)))
    assert parameter_bytes(made, "k") == 2416
    assert registers(made) == [168, 40]
    for wrong, kernel in ((made, "other"), (b"no cubin", "k"), (made[:70], "k")):
        with pytest.raises(ValueError, match=r"cubin|ELF"):
            parameter_bytes(wrong, kernel)
