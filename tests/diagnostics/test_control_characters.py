"""Nothing that evt prints of a user's names and texts, or of a file's, can control a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evt
from evt.compilation import BuildEvent
from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import ProgramError
from evt.fx.records import ProductReport
from evt.fx.report import Report
from evt.measured.measurement import Timing
from evt.request import Request
from evt.tuning.table import KernelTime, Tuning

#: A colour, a bell, a change of direction, a line end of another kind.
EVIL = "x\x1b[31m\x07\u202e\x85\r"


def texts() -> dict[str, str]:
    """Return the output, with such a text at every place that may hold an outside text."""
    diagnostic = Diagnostic("E0101", EVIL, Span(0, 3), EVIL, EVIL, (EVIL,), Source(f"{EVIL} = acc", EVIL))
    row = ProductReport(EVIL, EVIL, EVIL, EVIL, (EVIL,), EVIL, (EVIL,), None, EVIL)
    state = {**evt.gemm("D = acc").__getstate__(), "evt": EVIL, "form": EVIL}
    with pytest.raises(evt.ArgumentError) as refused:
        Request.__new__(Request).__setstate__(state)
    tuned = Tuning("gemm", EVIL, "sm90", {"m": 1}, (KernelTime(EVIL, EVIL, failure=EVIL),), Timing(EVIL, EVIL, 1.0))
    report = Report((row, replace(row, reason="")))
    return {
        "diagnostic": str(ProgramError(diagnostic)),
        "stored program": str(refused.value),
        "report": str(report),
        "report of a notebook": report._repr_html_(),
        "tuning": str(tuned),
        "explanation": str(replace(evt.gemm("D = acc").explain(), gpus=(EVIL,))),
        "event of a build": str(BuildEvent("failed", "key", 0, text=EVIL)),
        "origins": str(evt.gemm(f"# {EVIL}\nD = acc").request.dag),
    }


def test_control_characters_are_escaped() -> None:
    printed = texts()
    obeyed = {name: text for name, text in printed.items() if not text.replace("\n", "").isprintable()}
    assert obeyed == {}
    assert [name for name, text in printed.items() if "\\x1b[31m" not in text] == ["origins"]
