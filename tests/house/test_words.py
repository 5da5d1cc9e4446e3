"""Prose is plain English: docstrings, comments, messages, pages, templates and headers.

Subject, verb, object; present tense; at most 25 words a sentence; the field's terms. The lists below hold phrases that
readers could not parse, and sentence openings that invert a sentence.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
#: The longest sentence, in words.
LONGEST = 25
#: Commas that make a list of a clause, which may be longer.
MANY = 3
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
    docstrings: set[int] = set()
    inside: set[int] = set()
    strings: list[ast.Constant | ast.JoinedStr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if text := ast.get_docstring(node):
                docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield Passage(f"{name}:{node.body[0].lineno}", "docstring", text)
        elif isinstance(node, ast.JoinedStr):
            strings.append(node)
            inside |= {id(each) for each in node.values}
            parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            yield Passage(f"{name}:{node.lineno}", "string", "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node)
            if id(node) not in docstrings | inside:
                yield Passage(f"{name}:{node.lineno}", "string", node.value)
    yield from _comments(source, name, strings)


def _comments(source: str, name: str, strings: Iterable[ast.Constant | ast.JoinedStr]) -> Iterator[Passage]:
    """Yield the comments, which are faster to find outside of strings than by tokens."""
    within: dict[int, list[tuple[int, int]]] = {}
    for each in strings:
        last = each.end_lineno or each.lineno
        for line in range(each.lineno, last + 1):
            first = each.col_offset if line == each.lineno else 0
            within.setdefault(line, []).append((first, (each.end_col_offset or 0) if line == last else sys.maxsize))
    start, before, column, text = 0, 0, -1, ""
    for line, code in enumerate(source.splitlines(), 1):
        marks = (found.start() for found in re.finditer("#", code)) if "#" in code else ()
        spans = within.get(line, ()) if code.isascii() else ()
        at = next((at for at in marks if not any(first <= at < last for first, last in spans)), -1)
        if at < 0 or re.match(r"# (type:|noqa|fmt:)", code[at:]) or (not code.isascii() and line in within):
            continue
        if text and (line - 1 != before or at != column):
            yield Passage(f"{name}:{start}", "comment", text)
            text = ""
        start = start if text else line
        before, column, text = line, at, f"{text} {code[at:].lstrip('#: ')}".strip()
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


#: Emitted files (.cu) have the text of templates and headers, which are read themselves.
READERS: dict[str, Callable[[str, str], Iterator[Passage]]] = {
    ".py": python_prose,
    ".md": paragraphs,
    **dict.fromkeys((".hpp", ".h", ".cpp", ".jinja", ".lark", ".c"), slashes),
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
    sentences = re.split(r"(?<=[.!?:])\)?\s+|\n\n| \| ", text)
    for number, sentence in enumerate(sentences):
        words = len(_WORD.findall(sentence))
        if (opening := _OPENING.match(sentence)) and not sentence.endswith("?"):
            yield f"a sentence begins with `{opening[0]}`"
        if words > LONGEST and passage.kind == "docstring" and number == 0:
            yield f"the first sentence has {words} words"
        elif passage.kind != "string":
            yield from (
                f"a clause has {count} words" for count in map(_length, sentence.split("; ")) if count > LONGEST
            )


def _length(clause: str) -> int:
    """Return the number of words of a clause outside of parentheses; a list of many items counts as short."""
    plain = re.sub(r"\([^()]*\)", "", clause)
    return 0 if plain.count(",") >= MANY or "===" in plain else len(_WORD.findall(plain))


def _without_code(text: str) -> str:
    """Return a text with a word in place of each piece of code."""
    text = re.sub(r"(?m)^(?: {4,}|>>>|::).*$", "", text)
    text = re.sub(r"(?:(?:``.+?``|`[^`]+`)[ ]?)+", "code ", text, flags=re.DOTALL)
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
def rooms() -> dict[str, list[Path]]:
    """Return the files of each room."""
    found: dict[str, list[Path]] = {}
    for path in files():
        if path.is_file() and path.name != Path(__file__).name and "__pycache__" not in path.parts:
            found.setdefault(room(path), []).append(path)
    return found


def found_faults(name: str) -> list[str]:
    """Return the faults of a room, with their places."""
    passages = (
        passage
        for path in rooms()[name]
        for passage in READERS[path.suffix](path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    )
    return [f"{passage.place}: {fault}" for passage in passages for fault in faults(passage)]


@pytest.mark.parametrize("name", sorted(rooms()))
def test_a_room_is_written_plainly(name: str) -> None:
    assert found_faults(name) == []


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
