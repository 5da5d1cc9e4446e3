"""Refusals of launchers, on every route: g++ compiles the beginning of each ``run``, which gets wrong arguments."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

import evt
from evt.compilation import source
from evt.emission import emitted
from evt.plan import Field, Plan
from evt.plan.plan import GroupedPlan
from evt.plan.routes.order import ROUTES
from evt.plan.stock_epilogue import StockOperator
from evt.resources import NVCC_FLAGS
from tests.cxx.gxx import MARKS, build

pytestmark = MARKS

EPILOGUE = "in s: f32[m?], C: f16[m, n] = 0; D = relu(alpha*acc + C)*s + bias"
ROWS = "in place: i32[m]; D = acc + table[place[m], n]"
SIZED = {"a": (4, 64, 28, 28), "b": (64, 64, 3, 3)}


def plan(text: str, arch: str, operation: str = "gemm", shapes: Any = None, **settings: Any) -> Plan:
    if operation == "grouped_gemm":
        return evt.grouped_gemm(text, **settings).plan(arch, "f16", "f16")
    return evt.Program(text, operation, **settings).plan(arch, "f16", "f16", shapes=shapes)


#: A kernel of each route, and kernels of each template and architecture.
PLANS = {
    "evt_2x": lambda: plan(EPILOGUE, "sm80"),
    "stock_2x": lambda: plan("D = relu(alpha*acc + beta*C)", "sm80", route="stock"),
    "mainloop_2x": lambda: plan("A = relu(s[k]*A); D = acc", "sm80"),
    "rows_2x": lambda: plan(ROWS, "sm80"),
    "sums_2x": lambda: plan("s = sum[n](acc); D = acc", "sm80"),
    "evt_3x": lambda: plan(EPILOGUE, "sm90", route="evt"),
    "stock_3x": lambda: plan("D = relu(acc + bias)", "sm90", route="stock"),
    "rows_3x": lambda: plan(ROWS, "sm90"),
    "sums_3x": lambda: plan("s = sum[n](acc); D = acc", "sm90"),
    "sm100": lambda: plan(EPILOGUE, "sm100"),
    "sm120": lambda: plan(EPILOGUE, "sm120"),
    "grouped": lambda: plan("in s: f32[m?], q: f32; D = relu(q*acc + C + bias)*s", "sm90", "grouped_gemm"),
    "own_product": lambda: plan(EPILOGUE, "sm90", route="own"),
    "own_ragged": lambda: plan(EPILOGUE, "sm90", "grouped_gemm", route="gemm-own-ragged"),
    "conv_2x": lambda: plan(EPILOGUE, "sm80", "conv2d"),
    "conv_stock_2x": lambda: plan("D = relu(acc + bias)", "sm80", "conv2d", route="stock"),
    "conv_mainloop_2x": lambda: plan("A = relu(s[k]*A); D = acc", "sm80", "conv2d"),
    "wgrad_2x": lambda: plan("D = acc", "sm80", "conv2d_wgrad", kernel_size=3),
    "conv_3x": lambda: plan(EPILOGUE, "sm90", "conv3d", route="evt"),
    "own_sm90": lambda: plan(
        EPILOGUE, "sm90", "conv2d", shapes=((4, 64, 28, 28), (64, 64, 3, 3)), padding=1, route="own"
    ),
    "own_depthwise": lambda: plan(
        EPILOGUE, "sm90", "conv2d", shapes=((4, 64, 28, 28), (64, 1, 3, 3)), padding=1, groups=64
    ),
}


def source_of(name: str, made: Plan) -> str:
    """Return the interface of a kernel, and its ``run`` as far as the device is asked for."""
    text = emitted(made, name).text
    interface = text[text.index(f"typedef struct {name}_arguments") : text.index(f"}} {name}_arguments;")]
    begin = text.index('extern "C" __attribute__', text.index(f"int {name}_run(\n") - 60)
    run = text[begin : text.index("  evt::Device device;", begin)]
    more = ""
    if isinstance(made, GroupedPlan):
        rows = text[text.index("enum Row : int {") : text.index("/// A row of the table")]
        more = rows + text[text.index("inline bool refused(") : text.index("/// `shapes` are the groups'")]
        body = text[
            text.index("  if (arguments->groups == 0)", begin) : text.index("  Workspace const workspace", begin)
        ]
        run += body
    return (
        f"{interface}}} {name}_arguments;\nnamespace of_{name} {{\nusing Arguments = {name}_arguments;\n{more}{run}"
        "  return 0;\n}\n}\n"
    )


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: make() for name, make in PLANS.items()}


@pytest.fixture(scope="module")
def library(plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("checks")
    sources = "".join(source_of(name, made) for name, made in plans.items())
    (folder / "checks.cpp").write_text(f'#include "evt/entry.hpp"\n{sources}')
    build(folder / "checks.cpp", folder / "checks.so")
    return ctypes.CDLL(str(folder / "checks.so"), mode=ctypes.RTLD_LOCAL | 1)


class Call:
    """A call of a kernel's checks, with valid members except the ones that a test sets."""

    def __init__(self, library: ctypes.CDLL, name: str, made: Plan) -> None:
        self.run, self.fields = getattr(library, f"{name}_run"), made.fields
        self.rows = made.group_fields if isinstance(made, GroupedPlan) else ()

    def code(self, changed: dict[str, int], groups: int = 3) -> int:
        """Return the kind of failure, 0 for none; in a table the last group has the changed words."""
        words = [0x10000 if each.kind == "pointer" else 8 for each in self.rows for _ in range(groups)]
        for at, each in enumerate(self.rows):
            if each.name in changed:
                words[at * groups + groups - 1] = changed[each.name]
        table = struct.pack(f"={len(words)}q", *words)
        own = {"l": 1, "groups": groups, "table": ctypes.cast(table, ctypes.c_void_p).value or 0} | changed
        members = [own.get(each.name, 0x10000 if each.kind == "pointer" else 8) for each in self.fields]
        packed = struct.pack(f"={len(members)}q", *members)
        return int(self.run(packed, ctypes.c_size_t(len(packed)), None)) >> 16

    def each(self, kind: str) -> Iterator[Field]:
        yield from (each for each in (*self.rows, *self.fields) if each.kind == kind)


@pytest.fixture(params=PLANS)
def case(request: pytest.FixtureRequest, plans: dict[str, Plan], library: ctypes.CDLL) -> tuple[Plan, Call]:
    return plans[request.param], Call(library, request.param, plans[request.param])


def test_every_route_has_a_case(plans: dict[str, Plan]) -> None:
    assert {each.name for each in ROUTES} - {made.route for made in plans.values()} <= {
        "conv-padded-3x",  # the template and the members of conv-evt-3x and conv-halo-3x, with copies or groups
        "conv-halo-padded-3x",
        "conv-halo-groups-3x",
        "conv-halo-words-3x",
        "conv-halo-taps-3x",
        "conv-halo-copied-3x",
        "gemm-own-batches",  # the template and the members of gemm-own-3x, with strides of batches
        "conv-wgrad-3x",  # tests/nvcc/test_launchers_nvcc.py compares the launchers of these
        "gemv-own-3x",
        "gemv-rows-3x",
    }


def test_right_arguments_are_taken_and_others_than_the_struct_are_not(case: tuple[Plan, Call]) -> None:
    _, call = case
    assert call.code({}) == 0
    assert int(call.run(None, ctypes.c_size_t(8), None)) >> 16 == 1
    assert int(call.run(b"\\0" * 4096, ctypes.c_size_t(8), None)) >> 16 == 1


def test_pointers_are_null_only_where_a_value_stands_for_them(case: tuple[Plan, Call]) -> None:
    made, call = case
    optional = {each.tensor for each in (*call.rows, *call.fields) if each.role == "value"}
    assert optional <= {"s", "alpha", "beta", "q"}
    for each in call.each("pointer"):
        if each.role == "workspace" and not isinstance(made, GroupedPlan):
            continue  # required if it has bytes, which is checked later
        assert call.code({each.name: 0}) == (0 if each.tensor in optional else 1), each
    assert {"A", "B"} <= {each.tensor for each in call.each("pointer")}


def test_a_table_without_rows_has_no_address(case: tuple[Plan, Call]) -> None:
    _, call = case
    for each in call.each("size"):
        if each.role.startswith("extent "):
            assert call.code({each.name: 0, each.tensor and f"in_{each.tensor}": 0}) == 0


def test_sizes_that_no_int_holds_are_refused(case: tuple[Plan, Call]) -> None:
    """2**32 + 8 would be 8; strides of batches, and of tensors that the epilogue reads, have 64 bits."""
    made, call = case
    stock = isinstance(made.epilogue, StockOperator)
    for each in call.each("size"):
        wide = bool(each.tensor) and (
            each.role == "l" or each.role.startswith("extent ") or not (stock or each.tensor in ("A", "B"))
        )
        for size in (2**31, 2**32 + 8, 2**62):
            assert call.code({each.name: size}) == (0 if wide else 1), each
        if each.name not in ("groups", "l"):  # an own product has one batch
            assert call.code({each.name: 2**31 - 1}) == 0, each
        signed = bool(each.tensor) or "pad_" in each.role
        assert call.code({each.name: -1}) == (0 if signed else 1), each


def test_an_empty_group_has_no_addresses(plans: dict[str, Plan], library: ctypes.CDLL) -> None:
    call = Call(library, "grouped", plans["grouped"])
    nowhere = {each.name: 0 for each in call.rows if each.kind == "pointer"}
    assert call.code({**nowhere, "m": 0}) == call.code({"A": 0, "B": 0, "k": 0}) == 0
    assert call.code({**nowhere, "k": 0}) == 1
    assert call.code({}, groups=-1) == call.code({}, groups=-(2**40)) == 1


def test_the_printed_command_has_the_flags_of_the_build() -> None:
    text = emitted(PLANS["evt_2x"](), "mine").text
    printed = re.search(r"// Compile: nvcc (.*?) -gencode", text)
    assert printed
    assert tuple(printed[1].split()) == NVCC_FLAGS == source.FLAGS[: len(NVCC_FLAGS)]
    assert "-DNDEBUG" in NVCC_FLAGS
