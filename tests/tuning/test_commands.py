"""``evt tune`` without a GPU: workloads, and the commands for the database."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import evt
from evt.cli import main
from evt.farm import Task
from evt.measured import Measurement, Origin, Store, Timing, problem_key
from evt.request import packed_problem, problem_sizes
from tests.support.stand_in import StandInMachine

pytestmark = pytest.mark.usefixtures("own_cache")

FORMULA = "D = relu(acc + bias) + C"
SHAPES = ((512, 1024), (1024, 2048))
WORKLOAD = f"""
dtype = "f16"
[[program]]
name = "one"
formula = "{FORMULA}"
shapes = [{{m = [64, 512], n = 2048, k = 1024}}]
"""


def cli(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["tune", *arguments], prog_name="evt")
    assert "Traceback" not in result.output
    return result


def measured(gpu: str = "NVIDIA H200") -> str:
    """Keep a measurement; return its key."""
    request = evt.gemm(FORMULA).request
    sizes = problem_sizes(request, SHAPES)
    key = problem_key(packed_problem(request, "sm90", "f16", "f16", SHAPES), sizes)
    timings = Timing("evt-3x", "pingpong_128x128x64", 0.02, 0.018, 31, "d"), Timing("evt-2x", "other", 0.03)
    call = Task("", request, "f16", "f16", SHAPES).call
    origin = Origin("somebody@here", "2026-11-27T01:02:03.000+00:00", "580.1", "0.3.0")
    Store().add(key, Measurement(gpu, "sm90", FORMULA, sizes, timings, call, origin))
    return key


def test_list_and_show() -> None:
    assert cli("list").stdout == "0 measurements\n"
    key = measured()
    text = cli("list").stdout
    assert f"{key[:12]}  NVIDIA H200  0.0200 ms  evt-3x pingpong_128x128x64  2026-11-27 01:02 somebody@here\n" in text
    assert f"    {FORMULA}  m=512 n=2048 k=1024 l=1\n" in text
    assert cli("list", "--gpu", "H100").stdout == "0 measurements\n"
    shown = cli("show", key[:8]).stdout
    assert "measured by somebody@here at 2026-11-27T01:02:03.000+00:00 with evt 0.3.0" in shown
    assert "-> evt-3x pingpong_128x128x64" in shown
    assert "0.0200 ms, warm 0.0180, estimate 0.0" in shown
    found = json.loads(cli("show", key[:8], "--json").stdout)["measurements"][0]
    op = evt.gemm(FORMULA)
    us = {f"{each.route} {each.config}": each.us for each in op.estimates(SHAPES, "h200", "f16", "f16")}
    assert found["estimates_us"]["evt-3x pingpong_128x128x64"] == us["evt-3x pingpong_128x128x64"]
    assert json.loads(cli("list", "--json").stdout)["measurements"][0]["best"]["ms"] == 0.02
    missing = cli("show", "zzz")
    assert (missing.exit_code, "`evt tune list`" in missing.stderr) == (2, True)


def test_export_import_and_forget(tmp_path: Path) -> None:
    key = measured()
    measured("NVIDIA H100")
    file = str(tmp_path / "times.json")
    assert cli("export", file, "--gpu", "H200").stdout == f"{file}: 1 measurement\n"
    before = Store().find(key)
    assert cli("forget", key[:6], "--gpu", "H200").stdout == "1 measurement removed\n"
    assert [each.gpu for each in Store().find(key)] == ["NVIDIA H100"]
    assert cli("import", file).stdout == "1 imported, 0 kept as they were\n"
    assert [each.to_json() for each in Store().find(key)] == [each.to_json() for each in before]
    Store().add(key, replace(before[1], timings=(Timing("evt-3x", "own", 0.01),)))
    assert cli("import", file).stdout == "0 imported, 1 kept as they were\n"
    assert Store().find(key)[1].timings == (Timing("evt-3x", "own", 0.01),)
    found = json.loads(cli("import", file, "--replace", "--json").stdout)
    assert (found["imported"], found["kept"]) == (1, 0)
    assert json.loads(cli("forget", "--all", "--json").stdout)["forgotten"] == 2
    assert len(Store()) == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"form": 1}', '{"form": 1, "measurements": [{"key": "k"}]}', '{"form": 99}', "\xff"]
)
def test_files_that_are_no_exports(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    result = cli("import", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "evt tune export" in result.stderr or "a newer version" in result.stderr
    assert len(Store()) == 0
    assert cli("import", str(tmp_path / "missing")).exit_code == 1


def test_keys_and_gpus_are_completed() -> None:
    complete = ShellComplete(main, {}, "evt", "_EVT_COMPLETE").get_completions
    key = measured()
    assert [item.value for item in complete(["tune", "show"], key[:4])] == [key]
    assert complete(["tune", "forget"], "x") == []
    assert [item.value for item in complete(["explain", "D=acc", "--gpu"], "")] == ["NVIDIA H200"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": ["k"]}, "key is of type list"),
        ({"key": "a\nb"}, "no problem has the key 'a\\nb'"),
        ({"timings": []}, "has no times"),
        ({"sizes": {"m": 1 << 63}}, "a number of 64 bits"),
        ({"gpu": "\ud800"}, "surrogates not allowed"),
        ({"timings": [{"route": "r", "config": "c", "ms": 10**400}]}, "ms is a number of 1329 bits"),
        ({"timings": [{"route": "r", "config": "c", "ms": 1, "samples": 1 << 70}]}, "samples is a number of 71 bits"),
    ],
)
def test_entries_that_no_database_keeps(tmp_path: Path, change: dict[str, object], said: str) -> None:
    measured()
    file = tmp_path / "times.json"
    cli("export", str(file))
    document = json.loads(file.read_text())
    document["measurements"].append({**document["measurements"][0], **change})
    file.write_text(json.dumps(document))
    before = Store().all()
    result = cli("import", str(file), "--replace")
    assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
    assert Store().all() == before


def test_a_misspelt_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for word, command in (("lsit", "list"), ("exports", "export"), ("Forget", "forget")):
        result = cli(word)
        assert (result.exit_code, f"no command `{word}`; did you mean `{command}`?" in result.stderr) == (2, True)
    Path("lsit").write_text("D = relu(acc)")
    assert "did you mean" not in cli("lsit", "--route", "none").stderr


def test_usage() -> None:
    for arguments, said in (
        (["forget"], "Give KEY, --gpu or --all"),
        (["forget", "k", "--all"], "either KEY or --all"),
        ([FORMULA, "--again"], "are for workloads"),
        (["w.toml", "--m", "3"], "A workload names its operations"),
        (["w.toml", "--dtype", "f16"], "A workload names its operations"),
    ):
        result = cli(*arguments)
        assert (result.exit_code, said in result.stderr) == (2, True), result.output


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a workload, on a machine that stands in for one with a GPU; kernels need no builds."""
    monkeypatch.setattr("evt.bench.require_gpu", lambda: torch.device("cuda", 0))
    monkeypatch.setattr("evt.farm.GpuMachine", lambda index, seed: StandInMachine())
    monkeypatch.setattr("evt.tuning.tune.failures_of", lambda sources: {})
    monkeypatch.setattr("evt.farm.builders.build_each", lambda sources, build: ({}, {}))
    path = tmp_path / "w.toml"
    path.write_text(WORKLOAD)
    return str(path)


def test_a_workload_is_tuned(workload: str) -> None:
    first = cli(workload, "--wide", "--most", "3", "--rounds", "5")
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("one 64x2048x1024\ngemm on NVIDIA A100")
    assert "2 problems: " in first.stdout
    assert "weighted time" in first.stdout
    found = json.loads(cli(workload, "--wide", "--most", "3", "--json").stdout)
    assert (found["ok"], found["summary"]["measured"], found["summary"]["problems"]) == (True, 0, 2)
    assert [each["title"] for each in found["problems"]] == ["one 64x2048x1024", "one 512x2048x1024"]
    assert len(Store()) == 2
    again = json.loads(cli(workload, "--again", "--filter", "512x2048", "--json").stdout)["summary"]
    assert (again["problems"], again["kept"]) == (1, 0)
    assert cli(workload, "--filter", "nothing").exit_code == 2


def test_a_route_is_tuned_beside_the_times_of_others(workload: str) -> None:
    def routes() -> list[set[str]]:
        return [{timing.route for timing in each.timings} for _, each in Store().all()]

    found = json.loads(cli(workload, "--route", "evt", "--json").stdout)
    assert {row["route"] for each in found["problems"] for row in each["rows"]} == {"evt-2x"}
    assert routes() == [{"evt-2x"}] * 2
    assert json.loads(cli(workload, "--json").stdout)["summary"]["kept"] == found["summary"]["measured"]
    every = routes()
    assert all(len(each) > 1 for each in every)
    assert json.loads(cli(workload, "--route", "evt", "--again", "--json").stdout)["summary"]["kept"] == 0
    assert routes() == every
    assert "E0501" in cli(workload, "--route", "nothing").stderr


def test_a_workload_needs_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(WORKLOAD)
    result = cli(str(tmp_path / "w.toml"))
    assert (result.exit_code, result.stderr.startswith("error[E0801]")) == (1, True)
    (tmp_path / "w.toml").write_text("x = 3")
    result = cli(str(tmp_path / "w.toml"), "--json")
    assert json.loads(result.stdout)["diagnostics"][0]["code"] == "E0109"


@pytest.mark.parametrize(
    "text", ["[]", "3", "{}", '{"form": "1", "measurements": []}', '{"form": 1, "measurements": {}}']
)
def test_a_file_without_measurements_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    file.write_text(text)
    result = cli("import", str(file))
    assert (result.exit_code, "it has no list of measurements" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "command", [("tune", "import"), ("tune", "fit"), ("bench", "diff", "/dev/zero"), ("bench", "plot", "-o", "x.svg")]
)
def test_files_without_an_end_are_refused(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.storage.reading._MOST", 1000)
    result = CliRunner().invoke(main, [*command, "/dev/zero"], prog_name="evt")
    assert result.exit_code == 1, result.output
    assert "/dev/zero is no file of `evt" in result.output
