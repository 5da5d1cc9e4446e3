"""A convolution with relu and a residual through the real nvcc, for sm80 and sm89 by both routes, and for sm90.

Also one of three channels, which reads padded copies of its operands.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
from pathlib import Path

import pytest

import evt
from evt.build import BuildEvent, KernelSource, build
from evt.emission import emit
from evt.plan import Plan
from evt.plan.epilogue.registers import register_limit
from evt.spec import problem_sizes

pytestmark = pytest.mark.nvcc

FORMULA = "D = relu(acc + bias) + residual"
SHAPES = (8, 64, 56, 56), (64, 64, 3, 3)
FIRST = (2, 3, 33, 35), (64, 3, 7, 7)
PADDED = (2, 20, 9, 11), (64, 20, 3, 3)
#: (target, kind of route, shapes).
KERNELS = {
    "sm80-stock": ("sm80", "stock", SHAPES),
    "sm80-evt": ("sm80", "evt", SHAPES),
    "sm89-stock": ("sm89", "stock", SHAPES),
    "sm89-evt": ("sm89", "evt", SHAPES),
    "sm90-evt": ("sm90", "evt", SHAPES),
    "sm80-few": ("sm80", None, FIRST),
    "sm90-few": ("sm90", None, FIRST),
    "sm90-padded": ("sm90", None, PADDED),
}
#: Those that are not left to `make test-all`.
QUICK = ("sm80-few", "sm90-few")

each_kernel = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in KERNELS]
)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        name: evt.conv2d(FORMULA, padding=1, route=route).plan(arch, "f16", "f16", shapes=shapes)
        for name, (arch, route, shapes) in KERNELS.items()
    }


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, plans: dict[str, Plan]) -> tuple[dict[str, Path], dict[str, str]]:
    """The libraries of the selected tests, and what nvcc and ptxas printed."""
    items = [item for item in request.session.items if item.path == request.path]
    names = list(dict.fromkeys(item.callspec.params["name"] for item in items if hasattr(item, "callspec")))
    said = dict.fromkeys(names, "")

    def listen(event: BuildEvent) -> None:
        if event.kind == "end":
            said[names[event.index]] += event.text
        if event.kind == "built":
            print(f"{names[event.index]}: {event.seconds:.0f} s")

    sources = [KernelSource(emit(plans[name]), plans[name].target.gencode) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", "-Xcompiler -Wall,-Wextra -Xptxas -v")
        return dict(zip(names, build(sources, jobs=2, on_event=listen), strict=True)), said


def test_the_routes_are_those_of_convolutions(plans: dict[str, Plan]) -> None:
    templates = {name: plan.template for name, plan in plans.items()}
    assert templates == {
        **dict.fromkeys(("sm80-stock", "sm89-stock"), "conv_2x_stock"),
        **dict.fromkeys(("sm80-evt", "sm89-evt"), "conv_2x"),
        **dict.fromkeys(("sm90-evt", "sm90-few", "sm90-padded"), "conv_3x"),
        "sm80-few": "conv_2x",
    }


@each_kernel
def test_compiles_without_a_warning(built: tuple[dict[str, Path], dict[str, str]], name: str) -> None:
    libraries, said = built
    assert libraries[name].is_file()
    assert "warning" not in said[name]


@each_kernel
def test_nothing_spills(built: tuple[dict[str, Path], dict[str, str]], plans: dict[str, Plan], name: str) -> None:
    text = built[1][name]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    assert spills
    assert set(spills) == {("0", "0")}
    used = [int(number) for number in re.findall(r"Used (\d+) registers", text)]
    print(f"{name}: {used} registers, {plans[name].registers} estimated")
    assert 40 < max(used) <= register_limit(plans[name].config)


@each_kernel
def test_says_what_it_takes(built: tuple[dict[str, Path], dict[str, str]], plans: dict[str, Plan], name: str) -> None:
    library = ctypes.CDLL(str(built[0][name]))
    library.evt_schema.restype = ctypes.c_char_p
    assert json.loads(library.evt_schema()) == json.loads(plans[name].schema)


@each_kernel
def test_refuses_arguments_of_another_size(
    built: tuple[dict[str, Path], dict[str, str]], plans: dict[str, Plan], name: str
) -> None:
    library = ctypes.CDLL(str(built[0][name]))
    library.evt_run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    size = 8 * len(plans[name].fields)
    for wrong in (0, size - 8, size + 8):
        assert library.evt_run(bytes(size + 8), wrong, None) == 1 << 16  # evt::Failure::arguments


@pytest.mark.parametrize(("name", "channels", "pixels", "taps"), [("sm80-few", 4, 35, 7), ("sm90-few", 8, 37, 7)])
def test_the_workspace_holds_the_padded_copies(
    built: tuple[dict[str, Path], dict[str, str]],
    plans: dict[str, Plan],
    name: str,
    channels: int,
    pixels: int,
    taps: int,
) -> None:
    library = ctypes.CDLL(str(built[0][name]))
    library.evt_workspace.restype = ctypes.c_int64
    sizes = problem_sizes(evt.conv2d(FORMULA, padding=1).spec, FIRST)
    members = [sizes.get(field.role, 0) if not field.tensor else 0 for field in plans[name].fields]
    needed = library.evt_workspace(struct.pack(f"={len(members)}q", *members))
    copies = (2 * 33 * pixels * channels * 2, 64 * 7 * taps * channels * 2)
    assert needed == sum(-(-size // 256) * 256 for size in copies)
