"""The code that Inductor writes for regions: its allocations, arguments, and launches."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import evt
from evt.compilation import KernelSource
from evt.fx import kernels
from evt.fx.backend import backend
from evt.fx.records import RECORDS
from tests.support.stub_device import plan_for_h200, record_launches

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]
CALL = re.compile(r"^ +(evt_launch_\w+)\[(.*?)\]\((.*)\)$", re.MULTILINE)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    return record_launches(monkeypatch.setattr)


def compiled(function: Callable[..., Any], dynamic: bool | None = False, **options: Any) -> Any:
    options = {"evt.rule": "always", "evt.devices": ("cpu",), **options}
    return torch.compile(function, backend=partial(backend, options=options), dynamic=dynamic)


def code_of(function: Any, *given: Any) -> tuple[Any, str]:
    torch._dynamo.reset()
    got, (code, *_) = run_and_get_code(function, *given)
    return got, code


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=5e-3, atol=5e-2)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def statistics(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x @ w
    y = torch.relu(z)
    return y, z, z.float().amax(), y.float().sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_of_one_program_and_several_shapes(launches: list[dict[str, float]], dynamic: bool) -> None:
    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    weights = [random(16, 24), random(24, 16), random(16, 24), random(24, 40)]
    function = compiled(layers, dynamic)
    for rows in (6, 8):
        x = random(rows, 16)
        code = code_of(function, x, *weights)[1] if rows == 6 else ""
        launches.clear()
        function(x, *weights)
        assert [(each["m"], each["n"], each["k"]) for each in launches] == [(rows, *w.shape[::-1]) for w in weights]
        assert len({name for name, *_ in CALL.findall(code)}) == (3 if code else 0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_allocates_every_result(dynamic: bool) -> None:
    x, w = random(6, 16), random(16, 24)
    got, code = code_of(compiled(statistics, dynamic), x, w)
    close(got, statistics(x, w))
    ((_, sizes, passed),) = CALL.findall(code)
    assert sizes == ("()" if not dynamic else sizes)
    assert len(passed.split(", ")) == 6
    assert len(re.findall(r"^ +buf\d+ = empty_strided_cpu\(", code, re.MULTILINE)) == 4
    assert "async_compile.cpp" not in code  # nothing fills them
    assert RECORDS[-1].rows[0].fused


def test_results_take_memory_that_is_free_again() -> None:
    weights = [random(16, 16) / 4 for _ in range(4)]

    def chain(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    x = random(8, 16)
    got, code = code_of(compiled(chain), x)
    close(got, chain(x))
    assert len(CALL.findall(code)) == 4
    assert code.count("# reuse") == 2


def test_a_part_of_a_tensor_is_passed_as_the_tensor(launches: Any) -> None:
    def parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return torch.relu(second @ w) + (torch.relu(first @ w) * 2)

    x, w = random(8, 32), random(16, 24)
    _, code = code_of(compiled(parts), x, w)
    body = code[code.index("def call") :]
    assert "reinterpret_tensor" not in body[: body.index("return (")]
    assert {members["A"] - x.data_ptr() for members in launches} == {0, 32}
    assert {members["stride_m_of_A"] for members in launches} == {32}


@pytest.mark.parametrize("dynamic", [False, True])
def test_calls_after_the_first_launch_at_new_addresses(launches: Any, dynamic: bool) -> None:
    function = compiled(lambda x, w, bias: torch.relu(x @ w + bias), dynamic)
    w, bias = random(16, 24), random(24)
    sizes = (8, 40, 8) if dynamic else (8, 8, 8)
    for rows in sizes:
        x = random(rows, 16)
        out = function(x, w, bias)
        members = launches[-1]
        assert (members["A"], members["m"], members["out_D"]) == (x.data_ptr(), rows, out.data_ptr())
        assert members["in_x0"] == bias.data_ptr()
    assert len(launches) == len(sizes)
    assert len(RECORDS) == 1


def test_a_parameter_may_be_misaligned(launches: Any) -> None:
    """PyTorch copies inputs that lost their alignment, but not parameters."""
    linear = torch.nn.Linear(16, 24).half()
    function = compiled(lambda x: torch.relu(linear(x)))
    x = random(8, 16)
    for shift in (0, 1, 1, 0):
        linear.bias.data = torch.zeros(32).half()[shift : shift + 24]
        function(x)
        assert launches[-1]["in_x0"] == linear.bias.data_ptr()
    assert len(launches) == 4


@pytest.mark.parametrize(
    ("turned", "dynamic"),
    [
        pytest.param(turned, dynamic, marks=() if turned == dynamic else pytest.mark.slow)
        for turned in (False, True)
        for dynamic in (False, True)
    ],
)
def test_computed_values_that_are_expanded_keep_a_contiguous_dimension(turned: bool, dynamic: bool) -> None:
    """Inductor writes the expanded operand; its batches, of stride 0, must not become neighbours in memory."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w = w / w.float().norm()
        batches = (w.mT if turned else w).expand(x.shape[0], *w.shape)
        return torch.relu(torch.matmul(x.mT, batches)) + torch.relu(torch.matmul(batches, x))

    run, w = compiled(function, dynamic), torch.randn(24, 24)
    for batches in (2, 3):
        x = torch.randn(batches, 24, 24)
        close(run(x, w), function(x, w))
    assert sum(row.fused for record in RECORDS for row in record.rows) >= 2


def test_no_elements() -> None:
    function = compiled(lambda x, w: torch.relu(x @ w) + 1, True)
    w = random(16, 24)
    for rows in (4, 3, 0):
        x = random(rows, 16)
        close(function(x, w), torch.relu(x @ w) + 1)


def test_results_that_are_written_to_afterwards() -> None:
    def inplace(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x @ w
        y = torch.relu(z)
        y[0].add_(z.sum(-1)[0])
        z.mul_(2)
        x.copy_(z[:, :16])
        return y, z

    x, w = random(8, 16), random(16, 24)
    other = x.clone()
    got, want = compiled(inplace)(x, w), inplace(other, w)
    close(got, want)
    close(x, other)


def test_one_site_serves_all_calls_that_differ_in_addresses_alone() -> None:
    w = random(16, 16) / 4

    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ w) @ w)

    x = random(8, 16)
    _, code = code_of(compiled(twice), x)
    assert len(CALL.findall(code)) == 2
    assert len(re.findall(r"^evt_launch_\w+ = ", code, re.MULTILINE)) == 1


def branches(chosen: torch.Tensor, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ w)
    return torch.cond(chosen, lambda y: torch.relu(y @ v) + 1, lambda y: torch.tanh(y @ v), (y,))


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_graphs_of_a_condition_are_fused_too(dynamic: bool) -> None:
    function = compiled(branches, dynamic)
    given = random(8, 16), random(16, 16) / 4, random(16, 16) / 4
    for chosen in (torch.tensor(True), torch.tensor(False)):
        close(function(chosen, *given), branches(chosen, *given))
    assert [[row.fused for row in record.rows] for record in RECORDS] == [[True]] * 3
    _, code = code_of(compiled(branches, dynamic), torch.tensor(True), *given)
    assert len(CALL.findall(code)) == 3
    assert len(re.findall(r"^evt_launch_\w+ = ", code, re.MULTILINE)) == 3


def test_prebuild_takes_the_graphs_of_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[KernelSource] = []
    plan_for_h200(monkeypatch.setattr)

    def build(sources: Sequence[KernelSource], **others: Any) -> list[Path]:
        asked.extend(sources)
        return [Path("no such library")] * len(sources)

    monkeypatch.setattr(kernels, "build", build)
    given = torch.tensor(True), random(8, 16), random(16, 16), random(16, 16)
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    count = evt.prebuild(branches, given, options=options)
    assert len(asked) == count
    assert {"evt::fn::tanh(" in source.text for source in asked} == {True, False}
    before = set(asked)
    asked.clear()
    compiled(branches)(*given)
    assert set(asked) == before


@pytest.mark.cxx
def test_code_in_cxx_calls_the_operator() -> None:
    """Regions of one and of several results; the code serves any number of rows."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        z = torch.tanh(y @ w.T)
        return y, z, *statistics(z, w)

    found, w = compiled(function, dynamic=True, cpp_wrapper=True), random(16, 24)
    for rows in (6, 9):
        x = random(rows, 16)
        close(found(x, w), function(x, w))
    assert [row.fused for row in RECORDS[-1].rows] == [True] * 3
    assert len(RECORDS) == 1


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["inductor", "evt"])
def test_code_in_cxx_calls_programs(backend: str) -> None:
    """A program that the model calls itself: of one result and of several, with numbers, into buffers."""
    one, two = evt.gemm("D = relu(alpha*acc)"), evt.gemm("out D, s: f32[m]; D = acc + 1; s = max[n](D)")

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        into = torch.zeros(x.shape[0])
        found = two(x, w, s=into)
        return one(x, w, alpha=0.5), *two(x, w), found.D, into

    x, w = random(6, 16), random(16, 24)
    found = torch.compile(function, backend=backend, options={"cpp_wrapper": True}, dynamic=True)(x, w)
    for got, want in zip(found, function(x, w), strict=True):
        close(got, want)


def test_results_whose_size_is_read_are_not_stored() -> None:
    """Nothing reads the image but its number of elements, which is symbolic."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm(self.conv(x))
            return x * 2

    model, x = Model(), torch.randn(2, 8, 6, 6)
    other = copy.deepcopy(model)
    compiled(model, dynamic=True)(x)
    other(x)
    close(model.norm.running_var, other.norm.running_var)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_images_are_read_as_planned(dynamic: bool) -> None:
    """The channels of one image are batches of a product; the kernel of the convolution stores them last."""

    def function(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        images = torch.relu(torch.conv2d(x, w, padding=1))
        return torch.relu(y @ images[0])

    w = torch.randn(8, 4, 3, 3)
    made = compiled(function, dynamic=dynamic)
    for side in (5, 6) if dynamic else (5,):
        x, y = torch.randn(1, 4, side, 7), torch.randn(8, 3, side)
        close(made(x, w, y), function(x, w, y))


def test_a_first_result_that_no_kernel_reads_has_memory() -> None:
    """Inductor needs no elements for a part without elements, and gives the result no buffer."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(a @ b)
        return y[:, :0].sum(-1), y.sum(0)

    a, b = torch.randn(4, 8), torch.randn(8, 6)
    for got, want in zip(compiled(function)(a, b), function(a, b), strict=True):
        close(got, want)
