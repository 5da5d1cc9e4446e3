"""Tensors that are compared with their own elements: one kernel computes them, and gradients find their maximum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gelu, mish, softplus
from torch.utils.checkpoint import checkpoint

from evt.fx import backend
from evt.fx.compared import STORED, SaveCompared, self_compared, store_compared
from evt.fx.records import RECORDS

from . import training
from .compiling import ALWAYS
from .selections import BODIES, LEFT, SELECTIONS, gradients, operands

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]
Tensor = torch.Tensor
#: The types beside f32.
OTHERS = (torch.float64, torch.bfloat16)


@pytest.fixture(autouse=True)
def _gradients(fresh_compiler: None) -> Iterator[None]:
    with torch.enable_grad():
        yield


CASES = [
    pytest.param(body, select, marks=() if (place + number) % len(BODIES) == 0 else pytest.mark.slow)
    for place, body in enumerate(BODIES)
    for number, select in enumerate(SELECTIONS)
]


@pytest.mark.parametrize(("body", "select"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_gradients_find_the_elements(body: str, select: str, dtype: torch.dtype) -> None:
    """In bf16 another element may be the largest, so the gradient is compared in f32 and in f64."""

    def run(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return SELECTIONS[select](BODIES[body](x, w, v))

    given = operands(dtype)
    for got, want in zip(gradients(training.fused(run), given), gradients(run, given), strict=True):
        assert torch.isfinite(got).all()
        if dtype != torch.bfloat16:
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
def test_gradients_under_inductor(dtype: torch.dtype) -> None:
    """Inductor rounds less than eager PyTorch in bf16: without the pass it gives NaN itself."""

    def run(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = mish(x @ w) * (x @ v)
        return y.amin(-1) + softplus(x @ w).amax(-1) + torch.linalg.vector_norm(y, float("inf"), -1)

    given = operands(dtype)
    compiled = torch.compile(run, backend="evt", options=dict(ALWAYS))
    for got, want in zip(gradients(compiled, given), gradients(run, given), strict=True):
        assert torch.isfinite(got).all()
        if dtype == torch.float32:
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    assert any(row.fused for record in RECORDS for row in record.rows)


#: Inductor compiles C++ twice for each case.
UNFUSED = [
    pytest.param(
        *(body, select, dtype),
        marks=() if number == 4 * place % len(SELECTIONS) and (place + kind) % 2 == 0 else pytest.mark.slow,
    )
    for place, body in enumerate(LEFT)
    for number, select in enumerate(SELECTIONS)
    for kind, dtype in enumerate((torch.bfloat16, torch.float16))
]


@pytest.mark.parametrize(("body", "select", "dtype"), UNFUSED)
def test_gradients_without_regions(body: str, select: str, dtype: torch.dtype) -> None:
    """Inductor computes the tensor: one kernel of 16 bits stores it rounded, and others do not compute it again."""

    def run(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return SELECTIONS[select](LEFT[body](x, w, v))

    given = operands(dtype)
    for got, want in zip(gradients(torch.compile(run, backend="evt"), given), gradients(run, given), strict=True):
        assert torch.isfinite(got).all()
        assert got.any() == want.any()
    assert not any(row.fused for record in RECORDS for row in record.rows)


def test_gradients_of_a_checkpoint() -> None:
    """The tensor is saved although the user asks for a second computation."""

    def inner(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return BODIES["gelu and tanh"](x, w, v).amax(-1)

    def run(*given: Tensor) -> Tensor:
        found: Tensor = checkpoint(inner, *given, use_reentrant=False)
        return found

    given = operands(torch.float32)
    for got, want in zip(gradients(training.fused(run), given), gradients(run, given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


COMPARISONS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a wider result": lambda x, w, v: (y := gelu((x @ w).float())) == y.amax(-1, keepdim=True),
    "its absolute value": lambda x, w, v: (y := gelu((x @ w).float()).abs()) >= y.amax(-1, keepdim=True),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_in_one_graph(name: str) -> None:
    """Each row has its maximum: readers of the result do not compute it again."""
    with torch.no_grad():
        assert training.fused(COMPARISONS[name])(*operands(torch.bfloat16)).any(-1).all()


def test_a_region_reads_a_compared_operand() -> None:
    """The region does not compute the operand again, although nothing else would store it."""

    def run(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = torch.tanh(v)
        return torch.where(y == y.amax(0), w[:, :16] @ w[:16], 0)

    with torch.no_grad():
        training.fused(run)(*operands(torch.bfloat16))
    assert RECORDS[-1].rows[-1].formula.endswith("D = where(x0 == x1, acc, 0)")


def stored(graph: Graph) -> list[str]:
    """Return the operators of a graph whose results its readers read from memory."""
    store_compared(graph)
    return [node.all_input_nodes[0].name for node in graph.find_nodes(op="call_function", target=STORED)]


def test_compared_tensors_are_stored() -> None:
    """In the forward graph too, where nothing may compare; elements of lists lie in memory."""
    graph = make_fx(lambda x: (y := x.exp().half()) == y.amax())(torch.ones(4)).graph
    SaveCompared()(graph)
    assert stored(graph) == ["_to_copy"]
    assert [user.target for user in graph.find_nodes(op="call_function", target=STORED)[0].users] == [
        torch.ops.aten.amax.default,
        torch.ops.aten.eq.Tensor,
    ]
    graph = make_fx(lambda x: x.exp().half().amax())(torch.ones(4)).graph
    assert stored(graph) == []
    next(node for node in graph.nodes if node.name == "_to_copy").meta.update(evt_compared=True)
    assert stored(graph) == ["_to_copy"]
    graph = make_fx(lambda x: (y := x.sort().values) == y.amax())(torch.ones(4)).graph
    assert stored(graph) == []


def windows(places: Tensor) -> Tensor:
    """Return the mask of Swin's shifted windows."""
    apart = places[:, None] - places
    return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)


#: Masks that compare a tensor with its own elements.
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "windows": windows,
    "maximum": lambda places: torch.where((y := places.sin()) == y.amax(), 1.0, y),
    "order": lambda places: ((y := places.exp().bfloat16())[:, None] >= y).float(),
    "quotient": lambda places: ((y := places.cos())[:, None] / y == 1).float(),
    "signs": lambda places: ((y := places.sqrt()) - y.flip(0)).sign(),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_masks_on_the_cpu_are_neither_saved_nor_stored_for_a_device(mask: str, device: str) -> None:
    """An operator of evt, or a returned mask, keeps Inductor from moving it. Here "meta" stands for a GPU."""
    graph = make_fx(lambda x: x + MASKS[mask](torch.arange(4.0)).to(device))(torch.ones(4, 4, device=device)).graph
    SaveCompared()(graph)
    kept = [node for node in graph.nodes if "evt_compared" in node.meta]
    assert (kept != [], stored(graph) != []) == (device == "cpu", device == "cpu")


@pytest.mark.parametrize(
    ("make", "batch"), [(training.Network, training.images), (training.Transformer, training.sentences)]
)
def test_models_without_comparisons_store_nothing(make: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Node] = []
    monkeypatch.setattr(backend, "store_compared", lambda graph: found.extend(self_compared(graph)))
    model, (x, wanted) = make(), batch()
    training.gradients(model, x, wanted, training.fused(model))
    assert len(RECORDS) == 2
    assert not found


@pytest.mark.parametrize(("function", "rounds"), [(gelu, True), (lambda y: y, False)])
def test_kernels_round_what_they_compute(function: Callable[[Tensor], Tensor], rounds: bool) -> None:
    """A product of the library is in memory, rounded: no kernel is added for it."""

    def run(x: Tensor, w: Tensor, _: Tensor) -> Tensor:
        return (y := function(x @ w)) == y.amax(-1, keepdim=True)

    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(run, backend="evt"), *operands(torch.bfloat16))
    assert ("bit_cast<int16_t>" in code) == rounds


def compared(run: Callable[[Tensor], Any]) -> list[str]:
    """Return the operators of a function of one tensor that are compared with their elements."""
    graph = make_fx(run)(torch.ones(4, 4)).graph
    return sorted(node.name for node in self_compared(graph))


def test_exact_functions_are_computed_again() -> None:
    """The tensor to save is the operand of views, absolute values and wider types, but not of narrower types."""
    assert compared(lambda x: x.exp().view(2, 8).abs() == x.exp().amax()) == []
    assert compared(lambda x: (y := x.exp()).view(2, 8).abs().double() == y.amax()) == ["exp"]
    assert compared(lambda x: (y := x.exp().half()).float() == y.amax()) == ["_to_copy"]
    assert compared(lambda x: (y := x.exp())[:1] < y.sort().values[:, 2:3].expand(4, 4)) == ["exp"]


def test_tensors_that_need_no_care() -> None:
    """Inputs, integers, numbers, other tensors, and differences that nobody compares."""
    assert compared(lambda x: x == x.amax()) == []
    assert compared(lambda x: (y := torch.arange(4))[:, None] >= y) == []
    assert compared(lambda x: (x.exp() > 2, x.exp() == x.sin())) == []
    assert compared(lambda x: ((y := x.sin()) - y.amax(-1, keepdim=True)).exp()) == []


def test_the_users_pass_runs() -> None:
    """A pass of the user's over joint graphs comes first; without its identity PyTorch keeps no graph."""
    seen: list[Any] = []
    graph = make_fx(lambda x: (y := x.exp()) == y.amax())(torch.ones(4)).graph
    for others, count in ((None, 0), (seen.append, 1), ([seen.append, SaveCompared()], 2)):
        SaveCompared(others)(graph)
        assert len(seen) == count
    assert SaveCompared(SaveCompared()).uuid() == ("evt", ("evt",))
    assert SaveCompared(seen.append).uuid() is None
    options = {**ALWAYS, "joint_custom_post_pass": seen.append}
    torch.compile(lambda x: x @ x + 1, backend="evt", options=options)(torch.ones(4, 4))
    assert len(seen) == 3
