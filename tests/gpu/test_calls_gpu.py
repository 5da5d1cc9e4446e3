"""Arguments that calls on a GPU accept, and arguments that they refuse before a launch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import evt

pytestmark = pytest.mark.gpu

M, N, K = 200, 136, 264
TEXT = "D = relu(alpha*acc + C) + bias"
# Few kernels serve: GROUPED has the kernels of GEMM, and the routes of 2.x have one configuration each.
GEMM = evt.gemm(TEXT)
GROUPED = evt.grouped_gemm(TEXT, route="loop")
LINEAR = evt.linear(TEXT, route="evt-2x")
CONV = evt.conv2d(TEXT, padding=1, route="conv-evt-2x")

Values = dict[str, torch.Tensor]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).half()


def values(kind: str) -> Values:
    if kind == "conv":
        found = {"A": random(2, 16, 14, 12), "B": random(24, 16, 3, 3), "C": random(2, 24, 14, 12), "bias": random(24)}
        found = {name: evt.channels_last(x) if x.dim() == 4 else x for name, x in found.items()}
    else:
        found = {"A": random(M, K), "B": random(K, N), "C": random(M, N), "bias": random(N)}
        found["B"] = found["B"].mT.contiguous() if kind == "linear" else found["B"]
    return {**found, "alpha": torch.full((), 0.125, device="cuda")}


def call(kind: str, given: Values) -> torch.Tensor:
    rest = dict(given)
    a, b = rest.pop("A"), rest.pop("B")
    if kind == "grouped":
        return GROUPED([a], [b], **{name: [x] for name, x in rest.items()})[0]
    return {"gemm": GEMM, "linear": LINEAR, "conv": CONV}[kind](a, b, **rest)


KINDS = ("gemm", "linear", "conv", "grouped")
NAMES = ("A", "B", "C", "bias", "alpha")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_negative_bits_are_resolved(kind: str, name: str) -> None:
    given = values(kind)
    want = call(kind, given)
    for _ in range(2):
        assert torch.equal(call(kind, {**given, name: torch._neg_view(-given[name])}), want)
    assert torch.equal(call(kind, given), want)


def test_the_part_of_a_conjugate_is_read_right() -> None:
    op = evt.gemm("in C: f32[m, n]; D = acc + C", route="evt-2x")
    a, b = random(M, K), random(K, N)
    c = torch.complex(random(M, N).float(), random(M, N, seed=1).float())
    assert c.conj().imag.is_neg()
    for _ in range(2):
        assert torch.equal(op(a, b, C=c.conj().imag), op(a, b, C=-c.imag))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_freed_memory_is_refused_and_harms_nothing(kind: str, name: str) -> None:
    given = values(kind)
    want = call(kind, given)
    whole = torch.stack([given[name], given[name]])
    part = whole[1]
    if kind == "conv" and part.dim() == 4:
        part = evt.channels_last(part)
        whole = part
    assert torch.equal(call(kind, {**given, name: part}), want)
    size = whole.untyped_storage().nbytes()
    for left in (0, size // 4):
        whole.untyped_storage().resize_(left)
        with pytest.raises(evt.ArgumentError, match="E0612"):
            call(kind, {**given, name: part})
        whole.untyped_storage().resize_(size)
        part.copy_(given[name])
        assert torch.equal(call(kind, {**given, name: part}), want)
    torch.cuda.synchronize()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_tangents_transforms_and_other_devices(kind: str, name: str) -> None:
    given = values(kind)
    want = call(kind, given)

    def refused(code: str, run: Callable[[], object]) -> None:
        with pytest.raises(evt.ArgumentError, match=code):
            run()

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given[name], given[name])
        refused("E0610", lambda: call(kind, {**given, name: dual}))
    followed = {**given, name: given[name].clone().requires_grad_()}
    if kind == "grouped":
        refused("E0610", lambda: call(kind, followed))
    else:
        recorded = call(kind, followed)
        assert recorded.requires_grad
        assert torch.equal(recorded.detach(), want)
    twice = torch.stack([given[name]] * 2)
    if kind == "grouped":
        refused("E0611", lambda: torch.func.vmap(lambda x: call(kind, {**given, name: x}))(twice))
        refused("E0611", lambda: torch.func.functionalize(lambda x: call(kind, {**given, name: x}))(given[name]))
    elif name in ("A", "C") or (name == "B" and kind == "gemm"):
        for each in torch.func.vmap(lambda x: call(kind, {**given, name: x}))(twice):
            torch.testing.assert_close(each, want, rtol=1e-2, atol=1e-2)
        assert torch.equal(torch.func.functionalize(lambda x: call(kind, {**given, name: x}))(given[name]), want)
    else:
        refused("E0611", lambda: torch.func.vmap(lambda x: call(kind, {**given, name: x}))(twice))
    refused("E0605", lambda: call(kind, {**given, name: given[name].cpu().pin_memory()}))
    refused("E0605", lambda: call(kind, {**given, name: given[name].to("meta")}))
    assert torch.equal(call(kind, given), want)


def test_modes_and_subclasses() -> None:
    class Weight(torch.nn.Parameter):
        pass

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    given = values("gemm")
    want = call("gemm", given)
    assert torch.equal(call("gemm", {**given, "B": Weight(given["B"], requires_grad=False)}), want)
    for mode in (lambda: torch.device("meta"), Dispatch, Function, torch.inference_mode, torch.no_grad):
        with mode():
            assert torch.equal(call("gemm", given), want)
    buffer = torch.nn.Parameter(torch.zeros_like(want), requires_grad=False)
    assert call("gemm", {**given, "D": buffer}) is buffer
    assert torch.equal(buffer, want)
    made = torch.func.grad(lambda x: call("gemm", {**given, "A": x}).sum())(given["A"])
    followed = given["A"].clone().requires_grad_()
    call("gemm", {**given, "A": followed}).sum().backward()
    torch.testing.assert_close(made, followed.grad, rtol=1e-3, atol=1e-2)  # PyTorch's operators compute the first


def test_a_compiled_function_has_the_call_in_its_graph() -> None:
    given = values("gemm")
    rest = {name: x for name, x in given.items() if name not in "AB"}

    def layer(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return GEMM(x * 2, given["B"], **{**rest, "C": c}) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for rows in (M, M, 2 * M):
        x, c = random(rows, K), random(rows, N)
        assert torch.equal(compiled(x, c), layer(x, c))


# Buffers


@pytest.mark.parametrize("strides", [(N // 2, 1), (0, 1), (1, 1), (N - 1, 1), (1, M - 1)])
def test_buffers_with_an_element_twice_are_refused(strides: tuple[int, int]) -> None:
    given = values("gemm")
    storage = torch.zeros(2 * M * N, device="cuda", dtype=torch.float16)
    for _ in range(2):
        with pytest.raises(evt.ArgumentError, match="E0608"):
            call("gemm", {**given, "D": storage.as_strided((M, N), strides)})
        call("gemm", given)
    assert not storage.any()


def test_buffers_of_convolutions_in_any_memory() -> None:
    given = values("conv")
    want = call("conv", given)
    for buffer in (
        torch.zeros(2, 24, 14, 12, device="cuda").half(),
        evt.channels_last(torch.zeros(2, 24, 14, 12, device="cuda").half()),
        evt.channels_last(torch.zeros(2, 48, 14, 12, device="cuda").half())[:, 8:32],
        torch.zeros(24, 2, 14, 12, device="cuda").half().transpose(0, 1),
        torch.zeros(2, 24, 14, 24, device="cuda").half()[..., ::2],
    ):
        for _ in range(2):
            buffer.fill_(torch.nan)
            assert call("conv", {**given, "D": buffer}) is buffer
            assert torch.equal(buffer, want)
    c = given["C"].contiguous()
    assert torch.equal(call("conv", {**given, "C": c, "D": c}), want)  # in place, read and written by copies
    assert call("conv", {name: x.contiguous() for name, x in given.items()}).is_contiguous()


def test_a_launch_tells_autograd_what_it_wrote() -> None:
    given = values("gemm")
    buffer = torch.ones(M, N, device="cuda", dtype=torch.float16)
    saved = torch.ones_like(buffer, requires_grad=True) * buffer
    call("gemm", {**given, "D": buffer})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_none_and_inputs_that_cancel_out() -> None:
    a, b = random(M, K), random(K, N)
    op = evt.gemm("def first(x, y) = x\nin bias: f16[n] = 0\nD = first(acc + bias, C)", route="evt-2x")
    want = op(a, b, C=random(M, N))
    for c in (random(M, N, seed=2), random(N, M).mT, torch.full((M, N), torch.nan, device="cuda").half()):
        assert torch.equal(op(a, b, C=c, bias=None), want)
        assert torch.equal(op(a, b, C=c, bias=torch.zeros(N, device="cuda").half()), want)
    with pytest.raises(evt.ArgumentError, match="E0604"):
        op(a, b, C=random(N, M))


def test_groups_are_looked_at_too() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("grouped kernels are sm90's")
    op = evt.grouped_gemm("D = relu(acc) + C")
    a, b, c = [random(64, 64), random(128, 64)], [random(64, 64)] * 2, [random(64, 64), random(128, 64)]
    want = op(a, b, C=c)
    negative = op([torch._neg_view(-a[0]), a[1]], b, C=c)
    assert all(map(torch.equal, negative, want))
    storage = torch.zeros(192, 128, device="cuda").half()
    halves = [storage[:64, :64], storage[:128, 64:]]  # interleaved, and apart
    assert all(map(torch.equal, op(a, b, C=c, out=halves), want))
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(a, b, C=c, out=[storage[:64, :64], storage[:128, 32:96]])
    with pytest.raises(evt.ArgumentError, match="E0608"):
        op(a, b, C=c, out=[storage[:64, :64], storage.as_strided((128, 64), (32, 1), 64)])
    freed = a[1].clone()
    op([a[0], freed], b, C=c)
    freed.untyped_storage().resize_(0)
    with pytest.raises(evt.ArgumentError, match="E0612"):
        op([a[0], freed], b, C=c)
