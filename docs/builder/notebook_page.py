"""A notebook as a page: its texts, its code, and the stored outputs as a browser shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: The kinds of an output in the order of preference, and the block that shows a kind.
_KINDS = {"text/html": "{raw} html", "image/svg+xml": "{raw} html", "text/plain": "text"}


def page(text: str) -> str:
    """Return a notebook as Markdown."""
    return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else _block("python", source)
    for output in cell.get("outputs", ()):
        data = output.get("data", {"text/plain": output.get("text", "")})
        kind = next(kind for kind in _KINDS if kind in data)
        yield _block(_KINDS[kind], "".join(data[kind]))


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"
