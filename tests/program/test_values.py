"""A program is a value: it compares, copies and pickles by its meaning, and cannot be changed."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch

import evt
from evt.functions.testing import temporarily
from evt.ir import Acc, Apply, Builder, Dag, Output, Store, format_dag
from evt.ir.origin import Foreign
from evt.request import Request, stored, typed_graph

FORMULA = "D = relu(alpha*acc + beta*C) + residual"
MAKERS = {
    "gemm": lambda: evt.gemm(FORMULA),
    "linear": lambda: evt.linear("D = gelu(acc + bias)", relaxed=True),
    "header": lambda: evt.gemm("gemm(A: i8[m, k], B: i8[n, k])\nin s: f32[m?], t: bf16[n] = 0\nD = s*acc + t"),
    "statistics": lambda: evt.gemm("out D, r: f32[m], keep: b1[m, n]; D = acc; r = sum[n](acc*acc); keep = acc > -0.0"),
    "operand": lambda: evt.gemm("A = relu(s[k]*A + t[k]); D = acc"),
    "conv2d": lambda: evt.conv2d("D = relu(acc + bias)", stride=2, padding=((0, 1), (2, 1)), groups=2),
    "same": lambda: evt.conv1d("D = acc", padding="same", dilation=2),
    "wgrad": lambda: evt.conv2d_wgrad("D = acc", kernel_size=3),
    "forced": lambda: evt.gemm("D = acc + bias", route="evt-2x", fast_math=True, deterministic=False),
    "eager": lambda: evt.gemm("D = acc*C + 0.1", numerics="eager"),
    "grouped": lambda: evt.grouped_gemm("D = relu(acc + bias)", route="loop"),
    "graph": lambda: evt.Program.from_dag(evt.gemm(FORMULA).request.dag),
}
A, B, C = torch.randn(5, 8).half(), torch.randn(8, 7).half(), torch.randn(5, 7).half()
INPUTS = {"alpha": 1.5, "beta": 0.5, "C": C, "residual": C}


def again(op: Any) -> Any:
    return pickle.loads(pickle.dumps(op))


@pytest.mark.parametrize("name", MAKERS)
def test_a_pickled_program_is_the_same(name: str) -> None:
    op: Any = MAKERS[name]()
    made = again(op)
    assert made is not op
    assert made == op
    assert hash(made) == hash(op)
    assert (type(made), repr(made)) == (type(op), repr(op))
    assert made.request.source == op.request.source
    assert made.request.dag.inputs[:1] == op.request.dag.inputs[:1]
    arch = "sm80" if name != "eager" else "sm90"
    text = op.emit(arch) if name != "same" else ""
    assert (made.emit(arch) if text else "") == text
    assert pickle.dumps(made) == pickle.dumps(op)
    assert {copy.copy(op), copy.deepcopy(op), made} == {op}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_pickle(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(evt.gemm(FORMULA), protocol)) == evt.gemm(FORMULA)


def test_places_in_the_text_come_back() -> None:
    """Mistakes that show at a call only, with the types of operands, are shown in the program's own text."""
    op = evt.gemm("in s: bf16\nD = bf16(acc) * s")
    made = again(op)
    assert [value.span for value in made.request.dag.inputs] == [value.span for value in op.request.dag.inputs]


def places(dag: Dag) -> object:
    declared: list[Any] = [*dag.operands, *dag.inputs, *dag.outputs]
    values = [(value.span, getattr(value, "default_span", None)) for value in declared]
    return dag.source, dag.origins, values


def test_origins_come_back() -> None:
    """Also where the text no longer means the graph, and of a graph that another door made."""
    text = "gemm(A: f16[m, k], B: f16[k, n])\nin s: f32 = 2\ndef f(x) = 2 * x\nout D\nD = f(s*acc) + f(C)"
    op = evt.gemm(text)
    state = op.__getstate__()
    made = again(op)
    assert places(made.request.dag) == places(op.request.dag)
    assert format_dag(made.request.dag, origins=True) == format_dag(op.request.dag, origins=True)
    assert "called at 5:5" in format_dag(made.request.dag, origins=True)
    builder = Builder()
    acc = builder.add(Acc())
    builder.origin = Foreign("fx: relu_3")
    builder.add(Store("D"), builder.add(Apply("relu"), acc))
    other = evt.Program.from_dag(builder.finish("gemm", (), (), [Output("D", None, ("m", "n"))]))
    assert again(other).request.dag.origins == other.request.dag.origins == (None, *[Foreign("fx: relu_3")] * 2)
    for kind in (op, other):
        assert evt_classes(kind.__getstate__()) == set()
    state["places"] = {**state["places"], "nodes": [None]}  # type: ignore[dict-item]
    with pytest.raises(evt.ArgumentError, match="E0613"):
        Request.__new__(Request).__setstate__(state)


def evt_classes(value: Any) -> set[type]:
    """Return the types of a value and of its parts that are not built in."""
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return set().union({type(value)} - {dict, list, tuple, str, int, float, bool, type(None)}, *map(evt_classes, inner))


@pytest.mark.filterwarnings("ignore::evt.NoKernelWarning")
@pytest.mark.parametrize("called", [False, True])
def test_the_same_answers_before_and_after_a_call(called: bool) -> None:
    op = evt.gemm(FORMULA)
    before = pickle.dumps(op)
    want = op.reference(A, B, **INPUTS)
    if called:
        op(A, B, **INPUTS)
    assert pickle.dumps(op) == before
    for other in (again(op), copy.copy(op), copy.deepcopy(op)):
        assert torch.equal(other(A, B, **INPUTS), want)


def test_compiled_kernels_are_not_pickled(launches: list[dict[str, float]]) -> None:
    op = evt.gemm(FORMULA)
    op(A, B, **INPUTS)
    made = again(op)
    assert "_caller" not in made.__dict__
    made(A, B, **INPUTS)
    assert [members["m"] for members in launches] == [5, 5]


def test_a_copy_keeps_what_was_compiled(launches: list[dict[str, float]]) -> None:
    op = evt.gemm(FORMULA)
    op(A, B, **INPUTS)
    assert copy.deepcopy([op])[0]._caller is op._caller


class Layer(torch.nn.Module):
    """As a user would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(7, 8))
        self.op = evt.linear("D = relu(acc + bias)")

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.op(x, self.weight, bias=torch.zeros(7))


@pytest.mark.parametrize("called", [False, True])
def test_modules_with_programs(called: bool) -> None:
    layer, x = Layer(), torch.randn(5, 8)
    want = layer(x) if called else layer.op.reference(x, layer.weight.detach(), bias=torch.zeros(7))
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    for other in (copy.deepcopy(layer), loaded):
        assert other.weight is not layer.weight
        assert other.op == layer.op
        assert torch.equal(other(x), want)
    assert "op" not in layer.state_dict()


def test_the_class_alone_has_to_be_trusted() -> None:
    """A stored program is text and numbers, so that torch.load with ``weights_only`` needs no other class."""
    saved = io.BytesIO()
    torch.save({"op": evt.conv2d("D = relu(acc)", padding=1)}, saved)
    saved.seek(0)
    with torch.serialization.safe_globals([evt.Program]):
        assert torch.load(saved, weights_only=True)["op"] == evt.conv2d("D = relu(acc)", padding=1)


def test_another_process_gets_the_same_program() -> None:
    op = evt.gemm(FORMULA)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(op.emit, "sm80").result() == op.emit("sm80")


# Equality


def test_equal_programs() -> None:
    op = evt.gemm("D = relu(acc + bias)")
    assert op == evt.gemm("# the same\nD=relu(  acc+bias )")
    others = [
        evt.gemm("D = relu(acc + b[n])"),
        evt.gemm("D = relu(acc + bias)", relaxed=True),
        evt.gemm("D = relu(acc + bias)", route="stock"),
        evt.linear("D = relu(acc + bias)"),
        evt.grouped_gemm("D = relu(acc + bias)"),
        evt.conv2d("D = relu(acc + bias)"),
        evt.conv2d("D = relu(acc + bias)", padding=1),
    ]
    assert len({op, *others}) == 1 + len(others)
    assert op != "D = relu(acc + bias)"


def test_equal_programs_show_their_own_texts() -> None:
    one, other = evt.gemm("D = acc + C"), evt.gemm("D = acc+C")
    assert one == other
    assert "D = acc + C" in one.emit()
    assert "D = acc+C" in other.emit()


# Change


@pytest.mark.parametrize("name", ["gemm", "grouped"])
def test_a_program_cannot_be_changed(name: str) -> None:
    op = MAKERS[name]()
    for attribute in ("settings", "request", "nonsense"):
        with pytest.raises(AttributeError, match=f"cannot be changed, so `{attribute}`"):
            setattr(op, attribute, None)
    with pytest.raises(AttributeError, match="cannot be changed, so `request`"):
        del op.request
    with pytest.raises(AttributeError):
        op.request.grouped = True  # type: ignore[misc]


def test_what_a_program_has_is_what_a_user_needs() -> None:
    public = {name for name in dir(evt.Program) if not name.startswith("_")}
    known = "build emit estimate estimates explain from_dag gradient graph inputs outputs plan reference tune verify"
    assert public == set(known.split())


# Requirements of a pickle


ROW: dict[str, Any] = {"cxx": "2.0f * x", "torch": lambda x: 2 * x}


def test_functions_of_the_users_own_have_to_be_there() -> None:
    with temporarily():
        evt.function("stored_twice(x, a=1)", cxx="a * 2.0f * x", torch=lambda x, a: 2 * a * x)
        op = evt.gemm("D = stored_twice(acc)")
        dumped = pickle.dumps(op)
        assert pickle.loads(dumped) == op
    with pytest.raises(evt.ArgumentError, match="E0657") as caught:
        pickle.loads(dumped)
    (problem,) = caught.value.diagnostics
    assert problem.help == 'call evt.function("stored_twice(x, a=1)", ...) before it is loaded'
    with temporarily():
        evt.function("stored_twice(x, a=1)", cxx="a * 3.0f * x", torch=lambda x, a: 3 * a * x)
        assert evt.gemm("D = stored_twice(acc)") != op
        with pytest.raises(evt.ArgumentError, match=r"E0657.*uses a `stored_twice`"):
            pickle.loads(dumped)


def test_pickles_of_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    op = evt.gemm("D = acc")
    monkeypatch.setattr(stored, "__version__", "9.9.9")
    other = pickle.dumps(op)
    monkeypatch.setattr(stored, "FORM", 99)
    unknown = pickle.dumps(op)
    monkeypatch.undo()
    assert pickle.loads(other) == op
    with pytest.raises(evt.ArgumentError, match=r"E0613.*stored by evt 9\.9\.9, .* cannot read it: its form is 99"):
        pickle.loads(unknown)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (" = acc", " = wiggle %0", "not a node|comes after"),
        ("store D", "store D\n%2 = wiggle %0", "no function `wiggle`"),
        ("out D: auto", "out D: f5", "not a type: f5"),
    ],
)
def test_pickles_with_what_this_version_does_not_know(old: str, new: str, said: str) -> None:
    state: Any = evt.gemm("D = acc").__getstate__()
    state["graph"] = str(state["graph"]).replace(old, new)
    assert new in state["graph"]
    with pytest.raises(evt.ArgumentError, match=f"E0613(.|\n)*({said})"):
        Request.__new__(Request).__setstate__(state)


def test_settings_that_this_version_does_not_know() -> None:
    state: Any = evt.gemm("D = acc").__getstate__()
    state["settings"] = {**state["settings"], "tensor_memory": True}
    with pytest.raises(evt.ArgumentError, match=r"E0613.*there is no setting `tensor_memory`"):
        Request.__new__(Request).__setstate__(state)


def test_a_text_that_means_another_graph_now() -> None:
    """The stored graph is computed: the text only shows the places of mistakes."""
    state = evt.gemm("D = acc + C").__getstate__()
    state["source"] = ("D = acc - C", "<formula>")
    request = Request.__new__(Request)
    request.__setstate__(state)
    assert request == evt.gemm("D = acc + C").request
    assert request.source.text == "D = acc - C"


def test_a_question_about_a_request_has_one_answer() -> None:
    request = evt.gemm(FORMULA).request
    assert typed_graph(request, "bf16") is typed_graph(request, "bf16")
    assert typed_graph(request, "bf16") is not typed_graph(request, "f16")
    assert request.member.settings.route is None


def test_pickling_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again(evt.gemm(FORMULA))
