"""Names of exported programs and packages: accepted names build and work, and refused names do not."""

from __future__ import annotations

import json
import random
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest

import evt
from evt.errors import ArgumentError
from evt.export import Named, names, torch_extension
from evt.plan import TARGETS
from tests.cxx.cute import GXX, include_flags
from tests.cxx.export_stubs import compiled, put

pytestmark = [
    pytest.mark.cxx,
    pytest.mark.skipif(not GXX, reason="g++ is not on PATH"),
    pytest.mark.skipif(not include_flags(), reason="there are no CUTLASS or no CUDA headers"),
]

SPEC = evt.gemm("D = acc").request
#: Names of macros, types, functions and variables in the files and in the headers that they include.
BORDERLINE = (
    "Program", "Value", "Kind", "Given", "evt", "evt_torch", "torch", "std", "at", "c10", "call", "run", "define",
    "main", "NDEBUG", "CUDA_VERSION", "M_PI", "INT_MAX", "TORCH_CHECK", "EVT_CHECK", "self", "Tensor", "library",
    "defined", "size_t", "uint8_t", "printf", "test", "all", "json", "print", "operators", "built_with", "Path", "sys",
    "importlib", "example", "A", "x1", "install", "list",
)  # fmt: skip
#: A package whose name is a macro of PyTorch's.
PACKAGE = "TORCH_CHECK"


def _random_names(count: int, seed: int) -> list[str]:
    """Return identifiers of one to thirty characters, among them words of the languages with a letter changed."""
    draw, found = random.Random(seed), list[str]()
    words = sorted({*names._CXX, *names._TARGETS, *names._NAMESPACES, *BORDERLINE})
    while len(found) < count:
        if draw.random() < 0.5:
            made = "".join(draw.choices(string.ascii_letters + string.digits + "_", k=draw.randint(1, 32)))
        else:
            word = draw.choice(words)
            at = draw.randrange(len(word) + 1)
            made = word[:at] + draw.choice(["", "_", "x", "1", "."]) + word[at + draw.randint(0, 1) :]
        found.append(made)
    return found


def _is_taken(kind: names.Kind, package: str, program: str) -> bool:
    """Return whether a package and a program may have these names; a refusal suggests another name."""
    try:
        names.check_names(kind, package, [Named(program, SPEC)])
    except ArgumentError as error:
        (problem,) = error.diagnostics
        assert problem.code == "E0607"
        other = problem.help.removeprefix("call it `").removesuffix("`")
        names.check_names(kind, *((other, []) if "the package" in problem.message else (package, [Named(other, SPEC)])))
        return False
    return True


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_every_name_that_is_taken_builds_and_is_an_operator(tmp_path: Path, count: int) -> None:
    """Programs of all these names are one extension, built with stubs and imported by a process without evt."""
    tried = [*BORDERLINE, *_random_names(200, 37)]
    taken = {name.lower(): name for name in tried if _is_taken("torch", "free", name)}
    assert set(BORDERLINE) <= {*taken.values(), "Path", "path"}
    programs = [Named(name, SPEC) for name in random.Random(count).sample([*taken.values()], count)]
    files = torch_extension(PACKAGE, programs, [TARGETS["sm80"]])
    library, _ = compiled(files, tmp_path)
    put(library, tmp_path / PACKAGE)
    code = (
        f"import json, {PACKAGE} as package, torch\n"
        "A, B = (torch.empty(8, 8, dtype=torch.float16, device='meta') for _ in range(2))\n"
        "print(json.dumps([each for each in package.__all__ if getattr(package, each)(A, B).shape == (8, 8)\n"
        f"                  and getattr(torch.ops.{PACKAGE}, each)(A, B).shape == (8, 8)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": ""}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [each.name for each in programs]


def test_every_word_of_cxx_that_is_refused_is_none_of_a_users_names(tmp_path: Path) -> None:
    """Each cannot name a variable, or cannot name a function, in a file with the standard headers."""
    words = sorted(names._CXX)
    lines = [
        f"namespace a{at} {{ int {word} = 0; }} namespace b{at} {{ void {word}(int x); }} int {word} = 0;"
        for at, word in enumerate(words)
    ]
    headers = ["cassert", "cerrno", "cmath", "csetjmp", "cstdarg", "cstddef", "cstdio"]
    source = tmp_path / "words.cpp"
    source.write_text("\n".join([*(f"#include <{each}>" for each in headers), *lines]))
    command = [GXX, "-std=gnu++20", "-fmax-errors=0", "-fsyntax-only", source.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    wrong = {int(at) - len(headers) - 1 for at in re.findall(r"^words\.cpp:(\d+):\d+: error: ", done.stderr, re.M)}
    assert [word for at, word in enumerate(words) if at not in wrong] == []


@pytest.mark.parametrize("module", ["torch", pytest.param("torch._inductor.lowering", marks=pytest.mark.slow)])
def test_namespaces_and_modules_that_exist_are_refused(module: str) -> None:
    code = (
        f"import json, torch, {module}\n"
        "spaces = {name.partition('::')[0] for name in torch._C._dispatch_get_all_op_names()}\n"
        "print(json.dumps(sorted({*spaces, *(name for name in dir(type(torch.ops)))})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in json.loads(done.stdout) if _is_taken("torch", name, "free")] == []
    assert [
        name
        for name in ("torch", "json", "evt", "asyncio", "numpy", "tests", "build")
        if _is_taken("torch", name, "free")
    ] == []
    assert not _is_taken("torch", "free", "name")  # torch.ops.free.name is the namespace's own name
    for name in ("abc_", "_abc", "a__b", "a-b", "", "1a", "a" * 31, "é"):
        assert not _is_taken("torch", name, "free")
        assert not _is_taken("cmake", "free", name)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_cmake_takes_the_names_of_packages_that_are_taken(tmp_path: Path) -> None:
    tried = [*BORDERLINE, *sorted(names._TARGETS), *_random_names(200, 38)]
    taken = sorted({name for name in tried if _is_taken("cmake", name, "free")})
    assert len(taken) > 60

    def errors(targets: list[str]) -> str:
        lists = "cmake_minimum_required(VERSION 3.24)\nproject(p LANGUAGES NONE)\ninclude(CTest)\ninclude(CPack)\n"
        lists += "".join(f"add_custom_target({each})\nadd_custom_target({each}_test_free)\n" for each in targets)
        (tmp_path / "CMakeLists.txt").write_text(lists)
        return subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "b"], capture_output=True, text=True).stderr

    assert errors(taken) == ""
    refused = errors(["all", "install", "help", "clean", "Nightly"])
    assert refused.count("CMake Error") == 5
