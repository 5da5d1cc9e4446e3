"""Calls that autograd records: types, refusals, transforms, graphs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt.functions.testing import temporarily
from evt.runtime import autograd
from tests.support.gradients import CASES, call, drawn, gradients, made, plainly

pytestmark = pytest.mark.filterwarnings("ignore::evt.errors.NoKernelWarning")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["gelu", "scalars", "gated", "conv", "dgrad"])
def test_narrow_types(name: str, dtype: torch.dtype, recompute: bool) -> None:
    op, values = made(name, recompute=recompute)
    text = CASES[name][0].replace("in alpha: f64, beta: f64; ", "")
    op = evt.Program(text, CASES[name][1], **CASES[name][2], recompute=recompute)
    scalars = ("alpha", "beta")
    narrow = {n: x.detach().to(torch.float32 if n in scalars else dtype).requires_grad_() for n, x in values.items()}
    wide = {n: x.detach().double().requires_grad_() for n, x in narrow.items()}
    wide_op = evt.Program(CASES[name][0], CASES[name][1], **CASES[name][2])
    got = gradients(lambda each: call(op, each), narrow)
    want = gradients(lambda each: call(wide_op, each), wide)
    bound = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    for one, two, leaf in zip(got, want, narrow.values(), strict=True):
        assert one.dtype == leaf.dtype
        assert one.shape == leaf.shape
        assert (one.double() - two).norm() <= bound * two.norm()


def test_matches_eager_where_the_program_does() -> None:
    """Sums are exact in f16 and never 0, where the order of addition would decide whether a gradient is 0."""
    op = evt.gemm("D = relu(acc + bias)", numerics="eager")
    a, b, bias = (torch.randint(-4, 5, shape).half() / 4 for shape in ((7, 16), (16, 8), (8,)))
    bias += 1 / 32
    for each in (a, b, bias):
        each.requires_grad_()
    op(a, b, bias=bias).sum().backward()
    got = [a.grad, b.grad, bias.grad]
    for each in (a, b, bias):
        each.grad = None
    torch.relu(a @ b + bias).sum().backward()
    for one, each in zip(got, (a, b, bias), strict=True):
        torch.testing.assert_close(one, each.grad)


def test_results_may_be_modified_in_place() -> None:
    """Unless the backward pass reads them."""
    op, values = made("gelu")
    want = gradients(lambda each: call(op, each) * 2, values)
    for got, expected in zip(gradients(lambda each: call(op, each).mul_(2), values), want, strict=True):
        torch.testing.assert_close(got, expected)
    result = evt.gemm("D = sigmoid(acc)")(*operands())
    result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


class Weight(torch.nn.Parameter):
    pass


def test_subclasses_without_behaviour_have_gradients() -> None:
    op, values = made("gelu")
    want = gradients(lambda each: call(op, each), values)
    for kind in (torch.nn.Parameter, Weight):
        given = {name: kind(value.detach()) for name, value in values.items()}
        for one, two in zip(gradients(lambda each: call(op, each), given), want, strict=True):
            torch.testing.assert_close(one, two)
    negative = {**values, "A": torch._neg_view(-values["A"])}
    for one, two in zip(gradients(lambda each: call(op, each), negative)[1:], want[1:], strict=True):
        torch.testing.assert_close(one, two)


def test_a_mistake_beside_gradients_is_all_that_is_said() -> None:
    for given in (operands()[0].detach().to_sparse(), "text"):
        with pytest.raises(evt.ArgumentError) as caught:
            evt.gemm("D = acc")(given, operands()[1])
        assert "E0610" not in str(caught.value)


def test_gathered_rows_add_up() -> None:
    """Places that are out of range were read from nowhere."""
    op = evt.gemm("in index: i32[m]; in x: f64[index[m], n], s: f64[index[m]]; D = tanh(acc + x)*s")
    index = torch.tensor([2, 0, 2, -1, 9], dtype=torch.int32)
    values = drawn({"A": (5, 6), "B": (6, 8), "x": (4, 8), "s": (4,)})
    op(values["A"], values["B"], index=index, x=values["x"], s=values["s"]).square().sum().backward()
    padded = {n: torch.cat([values[n].detach(), torch.zeros_like(values[n][:1])]).requires_grad_() for n in ("x", "s")}
    places = torch.tensor([2, 0, 2, 4, 4])
    acc = values["A"].detach() @ values["B"].detach()
    (torch.tanh(acc + padded["x"][places]) * padded["s"][places][:, None]).square().sum().backward()
    for name, each in padded.items():
        torch.testing.assert_close(values[name].grad, torch.as_tensor(each.grad)[:4])


def test_dropout_has_the_mask_of_the_forward_pass() -> None:
    op = evt.gemm("in seed: i64, offset: i64; D = dropout(acc, 0.5, seed, offset)")
    a, b = torch.ones(8, 4, requires_grad=True), torch.ones(4, 8)
    found = op(a, b, seed=7, offset=2**63 + 5)
    found.sum().backward()
    assert torch.equal(a.grad, (found.detach() != 0).float().sum(1, keepdim=True).mul(2).expand(8, 4))


def test_batches_that_no_stride_walks_where_the_product_is_computed_again(launches: list[dict[str, float]]) -> None:
    """The backward kernel is launched as often as the forward one, each time with new memory for gradients."""
    shapes = ((3, 1, 16, 24), (2, 24, 32), (32,), (16,))
    a, b, s, t = (torch.zeros(shape).half().requires_grad_() for shape in shapes)
    result = evt.gemm("D = tanh(acc*s[n])*t[m]", recompute=True)(a, b, s=s, t=t)
    assert len(launches) == 2
    result.sum().backward()
    first, second = launches[2:]
    assert second["out_grad_s"] - first["out_grad_s"] == 32 * 4
    assert second["out_grad_t"] - first["out_grad_t"] == 16 * 4
    assert first["stride_l_of_out_grad_s"] == 2 * 32
    assert [each.grad.shape for each in (a, b, s, t)] == [each.shape for each in (a, b, s, t)]
    assert s.grad.dtype == torch.float16


# Refusals


def call_cube() -> None:
    with temporarily():
        evt.function("cube_of(x)", cxx="x * x * x", torch=lambda x: x**3)
        evt.gemm("D = cube_of(acc)")(*operands())


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no derivative": (call_cube, "cube_of"),
    "8 bits": (
        lambda: evt.gemm("D = acc")(operands()[0].detach().to(torch.float8_e4m3fn).requires_grad_(), fp8()),
        "at least 16 bits",
    ),
    "twice": (
        lambda: torch.autograd.grad(evt.gemm("D = gelu(acc)")(*operands()).sum(), operands(), create_graph=True),
        "create_graph",
    ),
    "two indices": (
        lambda: evt.gemm("in i: i32[m], j: i32[n]; in x: f32[i[m], j[n]]; D = acc + x")(
            *operands(), i=places(), j=places(), x=torch.ones(4, 4, requires_grad=True)
        ),
        "two indices",
    ),
    "bits": (lambda: evt.gemm("out M: b1[m, n]; M = acc > 0").gradient(), "no output"),
    "a statistic": (
        lambda: evt.gemm("out D, s: f32[m]; D = acc; s = max[n](acc)", recompute=True)(*operands()),
        "recompute=True",
    ),
}
_OPERANDS = [torch.ones(8, 8, requires_grad=True), torch.ones(8, 8, requires_grad=True)]


def operands() -> list[Any]:
    return _OPERANDS


def places() -> Any:
    return torch.zeros(8, dtype=torch.int32)


def fp8() -> Any:
    return torch.ones(8, 8).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_says_why(name: str) -> None:
    run, words = REFUSED[name]
    with pytest.raises(evt.ArgumentError, match="E0614") as caught:
        run()
    assert words in str(caught.value)


def test_a_backward_kernel_that_there_is_not_is_refused_before_the_forward_pass(monkeypatch: Any) -> None:
    """No kernel computes the gradient of the input with a stride of 3 and multiplies by a mask."""
    monkeypatch.setattr(autograd, "_target", lambda bound: "sm90")
    a, b = torch.ones(1, 8, 4, 4, requires_grad=True), torch.ones(8, 8, 3, 3)
    for stride, has in ((1, True), (2, True), (3, False)):
        op = evt.conv2d_dgrad("D = relu(acc)", stride=stride, padding=1, recompute=True)
        if has:
            op(a.half(), b.half()).sum().backward()
            continue
        with pytest.raises(evt.ArgumentError, match=r"E0614.*no route compiles"):
            op(a.half(), b.half())
        assert not op(a.half().detach(), b.half()).requires_grad
    recomputed = evt.conv2d_dgrad("D = acc", stride=3, padding=1, recompute=True)
    recomputed(a.half(), b.half()).sum().backward()  # nothing of the product is read


def test_what_records_nothing_refuses_to_lose_a_gradient() -> None:
    op, (a, b) = evt.gemm("D = acc"), operands()
    for run in (lambda: op(a, b, out=torch.empty(8, 8)), lambda: op.reference(a, b)):
        with pytest.raises(evt.ArgumentError, match="E0610"):
            run()
    with torch.no_grad():
        assert not op(a, b, out=torch.empty(8, 8)).requires_grad


def test_a_scale_of_integers_has_a_gradient() -> None:
    op = evt.gemm("gemm(A: i8, B: i8); in scale: f32[n]; out D: f32[m, n]; D = acc*scale")
    a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((5, 16), (16, 8)))
    scale = torch.rand(8, requires_grad=True)
    op(a, b, scale=scale).sum().backward()
    torch.testing.assert_close(scale.grad, (a.float() @ b.float()).sum(0))


# Transforms and graphs


@pytest.mark.parametrize("name", ["gelu", "conv", "mainloop", "statistics"])
def test_transforms_differentiate_as_often_as_they_like(name: str) -> None:
    op, values = made(name)
    inputs = {each: value.detach() for each, value in values.items() if each not in "AB"}
    a, b = values["A"].detach(), values["B"].detach()

    def ours(x: Any) -> Any:
        found = op(x, b, **inputs)
        return (found[0] if isinstance(found, tuple) else found).square().sum()

    def plain(x: Any) -> Any:
        return plainly(op, x, b, inputs)[op.outputs[0]].square().sum()

    for transform in (torch.func.grad, torch.func.hessian, lambda f: torch.func.jacrev(torch.func.grad(f))):
        if name == "conv" and transform is not torch.func.grad:
            continue
        torch.testing.assert_close(transform(ours)(a), transform(plain)(a))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["gelu", "scalars", "conv", "statistics"])
def test_compiled(name: str, backend: str) -> None:
    torch._dynamo.reset()
    op, values = made(name)
    function = torch.compile(lambda each: call(op, each), backend=backend, fullgraph=True)
    for got, want in zip(gradients(function, values), gradients(lambda each: call(op, each), values), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore")
def test_compiled_once_for_all_rows() -> None:
    torch._dynamo.reset()
    op, graphs = evt.gemm("D = gelu(acc + bias)"), []
    function = torch.compile(
        op, backend=lambda module, _: graphs.append(module) or module, dynamic=True, fullgraph=True
    )
    for rows in (5, 7, 12):
        values = drawn({"A": (rows, 6), "B": (6, 8), "bias": (8,)}, rows)
        got = gradients(lambda each: call(function, each), values)
        for one, two in zip(got, gradients(lambda each: call(op, each), values), strict=True):
            torch.testing.assert_close(one, two)
    assert len(graphs) == 1


def test_autocast_does_not_reach_the_backward_pass() -> None:
    op, values = made("gelu")
    want = gradients(lambda each: call(op, each), values)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(lambda each: call(op, each), values)
    assert all(map(torch.equal, got, want))


def test_shown_on_the_command_line() -> None:
    command = [sys.executable, "-m", "evt", "show", "--stage", "gradient", "D = relu(acc + bias)"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == str(evt.gemm("D = relu(acc + bias)").gradient()) + "\n"
    failed = subprocess.run([*command[:-1], "gemm(A: i8, B: i8)\nD = acc"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "E0614" in failed.stderr
