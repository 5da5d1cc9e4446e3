"""Tree to graph: expressions, calls and statements."""

from __future__ import annotations

import pytest

from evt.functions import FUNCTIONS, TABLE
from evt.ir import Const
from evt.ir.dtype import B1, BOOL, BY_NAME, OUTPUTS, TF32
from tests.support.lowering import dag, marked, mistakes, nodes

# Nodes


def test_an_expression() -> None:
    assert nodes("D = relu(alpha * acc + C) - 1") == [
        "%0 = load alpha",
        "%1 = acc",
        "%2 = mul %0 %1",
        "%3 = load C",
        "%4 = add %2 %3",
        "%5 = relu %4",
        "%6 = const 0x1.0000000000000p+0",
        "%7 = sub %5 %6",
        "%8 = store D %7",
    ]


def test_equal_subexpressions_are_one_node() -> None:
    assert nodes("z = acc + C; D = (acc + C) * z") == [
        *("%0 = acc", "%1 = load C", "%2 = add %0 %1", "%3 = mul %2 %2", "%4 = store D %3"),
    ]


def test_statements_stand_in_any_order() -> None:
    assert nodes("D = relu(y); y = z * 2; z = acc + C") == nodes("z = acc + C; y = z * 2; D = relu(y)")


def test_a_program_is_pruned_of_nothing_that_is_read() -> None:
    text = "out D; y = acc + C; D = y"
    assert nodes(text) == ["%0 = acc", "%1 = load C", "%2 = add %0 %1", "%3 = store D %2"]


@pytest.mark.parametrize("literal", ["1", "0.1", ".5", "5.", "1e3", "0e999", "16777217", "3.4028235e38", "1.5e-45"])
def test_constants_are_what_is_written(literal: str) -> None:
    """Doubles; the operation that reads one rounds it to its type."""
    lowered = dag(f"D = acc * {literal}")
    (constant,) = [op for op in map(lowered.__getitem__, range(len(lowered))) if isinstance(op, Const)]
    assert constant.value == float(literal)


def test_a_sign_is_part_of_a_constant() -> None:
    assert nodes("D = acc * -2")[1] == "%1 = const -0x1.0000000000000p+1"
    assert nodes("D = acc + -0.0")[1] == "%1 = const -0x0.0p+0"
    assert nodes("D = acc * -2 ** 2")[-2:] == ["%4 = mul %0 %3", "%5 = store D %4"]  # -(2 ** 2)


@pytest.mark.parametrize("literal", ["1e39", "1e999", "3.5e38", "1e-46", "1e-999", "0.1e-99999"])
def test_constants_that_f32_does_not_have(literal: str) -> None:
    assert marked(f"D = acc * {literal}") == [("E0107", literal)]
    assert marked(f"in a = -{literal}; D = acc * a") == [("E0107", f"-{literal}")]


@pytest.mark.parametrize("name", ["nan", "NaN", "INF", "infinity"])
def test_not_a_constant(name: str) -> None:
    assert marked(f"D = acc + {name}") == [("E0107", name)]
    assert marked(f"{name} = acc; D = {name} + 1") == [("E0108", name)]
    assert marked(f"in a = {name}; D = acc * a") == [("E0107", name)]


def test_infinity_is_a_constant() -> None:
    assert nodes("D = max(acc, -inf)")[1] == "%1 = const -inf"
    assert nodes("def f(x) = min(x, inf)\nD = f(acc)")[1] == "%1 = const inf"
    assert marked("inf = acc; D = inf + 1") == [("E0108", "inf")]
    assert marked("D = acc + inf[n]") == [("E0302", "[n]")]
    assert marked("in a: i32[] = inf; D = acc * a") == [("E0306", "inf")]


# Calls


@pytest.mark.parametrize("name", TABLE)
def test_every_function_can_be_called(name: str) -> None:
    row = TABLE[name]
    arguments = ", ".join(["acc"] * row.required)
    line = nodes(f"D = {name}({arguments})")[-2]
    assert line.split(" = ")[1].startswith(f"{name} %0")
    assert line.count("%") - 1 == len(row.parameters)
    by_keyword = ", ".join(f"{p.name}=acc" for p in row.parameters if p.default is None)
    assert nodes(f"D = {name}({by_keyword})") == nodes(f"D = {name}({arguments})")
    too_many = ", ".join(["acc"] * (len(row.parameters) + 1))
    assert marked(f"D = {name}({too_many})") == [("E0203", f"{name}({too_many})")]
    assert marked(f"D = {name}()") == [("E0203", f"{name}()")]


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(TABLE)))
def test_aliases(name: str) -> None:
    (row,) = [row for row in TABLE.values() if name in row.aliases]
    arguments = ", ".join(["acc"] * row.required)
    assert nodes(f"D = {name}({arguments})") == nodes(f"D = {row.name}({arguments})")


def test_operators_are_functions() -> None:
    assert nodes("D = -(acc + C) * acc / C - acc") == nodes("D = sub(div(mul(neg(add(acc, C)), acc), C), acc)")
    assert nodes("D = acc ** 3") == nodes("D = pow(acc, 3)")


def test_defaults_and_keywords() -> None:
    full = nodes("D = softplus(acc, 2, 20)")
    assert nodes("D = softplus(acc, beta=2)") == full
    assert nodes("D = softplus(threshold=20, beta=2, x=acc)")[-1:] == full[-1:]


@pytest.mark.parametrize(
    ("call", "code", "at", "help_"),
    [
        ("clamp(acc, 1)", "E0203", "clamp(acc, 1)", "clamp(x, min, max)"),
        ("leaky_relu(acc, slope=1)", "E0204", "slope", "negative_slope"),
        ("leaky_relu(acc, negative_slop=1)", "E0204", "negative_slop", "did you mean `negative_slope`?"),
        ("relu(x=acc, x=acc)", "E0204", "x", ""),
        ("relu(acc, x=acc)", "E0204", "x", ""),
        ("clamp(acc, min=0, 6)", "E0204", "6", "clamp(x, min, max)"),
        ("clamp(min=0, acc, 6)", "E0204", "acc", ""),
        ("acc ** alpha", "E0205", "alpha", "pow(x, y)"),
        ("acc ** (2 * acc)", "E0205", "2 * acc", ""),
        ("geluu(acc)", "E0201", "geluu", "did you mean `gelu`?"),
        ("Relu(acc)", "E0201", "Relu", "did you mean `relu`?"),
        ("frobnicate(acc)", "E0201", "frobnicate", "evt explain E0201"),
        ("acc(2)", "E0201", "acc", "`acc * (...)`"),
        ("C(2) + acc + C", "E0201", "C", "`C * (...)`"),
        ("relu[n](acc)", "E0201", "relu[n]", "`relu`"),
        ("f16(acc, C)", "E0203", "f16(acc, C)", "f16(x)"),
        ("f16()", "E0203", "f16()", "f16(x)"),
        ("f16(x=acc)", "E0203", "f16(x=acc)", "f16(x)"),
        ("acc + relu", "E0108", "relu", "relu(x)"),
        ("acc + f16", "E0108", "f16", "f16(x)"),
    ],
)
def test_a_wrong_call(call: str, code: str, at: str, help_: str) -> None:
    text = f"D = {call}"
    assert (code, at) in marked(text)
    assert any(help_ in each.help for each in mistakes(text))


def test_constant_exponents_may_be_names() -> None:
    assert nodes("k = 1 + 1; D = acc ** k")[-1] == "%4 = store D %3"


@pytest.mark.parametrize("name", sorted(name for name, dtype in BY_NAME.items() if dtype in (*OUTPUTS, TF32)))
def test_casts(name: str) -> None:
    dtype = B1 if BY_NAME[name] == BOOL else BY_NAME[name]  # one truth value, however it is stored
    assert nodes(f"D = {name}(acc)")[1] == f"%1 = cast {dtype} %0"


def test_there_is_no_cast_to_i64() -> None:
    (mistake,) = mistakes("D = int64(acc)")
    assert mistake.code == "E0303"
    assert "i32(x)" in mistake.help


# Statements


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D = acc; D = C", [("E0401", "D")]),
        ("D = D + acc", [("E0402", "D")]),
        ("a = b + acc; b = a; D = a", [("E0402", "a")]),
        ("D = a; a = b; b = c; c = a + acc", [("E0402", "a")]),
        ("def f(x) = x", [("E0403", "def f(x) = x")]),
        ("A = 2*A", [("E0403", "A = 2*A")]),
        ("in bias; D = acc", [("E0404", "bias")]),
        ("D = C", [("E0405", "C")]),
        ("D = relu(1)", [("E0405", "relu(1)")]),
        ("acc = C; D = acc", [("E0406", "acc")]),
        ("in acc; D = acc", [("E0406", "acc")]),
        ("in A: f16; D = acc", [("E0406", "A")]),
        ("out acc, D; D = acc", [("E0406", "acc")]),
        ("in z; z = acc; D = z", [("E0406", "z")]),
        ("z = acc; in z; D = z", [("E0406", "z")]),
        ("in x, x; D = acc + x", [("E0407", "x")]),
        ("out D, D; D = acc", [("E0407", "D")]),
        ("in x; out x, D; D = acc + x", [("E0407", "x")]),
        ("gemm(A: f16, B: f16); gemm(A: f16, B: f16); D = acc", [("E0407", "gemm(A: f16, B: f16)")]),
        ("out D, E; D = acc", [("E0408", "E")]),
        ("out D; D = acc; z = acc + 1", [("E0409", "z")]),
        ("in x: f31; D = acc + x", [("E0303", "f31")]),
        ("in x: f32[j]; D = acc + x", [("E0301", "j")]),
        ("D = acc + x[m, m]", [("E0301", "[m, m]")]),
        ("D = acc + x[M]", [("E0301", "M")]),
        ("D = acc + x[m] + x[n]", [("E0302", "[n]")]),
        ("in x[m]; D = acc + x[n]", [("E0302", "[n]")]),
        ("in s = 1; D = acc + s[n]", [("E0302", "[n]")]),
        ("z = acc; D = z[m, n]", [("E0302", "[m, n]")]),
        ("D = acc[n]", [("E0302", "[n]")]),
        ("out D[m, n]; D[n, m] = acc", [("E0302", "[n, m]")]),
        ("in x: i8[n] = 0.5; D = acc + x", [("E0306", "0.5")]),
        ("in x: i32 = 1.5; D = acc + x", [("E0306", "1.5")]),
        ("out D = 1; D = acc", [("E0306", "1")]),
        ("in s = banana; D = acc * s", [("E0107", "banana")]),
        ("relu = acc; D = relu + 1", [("E0108", "relu")]),
        ("in half; D = acc", [("E0108", "half")]),
        ("gem(A: f16, B: f16); D = acc", [("E0501", "gem")]),
        ("gemm(B: f16, A: f16); D = acc", [("E0203", "gemm(B: f16, A: f16)")]),
        ("gemm(A: f16); D = acc", [("E0203", "gemm(A: f16)")]),
        ("gemm(A: f16[m, n], B: f16); D = acc", [("E0301", "[m, n]")]),
        ("gemm(A: f16[l, m, k], B: f16); D = acc", [("E0301", "[l, m, k]")]),
        ("D = acc; gemm(A: f16, B: f16)", [("E0101", "gemm(A: f16, B: f16)")]),
    ],
)
def test_a_mistake(text: str, expected: list[tuple[str, str]]) -> None:
    assert marked(text) == expected
    assert all(each.help or each.label for each in mistakes(text))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("A = A*s[m, k]; D = acc", "s[m, k]"),
    ],
)
def test_what_is_planned_is_refused(text: str, at: str) -> None:
    assert ("E0901", at) in marked(text)


# Functions of the user's own


def test_a_definition_is_inlined() -> None:
    text = "def f(x, y) = x * y + g(x); def g(x) = relu(x); D = f(acc, C)"
    assert nodes(text) == nodes("D = acc * C + relu(acc)")
    assert nodes("D = one() * acc; def one() = 1") == nodes("D = 1 * acc")
    assert nodes("def f(acc) = acc * 2; D = f(acc) + f(C)") == nodes("D = acc * 2 + C * 2")


def test_a_definition_is_inlined_once_for_equal_arguments() -> None:
    text = "; ".join(f"def g{i}(x) = g{i + 1}(x) * g{i + 1}(x)" for i in range(50)) + "; def g50(x) = x; D = g0(acc)"
    assert len(nodes(text)) == 52


@pytest.mark.parametrize(
    ("text", "code", "at"),
    [
        ("def f(x) = x * y; D = f(acc)", "E0202", "y"),
        ("def f(x) = x * acc; D = f(C) + acc", "E0202", "acc"),
        ("def f(x) = x[m]; D = f(acc)", "E0202", "x[m]"),
        ("def f(x) = x; def f(x) = x; D = f(acc)", "E0401", "f"),
        ("def f(x, x) = x; D = f(acc, acc)", "E0401", "x"),
        ("def f(x) = f(x); D = f(acc)", "E0402", "f"),
        ("def f(x) = g(x); def g(x) = f(x); D = f(acc)", "E0402", "f"),
        ("def f(x) = x; D = acc", "E0409", "f"),
        ("def f(x) = x; D = f(acc, C)", "E0203", "f(acc, C)"),
        ("def f(x) = x; D = f(x=acc)", "E0204", "x"),
        ("def f(x) = x; D = acc + f", "E0108", "f"),
        ("def relu(x) = x; D = relu(acc)", "E0108", "relu"),
        ("def f16(x) = x; D = f16(acc)", "E0108", "f16"),
        ("def f(x, y) = x * y; D = f'(acc, C)", "E0206", "C"),
    ],
)
def test_a_mistake_about_a_definition(text: str, code: str, at: str) -> None:
    assert (code, at) in marked(text)


def test_definitions_nest_a_bounded_depth() -> None:
    text = "; ".join(f"def g{i}(x) = g{i + 1}(x)" for i in range(99)) + "; def g99(x) = x; D = g0(acc)"
    assert marked(text)[0][0] == "E0402"


# Derivatives


@pytest.mark.parametrize(
    ("derivative", "formula"),
    [
        ("relu'(acc)", "where(acc > 0, 1, 0)"),
        ("square'(acc)", "2 * acc"),
        ("square''(acc)", "2"),
        ("square'''(acc)", "0"),
        ("exp''(acc + C)", "exp(acc + C)"),
        ("f'(acc)", "2 * acc + C * 0 + 2 * acc * 0 + 1"),
        ("clamp'(acc, 0, 6)", "where(acc >= 0 && acc <= 6, 1, 0)"),
    ],
)
def test_derivatives(derivative: str, formula: str) -> None:
    """Compared by value: how a derivative is written is the function table's business."""
    import torch

    from evt.reference import evaluate
    from tests.programs import typed

    head = "def f(x) = square(x) + x; " * derivative.startswith("f'")
    acc, c = torch.linspace(-3, 8, 20).reshape(4, 5), torch.linspace(-1, 1, 20).reshape(4, 5)
    first = evaluate(typed(f"{head}D = {derivative} + 0 * acc + 0 * C"), acc, {"C": c}, dtype=torch.float64)
    second = evaluate(typed(f"D = {formula} + 0 * acc + 0 * C"), acc, {"C": c}, dtype=torch.float64)
    torch.testing.assert_close(first["D"], second["D"])


@pytest.mark.parametrize("call", ["relu'()", "relu'(acc, acc)", "frob'(acc)", "leaky_relu'(acc, C)", "f16'(acc)"])
def test_a_derivative_that_is_none(call: str) -> None:
    assert {code for code, _ in marked(f"D = {call}")} <= {"E0201", "E0203", "E0206"}


# Comparisons, reductions, pairs, coordinates, random numbers


def test_comparisons_and_truth_values() -> None:
    assert nodes("D = where(!(acc < C) && acc != 0 || C >= 1, acc, C)") == nodes(
        "D = where(logical_or(logical_and(logical_not(lt(acc, C)), ne(acc, 0)), ge(C, 1)), acc, C)"
    )


@pytest.mark.parametrize(
    ("call", "node"),
    [
        ("sum[n](acc)", "reduce sum[n] %0"),
        ("max[n, m](acc)", "reduce max[m,n] %0"),
        ("min[l, m, n](acc)", "reduce min[l,m,n] %0"),
        ("sum[l, m](acc)", "reduce sum[l,m] %0"),
        ("max[n%32](acc)", "fold max[32] %0"),
        ("sum[n%16](acc)", "fold sum[16] %0"),
        ("even(acc)", "pick 0[1] %0"),
        ("odd(acc)", "pick 1[1] %0"),
        ("odd(acc, 32)", "pick 1[32] %0"),
        ("iota(m)", "index m"),
        ("f16(rand(1, 2))", "cast f16 %3"),
    ],
)
def test_what_is_not_element_wise(call: str, node: str) -> None:
    lines = [line.partition(" = ")[2] for line in nodes(f"D = acc; y = {call}") if "store" not in line]
    assert lines[-1] == node


def test_dropout() -> None:
    assert (
        nodes("D = dropout(acc, 0.5, seed, offset)")[-1:]
        == nodes("scale = 1 / (1 - 0.5); kept = rand(seed, offset) >= 0.5; D = where(kept, acc * scale, 0)")[-1:]
    )


def test_a_seed_is_an_integer_scalar() -> None:
    lowered = dag("D = dropout(acc, p[], seed, offset) + rand(key[], 3)")
    kinds = {each.name: (str(each.dtype), each.modes) for each in lowered.inputs}
    assert kinds["seed"] == kinds["offset"] == ("i32", ())
    assert kinds["p"] == ("None", ())


def test_outputs_take_the_modes_of_their_values() -> None:
    text = "D = acc; r = sum[n](acc); c = max[m](acc); a = sum[m, n](acc); h = even(acc); q = max[n%32](acc)"
    assert {each.name: each.modes for each in dag(text).outputs} == {
        "D": ("m", "n"),
        "r": ("m",),
        "c": ("n",),
        "a": (),
        "h": ("m", "n/2"),
        "q": ("m", "n/32"),
    }


@pytest.mark.parametrize(
    ("call", "code", "at"),
    [
        ("sum(acc)", "E0203", "sum"),
        ("sum[n]()", "E0203", "sum[n]()"),
        ("sum[n](acc, acc)", "E0203", "sum[n](acc, acc)"),
        ("sum[n](x=acc)", "E0204", "x"),
        ("sum[l](acc)", "E0301", "[l]"),
        ("sum[k](acc)", "E0301", "[k]"),
        ("sum[n, n](acc)", "E0301", "[n, n]"),
        ("sum[n%24](acc)", "E0301", "[n%24]"),
        ("max[l, n%32](acc)", "E0301", "[l, n%32]"),
        ("median[n](acc)", "E0201", "median"),
        ("even()", "E0203", "even()"),
        ("even(acc, 5)", "E0203", "5"),
        ("odd(acc, C)", "E0203", "C"),
        ("even(x=acc)", "E0204", "x"),
        ("iota(acc)", "E0203", "iota(acc)"),
        ("iota(k)", "E0203", "iota(k)"),
        ("iota()", "E0203", "iota()"),
        ("rand(1)", "E0203", "rand(1)"),
        ("dropout(acc)", "E0203", "dropout(acc)"),
        ("dropout(acc, p=0.5, seed=1, offset=2)", "E0204", "p"),
        ("acc + rand", "E0108", "rand"),
        ("acc + even", "E0108", "even"),
    ],
)
def test_a_wrong_special_form(call: str, code: str, at: str) -> None:
    assert (code, at) in marked(f"D = acc; y = {call}")


def test_headers() -> None:
    lowered = dag("gemm(A: bf16[k, m], B: bf16[n, k]); D = acc", "linear")
    assert lowered.operation == "gemm"
    assert [each.modes for each in lowered.operands] == [("k", "m"), ("n", "k")]
    lowered = dag("linear(A: tf32, B: tf32); D = acc")
    assert [each.modes for each in lowered.operands] == [("m", "k"), ("n", "k")]
    assert dag("D = acc", "linear").operands == ()
