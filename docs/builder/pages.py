"""The pages of the site: the files of ``docs``, documents of the root, and pages that are generated from the code."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from docs.builder import api, commands, diagnostics, diagram, gallery, language, notebook_page

ROOT = Path(__file__).parents[2]
#: Documents of the root, by their places in the repository.
_FROM_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: The generated parts of pages.
_PARTS: Mapping[str, Callable[[], str]] = {
    "functions": language.functions,
    "types": language.types,
    "grammar": language.grammar,
    "commands": commands.commands,
    "diagnostics": diagnostics.index,
    "gallery": gallery.index,
}
_PART = re.compile(r"<!-- generated: (\w+) -->")
_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<file>[\w./-]+?)(?P<anchor>#[\w-]+)?\)")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

#: Code, links, headings, and the names that become links.
_CROSS = re.compile(
    r"`samples/(?P<sample>\w+)\.evt`|`[^`]+`|\[[^\]]*\]\([^)]*\)|^#.*$|\b(?P<code>E(?!0000)\d{4})\b", re.MULTILINE
)
_CHART = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)

#: Pages that list the pages of a folder.
_FOLDERS = {"decisions/README.md": "decisions", "diagnostics.md": "diagnostics", "gallery.md": "gallery"}
#: The navigation: a caption, and pages.
NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "Start": ("tutorial", "notebook", "editors", "playground", "troubleshooting"),
    "How to": (
        *("guides/fuse-a-model", "guides/ship-an-extension", "guides/quantise", "guides/train", "guides/tune"),
        *("guides/mix-experts", "guides/normalise", "guides/debug-numerics", "guides/add-a-function"),
    ),
    "Topics": (
        *("programs", "convolutions", "models", "tuning", "numerics", "deployment", "packs", "layouts", "requirements"),
        *("benchmarks", "gallery"),
    ),
    "Reference": ("language", "functions", "grammar", "cli", "api/index", "diagnostics", "glossary"),
    "Inside": ("architecture", "decisions/README", "extending", "first-contribution", "contributing", "changelog"),
}


def places() -> dict[str, str]:
    """Return the place in the site of each document, by its place in the repository."""
    folder = ROOT / "docs"
    found = [path for kind in ("*.md", "*.ipynb") for path in folder.rglob(kind)]
    return {
        str(path.relative_to(ROOT)): str(path.relative_to(folder).with_suffix(".md")) for path in found
    } | _FROM_ROOT


def pages(*, playground: bool = False) -> dict[str, str]:
    """Return the text of every page, by its place in the site. ``playground`` says that the playground is beside it."""
    found = {site: _page(path, site) for path, site in places().items()}
    found["index.md"] += _contents()
    if playground:
        title, rest = found["playground.md"].split("\n", 1)
        found["playground.md"] = f'{title}\n\n<a href="playground/index.html">Open the playground</a>\n{rest}'
    crossed = {site: _outside_code(text, partial(_crossed, site=site)) for site, text in diagnostics.pages().items()}
    found |= {**crossed, **gallery.pages(playground=playground), **api.pages()}
    for page, folder in _FOLDERS.items():
        names = [
            f"/{name.removesuffix('.md')}" for name in sorted(found) if name.startswith(f"{folder}/") and name != page
        ]
        found[page] += _tree(names)
    return found


def pictures() -> dict[str, str]:
    """Return the text of every SVG, by its place in the site."""
    found = {str(path.relative_to(ROOT / "docs")): path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.svg")}
    charts = {_chart(text): diagram.flowchart(text) for text in _CHART.findall(_architecture())}
    return {**found, **charts, **gallery.pictures()}


def _architecture() -> str:
    return (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def _chart(text: str) -> str:
    """Return the file of a chart in the site."""
    return f"images/chart-{zlib.crc32(text.encode()):08x}.svg"


def _page(path: str, site: str) -> str:
    """Return a document as a page: its generated parts filled in, its links made links within the site."""
    text = (ROOT / path).read_text(encoding="utf-8")
    text = notebook_page.page(text) if path.endswith(".ipynb") else text
    text = _PART.sub(lambda found: _PARTS[found[1]](), text)
    text = _CHART.sub(lambda found: f"![The stages and their data]({_chart(found[1])})", text)
    return _outside_code(text, lambda piece: _crossed(_LINK.sub(lambda found: _link(found, path, site), piece), site))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text whose prose is changed, and whose fenced blocks are not."""
    first, *others = map(change, _FENCE.split(text))
    return first + "".join(fence + piece for fence, piece in zip(_FENCE.findall(text), others, strict=True))


def _link(found: re.Match[str], path: str, site: str) -> str:
    """Return a link between documents as a link between pages; a link to another file becomes its name."""
    target = os.path.normpath(os.path.join(os.path.dirname(path), found["file"]))
    pages = places()
    if target in pages:
        place = pages[target]
    elif target.endswith(".svg") or not (ROOT / target).exists():
        place = os.path.relpath(target, "docs")
    else:
        return found["text"].strip("[]")
    return f"{found['text']}({os.path.relpath(place, os.path.dirname(site) or '.')}{found['anchor'] or ''})"


def _contents() -> str:
    """Return the navigation."""
    return "".join(_tree(names, caption) for caption, names in NAVIGATION.items())


def _crossed(text: str, site: str) -> str:
    """Return prose with links from codes of diagnostics and names of samples to their pages."""

    def crossed(found: re.Match[str]) -> str:
        name = f"diagnostics/{found['code']}.md" if found["code"] else f"gallery/{found['sample']}.md"
        return (
            f"[{found[0]}]({os.path.relpath(name, os.path.dirname(site) or '.')})"
            if found["code"] or found["sample"]
            else found[0]
        )

    return _CROSS.sub(crossed, text)


def _tree(names: Iterable[str], caption: str = "") -> str:
    """Return a part of the navigation."""
    return (
        "\n```{toctree}\n:hidden:\n"
        + (f":caption: {caption}\n" if caption else "")
        + "\n"
        + "\n".join(names)
        + "\n```\n"
    )
