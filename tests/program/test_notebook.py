"""Results in notebooks and at prompts: HTML and drawings that are well-formed and escaped, and short texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import evt
from docs.builder.notebook import executed, read
from evt.bench.case import Case
from evt.bench.result import CaseResult, VersionResult, summarise
from evt.draw.drawing import SUFFIXES
from evt.errors import ArgumentError
from evt.fx.fuse import fusion
from evt.html import Html, bar, code, page, table
from evt.measured import Timing
from evt.tuning.table import KernelTime, Tuning

FORMULA = "D = where(acc < 2 && acc > -1, gelu(alpha*acc + bias), 0)"
_VOID = ("br", "hr", "img")


class _Reader(HTMLParser):
    """A reader that requires balanced tags, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def well_formed(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.relu(self.up(x))), -1)


def tuning() -> Tuning:
    rows = (KernelTime("evt-3x", "pingpong<1>", 0.5), KernelTime("evt-2x", "", failure="no & never"))
    return Tuning("gemm", "NVIDIA H100", "sm90", {"m": 8, "n": 8, "k": 8}, rows, Timing("evt-3x", "pingpong<1>", 0.5))


def measured() -> CaseResult:
    case = Case("a < b", evt.gemm(FORMULA), 8, 8, 8)
    rows = (VersionResult("evt", summarise([1.0, 2.0])), VersionResult("compile", summarise([4.0])), VersionResult("x"))
    return CaseResult(case, rows, {})


def op() -> evt.Program:
    return evt.gemm(FORMULA)


def verified() -> Any:
    return evt.linear("D = relu(acc)").verify(torch.randn(8, 16).half(), torch.randn(8, 16).half())


def fused() -> Any:
    return fusion(evt.fuse(Net().half().eval(), (torch.randn(64, 32).half(),)))


def reported() -> Any:
    with torch.no_grad():
        return evt.report(Net().half().eval(), (torch.randn(64, 32).half(),), arch="sm90")


SIZES = ((4096, 1024), (1024, 4096))
#: Results by name, each with a text that its HTML has.
RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "program": (op, FORMULA),
    "convolution": (lambda: evt.conv2d("in s: f32[n?] = 1; D = s*acc"), "[n?]"),
    "grouped": (lambda: evt.grouped_gemm("D = relu(acc)"), "relu"),
    "explanation": (lambda: op().explain("sm90", shapes=((64, 32), (32, 64))), "a fusion operation computes"),
    "estimate": (lambda: op().estimate(SIZES, "h100"), "tensor cores"),
    "support": (lambda: evt.supports(op(), "h100", SIZES), "yes: "),
    "no support": (lambda: evt.supports("D = acc", "sm80", a="e4m3"), "no kernel on sm80"),
    "verification": (verified, "relu"),
    "gradient": (lambda: op().gradient(), "saved_0"),
    "fusion": (fused, "relu"),
    "report": (reported, "it also reads the result of another kernel"),
    "empty report": (lambda: evt.report(Net()), "no graph"),
    "tuning": (tuning, "no & never"),
    "bench": (measured, "a < b"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_html_and_a_short_text(name: str) -> None:
    make, contained = RESULTS[name]
    value = make()
    reader = well_formed(value._repr_html_())
    assert contained in reader.text
    assert {"table", "td"} & reader.tags or name == "empty report"
    assert len(repr(value)) < 2500
    assert "evt." not in repr(value) or name in ("program", "convolution", "grouped", "empty report")


def test_large_graphs_are_not_drawn_unasked() -> None:
    """300 terms were 800 KB of HTML, and their gradient 3 MB."""
    op = evt.gemm("D = " + " + ".join(f"gelu(acc*{factor})" for factor in range(300)))
    for value in (op, op.gradient()):
        text = value._repr_html_()
        assert "<svg" not in text
        assert re.search(r"\d{3,} nodes", well_formed(text).text)
    assert "<svg" in op.graph()._repr_svg_()


@pytest.mark.parametrize("stage", ["dag", "typed", "optimised"])
def test_a_graph_is_a_drawing(stage: str, tmp_path: Path) -> None:
    op = evt.gemm(FORMULA)
    drawing = op.graph(stage, "bf16")
    assert ElementTree.fromstring(drawing._repr_svg_()).tag.endswith("svg")
    assert repr(drawing) == str(drawing) == drawing.to("text").rstrip("\n")
    assert ("bf16" in str(drawing)) is (stage != "dag")
    for suffix, format in SUFFIXES.items():
        drawing.save(tmp_path / f"g{suffix}")
        assert (tmp_path / f"g{suffix}").read_text() == drawing.to(format)
    with pytest.raises(ValueError, match=r"`\.png` is no format's suffix"):
        drawing.save(tmp_path / "g.png")


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ArgumentError, match="did you mean `typed`"):
        evt.gemm("D = acc").graph("typd")
    assert evt.grouped_gemm("D = acc").graph("optimised") is not None


def test_texts_are_escaped() -> None:
    evil = "<script>alert('1')</script>\x1b[31m"
    made = page(code(evil), table((evil,), [(evil,)], evil, marks=["chosen"]), bar(math.inf), bar(-1), bar(0.5))
    reader = well_formed(made)
    assert "script" not in reader.tags
    assert "\x1b" not in made
    assert table(("a",), [(Html("<b>x</b>"),)]).count("<b>x</b>") == 1
    explanation = replace(evt.gemm("D = acc").explain("sm80"), gpus=(evil,))
    assert "script" not in well_formed(explanation._repr_html_()).tags


def test_the_notebook_runs() -> None:
    """The cells run, and each shows the kinds of output that are stored."""
    stored = read()
    made = executed(stored)

    def kinds(notebook: dict[str, Any]) -> list[list[str]]:
        return [[mime for each in cell.get("outputs", ()) for mime in each["data"]] for cell in notebook["cells"]]

    assert kinds(made) == kinds(stored)
    mimes = {mime for cell in kinds(stored) for mime in cell}
    assert mimes == {"text/plain", "text/html", "image/svg+xml"}
