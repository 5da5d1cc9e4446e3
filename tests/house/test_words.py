"""Prose is plain English: docstrings, comments, messages, pages, templates and headers.

Subject, verb, object; present tense; at most 25 words a sentence; the field's terms. The lists below hold phrases that
readers could not parse, and sentence openings that invert a sentence.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
#: The longest sentence, in words.
LONGEST = 25
#: Phrases that are out, as regular expressions.
PHRASES = (
    *(r"so many", r"as many", r"so much", r"so few", r"(one )?of ours", r"in vain", r"as it does"),
    *(r"each for itself", r"the same of", r"of which", r"those of", r"those that", r"of those", r"lest", r"surely"),
    *(r"of (its|their|his) own", r"at its most", r"has to itself", r"for one(?=[,;])", r"that which", r"whatever"),
    *(r"save for", r"need not", r"such as are", r"and its like", r"and their like", r"if need be"),
    *(r"(None|False) where", r"where that is (so|not so)", r"as (they|it) (is|are|was|were)(?=[.,;])"),
)
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
#: Words that do not begin a sentence.
_OPENING = re.compile(
    r"(?:Of|Where|Those|What|Whatever|How (?:many|much|long|far|often)|Why|That which|With [^,.]* as)\b"
)
#: Rooms that are still to be rewritten; this list only shrinks.
LEFT = {"tests", "codegen/include", "codegen/templates", "evt/emission", "evt/fx", "evt/plan", "evt/runtime"}
#: Pronouns of things: "what" is fine in questions alone.
_PRONOUN = re.compile(r"\bwhat\b(?![^.]*\?)", re.IGNORECASE)
_WORD = re.compile(r"[\w'`*./\[\](){}:=<>+-]*\w[\w'`*./\[\](){}:=<>+-]*")


class Passage(NamedTuple):
    """A docstring, comment, string or paragraph, and its place."""

    place: str
    kind: str
    text: str


def python_prose(source: str, name: str) -> Iterator[Passage]:
    """Yield the docstrings, comments and strings of a module; lines of one comment are one passage."""
    docstrings = set()
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            docstrings.add(id(first.value))
            yield Passage(f"{name}:{first.lineno}", "docstring", ast.get_docstring(node) or "")
        elif isinstance(node, ast.JoinedStr):
            inside |= {id(each) for each in node.values}
            parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            yield Passage(f"{name}:{node.lineno}", "string", "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inside:
            yield Passage(f"{name}:{node.lineno}", "string", node.value)
    yield from _comments(source, name)


def _comments(source: str, name: str) -> Iterator[Passage]:
    lines: dict[int, tuple[int, str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (type:|noqa|fmt:)", token.string):
            lines[token.start[0]] = (token.start[1], token.string.lstrip("#: "))
    start, column, text = 0, -1, ""
    for line, (at, comment) in lines.items():
        if text and (line - 1 not in lines or at != column):
            yield Passage(f"{name}:{start}", "comment", text)
            text = ""
        if not text:
            start = line
        column, text = at, f"{text} {comment}".strip()
    if text:
        yield Passage(f"{name}:{start}", "comment", text)


def paragraphs(text: str, name: str) -> Iterator[Passage]:
    """Yield the paragraphs, list items and table rows of a Markdown text, without its code."""
    fenced, start, lines = False, 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        begins = fence or fenced or not line.strip() or re.match(r"\s*([-*#|]|\d+\.) ?", line)
        if begins and lines:
            yield Passage(f"{name}:{start}", "text", " ".join(lines))
            lines = []
        fenced ^= fence
        if not (fence or fenced) and line.strip():
            start = start if lines else number
            lines.append(line.strip().lstrip("-*#| "))


def marked(text: str, name: str, mark: str) -> Iterator[Passage]:
    """Yield the comments of a text: runs of lines with the mark, and Jinja's comments."""
    start, lines = 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        found = re.search(rf"(?:^|\s){mark}(?!!)\s?(.*)|{{#-?(.*?)-?#}}", line)
        words = (found[1] or found[2] or "").strip() if found else ""
        if lines and (not words or (found and line[: found.start()].strip())):
            yield Passage(f"{name}:{start}", "comment", " ".join(lines))
            lines = []
        if words:
            start = start if lines else number
            lines.append(words)


def slashes(text: str, name: str) -> Iterator[Passage]:
    """Yield the comments of C++, Jinja and Lark."""
    return marked(text, name, "//")


def hashes(text: str, name: str) -> Iterator[Passage]:
    """Yield the comments of programs and of make."""
    return marked(text, name, "#")


READERS: dict[str, Callable[[str, str], Iterator[Passage]]] = {
    ".py": python_prose,
    ".md": paragraphs,
    **dict.fromkeys((".hpp", ".h", ".cpp", ".cu", ".jinja", ".lark", ".c"), slashes),
    **dict.fromkeys((".evt", ".toml", "", ".yml"), hashes),
}


def faults(passage: Passage) -> Iterator[str]:
    """Yield the rules that a passage breaks."""
    text = _without_code(passage.text)
    if passage.kind == "string" and len(text.split()) < 4:
        return
    yield from (f"`{found[0]}`" for found in _PHRASE.finditer(text))
    if passage.kind != "string":
        yield from ("`what` for a thing" for _ in _PRONOUN.finditer(text))
    sentences = re.split(r"(?<=[.!?:])\)?\s+|\n\n", text)
    for number, sentence in enumerate(sentences):
        words = len(_WORD.findall(sentence))
        if (opening := _OPENING.match(sentence)) and not sentence.endswith("?"):
            yield f"a sentence begins with `{opening[0]}`"
        if words > LONGEST and passage.kind == "docstring" and number == 0:
            yield f"the first sentence has {words} words"


def _without_code(text: str) -> str:
    """Return a text with a word in place of each piece of code."""
    text = re.sub(r"(?m)^(?: {2,}|>>>|::).*$", "", text)
    text = re.sub(r"``.+?``|`[^`]+`", "code", text, flags=re.DOTALL)
    return re.sub(r"[ \t]*\n(?!\n)[ \t]*", " ", text)


def files() -> list[Path]:
    """Return the files that hold prose."""
    folders = ("evt", "codegen", "grammar", "samples", "tests", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in READERS]
    return sorted([*found, *ROOT.glob("*.md"), ROOT / "Makefile"])


def room(path: Path) -> str:
    """Return the room of a file: ``evt/ir``, ``codegen/include``, ``tests``, ``docs``."""
    parts = path.relative_to(ROOT).parts
    if path.suffix == ".md" and parts[0] != "evt":
        return "docs"
    return parts[0] if parts[0] not in ("evt", "codegen") or len(parts) < 3 else "/".join(parts[:2])


@cache
def found_faults() -> Mapping[str, list[str]]:
    """Return the faults of each room, with their places."""
    rooms: dict[str, list[str]] = {}
    for path in files():
        if path.name == Path(__file__).name or not path.is_file() or "__pycache__" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for passage in READERS[path.suffix](text, str(path.relative_to(ROOT))):
            for fault in faults(passage):
                rooms.setdefault(room(path), []).append(f"{passage.place}: {fault}")
    return rooms


@pytest.mark.parametrize("name", sorted({room(path) for path in files()}))
def test_a_room_is_written_plainly(name: str) -> None:
    found = found_faults().get(name, [])
    assert name in LEFT or found == []


#: Texts, each with one fault.
FAULTY = {
    '"""Return what a call takes."""': "`what` for a thing",
    '"""Return the sizes, so many as there are."""': "`so many`",
    "# Of each row, the largest.": "a sentence begins with `Of`",
    "x = 1  # the tile is wide. What is left is copied": "`what` for a thing",
    "# one line of a comment that asks for as\n# many elements": "`as many`",
    "raise ValueError(f'{x} has as many rows')": "`as many`",
    '"""Return ' + "one " * 25 + '."""': "the first sentence has 26 words",
}


@pytest.mark.parametrize("source", FAULTY)
def test_the_check_sees(source: str) -> None:
    found = {fault for passage in python_prose(source, "x.py") for fault in faults(passage)}
    assert FAULTY[source] in found


def test_the_check_passes_plain_english() -> None:
    docstring = '"""Return the tile of a call.\n\n    code = what(of_ours)\n\nRead it.\n"""'
    source = f"{docstring}\n# Copy ``of ours``. Is it what we want?\n"
    assert [fault for passage in python_prose(source, "x.py") for fault in faults(passage)] == []
    assert [passage.text for passage in marked("int x;  // one\n        // two\nint y;\n{# three #}\n", "x", "//")] == [
        "one two",
        "three",
    ]
    text = "# Title\n\nOne\ntwo.\n- three\n```\nof ours\n```\n"
    assert [passage.text for passage in paragraphs(text, "x.md")] == ["Title", "One two.", "three"]
