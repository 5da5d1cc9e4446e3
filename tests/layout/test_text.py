"""Texts of layouts, their drawings, and ``evt layout``: also of arguments that no one should pass."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from evt.cli import main
from evt.layout import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    Tiler,
    compose,
    draw_svg,
    draw_text,
    grid,
    parse,
    parse_tiler,
)
from tests.support.layouts import questions, random_composed, random_layout, random_swizzle, random_tiler

QUESTIONS = questions(200)
ALPHABET = ("(", ")", ":", ",", "<", ">", "o", "Sw", "8", "2", "1", "-", "_", " ")
HOSTILE = {
    "empty": "",
    "blank": " \n\t",
    "open": "(",
    "closed": ")",
    "nothing inside": "()",
    "nothing between": "(4,,4):(1,2,3)",
    "a missing stride": "(8,8):",
    "a missing shape": ":(8,1)",
    "two strides": "8:1:1",
    "unbalanced": "((8,8):(8,1)",
    "the wrong bracket": "(8,8):(8,1>",
    "more after the end": "(8,8):(8,1) 4",
    "other forms": "(8,8):(8,(1,2))",
    "mixed parts": "(4,(2,2):(1,2))",
    "zero": "(8,0):(1,8)",
    "negative": "(8,-8):(1,8)",
    "a fraction": "8.5:1",
    "a word": "eight:one",
    "an underscore": "_:_",
    "wide digits": "\N{FULLWIDTH DIGIT EIGHT}:\N{FULLWIDTH DIGIT ONE}",
    "indic digits": "\N{ARABIC-INDIC DIGIT FOUR}:1",
    "an emoji": "(8,\N{PILE OF POO}):(1,8)",
    "a control character": "(8,8)\x00:(8,1)",
    "a lone surrogate": "(8\ud800,8):(8,1)",
    "many digits": "9" * 100_000 + ":1",
    "a stride of 10**30": f"4:{10**30}",
    "an extent of 10**30": f"{10**30}:1",
    "deep": "(" * 10_000 + "4" + ")" * 10_000,
    "deep and open": "(" * 10_000,
    "just too deep": "(" * 33 + "4" + ")" * 33,
    "wide": f"({','.join('2' for _ in range(4000))})",
    "long": "(" + "8," * 10**6 + "8)",
    "too many extents": f"({','.join('2' for _ in range(129))})",
    "half a swizzle": "Sw<3,3",
    "a swizzle without its layout": "Sw<3,3,3> o 0 o",
    "a swizzle without an offset": "Sw<3,3,3> o (8,8):(8,1)",
    "a swizzle that overlaps itself": "Sw<3,3,2> o 0 o 8:1",
    "a huge swizzle": "Sw<1000000,3,1000000> o 0 o 8:1",
    "an option": "<4,4>",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["layout", *arguments], prog_name="evt")


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


# Texts


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("(5,2):(16,80)", Layout((5, 2), (16, 80))),
        ("((5,1):(16,4),(2,2):(80,4))", Layout(((5, 1), (2, 2)), ((16, 4), (80, 4)))),
        ("((4:1,2:4),(2:8,(2,2):(16,-3)))", Layout(((4, 2), (2, (2, 2))), ((1, 4), (8, (16, -3))))),
        (" ( 8 , 8 ) : ( 8 , 1 ) ", Layout((8, 8), (8, 1))),
        ("(_8,_8):(_8,_1)", Layout((8, 8), (8, 1))),
        ("(_4,8):(_-1,4)", Layout((4, 8), (-1, 4))),
        (f"{'(' * 32}4{')' * 32}", None),
        ("(8,(2,4))", Layout((8, (2, 4)), (1, (8, 16)))),
        ("8", Layout(8, 1)),
        ("(8)", Layout((8,), (1,))),
        ("(8:2)", Layout((8,), (2,))),
        ("4:0", Layout(4, 0)),
        (f"{2**62}:1", Layout(2**62, 1)),
    ],
)
def test_layouts(text: str, layout: Layout | None) -> None:
    found = Layout.parse(text)
    assert layout in (found, None)
    assert Layout.parse(str(found)) == Layout.parse(found.concatenated()) == found


def test_swizzles() -> None:
    assert parse("Sw<3,4,3>") == Swizzle(3, 4, 3)
    text = "Sw<3,3,3> o 0 o (8,40):(40,1)"
    assert parse(text) == compose(Swizzle(3, 3, 3), Layout((8, 40), (40, 1)))
    assert str(parse(text)) == text
    assert parse("Sw<1,0,-2> o -5 o 8") == ComposedLayout(Swizzle(1, 0, -2), -5, Layout(8))
    assert parse("Sw<3,3,3>o 0o(_8,_8):(_8,_1)") == compose(Swizzle(3, 3, 3), Layout((8, 8), (8, 1)))
    with pytest.raises(LayoutError, match="E0671"):
        Layout.parse(text)


def test_tilers() -> None:
    assert parse_tiler("4") == 4
    assert parse_tiler("(2,(4,8))") == (2, (4, 8))
    assert parse_tiler("4:2") == Layout(4, 2)
    assert parse_tiler("(2:1,4:8)") == Layout((2, 4), (1, 8))
    assert parse_tiler("<2:1,<4,8:2>>") == (Layout(2, 1), (4, Layout(8, 2)))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts(name: str) -> None:
    started = time.perf_counter()
    for reader in (parse, Layout.parse):
        with pytest.raises(LayoutError) as caught:
            reader(HOSTILE[name])
        text = str(caught.value)
        assert re.search(r"error\[E067[12]\]", text)
        assert len(text) < 1500
    assert time.perf_counter() - started < 2


def test_random_texts_are_layouts_or_refused() -> None:
    rng = random.Random(1)
    for _ in range(questions(3000)):
        text = "".join(rng.choices(ALPHABET, k=rng.randrange(1, 16)))
        try:
            found = parse(text)
        except LayoutError:
            continue
        assert parse(str(found)) == found


def test_the_place_of_a_mistake() -> None:
    with pytest.raises(LayoutError) as caught:
        parse("(8,8):(8;1)")
    lines = str(caught.value).splitlines()
    assert "the character ';' has no place in a layout" in lines[0]
    assert lines[3:5] == ["1 | (8,8):(8;1)", "  |         ^ here"]


# Drawings


def test_text_grid() -> None:
    assert draw_text(Layout((2, 3), (3, 1))).splitlines() == [
        "    0   1   2",
        "  +---+---+---+",
        "0 | 0 | 1 | 2 |",
        "  +---+---+---+",
        "1 | 3 | 4 | 5 |",
        "  +---+---+---+",
    ]
    assert draw_text(Layout(3, -5)).splitlines()[2] == "0 |   0 |  -5 | -10 |"


def test_grid() -> None:
    layout = Layout(((2, 2), 3), ((1, 6), 2))
    assert grid(layout) == [[layout(row, column) for column in range(3)] for row in range(4)]
    assert grid(compose(Swizzle(1, 0, 1), Layout((2, 2), (2, 1)))) == [[0, 1], [3, 2]]
    with pytest.raises(LayoutError, match="rank 3 is not a grid"):
        grid(Layout((2, 2, 2)))
    with pytest.raises(LayoutError, match="E0675"):
        grid(Layout((65, 64)))


def test_svg_grid() -> None:
    layout = Layout((4, 8), (8, 1))
    text = draw_svg(layout)
    assert text == draw_svg(layout)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    numbers = [each.text for each in root.findall(f"{space}g")[1]]
    assert numbers == [str(index) for index in range(32)]
    colours = [each.get("fill") for each in root.findall(f"{space}g")[0]]
    assert len(set(colours)) == 8
    assert all(colours[index] == colours[index % 8] for index in range(32))
    banks = ElementTree.fromstring(draw_svg(layout, 2))
    titles = [each.text for each in banks.iter(f"{space}title")]
    assert titles[:3] == ["(4,8):(8,1)", "index 0, bank 0", "index 1, bank 0"]


# The command


def test_the_facts() -> None:
    assert ok("(8,8):(8,1)").splitlines()[:8] == [
        "(8,8):(8,1)",
        "  size          64",
        "  cosize        64, from 0 to 63",
        "  naive cosize  64",
        "  injective     yes",
        "  contiguous    yes",
        "",
        "    0    1    2    3    4    5    6    7",
    ]
    text = ok("(4,8):(-1,4)")
    assert "  cosize        32, from -3 to 28\n  naive cosize  26: wrong, " in text
    text = ok("Sw<3,3,3> o 0 o (8,36):(36,1)")
    assert "  cosize        320, from 0 to 319\n  CuTe's        288, of the layout without its swizzle\n" in text
    assert "not drawn: 36 columns; --svg draws them" in text
    assert "not drawn: a layout of rank 3 is not a grid" in ok("(2,2,2)")
    assert "not drawn: a grid of 1000000000000 cells is too large" in ok("(1000000,1000000)")


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (["((4,2),8):((1,4),8)", "--coalesce"], "64:1"),
        (["(4,3):(2,16)", "--complement", "48"], "(2,2):(1,8)"),
        (["(4,8):(8,1)", "--compose", "8:4"], "8:1"),
        (["(4,8):(8,1)", "--compose", "<2,4>"], "(2,4):(8,1)"),
        (["4:1", "--concatenate", "2:8"], "(4,2):(1,8)"),
        (["(4,8):(8,1)", "--divide", "(2,4)"], "((2,4),(2,2)):((8,1),(16,4))"),
        (["(4,8):(8,1)", "--divide", "<2:2,4>"], "((2,4),(2,2)):((16,1),(8,4))"),
        (["(2,2):(4,1)", "--product", "6:1"], "((2,2),(2,3)):((4,1),(2,8))"),
        (["(4,8):(8,1)", "--right-inverse"], "(8,4):(4,1)"),
        (["(4,3):(2,16)", "--left-inverse"], "(2,8,3):(0,1,4)"),
        (["Sw<3,3,3> o 0 o (8,64):(64,1)", "--compose", "<4,8>"], "Sw<3,3,3> o 0 o (4,8):(64,1)"),
        (["Sw<3,3,3> o 0 o (8,64):(64,1)", "--coalesce"], "Sw<3,3,3> o 0 o (8,64):(64,1)"),
        (["Sw<3,3,3> o 0 o (8,64):(64,1)", "--complement", "2048"], "4:512"),
        (["Sw<3,3,3> o 0 o (8,64):(64,1)", "--right-inverse"], "Sw<3,0,-6> o 0 o (64,8):(8,1)"),
        (["4", "--complement", "24"], "6:4"),
        (["(2,8):(4,-1)", "--compose", "(5,5,2):(-2,10,50)"], "(5,5,2):(1,-5,-25)"),
    ],
)
def test_operations(arguments: list[str], result: str) -> None:
    assert ok(*arguments).splitlines()[0] == result
    assert json.loads(ok(*arguments, "--json"))["layout"] == result


def test_json() -> None:
    found = json.loads(ok("((2,2),4):((1,-2),4)", "--json"))
    assert found["ok"] is True
    assert (found["shape"], found["stride"]) == ([[2, 2], 4], [[1, -2], 4])
    assert (found["size"], found["bounds"], found["cosize"], found["naive_cosize"]) == (16, [-2, 13], 16, 12)
    assert "negative" in found["naive_cosize_fault"]
    assert (found["injective"], found["contiguous"]) == (True, True)
    refused = run("(8,8", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["diagnostics"][0]["code"] == "E0671"


def test_svg_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "layout.svg"
    assert ok("(4,8):(8,1)", "--svg", "--banks", "4", "-o", str(path)) == ""
    assert path.read_text() == draw_svg(Layout((4, 8), (8, 1)), 4)
    assert ok("(4,8):(8,1)", "--svg") == draw_svg(Layout((4, 8), (8, 1)))
    ok("(4,8):(8,1)", "-o", str(path))
    assert path.read_text() == ok("(4,8):(8,1)")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("option", ["", "--divide", "--concatenate"])
def test_hostile_texts_on_the_command_line(name: str, option: str) -> None:
    text = HOSTILE[name]
    if name == "an option" and option == "--divide":
        text = "<4,4"
    result = run(*(["8:1", option, text] if option else ["--", text]))
    assert result.exit_code == 1
    assert re.search(r"error\[E067[124]\]", result.stderr)
    assert "Traceback" not in result.output


def tiler_text(tiler: Tiler) -> str:
    return f"<{','.join(map(tiler_text, tiler))}>" if isinstance(tiler, tuple) else str(tiler)


def any_text(rng: random.Random) -> str:
    """Return a layout, a swizzle, a tiler, one of them with a few characters wrong, or nothing like it."""
    layout = random_layout(rng)
    texts = [layout, random_composed(rng), random_swizzle(rng), tiler_text(random_tiler(rng, layout)), layout.shape]
    text = list(str(rng.choice(texts)))
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        text[rng.randrange(len(text))] = rng.choice(ALPHABET)
    return "".join(text) if rng.random() < 0.9 else "".join(rng.choices(ALPHABET, k=rng.randrange(9)))


def test_any_texts_and_options_on_the_command_line() -> None:
    """A result, or a message with a code; as JSON where that is asked for."""
    rng = random.Random(11)
    with_text = ("--compose", "--concatenate", "--divide", "--product")
    codes: Counter[str] = Counter()
    for _ in range(QUESTIONS):
        option = rng.choice((*with_text, "--coalesce", "--right-inverse", "--left-inverse", "--complement", ""))
        words = [option] if option else []
        if option in with_text:
            words.append(any_text(rng))
        if option == "--complement":
            words.append(str(rng.choice((1, 48, 2**63, 10**30, rng.randrange(1, 300)))))
        words += rng.choice(([], [], ["--json"], ["--svg"], ["--svg", "--banks", "4"]))
        result = run(*words, "--", any_text(rng))
        codes[str(result.exit_code)] += 1
        assert result.exit_code in (0, 1), (words, result.output)
        assert bool(re.search(r"E067[1-5]\b", result.output)) == bool(result.exit_code), (words, result.output)
        if "--json" in words:
            assert json.loads(result.stdout)["ok"] == (result.exit_code == 0)
    assert min(codes.values()) > QUESTIONS // 8


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["(6,4):(1,12)", "--compose", "4:4"], 1, "does not divide the extent 6"),
        (["Sw<1,1,1> o 0 o 8:1", "--concatenate", "4:1"], 1, "give 8:1 alone"),
        (["Sw<1,1,1> o 5 o 8:1", "--left-inverse"], 1, "the offset 5 between swizzle and layout"),
        (["(4,6,2):(12,0,4)", "--complement", "48"], 1, "the stride 12 is not a multiple of 8"),
        (["(2,2,2)", "--svg"], 1, "rank 3"),
        (["(1000,1000)", "--svg"], 1, "1000000 cells"),
        (["Sw<1,25,1> o 0 o 8:1"], 1, "E0675"),
        (["8:1", "--coalesce", "--left-inverse"], 2, "one operation at a time, not --coalesce, --left-inverse"),
        (["8:1", "--banks", "4"], 2, "give --svg too"),
        (["8:1", "--svg", "--json"], 2, "not both"),
        (["8:1", "--complement", "0"], 2, "not in the range"),
        ([], 2, "Missing argument 'LAYOUT'"),
    ],
)
def test_mistakes(arguments: list[str], code: int, said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.split())
