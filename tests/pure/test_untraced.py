"""torch.compile and calls: a call is a graph break, gives what it gives, and is not compiled itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import evt  # noqa: E402

OP, LINEAR, CONV = evt.gemm("D = relu(acc + bias)"), evt.linear("D = silu(acc)"), evt.conv2d("D = acc")
GROUPED = evt.grouped_gemm("D = relu(acc + bias)")
B, BIAS = torch.randn(8, 8), torch.randn(8)
X, WEIGHT = torch.randn(2, 8, 4, 4), torch.randn(8, 8, 1, 1)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(B, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return LINEAR(2 * x, self.weight) + 1


CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one": lambda x: OP(2 * x, B, bias=BIAS) + 1,
    "two": lambda x: OP(OP(x, B, bias=BIAS) + 1, B, bias=BIAS) * 2,
    "out": lambda x: OP(x, B, bias=BIAS, out=torch.empty_like(x)) + 1,
    "reference": lambda x: OP.reference(2 * x, B, bias=BIAS) + 1,
    "module": Layer(),
    "conv": lambda x: CONV(X * x.sum(), WEIGHT) + 1,
    "grouped": lambda x: GROUPED([2 * x, x], [B, B], bias=BIAS)[0] + 1,
    "grouped reference": lambda x: GROUPED.reference([2 * x, x], [B, B], bias=BIAS)[0] + 1,
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_a_graph_break(name: str) -> None:
    function = CALLS[name]
    compiled = torch.compile(function, backend="eager")
    for rows in (8, 16, 24):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), function(x))
    if hasattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy"):  # since PyTorch 2.8
        assert torch._dynamo.utils.counters["frames"]["total"] <= 6  # those of the function, none of evt's


@pytest.mark.parametrize("name", CALLS)
def test_a_full_graph_is_refused(name: str) -> None:
    compiled = torch.compile(CALLS[name], backend="eager", fullgraph=True)
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"calls of evt's programs are not traced yet|__call__|refer"
    ):
        compiled(torch.randn(8, 8))


def test_a_program_may_be_compiled_itself() -> None:
    assert torch.equal(torch.compile(OP, backend="eager")(B, B, bias=BIAS), OP(B, B, bias=BIAS))


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
        "print('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
