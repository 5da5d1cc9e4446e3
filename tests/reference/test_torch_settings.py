"""The reference gives the same bits for all settings of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

import evt
from evt.functions import TABLE
from evt.functions.testing import temporarily
from tests.support.depth import in_depth

M, N, K = 33, 64, 40


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def whole(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def every_function() -> Any:
    """Return a program with each function of the table, in f32 and f64, of values and of constants."""
    statements, outputs = [], []
    for index, (name, row) in enumerate(TABLE.items()):
        values = ["acc", "C", "bias"][: len(row.parameters)]
        outputs.append(f"y{index}: f32")
        statements.append(f"y{index} = {name}({', '.join(values)}) + {name}({', '.join(['0.3'] * len(values))})")
    return evt.gemm("\n".join([f"in C: f32[m, n], bias: f32[n]\nout D, {', '.join(outputs)}\nD = acc", *statements]))


@contextmanager
def setting(change: Callable[[], Any], restore: Callable[[], Any]) -> Iterator[None]:
    change()
    try:
        yield
    finally:
        restore()


@contextmanager
def autocast(kind: str, dtype: torch.dtype) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of CUDA where there is none
        with torch.autocast(kind, dtype=dtype):
            yield


def precision(name: str) -> Any:
    before = torch.get_float32_matmul_precision()
    return setting(lambda: torch.set_float32_matmul_precision(name), lambda: torch.set_float32_matmul_precision(before))


def tf32() -> Any:
    def use(allowed: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed

    return setting(lambda: use(True), lambda: use(False))


def cudnn() -> Any:
    return torch.backends.cudnn.flags(enabled=False, benchmark=True, deterministic=True, allow_tf32=True)


def deterministic() -> Any:
    def use(switched: bool) -> None:
        torch.use_deterministic_algorithms(switched)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]

    return setting(lambda: use(True), lambda: use(False))


def threads(count: int) -> Any:
    before = torch.get_num_threads()
    return setting(lambda: torch.set_num_threads(count), lambda: torch.set_num_threads(before))


def default_dtype(dtype: torch.dtype) -> Any:
    return setting(lambda: torch.set_default_dtype(dtype), lambda: torch.set_default_dtype(torch.float32))


def default_device(name: str) -> Any:
    return setting(lambda: torch.set_default_device(name), lambda: torch.set_default_device(None))


SWITCHES: dict[str, Callable[[], Any]] = {
    "autocast to bf16": lambda: autocast("cpu", torch.bfloat16),
    "autocast to f16": lambda: autocast("cpu", torch.float16),
    "autocast of cuda": lambda: autocast("cuda", torch.float16),
    "default bf16": lambda: default_dtype(torch.bfloat16),
    "default f16": lambda: default_dtype(torch.float16),
    "default f64": lambda: default_dtype(torch.float64),
    "default device": lambda: default_device("meta"),
    "device meta": lambda: torch.device("meta"),
    "device cuda": lambda: torch.device("cuda"),
    "no gradients": torch.no_grad,
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
    "deterministic": deterministic,
    "tf32": tf32,
    "cudnn": cudnn,
    "medium precision": lambda: precision("medium"),
    "high precision": lambda: precision("high"),
    "one thread": lambda: threads(1),
    "three threads": lambda: threads(3),
    "flushing": lambda: setting(lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    "another seed": lambda: torch.random.fork_rng(devices=[]),
}
#: One of each kind of switch.
QUICK = (
    *("autocast to bf16", "autocast of cuda", "default f16", "default f64", "default device", "no gradients"),
    *("deterministic", "cudnn", "medium precision", "one thread", "three threads", "flushing", "another seed"),
)


def calls() -> dict[str, tuple[Any, tuple[torch.Tensor, torch.Tensor], dict[str, Any]]]:
    """Programs of every kind, with their arguments."""
    half, double = torch.float16, torch.float64
    image, filters = make(2, 8, 9, 9), make(16, 8, 3, 3)
    gradient = make(2, 16, 9, 9)
    tiny = make(M, K) * 1e-20, make(K, N) * 1e-20
    quantised = evt.gemm(
        "out D: e4m3, E: e5m2, F: i8, G: u8, H: bf16; D = acc*9; E = acc*1e4; F = acc*9; G = F; H = acc"
    )
    return {
        "product": (
            evt.gemm("D = relu(alpha*acc + beta*C) + bias"),
            (make(M, K), make(K, N)),
            _epilogue(torch.float32),
        ),
        "halves": (evt.gemm("D = gelu(acc + bias)"), (make(M, K, dtype=half), make(K, N, dtype=half)), _bias(half)),
        "doubles": (
            evt.gemm("D = silu(acc)*0.1 + bias"),
            (make(M, K, dtype=double), make(K, N, dtype=double)),
            _bias(double),
        ),
        "integers": (evt.gemm("out D: f32; D = acc*0.1"), (whole(M, K), whole(K, N)), {}),
        "linear": (evt.linear("D = tanh(acc + bias)"), (make(3, 11, K), make(N, K)), _bias(torch.float32)),
        "batches": (evt.gemm("D = acc*acc"), (make(3, M, K), make(K, N)), {}),
        "denormal numbers": (evt.gemm("out D, E: bf16; D = acc; E = acc*0.5"), tiny, {}),
        "denormal constants": (evt.gemm("in s[] = 1e-40; D = acc*1e-40 + s"), (make(M, K), make(K, N)), {}),
        "every function": (every_function(), (make(9, 5), make(5, 24)), {"C": make(9, 24), "bias": make(24)}),
        "quantised": (quantised, (make(M, K), make(K, N)), {}),
        "reductions": (
            evt.gemm(
                "out D, r: f32[m], c: f32[n], t: f32\n"
                "D = acc; r = sum[n](acc); c = sum[m](exp(acc)); t = sum[m, n](acc)"
            ),
            (make(300, K), make(K, 400)),  # enough for PyTorch to share it among three threads
            {},
        ),
        "blocks": (evt.gemm("s = max[n%32](abs(acc)); D = acc/s; out D, s: f32"), (make(M, K), make(K, N)), {}),
        "pairs": (evt.gemm("D = silu(even(acc))*odd(acc, 1)"), (make(M, K), make(K, N)), {}),
        "masks": (evt.gemm("out D, k: b1; k = acc > 0.1; D = where(k, acc, 0)"), (make(M, K), make(K, N)), {}),
        "random numbers": (evt.gemm("D = dropout(acc, 0.3, 7, 9) + iota(n)"), (make(M, K), make(K, N)), {}),
        "operands": (
            evt.gemm("in s: f32[k], t: f32[k] = 1; A = relu(s*A + t); B = B*0.5; D = acc"),
            (make(M, K), make(K, N)),
            {"s": make(K)},
        ),
        "flexible": (evt.gemm("in s: f32[n?]; D = acc*max[n%32](s)"), (make(M, K), make(K, N)), {"s": 0.1}),
        "fprop": (evt.conv2d("D = silu(acc + bias)", padding=1), (image, filters), {"bias": make(16)}),
        "work on an image": (evt.conv2d("in s: f32[k]; A = A*s; D = acc"), (image, filters), {"s": make(8)}),
        "dgrad": (evt.conv2d_dgrad("D = acc*0.1", padding=1), (gradient, filters), {}),
        "wgrad": (evt.conv2d_wgrad("D = acc*0.1", padding=1, kernel_size=3), (gradient, image), {}),
        "eager rounding": (
            evt.gemm("D = gelu(acc + bias)", numerics="eager"),
            (make(M, K, dtype=half), make(K, N, dtype=half)),
            _bias(half),
        ),
    }


def _bias(dtype: torch.dtype) -> dict[str, Any]:
    return {"bias": make(N, dtype=dtype)}


def _epilogue(dtype: torch.dtype) -> dict[str, Any]:
    return {"alpha": 0.1, "beta": torch.tensor([0.7]), "C": make(M, N, dtype=dtype), **_bias(dtype)}


CALLS = calls()


def answers(name: str) -> list[torch.Tensor]:
    program, operands, inputs = CALLS[name]
    found = [program(*operands, **inputs), program.reference(*operands, **inputs)]
    found.append(program.reference(*operands, float64=True, **inputs))
    return [tensor for each in found for tensor in (each if isinstance(each, tuple) else [each])]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module")
def expected() -> dict[str, list[bytes]]:
    return {name: list(map(bits, answers(name))) for name in CALLS}


@pytest.mark.parametrize("switch", in_depth(SWITCHES, QUICK))
def test_switches_have_no_effect(expected: dict[str, list[bytes]], switch: str) -> None:
    for name in CALLS:
        with ExitStack() as stack:
            stack.enter_context(SWITCHES[switch]())
            if switch == "another seed":
                torch.manual_seed(99)
            found = answers(name)
        assert all(tensor.device.type == "cpu" for tensor in found), name
        assert list(map(bits, found)) == expected[name], name


def test_what_was_set_is_set_afterwards() -> None:
    random = torch.random.get_rng_state()
    for switch in ("deterministic", "flushing", "three threads", "default f64", "autocast to bf16"):
        with SWITCHES[switch]():
            states = []
            for _ in range(2):
                states.append(
                    (
                        torch.are_deterministic_algorithms_enabled(),
                        bool((torch.full((1,), 1e-40, dtype=torch.float32) * 0.5).view(torch.int32).item()),
                        torch.get_num_threads(),
                        torch.get_default_dtype(),
                        torch.is_autocast_enabled("cpu"),
                        torch.is_grad_enabled(),
                    )
                )
                answers("product")
        assert states[0] == states[1]
    assert torch.equal(random, torch.random.get_rng_state())


def test_a_users_function_may_make_tensors() -> None:
    with temporarily():
        evt.function("shifted(x)", cxx="x + 0.5f", torch=lambda t, x: x + t.ones(1, dtype=x.dtype) * 0.5)
        op, a, b = evt.gemm("D = shifted(acc)"), make(M, K), make(K, N)
        expected = op(a, b)
        with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(op(a, b), expected)
