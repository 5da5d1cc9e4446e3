"""Every public function takes any argument: it refuses a useless one with a code, never with a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

import evt
from evt.errors import EvtError, InternalError
from evt.functions.testing import temporarily

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with temporarily():
        yield


class Evil:
    """Nothing can be done with it."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __str__(self) -> str:
        raise RuntimeError("shown")

    __repr__ = object.__repr__


ODD: dict[str, Any] = {
    **{repr(each): each for each in (None, True, 0, 1, -1, 3, 8.0, 1e400, float("nan"), "", "x", "D = acc", b"D", 1j)},
    **{
        repr(each): each for each in ([], [1], (), (1, 2), {}, {"a": 1}, {1, 2}, range(3), ..., slice(1), object, print)
    },
    "a large int": 10**400,
    "a surrogate": "\ud800",
    "an object": SimpleNamespace(),
    "evil": Evil(),
    "an array": numpy.zeros(3),
    "an array of text": numpy.array(["a"]),
    "a numpy float": numpy.float32(1),
    "a numpy int": numpy.int64(2),
    "a tensor": torch.zeros(3),
    "a tensor of one": torch.zeros(()),
    "a dtype": torch.complex64,
    "a function": lambda: 1,
    "bytes' memory": memoryview(b"x"),
    "an iterator": iter([1]),
    "a program": evt.gemm("D = acc"),
}

A, X, WEIGHT = torch.zeros(8, 8), torch.zeros(2, 8, 4, 4), torch.zeros(8, 8, 1, 1)
BITS = torch.zeros(1, dtype=torch.uint8)
OP, CONV = evt.gemm("D = alpha*acc + C"), evt.conv2d("D = acc + bias")
GROUPED = evt.grouped_gemm("D = alpha*acc + C")
SAMPLE = Path(__file__).parents[2] / "samples" / "two_biases.evt"
ROW: dict[str, Any] = {"signature": "odd_arguments(x, a=1)", "cxx": "x + a", "torch": lambda x, a: x + a}


def call(op: Callable[..., Any] = OP, a: Any = A, b: Any = A, **rest: Any) -> Any:
    return op(a, b, **{"alpha": 1.0, "C": A, **rest})


def groups(a: Any = (A, A), b: Any = (A, A), **rest: Any) -> Any:
    return call(GROUPED, a, b, **rest)


def rows(run: Any = GROUPED, **rest: Any) -> Any:
    whole = torch.zeros(16, 8)
    return call(run, whole, [A, A], **{"C": whole, **rest})


CALLS: dict[str, Callable[[Any], Any]] = {
    **{f"{name}(text)": getattr(evt, name) for name in ("gemm", "linear", "conv1d", "conv3d_dgrad", "grouped_gemm")},
    "load(path)": evt.load,
    "load(operation)": lambda odd: evt.load(SAMPLE, odd),
    "Program(source)": evt.Program,
    "Program(operation)": lambda odd: evt.Program("D = acc", odd),
    "GroupedProgram(source)": evt.GroupedProgram,
    **{
        f"{name}({keyword})": lambda odd, name=name, keyword=keyword: getattr(evt, name)("D = acc", **{keyword: odd})  # type: ignore[misc]
        for name in ("gemm", "grouped_gemm", "conv2d")
        for keyword in (
            "route",
            "config",
            "numerics",
            "relaxed",
            "fast_math",
            "deterministic",
            "batch_invariant",
            "nonsense",
        )
    },
    **{
        f"conv2d({keyword})": lambda odd, keyword=keyword: evt.conv2d("D = acc", **{keyword: odd})  # type: ignore[misc]
        for keyword in ("stride", "padding", "dilation", "groups", "output_padding", "kernel_size")
    },
    "conv2d_dgrad(output_padding)": lambda odd: evt.conv2d_dgrad("D = acc", output_padding=odd),
    "conv2d_wgrad(kernel_size)": lambda odd: evt.conv2d_wgrad("D = acc", kernel_size=odd),
    **{
        f"emit({name})": lambda odd, name=name: evt.emit(**{"text": "D = acc", name: odd})  # type: ignore[misc]
        for name in ("text", "op", "arch", "dtype")
    },
    **{
        f"function({name})": lambda odd, name=name: evt.function(**{**ROW, name: odd})  # type: ignore[misc]
        for name in ("signature", "cxx", "torch", "derivative", "text", "facts", "aliases")
    },
    "function(derivatives)": lambda odd: evt.function(**ROW, derivative=[odd, "1"]),
    "function(alias)": lambda odd: evt.function(**ROW, aliases=[odd]),
    "function(fact)": lambda odd: evt.function(**ROW, facts=[odd]),
    "pack_bits": evt.pack_bits,
    "unpack_bits(value)": lambda odd: evt.unpack_bits(odd, 8),
    "unpack_bits(columns)": lambda odd: evt.unpack_bits(BITS, odd),
    "channels_last": evt.channels_last,
    **{
        f"{method}({name})": lambda odd, method=method, name=name: getattr(OP, method)(**{name: odd})  # type: ignore[misc]
        for method in ("plan", "emit", "explain")
        for name in ("a", "b", "arch", "shapes")
    },
    "grouped plan": GROUPED.plan,
    "grouped emit": lambda odd: GROUPED.emit("sm90", odd),
    "explain(shape)": lambda odd: OP.explain(shapes=((odd, 8), (8, 8))),
    "explain(gpu)": lambda odd: OP.explain(shapes=((8, 8), (8, 8)), gpu=odd),
    "plan(shapes of both)": lambda odd: CONV.plan(shapes=(odd, odd)),
    "plan(extent)": lambda odd: CONV.plan(shapes=((odd, 1, 1, 1), (1, odd, 1, 1))),
    "from_dag": evt.Program.from_dag,
    **{
        f"from_dag({name})": lambda odd, name=name: evt.Program.from_dag(CONV.request.dag, **{name: odd})  # type: ignore[misc]
        for name in ("route", "config", "numerics", "relaxed", "deterministic", "stride", "padding", "nonsense")
    },
    "tune": lambda odd: OP.tune(odd, A),
    **{
        f"{run}({name})": lambda odd, op=op, name=name: call(op, **{name: odd})  # type: ignore[misc]
        for run, op in (("call", OP), ("reference", OP.reference))
        for name in ("a", "b", "C", "alpha", "nonsense")
    },
    "reference(float64)": lambda odd: call(OP.reference, float64=odd),
    "call(D)": lambda odd: call(D=odd),
    "call(out)": lambda odd: call(out=odd),
    "call(outs)": lambda odd: call(out=[odd]),
    "call(out by name)": lambda odd: call(out={"D": odd}),
    "conv(x)": lambda odd: CONV(odd, WEIGHT, bias=torch.zeros(8)),
    "conv(weight)": lambda odd: CONV(X, odd, bias=torch.zeros(8)),
    "conv(bias)": lambda odd: CONV(X, WEIGHT, bias=odd),
    "conv(out)": lambda odd: CONV(X, WEIGHT, bias=torch.zeros(8), out=odd),
    "groups(a)": lambda odd: groups(a=odd),
    "groups(one a)": lambda odd: groups(a=[A, odd]),
    "groups(b)": lambda odd: groups(b=odd),
    "groups(one b)": lambda odd: groups(b=[odd, A]),
    **{
        f"groups({name})": lambda odd, name=name: groups(**{name: odd})  # type: ignore[misc]
        for name in ("C", "alpha", "D", "out", "offsets", "nonsense")
    },
    **{
        f"groups(one {name})": lambda odd, name=name, value=value: groups(**{name: [value, odd]})  # type: ignore[misc]
        for name, value in (("C", A), ("alpha", 1.0), ("D", torch.zeros(8, 8)))
    },
    "offsets": lambda odd: rows(offsets=odd),
    "an offset": lambda odd: rows(offsets=[0, odd, 16]),
    "offsets of the reference": lambda odd: rows(GROUPED.reference, offsets=odd),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_odd_is_refused_or_taken(name: str) -> None:
    refused = [error for error in map(outcome, [CALLS[name]] * len(ODD), ODD.values()) if error is not None]
    assert len(refused) > len(ODD) // 2
    for error in refused:
        assert str(error)
        assert all(each.to_json()["message"] for each in error.diagnostics)


def outcome(run: Callable[[Any], Any], odd: Any) -> EvtError | None:
    try:
        run(odd)
    except InternalError:
        raise
    except EvtError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: evt.unpack_bits(BITS, 8.0), r"E0607.*`columns` is of type float; expected a whole number"),
        (lambda: evt.function(**ROW, derivative=3), r"E0655.*`derivative` is of type int"),
        (
            lambda: evt.function(**ROW, facts=["odd"]),  # type: ignore[list-item]
            r"E0607.*a fact is a member of evt.functions.Fact, not odd",
        ),
        (lambda: evt.gemm(SAMPLE), r"E0607.*a program is a str, not PosixPath[^$]*evt.load reads a file"),
        (lambda: OP.emit(arch=numpy.zeros(3)), "E0501.*there is no target of type ndarray"),
        (lambda: OP.emit(b=""), "E0303.*there is no type ``"),
        (lambda: OP.emit(b=["f16"]), "E0303.*a type is a str or a torch.dtype, not list"),
        (lambda: OP.graph(7), "E0607.*there is no stage of type int"),
        (lambda: OP.build("sm90", shapes=None), "E0607.*`shapes` are None; expected the shapes of A and B"),
        (
            lambda: evt.gemm("D = acc")(
                torch.nested.nested_tensor([torch.zeros(4, 4)]), torch.zeros(4, 4, requires_grad=True)
            ),
            "E0606.*`A` is a nested tensor",
        ),
        (lambda: evt.pack_bits(torch.zeros(8).to_sparse()), "E0606.*only dense tensors"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_said(run: Callable[[], Any], message: str) -> None:
    with pytest.raises(EvtError, match=message):
        run()
