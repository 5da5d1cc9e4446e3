"""Estimates against measured kernels: of the tables that ship with evt, and of problems that a seed drew.

No constant is fitted to the files in ``unseen``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evt.farm.fit import judged, rows_of
from evt.farm.task import Task
from evt.measured import Measurement
from evt.measured.shipped import TABLES
from evt.plan.cards import find_card

#: Tiles that are offered since a card's table was measured. Calls of the table's sizes do not take them.
UNTIMED = {
    *(f"own_pingpong_{rows}x128x64" for rows in (96, 152, 168)),
    *(f"own_pingpong_{rows}x64x64" for rows in (72, 88, 120)),
    "own_pingpong_48x128x64",
    *(f"own_cooperative_{rows}x128x64" for rows in (80, 88, 104, 112, 176)),
    *("own_cooperative_80x128x64_2x2", "own_cooperative_96x128x64_2x1x4", "own_cooperative_32x256x64_1x1x4"),
    *(f"own_stages_{tile}" for tile in ("32x64x64_1x1x4", "16x64x64_1x1x8")),
    *(f"own_stages_{rows}x128x64_1x1x4" for rows in (48, 32, 16, 8)),
    *(f"own_stages_{tile}" for tile in ("8x64x64_1x1x4", "16x64x64_1x1x2", "8x128x128_1x1x2")),
    "own_stages_16x128x64_1x1x2",
    *("own_pingpong_16x128x128", "own_cooperative_160x256x64_2x1"),
    *("own_cooperative_256x128x64_2x1", "own_cooperative_256x128x64_1x2x2"),
    *(f"own_cooperative_192x128x64_{cluster}" for cluster in ("1x2x2", "1x1x2", "1x1x4")),
    *(f"own_cooperative_128x128x64_{cluster}" for cluster in ("2x1x2", "1x2x4", "1x4x2", "1x1x4")),
    "halo_words_248x64x16",
}
FILES = sorted((*TABLES.glob("*.json"), *(Path(__file__).parent / "unseen").glob("*.json")))


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_estimates_agree_with_the_table_of_a_card(path: Path, step: int) -> None:
    """The quick test judges every third problem."""
    entries = json.loads(path.read_bytes())["measurements"][::step]
    ((name, rows),) = rows_of((entry["key"], Measurement.from_json(entry)) for entry in entries).items()
    assert name.lower() == path.stem
    found = judged(rows, find_card(name))
    count, median, most, _ = found.kinds["all"]
    assert count >= 300 / step
    assert median < 0.09
    assert most < 0.27
    assert found.kinds["product"][1] < 0.08
    assert found.right > 0.9 * found.pairs > 1000 / step


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_tables_time_the_own_kernels_that_calls_choose_from(path: Path) -> None:
    """A call takes the fastest kernel of a table: a tile that the table does not know would never be taken."""
    offered, timed = set[tuple[str, str]](), set[tuple[str, str]]()
    for entry in json.loads(path.read_bytes())["measurements"]:
        found = Measurement.from_json(entry)
        survey = Task.read(found.call).survey(found.target).asked_for("own")
        offered |= {(candidate.route.name, config.name) for candidate, config in survey.kernels}
        timed |= {(each.route, each.config) for each in found.timings}
    assert {name for _, name in offered - timed} <= UNTIMED
    assert not {name for _, name in timed} & UNTIMED
