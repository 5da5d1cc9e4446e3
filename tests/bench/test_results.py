"""Files of ``evt bench --json``, compared and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evt.bench.changes import changes, times_of
from evt.bench.plot import draw, rendered
from evt.cli import main


def time(ms: float, spread: float = 0.01) -> dict[str, Any]:
    low, high = ms * (1 - spread), ms * (1 + spread)
    return {"time": {"median_ms": ms, "quartile_low_ms": low, "quartile_high_ms": high, "samples": 9}}


def document(**cases: dict[str, float]) -> dict[str, Any]:
    """Return a document with the times of versions by case."""
    rows = [
        {
            "name": name,
            "flops": 2 * 4096**3 * place,
            "bytes": {"A": 10**7, "D": 10**7 * place},
            "versions": {version: time(ms) for version, ms in times.items()} | {"failed": {"time": None}},
        }
        for place, (name, times) in enumerate(cases.items(), 1)
    ]
    machine = {"gpu": {"name": "NVIDIA H200"}, "versions": {"torch": "2.13.0"}}
    return {"schema": 1, "format": 1, "when": "2026-11-27T01:00:00+00:00", "machine": machine, "cases": rows}


OLD = document(one={"evt": 1.0, "eager": 2.0, "evt again": 1.0}, two={"evt": 1.0, "eager": 1.5}, gone={"evt": 1.0})
NEW = document(one={"evt": 1.2, "eager": 2.001}, two={"evt": 0.5, "eager": 1.5, "compile": 0.6}, added={"evt": 1.0})
MODELS = {
    "schema": 1,
    "machine": {"gpu": None},
    "models": [{"name": "vit", "dtype": "float16", "batch": 8, "times": {"evt": 1.0, "compile": 1.5}}],
}


def cli(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["bench", *arguments], prog_name="evt")
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, found in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    return str(tmp_path / "old.json"), str(tmp_path / "new.json")


def test_changes() -> None:
    found = {(each.case, each.version): (round(each.ratio, 3), each.certain) for each in changes(OLD, NEW)}
    assert found == {
        ("one", "evt"): (1.2, True),
        ("one", "eager"): (1.0, False),
        ("two", "evt"): (0.5, True),
        ("two", "eager"): (1.0, False),
    }
    assert [(each.case, each.version) for each in times_of(MODELS)] == [
        ("vit float16, batch 8", "evt"),
        ("vit float16, batch 8", "compile"),
    ]


def test_diff(files: tuple[str, str]) -> None:
    result = cli("diff", *files)
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["case", "version", "old", "ms", "new", "ms", "new", "/", "old"]
    assert lines[1] == ["one", "evt", "1.0000", "1.2000", "1.200", "slower"]
    assert lines[2][-1] == "noise"
    assert result.stdout.endswith("evt is slower in 1 of 2 cases\n")
    assert cli("diff", *files, "--threshold", "25").exit_code == 0
    assert cli("diff", files[0], files[0]).exit_code == 0
    found = json.loads(cli("diff", *files, "--json").stdout)
    assert (found["ok"], [each["slower"] for each in found["changes"]]) == (False, [True, False, False, False])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cases": [{}]}', '{"cases": 3}', '{"schema": 99, "cases": []}'])
def test_files_that_cannot_be_read(tmp_path: Path, files: tuple[str, str], text: str) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(text)
    for arguments in (["diff", files[0], str(wrong)], ["plot", str(wrong), "-o", str(tmp_path / "x.svg")]):
        result = cli(*arguments)
        assert result.exit_code == 1
        assert "no file of `evt bench --json`" in result.stderr or "a newer version" in result.stderr
    assert cli("diff", files[0], str(tmp_path / "missing")).exit_code == 1
    wrong.write_text(json.dumps(document(other={"evt": 1.0})))
    assert "no case in common" in cli("diff", files[0], str(wrong)).stderr


def test_plots(tmp_path: Path, files: tuple[str, str]) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype html>")):
        path = tmp_path / name
        assert cli("plot", files[1], "-o", str(path)).exit_code == 0
        assert path.read_bytes().startswith(start)
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg") == 2
    for word in ("evt / eager", "evt / compile", "H200, torch 2.13.0, 2026-11-27", "TFLOP/s (16 bits)", "one", "two"):
        assert word in page
    assert "added" not in page  # it has no other version
    svg = tmp_path / "roof.svg"
    assert cli("plot", files[1], "-o", str(svg), "--kind", "roofline").exit_code == 0
    assert "FLOP for each byte" in svg.read_text()


def test_pictures_are_equal_from_run_to_run() -> None:
    pytest.importorskip("matplotlib")
    for form in ("svg", "png", "html"):
        assert rendered(NEW, ("ratios",), form) == rendered(NEW, ("ratios",), form)


def test_the_roof_rises_to_the_peak() -> None:
    """The cases have far more operations for each byte than the ridge, or far fewer."""
    pytest.importorskip("matplotlib")
    for size in (1, 10**5):
        cases = [{**case, "bytes": {"A": 10**7 * size}} for case in NEW["cases"]]
        (roof,) = draw({**NEW, "cases": cases}, "roofline").axes[0].lines
        assert [list(each) == sorted(each) for each in roof.get_data()] == [True, True]


def test_a_document_of_models_has_no_roofline(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    source = tmp_path / "models.json"
    source.write_text(json.dumps(MODELS))
    assert cli("plot", str(source), "-o", str(tmp_path / "x.html")).exit_code == 0
    assert (tmp_path / "x.html").read_text().count("<svg") == 1
    result = cli("plot", str(source), "-o", str(tmp_path / "x.svg"), "--kind", "roofline")
    assert (result.exit_code, "nothing to draw" in result.stderr) == (1, True)
    assert cli("plot", str(source), "-o", str(tmp_path / "x.jpg")).exit_code == 2


def test_plots_need_matplotlib(tmp_path: Path, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [each for each in sys.modules if each.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = cli("plot", files[1], "-o", str(tmp_path / "x.svg"))
    assert (result.exit_code, "pip install matplotlib" in result.stderr) == (1, True)
    assert not (tmp_path / "x.svg").exists()
