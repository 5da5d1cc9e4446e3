"""Routes: a record is all that there is of one; rules are asked once, and configurations planned once."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import evt
from evt.emission import emit
from evt.explain import explain
from evt.ir import Apply
from evt.plan import ROUTES, Config, Kernel, Plan, Problem, Route, find_target, natural_signature, plan, survey
from evt.plan.kernels import convolution, depthwise, gemm, gemm_own, gemv, grouped_3x, halo, wgrad
from evt.plan.kernels.draft import Selection
from evt.plan.kernels.gemm import VISITORS_2X
from evt.plan.routes import gemm_2x, order
from evt.plan.rules.rule import Rule, rule
from evt.plan.target import GENERATION_OF
from evt.plan.verdict import HOLDS, Match, Matches, Refusal, Verdict
from evt.request import optimised_graph, packed_problem, problem_sizes

ROOT = Path(__file__).parents[2]
RELU = "D = relu(alpha*acc + beta*C) + residual"


def problem_of(text: str, arch: str, shape: str = "gemm") -> Problem:
    if shape == "convolution":
        return packed_problem(evt.conv2d(text, padding=1).request, arch, "f16", "f16")
    problem = packed_problem(evt.gemm(text).request, arch, "f16", "f16")
    return replace(problem, grouped=shape == "grouped")


# A route that is added by its record alone


@dataclass(frozen=True)
class Squares:
    """The match of the toy route's rule, for its planner."""

    count: int


@rule("the formula has squares")
def squares(problem: Problem) -> Verdict:
    dag = problem.dag
    count = sum(dag[node] == Apply("square") for node in range(len(dag)))
    return Match(Squares(count)) if count else Refusal("nothing is squared")


@dataclass(frozen=True)
class ToyPlanner:
    """The planner of 2.x kernels; it adds the rule's match to the kernel's notes."""

    template: str = VISITORS_2X.template

    def __call__(self, selection: Selection) -> Plan:
        made = VISITORS_2X(selection)
        return replace(made, signature=f"{made.signature}, {selection.matches[Squares].count} squared")


def toy_configs(problem: Problem) -> tuple[Config, ...]:
    (known,) = gemm_2x.configs_gemm(problem)
    general = replace(known, use="always")
    return general, replace(general, tile=(64, 128, 32), warp=(32, 64, 32)), replace(known, tile=(512, 512, 512))


TOY = Route(
    name="toy-2x",
    kind="own",
    generation="2x",
    summary="a toy",
    rules=(squares, *gemm_2x.EVT.rules),
    kernels={"2x": Kernel(ToyPlanner(), toy_configs)},
    otherwise="square something",
)
SQUARED = "D = square(acc + bias) + square(C)"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Route:
    """Prefer the toy to all other routes. Nothing but the order of routes knows it."""
    monkeypatch.setattr(order, "ROUTES", (TOY, *ROUTES))
    return TOY


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_a_route_is_added_by_its_record(arch: str) -> None:
    op = evt.gemm(SQUARED)
    made = op.plan(arch)
    assert made.route == "toy-2x"
    assert made.signature.endswith(", 2 squared")
    assert "2 squared" in op.emit(arch)
    assert evt.gemm(SQUARED, route="own").plan(arch) == made
    explained = op.explain(arch)
    assert explained.routes[0].chosen
    assert explained.routes[0].rules[0] == ("the formula has squares", "")
    assert "-> toy-2x: a toy" in explained.details()
    large, small = (evt.gemm(SQUARED, config=name).plan(arch) for name in explained.configurations)
    assert large == made
    assert small.config.tile[0] < large.config.tile[0]
    with pytest.raises(evt.TargetError, match=r"E0502\]: multistage_512x512x512 needs \d+ KiB of shared memory"):
        evt.gemm(SQUARED, config="multistage_512x512x512").plan(arch)


@pytest.mark.usefixtures("toy")
def test_an_added_route_is_among_those_that_are_timed() -> None:
    from evt.tuning.candidates import names_of

    found = survey(problem_of(SQUARED, "sm80"))
    both = [each.config.name for each in found.defaults]
    assert len(both) == 2
    assert names_of(found) == [*(("toy-2x", config) for config in both), ("evt-2x", both[0])]


@pytest.mark.usefixtures("toy")
def test_an_added_route_refuses_as_others_do() -> None:
    assert evt.gemm(RELU).plan("sm80").route == "evt-2x"
    with pytest.raises(evt.TargetError, match=r"E0502\]: the route toy-2x cannot(.|\n)*square something") as raised:
        evt.gemm(RELU, route="toy-2x").plan("sm80")
    assert raised.value.diagnostics[0].message.endswith("cannot compile this program: nothing is squared")
    with pytest.raises(evt.TargetError, match=r"E0501\]: there is no route `toy`(.|\n)*toy-2x"):
        evt.gemm(SQUARED, route="toy").plan("sm80")


def literals(path: Path) -> set[str]:
    """Return the strings in a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_a_route_is_in_its_record_planner_template_and_headers_only() -> None:
    """Adding one touches these files: no other module of evt has the name of a route, or of its planner."""
    records = ROOT / "evt" / "plan" / "routes"
    elsewhere = [path for path in (ROOT / "evt").rglob("*.py") if path.parent != records]
    names = {route.name for route in ROUTES}
    assert {path.name: found for path in elsewhere if (found := literals(path) & names)} == {}
    for route in ROUTES:
        for kernel in route.kernels.values():
            planner = kernel.planner
            modules = (convolution, depthwise, gemm, gemm_own, gemv, grouped_3x, halo, wgrad)
            assert any(each is planner for module in modules for each in vars(module).values())
            assert (ROOT / "codegen" / "templates" / f"{planner.template}.cu.jinja").is_file()


def test_names_are_unique_and_every_record_has_its_place() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    modules = [path.stem for path in (ROOT / "evt" / "plan" / "routes").glob("*_[0-9]x.py")]
    found = [
        each
        for module in modules
        for each in vars(__import__(f"evt.plan.routes.{module}", fromlist=[module])).values()
        if isinstance(each, Route)
    ]
    assert set(map(id, found)) == set(map(id, ROUTES))
    for route in ROUTES:
        assert {GENERATION_OF[family] for family in route.kernels} == {route.generation}


# Nothing is asked or planned twice

#: The number of times that each rule is asked, and each configuration of a route planned.
Counts = tuple[Counter[Rule], Counter[tuple[str, str]]]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    asked: Counter[Rule] = Counter()
    planned: Counter[tuple[str, str]] = Counter()
    rules: dict[Rule, Rule] = {}

    def counted_rule(original: Rule) -> Rule:
        def check(problem: Problem) -> Verdict:
            asked[original] += 1
            return original.check(problem)

        return rules.setdefault(original, Rule(original.statement, check, original.code))

    def counted_kernel(kernel: Kernel) -> Kernel:
        def planner(selection: Selection) -> Plan:
            planned[selection.route, selection.config.name] += 1
            return kernel.planner(selection)

        return replace(kernel, planner=planner)

    def counted(route: Route) -> Route:
        return replace(
            route,
            rules=tuple(map(counted_rule, route.rules)),
            kernels={family: counted_kernel(kernel) for family, kernel in route.kernels.items()},
        )

    monkeypatch.setattr(order, "ROUTES", tuple(map(counted, ROUTES)))
    return asked, planned


def rules_of(problem: Problem, last: str = "") -> set[Rule]:
    """Return the rules of a problem's routes, up to one of them."""
    routes = [route for route in ROUTES if problem.shape in route.shapes]
    names = [route.name for route in routes]
    return {rule for route in routes[: names.index(last) + 1 if last else None] for rule in route.rules}


PROBLEMS = {
    "stock": (RELU, "sm80", "gemm"),
    "tree": ("D = gelu(acc + bias) * gate", "sm90", "gemm"),
    "sm100": ("D = acc", "sm100", "gemm"),
    "convolution": ("D = relu(acc + bias + residual)", "sm90", "convolution"),
    "convolution-2x": ("D = relu(acc + bias)", "sm86", "convolution"),
    "grouped": (RELU, "sm90", "grouped"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_explaining_asks_and_plans_once(name: str, counts: Counts) -> None:
    asked, planned = counts
    problem = problem_of(*PROBLEMS[name])
    explained = explain(survey(problem))
    assert asked == dict.fromkeys(rules_of(problem), 1)
    assert set(planned.values()) == {1}
    applying = {each.name for each in explained.routes if each.applies}
    assert {route for route, _ in planned} == applying
    taken = explained.plan.route
    assert {config for route, config in planned if route == taken} == set(explained.configurations)


def test_a_measured_choice_is_explained_by_the_same_survey(
    counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evt.measured import Measurement, Store, Timing, problem_key

    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    op, shapes = evt.gemm(RELU), ((40, 24), (24, 16))
    problem, sizes = packed_problem(op.request, "sm90", "f16", "f16", shapes), problem_sizes(op.request, shapes)
    chosen = survey(problem, "evt-2x").plan
    times = (Timing(chosen.route, chosen.config.name, 0.5),)
    Store().add(problem_key(problem, sizes), Measurement("GPU", "sm90", RELU, sizes, times))
    asked, planned = counts
    asked.clear()
    planned.clear()
    explained = op.explain("sm90", "f16", "f16", shapes=shapes)
    assert (explained.chosen_by, explained.plan.route) == ("measurement", "evt-2x")
    assert set(asked.values()) == {1}
    assert set(planned.values()) == {1}


def test_a_configuration_is_explained_or_refused() -> None:
    asked = evt.gemm("D = relu(acc)", config="pingpong_64x64x64").explain("sm90")
    assert asked.configurations == ("pingpong_64x64x64",)
    assert asked.chosen_by == "force"
    with pytest.raises(evt.TargetError, match="the route gemm-own-3x has no configuration `pingpong`") as refused:
        evt.gemm("D = relu(acc)", config="pingpong").explain("sm90")
    assert [each.code for each in refused.value.diagnostics] == ["E0501"]


def test_a_configuration_of_a_loop_is_that_of_each_launch() -> None:
    looped = evt.grouped_gemm("D = relu(acc)", route="loop", config="pingpong_64x64x64").explain("sm90")
    assert looped.configurations == ("pingpong_64x64x64",)
    with pytest.raises(evt.TargetError, match="the route gemm-own-3x has no configuration `pingpong`"):
        evt.grouped_gemm("D = relu(acc)", route="loop", config="pingpong").explain("sm90")


def test_a_configuration_of_another_route() -> None:
    """A configuration names its route; a route that is asked for must have it."""
    shapes = (1, 512, 7, 7), (512, 512, 3, 3)
    taken = evt.conv2d("D = acc", padding=1, config="halo_shared_64x64x64").plan("sm90", shapes=shapes)
    assert (taken.route, taken.config.name) == ("conv-halo-3x", "halo_shared_64x64x64")
    forced = evt.conv2d("D = acc", padding=1, route="conv-evt-3x", config="halo_shared_64x64x64")
    with pytest.raises(evt.TargetError, match="conv-evt-3x has no configuration `halo_shared_64x64x64`") as refused:
        forced.plan("sm90", shapes=shapes)
    assert refused.value.diagnostics[0].notes == (
        "`halo_shared_64x64x64` is a configuration of conv-halo-3x: ask for that route, too",
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_planning_stops_at_what_it_needs(name: str, counts: Counts) -> None:
    """Rules of routes that come later are not asked, nor is anything after a rule that refuses."""
    asked, planned = counts
    problem = problem_of(*PROBLEMS[name])
    made = plan(problem)
    assert planned == {(made.route, made.config.name): 1}
    assert set(asked.values()) == {1}
    assert asked.keys() <= rules_of(problem, last=made.route)


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_tuned_over_is_planned_once(name: str, counts: Counts) -> None:
    from evt.plan.cards import find_card
    from evt.tuning.candidates import candidates, names_of

    asked, planned = counts
    found = survey(problem_of(*PROBLEMS[name]))
    layer = evt.conv2d(RELU, padding=1).request.convolution.problem((2, 64, 8, 4), (64, 64, 3, 3)).sizes
    sizes = layer if PROBLEMS[name][2] == "convolution" else {"m": 64, "n": 64, "k": 1024}
    made = candidates(found, {**sizes, "l": 1}, find_card("h200"))
    assert made.names == names_of(found) == list(planned)
    assert set(planned.values()) == {1}
    assert set(asked.values()) == {1}


def test_a_formula_is_matched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both generations look for a stock epilogue, and their planners print the match."""
    calls = []
    from evt.plan import problem as module

    match = module.match_stock  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "match_stock", lambda dag: calls.append(dag) or match(dag))
    explained = explain(survey(problem_of("D = relu(acc + bias)", "sm90")))
    assert [route.name for route in explained.routes if route.applies][:4] == [
        "gemm-own-3x",
        "stock-3x",
        "evt-3x",
        "stock-2x",
    ]
    assert len(calls) == 1


# Rules and their matches


def test_matches_are_found_by_type() -> None:
    found = Matches([HOLDS, Match(Squares(3)), Match("text")])
    assert found[Squares] == Squares(3)
    assert found[str] == "text"
    with pytest.raises(KeyError):
        found[int]


# Grouped products are a shape of problem


def test_grouped_products_have_routes_of_their_own() -> None:
    problem = problem_of(RELU, "sm90", "grouped")
    assert problem.shape == "grouped"
    made = plan(problem)
    assert made.route == "evt-3x-grouped"
    assert "GroupProblemShape" in emit(made)
    explained = explain(survey(problem))
    assert [(route.name, route.chosen) for route in explained.routes] == [("evt-3x-grouped", True)]
    assert "evt-3x-grouped: visitor tree in a grouped" in str(explained)
    assert len(survey(problem).chosen.configs) == 7
    with pytest.raises(evt.TargetError, match=r"E0501\]: there is no route `evt-3x`(.|\n)*evt-3x-grouped"):
        plan(problem, "evt-3x")
    with pytest.raises(evt.TargetError, match=r"E0501\]: there is no route `evt-3x-grouped`"):
        evt.gemm(RELU, route="evt-3x-grouped").plan("sm90")


def test_measurements_of_groups_are_of_their_own() -> None:
    from evt.measured import problem_key

    problems = (problem_of(RELU, "sm90", shape) for shape in ("gemm", "grouped"))
    assert len({problem_key(problem, {"m": 8, "n": 8, "k": 8}) for problem in problems}) == 2


def test_a_grouped_refusal_has_its_rules_and_what_to_do() -> None:
    dag = optimised_graph(evt.gemm("D = acc; s = sum[n](acc)").request, "f16")
    for arch, reason in (("sm90", "a reduction would be over each group"), ("sm80", "for sm90, not for sm80")):
        with pytest.raises(evt.TargetError) as raised:
            plan(Problem(dag, natural_signature(dag), find_target(arch), grouped=True))
        (found,) = raised.value.diagnostics
        assert found.code == "E0503"
        assert found.help == 'route="loop" launches a kernel for each group'
        assert reason in found.message
