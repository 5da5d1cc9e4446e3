"""Text to tree: accepted texts, their meaning, and messages about the others."""

from __future__ import annotations

import sys
from pathlib import Path

import lark
import pytest
from hypothesis import given, settings

from evt.diagnostics import MAX_DIAGNOSTICS, Diagnostic, Source
from evt.errors import ProgramError
from evt.language import format_tree, parse, read_program, with_primary
from evt.language import tree as syntax
from evt.language.load import MAX_BYTES, decode
from tests.programs import Sample, programs
from tests.support.grammar import EVERYTHING


def expression(text: str) -> str:
    """Return the canonical, fully parenthesised text of one expression."""
    return format_tree(parse(f"D = {text}")).removeprefix("D = ").rstrip("\n")


def mistakes(text: str) -> list[Diagnostic]:
    with pytest.raises(ProgramError) as caught:
        parse(text)
    return list(caught.value.diagnostics)


def marked(text: str) -> list[tuple[str, str]]:
    """Each mistake's code and the text that it points at."""
    return [(each.code, text[each.span.start : each.span.end]) for each in mistakes(text) if each.span]


def test_everything_parses_and_reads_back() -> None:
    tree = parse(EVERYTHING)
    text = format_tree(tree)
    assert format_tree(parse(text)) == text
    kinds = [type(statement).__name__ for statement in tree.statements]
    assert kinds == ["Header", *["Inputs"] * 2, "Outputs", *["Define"] * 2, *["Assign"] * 5]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(programs())
def test_random_programs_read_back(sample: Sample) -> None:
    text = format_tree(parse(sample.text))
    assert format_tree(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("a / b / c * d", "(((a / b) / c) * d)"),
        ("a ** b ** c", "(a ** (b ** c))"),
        ("-a ** 2", "(-(a ** 2))"),
        ("2 ** -1", "(2 ** (-1))"),
        ("-a * b", "((-a) * b)"),
        ("a * -b", "(a * (-b))"),
        ("- -a", "(-(-a))"),
        ("+a", "a"),
        ("!a == b", "(!(a == b))"),
        ("a < b + c", "(a < (b + c))"),
        ("a || b && c", "(a || (b && c))"),
        ("!a && b", "((!a) && b)"),
        ("((a))", "a"),
        ("f(a, b=c,)", "f(a, b=c)"),
        ("f()", "f()"),
        ("gelu''(a)", "gelu''(a)"),
        ("sum[m, n](a)", "sum[m, n](a)"),
        ("a[]", "a[]"),
        ("a[m?]", "a[m?]"),
        ("a[l, n?]", "a[l, n?]"),
        ("a[m, n / 2] + a[m,n/32]", "(a[m, n/2] + a[m, n/32])"),
        ("max[n % 32](abs(a))", "max[n%32](abs(a))"),
        ("a != b && !c", "((a != b) && (!c))"),
        (".5 + 5. + 5e-3 + 1E+2", "(((.5 + 5.) + 5e-3) + 1E+2)"),
        ("in_ + outer + define + input", "(((in_ + outer) + define) + input)"),
    ],
)
def test_precedence(text: str, canonical: str) -> None:
    assert expression(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "a = 1; b = 2",
        "a = 1;;\n;b = 2;",
        "\n\n# nothing\na = 1 # a\n\nb = 2",
        "a = 1\r\nb = 2\r\n",
        "\ta\t=\t1\nb=2",
        "a = (\n1\n)\nb = f(1,\n# between\n2)",
        "a = 1 # ; c = 3\nb = 2",
        "a = 1 # αβγ 乘 '\"\nb = 2",
    ],
)
def test_statements_end_at_line_ends_and_semicolons(text: str) -> None:
    names = [s.target.text for s in parse(text).statements if isinstance(s, syntax.Assign)]
    assert names == ["a", "b"]


def test_a_list_goes_on_after_a_comma() -> None:
    (statement,) = parse("in a,\n   b: f32,  # why\n\n   c[n]").statements
    assert isinstance(statement, syntax.Inputs)
    assert [each.name.text for each in statement.declarations] == ["a", "b", "c"]


def test_places_are_those_of_the_text() -> None:
    text = "in bias: f16[n] = 1.5\nD = relu(x=acc[m, n]) + -1"
    source = Source(text)
    inputs, assign = parse(source).statements

    def at(node: object) -> str:
        return text[node.span.start : node.span.end]  # type: ignore[attr-defined]

    assert isinstance(inputs, syntax.Inputs)
    assert isinstance(assign, syntax.Assign)
    (declaration,) = inputs.declarations
    parts = (declaration, declaration.name, declaration.dtype, declaration.subscript, declaration.default)
    assert list(map(at, parts)) == ["bias: f16[n] = 1.5", "bias", "f16", "[n]", "1.5"]
    found = [at(node) for node in syntax.postorder(assign.value)]
    assert found == ["acc[m, n]", "relu(x=acc[m, n])", "1", "-1", "relu(x=acc[m, n]) + -1"]


@pytest.mark.parametrize(
    ("text", "code", "at", "help_"),
    [
        ("", "E0103", "", "D = acc"),
        (" \n\t# only a comment\n;;", "E0103", "", "D = acc"),
        ("acc", "E0101", "acc", "D = acc"),
        ("relu(acc) + 1", "E0101", "relu(acc) + 1", "`D = relu(acc) + 1`"),
        ("return relu(acc)", "E0101", "return relu(acc)", "`D = relu(acc)`"),
        ("gemm(A, B); D = acc", "E0101", "gemm(A, B)", "gemm(A: f16[m, k]"),
        ("D =", "E0101", "=", ""),
        ("D = acc +", "E0101", "+", ""),
        ("= acc", "E0101", "=", "D = acc"),
        ("D += acc", "E0101", "+", "write `=`"),
        ("D := acc", "E0101", ":", "write `=`"),
        ("D = E = acc", "E0101", "=", "`==`"),
        ("D = alpha acc", "E0101", "acc", "`alpha * acc`"),
        ("D = relu acc", "E0101", "acc", "`relu(acc)`"),
        ("D = 2acc", "E0101", "acc", "`2 * acc`"),
        ("D = acc * 1.5f", "E0101", "f", "`1.5`"),
        ("D = (acc)(C)", "E0101", "(", "line end or `;`"),
        ("D = acc if acc else 0", "E0101", "if", "`where(acc, acc, 0)`"),
        ("D = acc and C", "E0101", "and", "`&&`"),
        ("D = acc * * C", "E0101", "*", ""),
        ("D = 1 < acc < 2", "E0101", "<", "two values"),
        ("D = acc, E = acc", "E0101", ",", "D = acc; E = 2 * acc"),
        ("D = acc: f16", "E0101", ":", "in bias: f32[n]"),
        ("D = acc[0]", "E0101", "0", "C[m, n]"),
        ("in bias: ; D = acc", "E0101", ":", ""),
        ("out = acc", "E0108", "=", "`out_`"),
        ("D = acc + in", "E0108", "in", "`in_`"),
        ("D = A @ B", "E0102", "@", "`acc`"),
        ("D = acc ^ 2", "E0102", "^", "`x ** 2`"),
        ("D = acc > 0 ? acc : 0", "E0101", "?", "where"),
        ("D = acc.relu()", "E0102", ".", "`relu(acc)`"),
        ("D = α * acc", "E0102", "α", "`alpha`"),
        ("D = λ * acc", "E0102", "λ", "`lambda`"),
        ("D = Ω * acc", "E0102", "Ω", "`omega`"),
        ("D = acc × C", "E0102", "×", "`*`"),
        ("D = acc − C", "E0102", "−", "`-`"),
        ("D = acc²", "E0102", "²", "`** 2`"),
        ("𝔻 = acc", "E0102", "𝔻", "`D`"),
        ("D = acc\u00a0+ C", "E0102", "\u00a0", "remove"),
        ("\ufeffD = acc", "E0102", "\ufeff", "remove"),
        ("D = 'acc'", "E0101", "'", ""),
        ('D = "acc"', "E0102", '"', "quotes"),
        ("D = “acc", "E0102", "“", "quotes"),
        ("D = acc \N{PILE OF POO}", "E0102", "\N{PILE OF POO}", "remove"),
        ("D = acc \x00", "E0102", "\x00", "remove"),
        ("D = acc \ud800", "E0102", "\ud800", "remove"),
        ("out D: f32[m@rows, n]", "E0102", "@", "D[index[m], n]"),
        ("D = (acc + C", "E0104", "(", "`)`"),
        ("D = acc[m, n", "E0104", "[", "`]`"),
        ("D = acc + C)", "E0104", ")", "remove it"),
        ("D = (acc + C]", "E0104", "(acc + C]", ""),
        ("D = relu(acc\nE = acc * 2\nF = acc", "E0104", "(", "`)`"),
    ],
)
def test_a_mistake(text: str, code: str, at: str, help_: str) -> None:
    assert marked(text) == [(code, at)]
    (each,) = mistakes(text)
    assert help_ in each.help


def test_one_mistake_does_not_hide_the_next() -> None:
    text = "D = acc +\nE = @\nF = 2 acc; G = acc\nH = acc)\nI = (acc"
    expected = [("E0101", "+"), ("E0102", "@"), ("E0101", "acc"), ("E0104", ")"), ("E0104", "(")]
    assert marked(text) == expected


def test_a_statement_is_reported_once() -> None:
    assert marked("D = @ @ @ ) ] $") == [("E0102", "@")]


def test_mistakes_are_bounded() -> None:
    for text in ("@\n" * 100_000, "D = acc +\n" * 60, ")\n" * 60):
        assert len(mistakes(text)) == MAX_DIAGNOSTICS
        assert "first 20" in mistakes(text)[-1].notes[0]


def test_reading_stops_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["evt.language.parse"]
    seen = 0
    original = module._statements

    def counting(source, tokens, diagnostics):
        def count():
            nonlocal seen
            for token in tokens:
                seen += 1
                yield token

        return original(source, count(), diagnostics)

    monkeypatch.setattr(module, "_statements", counting)
    mistakes("@\n" * 100_000)
    assert seen < 100


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a b.evt"
    path.write_bytes("\ufeffD = acc\r\n# é\r\n".encode())
    source = read_program(path)
    assert source.name == str(path)
    assert source.text.startswith("D = acc")
    assert len(parse(source).statements) == 1
    assert read_program(str(path)) == source


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin, large = tmp_path / "latin.evt", tmp_path / "large.evt"
    latin.write_bytes(b"D = acc\n# caf\xe9\n")
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    for path, why in [
        (tmp_path, "it is a directory"),
        (tmp_path / "missing.evt", "No such file"),
        (tmp_path / "missing" / "x.evt", "No such file"),
        (latin / "x.evt", "Not a directory"),
        (latin, "byte 0xe9 on line 2"),
        (large, "larger than"),
        (Path("/dev/zero"), "larger than"),
        (tmp_path / ("x" * 5000), "too long"),
        ("nul\0", "null byte"),
    ]:
        with pytest.raises(ProgramError) as caught:
            read_program(path)
        (each,) = caught.value.diagnostics
        assert each.code == "E0105"
        assert why in each.message
        assert each.help


def test_a_name_of_a_file_cannot_drive_the_terminal() -> None:
    with pytest.raises(ProgramError) as caught:
        read_program("\x1b[31m.evt")
    assert "\x1b" not in str(caught.value)


def test_an_empty_file_is_an_empty_program() -> None:
    with pytest.raises(ProgramError) as caught:
        parse(read_program("/dev/null"))
    assert [each.code for each in caught.value.diagnostics] == ["E0103"]
    assert "/dev/null:1:1" in str(caught.value)


def test_decode() -> None:
    assert decode(b"D = acc", "<stdin>") == Source("D = acc", "<stdin>")
    with pytest.raises(ProgramError, match="<stdin>"):
        decode(b"\xff", "<stdin>")


def test_a_text_makes_no_lexer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is made first serves all."""
    parse("D = acc")
    monkeypatch.setattr(lark.Lark, "_build_lexer", None)
    assert str(parse("D = acc + 1")) != str(parse("D = acc"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("relu(acc + bias)", "D = relu(acc + bias)"),
        ("f(x, a=1) == y  # why", "D = f(x, a=1) == y  # why"),
        (
            "# what\nz = acc; def f(x) = x\n  f(\n    z\n  ) ;\n",
            "# what\nz = acc; def f(x) = x\n  D = f(\n    z\n  ) ;\n",
        ),
        ("in a: f32 = 1\na*acc", "in a: f32 = 1\nD = a*acc"),
        ("acc; z = acc", "acc; z = acc"),
        ("D[n, m] = acc", "D[n, m] = acc"),
        ("gemm(A: f16, B: f16)", "gemm(A: f16, B: f16)"),
        ("out D", "out D"),
        ("def f(x) = x", "def f(x) = x"),
        ("relu(acc", "relu(acc"),
        ("acc $", "acc $"),
        ("relu.evt", "relu.evt"),
        ("", ""),
    ],
)
def test_a_last_expression_is_the_primary_output(text: str, found: str) -> None:
    assert with_primary(Source(text, "name")) == Source(found, "name")
