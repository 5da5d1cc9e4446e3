"""The typed plan: it holds decisions and no C++, every node is spelled and described, and planners stay flat."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import evt
import evt.emission
import evt.plan
from evt.emission import emit
from evt.emission.kernel import spell
from evt.explain import explain
from evt.grouped import grouped_gemm
from evt.ir.dtype import E4M3, F32, I32, DType
from evt.plan import Plan, Target, survey
from evt.plan.epilogue.broadcasts import PairBroadcast
from evt.plan.epilogue.computes import Apply
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.regions import Call, Constant, Region, Round, Value
from evt.plan.epilogue.values import Single
from evt.plan.epilogue.writes import Reduction
from evt.plan.plan import Convolution3x, PaddedCopy
from evt.plan.stock_epilogue import StockFusion, StockOperator
from evt.request import packed_problem
from tests.support.plans import STEPS

RELU = "D = relu(alpha*acc + beta*C) + residual"
#: Programs that have every node among them; bits, pairs, blocks and reductions of all shapes.
PROGRAMS = (
    RELU,
    "out D, Z, E; Z = acc + bias; D = silu(Z)*s[m]; E = 2*3",
    "in s[m?], b[n?], C[n, m]; out D, T[n, m]; D = acc*s + b + C; T = acc",
    "in k: b1[m, n]; out D, j: b1[m, n]; D = where(k, acc, 0); j = acc > 0",
    "in h[m, n/2]; out D, g[m, n/2]; D = acc; g = even(acc)*odd(acc) + h",
    "out D, q: f32[m, n/32]; q = max[n%32](abs(acc)); D = acc + iota(m) + iota(l)",
    "in seed: i32; out D, r: f32[m], c: f32[n], a: f32; D = acc*rand(seed, 7); r = sum[n](acc); c = max[m](acc); "
    "a = min[m, n](acc)",
    "D[i[m], n] = acc + x[i[m], j[n]]",
    "in c[n]; D = acc + swap(acc)*c",
    "D = interleave(even(acc), odd(acc))",
    "D = acc; i = argmax[n](acc)",
    "in w: f32[m]; out D[m, n/2], s, r: f32[m]; D = even(acc)/size(k); s = sum[n](D); r = rsqrt(s/size(n))*w",
)
ARCHS = ("sm80", "sm90", "sm100")


@cache
def visitor_plans() -> tuple[Plan, ...]:
    return tuple(evt.gemm(text, route="evt").plan(arch, "f16", "f16") for text in PROGRAMS for arch in ARCHS)


@cache
def plans() -> tuple[Plan, ...]:
    """Plans of every template."""
    wide, few = ((2, 64, 9, 9), (64, 64, 3, 3)), ((2, 3, 33, 35), (64, 3, 7, 7))
    others = [evt.gemm("D = relu(acc + bias)", route="stock").plan(arch) for arch in ARCHS]
    others.append(evt.gemm("out D, Z; Z = acc + bias; D = relu(Z)", route="stock").plan("sm90"))
    others += [evt.gemm("A = relu(s[k]*A + t[m]); D = acc + bias").plan("sm80")]
    for shapes in (wide, few):
        others += [evt.conv2d(RELU, padding=1).plan(arch, "f16", "f16", shapes=shapes) for arch in ("sm80", "sm90")]
    others.append(evt.conv2d("D = relu(acc + bias)", padding=1, route="stock").plan("sm80", shapes=wide))
    others.append(evt.conv2d("A = relu(s[k]*A); D = acc", padding=1).plan("sm80", shapes=wide))
    others.append(evt.linear("D = silu(acc + bias)*matmul(A, up)").plan("sm90"))
    others.append(grouped_gemm("in b[n?]; D = relu(alpha*acc + beta*C) + b").plan("sm90"))
    others.append(evt.gemm("D = acc + bias", route="evt").plan("sm120", "e4m3", "e4m3"))
    return (*visitor_plans(), *others)


# Decisions, not spelling


def texts(value: Any, where: str = "plan") -> Iterator[tuple[str, str]]:
    """Yield the texts in a plan, and where each is."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, tuple):
        for each in value:
            yield from texts(each, where)
    elif dataclasses.is_dataclass(value) and not isinstance(value, DType | Target):  # which know their names elsewhere
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name), f"{where}.{field.name}")


#: The user's text, and sentences about it.
OF_THE_USER = (
    "plan.program",
    "plan.interface",
    "plan.signature",
    "plan.functions",
    "plan.epilogue.steps.origin",
    "plan.epilogue.results.origin",
    "plan.mainloop.work.origin",
)


def test_a_plan_holds_no_cxx() -> None:
    for made in plans():
        found = [(where, text) for where, text in texts(made) if where not in OF_THE_USER]
        assert len(found) > 20
        for where, text in found:
            assert not set("<>{}()*;&") & set(text), (where, text)
            assert "::" not in text, (where, text)
            assert "arguments." not in text, (where, text)
            assert "_cast" not in text, (where, text)


def test_the_search_for_cxx_sees_what_a_plan_has() -> None:
    made = dataclasses.replace(plans()[0], route="evt::Sum", template="x<y>")
    assert {where for where, text in texts(made) if "::" in text or "<" in text} >= {"plan.route", "plan.template"}


def test_the_plans_here_have_every_template_and_part() -> None:
    folder = evt.emission.resources.directory("codegen") / "templates"  # type: ignore[attr-defined]
    templates = {path.name.split(".")[0] for path in folder.glob("*.cu.jinja")}
    own = {"own_gemv", "own_depthwise", "own_wgrad", "group_norm"}  # other tests have these
    assert {made.template for made in plans()} == templates - own
    assert {type(made.epilogue) for made in plans()} == {EpilogueProgram, StockOperator, StockFusion}
    assert any(isinstance(made.mainloop, Convolution3x) and made.mainloop.window_channels for made in plans())


# Nodes


def test_every_node_is_planned_spelled_and_described() -> None:
    assert {type(step) for made in visitor_plans() for step in made.steps} == STEPS - {PairBroadcast}  # an own kernel's
    for made in visitor_plans():
        spelled = spell(made).nest.unique
        assert [each.name for each in spelled] == list({node.name: node for node in made.steps})
        generated = emit(made)
        assert all(f"using {each.name} = " in generated for each in spelled)
    for text in PROGRAMS:
        for arch in ARCHS:
            explained = evt.gemm(text, route="evt").explain(arch, "f16", "f16")
            assert all(line.partition(": ")[2] for line in explained.visitors)
            names = [line.partition(": ")[0] for line in explained.visitors]
            results = [result.name for result in explained.plan.results if result.region is not None]
            assert names == [*{node.name: node for node in explained.plan.steps}, *results]


def test_nodes_name_members_of_the_call() -> None:
    for made in plans():
        known = {*made.fields, *getattr(made, "group_fields", ())}
        assert {field for node in (*made.steps, *made.results) for field in fields_of(node)} <= known


def fields_of(value: Any) -> Iterator[evt.plan.Field]:
    if isinstance(value, evt.plan.Field):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from fields_of(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from fields_of(getattr(value, field.name))


def test_operands_come_before_the_nodes_that_visit_them() -> None:
    for made in visitor_plans():
        for index, node in enumerate(made.steps):
            assert all(operand < index for operand in node.operands)


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_reductions_say_how_they_are_combined(arch: str) -> None:
    text = "out D, r: f32[m], h: f16[m]; D = acc; r = sum[n](acc); h = max[n](acc)"
    for atomic in (False, True):
        made = evt.gemm(text, deterministic=not atomic).plan(arch, "f16", "f16")
        assert [node.atomic is not None for node in made.reductions] == [
            atomic,
            False,
        ]  # f16 is not the type of the reduction
        explained = evt.gemm(text, deterministic=not atomic).explain(arch, "f16", "f16").details()
        assert ("column reduction, sum, by atomics" in explained) == atomic
        assert "column reduction, max, in parts" in explained


# Regions


def regions_of(text: str, **options: Any) -> tuple[Region, ...]:
    return evt.gemm(text, **options).plan("sm80", "f16", "f16").regions


def test_a_region_is_statements_over_typed_operations() -> None:
    (region,) = regions_of("in i: i32[m, n]; D = e4m3(acc * i) + 2")
    given, product, rounded, result = region.statements
    assert given == Round(Value("t0", F32), F32, Value("in_i", I32))
    assert product == Call(Value("t1", F32), "mul", F32, (Value("acc", F32), Value("t0", F32)))
    assert rounded == Round(Value("t2", F32), E4M3, Value("t1", F32))
    assert isinstance(result, Call)
    assert result.operands[0] == Value("t2", F32)
    assert isinstance(result.operands[1], Constant)


def test_how_a_function_is_spelled_is_for_emission_to_say() -> None:
    exact, fast = (evt.gemm("D = tanh(acc + bias)", fast_math=each).plan("sm80") for each in (False, True))
    assert exact.regions == fast.regions
    assert spell(exact).functors != spell(fast).functors


# Planners are put together


def classes() -> Iterator[type]:
    for package in (evt.plan, evt.emission):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for _, each in inspect.getmembers(module, inspect.isclass):
                if each.__module__ == module.__name__:
                    yield each


def depth(kind: type) -> int:
    """Return the depth of a class in evt's hierarchy."""
    return 1 + max((depth(base) for base in kind.__bases__ if base.__module__.startswith("evt.")), default=0)


def test_no_class_is_deeper_than_three() -> None:
    found = list(classes())
    assert len(found) > 50
    assert [each for each in found if depth(each) > 3] == []
    assert [each for each in found if sum(base.__module__.startswith("evt.") for base in each.__bases__) > 1] == []


def test_the_depth_of_classes_is_seen() -> None:
    class Base(Reduction):
        pass

    assert depth(Base) >= 2
    assert {depth(Apply), depth(Single), depth(PaddedCopy)} == {1, 2}


def test_explain_reads_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is printed to explain it."""
    problem = packed_problem(evt.gemm(RELU).request, "sm90", "f16", "f16")
    monkeypatch.setattr("jinja2.Template.render", None)
    assert "compute of Region0" in explain(survey(problem)).details()
