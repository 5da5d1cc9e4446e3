"""The formatter: idempotent, keeps meaning and comments, and does not change the samples."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from evt.errors import ProgramError
from evt.language import format_text, format_tree, parse
from evt.language.parse import split
from tests.programs.generator import generate
from tests.support.command_line import document, run

SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.evt"))


def comments(text: str) -> list[str]:
    return [each.rstrip() for each in re.findall("#[^\n]*", text)]


def scramble(text: str, seed: int) -> str:
    """Return the program with other white space, statement ends and comments, and the same tokens."""
    draw = random.Random(seed)

    def blank(depth: int, least: str = "") -> str:
        wild = ("\n", "\n\n  ", "\t", f"  # {draw.randrange(9)}; (\n", "#\n #x\r\n", ";")
        return draw.choice((least, least, " ", "   ", *(wild if depth else ())))

    pieces = [blank(1)]
    for statement in split(parse(text).source):
        depth, before = 0, ""
        for token in statement:
            depth -= token in (")", "]")
            joined = bool(re.search(r"\w$", before) and re.match(r"[\w.]", token)) or before + token in ("**", "!=")
            pieces += [blank(depth or before == ",", " " if joined else ""), token]
            depth += token in ("(", "[")
            before = str(token)
        pieces += [draw.choice((";", " ; ", "\n", "\n\n\n", " # end\n", "\r\n", "\n# alone\n\n")), blank(1)]
    return "".join(pieces)


def verify(text: str) -> str:
    """Return the formatted text, after the checks of its properties."""
    formatted = format_text(text)
    assert format_tree(parse(formatted)) == format_tree(parse(text))
    assert comments(formatted) == comments(text)
    assert format_text(formatted) == formatted
    assert formatted.endswith("\n")
    for pattern in (r"[ \t]\n", r"\n\n\n", r"\A\n", r"\n\n\Z", r"\t", r"\r"):
        assert re.search(pattern, re.sub("#[^\n]*", "#", formatted)) is None
    return formatted


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_formatted(path: Path) -> None:
    text = path.read_text()
    assert verify(text) == text
    assert verify(scramble(re.sub("#[^\n]*", "", text), 1))


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 1000), marks=pytest.mark.slow)])
def test_random_programs_keep_their_meaning_and_comments(seeds: range) -> None:
    for seed in seeds:
        text = generate(seed).text
        tidy = verify(text)
        verify(scramble(text, seed))
        if "#" not in text:
            assert re.sub(r"\s+", " ", verify(text.replace("\n", ";"))) == re.sub(r"\s+", " ", tidy)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D=acc", "D = acc\n"),
        (
            "z=-acc**-2*-x- -1;D[m,n]=!(z<1)&&z>=2||z!=3",
            "z       = -acc**-2*-x - -1\nD[m, n] = !(z < 1) && z >= 2 || z != 3\n",
        ),
        ("D = f'(acc , a = -1)+sum [n] (x)", "D = f'(acc, a=-1) + sum[n](x)\n"),
        ("in a:f32[]=+1,b\nout D", "in  a: f32[] = +1, b\nout D\n"),
        ("def f(x,y)=x/y\nD=f(acc,2)", "def f(x, y) = x/y\nD = f(acc, 2)\n"),
        ("D=max(\nacc,# c\n\n# d\n0)", "D = max(\n    acc,                               # c\n    # d\n    0)\n"),
        ("D=f(g(\nacc\n),\n1\n)", "D = f(g(\n        acc\n    ),\n    1\n)\n"),
        ("in a,\nb\nD=acc", "in  a,\n    b\nD = acc\n"),
        ("a=acc#1\n\nlong=a#2\nD=long#3", f"a = acc{'':32}# 1\n\nlong = a{'':31}# 2\nD    = long{'':28}# 3\n"),
        ("#a\n\n\n\nD=acc\n\n#b", "#a\n\nD = acc\n\n#b\n"),
    ],
)
def test_layout(text: str, expected: str) -> None:
    assert verify(text) == re.sub("# ([123])", r"#\1", expected)


def test_a_comment_after_long_code_stands_two_blanks_after_it() -> None:
    text = f"D = {' + '.join(['acc'] * 12)}#x\n"
    assert verify(text) == text.replace("#", "  #")


def test_deep_programs() -> None:
    text = f"D = {'(' * 3000}acc{')' * 3000}"
    assert verify(text) == text + "\n"


def test_syntax_errors_are_reported() -> None:
    with pytest.raises(ProgramError) as caught:
        format_text("D = (acc\nE = relu(")
    assert caught.value.diagnostics[0].code == "E0104"


def test_files_are_formatted_in_place(tmp_path: Path) -> None:
    messy, tidy, wrong = (tmp_path / f"{name}.evt" for name in ("messy", "tidy", "wrong"))
    messy.write_text("D=acc # c")
    tidy.write_text("D = acc\n")
    wrong.write_text("D = = acc")
    messy.chmod(0o640)
    link = tmp_path / "link.evt"
    link.symlink_to(messy)
    inode = tidy.stat().st_ino
    names = [str(link), str(tidy), str(wrong)]

    found = run("fmt", "--check", *names)
    assert found.exit_code == 1
    assert found.stdout == f"{link}: would change\n"
    assert "error[E0101]" in found.stderr
    found = run("fmt", "--diff", *names[:2])
    assert found.exit_code == 0
    assert "-D=acc # c\n" in found.stdout
    assert f"+D = acc{'':32}# c\n" in found.stdout
    assert messy.read_text() == "D=acc # c"

    found = run("fmt", *names)
    assert (found.exit_code, found.stdout) == (1, "")
    assert messy.read_text() == f"D = acc{'':32}# c\n"
    assert messy.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert tidy.stat().st_ino == inode  # not written
    assert wrong.read_text() == "D = = acc"
    assert sorted(tmp_path.iterdir()) == sorted([messy, tidy, wrong, link])


def test_a_formula_and_standard_input_are_printed() -> None:
    assert run("fmt", "D=acc;E=D").stdout == "D = acc\nE = D\n"
    assert run("fmt", "-", stdin="D=acc").stdout == "D = acc\n"
    found = run("fmt", "--json", "D=acc", "D = (")
    assert found.exit_code == 1
    read = document(found)
    assert [each["changed"] for each in read["programs"]] == [True, False]
    assert read["programs"][0]["text"] == "D = acc\n"
    assert [each["code"] for each in read["diagnostics"]] == ["E0104"]


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.evt"
    path.write_text("D=acc")
    tmp_path.chmod(0o555)
    try:
        found = run("fmt", str(path))
        if found.exit_code:  # root may write everywhere
            assert "cannot write" in found.stderr
            assert "PROGRAM" in found.stderr
    finally:
        tmp_path.chmod(0o755)
