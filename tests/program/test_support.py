"""``evt.supports``: the answer agrees with the planner, names every reason, and neither compiles nor raises."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

import evt
from evt.errors import EvtError
from evt.plan.routes.order import ROUTES
from tests.programs.checks import make, operand_types
from tests.programs.generator import generate

CONVOLUTION = {"operation": "conv2d", "padding": 1, "shapes": ((2, 64, 56, 56), (64, 64, 3, 3))}


def test_yes_has_a_route_and_an_estimate() -> None:
    found = evt.supports("D = relu(acc + bias)", arch="h100", shapes=((4096, 4096), (4096, 4096)), a="bf16")
    assert found
    assert (found.supported, found.target, found.reasons) == (True, "sm90", ())
    assert found.route in found.routes
    assert found.estimate is not None
    assert (found.estimate.route, found.estimate.config) == (found.route, found.config)
    op = evt.gemm("D = relu(acc + bias)")
    assert found.estimate == op.estimate(((4096, 4096), (4096, 4096)), "h100", "bf16")
    assert evt.supports("D = acc").estimate is None  # the sizes are unknown
    assert evt.supports("D = acc", shapes=((0, 64), (64, 128))).estimate is None
    assert evt.supports("D = acc + bias", **CONVOLUTION).estimate is not None
    assert evt.supports(evt.grouped_gemm("D = acc"), "sm90", [((3, 64), (64, 128)), ((0, 64), (64, 128))])


def test_shapes_decide_alignments() -> None:
    odd = evt.supports("D = relu(acc)", "sm90", ((64, 65), (65, 64)), a="f16", route="evt-3x")
    assert not odd
    assert [(each.route, each.code) for each in odd.reasons] == [("evt-3x", "tma")]
    assert "16-byte" in odd.reasons[0].rule
    assert evt.supports("D = relu(acc)", "sm90", ((64, 65), (65, 64)), a="f16")


def test_no_has_every_reason() -> None:
    found = evt.supports("D = relu(acc)", arch="sm80", a="e4m3")
    assert not found
    assert (found.route, found.config, found.estimate, found.routes) == (None, None, None, ())
    assert {(each.route, each.code) for each in found.reasons} >= {("evt-2x", "mma"), ("evt-3x", "runs_on")}
    assert "evt-2x: mma: sm80 does not multiply e4m3" in str(found)
    batches = evt.supports("out D, s[n]; D = acc; s = sum[l, m](acc)", "sm80", ((70000, 8, 64), (70000, 64, 128)))
    assert ("evt-2x", "batches") in {(each.route, each.code) for each in batches.reasons}
    assert json.loads(json.dumps(found.to_json()))["reasons"][0]["code"] == found.reasons[0].code


@pytest.mark.parametrize(
    ("program", "keywords", "code"),
    [
        ("D = acc", {"arch": "sm75"}, "E0501"),
        ("D = acc", {"arch": "nonsense"}, "E0501"),
        ("D = acc", {"a": "nonsense"}, "E0303"),
        ("gemm(A: f16[m, k], B: f16[k, n]); D = acc", {"a": "bf16"}, "E0305"),
        ("D = acc", {"route": "nonsense"}, "E0501"),
        ("A = A*x; in x[m, k]; D = acc", {}, "E0901"),
    ],
)
def test_reasons_before_the_routes_are_diagnostics(program: str, keywords: dict[str, str], code: str) -> None:
    found = evt.supports(program, **keywords)
    assert not found
    assert [(each.code, each.route) for each in found.reasons] == [(code, "")]


def test_mistakes_are_errors() -> None:
    with pytest.raises(evt.ProgramError, match="E0104"):
        evt.supports("D = relu(acc")
    with pytest.raises(evt.ArgumentError, match="E0604"):
        evt.supports("D = acc", shapes=((3, 4), (5, 6)))
    with pytest.raises(evt.ArgumentError, match="E0602"):
        evt.supports("D = acc", nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(evt.ArgumentError, match="E0607"):
        evt.supports(3)


@pytest.mark.parametrize("keywords", [{"route": "stock"}, {"fast_math": True}, {"operation": "linear"}, {"padding": 1}])
@pytest.mark.parametrize("program", [evt.gemm("D = acc"), evt.conv2d("D = acc"), evt.grouped_gemm("D = acc")], ids=str)
def test_a_program_has_its_own_settings(program: evt.Program, keywords: dict[str, object]) -> None:
    with pytest.raises(evt.ArgumentError, match=rf"E0602\]: `{next(iter(keywords))}`"):
        evt.supports(program, **keywords)


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_the_answer_is_the_planners(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVT_COMPILE", "never")
    answers = set()
    for seed in range(30):
        program = generate(seed)
        try:
            op, (a, b) = make(program), operand_types(program)
        except evt.EvtError:
            continue
        try:
            planned = op.explain(arch, a, b).plan.route
        except (evt.TargetError, evt.ProgramError):
            planned = None
        found = evt.supports(op, arch, a=a, b=b)
        assert found.route == planned
        assert bool(found.reasons) == (planned is None)
        answers.add(planned)
    assert len(answers) > 2
    assert None in answers


def test_codes_are_names_of_rules() -> None:
    rules = {rule for route in ROUTES for rule in route.rules}
    assert all(rule.code.isidentifier() and rule.code != "check" for rule in rules)
    for route in ROUTES:
        assert len({rule.code for rule in route.rules}) == len(route.rules)


@pytest.mark.parametrize("zero", range(5))
@pytest.mark.parametrize("operation", ["conv1d", "conv2d", "conv2d_dgrad", "conv2d_wgrad"])
def test_empty_convolutions_are_explained_or_refused(operation: str, zero: int) -> None:
    """Images, channels, filters, pixels or taps may be none: rules that divide by them have no sizes."""
    rank = int(operation[4])
    images, channels, filters, pixels, taps = (
        0 if index == zero else size for index, size in enumerate((2, 16, 24, 9, 3))
    )
    x, weight = (images, channels, *(pixels,) * rank), (filters, channels, *(taps,) * rank)
    y = (images, filters, *(max(pixels - taps + 1, 0),) * rank)
    keywords = {"kernel_size": taps} if "wgrad" in operation else {}
    shapes = (y, x) if "wgrad" in operation else (y if "dgrad" in operation else x, weight)
    for arch in ("sm80", "sm90"):
        with suppress(EvtError):
            evt.supports("D = relu(acc)", arch, shapes, operation=operation, **keywords)
        with suppress(EvtError):
            getattr(evt, operation)("D = relu(acc)", **keywords).estimate(shapes, "h100", "f16", "f16")
