"""Diagnostics: their values, their text, and the page of each code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from evt.diagnostics import (
    CODES,
    MAX_DIAGNOSTICS,
    Diagnostic,
    Label,
    Misspellings,
    Source,
    Span,
    closest,
    first,
    page,
    render,
    render_all,
)
from evt.errors import EvtError, ProgramError
from evt.functions import TABLE
from evt.optimise import optimise
from tests.programs import typed

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "evt/diagnostics/pages"
#: Codes that the text of a program alone cannot raise: files, calls, builds, launches, bugs.
NOT_FROM_TEXT = {
    "E0105",
    "E0109",
    "E0305",
    "E0412",
    "E0902",
    *(code for code in CODES if "E0502" <= code < "E0900" or code >= "E1000"),
}


def codes(text: str) -> list[str]:
    try:
        typed(text)
    except EvtError as error:
        return [each.code for each in error.diagnostics]
    return []


def blocks(code: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(code), flags=re.M | re.S)


def diagnostic(text: str, start: int, end: int, **fields: str) -> Diagnostic:
    return Diagnostic("E0101", "the message", Span(start, end), source=Source(text), **fields)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert sorted(CODES) == sorted(path.stem for path in PAGES.glob("*")) == list(CODES)


@pytest.mark.parametrize("code", CODES)
def test_page(code: str) -> None:
    text = page(code)
    assert text.startswith(f"# {code}: {CODES[code].title}\n\n")
    assert max(map(len, text.splitlines())) <= 100
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    assert len(re.findall(r"[.:](?:\s|$)", prose)) >= 2
    wrong, fixed = blocks(code, "evt"), blocks(code, "evt fixed")
    if code in NOT_FROM_TEXT:
        assert not wrong
        assert not fixed
        assert re.search(r"^```(python|shell)$", text, flags=re.M)
        return
    assert len(wrong) == len(fixed) == 1
    assert code in codes(wrong[0])
    optimise(typed(fixed[0]), check=True)


@pytest.mark.parametrize("code", sorted(set(CODES) - NOT_FROM_TEXT - {"E0103"}))
def test_the_example_of_a_page_is_explained(code: str) -> None:
    """The example shows its code alone, with a place and something to do."""
    with pytest.raises(EvtError) as caught:
        typed(blocks(code, "evt")[0])
    for each in caught.value.diagnostics:
        if each.code == code:
            assert each.span is not None
            assert each.span.end > each.span.start
            assert each.help or each.code == "E0901"


@pytest.mark.parametrize("code", [code for code in CODES if code in NOT_FROM_TEXT])
def test_python_on_a_page_is_python(code: str) -> None:
    for block in blocks(code, "python"):
        compile(block, code, "exec")


def test_every_code_is_raised_somewhere() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "evt").rglob("*.py") if path.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []
    assert sorted(set(re.findall(r'"(E\d{4})"', text)) - set(CODES)) == []


def test_the_page_of_unknown_functions_lists_the_functions() -> None:
    assert [str(row) for row in TABLE.values() if f"`{row}`" not in page("E0201")] == []


def test_unknown_codes_are_our_mistake() -> None:
    with pytest.raises(KeyError):
        Diagnostic("E9999", "what")
    with pytest.raises(KeyError):
        page("E9999")


def test_text() -> None:
    text = "in bias: f32[n]\nD = relu(acc + bais)\n"
    start = text.index("bais")
    shown = render(diagnostic(text, start, start + 4, label="here", help="write `bias`"))
    assert shown.splitlines() == [
        "error[E0101]: the message",
        " --> <formula>:2:16",
        "  |",
        "2 | D = relu(acc + bais)",
        "  |                ^^^^ here",
        "  = help: write `bias`",
    ]


def test_notes_and_several() -> None:
    noted = Diagnostic("E0503", "no route", notes=("evt-3x: no", "evt-2x: no"))
    assert render(noted).splitlines() == [
        "error[E0503]: no route",
        "  = note: evt-3x: no",
        "  = note: evt-2x: no",
    ]
    assert render_all([noted, noted]) == f"{render(noted)}\n\n{render(noted)}"
    assert str(ProgramError([noted, noted])) == render_all([noted, noted])
    assert str(ProgramError(noted)).splitlines()[0] == "error[E0503]: no route"
    assert ProgramError(noted).diagnostics == (noted,)


def pointing(text: str, *words: str) -> Diagnostic:
    """Return a diagnostic at the first of these words, which has to do with the others."""
    first, *others = (Span(text.rindex(word), text.rindex(word) + len(word)) for word in words)
    secondary = tuple(Label(span, f"{span.start}") for span in others)
    return Diagnostic("E0101", "the message", first, "here", source=Source(text), secondary=secondary)


@pytest.mark.parametrize(
    ("text", "words", "lines"),
    [
        ("out D\nD = acc", ("acc", "out D"), ["1 | out D", "  | ----- 0", "2 | D = acc", "  |     ^^^ here"]),
        ("D[n] = acc", ("acc", "D"), ["1 | D[n] = acc", "  |        ^^^ here", "  | - 0"]),
        (
            "f\n\ng\nh\n",
            ("g", "h", "f"),
            ["1 | f", "  | - 0", "...", "3 | g", "  | ^ here", "4 | h", "  | - 5"],
        ),
        (
            "f" + "\n" * 9 + "g",
            ("f", "g"),
            [" 1 | f", "   | ^ here", "...", "10 | g", "   | - 10"],
        ),
    ],
)
def test_other_places(text: str, words: tuple[str, ...], lines: list[str]) -> None:
    """They stand in the order of the text, each line once; carets under the place itself, dashes under the others."""
    each = pointing(text, *words)
    assert render(each).splitlines()[3:] == lines
    found = json.loads(json.dumps(each.to_json()))["secondary"]
    assert [other["label"] for other in found] == [label.text for label in each.secondary]
    assert (found[0]["line"], found[0]["column"]) == Source(text).position(each.secondary[0].span.start)


def test_two_places_of_a_long_line_are_shown_apart() -> None:
    text = "x" * 500 + "@" + "y" * 500 + "#"
    lines = render(pointing(text, "@", "#")).splitlines()[3:]
    assert max(map(len, lines)) < 130
    for (line, marker), (sign, word) in zip((lines[:2], lines[2:]), (("^", "@"), ("-", "#")), strict=True):
        assert line[marker.index(sign)] == word


def test_colours_only_on_request() -> None:
    each = replace(diagnostic("D = acc", 4, 7, help="help"), secondary=(Label(Span(0, 1), "there"),))
    assert "\x1b" not in render(each)
    coloured = render(each, color=True)
    assert coloured != render(each)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render(each)


@pytest.mark.parametrize(
    ("text", "start", "end", "line", "marker"),
    [
        ("\tD\t= acc", 3, 4, " D = acc", "   ^"),  # a tab is one column
        ("D = acc\r\nE = x\r\n", 13, 14, "E = x", "    ^"),
        ("D = \x1b[31macc", 4, 5, "D = \N{REPLACEMENT CHARACTER}[31macc", "    ^"),
        ("D = 乘法 + acc", 4, 6, "D = 乘法 + acc", "    ^^^^"),  # wide characters take two columns
        ("D = 乘法 + acc", 9, 12, "D = 乘法 + acc", "           ^^^"),
        ("D = (acc\n+ C]", 4, 13, "D = (acc", "    ^^^^"),  # a span over lines: its first line
        ("D = acc", 7, 7, "D = acc", "       ^"),  # an empty span at the end
        ("", 0, 0, "", "^"),
    ],
)
def test_caret(text: str, start: int, end: int, line: str, marker: str) -> None:
    shown = render(diagnostic(text, start, end)).splitlines()
    assert shown[3].partition("| ")[2] == line
    assert shown[4].partition("| ")[2] == marker


@pytest.mark.parametrize("at", [0, 1, 49, 50, 5000, 9998, 9999])
def test_a_long_line_is_cut_around_the_caret(at: int) -> None:
    text = "x" * at + "@" + "x" * (9999 - at)
    lines = render(diagnostic(text, at, at + 1)).splitlines()
    assert max(map(len, lines)) < 130
    shown, marker = (line.partition("| ")[2] for line in lines[3:5])
    assert shown[marker.index("^")] == "@"


def test_nothing_is_too_long() -> None:
    each = Diagnostic("E0101", "`" + "x" * 100_000 + "`", label="y" * 1000, help="z" * 1000)
    assert len(render(each)) < 1500
    assert each.message.startswith("`xxx")
    assert each.message.endswith("xxx`")


def test_json() -> None:
    each = diagnostic("D = acc\nE = acc @ 2", 16, 17, label="here", help="help")
    assert json.loads(json.dumps(each.to_json())) == {
        "code": "E0101",
        "message": "the message",
        "label": "here",
        "help": "help",
        "notes": [],
        "file": "<formula>",
        "line": 2,
        "column": 9,
        "end_line": 2,
        "end_column": 10,
        "secondary": [],
    }
    assert "line" not in Diagnostic("E0101", "no place").to_json()


def test_the_first_mistakes_are_shown_and_the_rest_counted() -> None:
    many = [diagnostic("x" * 100, at, at + 1) for at in reversed(range(60))]
    shown = first(many + many)
    assert [each.span.start for each in shown if each.span] == list(range(MAX_DIAGNOSTICS))
    assert "first 20" in shown[-1].notes[0]
    assert first(many[-3:]) == many[-3:][::-1]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *[
            ("relu", "relu"),
            ("Relu", "relu"),
            ("rellu", "relu"),
            ("gelu_tan", "gelu_tanh"),
            ("sigmod", "sigmoid"),
        ],
        *[("zzz", None), ("", None), ("relu" * 100, None)],
    ],
)
def test_closest(word: str, expected: str | None) -> None:
    assert closest(word, TABLE) == expected


def test_closest_gives_up_among_very_many() -> None:
    assert closest("name1", [f"name{i}" for i in range(2, 1000)]) is None


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *[
            ("residul", "residual"),
            ("resdiual", "residual"),
            ("rezidual", "residual"),
            ("ressidual", "residual"),
        ],
        *[("residual", None), ("residuals", None), ("xresidual", None), ("residua", None), ("esidual", None)],
        *[("row_scale", None), ("col_scale", None), ("scale", None), ("scale_b", None), ("x" * 1000, None)],
        *[("bia", None), ("bais", "bias"), ("", None), ("row_scael", None), ("row_sclae", "row_scale")],
        *[("x2_scale", None), ("x1_sacle", "x1_scale"), ("in_b_proj", None), ("w12", None), ("raw_scale", None)],
    ],
)
def test_misspellings(word: str, expected: str | None) -> None:
    known = Misspellings(
        ["residual", "row_scale", "scaled", "scale_a", "bias", "x1_scale", "in_a_proj", "w112", "y" * 1000]
    )
    assert known.find(word) == expected
