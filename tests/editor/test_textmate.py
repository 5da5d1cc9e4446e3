"""The TextMate grammar against the parser's grammar: every terminal and every word of the language."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import lark
import pytest

from evt import resources
from evt.diagnostics import Source
from evt.editor.words import FORMS, KEYWORDS, MODES, NAMES, REDUCING
from evt.functions import TABLE
from evt.ir.dtype import BY_NAME
from evt.ir.lower import OPERATIONS
from evt.ir.lower.special import SPECIAL_FORMS
from evt.ir.node import PLACES, REDUCTIONS
from evt.language.parse import lex
from tests.programs.generator import generate
from tests.support.grammar import EVERYTHING

ROOT = Path(__file__).parents[2]
FILE = ROOT / "editors" / "vscode" / "syntaxes" / "evt.tmLanguage.json"
GRAMMAR = json.loads(FILE.read_text())
PATTERNS = [(each["name"], re.compile(each["match"])) for each in GRAMMAR["patterns"]]
#: The scopes of each terminal. An ignored or stray character has none.
SCOPES = {
    "NAME": ("support", "entity", "constant.language", "variable", "keyword.other.operation"),
    "NUMBER": ("constant.numeric",),
    "COMMENT": ("comment",),
    **dict.fromkeys(("IN", "OUT", "DEF"), ("keyword.control",)),
    **dict.fromkeys(("COMPARE", "SUM", "POWER", "PRODUCT", "MODULO", "PRIME", "QMARK", "BANG"), ("keyword.operator",)),
    **dict.fromkeys(("||", "&&"), ("keyword.operator.logical",)),
    "EQUAL": ("keyword.operator.assignment",),
    **dict.fromkeys(("COMMA", "COLON"), ("punctuation.separator",)),
    **dict.fromkeys(("LPAR", "RPAR", "LSQB", "RSQB"), ("punctuation.bracket",)),
}
UNCOLOURED = {"BLANK", "INVALID", "NEWLINE"}


def coloured(text: str) -> dict[tuple[int, int], str]:
    """Return the scope of each coloured place, as an editor's engine finds it: line by line, the first match first."""
    found, start = {}, 0
    for line in text.split("\n"):
        place = 0
        while place < len(line):
            searched = ((scope, pattern.search(line, place)) for scope, pattern in PATTERNS)
            matches = [(scope, match) for scope, match in searched if match]
            if not matches:
                break
            scope, match = min(matches, key=lambda each: each[1].start())
            inner = match.start() + len(match[0]) - len(match[0].lstrip())
            found[start + inner, start + match.end()] = scope
            place = match.end()
        start += len(line) + 1
    return found


def verify(text: str) -> None:
    scopes = coloured(text)
    for token in lex(Source(text)):
        if token.type == "NEWLINE":
            continue
        kind = str(token) if token in ("||", "&&") else token.type
        scope = scopes[token.start_pos or 0, token.end_pos or 0]
        assert scope.startswith(SCOPES[kind]), (str(token), scope)


def test_every_terminal_is_coloured() -> None:
    terminals = lark.Lark(resources.text("grammar", "evt.lark"), start="statement", parser="lalr").terminals
    names = {each.pattern.value if each.pattern.value in ("||", "&&") else each.name for each in terminals}
    assert names - UNCOLOURED == set(SCOPES)


def test_the_file_is_current() -> None:
    command = [sys.executable, "-m", "evt.editor.textmate"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert made == FILE.read_text(), "python -m evt.editor.textmate > editors/vscode/syntaxes/evt.tmLanguage.json"


@pytest.mark.parametrize("path", sorted((ROOT / "samples").glob("*.evt")), ids=lambda path: path.stem)
def test_samples(path: Path) -> None:
    verify(path.read_text())


def test_random_programs_and_every_rule() -> None:
    verify(EVERYTHING)
    for seed in range(200):
        verify(generate(seed).text)


def test_every_word_has_its_colour() -> None:
    expected = {
        "keyword.control": ([f"{word} x" for word in KEYWORDS]),
        "support.type": list(BY_NAME),
        "support.function": [f"{name}(" for name in (*TABLE.names(), *FORMS)] + [f"{name}[m, n](" for name in REDUCING],
        "keyword.other.operation": [f"{name}(A" for name in OPERATIONS],
        "variable.language": [name for name in NAMES if name != "inf"],
        "constant.language": ["inf"],
        "entity.name.function": ["mine(", "mine''("],
        "variable.other": ["x", "relu", "sum", "total_1", *(mode for mode in MODES)],
    }
    for scope, words in expected.items():
        for word in words:
            first = min(coloured(word).items())
            assert first[1].startswith(scope), (word, first)


def test_every_word_of_the_language_has_a_meaning() -> None:
    assert {*SPECIAL_FORMS, *REDUCTIONS, *PLACES} == set(FORMS)
    assert {*REDUCTIONS, *PLACES, "mean", "var"} == REDUCING
