"""Links in Markdown files lead to files, and to headings, that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.markdown import anchors, targets

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for folder in (ROOT, *(ROOT / name for name in ("docs", "evt", "samples")))
    for path in folder.glob("*.md" if folder == ROOT else "**/*.md")
)


def broken(path: Path, text: str) -> list[str]:
    """Return the relative links of a document whose file or heading does not exist."""
    found = []
    for target in targets(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # another site: the tests need no network
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if not other.exists() or not other.is_relative_to(ROOT):
            found.append(target)
        elif anchor and other.suffix == ".md":
            content = text if other == path else other.read_text(encoding="utf-8")
            if anchor not in anchors(content):
                found.append(target)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path, path.read_text(encoding="utf-8")) == []


def test_all_documents_are_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "evt/diagnostics/pages/E0101.md",
    } <= names


TEXT = """# First & second: `code`

## Twice
## Twice

See [one](#first--second-code), [two](#twice-1), [file](README.md#install "title"), [folder](evt/ir), [site](https://x.org/y#z),
![picture](missing.svg) and [three][ref]. `sum[m](x)` and

    max[n](y)

```
[a](b)
```

[ref]: CHANGELOG.md#nowhere
"""


def test_the_check_sees() -> None:
    assert anchors(TEXT) == {"first--second-code", "twice", "twice-1"}
    assert broken(ROOT / "CONTRIBUTING.md", TEXT) == ["missing.svg", "CHANGELOG.md#nowhere"]
    assert broken(ROOT / "CONTRIBUTING.md", TEXT.replace("twice-1", "twice-2")) == [
        "#twice-2",
        "missing.svg",
        "CHANGELOG.md#nowhere",
    ]
    assert broken(ROOT / "CONTRIBUTING.md", "[out](../elsewhere.md)") == ["../elsewhere.md"]
