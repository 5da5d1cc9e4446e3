"""The content of the playground: JSON documents that need no PyTorch, with places in UTF-16 units."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.diagnostics import CODES
from evt.editor.page import METHODS, answer
from evt.plan import TARGETS

SAMPLES = Path(__file__).parents[2] / "samples"
TEXT = "# \U0001f600 é\nz = scale[m]*acc + bias\nD = gelu(z) + C\ns = sum[n](z)\n"


def ask(method: str, **arguments: Any) -> Any:
    return json.loads(answer(method, json.dumps(arguments)))


def in_units(text: str, found: dict[str, Any]) -> str:
    """Return the part of a text at a place in UTF-16 units."""
    return text.encode("utf-16-le")[2 * found["from"] : 2 * found["to"]].decode("utf-16-le")


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm120"])
def test_the_kernel_is_linked_to_the_formula(arch: str) -> None:
    found = ask("cxx", text=TEXT, operation="gemm", dtype="f16", arch=arch)
    assert found["whole"] == evt.gemm(TEXT).emit(arch)
    assert found["text"] in found["whole"]
    lines = found["text"].split("\n")
    assert len(found["links"]) > 3
    for link in found["links"]:
        expression = in_units(TEXT, link)
        assert lines[link["first"]].strip().endswith(f" {expression}"), (link, lines[link["first"]])
        assert all(lines[link["first"] : link["last"] + 1])
    assert {"gelu(z) + C", "sum[n](z)"} <= {in_units(TEXT, link) for link in found["links"]}


def test_mistakes_have_places() -> None:
    text = "# \U0001f600\nD = foo(acc)"
    for method, more in (("check", {}), ("cxx", {"arch": "sm90"}), ("graph", {"stage": "dag"}), ("gradient", {})):
        found = ask(method, text=text, operation="gemm", dtype="f16", **more)
        assert found["ok"] is False
        (diagnostic,) = found["diagnostics"]
        assert (diagnostic["code"], in_units(text, diagnostic)) == ("E0201", "foo")
    (refused,) = ask("cxx", text="D = acc", operation="gemm", dtype="e4m3", arch="sm80")["diagnostics"]
    assert refused["code"] == "E0503"
    (warning,) = ask("check", text="D = acc + scale*x", operation="gemm", dtype="f16")["diagnostics"]
    assert warning["severity"] == "warning"
    assert ask("check", text="D = (" * 3 + "\ud800", operation="gemm", dtype="f16")["ok"] is False


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.evt"))[::4], ids=lambda path: path.stem)
def test_every_view_of_a_sample(path: Path) -> None:
    text = path.read_text()
    program = {"text": text, "operation": "gemm"}
    typed = {**program, "dtype": "f16"}
    op = evt.load(path)
    assert ask("check", **typed)["signature"].splitlines()[-2:] != []
    assert ask("explain", **typed, arch="sm90")["text"] == str(op.explain("sm90"))
    assert ask("graph", **typed, stage="optimised")["svg"] == op.graph("optimised").to("svg")
    assert ask("cxx", **typed, arch="sm90")["route"] == op.plan("sm90").route
    assert ask("format_program", **program)["text"] == text


def test_layouts() -> None:
    found = ask("layout", layout="(4,8):(8,1)")
    assert found["facts"] == {"size": 32, "cosize": 32, "injective": True, "contiguous": True}
    assert found["svg"].startswith("<svg")
    for text in ("(4,8):(8", "Sw<3,3,3>", ""):
        (mistake,) = ask("layout", layout=text)["diagnostics"]
        assert mistake["code"] == "E0671"


def test_words() -> None:
    offset = TEXT.encode("utf-16-le").index("gelu".encode("utf-16-le")) // 2
    found = ask("describe_at", text=TEXT, operation="gemm", offset=offset + 1)
    assert in_units(TEXT, found) == "gelu"
    assert "erf" in found["text"]
    text = f"{TEXT}E = ge"
    found = ask("complete_at", text=text, operation="gemm", offset=10**6)
    words = [each["label"] for each in found["completions"]]
    assert {"gelu", "z", "scale"} <= set(words)
    assert ask("describe_at", text=TEXT, operation="gemm", offset=0) == {"ok": True}
    assert all(ask("help_page", code=code)["text"] for code in CODES)
    assert ask("help_page", code="E9999") == {"ok": False, "text": ""}


def test_the_page_needs_no_pytorch() -> None:
    """Run without PyTorch, the packages of the command line, and modules that a browser lacks."""
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {("torch", "numpy", "click", "rich", "cuda", "fcntl", "resource", "sqlite3")!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Block())
import json
from evt.editor.page import METHODS, answer
program = {{"text": {TEXT!r}, "operation": "gemm"}}
given = {{"layout": "(4,8):(8,1)", **program}}
given |= {{"dtype": "f16", "arch": "sm90", "stage": "optimised", "offset": 9, "code": "E0101"}}
wanted = {{name: each.__code__.co_varnames[: each.__code__.co_argcount] for name, each in METHODS.items()}}
for name, names in wanted.items():
    found = json.loads(answer(name, json.dumps({{each: given[each] for each in names}})))
    assert found["ok"], (name, found)
print(len(wanted))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{len(METHODS)}\n", done.stderr
    assert set(TARGETS) >= {"sm80", "sm90", "sm100", "sm120"}
