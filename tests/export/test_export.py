"""`evt export`: its files, its refusals, and that it writes all or nothing."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

import evt
from evt.errors import ArgumentError, TargetError
from evt.export import Layouts, Named, write_folder
from evt.export.kernels import kernels_of
from evt.export.schema import schemas_of
from evt.plan import TARGETS
from tests.support.command_line import ok, process, run
from tests.support.exports import CONVOLUTION, SCALED

BOTH = (CONVOLUTION, SCALED, "--arch", "sm89,sm90", "--padding", "1")


def read(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("exports") / "my_ops"
    told = ok("export", "--torch", str(folder), *BOTH)
    names = "torch.ops.my_ops.conv_relu_add, torch.ops.my_ops.scaled"
    assert told == f"{folder}: {names}; 4 kernels for sm89, sm90; pip install --no-build-isolation {folder}\n"
    assert os.listdir(folder.parent) == ["my_ops"]
    return read(folder)


def test_the_files_of_an_extension(extension: dict[str, str]) -> None:
    kernels = [f"my_ops_{name}_{arch}" for name in ("conv_relu_add", "scaled") for arch in ("sm90", "sm89")]
    sources = [f"csrc/kernels/{kernel}.{kind}" for kernel in kernels for kind in ("cu", "h")]
    rest = ["README.md", "pyproject.toml", "setup.py", "my_ops/__init__.py", "my_ops/shapes.py", "tests/test_my_ops.py"]
    headers = ("aten", "aten_operators", "call", "memory", "program", "stable", "stable_operators", "tensor")
    rest += ["csrc/binding.cpp", *(f"csrc/{name}.hpp" for name in headers)]
    assert set(extension) == {*sources, *rest, "tests/conv_relu_add.json", "tests/scaled.json"}
    for name, text in extension.items():
        if name.endswith(".py"):
            ast.parse(text)
        assert "\n\n\n\n" not in text or name.endswith((".cu", ".hpp")), name
    gencodes = re.findall(r'"(my_ops_\w+)": "(.+)",', extension["setup.py"])
    code = {"sm89": "-gencode=arch=compute_89,code=sm_89", "sm90": "-gencode=arch=compute_90a,code=sm_90a"}
    assert gencodes == [(kernel, code[kernel[-4:]]) for kernel in kernels]
    with_name = evt.gemm(SCALED.partition(": ")[2]).emit("sm90", name="my_ops_scaled_sm90")
    assert extension["csrc/kernels/my_ops_scaled_sm90.cu"] == with_name


def test_schemas(extension: dict[str, str]) -> None:
    binding = extension["csrc/binding.cpp"]
    schemas = re.findall(r'^      "(.+)"\);', binding, re.M)
    assert schemas == [
        "conv_relu_add(Tensor A, Tensor B, *, Tensor bias, Tensor residual) -> Tensor",
        "scaled.Tensor(Tensor A, Tensor B, *, Tensor scale_a, Tensor scale_b, Tensor bias) -> Tensor",
        "scaled(Tensor A, Tensor B, *, float scale_a, float scale_b, Tensor bias) -> Tensor",
    ]
    for schema in schemas:
        assert schema in extension["README.md"]
        torch._C.parse_schema(f"my_ops::{schema}")


@pytest.mark.parametrize(
    ("text", "schemas"),
    [
        ("D = acc", ["f(Tensor A, Tensor B) -> Tensor"]),
        (
            "in a: f32 = 0.5, b: i32 = 3, c: bool = 1; D = where(c, a*acc, b)",
            [
                "f.Tensor(Tensor A, Tensor B, *, Tensor? c=None, Tensor? a=None, Tensor? b=None) -> Tensor",
                "f(Tensor A, Tensor B, *, bool c=True, float a=0.5, int b=3) -> Tensor",
            ],
        ),
        (
            "in low: f32 = -inf; D = max(acc, low)",
            [
                "f.Tensor(Tensor A, Tensor B, *, Tensor? low=None) -> Tensor",
                "f(Tensor A, Tensor B, *, float? low=None) -> Tensor",
            ],
        ),
        (
            "in s: f32[m?], C: f16[m, n] = 0; out D, r; D = s*acc + C; r = sum[n](D)",
            ["f(Tensor A, Tensor B, *, Tensor s, Tensor? C=None) -> (Tensor, Tensor)"],
        ),
    ],
)
def test_how_inputs_are_given(text: str, schemas: list[str]) -> None:
    found = schemas_of(Named("f", evt.gemm(text).request))
    assert sorted(each.text for each in found) == sorted(schemas)
    for each in found:
        torch._C.parse_schema(f"my_ops::{each.text}")


def test_what_no_operator_can_have() -> None:
    with pytest.raises(ArgumentError, match=r"the input `lambda` of `f` cannot be an argument of an operator"):
        schemas_of(Named("f", evt.gemm("in lambda: f32; D = lambda*acc").request))
    with pytest.raises(TargetError, match=r"`D` of `f` is stored by an index"):
        schemas_of(Named("f", evt.gemm("in place: i32[m]; out D[place[m], n]; D[place[m], n] = acc").request))


def test_examples_have_the_results_of_the_reference(extension: dict[str, str]) -> None:
    stored = json.loads(extension["tests/conv_relu_add.json"])

    def tensor(each: dict[str, object]) -> torch.Tensor:
        data = torch.frombuffer(bytearray.fromhex(str(each["data"])), dtype=getattr(torch, str(each["dtype"])))
        return data.as_strided(each["shape"], each["strides"])

    arguments = {name: tensor(each) for name, each in stored["arguments"].items()}
    assert arguments["A"].is_contiguous(memory_format=torch.channels_last)
    exact = evt.load(CONVOLUTION, padding=1).reference(
        arguments.pop("A"), arguments.pop("B"), **arguments, float64=True
    )
    assert torch.equal(tensor(stored["results"]["D"]), exact.float())
    assert stored["tolerances"] == {"D": 2e-3}


def test_the_same_files_every_time(extension: dict[str, str], tmp_path: Path) -> None:
    done = process("export", "--torch", str(tmp_path / "my_ops"), *BOTH, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "my_ops") == extension


# Layouts


def needs(text: str, layouts: Layouts, arch: str = "sm90") -> list[dict[str, str]]:
    """Return the requirements of each kernel for each tensor, in short."""
    found = kernels_of(Named("f", evt.gemm(text).request, "f16", layouts=layouts), [TARGETS[arch]], "x_f")
    assert len({each.emitted.name for each in found}) == len(found)
    shown = [{need.name: f"{need.contiguous}{need.alignment} {need.batch}" for need in each.needs} for each in found]
    return [
        each | ({"absent": ", ".join(kernel.absent)} if kernel.absent else {})
        for each, kernel in zip(shown, found, strict=True)
    ]


def test_natural_layouts() -> None:
    """A vector may have any alignment where its kernel loads single elements."""
    wanted = {"A": "k8 strided", "B": "n8 strided", "bias": "n1 any", "D": "n8 strided"}
    assert needs("D = acc + bias", Layouts()) == [wanted]


def test_more_layouts() -> None:
    found = needs("D = acc", Layouts({"B": ("n", "k")}, ("B",)))
    assert [each["B"] for each in found] == ["n8 strided", "k8 strided", "n8 shared", "k8 shared"]
    found = needs("D = acc", Layouts(alignments=(2, 16)))
    assert [(each["A"], each["D"]) for each in found] == [("k8 strided", "n8 strided"), ("k1 strided", "n1 strided")]


def test_defaults_of_tensors() -> None:
    found = needs("in C: f16[m, n] = 0, r: f16[m, n] = 1; D = acc + C*r", Layouts(), "sm80")
    assert [each.get("absent") for each in found] == [None, "C", "r", "C, r"]


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["D = acc", "--torch", "{}/x", "--cmake", "{}/y"], "Give --torch DIR or --cmake DIR."),
        (["D = acc"], "Give --torch DIR or --cmake DIR."),
        (["D = acc", "E = acc", "--torch", "{}/x"], "Several formulas need names, as in "),
        (["D = acc", "--torch", "{}/none/x"], "there is no directory {}/none."),
        (["D = acc", "--torch", "{}/file"], "cannot write '{}/file': it is a file."),
        (["D = acc", "--torch", "{}/full"], "it is not empty; --force replaces it and its content."),
        (["D = acc", "--torch", "{}/x", "--stride", "2"], "--stride is for convolutions, and no program is one."),
        (["D = acc", "--torch", "{}/x", "--layout", "B=q"], "'B=q' is not a layout; write for example B=n,k."),
        (["D = acc", "--torch", "{}/x", "--shared", "C"], "no program has a tensor `C`. Tensors: A, B, D."),
    ],
)
def test_usage(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    before = read(tmp_path)
    refused = run("export", *(each.replace("{}", str(tmp_path)) for each in arguments), "--arch", "sm80")
    assert refused.exit_code == 2, refused.output
    assert message.replace("{}", str(tmp_path)) in refused.stderr
    assert read(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


@pytest.mark.parametrize("folder", ["ops", "my ops", "-r", "a;b", "in $(it)/ops", "it's", "s/ops"])
@pytest.mark.parametrize(("option", "at"), [("--torch", 3), ("--cmake", 2)])
def test_the_printed_command_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, option: str, at: int
) -> None:
    """A shell reads the command as words, and the folder's path is one: to pip a bare word is a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    told = ok("export", "D = acc", f"{option}={folder}", "--name", "some_ops", "--arch", "sm80")
    word = shlex.split(told.rpartition("; pip" if option == "--torch" else "; cmake")[2])[at - 1]
    assert os.path.samefile(word, tmp_path / folder)
    assert os.sep in word
    assert not word.startswith("-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["D = acc", "--torch", "my-ops"], "error[E0607]: the package is called my-ops;"),
        (["D = acc", "--torch", "x", "--name", "class"], "help: call it `class_op`"),
        (["a-b: D = acc", "--torch", "x"], "help: call it `a_b`"),
        (["int: D = acc", "--torch", "x"], "which is a word of Python or C++"),
        (["xor: D = acc", "--cmake", "x"], "a program is called `xor`, which is a word of Python or C++"),
        (["D = acc", "--torch", "json"], "the package is called `json`, which is a module of Python, a namespace"),
        (["D = acc", "--cmake", "test"], "the package is called `test`, which is a target or a variable of CMake"),
        (["name: D = acc", "--torch", "x"], "a program is called `name`, which is a word of PyTorch"),
        (["f: D = acc", "F: D = acc", "--torch", "x"], "error[E0607]: two programs are called `F`"),
        (["D = acc", "--torch", "x", "--dtype", "e4m3"], "error[E0503]: no route compiles this program for sm80"),
        (["D = acc", "--torch", "x", "--arch", "sm70"], "error[E0501]"),
        (["D = acc", "--torch", "x", "--layout", "B=m"], "`B` of `x` has no mode `m`"),
        (["D = acc", "--torch", "x", "--op", "grouped_gemm"], "error[E0502]: `x` is a grouped program"),
        (
            ["D = acc", "--torch", "x", "--op", "conv2d", "--groups", "2"],
            "error[E0502]: `x` is a convolution of 2 groups",
        ),
        (["D = acc", "--torch", "x", "--op", "conv2d", "--layout", "B=n"], "`x` is a convolution: its tensors have"),
        (["D = ac", "--torch", "x"], "error[E0202]"),
    ],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("export", "--arch", "sm80", *arguments)
    assert refused.exit_code == 1, refused.output
    assert message in refused.stderr
    assert os.listdir(tmp_path) == []


def test_force_replaces_all(tmp_path: Path) -> None:
    folder = tmp_path / "ops"
    folder.mkdir()
    (folder / "old").write_text("mine")
    ok("export", "--torch", str(folder), "D = acc", "--arch", "sm80", "--force")
    assert not (folder / "old").exists()
    assert (folder / "setup.py").exists()
    assert os.listdir(tmp_path) == ["ops"]


def test_the_working_directory_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    refused = run("export", "--torch", ".", "--name", "x", "D = acc", "--arch", "sm80", "--force")
    assert "it is the working directory or home, which is never replaced" in refused.stderr
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("failing", ["write", "rename"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException) -> None:
    """The previous files are restored, and no other file is left."""
    folder = tmp_path / "ops"
    write_folder(folder, {"a": "old", "b/c": "old"})
    written, renamed, write_text, rename = [], [], Path.write_text, os.rename

    def second_fails(path: Path, *rest: object, **options: object) -> int:
        written.append(path)
        if len(written) == 2:
            raise error
        return write_text(path, *rest, **options)

    def second_rename_fails(*names: object) -> None:
        renamed.append(names)
        if len(renamed) == 2:
            raise error
        rename(*names)

    if failing == "write":
        monkeypatch.setattr(Path, "write_text", second_fails)
    else:
        monkeypatch.setattr(os, "rename", second_rename_fails)
    with pytest.raises(type(error)):
        write_folder(folder, {"a": "new", "b/c": "new"}, replace=True)
    monkeypatch.undo()
    assert read(folder) == {"a": "old", "b/c": "old"}
    assert os.listdir(tmp_path) == ["ops"]


def test_an_empty_folder_and_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", {"a": "new"})
    assert read(tmp_path / "real") == {"a": "new"}
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(FileExistsError):
        write_folder(tmp_path / "link", {"a": "newer"})


# CMake


def test_the_files_of_a_cmake_project(tmp_path: Path) -> None:
    folder = tmp_path / "my_kernels"
    text = "out D, r: f32[m]; D = gelu(acc); r = sum[n](acc*acc)/size(n)"
    scatter = "scatter: in place: i32[m]; out D[place[m], n]; D[place[m], n] = acc"
    ok("export", "--cmake", str(folder), f"statistics: {text}", scatter, "--arch", "sm80", "--arch", "sm90")
    files = read(folder)
    kernels = [f"my_kernels_{name}_{arch}" for name in ("statistics", "scatter") for arch in ("sm80", "sm90")]
    own = {"CMakeLists.txt", "README.md", "test/example.hpp", "test/test_statistics.cpp", "test/test_scatter.cpp"}
    assert set(files) == own | {f"src/{each}.cu" for each in kernels} | {f"include/{each}.h" for each in kernels}
    for kernel in kernels:
        gencode = "arch=compute_90a,code=sm_90a" if kernel.endswith("90") else "arch=compute_80,code=sm_80"
        assert f'(src/{kernel}.cu PROPERTIES COMPILE_OPTIONS "-gencode={gencode}")' in files["CMakeLists.txt"]
    test = files["test/test_statistics.cpp"]
    assert "arguments.workspace = workspace.data();" in test
    assert "arguments.m = 208;" in test
    assert "memory_D(bytes_D, sizeof(bytes_D))" in files["test/test_scatter.cpp"]  # other rows keep their values
