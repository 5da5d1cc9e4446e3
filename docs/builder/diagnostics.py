"""The index of diagnostics, and a page for each code."""

from __future__ import annotations

from evt.diagnostics import CODES, page

#: The subject of codes by their first digits.
_SUBJECTS = {
    "E01": "Syntax",
    "E02": "Names and calls",
    "E03": "Types and shapes",
    "E04": "The program as a graph",
    "E05": "Targets",
    "E06": "Calls, functions of users, layouts",
    "E07": "Building",
    "E08": "Running",
    "E09": "evt itself",
    "E10": "Models: reasons for not fusing an operator",
    "W04": "Warnings",
}


def index() -> str:
    """Return a table of the codes of each subject."""
    assert {code[:3] for code in CODES} == set(_SUBJECTS)
    return "\n".join(
        f"## {subject}\n\n| code | meaning |\n|---|---|\n"
        + "".join(
            f"| [{code.id}](diagnostics/{code.id}.md) | {code.title} |\n"
            for code in CODES.values()
            if code.id[:3] == digits
        )
        for digits, subject in _SUBJECTS.items()
    )


def pages() -> dict[str, str]:
    """Return the page of each code, as `evt explain` prints it."""
    return {f"diagnostics/{code}.md": page(code) for code in CODES}
