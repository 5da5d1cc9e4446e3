"""Results of `evt bench --suite models --json FILE` as committed results.

``python -m docs.builder.measured FILE NAME`` writes ``docs/benchmarks/NAME.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from docs.builder.results import DOCS, Cell, Results

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


def models(document: Mapping[str, Any], date: str) -> Results:
    """Return the results of a document, in the order of its models; models that were skipped are left out."""
    machine = document["machine"]
    measured = [model for model in document["models"] if model["times"]]
    types = sorted({model["dtype"] for model in measured})
    rows: list[list[Cell]] = []
    for model in measured:
        name = f"{model['name']}, {model['batch']}" + (f", {model['dtype']}" if len(types) > 1 else "")
        rows.append([name, *(model[part].get(key) for _, _, (part, key) in _COLUMNS)])
    return Results(
        title="Training steps" if any(model["training"] for model in measured) else "Inference times",
        card=machine["gpu"]["name"].removeprefix("NVIDIA ").split()[0],
        date=date,
        software=f"torch {machine['versions']['torch'].split('+')[0]}, {', '.join(types)}",
        command=f"evt bench --suite {'training' if any(model['training'] for model in measured) else 'models'}",
        columns={"model, batch": "", **{title: form for title, form, _ in _COLUMNS}},
        rows=rows,
    )


def to_text(results: Results) -> str:
    """Return results as JSON, one row a line."""
    head = json.dumps({key: value for key, value in asdict(results).items() if key != "rows"}, indent=2)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in results.rows)
    return f'{head[:-2]},\n  "rows": [\n{rows}\n  ]\n}}\n'


def main(file: Path, name: str) -> None:
    """Write the results of a file under a name."""
    date = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc).strftime("%Y-%m-%d")
    results = models(json.loads(file.read_text(encoding="utf-8")), date)
    (DOCS / "benchmarks" / f"{name}.json").write_text(to_text(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
