"""Work on an operand: the language, the graph, the reference against PyTorch by hand, and the routes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.diagnostics import Diagnostic, Source
from evt.emission.kernel import spell
from evt.emission.work import worked
from evt.errors import ArgumentError, InternalError, ProgramError, TargetError
from evt.functions.testing import temporarily
from evt.ir import Apply, Builder, Dag, Element, Feed, Load, parse_dag, verify
from evt.ir.dag import prune
from evt.ir.dtype import F32
from evt.ir.operand import epilogue_of, formula_of, sides_of
from evt.optimise import PIPELINE, RELAXED, ROUNDING_KEPT, optimise, place_casts, round_as_eager
from evt.plan import survey
from evt.plan.epilogue.regions import Copy, Value
from evt.program import Program
from evt.reference import operand_values
from evt.request import packed_problem
from tests.programs import typed
from tests.support.lowering import dag

NORMALISED = "in t: f32[k]\nA = relu(s[k]*(A - mu[m]) + alpha*t)\nD = relu(acc + bias)"
BOTH = "A = relu(A); B = gelu(B*t[k]) + u[n]; D = acc * alpha"


def mistakes(text: str, operation: str = "gemm") -> list[tuple[str, str]]:
    """Each mistake's code and the text that it points at."""
    with pytest.raises(ProgramError) as caught:
        dag(text, operation)
    found: tuple[Diagnostic, ...] = tuple(caught.value.diagnostics)
    assert all(each.help or each.code == "E0901" for each in found)
    return [(each.code, text[each.span.start : each.span.end]) for each in found if each.span]


def formula(program: Dag, name: str) -> str:
    """Return the formula of an operand as one nested expression."""
    texts: dict[int, str] = {}
    for node in formula_of(program, name):
        word = str(program[node].name) if isinstance(program[node], Load | Element) else ""
        inner = ", ".join(texts[operand] for operand in program.arguments(node))
        texts[node] = word or f"{str(program[node]).partition('=')[2].strip(chr(39) + ')')}({inner})"
    return texts[program.arguments(program.feeds[name])[0]]


# The language


@pytest.mark.parametrize(
    "text",
    [
        "A = relu(s[k]*A + t[k]); D = acc",
        "D = acc; A = relu(x); x = s[k]*A + t[k]",
        "in s: f32[k]; D = acc; x = s*A; y = x + t[k]; A = relu(y)",
        "def affine(x, a, b) = a*x + b; A = relu(affine(A, s[k], t[k])); D = acc",
        "A[m, k] = relu(s[k]*A[m, k] + t[k]); D = acc",
    ],
)
def test_an_assignment_to_an_operand_is_its_formula(text: str) -> None:
    program = dag(text)
    assert formula(program, "A") == "relu(add(mul(s, A), t))"
    assert {value.name: value.modes for value in program.inputs} == {"s": ("k",), "t": ("k",)}
    assert [*program.feeds] == ["A"]
    epilogue = epilogue_of(typed(text))
    assert not any(isinstance(epilogue[node], Element | Feed) for node in range(len(epilogue)))


def test_both_operands_and_what_they_share() -> None:
    program = dag("B = B*alpha; A = A*alpha + mu[m]; D = acc*alpha + mu")
    assert [*program.feeds] == ["A", "B"]
    assert formula(program, "A") == "add(mul(A, alpha), mu)"
    assert {value.name: value.modes for value in program.inputs} == {"alpha": (), "mu": ("m",)}
    assert {frozenset[str](), frozenset({"A"}), frozenset({"B"}), frozenset({"acc"})} == set(sides_of(program))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A = 1; D = acc", [("E0411", "1")]),
        ("A = s[k]; D = acc", [("E0411", "s[k]")]),
        ("A = A + acc; D = acc", [("E0411", "A + acc")]),
        ("A = A*sum[n](A); D = acc", [("E0411", "sum[n](A)")]),
        ("A = even(A); D = acc", [("E0411", "even(A)")]),
        ("A = A + iota(m); D = acc", [("E0411", "iota(m)")]),
        ("A = dropout(A, 0.5, seed, offset); D = acc", [("E0411", "dropout(A, 0.5, seed, offset)")]),
        ("A = A*B; D = acc", [("E0411", "B")]),
        ("A = A*s; D = acc", [("E0411", "s")]),
        ("A = A + bias; D = acc", [("E0411", "bias")]),
        ("A = z; z = A*acc; D = acc", [("E0411", "z")]),
        ("def f(x) = x*acc*2\nA = f(A); D = acc", [("E0202", "acc")]),
        ("def f(x) = even(x)\nA = relu(f(A)); D = acc", [("E0411", "even(x)")]),
        ("D = acc*s; A = A*s", [("E0411", "A*s")]),
        ("B = B*s[m]; D = acc", [("E0411", "s[m]")]),
        ("A = A*s[m, k]; D = acc", [("E0901", "s[m, k]")]),
        ("A = A*s[l, k]; D = acc", [("E0901", "s[l, k]")]),
        ("A = A*s[m?]; D = acc", [("E0901", "s[m?]")]),
        ("A = relu(A); D = acc + A", [("E0406", "A")]),
        ("A = relu(x); x = A*2; D = acc + x", [("E0406", "A")]),
        ("D = acc + A", [("E0406", "A")]),
        ("A = relu(A); A = A*2; D = acc", [("E0401", "A")]),
        ("A[n, k] = relu(A); D = acc", [("E0302", "[n, k]")]),
        ("A = relu(A[m, n]); D = acc", [("E0302", "[m, n]")]),
        ("D = acc*s[k]", [("E0304", "s[k]")]),
        ("A = A*s[k]; D = acc*s", [("E0304", "s")]),
        ("in A: f16[m, k]; A = relu(A); D = acc", [("E0406", "A")]),
        ("out D[m, k]; D = acc", [("E0301", "k")]),
    ],
)
def test_a_mistake(text: str, expected: list[tuple[str, str]]) -> None:
    assert mistakes(text)[: len(expected)] == expected


@pytest.mark.parametrize(
    ("operation", "text", "expected"),
    [
        ("conv2d", "B = relu(B); D = acc", ("E0901", "B")),
        ("conv2d_dgrad", "A = relu(A); D = acc", ("E0901", "A")),
        ("conv2d", "A = A*s[m]; D = acc", ("E0411", "s[m]")),
    ],
)
def test_a_convolution_works_on_channels_of_its_activation(
    operation: str, text: str, expected: tuple[str, str]
) -> None:
    assert mistakes(text, operation) == [expected]


# The graph


@pytest.mark.parametrize("text", [NORMALISED, BOTH, "A = i8(A*0.5); D = acc"])
@pytest.mark.parametrize("operand", ["f16", "f32", "i8"])
def test_the_text_of_a_graph_reads_back(text: str, operand: str) -> None:
    for program in (dag(text), typed(text, operand), optimise(typed(text, operand), check=True)):
        assert parse_dag(str(program)) == program
        assert "feed A" in str(program)


def test_elements_have_the_operands_type_and_modes() -> None:
    program = typed("A = A*s[m]; B = relu(B); D = acc", "e4m3")
    types = {str(program[node]): str(program.types[node]) for node in range(len(program))}
    assert types["Element(name='A')"] == "e4m3[m, k]"
    assert types["Element(name='B')"] == "e4m3[n, k]"
    assert types["Feed(name='A')"] == "f32[m, k]"


def test_the_two_sides_do_not_meet() -> None:
    program = typed("A = relu(A); D = relu(acc)")
    builder = Builder()
    for node in range(len(program)):
        builder.add(program[node], *program.arguments(node))
    both = builder.add(Element("A")), builder.add(program[0])
    builder.add(Feed("B"), builder.add(program[program.arguments(program.feeds["A"])[0]], both[1]))
    with pytest.raises(InternalError):
        verify(prune(builder.finish("gemm", program.operands, program.inputs, (), None)))


def test_every_pass_keeps_the_formulas() -> None:
    text = "A = relu(relu(A*1*s[k]))/2; B = B*2*4; D = acc*1"
    for passes in (PIPELINE, RELAXED, ROUNDING_KEPT):
        program = typed(text)
        for each in passes:
            program = each(program)
            verify(program)
            assert [*program.feeds] == ["A", "B"]
        assert Apply("div") not in map(program.__getitem__, range(len(program)))  # x/2 -> x*0.5
        assert [value.name for value in program.inputs] == ["s"]
    relaxed = optimise(typed(text), relaxed=True)
    assert "const 0x1.0000000000000p+3" in str(relaxed)  # B*2*4 -> B*8


def test_an_operand_that_is_fed_as_it_is_has_no_feed() -> None:
    assert not optimise(typed("A = A*1; B = f16(B); D = acc")).feeds
    assert [*optimise(typed("A = A*1; B = f16(B)*2; D = acc")).feeds] == ["B"]
    assert "evt::mainloop" not in evt.gemm("A = A*1; D = acc").emit("sm80")


def test_what_an_operand_is_rounded_to() -> None:
    assert "cast i8" in str(place_casts(typed("A = A*0.5; D = acc", "i8")))
    assert "cast" not in str(place_casts(typed("A = f16(A*0.5); D = acc", "f16")))
    assert str(round_as_eager(typed("A = A*s[k] + 1; D = acc"))).count("cast f16") == 3


# The reference


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def test_a_formula_is_computed_in_f32_and_rounded_to_the_operands_type(generator: torch.Generator) -> None:
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((2, 5, 7), (7, 6)))
    s, mu = torch.randn(7, generator=generator).half(), torch.randn(5, generator=generator).half()
    t, bias = torch.randn(7, generator=generator), torch.randn(6, generator=generator).half()
    op = evt.gemm(NORMALISED)
    work = torch.relu(s.float() * (a.float() - mu.float()[:, None]) + 1.5 * t)
    want = torch.relu(work.half().float() @ b.float() + bias.float()).half()
    assert torch.equal(op(a, b, s=s, t=t, mu=mu, alpha=1.5, bias=bias), want)
    exact = torch.relu(s.double() * (a.double() - mu.double()[:, None]) + 1.5 * t.double())
    got = op.reference(a, b, s=s, t=t, mu=mu, alpha=1.5, bias=bias, float64=True)
    torch.testing.assert_close(got, torch.relu(exact @ b.double() + bias.double()))


def test_integers_are_rounded_and_saturate(generator: torch.Generator) -> None:
    a = torch.randint(-128, 128, (4, 8), generator=generator, dtype=torch.int8)
    b = torch.randint(-128, 128, (8, 4), generator=generator, dtype=torch.int8)
    op = evt.gemm("out D: i32; A = A*1.5; B = B + 1; D = acc")
    left = (a.double() * 1.5).round().clamp(-128, 127)
    assert torch.equal(op(a, b), (left @ (b.double() + 1).clamp(-128, 127)).int())


def test_linear_and_transposed_operands(generator: torch.Generator) -> None:
    x, weight = torch.randn(3, 4, 7, generator=generator), torch.randn(6, 7, generator=generator)
    mu, u = torch.randn(3, 4, generator=generator), torch.randn(6, generator=generator)
    op = evt.linear("A = A*mu[m]; B = B*u[n]; D = acc")
    want = torch.nn.functional.linear(x * mu[..., None], weight * u[:, None])
    torch.testing.assert_close(op(x, weight, mu=mu, u=u), want)
    op = evt.gemm("gemm(A: f32[k, m], B: f32[n, k]); A = A*mu[m]; B = B*s[k]; D = acc")
    a, s, row = torch.randn(7, 5, generator=generator), torch.randn(7, generator=generator), torch.randn(5)
    torch.testing.assert_close(op(a, weight, mu=row, s=s), (a.T * row[:, None]) @ (weight * s).T)


def test_a_convolution_pads_after_the_formula(generator: torch.Generator) -> None:
    x, w = torch.randn(2, 5, 6, 7, generator=generator), torch.randn(4, 5, 3, 3, generator=generator)
    s, t = torch.randn(5, generator=generator), torch.randn(5, generator=generator)
    op = evt.conv2d("A = s[k]*A + t[k]; D = acc", padding=1, stride=2)
    work = s[None, :, None, None] * x + t[None, :, None, None]
    want = torch.nn.functional.conv2d(work, w, padding=1, stride=2)
    torch.testing.assert_close(op(x, w, s=s, t=t), want)


def test_without_a_formula_the_operand_comes_back() -> None:
    a = torch.randn(3, 4)
    assert operand_values(typed("D = acc", "f32"), "A", a, {}) is a


def test_the_vectors_of_a_call_are_checked() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 6)
    op = evt.gemm("in s: f32[k] = 1; A = relu(s*A); D = acc")
    torch.testing.assert_close(op(a, b), torch.relu(a) @ b)
    torch.testing.assert_close(op(a, b, s=torch.arange(7.0)), torch.relu(a * torch.arange(7.0)) @ b)
    for wrong, code in ((torch.ones(5), "E0604"), (2.0, "E0607"), (torch.ones(14)[::2], "E0606")):
        with pytest.raises(ArgumentError, match=code):
            op(a, b, s=wrong)


# Routes and kernels


def routes(text: str, arch: str, operation: str = "gemm", **keywords: Any) -> dict[str, tuple[str, ...]]:
    """For each route why it does not apply."""
    problem = packed_problem(Program(Source(text), operation, **keywords).request, arch)
    return {each.route.name: tuple(refusal.reason for refusal in each.refusals) for each in survey(problem).candidates}


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("A = s[k]*A; D = acc", "scale B along k instead"),
        ("A = A*s[m]; D = acc", "scale the product instead: `s[m] * acc`"),
        ("B = B*alpha; D = acc", "scale the product instead: `alpha * acc`"),
        ("A = relu(A); D = acc", "compute A by a kernel before"),
    ],
)
@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_other_routes_say_what_to_do_instead(arch: str, text: str, proposed: str) -> None:
    found = routes(text, arch)
    assert found.pop("mainloop-2x") == ()
    assert all(any(proposed in reason for reason in reasons) for reasons in found.values())
    with pytest.raises(TargetError, match="has a mainloop fusion"):
        evt.gemm(text, route="evt-2x").plan("sm80")


def test_a_program_without_work_takes_no_such_route() -> None:
    assert any("no mainloop fusion" in reason for reason in routes("D = acc", "sm80")["mainloop-2x"])
    with pytest.raises(TargetError, match="E0502"):
        evt.gemm("D = acc", route="mainloop").plan("sm80")


def test_work_that_no_kernel_does_is_refused() -> None:
    assert any(
        "f64" in reason for reason in routes("gemm(A: f64, B: f64); A = relu(A); D = acc", "sm80")["mainloop-2x"]
    )
    found = routes("A = relu(A); D = acc", "sm80", "conv3d")
    assert "it has three spatial dimensions" in found["conv-mainloop-2x"]
    for operation, keywords in (("conv3d", {}), ("conv2d", {"groups": 2})):
        with pytest.raises(TargetError, match="E0503"):
            Program(Source("A = relu(A); D = acc"), operation, **keywords).plan("sm80")


def test_the_functor_takes_the_element_and_the_inputs() -> None:
    plan = evt.gemm(NORMALISED).plan("sm80")
    assert plan.template == "gemm_2x_mainloop"
    (work,), (spelled,) = plan.work, spell(plan).work
    assert work.operand == spelled.operand == "A"
    assert worked(plan) == ("WorkOnA", "evt::mainloop::None")
    assert [each.removeprefix("evt::mainloop::") for each in spelled.types[1:]] == [
        "AlongK<cutlass::half_t>",
        "AlongOuter<cutlass::half_t>",
        "Single<float>",
        "AlongK<float>",
    ]
    assert spelled.types[0] == work.region.name
    assert [value.name for value in work.region.parameters] == ["x", "in_s", "in_mu", "in_alpha", "in_t"]
    assert {"in_s", "in_t", "in_mu", "in_alpha"} <= {field.name for field in plan.fields}


def test_a_transposed_problem_exchanges_the_work() -> None:
    plan = evt.gemm("out D[n, m]; B = B*u[n]; D = acc").plan("sm80")
    assert [work.operand for work in plan.work] == ["A"]
    assert plan.transposed


def test_an_operand_that_does_not_matter_any_more() -> None:
    plan = evt.gemm("A = A*0 + s[k]; D = acc", relaxed=True).plan("sm80")
    region = plan.work[0].region
    assert region.parameters == (Value("x", F32), Value("in_s", F32))
    assert region.statements == (Copy(Value("t0", F32), Value("in_s", F32)),)


@pytest.mark.parametrize("operand", ["f16", "bf16", "f32", "e4m3", "i8"])
@pytest.mark.parametrize("text", [NORMALISED, BOTH])
def test_text_is_emitted_for_every_type(text: str, operand: str) -> None:
    emitted = evt.gemm(text).emit("sm89", operand)
    assert emitted == evt.gemm(text).emit("sm89", operand)
    assert "evt::mainloop::WithWork<" in emitted
    assert "result.work_a.inputs = " in emitted


def test_a_convolution_knows_whether_it_is_padded() -> None:
    for padding in (0, 1):
        plan = evt.conv2d("A = relu(s[k]*A + t[k]); D = relu(acc + bias)", padding=padding).plan("sm80")
        assert plan.template == "conv_2x_mainloop"
        assert worked(plan)[-1] == ("true" if padding else "false")


def test_functions_of_the_users_own_are_defined_in_the_text() -> None:
    with temporarily():
        evt.function("mainloop_test(x)", cxx="x > 1 ? x : 0", torch=lambda t, x: t.where(x > 1, x, 0))
        emitted = evt.gemm("A = mainloop_test(A); D = acc").emit("sm80")
    assert emitted.count("mainloop_test(") > 1


def test_outputs_are_all_stored() -> None:
    program = evt.gemm("out D, E: f32[m]; A = relu(A); D = acc; E = sum[n](acc)").plan("sm80")
    stored = {field.tensor for field in program.fields if field.kind == "pointer"}
    assert {"A", "B", "D", "E"} == stored - {""}


@pytest.mark.parametrize(("modes", "kind"), [("", "Single"), ("[k]", "AlongK"), ("[m]", "AlongOuter")])
def test_truth_values_are_read_as_bytes(modes: str, kind: str) -> None:
    """CUTLASS packs arrays of bool, and pointers to tensors of truth values are of bytes."""
    (spelled,) = spell(evt.gemm(f"in keep: bool{modes}; A = A*keep; D = acc").plan("sm80")).work
    assert spelled.types[1:] == (f"evt::mainloop::{kind}<std::uint8_t>",)
