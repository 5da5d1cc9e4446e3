"""Programs in the habits of other languages: the help is the program that was meant."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from evt.errors import EvtError
from evt.ir.lower import OPERATIONS
from tests.programs import typed

VALUES = ("acc", "acc + bias", "relu(acc*alpha) + C", "(acc - 1)*max(acc, bias)", "-acc", "where(acc > 0, acc, 0)")
#: The draft of a statement with a value, and the statement that its help writes.
STATEMENTS: dict[str, Callable[[str], tuple[str, str]]] = {
    "a keyword": lambda x: (f"let D = {x}", f"D = {x}"),
    "a type of C++": lambda x: (f"float D = {x}", f"D = {x}"),
    "an annotation": lambda x: (f"D: f16 = {x}", f"out D: f16; D = {x}"),
    "an annotation with modes": lambda x: (f"D[m, n]: f32 = {x}", f"out D[m, n]: f32; D = {x}"),
    "several targets": lambda x: (f"D, E = {x}, {x} * 2", f"D = {x}; E = {x} * 2"),
    "an arrow to the left": lambda x: (f"D <- {x}", f"D = {x}"),
    "an arrow to the right": lambda x: (f"D -> {x}", f"D = {x}"),
    "a comparison": lambda x: (f"D == {x}", f"D = {x}"),
    "an input": lambda x: (f"input gate: f16[m, n]; D = ({x})*gate", "in gate: f16[m, n]"),
    "an output": lambda x: (f"outputs D: f16[m, n]; D = {x}", "out D: f16[m, n]"),
    "a declaration without its word": lambda x: (f"gate: f16[m, n]; D = ({x})*gate", "in gate: f16[m, n]"),
    "a colon for a sign": lambda x: (f"D: {x}", f"D = {x}"),
    "a fraction": lambda x: (f"in s: f32 = 1/4, t: f16; D = ({x})*s*t", "in s: f32 = 0.25, t: f16"),
    "a function with a colon": lambda x: (f"def f(v): v*2; D = f({x})", "def f(v) = v*2"),
    "a function with a return": lambda x: (f"def f(v): return v*2; D = f({x})", "def f(v) = v*2"),
    "a function without a sign": lambda x: (f"def f(v) v*2; D = f({x})", "def f(v) = v*2"),
}
#: The draft of an expression with a value, and the expression that its help writes.
EXPRESSIONS: dict[str, Callable[[str], tuple[str, str]]] = {
    "a cast of C": lambda x: (f"(f16) ({x})", f"f16({x})"),
    "a cast of a call": lambda x: (f"(float) tanh({x})", f"float(tanh({x}))"),
    "a namespace": lambda x: (f"std::max({x}, 0)", f"max({x}, 0)"),
    "namespaces": lambda x: (f"cutlass::epilogue::thread::relu({x})", f"relu({x})"),
    "PyTorch's GELU": lambda x: (f"gelu({x}, approximate='tanh')", f"gelu_tanh({x})"),
    "PyTorch's default GELU": lambda x: (f"gelu({x}, approximate = 'none')", f"gelu({x})"),
    "separated digits": lambda x: (f"({x}) + 1_000", "1000"),
    "hexadecimal digits": lambda x: (f"({x}) + 0x1F", "31"),
    "binary digits": lambda x: (f"({x}) + 0b101", "5"),
    "unequal": lambda x: (f"where(({x}) <> 0, acc, 0)", "!="),
    "identical": lambda x: (f"where(({x}) === 0, acc, 0)", "=="),
    "at most": lambda x: (f"where(({x}) =< 0, acc, 0)", "<="),
    "at least": lambda x: (f"where(({x}) => 0, acc, 0)", ">="),
}


def mistakes(text: str) -> list[tuple[str, str, str]]:
    """Return the text, the place and the help of each mistake."""
    try:
        typed(text)
    except EvtError as error:
        return [(each.message, text[each.span.start : each.span.end], each.help) for each in error.diagnostics]
    return []


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", STATEMENTS)
def test_statements(form: str, value: str) -> None:
    draft, meant = STATEMENTS[form](value)
    ((_, _, hint),) = mistakes(draft)
    assert f"`{meant}`" in hint, hint
    first, separator, rest = draft.partition("; ")
    assert not mistakes(f"{meant}{separator}{rest}"), (first, rest)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", EXPRESSIONS)
def test_expressions(form: str, value: str) -> None:
    draft, meant = EXPRESSIONS[form](value)
    text = f"z = acc; D = {draft}"
    found = mistakes(text)
    assert len(found) == 1, found
    ((message, place, hint),) = found
    assert message == f"`{place}` is not expected here"
    assert f"write `{meant}`" in hint, hint
    start, end = text.index(draft), text.index(draft) + len(draft)
    whole = meant if re.search(r"\(.*\)", meant) else draft.replace(place, meant)
    assert not mistakes(text[:start] + whole + text[end:])


def test_hexadecimal_digits_beyond_all_numbers() -> None:
    """Python writes no integer of 5000 digits, and no program could name it."""
    ((message, _, _),) = mistakes(f"D = acc*0x{'f' * 5000}")
    assert message.startswith("an operator is missing between `0` and `xff")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "**", "<", "&&"])
@pytest.mark.parametrize("layout", ["{} {}\n {}", "{}\n {} {}", "{} {} # why\n\n {}"])
def test_a_statement_that_goes_on_in_the_next_line(layout: str, operator: str, value: str) -> None:
    text = layout.format(f"D = {value}", operator, "2")
    found = mistakes(text)
    assert found
    assert any("put its value in parentheses" in hint for *_, hint in found), found
    target, _, rest = text.partition(" = ")
    assert not mistakes(f"{target} = ({rest})")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("condition", "meant"),
    [("{} > 0", "!(acc2 > 0)"), ("0 < {} || acc > 0", "!(0 < acc2)"), ("isnan({}) and acc > 0", "!isnan(acc2)")],
)
def test_negations(condition: str, meant: str, value: str) -> None:
    """Python's ``not`` takes a whole comparison, ``!`` one operand."""
    ((_, _, hint), *_) = mistakes(f"acc2 = {value}; D = where(not {condition.format('acc2')}, acc, 0)")
    assert f"write `{meant}`" in hint, hint
    assert not mistakes(f"acc2 = {value}; D = where({meant}, acc, 0)")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("module", ["", "F.", "torch.nn.functional."])
def test_the_gelu_of_pytorch(module: str, value: str) -> None:
    for quote in "'", '"':
        for name, meant in (("tanh", "gelu_tanh"), ("none", "gelu")):
            hints = [hint for *_, hint in mistakes(f"D = {module}gelu({value}, approximate={quote}{name}{quote})")]
            assert not module or "(" in value or f"write `{meant}({value})`" in hints, hints
            assert module or f"write `{meant}({value})`" in hints, hints


@pytest.mark.parametrize("operation", OPERATIONS)
def test_headers_with_other_operands(operation: str) -> None:
    for operands, dtype in (("x: bf16, w: bf16", "bf16"), ("B: f32[k, n], A: f32[m, k]", "f32"), ("x: i8", "f16")):
        ((_, _, hint),) = mistakes(f"{operation}({operands}); D = acc")
        meant = hint.removeprefix("write `").removesuffix("`")
        assert meant.startswith(f"{operation}(A: {dtype}"), hint
        assert not mistakes(f"{meant}; D = acc")


@pytest.mark.parametrize("text", ["// {}", "D = {} // why", "/* why */ D = {}", "D = {} /* why */"])
@pytest.mark.parametrize("value", VALUES)
def test_comments(text: str, value: str) -> None:
    found = mistakes(f"E = acc\n{text.format(value)}")
    assert [hint.partition(";")[0] for *_, hint in found] == ["a comment begins with `#`"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("in bias f32[n]; D = acc + bias", "`f32` is not expected here", "write `bias: f32` for a type"),
        ("D, E = acc", "`,` is not expected here", "assign one expression to each name"),
        ("for i in n: D = acc", "`for` is not expected here", "a program has no loops"),
        ("in", "a name is missing after `in`", "a declaration is `in name: f32[n]`"),
        ("out", "a name is missing after `out`", "a declaration is `out name: f32[n]`"),
        ("def", "a name is missing after `def`", "a function is `def f(x, y) = x * y`"),
        ("D", "the statement assigns nothing", "a statement is an assignment: `D = relu(acc + bias)`"),
        ("D = [acc]", "`[` is not expected here", "use parentheses"),
        ("D = (acc + 1) bias", "an operator is missing between `)` and `bias`", "write `*` for a product"),
        ("D = acc as f16", "an operator is missing between `acc` and `as`", "a cast is written `f16(x)`"),
        ("def f(x, a=2) = x*a; D = f(acc)", "`=` is not expected here", "a parameter has no default"),
        ("in s: f32 = 2**3; D = acc*s", "`**` is not expected here", "a default is one number"),
        ("naïve = acc", "the character `ï` (U+00EF) has no meaning in a program", "names have the letters a to z"),
        ("D = acc.to(f16)", "the character `.` (U+002E) has no meaning in a program", "write `f16(acc)`"),
        ("D = tf.nn.relu(acc)", "the character `.` (U+002E) has no meaning in a program", "write `relu(acc)`"),
    ],
)
def test_messages(text: str, message: str, hint: str) -> None:
    ((said, _, help_text),) = mistakes(text)
    assert (said, help_text[: len(hint)]) == (message, hint)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        *(
            (f"D = {word}(acc > 0, acc, 0)", f"there is no function `{word}`: a choice is `where`", "write `where(")
            for word in ("if", "cond", "select", "ite")
        ),
        ("D = where(not (acc > 0), acc, 0)", "there is no function `not`: a negation is `!`", "write `!x`"),
        ("D = cast(acc, bias)", "there is no function `cast`: a cast is called by", "write `f16(x)`"),
        ("D = __expf(acc)", "there is no function `__expf`", "did you mean `exp`?"),
        ("D = rms_norm(acc)", "there is no function `rms_norm`: it needs", "store `D = acc; rrms = rsqrt(mean[n]"),
        ("D = gelu(acc, approximate=1)", "`gelu` has no parameter `approximate`", "write `gelu_tanh(x)`"),
        ("D = relu(acc, inplace=1)", "`relu` has no parameter `inplace`", "remove it"),
        ("D = max(acc, dim=1)", "`max` has no parameter `dim`", "a reduction has its modes in brackets: `max[n](x)`"),
        ("D = sum(acc, bias)", "`sum` needs the modes to reduce over", "write `sum[n]`"),
        ("D = dropout(acc)", "`dropout` takes 4 arguments, 1 given", "write `dropout(x, p, seed, offset)`"),
        ("D = even(acc, 1, 2)", "`even` takes 1 or 2 arguments, 3 given", "write `even(x, distance)`"),
    ],
)
def test_functions(text: str, message: str, hint: str) -> None:
    ((said, _, help_text),) = mistakes(text)
    assert said.startswith(message)
    assert help_text.startswith(hint), help_text
