"""A drawn graph as a value: ``Drawing(dag)``, a picture in notebooks and a text at a prompt."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evt.draw import draw
from evt.ir import Dag

#: The formats, by the suffix of a file.
SUFFIXES = {".txt": "text", ".mmd": "mermaid", ".dot": "dot", ".svg": "svg"}


@dataclass(frozen=True, repr=False)
class Drawing:
    """A graph that notebooks show as a picture. ``str`` is a text; :meth:`save` and :meth:`to` write other formats."""

    dag: Dag

    def to(self, format: str) -> str:
        """Return the drawing in a format: text, mermaid, dot or svg."""
        return draw(self.dag, format)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the drawing to a file, in the format of its suffix: .svg, .dot, .mmd or .txt."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise ValueError(f"`{suffix}` is no format's suffix; there are {', '.join(SUFFIXES)}")
        path.write_text(self.to(SUFFIXES[suffix]), encoding="utf-8")

    def __str__(self) -> str:
        return self.to("text").rstrip("\n")

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str:
        return self.to("svg")
