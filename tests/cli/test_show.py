"""`evt check`, `evt show`, `evt explain` and `evt graph`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import evt
from evt.diagnostics import CODES, Source
from evt.program import Program
from evt.request import optimised_graph, typed_graph
from evt.version import JSON_SCHEMA
from tests.support.command_line import (
    EVERYTHING,
    FORMULA,
    REDUCED,
    THREE_OUTPUTS,
    WRONG,
    document,
    formula_file,
    ok,
    run,
)

# check


def test_check_several(tmp_path: Path) -> None:
    path = formula_file(tmp_path)
    wrong = tmp_path / "wrong.evt"
    wrong.write_text("D = foo(acc)\nE = bar(acc)\n")
    result = run("check", str(path), str(wrong), FORMULA, "D = acc +")
    assert result.exit_code == 1
    assert [line for line in result.stdout.splitlines() if line[0] != " "] == [f"{path}: ok", "<formula>: ok"]
    assert result.stderr.count("error[") == 3
    assert f"{wrong}:2:5" in result.stderr
    quiet = run("check", "-q", str(path), str(wrong))
    assert (quiet.exit_code, quiet.stdout) == (1, "")
    assert ok("check", "--quiet", str(path)) == ""
    assert ok("check", "-", stdin=FORMULA).startswith("<stdin>: ok\n")


def test_check_as_json(tmp_path: Path) -> None:
    path = formula_file(tmp_path)
    result = run("check", "--json", str(path), WRONG, "nothing.evt")
    assert result.exit_code == 1
    found = document(result)
    assert set(found) == {"schema", "ok", "diagnostics", "warnings", "programs"}
    assert [each["code"] for each in found["diagnostics"]] == ["E0201", "E0105"]
    assert [(each["name"], each["ok"]) for each in found["programs"]] == [
        (str(path), True),
        ("<formula>", False),
        ("nothing.evt", False),
    ]
    interface = ["gemm(A: f16[m, k], B: f16[k, n])", "out D: f16[m, n]"]
    assert document(run("check", "--json", "gemm(A: f16[m, k], B: f16[k, n]); out D: f16[m, n]; D = acc")) == {
        "schema": JSON_SCHEMA,
        "ok": True,
        "diagnostics": [],
        "warnings": [],
        "programs": [{"name": "<formula>", "ok": True, "interface": interface, "diagnostics": [], "warnings": []}],
    }


def test_check_takes_types_and_settings() -> None:
    assert ok("check", FORMULA, "--a", "e4m3", "--b", "e5m2", "--arch", "sm90", "--relaxed").startswith(
        "<formula>: ok\n"
    )
    assert "E0308" in run("check", FORMULA, "--a", "e4m3", "--b", "i8").stderr
    assert "E0503" in run("check", FORMULA, "--dtype", "e4m3", "--arch", "sm80").stderr
    assert "E0501" in run("check", FORMULA, "--arch", "sm80", "--route", "evt-9x").stderr


def test_settings_are_those_of_a_program() -> None:
    program = Program(Source(REDUCED), deterministic=False, fast_math=True, relaxed=True)
    options = ("--no-deterministic", "--fast-math", "--relaxed")
    assert ok("emit", REDUCED, *options) == program.emit()
    assert ok("show", REDUCED, "--stage", "optimised", *options) == str(optimised_graph(program.request))
    assert ok("emit", REDUCED, "--deterministic") == ok("emit", REDUCED) != program.emit()
    eager = Program(Source(FORMULA), numerics="eager")
    assert ok("emit", FORMULA, "--numerics", "eager") == eager.emit() != evt.emit(FORMULA)


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_the_whole_language_prints(arch: str) -> None:
    for stage in ("tree", "dag", "typed", "optimised", "plan"):
        assert ok("show", EVERYTHING, "--stage", stage, "--arch", arch)
    for format in ("text", "mermaid", "dot", "svg"):
        assert ok("graph", EVERYTHING, "--format", format, "--stage", "optimised")
    assert "mine_finish(" in ok("emit", EVERYTHING, "--arch", arch, "--name", "mine")
    assert re.search(r"Result .*\bpointer=out_total\b", ok("show", EVERYTHING, "--stage", "plan", "--arch", arch))


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_explain_reductions(arch: str) -> None:
    text = ok("explain", "--verbose", REDUCED, "--arch", arch)
    assert "after the kernel, finish: combines the parts of reductions, in a fixed order\n   reduction_" in text
    assert re.search(r"workspace, for each batch:\n   reduction_\d+: float\[parts\]\[m\]\n", text)
    assert re.search(r"reduction_\d+: column reduction, sum, in parts\n", text)
    found = json.loads(ok("explain", REDUCED, "--arch", arch, "--json"))
    assert [(each["name"], each["when"]) for each in found["kernels"]] == [("finish", "after")]
    assert [each["element"] for each in found["workspace"]] == ["float", "float"]
    assert json.loads(ok("explain", FORMULA, "--arch", arch, "--json"))["workspace"] == []


def test_explain_counts_bits_and_halves() -> None:
    text = "in gate: b1[m, n]; out D: f16[m, n/2], seen: b1[m, n]; z = where(gate, acc, 0); D = even(z); seen = z > 0"
    assert "epilogue traffic: 0.125 bytes read and 1.125 written per element of acc\n" in ok(
        "explain", "--verbose", text
    )


def test_check_finds_what_types_and_targets_refuse() -> None:
    assert "E0304" in run("check", "out D: f16[n]; D = acc").stderr
    assert run("check", FORMULA, "--arch", "sm80").exit_code == 0
    assert "E0501" in run("check", FORMULA, "--arch", "sm70").stderr


# show, explain, graph


@pytest.mark.parametrize("stage", ["tree", "dag", "typed", "optimised", "plan", "gradient"])
def test_an_unknown_target_is_refused_at_every_stage(stage: str) -> None:
    result = run("show", "--stage", stage, FORMULA, "--arch", "sm999")
    assert (result.exit_code, "error[E0501]" in result.stderr) == (1, True)


def test_show() -> None:
    assert ok("show", FORMULA, "--stage", "tree") == "D = (relu(((alpha * acc) + (beta * C))) + residual)\n"
    program = evt.gemm(FORMULA)
    assert ok("show", FORMULA) == ok("show", FORMULA, "--stage", "dag") == str(program.request.dag)
    assert ok("show", FORMULA, "--stage", "typed", "--dtype", "bf16") == str(typed_graph(program.request, "bf16"))
    assert ok("show", FORMULA, "--stage", "optimised") == str(optimised_graph(program.request))
    # The tree of a program that is wrong later on.
    assert ok("show", WRONG, "--stage", "tree") == "D = foo(acc)\n"


def test_show_where_values_come_from() -> None:
    for stage in ("dag", "typed", "optimised"):
        lines = ok("show", FORMULA, "--stage", stage, "--origins").splitlines()
        assert any(line.endswith("  # 1:10 alpha*acc + beta*C") for line in lines)
        plain = [line.partition("#")[0].rstrip() for line in lines]
        assert plain == ok("show", FORMULA, "--stage", stage).splitlines()
    for stage in ("tree", "plan"):
        failed = run("show", FORMULA, "--stage", stage, "--origins")
        assert failed.exit_code == 2
        assert "--origins is for the stages dag, typed, optimised." in failed.stderr


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_show_the_plan(arch: str) -> None:
    text = ok("show", THREE_OUTPUTS, "--stage", "plan", "--arch", arch)
    plan = Program(evt.gemm(THREE_OUTPUTS).request.source).plan(arch)
    for node in plan.steps:
        assert f"{type(node).__name__}  name={node.name}" in text
    for field in plan.fields:
        assert f"name={field.name}  kind={field.kind}" in text
    for region in plan.regions:
        assert all(str(statement) in text for statement in region.statements)
    assert f"family: {plan.family}\n" in text
    assert "object at 0x" not in text


def test_show_to_a_file(tmp_path: Path) -> None:
    ok("show", FORMULA, "-o", str(tmp_path / "dag"))
    assert (tmp_path / "dag").read_text() == ok("show", FORMULA)


def test_explain_a_program() -> None:
    text = ok("explain", "--verbose", FORMULA, "--arch", "sm80")
    assert text == f"{evt.gemm(FORMULA).explain('sm80').details()}\n"
    found = json.loads(ok("explain", FORMULA, "--json"))
    assert found == {"schema": JSON_SCHEMA, "ok": True, **evt.gemm(FORMULA).explain().to_json()}


@pytest.mark.parametrize("code", CODES)
def test_explain_every_code(code: str) -> None:
    assert ok("explain", code).startswith(f"# {code}: ")


@pytest.fixture
def _page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.diagnostics.page", lambda code: f"# {code}\n\nA *page*.\n")


@pytest.mark.usefixtures("_page")
def test_explain_a_code() -> None:
    assert ok("explain", "E0203") == ok("explain", "e0203") == "# E0203\n\nA *page*.\n"
    page = {"code": "E0203", "title": CODES["E0203"].title, "page": "# E0203\n\nA *page*.\n"}
    expected = {"schema": JSON_SCHEMA, "ok": True, **page}
    assert json.loads(ok("explain", "E0203", "--json")) == expected


@pytest.mark.usefixtures("_page")
def test_a_page_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.cli.explain.use_color", lambda _: True)
    text = ok("explain", "E0203")
    assert "page" in text
    assert "*page*" not in text


@pytest.mark.parametrize("format", ["text", "mermaid", "dot", "svg"])
def test_graph(format: str, tmp_path: Path) -> None:
    from evt.draw import FORMATS, draw

    assert format in FORMATS
    program = evt.gemm(FORMULA)
    text = ok("graph", FORMULA, "--format", format)
    assert text.rstrip("\n") == draw(program.request.dag, format).rstrip("\n")
    assert text.endswith("\n")
    typed = ok("graph", FORMULA, "--format", format, "--stage", "typed", "--dtype", "bf16")
    assert typed.rstrip("\n") == draw(typed_graph(program.request, "bf16"), format).rstrip("\n")
    optimised = ok("graph", FORMULA, "--format", format, "--stage", "optimised")
    assert optimised.rstrip("\n") == draw(optimised_graph(program.request), format).rstrip("\n")
    ok("graph", FORMULA, "--format", format, "-o", str(tmp_path / "graph"))
    assert (tmp_path / "graph").read_text() == text


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_an_explanation_is_short(arch: str) -> None:
    """Explain a program in about eight lines; --verbose has the rest."""
    for text, operation in ((FORMULA, "gemm"), (REDUCED, "gemm"), (FORMULA, "conv2d")):
        op = evt.Program(text, operation)
        short = ok("explain", text, "--op", operation, "--arch", arch)
        explained = op.explain(arch)
        assert short == f"{explained}\n"
        assert 6 <= short.count("\n") <= 10
        signature, choice, *_ = short.splitlines()
        assert signature.startswith(f"{operation}(A: f16*")
        chosen = next(route for route in explained.routes if route.chosen)
        assert choice == f"{arch}: {chosen.name}: {chosen.summary}"
        assert all(f" {route.name}" in short for route in explained.routes)
        assert ok("explain", "-v", text, "--op", operation, "--arch", arch) == f"{explained.details()}\n"
        assert all(rule in explained.details() for rule, _ in chosen.rules)
    sized = ok("explain", FORMULA, "--m", "4096", "--n", "4096", "--k", "1024", "--arch", arch)
    assert "   sizes         m=4096 n=4096 k=1024: 34.4 GFLOP" in sized
