"""The launcher of cubins: its state, and the failures that it returns. The driver is a fake."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.compilation import Cache, build
from evt.compilation.jit import Missing, find_nvrtc
from evt.compilation.toolchain import NVRTC, WAY
from evt.errors import InternalError
from evt.ir.convolution import Convolution
from evt.launch.recipe import Kernel
from evt.runtime.driver import INVALID_CONTEXT, Config
from evt.runtime.launcher import Launcher
from evt.runtime.plans import kernel_sources
from tests.support import calls

pytestmark = pytest.mark.skipif(isinstance(find_nvrtc(), Missing), reason="NVRTC is missing")

PLAN = evt.gemm("D = gelu(alpha*acc + bias)", route="gemm-own-3x").plan("sm90", "f16", "f16")
SIZES = {"m": 1000, "n": 768, "k": 512, "l": 1, "stride_m_of_A": 512, "stride_k_of_B": 768, "stride_m_of_out_D": 768}


class Driver:
    """A driver that records its calls, and returns ``codes`` instead of 0."""

    def __init__(self, codes: dict[str, int] | None = None) -> None:
        self.codes = codes or {}
        self.calls: list[str] = []
        self.launched: list[tuple[tuple[int, ...], int, bytes]] = []
        self.maps: list[tuple[int, int]] = []
        self.promotions: list[int] = []
        self.size: int | None = None
        self.params_bytes = 0
        self.thread_has_context = True

    def _say(self, name: str) -> int:
        self.calls.append(name)
        return self.codes.get(name, 0)

    def device(self) -> tuple[int, int]:
        return (0, 0) if self.thread_has_context else (INVALID_CONTEXT, 0)

    def use(self, device: int) -> int:
        self.thread_has_context = True
        return self._say("use")

    def multiprocessors(self, device: int) -> tuple[int, int]:
        return self._say("multiprocessors"), 132

    def load(self, cubin: bytes) -> tuple[int, int]:
        return self._say("load"), 1

    def kernel(self, library: int, name: str) -> tuple[int, int]:
        return self._say("kernel"), 2

    def parameter_bytes(self, kernel: int) -> int | None:
        return self.size

    def allow_shared_memory(self, kernel: int, size: int, device: int) -> int:
        return self._say("allow")

    def encode_tiled(self, at: Any, kind: int, rank: int, address: Any, *others: Any) -> int:
        self.maps.append((rank, address.value))
        self.promotions.append(others[-2])
        return self._say("encode")

    def replace_address(self, at: int, address: int) -> int:
        self.maps.append((0, address))
        return self._say("replace")

    def launch(self, config: int, kernel: int, params: int, extra: None) -> int:
        if not self.thread_has_context:
            return INVALID_CONTEXT
        given = Config.from_address(config)
        at = ctypes.c_void_p.from_address(params).value
        assert at is not None
        assert at % 128 == 0
        self.launched.append((tuple(given.grid), given.stream or 0, ctypes.string_at(at, self.params_bytes)))
        return self._say("launch")


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    (source,) = kernel_sources([PLAN])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WAY, NVRTC)
        (path,) = build([source], cache=Cache(tmp_path_factory.mktemp("cache")))
    return path.read_bytes(), source.name


@pytest.fixture
def made(cubin: tuple[bytes, str]) -> Callable[[Driver], Launcher]:
    def make(driver: Driver) -> Launcher:
        driver.params_bytes = Kernel.of(PLAN, *cubin).layouts[0].size
        return Launcher(PLAN, *cubin, find=lambda: driver)  # type: ignore[return-value]

    return make


def arguments(*, first: int = 0x10000, alpha: float = 1.5, **sizes: int) -> bytes:
    """Return a call: alpha is a number, and pointers are apart."""
    words = []
    for index, field in enumerate(PLAN.fields):
        match field.kind:
            case "pointer":
                words.append(struct.pack("Q", 0 if field.tensor == "alpha" else first + 0x1000 * index))
            case "number":
                words.append(struct.pack("d", alpha))
            case _:
                words.append(struct.pack("q", {**SIZES, **sizes}[field.name]))
    return b"".join(words)


def member(cubin: tuple[bytes, str], params: bytes, name: str, form: str) -> Any:
    kernel = Kernel.of(PLAN, *cubin)
    (value,) = struct.unpack_from(form, params, kernel.layouts[0].members[name][0])
    return value


def test_a_call_fills_the_parameters_and_is_kept(made, cubin):
    driver = Driver()
    launcher, call = made(driver), arguments()
    assert launcher.run(call, len(call), 7) == 0
    assert [rank for rank, _ in driver.maps] == [2, 2, 2, 0, 0, 0]  # A, B and D, and their addresses
    assert [address for _, address in driver.maps[:3]] == [address for _, address in driver.maps[3:]]
    assert launcher.run(call, len(call), 7) == 0
    assert len(driver.maps) == 6
    (grid, stream, params), again = driver.launched
    assert again == (grid, stream, params)
    assert stream == 7
    assert member(cubin, params, "columns", "i") == 768
    assert member(cubin, params, "epilogue.in_alpha.number", "f") == 1.5
    (bias,) = struct.unpack_from("Q", call, 8 * [field.name for field in PLAN.fields].index("in_bias"))
    assert member(cubin, params, "epilogue.in_bias.ptr", "Q") == bias
    assert driver.calls.count("load") == driver.calls.count("allow") == 1


def test_l2_fetches_single_lines_for_rows_that_begin_within_lines(made):
    driver = Driver()
    call = arguments(k=520, stride_m_of_A=520)
    assert made(driver).run(call, len(call), 0) == 0
    one_line, two_lines = 2, 3  # CUtensorMapL2promotion
    assert driver.promotions == [one_line, two_lines, two_lines]


@pytest.mark.parametrize("change", [{"first": 0x20000}, {"alpha": 2.0}, {"m": 999}])
def test_another_call_has_other_parameters(made, change):
    driver = Driver()
    launcher, call, other = made(driver), arguments(), arguments(**change)
    for each in (call, other, call):
        assert launcher.run(each, len(each), 0) == 0
    first, second, third = (params for _, _, params in driver.launched)
    assert first == third != second


def test_streams_have_their_own_launches(made):
    driver = Driver()
    launcher, call = made(driver), arguments()
    for stream in (1, 2, 1):
        launcher.run(call, len(call), stream)
    assert [stream for _, stream, _ in driver.launched] == [1, 2, 1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("load", 4), ("kernel", 4), ("allow", 4), ("multiprocessors", 3), ("encode", 1), ("replace", 1), ("launch", 6)],
)
def test_failures_of_the_driver_are_the_results_of_a_launcher(made, name, kind):
    driver = Driver({name: 9})
    call = arguments()
    code = made(driver).run(call, len(call), 0)
    assert code >> 16 == kind
    driver.codes = {}
    assert made(driver).run(call, len(call), 0) == 0


def test_a_driver_that_is_missing_or_too_old_is_a_failure(cubin):
    def find() -> Any:
        raise AttributeError("cuTensorMapEncodeTiled")

    call = arguments()
    assert Launcher(PLAN, *cubin, find=find).run(call, len(call), 0) >> 16 == 5


def test_a_problem_that_the_kernel_cannot_run_is_refused(made):
    call = arguments()
    assert made(Driver()).run(call[:-8], len(call) - 8, 0) >> 16 == 1


def test_a_thread_without_a_context_gets_one(made, monkeypatch):
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    driver = Driver()
    launcher, call = made(driver), arguments()
    driver.thread_has_context = False
    assert launcher.run(call, len(call), 0) == 0
    driver.thread_has_context = False  # of another thread, whose call is known
    assert launcher.run(call, len(call), 0) == 0
    assert driver.calls.count("use") == 2
    assert len(driver.launched) == 2


def test_a_kernel_with_parameters_of_another_size_is_refused(made):
    driver = Driver()
    driver.size = 8
    call = arguments()
    with pytest.raises(InternalError, match="takes 8 bytes of parameters"):
        made(driver).run(call, len(call), 0)


class Limits(Driver):
    """A driver that refuses launches with more shared memory than the kernel was allowed last."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0

    def allow_shared_memory(self, kernel: int, size: int, device: int) -> int:
        self.limit = size
        return 0

    def launch(self, config: int, kernel: int, params: int, extra: None) -> int:
        return int(Config.from_address(config).shared_bytes > self.limit)


def test_calls_of_all_sizes_stay_launchable(tmp_path: Path, monkeypatch):
    """A depthwise kernel has other shared memory for other sizes."""
    monkeypatch.setenv(WAY, NVRTC)
    geometry = {"padding": 2, "groups": 64}
    op = evt.conv2d("D = relu(acc)", route="conv-depthwise-3x", **geometry)
    plan = op.plan("sm90", "f16", "f16", shapes=((2, 64, 28, 28), (64, 1, 5, 5)))
    (source,) = kernel_sources([plan])
    (path,) = build([source], cache=Cache(tmp_path))
    driver, draw = Limits(), random.Random(5)
    launcher = Launcher(plan, path.read_bytes(), source.name, find=lambda: driver)  # type: ignore[return-value]
    convolution = Convolution.of("conv2d", geometry)
    images = [(draw.randint(1, 40), 64, draw.randint(5, 120), draw.randint(5, 120)) for _ in range(20)]
    given = [calls.arguments(plan, calls.of_convolution(plan, convolution, x, (64, 1, 5, 5))) for x in images]
    limits = set()
    for call in (*given, *given):
        assert launcher.run(call, len(call), 0) == 0
        limits.add(driver.limit)
    assert len(limits) > 1


def test_a_cubin_of_another_plan_is_refused(cubin, tmp_path: Path):
    other = evt.gemm("D = acc + bias", route="gemm-own-3x").plan("sm90", "f16", "f16")
    with pytest.raises(ValueError, match="table of members is too"):
        Launcher(other, *cubin)
