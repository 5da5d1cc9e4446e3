"""Functions of the user: accepted ones, refused ones, and that the table is live."""

from __future__ import annotations

import itertools
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import evt
from evt.functions import FUNCTIONS, TABLE, Fact, Function, lookup, registry, words
from evt.functions.formula import problems
from evt.functions.testing import check, temporarily
from evt.ir.dtype import BY_NAME
from evt.ir.lower import statements
from evt.ir.lower import words as language
from evt.ir.lower.special import SPECIAL_FORMS

SNAKE: dict[str, Any] = {
    "cxx": "x + sinf(a * x) * sinf(a * x) / a",
    "torch": lambda t, x, a: x + t.sin(a * x) ** 2 / a,
    "derivative": "1 + sin(2 * a * x)",
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with temporarily():
        yield


def function(signature: Any, **given: Any) -> Function:
    """Register a function whose parts are not compared: tests/functions/test_probe.py is about that."""
    return registry.function(signature, **{"check": False, **given})


def code(*arguments: Any, **keywords: Any) -> str:
    with pytest.raises(evt.ArgumentError) as caught:
        function(*arguments, **keywords)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message
    assert str(caught.value)
    return diagnostic.code


def cube(signature: str = "cube(x)", **changes: Any) -> Function:
    given: dict[str, Any] = {"cxx": "x * x * x", "torch": lambda x: x**3}
    return function(signature, **{**given, **changes})


def test_a_row() -> None:
    row = function("snake(x, a=1)", **SNAKE, facts=[Fact.ZERO_TO_ZERO], aliases=["serpent"], text="A wave: `snake`.")
    assert str(row) == "snake(x, a=1)"
    assert row.cxx == "evt::user::fn_snake({0}, {1})"
    assert row.source == (
        "namespace evt::user {\n\nEVT_HOST_DEVICE float fn_snake(float p_x, float p_a) {\n"
        "  return p_x + sinf(p_a * p_x) * sinf(p_a * p_x) / p_a;\n}\n\n}  // namespace evt::user"
    )
    assert row.derivatives == ("1 + sin(2 * a * x)", "")
    assert row.facts == {Fact.ZERO_TO_ZERO}
    assert (row.stock, row.fast, row.result, row.targets) == (None, None, "value", ())
    assert lookup("serpent") is lookup("snake") is TABLE["snake"] is row
    assert "snake" in TABLE
    assert list(TABLE)[-1] == "snake"
    assert {"snake", "serpent"} <= set(FUNCTIONS)
    assert len(FUNCTIONS) == len(list(FUNCTIONS)) == len(set(FUNCTIONS))


@pytest.mark.cxx
@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not on PATH")
class TestCheck:
    def test_what_agrees(self) -> None:
        check(function("snake(x, a=1)", **SNAKE))
        check(function("both(x, y)", cxx="x * y", torch=lambda x, y: x * y, derivative=["y", "x"]))
        check(cube(cxx="fn::square(x) * x"), low=-2, high=2)
        check(cube("constant(x, unused=1)", torch=lambda x, unused: x**3), low=-2, high=2)

    def test_what_does_not(self) -> None:
        with pytest.raises(AssertionError, match=r"the C\+\+ of `cube` at x=.* is .*, expected"):
            check(cube(cxx="x * x"))
        with pytest.raises(AssertionError, match=r"the derivative along `x` of `cube2`"):
            check(cube("cube2(x)", derivative="2 * x"), high=-1.0)
        with pytest.raises(AssertionError, match="does not compile"):
            check(cube("cube3(x)", cxx="x * y"))


def test_programs_call_it() -> None:
    op = "D = snake(acc, 2) + C"
    with pytest.raises(evt.ProgramError, match="E0201"):
        evt.gemm(op)
    function("snake(x, a=1)", **SNAKE)
    a, b, c = torch.randn(4, 3), torch.randn(3, 5), torch.randn(4, 5)
    x = a @ b
    torch.testing.assert_close(evt.gemm(op)(a, b, C=c), x + torch.sin(2 * x) ** 2 / 2 + c)
    assert "evt::user::fn_snake(" in evt.emit(op, arch="sm80")


def test_the_meaning_on_floats() -> None:
    assert function("snake(x, a=1)", **SNAKE).fold(1.0, 2.0) == pytest.approx(1 + math.sin(2) ** 2 / 2)
    assert math.isnan(TABLE["snake"].fold(1.0, 0.0))  # where Python raises it is asked again, in PyTorch
    special = function("i0(x)", cxx="cyl_bessel_i0f(x)", torch=lambda t, x: t.special.i0(x))  # not in the mirror
    assert special.fold(0.5) == pytest.approx(1.0634833)
    assert cube(torch=lambda x: torch.pow(x, 3)).fold(2.0) == 8.0
    assert function("digamma(x)", cxx="x", torch=torch.digamma).fold(1.0) == pytest.approx(-0.5772157)


def test_once_more_is_fine() -> None:
    def register(power: float = 3.0) -> Function:
        return function("cube(x)", cxx="x * x * x", torch=lambda x: x**power)

    row = register()
    assert register() is row  # another object with the same code
    assert function("cube(x)", cxx="x  *x * x".replace("  *", " * "), torch=row.torch.function) is row  # type: ignore[attr-defined]
    with pytest.raises(evt.ArgumentError, match="E0656"):
        register(2.0)
    for changes in (
        {"cxx": "x * x"},
        {"torch": lambda x: x * x * x},
        {"torch": lambda x: x**2},
        {"derivative": "3 * x * x"},
        {"facts": [Fact.ODD]},
        {"aliases": ["cubed"]},
        {"signature": "cube(x, a=1)", "torch": lambda x, a: x**3},
    ):
        with pytest.raises(evt.ArgumentError, match="E0656"):
            cube(**changes)
    assert TABLE["cube"] is row
    assert lookup("cubed") is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "relu",
            "swish",
            "where",
            "acc",
            "in",
            "def",
            "D",
            "bf16",
            "half",
            "sum",
            "alpha",
            "bias",
            "gemm",
            "nan",
            "m",
        ),
        *("float", "double"),
    ],
)
def test_taken_names(name: str) -> None:
    assert code(f"{name}(x)", cxx="x", torch=lambda x: x) == "E0651"
    assert code("cube(x)", cxx="x", torch=lambda x: x, aliases=[name]) == "E0651"
    assert "cube" not in TABLE


def test_a_name_is_given_once() -> None:
    assert code("cube(x)", cxx="x", torch=lambda x: x, aliases=["cube"]) == "E0651"
    assert code("cube(x)", cxx="x", torch=lambda x: x, aliases=["power3", "power3"]) == "E0651"
    cube(aliases="power3")
    assert code("power3(x)", cxx="x", torch=lambda x: x) == "E0651"


def test_the_words_are_those_of_the_language() -> None:
    needed = {*BY_NAME, *language.SPECIAL, *SPECIAL_FORMS, *language.GREEK, *language.NOT_NUMBERS, language.INFINITY}
    needed |= {*statements.OPERATIONS, "in", "out", "def", "acc", "bias"}
    assert needed - words.LANGUAGE == set()


@pytest.mark.cxx
@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not on PATH")
@pytest.mark.parametrize(
    ("signature", "cxx"),
    [
        *((f"{name}(x)", "x * x * x") for name in ("assert", "M_PI", "EVT_HOST_DEVICE", "errno", "switch", "std", "x")),
        *((f"cube({name})", f"{name} * {name} * {name}") for name in ("assert", "M_PI", "EVT_HOST_DEVICE", "errno")),
        ("cbrtf(x)", "cbrtf(x * x * x) * x * x"),  # C++'s own, not itself
        ("cube(f)", "f*1.f*f * (f > 0.f ? f:f) * 1e0f"),  # a suffix of numbers
        ("cube(square)", "fn::square(square) * ::evt :: fn:: abs(1.0f) * square"),  # a function of evt's
    ],
)
def test_names_that_c_has_too(signature: str, cxx: str) -> None:
    """Neither a macro nor a function of C++ takes the place of the user's name, nor the other way round."""
    check(function(signature, cxx=cxx, torch=lambda x: x**3), low=-2, high=2)


def test_functions_do_not_see_each_other() -> None:
    """The C++ of a function means C++'s function, also if another is registered by that name before or after."""
    function("root(x)", cxx="cbrtf(x)", torch=lambda x: x)
    assert "return cbrtf(p_x);" in function("cbrtf(x)", cxx="cbrtf(x)", torch=lambda x: x).source
    assert "return root(p_x) + 1;" in function("roots(x)", cxx="root(x) + 1", torch=lambda x: x).source


@pytest.mark.parametrize(
    "signature",
    [
        *("", "snake", "snake()", "snake(x", "snake x", "(x)", "snake(x,)", "snake(x; a)", "snake(x, x)", "snake(1)"),
        *("snake(x=1, a)", "snake(x, a=)", "snake(x, a=one)", "snake(x, a=inf)", "snake(x, a=nan)", "snake(float)"),
        *("2snake(x)", "_snake(x)", "sna__ke(x)", "snäke(x)", "snake(__x)", "sna-ke(x)", "snake(x) + 1", "snake((x))"),
    ],
)
def test_signatures_that_cannot_be_read(signature: str) -> None:
    assert code(signature, cxx="x", torch=lambda x: x) == "E0652"


def test_a_signature_is_text() -> None:
    assert code(lambda x: x, cxx="x", torch=lambda x: x) == "E0652"
    assert str(function(" cube ( x , a = 1e-3 ) ", cxx="x", torch=lambda x, a: x)) == "cube(x, a=0.001)"


@pytest.mark.parametrize(
    "cxx",
    [
        *(
            "",
            "  ",
            "2.0f",
            "y * y",
            "(x",
            "x)",
            "x[1)",
            "x; x",
            "return x",
            "{x}",
            "x\n#define y",
            "x // twice",
            "x @ x",
        ),
        *("x /* twice */", "'x'", '"x"', "x \\ x", "ﬁ(x)", "<% x %>", "f.x", "f::x", "xx", "asm(x)"),
    ],
)
def test_cxx_that_cannot_be_used(cxx: str) -> None:
    assert code("cube(x)", cxx=cxx, torch=lambda x: x) == "E0653"


def test_cxx_is_text_on_one_line() -> None:
    assert code("cube(x)", cxx=None, torch=lambda x: x) == "E0653"
    assert "  return x * x\n" not in cube(cxx=" x *\n  x ").source
    assert "return p_x * p_x;" in TABLE["cube"].source
    assert "[[maybe_unused]] float p_a" in cube("other(x, a=1)", torch=lambda x, a: x).source


def test_facts_are_facts() -> None:
    assert code("cube(x)", cxx="x", torch=lambda x: x, facts=[Fact.INTEGER]) == "E0653"
    assert code("cube(x)", cxx="x", torch=lambda x: x, facts=["odd"]) == "E0607"


@pytest.mark.parametrize("meaning", [None, 3, lambda: 0, lambda x: x, lambda t, x, a, b: x, lambda x, *, a: x])
def test_meanings_that_cannot_be_called(meaning: Any) -> None:
    assert code("snake(x, a=1)", cxx="x + a", torch=meaning) == "E0654"


@pytest.mark.parametrize(
    ("signature", "meaning"),
    [
        ("f(x, a)", lambda x, a: x + a),
        ("f(x, a)", lambda t, x, a: t.add(x, a)),
        ("f(t)", lambda t: t + 0),
        ("f(t, x)", lambda t, x: t + x),
        ("f(x, a)", lambda x, a=3: x + a),
        ("f(x, a)", lambda *both: both[0] + both[1]),
        ("f(x, a)", torch.add),
        ("f(x)", torch.nn.functional.relu),
    ],
)
def test_meanings(signature: str, meaning: Callable[..., Any]) -> None:
    name = "t" if signature.startswith("f(t") else "x"
    row = function(signature, cxx=name, torch=meaning)
    given = [torch.tensor(2.0)] * len(row.parameters)
    assert row.torch(torch, *given) == 2 * len(given)
    assert row.fold(*[2.0] * len(given)) == 2 * len(given)


@pytest.mark.parametrize(
    "derivative",
    [
        *(
            "",
            "1 +",
            "2 * y",
            "geluu(x)",
            "gelu(x, x)",
            "x[n]",
            "gelu'(x)",
            "x ** a",
            "1e999",
            "x; a",
            "a = x",
            "f16(x)",
        ),
        *("sum[n](x)", "in x", ["1"], ["1", "2", "3"], ["1", "y"], ["1", ""], [1, 2], "softplus(x, gamma=1)", "x $ a"),
    ],
)
def test_derivatives_that_cannot_be_used(derivative: Any) -> None:
    assert code("snake(x, a=1)", cxx="x + a", torch=lambda x, a: x + a, derivative=derivative) == "E0655"


def test_one_derivative_is_of_a_function_of_one_argument() -> None:
    both = {"cxx": "x * y", "torch": lambda x, y: x * y}
    assert code("both(x, y)", **both, derivative="y") == "E0655"
    assert function("both(x, y)", **both, derivative=("y", "x")).derivatives == ("y", "x")
    assert function("none(x, y)", **both).derivatives == ()
    with pytest.raises(evt.ProgramError, match="E0206"):
        evt.gemm("D = none'(acc, 1)")


def test_a_derivative_may_call_the_function_itself() -> None:
    row = function("ex(x)", cxx="expf(x)", torch=lambda t, x: t.exp(x), derivative="ex(x)")
    assert list(problems("softplus(x, beta=2) + ex(x) ** -2", row)) == []


def test_a_derivative_is_shown_where_it_is_wrong() -> None:
    with pytest.raises(evt.ArgumentError) as caught:
        cube(derivative="3 * square(y)")
    assert str(caught.value).splitlines() == [
        "error[E0655]: `cube` has no parameter `y`",
        " --> <derivative>:1:12",
        "  |",
        "1 | 3 * square(y)",
        "  |            ^",
        "  = help: parameters: x",
    ]


def test_threads() -> None:
    """Readers never see half of a row, and of equal registrations one is kept."""
    rows: list[Function] = []
    errors: list[Exception] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            start.wait()
            for index in range(30):
                rows.append(cube(f"cube{index}(x)", aliases=[f"power{index}"]))
                assert lookup(f"power{index}") is TABLE[f"cube{index}"]
                assert all(row.name in TABLE for row in TABLE.values())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for name, same in itertools.groupby(sorted(rows, key=lambda row: row.name), lambda row: row.name):
        assert {id(row) for row in same} == {id(TABLE[name])}


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        TABLE["relu"] = TABLE["gelu"]  # type: ignore[index]
    with pytest.raises(ValueError, match="relu"):
        TABLE.add(TABLE["relu"])
    assert FUNCTIONS[0] == next(iter(TABLE))
    assert "swish" in FUNCTIONS
    assert 3 not in FUNCTIONS  # type: ignore[comparison-overlap]
