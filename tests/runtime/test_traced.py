"""torch.compile and calls: a call is one operator in the graph, and no frame of evt's is compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt.request import read_request

OP, LINEAR, CONV = evt.gemm("D = relu(acc + bias)"), evt.linear("D = silu(acc)"), evt.conv2d("D = acc")
SEVERAL = evt.gemm("out D, _x: f32[m]; D = alpha*acc; _x = sum[n](acc)")
GROUPED = evt.grouped_gemm("D = relu(acc + bias)")
B, BIAS = torch.randn(8, 8), torch.randn(8)
X, WEIGHT = torch.randn(2, 8, 4, 4), torch.randn(8, 8, 1, 1)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(B, requires_grad=False)
        self.op = evt.linear("D = silu(acc)")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(2 * x, self.weight) + LINEAR(x, self.weight)


def into_several(x: torch.Tensor) -> torch.Tensor:
    found = SEVERAL(x, B, alpha=2, out=(torch.empty_like(x), None))
    return found.D + found[1][:, None]


CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one": lambda x: OP(2 * x, B, bias=BIAS) + 1,
    "two": lambda x: OP(OP(x, B, bias=BIAS) + 1, B, bias=BIAS) * 2,
    "out": lambda x: OP(x, B, bias=BIAS, out=torch.empty_like(x)) + 1,
    "out by name": lambda x: OP(x, B, bias=BIAS, D=torch.empty_like(x)) + 1,
    "several": lambda x: SEVERAL(x, B, alpha=0.5).D + SEVERAL(x, B, alpha=x.shape[0])[1][:, None],
    "into several": into_several,
    "into a view": lambda x: OP(x, B, bias=BIAS, out=torch.zeros(2, *x.shape)[1]) + 1,
    "module": Layer(),
    "conv": lambda x: CONV(X * x.sum(), WEIGHT) + 1,
}
#: Programs that no graph holds.
OUTSIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reference": lambda x: OP.reference(2 * x, B, bias=BIAS) + 1,
    "grouped": lambda x: GROUPED([2 * x, x], [B, B], bias=BIAS)[0] + 1,
    "grouped reference": lambda x: GROUPED.reference([2 * x, x], [B, B], bias=BIAS)[0] + 1,
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_in_the_graph(name: str) -> None:
    function = CALLS[name]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for rows in (8, 16, 24):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), function(x))
    assert torch._dynamo.utils.counters["frames"]["total"] <= 2  # for one number of rows, then for any


@pytest.mark.parametrize("name", OUTSIDE)
def test_others_break_the_graph(name: str) -> None:
    function = OUTSIDE[name]
    compiled = torch.compile(function, backend="eager")
    for rows in (8, 16, 24):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), function(x))
    if hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"):  # since PyTorch 2.8
        assert torch._dynamo.utils.counters["frames"]["total"] <= 6  # guards of the function, none of evt's
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"are not traced|__call__|refer"):
        torch.compile(function, backend="eager", fullgraph=True)(torch.randn(8, 8))


def test_another_program_under_the_same_name_is_seen() -> None:
    holder: dict[str, Any] = {"op": evt.gemm("D = acc")}

    def function(x: torch.Tensor) -> Any:
        return holder["op"](x, B)

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(B), holder["op"](B, B))
    for text in ("D = 2*acc", "D = relu(acc)"):
        holder["op"] = evt.gemm(text)
        assert torch.equal(compiled(B), holder["op"](B, B))


def test_the_buffer_is_written() -> None:
    def function(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        return OP(x, B, bias=BIAS, out=buffer)

    buffer = torch.full((8, 8), torch.nan)
    got = torch.compile(function, backend="aot_eager", fullgraph=True)(B, buffer)
    assert got is buffer
    assert torch.equal(buffer, OP(B, B, bias=BIAS))


def test_a_program_may_be_compiled_itself() -> None:
    for fullgraph in (False, True):
        compiled = torch.compile(OP, backend="eager", fullgraph=fullgraph)
        assert torch.equal(compiled(B, B, bias=BIAS), OP(B, B, bias=BIAS))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda x: OP(x, B), "E0601"),
        (lambda x: OP(x, B, bias=BIAS, nothing=1), "E0602"),
        (lambda x: OP(x, B, bias=BIAS, out=x, D=x), "E0602"),
        (lambda x: OP(x, B.double(), bias=BIAS), "E0603"),
        (lambda x: OP(x, B[:3], bias=BIAS), "E0604"),
        (lambda x: OP(x, B, bias=BIAS, out=(x, x)), "E0608"),
        (lambda x: OP(x, B.clone().requires_grad_(), bias=BIAS, out=x.clone()), "E0610"),
    ],
)
def test_mistakes_have_their_codes(call: Callable[[torch.Tensor], Any], code: str) -> None:
    with pytest.raises(Exception, match=code):
        torch.compile(call, backend="eager", fullgraph=True)(B)


def test_what_has_no_kernel_is_traced() -> None:
    def bits(x: torch.Tensor) -> torch.Tensor:
        return evt.unpack_bits(evt.pack_bits(x > 0), 8)

    assert torch.equal(torch.compile(bits, backend="eager", fullgraph=True)(B), B > 0)
    converted = torch.compile(evt.channels_last, backend="eager", fullgraph=True)(X)
    assert converted.stride() == evt.channels_last(X).stride()


def test_calls_do_not_import_the_compiler() -> None:
    """A call alone must not take the seconds that importing it takes."""
    code = (
        "import sys, torch, evt; op = evt.gemm('D = acc'); op(torch.ones(2, 2), torch.ones(2, 2)); "
        "print('torch._dynamo' in sys.modules, 'evt.runtime.operator' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("text", ["", "{garbage", "{}", "3", "[]", '"D = acc"', "null"])
def test_what_is_no_program(text: str) -> None:
    with pytest.raises(evt.ArgumentError, match="E0613"):
        read_request(text)
