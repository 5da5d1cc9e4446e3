"""Repeated recorded calls: decisions are kept, and backward passes are repeated."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import evt
from evt.functions.testing import temporarily
from evt.runtime import autograd
from evt.runtime.repeat import record
from tests.support.gradients import CASES, call, drawn, gradients, made, plainly

pytestmark = pytest.mark.filterwarnings("ignore::evt.errors.NoKernelWarning")


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    autograd._RECORDED.clear()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how often calls were checked, and backward programs walked through."""
    counts = {"outline": 0, "evaluate": 0}

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(autograd, name)

        def counted(*given: Any) -> Any:
            counts[name] += 1
            return function(*given)

        return counted

    for name in counts:
        monkeypatch.setattr(autograd, name, counting(name))
    return counts


def compare(op: evt.Program, values: dict[str, Any], tolerance: float = 1e-7) -> None:
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def ours(given: Any) -> Any:
        return call(op, {**values, **given})

    def plain(given: Any) -> Any:
        inputs = {name: value for name, value in {**values, **given}.items() if name not in ("A", "B")}
        return tuple(plainly(op, given["A"], given["B"], inputs).values())

    for got, want in zip(gradients(ours, tensors), gradients(plain, tensors), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in CASES if name != "mainloop"])
def test_later_passes_are_repeated(name: str, work: dict[str, int]) -> None:
    op, _ = made(name)
    for seed in range(4):
        compare(op, drawn(CASES[name][3], seed))
    assert work == {"outline": 1, "evaluate": 2 + 4}  # the second one is recorded; four are the comparison's


def test_numbers_may_change(work: dict[str, int]) -> None:
    op = evt.gemm("in seed: i64, alpha: f64, s: f64[n?]; D = dropout(tanh(acc*alpha), 0.5, seed, 3)*s")
    values = drawn({"A": (5, 6), "B": (6, 8)})
    for seed, alpha, s in ((1, 2.0, 1.5), (2**63 + 7, -1.0, 1.5), (9, 4.0, 1.5), (3, 0.5, 2.5)):
        numbers = {"seed": seed, "alpha": alpha, "s": s}
        want = plainly(op, values["A"], values["B"], {**numbers, "seed": (seed + 2**63) % 2**64 - 2**63})["D"]
        torch.testing.assert_close(call(op, {**values, **numbers}), want)
        compare(op, {**values, **numbers, "seed": (seed + 2**63) % 2**64 - 2**63})
    assert work["outline"] == 1
    with pytest.raises(evt.ArgumentError, match="E0607"):
        call(op, {**values, **numbers, "seed": 0.5})


def test_numbers_of_no_declared_type() -> None:
    op = evt.gemm("D = gelu(alpha*acc)*beta")
    values = {name: x.detach().float().requires_grad_() for name, x in drawn({"A": (5, 6), "B": (6, 8)}).items()}
    for alpha, beta in ((2.0, 1), (-1.5, 2), (0.5, 3.5)):
        compare(op, {**values, "alpha": alpha, "beta": beta}, 1e-5)


def test_a_function_that_reads_elements() -> None:
    with temporarily():
        evt.function(
            "careful(x)",
            cxx="exp(x)",
            torch=lambda x: x.exp() if bool(x.isfinite().all()) else torch.zeros_like(x),
            derivative="careful(x)",
        )
        op = evt.gemm("D = careful(acc)")
        for seed in range(4):
            compare(op, drawn({"A": (5, 6), "B": (6, 8)}, seed), 1e-5)  # it computes in f32


def test_gradients_may_arrive_in_any_strides() -> None:
    op, values = made("gelu")
    packed = torch.arange(56.0).reshape(7, 8)
    for arrived in (torch.ones(()).expand(7, 8), packed.T.contiguous().T, packed, packed, packed.T.contiguous().T * 2):
        want, got = (
            torch.autograd.grad(function(values), list(values.values()), arrived.double())
            for function in (
                lambda each: plainly(op, each["A"], each["B"], {"bias": each["bias"]})["D"],
                lambda each: call(op, each),
            )
        )
        for one, two in zip(got, want, strict=True):
            torch.testing.assert_close(one, two)


def test_other_gradients_may_be_wanted() -> None:
    op = evt.gemm("out D, E: f64[m]; D = tanh(acc + bias); E = sum[n](D*D)")
    values = drawn({"A": (5, 6), "B": (6, 8), "bias": (8,)})
    for _ in range(3):
        for wanted in (["A"], ["bias"], ["A", "B"], ["A", "B", "bias"]):
            given = {name: value.detach().requires_grad_(name in wanted) for name, value in values.items()}
            for output in (0, 1):
                leaves = [given[name] for name in wanted]
                got = torch.autograd.grad(call(op, given)[output].sum(), leaves)
                plain = plainly(op, given["A"], given["B"], {"bias": given["bias"]})
                want = torch.autograd.grad(plain[op.outputs[output]].sum(), leaves)
                for one, two in zip(got, want, strict=True):
                    torch.testing.assert_close(one, two)


def test_several_gradients_at_once() -> None:
    """torch.vmap over the backward pass is no pass on plain tensors."""
    op, values = made("gelu")
    result, leaves = call(op, values), list(values.values())
    arrived = torch.randn(3, 7, 8, dtype=torch.float64)
    for _ in range(2):
        single = [torch.autograd.grad(result, leaves, each, retain_graph=True) for each in arrived]
        many = torch.autograd.grad(result, leaves, arrived, retain_graph=True, is_grads_batched=True)
        for place, each in enumerate(many):
            torch.testing.assert_close(each, torch.stack([grads[place] for grads in single]))


def test_tensors_without_values_beside_others() -> None:
    op, values = made("gelu")
    gradients(lambda each: call(op, each), values)
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(value) for name, value in values.items()}
        found = gradients(lambda each: call(op, each), fakes)
    meta = gradients(
        lambda each: call(op, each), {n: x.detach().to("meta").requires_grad_() for n, x in values.items()}
    )
    for got in (found, meta):
        assert [each.shape for each in got] == [each.shape for each in values.values()]
    compare(op, values)


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_see_the_operator() -> None:
    """Modes such as selective checkpoints or counters; without a mode nothing is dispatched."""
    op, values = made("gelu")
    want = gradients(lambda each: call(op, each), values)
    for _ in range(3):
        with Watch() as watch:
            got = gradients(lambda each: call(op, each), values)
        assert watch.seen.count("evt.run.default") == 1
        assert "aten.mm.default" in watch.seen
        assert all(map(torch.equal, got, want))


def test_in_threads() -> None:
    op, faults = evt.gemm("D = gelu(acc + bias)"), []

    def train(seed: int) -> None:
        try:
            for rows in (3, 4, 5, 3, 4, 5):
                compare(op, drawn({"A": (rows, 6), "B": (6, 8), "bias": (8,)}, seed))
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not faults


def test_what_is_kept_has_a_bound_and_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "_MAX_RECORDED", 3)
    op, alive = evt.gemm("D = gelu(acc + bias)"), []
    for rows in range(1, 8):
        values = drawn({"A": (rows, 6), "B": (6, 8), "bias": (8,)})
        for _ in range(3):
            compare(op, values)
        alive += [weakref.ref(value) for value in values.values()]
        assert len(autograd._RECORDED) <= 3
    del values
    gc.collect()
    assert not any(each() is not None for each in alive)


# Recording


def test_a_recorded_computation() -> None:
    """Conversions that do nothing are no steps, and neither are values that nothing reads."""

    def compute(given: Any) -> Any:
        x, y = given
        torch.ones(3)
        z = x.to(x.dtype).reshape(x.shape).permute(0, 1) @ y.mT
        first, last = torch.stack([z, z * 2]).unbind()
        values, _ = torch.max(last, dim=1, keepdim=True)
        return first + torch.full((), x.shape[0], dtype=x.dtype), None, y, values

    x, y = torch.randn(3, 4), torch.randn(5, 4)
    found, made = record(compute, [x, y])
    assert made is not None
    assert len(made.steps) == 12
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    for one, two in zip(made([x, y]), compute([x, y]), strict=True):
        assert (one is two) if two is None or two is y else torch.equal(one, two)
    assert found[1] is None


def write(given: Any) -> Any:
    return [given[0].clone().add_(1)]


def write_elsewhere(given: Any) -> Any:
    return [torch.add(given[0], 1, out=torch.empty(2, 3))]


def read(given: Any) -> Any:
    return [given[0] * float(given[0].sum())]


def choose(given: Any) -> Any:
    return [given[0] if given[0].sum() > 0 else -given[0]]


@pytest.mark.parametrize("compute", [write, write_elsewhere, read, choose])
def test_what_cannot_be_repeated(compute: Any) -> None:
    x = torch.ones(2, 3)
    found, made = record(compute, [x])
    assert made is None
    assert torch.equal(found[0], compute([x])[0])


def test_what_is_not_read_again_is_freed() -> None:
    def compute(given: Any) -> Any:
        large = given[0] + 1
        row = large.sum(0)
        return [row * 2]

    _, made = record(compute, [torch.ones(2, 3)])
    assert made is not None
    first, second, last = made.steps
    assert first.writes in second.ends
    assert second.writes in last.ends
