"""The identity of kernels: a signature without sizes, a choice by sizes, and builds that no new size asks for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import evt  # noqa: E402
from evt.compilation import build, build_and_use  # noqa: E402
from evt.emission import emit  # noqa: E402
from evt.ir.dtype import BF16  # noqa: E402
from evt.plan import Plan, Problem, survey  # noqa: E402
from evt.plan.gemm import ProductClass, tiles_of  # noqa: E402
from evt.plan.geometry.halo import TAPS_PER_STAGE  # noqa: E402
from evt.plan.signature import Signature  # noqa: E402
from evt.plan.speed import refusal  # noqa: E402
from evt.request import packed_problem  # noqa: E402
from evt.runtime import call, kernels  # noqa: E402
from evt.runtime.library import Library  # noqa: E402
from tests.support.fake_nvcc import Room  # noqa: E402
from tests.support.stub_device import form_of, stub_device  # noqa: E402

SIDES = range(10, 61)
FORMULA = "D = relu(acc + bias[n])"
Shape = tuple[int, ...]
#: The number of kernels that a product offers.
OFFERED = len(tiles_of(ProductClass(BF16))[0])


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, room: Room) -> Callable[[], int]:
    """Return how many sources a fake compiler has compiled for calls on a device that only looks like one."""
    make_kernels = call.make_kernels  # type: ignore[attr-defined]
    stub_device(monkeypatch.setattr, lambda plan, request, bound: pytest.fail("kernels are built by the fake compiler"))
    monkeypatch.setattr(call, "make_kernels", make_kernels)
    monkeypatch.setattr("evt.compilation.builder.find_way", lambda: None)  # no NVRTC: own kernels are counted as well
    given: Any = {"cache": room.cache, "toolchain": room.tools}
    monkeypatch.setattr(kernels, "has_tools", lambda: True)
    monkeypatch.setattr(kernels, "build_and_use", partial(build_and_use, **given))
    monkeypatch.setattr(kernels, "build_ahead", partial(build, **given))

    def load(path: Path, plan: Plan, name: str) -> Library:
        return Library(path, lambda *arguments: 0, form_of(plan), lambda arguments: 0)

    monkeypatch.setattr(kernels, "load_library", load)
    return lambda: room.starts()["device"]


def tensor(*shape: int) -> Any:
    made = torch.empty(shape, dtype=torch.float16)
    return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made


def convolve(op: Any, x: Shape, weight: Shape) -> None:
    op(tensor(*x), tensor(*weight), bias=tensor(weight[0]))


def problem_of(op: Any, *shapes: Shape) -> Problem:
    return packed_problem(op.request, "sm90", "f16", "f16", (shapes[0], shapes[1]))


@pytest.mark.parametrize(
    ("weight", "keywords"),
    [
        ((64, 64, 3, 3), {"padding": 1}),
        ((64, 64, 1, 1), {}),
        ((128, 64, 3, 3), {"padding": 1, "stride": 2}),
        ((64, 3, 7, 7), {"padding": 3, "stride": 2}),
        ((96, 1, 3, 3), {"padding": 1, "groups": 96}),
        ((640, 640, 3, 3), {"padding": 1}),
    ],
    ids=["3x3", "1x1", "strided", "first layer", "depthwise", "many channels"],
)
def test_51_image_sizes_build_once(compiled: Callable[[], int], weight: Shape, keywords: dict[str, Any]) -> None:
    op = evt.conv2d(FORMULA, **keywords)
    channels = weight[1] * keywords.get("groups", 1)
    convolve(op, (2, channels, SIDES[0], SIDES[0]), weight)
    built = compiled()
    assert 1 <= built <= 8
    for side, images in zip(SIDES, (1, 2, 3) * 17, strict=True):
        convolve(op, (images, channels, side, side + images), weight)
    assert compiled() == built


@pytest.mark.parametrize("make", [evt.gemm, evt.linear])
def test_51_matrix_sizes_build_once(compiled: Callable[[], int], make: Any) -> None:
    op = make(FORMULA)
    for size in range(1, 52):
        m, n, k = 37 * size, 8 * (52 - size), 8 * (size * 29 % 51 + 1)
        op(tensor(m, k), tensor(n, k) if make is evt.linear else tensor(k, n), bias=tensor(n))
    assert compiled() == OFFERED


def test_the_first_call_waits_for_its_kernel_alone(
    compiled: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are asked for at once; a size that takes one of them before it is built waits for that one."""
    asked: list[Any] = []
    monkeypatch.setattr(kernels, "build_ahead", asked.extend)
    op = evt.linear(FORMULA)
    op(tensor(4096, 4096), tensor(4096, 4096), bias=tensor(4096))
    assert (compiled(), len(asked)) == (1, OFFERED - 1)
    op(tensor(16, 4096), tensor(4096, 4096), bias=tensor(4096))
    assert (compiled(), len(asked)) == (2, OFFERED - 1)
    for rows in (16, 15, 4096):
        op(tensor(rows, 4096), tensor(4096, 4096), bias=tensor(4096))
    assert compiled() == 2


def test_a_process_that_may_not_compile_finds_all_kernels_at_first(
    compiled: Callable[[], int], monkeypatch: pytest.MonkeyPatch, room: Room
) -> None:
    """A pack that lacks one of them is known then, and not at a later size."""
    monkeypatch.setattr(kernels, "build", partial(build, cache=room.cache, toolchain=room.tools))
    monkeypatch.setattr(kernels, "build_ahead", lambda sources: None)
    call = lambda: evt.linear(FORMULA)(tensor(64, 64), tensor(64, 64), bias=tensor(64))  # noqa: E731
    call()
    monkeypatch.setenv("EVT_COMPILE", "never")
    evt.runtime.call.caller_of.cache_clear()
    with pytest.raises(evt.BuildError, match="E0709"):
        call()
    assert compiled() == 1


def test_kernels_of_a_first_call_are_built_after_the_process_may_not_compile(
    compiled: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server warms up, and then forbids new kernels. The first call has asked for the kernels of other sizes."""
    monkeypatch.setattr(kernels, "build_ahead", lambda sources: None)
    op = evt.linear(FORMULA)
    op(tensor(4096, 4096), tensor(4096, 4096), bias=tensor(4096))
    monkeypatch.setenv("EVT_COMPILE", "never")
    op(tensor(16, 4096), tensor(4096, 4096), bias=tensor(4096))
    assert compiled() == 2
    with pytest.raises(evt.BuildError, match="E0709"):
        evt.linear("D = relu(acc - bias[n])")(tensor(64, 64), tensor(64, 64), bias=tensor(64))


def test_layers_share_kernels_by_their_text(compiled: Callable[[], int]) -> None:
    """Layers with other filters and channels build at most the configurations of their class."""
    op = evt.conv2d(FORMULA, padding=1, route="conv-evt-3x")
    texts = set()
    for filters, channels in product((48, 64, 160, 288), (32, 128)):
        x, weight = (2, channels, 28, 28), (filters, channels, 3, 3)
        convolve(op, x, weight)
        texts |= {emit(plan) for plan in survey(problem_of(op, x, weight), "conv-evt-3x").defaults}
    assert compiled() == len(texts) <= MOST["conv-evt-3x"][0]


def test_the_class_decides_the_taps_of_a_stage() -> None:
    """No layer runs the kernel of other filters, tap by tap: their numbers of taps in a stage are in the class."""
    op, found = evt.conv2d(FORMULA, padding=3, route="conv-halo-3x"), dict[Signature, set[int]]()
    for taps in product((1, 2, 3, 4, 5, 6, 7), repeat=2):
        problem = problem_of(op, (2, 64, 28, 28), (64, 64, *taps))
        plans = survey(problem, "conv-halo-3x").defaults
        found.setdefault(problem.signature, set()).update(plan.mainloop.taps for plan in plans)
    assert all(len(each) == 1 for each in found.values())
    assert set().union(*found.values()) == set(TAPS_PER_STAGE)


def test_a_size_that_no_kernel_runs_adds_kernels(compiled: Callable[[], int]) -> None:
    op = evt.conv2d(FORMULA, padding=((8, 2), (4, 6)), dilation=(3, 1))
    weight = (64, 72, 5, 5)
    small, large = (2, 72, 25, 9), (2, 72, 25, 900)
    first = survey(problem_of(op, small, weight)).defaults
    other = problem_of(op, large, weight)
    assert other.signature == problem_of(op, small, weight).signature
    unable = [bool(refusal(plan, other.sizes.convolution.sizes, other.sizes)) for plan in first]
    convolve(op, small, weight)
    built = compiled()
    convolve(op, large, weight)
    assert (compiled() > built) == all(unable)


# The text


def random_layers(seed: int, count: int) -> list[tuple[Any, Shape, list[Shape]]]:
    """Return convolutions, each with the shape of its weights and shapes of images."""
    draw = random.Random(seed)
    found: list[tuple[Any, Shape, list[Shape]]] = []
    while len(found) < count:
        taps, stride, dilation = draw.choice([1, 3, 3, 5, 7]), draw.choice([1, 1, 2]), draw.choice([1, 1, 2])
        channels = draw.choice([3, 8, 16, 40, 64, 96, 256, 640])
        depthwise = channels > 8 and draw.random() < 0.25
        filters = channels if depthwise else draw.choice([16, 48, 64, 96, 160, 256, 640])
        keywords = {"stride": stride, "padding": draw.choice([0, taps // 2]), "dilation": dilation}
        op = evt.conv2d(FORMULA, **keywords, groups=channels if depthwise else 1)
        weight = (filters, 1 if depthwise else channels, taps, taps)
        least = dilation * (taps - 1) + 1
        sides = [least + draw.choice([0, 1, 6, 13, 27, 55, 111]) for _ in range(4)]
        shapes: list[Shape] = [(draw.choice([1, 4, 64]), channels, side, side + 3) for side in sides]
        found.append((op, weight, shapes))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_signature_has_no_sizes_of_images(seed: int) -> None:
    for op, weight, images in random_layers(seed, 40):
        assert len({problem_of(op, x, weight).signature for x in images}) == 1


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_text_depends_on_sizes_only_through_the_configuration(seed: int) -> None:
    compared = 0
    for op, weight, images in random_layers(seed, 6):
        texts: dict[tuple[str, str], str] = {}
        for x in images[:2]:
            for candidate, config in survey(problem_of(op, x, weight)).kernels:
                made = candidate.try_plan(config)
                if isinstance(made, Plan):
                    name = candidate.route.name, config.name
                    compared += name in texts
                    assert texts.setdefault(name, emit(made)) == emit(made)
    assert compared > 5


# The offers

#: The configurations that a class has by route, and how many of them a layer's first call builds, each at most.
MOST = {
    "conv-halo-3x": (150, 5),
    "conv-halo-padded-3x": (75, 5),
    "conv-halo-groups-3x": (200, 5),
    "conv-depthwise-3x": (24, 3),
    "conv-padded-3x": (28, 4),
    "conv-evt-3x": (28, 4),
    "stock-3x": (10, 4),
    "evt-3x": (10, 4),
    "conv-stock-2x": (4, 2),
    "conv-evt-2x": (4, 2),
}


def test_a_class_has_a_bounded_list_of_kernels() -> None:
    found: dict[str, set[str]] = {route: set() for route in MOST}
    for op, weight, images in random_layers(9, 30):
        for each in survey(problem_of(op, images[0], weight)).candidates:
            if each.applies and each.route.name in MOST:
                found[each.route.name] |= {config.name for config in each.configs}
                assert len(each.default_configs) <= MOST[each.route.name][1]
    for route, names in found.items():
        assert len(names) <= MOST[route][0], (route, sorted(names))


def offered(op: Any, shapes: Sequence[Shape]) -> list[str]:
    return [plan.config.name for plan in survey(problem_of(op, *shapes)).defaults]


def test_a_call_of_other_sizes_has_other_offers() -> None:
    """The sizes choose among the class's kernels; the first call of a layer builds the best ones for its sizes."""
    op, weight = evt.conv2d(FORMULA, padding=1), (64, 64, 3, 3)
    assert offered(op, ((2, 64, 56, 56), weight)) != offered(op, ((2, 64, 28, 28), weight))
