"""Results of `evt bench --json FILE` as committed results.

``python -m docs.builder.measured NAME FILE...`` writes ``docs/benchmarks/NAME.json`` from the documents of all files.
The first file names the machine and the software.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from docs.builder.results import DOCS, Cell, Results
from evt.bench.result import AGAIN

Document = Mapping[str, Any]

#: The columns of models: the title, the format, and the place of the number in a model of the document.
_COLUMNS: tuple[tuple[str, str, tuple[str, str]], ...] = (
    ("eager, ms", ".2f", ("times", "eager")),
    ("torch.compile, ms", ".2f", ("times", "compile")),
    ("kernels", "d", ("kernels", "compile")),
    ("evt, ms", ".2f", ("times", "evt")),
    ("evt's kernels", "d", ("kernels", "evt")),
    ("evt / torch.compile", ".2f", ("ratios", "wall")),
    ("with CUDA graphs", ".2f", ("ratios", "gpu")),
)
_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_RELU = "relu(acc + bias + residual)"
_RESIDUAL = "relu(acc + bias) + residual"


def models(documents: Sequence[Document], date: str) -> Results:
    """Return the results of models, in the order of the documents; models that were skipped are left out."""
    measured = [model for each in documents for model in each["models"] if model["times"]]
    training = any(model["training"] for model in measured)
    types = sorted({_TYPES[model["dtype"]] for model in measured}, reverse=True)
    rows: list[list[Cell]] = []
    for model in measured:
        name = f"{model['name']}, {model['batch']}" + (f", {_TYPES[model['dtype']]}" if len(types) > 1 else "")
        rows.append([name, *(model[part].get(key) for _, _, (part, key) in _COLUMNS)])
    return Results(
        title="Training steps" if training else "Inference times",
        **_origin(documents, date, ", ".join(types), "training" if training else "models"),
        columns={"model, batch": "", **{title: form for title, form, _ in _COLUMNS}},
        rows=rows,
    )


def unseen_models(documents: Sequence[Document], date: str) -> Results:
    """Return the ratios of models, the smallest first."""
    measured = [model for each in documents for model in each["models"] if model["ratios"]]
    rows: list[list[Cell]] = [[each["name"], each["ratios"]["wall"], each["ratios"].get("gpu")] for each in measured]
    return Results(
        title="Models that evt was not tuned on",
        **_origin(documents, date, "f16, transformers and timm's transformers bf16", "models"),
        columns={"model": "", "wall time": ".2f", "GPU time": ".2f"},
        rows=sorted(rows, key=lambda row: (row[1], row[0])),
    )


def products(documents: Sequence[Document], date: str) -> Results:
    """Return the ratios of matrix products."""
    cases = [case for each in documents for case in each["cases"]]
    rows: list[list[Cell]] = [
        [
            f"`{_formula(case['program'])}`",
            f"{case['m']}, {case['n']}, {case['k']}",
            *(_ratio(case, "evt", version) for version in ("compile", "eager", "mm")),
        ]
        for case in cases
        if _ms(case, "evt")
    ]
    return Results(
        title="Products with an epilogue",
        **_origin(documents, date, " and ".join(sorted({case["dtype"] for case in cases})), "gemm"),
        columns={
            "epilogue": "",
            "m, n, k": "",
            "evt / torch.compile": ".2f",
            "evt / eager": ".2f",
            "evt / bare torch.mm": ".2f",
        },
        rows=rows,
    )


def epilogues(documents: Sequence[Document], date: str) -> Results:
    """Return the cost of epilogues, for each size relative to a bare store and to the bound."""
    groups = [group for each in documents for group in each["epilogues"]]
    columns = {"epilogue": ""}
    rows: dict[str, list[Cell]] = {}
    for number, group in enumerate(groups):
        columns[f"({group['m']}, {group['n']}, {group['k']}) / bare"] = ".2f"
        columns["/ bound" + " " * number] = ".2f"
        for name, each in group["epilogues"].items():
            if name not in (group["bare"], AGAIN) and each["time"]:
                rows.setdefault(name, [name]).extend((each["ratio_to_bare"], each["ratio_to_bound"]))
    return Results(
        title="The cost of an epilogue",
        **_origin(documents, date, groups[0]["dtype"], "epilogue"),
        columns=columns,
        rows=[row for row in rows.values() if len(row) == len(columns)],
    )


def layers(documents: Sequence[Document], date: str) -> Results:
    """Return each layer's time, and its ratios to cuDNN."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for case in (case for each in documents for case in each["cases"]):
        layer, _, text = case["name"].partition(" relu(")
        found.setdefault(layer, {})[f"relu({text}"] = case
    rows: list[list[Cell]] = []
    for layer, cases in found.items():
        if {_RELU, _RESIDUAL} <= cases.keys() and (ms := _ms(cases[_RELU], "evt")):
            rows.append([layer, 1000 * ms, *(_ratio(cases[text], "evt", "cudnn") for text in (_RELU, _RESIDUAL))])
    return Results(
        title=f"Single layers at batch {documents[0]['cases'][0]['a_shape'][0]}",
        **_origin(documents, date, "f16, channels_last", documents[0]["settings"]["suite"]),
        columns={"layer": "", f"`{_RELU}`, us": ".1f", "/ cuDNN": ".2f", f"`{_RESIDUAL}` / cuDNN": ".2f"},
        rows=rows,
    )


def _origin(documents: Sequence[Document], date: str, types: str, suite: str) -> dict[str, str]:
    """Return the card, the date, the software and the command of results."""
    machine = documents[0]["machine"]
    return {
        "card": machine["gpu"]["name"].removeprefix("NVIDIA ").split()[0],
        "date": date,
        "software": f"torch {machine['versions']['torch'].split('+')[0]}, {types}",
        "command": f"evt bench --suite {suite}",
    }


def _formula(program: str) -> str:
    """Return the assignments of a program on one line; of a single one to D, the expression."""
    lines = [line for line in program.splitlines() if not line.startswith(("in ", "out "))]
    return "; ".join(lines).removeprefix("D = ")


def _ms(case: Mapping[str, Any], version: str) -> float | None:
    """Return the median time of a version of a case."""
    time = (case["versions"].get(version) or {}).get("time")
    return None if time is None else time["median_ms"]


def _ratio(case: Mapping[str, Any], version: str, base: str) -> float | None:
    """Return the time of a version over another's."""
    time, against = _ms(case, version), _ms(case, base)
    return None if time is None or against is None else time / against


#: The results that documents make, by name.
KINDS: Mapping[str, Callable[[Sequence[Document], str], Results]] = {
    each.__name__: each for each in (models, unseen_models, products, epilogues, layers)
}


def to_text(results: Results) -> str:
    """Return results as JSON, one row a line."""
    head = json.dumps({key: value for key, value in asdict(results).items() if key != "rows"}, indent=2)
    rows = ",\n".join(f"    {json.dumps(list(map(_rounded, row)))}" for row in results.rows)
    return f'{head[:-2]},\n  "rows": [\n{rows}\n  ]\n}}\n'


def _rounded(cell: Cell) -> Cell:
    """Return a number with four significant digits."""
    return float(f"{cell:.4g}") if isinstance(cell, float) else cell


def main(name: str, files: Sequence[Path]) -> None:
    """Write the results of files under a name."""
    date = datetime.fromtimestamp(files[0].stat().st_mtime, timezone.utc).strftime("%Y-%m-%d")
    results = KINDS[name]([json.loads(file.read_text(encoding="utf-8")) for file in files], date)
    (DOCS / "benchmarks" / f"{name}.json").write_text(to_text(results), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], [Path(each) for each in sys.argv[2:]])
