"""Constants of cards fitted to measurements, over kernels whose times are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.errors import BuildError
from evt.farm.fit import fit, judged, rows_of
from evt.farm.task import Task
from evt.measured import Measurement, Store, Timing, fitted, keep_fit, named_card
from evt.plan.cards import CARDS, FITS, Card, Fit, card_of, find_card
from evt.plan.speed import duration, norm
from evt.request import problem_sizes

H200 = find_card("h200")


def measurements(factor: float, gpu: str = "NVIDIA H200") -> list[tuple[str, Measurement]]:
    """Return measurements that take ``factor`` times the estimates."""
    op, found = evt.linear("D = relu(acc + bias)"), []
    for m in (64, 256, 1024, 4096, 8192):
        shapes = (m, 1024), (2048, 1024)
        task = Task("", op.request, "f16", "f16", shapes)
        every = op.estimates(shapes, "h200", "f16", "f16")
        timings = tuple(Timing(each.route, each.config, each.us * factor / 1e3) for each in every)
        made = Measurement(gpu, "sm90", "D", problem_sizes(op.request, shapes), timings, task.call)
        found.append((f"problem{m}", made))
    return found


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["tune", "fit", *arguments], prog_name="evt")
    assert "Traceback" not in result.output
    assert result.exit_code == 0, result.output
    return result.stdout


def test_true_estimates_have_no_error() -> None:
    (rows,) = rows_of(measurements(1.0)).values()
    found = judged(rows, H200)
    assert found.kinds["all"][0] == len(rows) > 100
    assert found.kinds["all"][1] < 1e-9
    assert found.right == found.pairs > 1000
    assert {"product", "CUTLASS 3.x", "CUTLASS 2.x"} < set(found.kinds)


@pytest.mark.parametrize("factor", [1.1, 1.6])
def test_a_factor_is_found(factor: float) -> None:
    """The held-out problems agree with it, and the rate of the memory follows."""
    (rows,) = rows_of(measurements(factor)).values()
    made = fit(rows, H200, "a test")
    after = judged(rows, replace(H200, measured=made))
    assert abs(judged(rows, H200).kinds["all"][3] - abs(1 / factor - 1)) < 1e-6
    assert after.kinds["all"][3] < 0.03
    assert all(abs(work / factor - 1) < 0.15 for _, work in made.kernels.values())


def test_constants_of_a_card_change_each_part_of_a_time() -> None:
    op, shapes = evt.linear("D = relu(acc + bias)"), ((4096, 1024), (2048, 1024))
    sizes = problem_sizes(op.request, shapes)
    plan = next(each.plan for each in rows_of(measurements(1.0))["H200"] if each.plan.route == "evt-3x")
    plain = duration(plan, sizes, replace(H200, measured=replace(H200.fit, kernels={})))
    kernels = {"CUTLASS 3.x": (2.0, 3.0)}
    found = duration(plan, sizes, replace(H200, measured=replace(H200.fit, moved=H200.fit.moved / 4, kernels=kernels)))
    assert found == pytest.approx((2 * plain.start, 3 * plain.work, 4 * plain.memory))
    assert found.total == pytest.approx(found.start + norm(found.work, found.memory))


def test_measurements_without_a_call_or_a_card_do_not_count() -> None:
    assert rows_of((key, replace(each, call="")) for key, each in measurements(1.0)) == {}
    assert rows_of(measurements(1.0, "a GPU")) == {}


def test_every_fit_is_of_a_card_and_reads_back() -> None:
    assert set(FITS) == {name for name, card in CARDS.items() if card.is_fitted}
    for name, each in FITS.items():
        assert Fit.from_json(json.loads(json.dumps(each.to_json()))) == each
        assert name in each.source
    wrongs: list[object] = [
        {},
        [],
        {**FITS["H100"].to_json(), "moved": 0},
        {**FITS["H100"].to_json(), "kernels": {"halo": 1}},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="card"):
            Fit.from_json(wrong)


def test_devices_by_name() -> None:
    assert card_of("NVIDIA H200", "sm90", 60) == replace(H200, multiprocessors=60)
    assert card_of("", "sm90", 132) == find_card("sm90")
    assert card_of("NVIDIA A100", "sm90", 132) == find_card("sm90")  # not of this target


def test_the_command(own_cache: Path, tmp_path: Path) -> None:
    """Estimates and calls use the constants that are kept, until the file is damaged."""
    op, shapes = evt.linear("D = relu(acc + bias)"), ((4096, 1024), (2048, 1024))
    before = op.estimate(shapes, "h200", "f16", "f16").us
    Store().add_all(measurements(1.5))
    text = cli("--gpu", "H200")
    assert "held out" in text
    assert text.index("before: H200") < text.index("after: H200") < text.index("busy_ghz")
    assert op.estimate(shapes, "h200", "f16", "f16").us == before
    found = json.loads(cli("--keep", "--json"))
    assert found["cards"][0]["after"]["kinds"]["all"]["median"] < found["cards"][0]["before"]["kinds"]["all"]["median"]
    kept: Card = named_card("h200")
    assert kept.fit.to_json() == found["cards"][0]["fit"]
    assert op.estimate(shapes, "h200", "f16", "f16").us == pytest.approx(1.5 * before, rel=0.1)
    assert named_card("h100") is find_card("h100")
    keep_fit(find_card("h100"), FITS["H100"])
    assert named_card("h200") == kept
    exported = str(tmp_path / "measured.json")
    CliRunner().invoke(main, ["tune", "export", exported], prog_name="evt")
    assert json.loads(cli(exported, "--json"))["cards"][0]["before"]["card"] == "H200"
    (own_cache / "cards.json").write_text("{")
    with pytest.warns(UserWarning, match="E0704"):
        assert fitted(H200) is H200


def test_nothing_to_fit(own_cache: Path) -> None:
    result = CliRunner().invoke(main, ["tune", "fit"], prog_name="evt")
    assert (result.exit_code, "calibration.toml" in result.stderr) == (2, True)
    own_cache.write_text("no directory")
    with pytest.raises(BuildError, match="E0704"):
        keep_fit(H200, FITS["H200"])
