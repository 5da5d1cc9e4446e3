"""The generated parts of the manual are complete, and the committed ones are up to date."""

from __future__ import annotations

import base64
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs.builder.diagram import flowchart
from docs.builder.eager import PAGE, with_eager_table
from docs.builder.measured import KINDS, to_text
from docs.builder.pages import pages, pictures
from docs.builder.results import DOCS, PICTURES, Results, derived, load, picture, table
from evt.bench import CaseResult, EpilogueResult, Summary, VersionResult, suite, to_json
from evt.bench.compiled import ModelResult
from evt.bench.result import AGAIN
from evt.cli.entry import COMMANDS
from evt.diagnostics import CODES
from evt.functions import TABLE
from evt.ir.lower.words import SPECIAL
from evt.ir.node import MOMENTS, PLACES, REDUCTIONS
from tests.support.browser import chromium, served
from tests.support.markdown import anchors, targets


@pytest.mark.parametrize("path", derived(), ids=lambda path: path.name)
def test_tables_and_pictures_show_the_results(path: Path, request: pytest.FixtureRequest) -> None:
    text = derived()[path]
    if request.config.getoption("--update"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "`pytest tests/house/test_builder.py --update` writes the file"


def test_the_table_of_eager_numerics_is_the_codes(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    text = with_eager_table(page)
    if request.config.getoption("--update"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == page, "`pytest tests/house/test_builder.py --update` writes the file"
    assert "| `silu` | `x / (1 + exp(-x))` | the result |" in page


def test_all_results_are_shown() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for file in (DOCS / "benchmarks").glob("*.json"):
        results = load(file.stem)
        assert f"<!-- results: {file.stem} -->" in page
        assert all(len(row) == len(results.columns) for row in results.rows)
    assert {name for name, *_ in PICTURES.values()} <= {file.stem for file in (DOCS / "benchmarks").glob("*.json")}


def test_a_table_and_a_picture() -> None:
    columns = {"model": "", "evt / eager": ".2f", "kernels": "d"}
    results = Results("Times", "H200", "2026-11-27", "torch", "evt bench", columns, [["a<b", 0.5, 3], ["c", None, 4]])
    text = table(results)
    assert text.startswith("Times: H200, 2026-11-27; torch; `evt bench`.\n\n| model | evt / eager | kernels |\n")
    assert text.endswith("| a<b | 0.50 | 3 |\n| c |  | 4 |\n")
    drawn = picture(results, "model", {"evt / eager": "default mode"})
    assert drawn.count('class="bar0"') == 2  # the legend, and one bar
    assert "a&lt;b" in drawn
    assert drawn.index('class="line"') < drawn.index('class="number"')  # no number is crossed out


MACHINE = {"gpu": {"name": "NVIDIA H100 80GB HBM3"}, "versions": {"torch": "2.11.0+cu130"}}


def committed(name: str, *documents: object) -> Results:
    """Return the results of documents, by way of JSON, after the checks of every kind of results."""
    results = KINDS[name](json.loads(json.dumps(documents)), "2026-11-27")
    assert (results.card, results.date) == ("H100", "2026-11-27")
    assert set(results.columns) <= set(load(name).columns)
    assert all(len(row) == len(results.columns) for row in results.rows)
    assert to_text(Results(**json.loads(to_text(results)))) == to_text(results)
    return results


def test_measured_models_become_results() -> None:
    times = {"eager": 4.0, "compile": 2.0, "evt": 1.5}
    model = ModelResult("resnet50", "float16", 32, times=times, kernels={"compile": 9, "evt": 5})
    other = ModelResult("bert", "bfloat16", 16, times=times, gpu_times={"compile": 2.0, "evt": 1.25})
    first = {
        "machine": MACHINE,
        "models": [model.to_json(), ModelResult("a", "float16", 1, skipped="no timm").to_json()],
    }
    second = {"machine": MACHINE, "models": [other.to_json()]}
    results = committed("models", first)
    assert results.software == "torch 2.11.0, f16"
    assert results.rows == [["resnet50, 32", 4.0, 2.0, 9, 1.5, 5, 0.75, None]]
    both = committed("models", first, second)
    assert [row[0] for row in both.rows] == ["resnet50, 32, f16", "bert, 16, bf16"]
    for _, names, series in PICTURES.values():
        assert {names, *series} <= set(results.columns)
    assert committed("unseen_models", first, second).rows == [["bert", 0.75, 0.625], ["resnet50", 0.75, None]]


def measured_cases(name: str, times: Mapping[str, float]) -> list[CaseResult]:
    """Return results of a suite whose versions have times in ms."""
    rows = tuple(VersionResult(version, Summary(time, time, time, 1)) for version, time in times.items())
    return [CaseResult(each, rows, {"x": 1}) for each in suite(name)]


def test_measured_cases_become_results() -> None:
    gemm = measured_cases("gemm", {"evt": 1.0, "compile": 2.0, "eager": 4.0, "mm": 0.5})
    rows = committed("products", to_json(gemm, MACHINE)).rows
    assert len(rows) == len(gemm)
    assert rows[0] == ["`relu(alpha*acc + beta*C) + residual`", "6304, 3072, 768", 0.5, 0.25, 2.0]
    assert {"`scale_a * (scale_b * acc)`", "`Z = acc + bias; D = gelu(Z)`"} <= {row[0] for row in rows}
    document = to_json(measured_cases("resnet", {"evt": 1.0, "cudnn": 2.0}), MACHINE, settings={"suite": "resnet"})
    single = committed("layers", document)
    assert (single.title, single.rows[0]) == ("Single layers at batch 256", ["7x7/2 3->64 @224", 1000.0, 0.5, 0.5])
    groups = [measured_epilogues(m) for m in (4096, 16384)]
    costs = committed("epilogues", to_json([], MACHINE, epilogues=groups)).rows
    assert len(costs) == len(suite("epilogue")) // 2 - 1
    name, ratio, bound, *_ = costs[0]
    assert (name, ratio) == ("bias", 2.0)
    assert isinstance(bound, float)
    assert 1.9 < bound < 2.0


def measured_epilogues(m: int) -> EpilogueResult:
    """Return results of the epilogues of a size that take twice the time of a bare store."""
    cases = tuple(each for each in suite("epilogue") if each.m == m)
    times = {case.name: 2.0 for case in cases} | {cases[0].name: 1.0, AGAIN: 1.0}
    rows = tuple(VersionResult(name, Summary(time, time, time, 1)) for name, time in times.items())
    size = {case.name: {"D": 1 << 20, "x": 1 << 20 if number else 0} for number, case in enumerate(cases)}
    return EpilogueResult(cases, rows, size, Summary(1.0, 1.0, 1.0, 1), 1 << 30)


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    return pages()


def test_the_navigation_has_every_page(site: dict[str, str]) -> None:
    trees = "".join(re.findall(r"```{toctree}.*?\n\n(.*?)```", "".join(site.values()), re.DOTALL))
    assert sorted(f"{name.removeprefix('/')}.md" for name in trees.split()) == sorted(site.keys() - {"index.md"})


def test_links_of_the_site_lead_somewhere(site: dict[str, str]) -> None:
    pictured = pictures()
    for name, text in site.items():
        for target in targets(text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            found = posixpath.normpath(posixpath.join(posixpath.dirname(name), file)) if file else name
            assert found in site or found in pictured, (name, target)
            assert not anchor or anchor in anchors(site[found]), (name, target)


def test_references_are_complete(site: dict[str, str]) -> None:
    functions = {line.split("`")[1] for line in site["functions.md"].splitlines() if line.startswith("| `")}
    assert functions == {*map(str, TABLE.values()), *(f"{name}[n](x)" for name in REDUCTIONS), *SPECIAL.values()} | {
        f"{name}[n](x)" for name in (*MOMENTS, *PLACES)
    }
    assert [f"### evt {name}\n" in site["cli.md"] for name in COMMANDS].count(False) == 0
    assert {name for name in site if name.startswith("diagnostics/")} == {f"diagnostics/{code}.md" for code in CODES}
    assert all(f".. auto{kind}" in site["api/evt.md"] for kind in ("function:: evt.gemm", "class:: evt.Program"))


def test_the_gallery_shows_every_sample(site: dict[str, str]) -> None:
    names = {path.name.removesuffix(".evt") for path in (DOCS.parent / "samples").iterdir() if path.is_file()}
    assert {name for name in site if name.startswith("gallery/")} == {f"gallery/{name}.md" for name in names}
    rope = site["gallery/rope.md"]
    assert "```evt\nin  cosine" in rope
    assert "Its formula:\n\n```text\n" in site["gallery/gated_backward_moe.md"]
    assert all("#   source" not in text for name, text in site.items() if name.endswith("gated_backward_moe.md"))
    assert "D = interleave(" in rope
    assert "struct Region0" in rope
    assert "sm90: evt-3x: " in rope
    assert "(https://github.com/vllm-project/vllm)" in site["gallery/int8_zero_point_i32.md"]
    integers = site["gallery.md"].partition("## 8-bit integers")[2]
    assert re.search(r"\[int8_weights\].* \| operands of two types, scales of blocks \|", integers)


def test_a_sample_opens_in_the_playground(site: dict[str, str]) -> None:
    (code,) = re.findall(r'href="../playground/index.html#(\S+)"', pages(playground=True)["gallery/conv_relu_add.md"])
    state = json.loads(base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)))
    assert (state["operation"], state["arch"]) == ("conv2d", "sm90")
    assert state["text"] == (DOCS.parent / "samples/conv_relu_add.evt").read_text(encoding="utf-8")
    assert not any("index.html#" in text for text in site.values())


def test_the_notebook_is_a_page(site: dict[str, str]) -> None:
    text = site["notebook.md"]
    assert "```python\nop.explain(" in text
    assert text.count("```{raw} html\n<") > 3
    assert "```text\ntorch.Size([64, 48])" in text


def test_a_flowchart_is_drawn() -> None:
    drawn = flowchart('flowchart TD\n    a["one & two"] -->|"f (evt/ir)"| b[B]\n    b --> c[C]\n    c --> b\n')
    assert drawn.count('class="box"') == 3
    assert drawn.count('class="edge"') == 3
    assert "one &amp; two" in drawn


@pytest.fixture(scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; return the folder of its pages."""
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "docs.builder", str(folder)], cwd=DOCS.parent, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_is_built(built_site: Path) -> None:
    assert "Write the epilogue" in (built_site / "index.html").read_text(encoding="utf-8")
    assert (built_site / "gallery/rope.html").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_benchmarks_are_shown_by_a_browser(built_site: Path) -> None:
    """The page has a table for each file of results, its picture, and nothing from other machines."""
    files = list((DOCS / "benchmarks").glob("*.json"))
    with served(built_site) as address, chromium() as browser:
        page, problems, asked = browser.new_page(), list[str](), list[str]()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
        page.goto(f"{address}benchmarks.html")
        page.wait_for_load_state("networkidle")
        assert page.title().startswith("Benchmarks")
        assert len(page.query_selector_all("article table")) >= len(files) > 5
        assert all(len(table.query_selector_all("tbody tr")) > 3 for table in page.query_selector_all("article table"))
        pictures = page.query_selector_all("article img")
        assert pictures
        assert all(each.evaluate("image => image.complete && image.naturalWidth > 0") for each in pictures)
    assert all(url.startswith(address) for url in asked)
    assert problems == []
