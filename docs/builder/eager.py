"""The table of ``numerics="eager"`` in the manual, from the function table."""

from __future__ import annotations

import re
from pathlib import Path

from evt.functions import TABLE
from evt.optimise.round_as_eager import COMPOSED, POWERS

PAGE = Path(__file__).parents[1] / "numerics.md"
_PLACE = re.compile(r"(<!-- eager -->\n).*?(<!-- end of eager -->)", re.DOTALL)


def eager_table() -> str:
    """Return the functions whose formula with ``numerics="eager"`` is not the default one, as a Markdown table."""
    lines = ["| function | PyTorch's CUDA kernel | rounds |", "|---|---|---|"]
    lines += [f"| `{row.name}` | `{row.eager}` | the result |" for row in TABLE.values() if row.eager]
    lines += [f"| `x ** {value:g}` | `{formula}` | every operation |" for value, formula in POWERS.items()]
    lines += [f"| `{name}` | {TABLE[name].text[:-1]} | every operation |" for name in COMPOSED]
    return "\n".join(lines)


def with_eager_table(page: str) -> str:
    """Return the text of the page with its table written anew."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{eager_table()}\n\n{found[2]}", page)


__all__ = ["PAGE", "eager_table", "with_eager_table"]
