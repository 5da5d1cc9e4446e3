"""Every reason for not fusing: its code, its page, the place in the user's code, and its trigger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from evt.diagnostics import CODES
from evt.errors import ArgumentError
from evt.fx import regions
from evt.fx.fuse import Fusion, fuse, fusion
from evt.fx.product import find_product
from evt.fx.regions import find_regions
from evt.fx.report import report

from .fusing import Function, fused

A, B, C = torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 6)
WIDE = torch.randn(2, 6, 6)
#: By code: a function, its inputs, and a part of the sentence.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "E1001": (lambda a, b: torch.softmax(a @ b + 1, -1), (A, B), "evt has no function for softmax.int"),
    "E1003": (lambda a, b: (a @ b + 1)[:, :3].relu(), (A, B), "selects a part of the product"),
    "E1004": (lambda a, b, c: a @ b + 1 + c, (A, B, WIDE), "its shape [2, 6, 6] is not the product's"),
    "E1005": (lambda a, b: (x := a @ b + 1) + x.t(), (A, B), "another view of it"),
    "E1006": (
        lambda x, w, s: functional.linear(x, w) * 2 + s[:, None],
        *((WIDE, A, torch.randn(2, 6)), "varies over a part of the rows"),
    ),
    "E1008": (lambda a, b: (a @ b + 1).view(6, 2, 3).sum(-1), (A, B), "neither whole rows nor whole columns"),
    "E1009": (lambda a, b: (x := a @ b + 1) / x.sum(-1, keepdim=True), (A, B), "together with the product's elements"),
    "E1012": (lambda a, b: (x := a @ b + 1) * torch.softmax(x, -1), (A, B), "of another kernel that reads the product"),
    "E1013": (lambda a, b: functional.silu(a @ b) * (b @ a + 1), (A, B), "it is computed with"),
    "E1014": (lambda a, b: torch.softmax(a @ b, -1), (A, B), "no operator after it"),
}


def reasons(found: Fusion, code: str) -> list[str]:
    return [each.reason for each in found.reasons if each.code == code]


def test_every_code_is_tested() -> None:
    elsewhere = {"E1002", "E1007", "E1010", "E1011", "E1015", "E1016", "E1017", "E1018", "E1019", "E1020", "E1021"}
    elsewhere |= {"E1022", "E1023", "E1024"}
    assert {code for code in CODES if code.startswith("E10")} == {*CASES, *elsewhere}


@pytest.mark.parametrize("code", CASES)
def test_reason(code: str) -> None:
    function, inputs, text = CASES[code]
    found = reasons(fused(function, *inputs), code)
    assert any(text in each for each in found), found


def test_types() -> None:
    """Integers of 16 and 64 bits, and the fractions that none has, are PyTorch's own work."""
    small = torch.ones(6, 6, dtype=torch.int8)
    found = fused(lambda a, b, c: (a @ b + 1).to(torch.int8) + c.to(torch.uint8), A, B, small)
    assert reasons(found, "E1002") == ["its type is int16"]
    found = fused(lambda a, b, c: (a @ b + 1 > 0) & (c.to(torch.uint8) > c), A, B, small)
    assert reasons(found, "E1002") == []
    found = fused(lambda a: torch.addmm(a, a, a, beta=0.5) + 1, small)
    assert reasons(found, "E1010") == ["its factors are fractions, and its result is of integers"]
    found = fused(lambda a, b: torch.addmm(b, a * torch.nan, b, alpha=0).relu(), A, B)
    assert "has the factor 0" in reasons(found, "E1010")[0]
    found = fused(lambda a, b, c: a @ b * 2 + c, A, B, torch.ones(6, 6, dtype=torch.int64))
    assert reasons(found, "E1002") == ["`inputs_2` has the type int64"]


def test_products_of_other_types() -> None:
    found = fusion(fuse(Function(lambda a, b: (a @ b).neg()), (A.long(), B.long())))
    assert reasons(found, "E1010") == ["its operands are int64"]
    found = fusion(fuse(Function(lambda a, b: (a @ b).neg()), (A, B[0])))
    assert reasons(found, "E1010") == ["its operands are vectors"]


def test_zeros_beside_the_scales_of_a_packed_weight() -> None:
    def packed(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm(x, weight, 128, scales).relu()

    x, scales = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((4, 256), (2, 64, 2)))
    weight = torch.empty(8, 2, 32, 4, dtype=torch.int32, device="meta")
    graph = make_fx(packed, tracing_mode="fake")(x, weight, scales).graph
    (node,) = (each for each in graph.nodes if "int4pack" in str(each.target))
    assert "evt subtracts whole zero points from the codes" in str(find_product(node))


def test_sizes_as_numbers() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    run = Function(lambda a, b: (a @ b).relu() / a.shape[0])
    found = fusion(fuse(run, (A, B), dynamic_shapes=(({0: batch}, None),)))
    assert any("known at run time only" in each for each in reasons(found, "E1007"))


def on_a_gpu(function: Callable[..., Any]) -> Fusion:
    """Return the outcome of a function of two matrices on a GPU, without having one."""
    with FakeTensorMode() as mode:
        graph = make_fx(function)(*(mode.from_tensor(torch.empty(64, 64)) for _ in range(2))).graph
        for node in graph.nodes:
            if "val" in node.meta:
                node.meta["val"].fake_device = torch.device("cuda", 0)
        return find_regions(graph)


def test_float32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert reasons(on_a_gpu(lambda a, b: (a @ b).relu()), "E1011")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert len(on_a_gpu(lambda a, b: (a @ b).relu()).regions) == 1


def test_devices() -> None:
    graph = make_fx(lambda a, b: (a @ b).relu(), tracing_mode="fake")(A, B).graph
    found = find_regions(graph, devices=("cuda",))
    assert reasons(found, "E1016") == ["it is on the CPU, and kernels run on CUDA devices"]


def test_regions_that_are_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that evt refuses is tried without its reductions, and else left alone."""
    build = regions.build  # type: ignore[attr-defined]

    def refuse(region: Any, owned: Any, settings: Any) -> Any:
        if any(index_map.reduced for index_map in region.index_maps.values()):
            build(region, owned, {"route": "evt-3x"}).program.plan("sm80", "f16", "f16")
        return build(region, owned, settings)

    monkeypatch.setattr(regions, "build", refuse)
    found = fused(lambda a, b: (x := a @ b + 1, x.sum(-1)), A, B)
    assert [each[:5] for each in reasons(found, "E1015")] == ["E0502"]
    assert [str(each.program).splitlines()[-1] for each in found.regions] == ["D = acc + 1"]
    found = fused(lambda a, b: (a @ b).sum(-1), A, B)
    assert not found.regions
    assert [each[:5] for each in reasons(found, "E1015")] == ["E0502"]


def test_a_reason_has_a_place() -> None:
    """The line is the user's, not that of PyTorch's module which contains the operator."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Softmax(-1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layers(x)
            return found

    found = fusion(fuse(Model(), (A,)))
    (reason,) = [each for each in found.reasons if each.code == "E1001"]
    assert reason.place.startswith(f"{__file__}:")
    assert str(reason) == f"E1001 softmax ({reason.place}): evt has no function for softmax.int"
    assert reason.diagnostic.code == "E1001"
    assert reason.place in reason.diagnostic.notes
    assert "softmax" in reason.diagnostic.message


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="there is no setting `fastmath`"):
        fuse(Function(torch.mm), (A, B), fastmath=True)  # type: ignore[call-arg]


def test_regions_are_planned_for_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert len(on_a_gpu(lambda a, b: (a @ b).relu()).regions) == 1
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert [each[:5] for each in reasons(on_a_gpu(lambda a, b: (a @ b).relu()), "E1015")] == ["E0501"]


class Undecided(torch.nn.Module):
    """A module that reads the values of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.mT if x.sum() > 0 else x


@pytest.mark.parametrize("inputs", [(A,), (), (A, A), {"y": A}])
def test_what_is_not_captured(inputs: Any) -> None:
    with pytest.raises(ArgumentError, match=r"E1020.*: torch.export cannot capture the Undecided: "):
        fuse(Undecided(), inputs)


@pytest.mark.parametrize(("module", "inputs"), [(3, (A,)), (Undecided(), A), (Undecided(), 3)])
def test_arguments_of_other_kinds(module: Any, inputs: Any) -> None:
    with pytest.raises(ArgumentError, match="E0607"):
        fuse(module, inputs)
    with pytest.raises(ArgumentError, match="E0607"):
        report(3)
    with pytest.raises(ArgumentError, match=r"E0607.*what evt.fuse returned"):
        fusion(module)


def test_a_reason_in_a_library_has_no_place() -> None:
    """A layer of PyTorch's is called by PyTorch, and that by evt: no frame is the user's code."""
    rows = report(torch.nn.Linear(16, 16), (torch.randn(8, 16),)).rows
    assert [row.graph for row in rows] == ["forward", "backward"]
    assert all(row.reason.startswith(f"E1016 {row.node}: ") for row in rows)
