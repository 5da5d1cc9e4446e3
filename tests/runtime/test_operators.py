"""Programs as custom operators: opcheck, export, fakes and meta tensors, symbolic sizes, transforms."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

import evt
from evt.runtime.operator import write_program
from tests.support.depth import in_depth
from tests.support.programs_traced import CALLS, SCATTERED, A, B, C, Call, K, M, N, R, W, X, last, random, same

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's warnings about prototypes and future removals


#: Calls that differ from others in little that tracing sees.
SIMILAR = ("conv", "conv3d", "grouped conv", "dgrad", "wgrad", "blocks", "half width", "rows", "without D")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) if name in SIMILAR else name for name in CALLS])
def call(request: pytest.FixtureRequest) -> Call:
    torch._dynamo.reset()
    made: Call = CALLS[request.param]()
    return made


def arguments(call: Call) -> tuple[Any, ...]:
    floats = {name: value for name, value in call.numbers().items() if isinstance(value, float)}
    integers = {name: value for name, value in call.numbers().items() if isinstance(value, int)}
    values = [[*each.values()] for each in (floats, integers)]
    return (
        call.a,
        call.b,
        [*call.tensors.values()],
        write_program(call.program.request),
        [*call.tensors, *floats, *integers],
        *values,
    )


class Module(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.program, self.numbers = call.program, call.numbers()

    def forward(self, a: torch.Tensor, b: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Any:
        found = self.program(a, b, **tensors, **self.numbers)
        return tuple(found) if isinstance(found, tuple) else found


def plain(found: Any) -> Any:
    return tuple(found) if isinstance(found, tuple) else found


def test_run_passes_opcheck(call: Call) -> None:
    assert set(opcheck(torch.ops.evt.run.default, arguments(call)).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    "name", in_depth(["inputs", "several", "reductions", "conv channels last"], quick=["inputs", "reductions"])
)
def test_run_passes_opcheck_with_gradients(name: str) -> None:
    a, b, tensors, *rest = arguments(CALLS[name]())
    followed = [x.clone().requires_grad_(x.is_floating_point()) for x in (a, b, *tensors)]
    results = opcheck(torch.ops.evt.run.default, (*followed[:2], followed[2:], *rest))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["several", "reductions", "conv channels last", "bits"])
def test_write_and_allocate_pass_opcheck(name: str) -> None:
    call = CALLS[name]()
    a, b, tensors, *rest = arguments(call)
    found = call()
    buffers = [each.clone() for each in (found if isinstance(found, tuple) else (found,))]
    results = opcheck(torch.ops.evt.write.default, (a, b, tensors, buffers, *rest))
    assert set(results.values()) == {"SUCCESS"}
    fresh = torch.ops.evt.allocate(a, b, tensors, list(call.program.outputs), *rest)
    assert [(x.shape, x.stride(), x.dtype) for x in fresh] == [(x.shape, x.stride(), x.dtype) for x in buffers]


def test_fakes_and_meta_tensors_have_the_shapes_of_results(call: Call) -> None:
    want = call()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (call.a, call.b)]
        made = call.program(*fakes, **{n: mode.from_tensor(x) for n, x in call.tensors.items()}, **call.numbers())
    on_meta = call.program(
        call.a.to("meta"), call.b.to("meta"), **{n: x.to("meta") for n, x in call.tensors.items()}, **call.numbers()
    )
    for found in (made, on_meta):
        for got, real in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, want)), strict=True):
            assert (got.shape, got.stride(), got.dtype) == (real.shape, real.stride(), real.dtype)
    assert type(on_meta) is type(want)


def test_symbolic_sizes(call: Call) -> None:
    """Another number of rows, images or batches is no other graph, and no size is fixed on the way."""
    program, numbers = call.program, call.numbers()

    def function(a: torch.Tensor, b: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Any:
        return program(a, b, **tensors, **numbers)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    torch._dynamo.utils.counters.clear()
    tensors = call.tensors
    assert same(compiled(call.a, call.b, tensors), call())
    larger = longer(call)
    assert same(compiled(larger.a, larger.b, larger.tensors), larger())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def longer(call: Call) -> Call:
    """Return a call with more rows, images or batches."""

    def grown(name: str, x: torch.Tensor) -> torch.Tensor:
        if name not in call.rows:
            return x
        dim = call.rows[name]
        made = torch.cat([x, x.narrow(dim, 0, 1), x], dim)
        return last(made) if x.dim() == 4 and x.stride(1) == 1 else made

    tensors = {name: grown(name, x) for name, x in call.tensors.items()}
    return Call(call.program, grown("a", call.a), call.b, {**call.inputs, **tensors}, call.rows)


@pytest.mark.parametrize(
    ("name", "strict"),
    [("inputs", True), ("several", False), ("bits", False), ("linear", True), ("conv outputs", False)],
)
def test_export_saved_and_loaded(name: str, strict: bool) -> None:
    call = CALLS[name]()
    rows = torch.export.Dim("rows")
    dims = {each: {dim: rows} for each, dim in call.rows.items() if each == "a" or each in call.tensors}
    shapes = {"a": dims["a"], "b": None, "tensors": {each: dims.get(each) for each in call.tensors}}
    exported = torch.export.export(Module(call), (call.a, call.b, call.tensors), dynamic_shapes=shapes, strict=strict)
    assert "evt.run" in str(exported.graph)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for each in (call, longer(call)):
        assert same(loaded(each.a, each.b, each.tensors), plain(each()))


@pytest.mark.slow
def test_a_process_that_loads_imports_the_operators(tmp_path: Path) -> None:
    call = CALLS["inputs"]()
    torch.export.save(torch.export.export(Module(call), (call.a, call.b, call.tensors)), tmp_path / "model.pt2")
    torch.save((call.a, call.b, call.tensors, call()), tmp_path / "call.pt")
    code = (
        "import evt.operators, torch; program = torch.export.load('model.pt2').module(); "
        "a, b, tensors, want = torch.load('call.pt'); print(torch.equal(program(a, b, tensors), want))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", ["several", "batched", "conv channels last"])
def test_make_fx(name: str, mode: str) -> None:
    call = CALLS[name]()
    names = list(call.tensors)

    def function(a: torch.Tensor, b: torch.Tensor, *tensors: torch.Tensor) -> Any:
        return plain(call.program(a, b, **dict(zip(names, tensors, strict=True)), **call.numbers()))

    made = make_fx(function, tracing_mode=mode)(call.a, call.b, *call.tensors.values())
    assert same(made(call.a, call.b, *call.tensors.values()), plain(call()))
    assert [node.target for node in made.graph.nodes].count(torch.ops.evt.run.default) == 1


def test_numbers_may_be_symbols() -> None:
    op = evt.gemm("D = dropout(alpha*acc, 0.5, seed, offset)")

    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return op(a, b, alpha=a.shape[0] / 2, seed=a.shape[0] + 1, offset=0)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for a in (A, torch.cat([A, A])):
        assert torch.equal(compiled(a, B), function(a, B))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_scattered_outputs_keep_the_other_rows() -> None:
    index = torch.tensor([4, 1, 3, 0, 7, 2], dtype=torch.int32)

    def function(a: torch.Tensor, buffer: torch.Tensor) -> Any:
        return SCATTERED(a, B, index=index, D=buffer)

    want, got = torch.full((9, N), 5.0), torch.full((9, N), 5.0)
    function(A, want)
    torch.compile(function, backend="aot_eager", fullgraph=True)(A, got)
    assert torch.equal(got, want)
    assert (got[8] == 5).all()
    with pytest.raises(evt.ArgumentError, match="E0608"):
        SCATTERED(A.to("meta"), B.to("meta"), index=index.to("meta"))


# Gradients and autocast


def test_gradients_are_recorded_or_refused() -> None:
    call = CALLS["inputs"]()
    a, b, tensors, *rest = arguments(call)
    for given in (
        (a.clone().requires_grad_(), b, tensors),
        (a, b, [tensors[0].clone().requires_grad_(), *tensors[1:]]),
    ):
        found = torch.ops.evt.run(*given, *rest)[0]
        assert found.requires_grad
        assert torch.equal(found, call())
        with torch.no_grad():
            assert not torch.ops.evt.run(*given, *rest)[0].requires_grad
        with pytest.raises(evt.ArgumentError, match="E0610"):
            torch.ops.evt.write(*given, [found.detach()], *rest)
    assert torch.func.grad(lambda x: call.program(x, b, **call.inputs).sum())(a).shape == a.shape
    with pytest.raises(evt.ArgumentError, match="E0610"):
        torch.func.jvp(lambda x: call.program(x, b, **call.inputs), (a,), (a,))


def test_autocast_changes_nothing() -> None:
    """A program states its rounding points, so its types come from its operands, traced or not."""
    call = CALLS["inputs"]()
    want = call()
    function = torch.compile(lambda: call(), backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert same(call(), want)
        assert same(function(), want)
        mixed = torch.nn.functional.linear(A, B.T)
        with pytest.raises(evt.ArgumentError, match=r"E0603"):
            evt.gemm("D = acc")(mixed, random(N, K))


# vmap


def each_alone(function: Callable[..., Any], dims: tuple[int | None, ...], *tensors: torch.Tensor) -> Any:
    count = next(x.shape[dim] for x, dim in zip(tensors, dims, strict=True) if dim is not None)
    results = [
        function(*(x if dim is None else x.select(dim, index) for x, dim in zip(tensors, dims, strict=True)))
        for index in range(count)
    ]
    return (
        tuple(map(torch.stack, zip(*results, strict=True))) if isinstance(results[0], tuple) else torch.stack(results)
    )


BIAS, S = random(N), random(M)
As, Bs, Cs = random(4, M, K), random(4, K, N), random(4, M, N)
Xs, Rs = random(4, *X.shape), random(4, *R.shape)
GEMM, LINEAR = evt.gemm("D = relu(acc + C + bias)"), evt.linear("in s: f32[m]\nD = relu(acc + C)*s")
CONV = evt.conv2d("out D, r: f32[m]; D = relu(acc + C + bias); r = sum[n](acc)", padding=1)
TURNED = evt.linear("out D: f32[n, m]; D = acc")
VMAPS: dict[str, tuple[Callable[..., Any], tuple[int | None, ...], tuple[torch.Tensor, ...]]] = {
    "A": (lambda a: GEMM(a, B, C=C, bias=BIAS), (0,), (As,)),
    "A, last": (lambda a: GEMM(a, B, C=C, bias=BIAS), (2,), (As.movedim(0, 2),)),
    "B": (lambda b: GEMM(A, b, C=C, bias=BIAS), (0,), (Bs,)),
    "C": (lambda c: GEMM(A, B, C=c, bias=BIAS), (0,), (Cs,)),
    "A, B, C": (lambda a, b, c: GEMM(a, b, C=c, bias=BIAS), (0, 0, 0), (As, Bs, Cs)),
    "batches": (lambda a, b: GEMM(a, b, C=C, bias=BIAS), (0, None), (As, random(3, K, N))),
    "linear": (lambda a, c: LINEAR(a, B.T, C=c, s=S), (0, 0), (As, Cs)),
    "linear, C once": (lambda a: LINEAR(a, B.T, C=C, s=S), (0,), (As,)),
    "linear, transposed": (lambda a: TURNED(a, B.T), (0,), (As,)),
    "conv": (lambda x, r: CONV(x, W, C=r, bias=BIAS), (0, 0), (Xs, Rs)),
    "conv, C once": (lambda x: CONV(x, W, C=R, bias=BIAS), (0,), (Xs,)),
}
REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "bias": (lambda bias: GEMM(A, B, C=C, bias=bias), (random(4, N),)),
    "weight": (lambda b: LINEAR(A, b, C=C, s=S), (random(4, N, K),)),
    "filters": (lambda w: CONV(X, w, C=R, bias=BIAS), (random(4, *W.shape),)),
    "scalar": (lambda alpha: evt.gemm("D = alpha*acc")(A, B, alpha=alpha), (random(4),)),
    "columns": (lambda a: evt.linear("out r: f32[n]; r = sum[m](acc)")(a, B.T), (As,)),
    "total": (lambda x: evt.conv2d("out D, r: f32; D = acc; r = sum[m, n](acc)", padding=1)(x, W), (Xs,)),
    "dropout": (lambda a: evt.gemm("D = dropout(acc, 0.5, seed, offset)")(a, B, seed=1, offset=0), (As,)),
    "buffer": (lambda a: evt.gemm("D = acc")(a, B, out=torch.empty(M, N)), (As,)),
    "wgrad": (lambda x: evt.conv2d_wgrad("D = acc", kernel_size=3, padding=1)(R, x), (Xs,)),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap_is_one_call(name: str) -> None:
    function, dims, tensors = VMAPS[name]
    got = torch.vmap(function, in_dims=dims)(*tensors)
    torch.testing.assert_close(
        tuple(got) if isinstance(got, tuple) else got, plain(each_alone(function, dims, *tensors))
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_single_launch_is_refused_in_vmap(name: str) -> None:
    function, tensors = REFUSED[name]
    with pytest.raises(evt.ArgumentError, match="E0611"):
        torch.vmap(function)(*tensors)


#: Calls of the operators with arguments that do not fit, and the codes of the diagnostics.
WRONG: dict[str, tuple[str, Any]] = {
    "too few values": ("E0607", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [al], text)),
    "too many values": ("E0607", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [al, c, c], text)),
    "too few names": ("E0607", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [al, c], text, ["alpha"])),
    "too few floats": ("E0607", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [c], text, ["C", "alpha"])),
    "a name twice": ("E0602", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [al, c], text, ["C", "C"])),
    "no input": ("E0602", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [al, c], text, ["alpha", "X"])),
    "an output": ("E0602", lambda ops, a, b, al, c, d, s, text: ops.run(a, b, [al, c, d], text, ["alpha", "C", "D"])),
    "launched with too few": ("E0607", lambda ops, a, b, al, c, d, s, text: ops.launch(a, b, [al], text)),
    "no program": ("E0613", lambda ops, a, b, al, c, d, s, text: ops.allocate(a, b, [al, c], ["D"], "D = acc")),
    "half a program": ("E0613", lambda ops, a, b, al, c, d, s, text: ops.write(a, b, [al, c], [d, s], text[:-9])),
    "a buffer missing": ("E0608", lambda ops, a, b, al, c, d, s, text: ops.write(a, b, [al, c], [d], text)),
    "a buffer more": ("E0608", lambda ops, a, b, al, c, d, s, text: ops.write(a, b, [al, c], [d, s, s], text)),
    "buffers swapped": ("E0603", lambda ops, a, b, al, c, d, s, text: ops.write(a, b, [al, c], [s, d], text)),
    "a small buffer": ("E0608", lambda ops, a, b, al, c, d, s, text: ops.write(a, b, [al, c], [d[:4], s], text)),
    "written with a name less": ("E0607", lambda ops, a, b, al, c, d, s, text: ops.write(a, b, [c], [d, s], text)),
    "no output": ("E0602", lambda ops, a, b, al, c, d, s, text: ops.allocate(a, b, [al, c], ["X"], text)),
    "an input to allocate": ("E0602", lambda ops, a, b, al, c, d, s, text: ops.allocate(a, b, [al, c], ["C"], text)),
    "an output twice": ("E0602", lambda ops, a, b, al, c, d, s, text: ops.allocate(a, b, [al, c], ["D", "D"], text)),
    "no product": ("E0604", lambda ops, a, b, al, c, d, s, text: ops.allocate(a, a, [al, c], ["D"], text)),
}


@pytest.mark.parametrize("faked", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_operators_refuse_what_does_not_fit(case: str, faked: bool) -> None:
    code, call = WRONG[case]
    text = write_program(evt.gemm("out D, s: f32[m]; v = alpha*acc + C; D = v; s = sum[n](v)").request)
    half = [torch.zeros(shape).half() for shape in ((8, 16), (16, 24))]
    tensors = [*half, torch.ones(1), torch.zeros(8, 24).half(), torch.zeros(8, 24).half(), torch.zeros(8)]
    with FakeTensorMode() if faked else contextlib.nullcontext() as mode:
        given = [mode.from_tensor(each) for each in tensors] if faked else tensors
        with pytest.raises(evt.EvtError) as refused:
            call(torch.ops.evt, *given, text)
    assert {each.code for each in refused.value.diagnostics} == {code}
