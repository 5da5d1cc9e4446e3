"""Regions that are expected to win: the time saved on the GPU, and the host time of calls without CUDA graphs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch._inductor import config

from evt.fx.cost_model import CALL, LAUNCH, LEAST_GAIN, Benefit
from evt.fx.kernels import PROCESSORS
from evt.fx.records import ProductReport
from evt.ir.dtype import BF16
from evt.plan.gemm import ProductClass, tiles_of
from evt.plan.gemm_speed import Size, library_microseconds, microseconds

from .costs import row_of, rows_of
from .fusing import estimated

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def test_a_call_less_is_a_gain_where_the_gpu_waits_for_the_host() -> None:
    """Few rows: 4,096 x 2,560 weights take the GPU about as long as a call takes the host."""
    given = torch.zeros(8, 4096).half(), torch.zeros(4096, 2560).half()
    row = row_of(activated, *given)
    assert row.benefit is not None
    assert row.benefit.waiting is not None
    assert row.benefit.waiting > LEAST_GAIN
    assert "us less for the host" in row.gain
    torch._dynamo.reset()
    replayed = row_of(activated, *given, **{"triton.cudagraphs": True})
    assert replayed.benefit is not None
    assert replayed.benefit.waiting is None
    assert "for the host" not in replayed.gain + replayed.reason


def test_large_products_do_not_wait() -> None:
    benefit = estimated(activated, ((4096, 1024), (1024, 4096)), torch.float16)
    assert benefit.wins
    assert benefit.waiting == pytest.approx(0, abs=1e-6)
    assert "for the host" not in str(benefit)


def test_small_products_save_a_call() -> None:
    row = row_of(activated, torch.zeros(8, 16).half(), torch.zeros(16, 16).half())
    assert row.fused
    assert row.benefit is not None
    assert row.benefit.waiting == pytest.approx(CALL - LAUNCH, abs=0.3)


def test_a_kernel_that_reads_the_result_anyway_would_do_the_work() -> None:
    """Neither bytes nor launches are saved: the product is written and read, or else the region's result is."""
    given = torch.ones(256, 256).half(), torch.ones(256, 256).half()
    row = row_of(lambda x, w: torch.var(torch.relu(x @ w), -1), *given)
    assert "E1017" in row.reason
    assert "saves 0.00 MB" in row.reason


def test_a_product_between_need_not_be_waited_for() -> None:
    """The kernel that reads the result needs nothing of the other product, as in a backward."""

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = x @ w, w @ x
        return torch.var(torch.relu(y), -1), z

    row, _ = rows_of(both, torch.ones(256, 256).half(), torch.ones(256, 256).half())
    assert "E1017" in row.reason
    assert "saves 0.00 MB" in row.reason


def test_a_library_reads_what_was_written_for_it() -> None:
    """It would do none of the region's work; on a CPU cumulative sums are PyTorch's."""
    row = row_of(
        lambda x, w: torch.cumsum(torch.relu(x @ w), -1), torch.ones(2048, 512).half(), torch.ones(512, 2048).half()
    )
    assert row.fused
    assert "saves 16.78 MB" in row.gain


def test_sums_over_rows_are_a_kernel_less() -> None:
    """Without the region another kernel reads all for them, as for a bias's gradient."""

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return y, y.sum(0)

    row = row_of(both, torch.ones(2048, 2048).half(), torch.ones(2048, 2048).half())
    assert "sum[m]" in row.formula
    assert row.benefit is not None
    assert row.benefit.bytes == 3 * 2048 * 2048 * 2


@pytest.mark.skipif(not hasattr(config.triton, "mix_order_reduction"), reason="an older Inductor")
def test_sums_over_rows_and_columns_are_one_kernel() -> None:
    """Newer versions of Inductor have it, so that the region saves one kernel's reads; with older ones it saves two."""

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return y, y.sum(0), y.sum(1)

    saved = []
    for mixed in (True, False):
        torch._dynamo.reset()
        with config.patch({"triton.mix_order_reduction": mixed}):
            row = row_of(both, torch.ones(1024, 1024).half(), torch.ones(1024, 1024).half())
        assert row.benefit is not None
        assert "sum[n]" in row.formula
        saved.append(row.benefit.bytes)
    assert saved == [2 * 1024 * 1024 * 2, 3 * 1024 * 1024 * 2]


def test_what_is_needed_later_is_written_once() -> None:
    """The kernel that reads the result would have had to write it too."""

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return y, torch.var(y, -1)

    row = row_of(both, torch.ones(2048, 512).half(), torch.ones(512, 2048).half())
    assert row.fused
    assert "saves 8.39 MB" in row.gain


def test_casts_for_statistics_are_left_to_their_kernel() -> None:
    """A layer norm computes them in f32; a residual that is kept in f16 is not stored in f32 too."""

    def normed(
        x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.linear(x, w, bias).transpose(0, 1).reshape(1024, 2048) + residual
        return y, torch.nn.functional.layer_norm(y.view(2, 512, 2048), (2048,))

    row = row_of(normed, *(torch.ones(*size).half() for size in ((512, 2, 2048), (2048, 2048), (2048,), (1024, 2048))))
    assert ": f32" not in row.formula


def test_what_the_host_hides_is_fused_for_the_gpu() -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return y, torch.var(y, -1)

    row = row_of(both, torch.ones(3072, 64).half(), torch.ones(64, 1024).half())
    assert row.fused
    assert "saves 6.29 MB" in row.gain
    assert "us more for the host" in row.gain


def test_a_region_that_gains_less_than_is_known_is_left() -> None:
    """Half a microsecond is within the error of the estimate, and the host calls one kernel more."""
    assert not Benefit(saved=2.7, lost=2.2).wins
    assert not Benefit(saved=2.7, lost=2.8, waiting=5.0).wins  # a gain on the host alone
    assert not Benefit(saved=2.7, lost=1.6, waiting=-0.5).wins
    assert Benefit(saved=2.7, lost=1.6).wins
    assert Benefit(saved=2.7, lost=2.6, measured=True).wins


def test_products_of_few_steps_wait_for_their_epilogue() -> None:
    """Few columns of A are multiplied in less time than tanh takes: Inductor's kernel takes no longer for it."""

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x @ w
        return z, torch.tanh(z)

    few = estimated(both, ((4096, 64), (64, 1024)), torch.float16, replayed=True)
    assert few.code == "E1017"
    assert not few.wins
    assert estimated(both, ((33792, 2560), (2560, 4096)), torch.float16, replayed=True).wins


def test_functions_of_several_values_take_their_time_each() -> None:
    """GELU's derivative has an error function and an exponential, of two values: Inductor's kernel takes no longer."""

    def derivative(g: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        made = (g @ w).float() * ((torch.erf(wide * 0.7071) + 1) * 0.5 + wide * torch.exp(wide * wide * -0.5) * 0.3989)
        return made.half(), made.sum(0)

    def once(g: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        made = (g @ w).float() * torch.sigmoid(wide) * (1 + torch.nn.functional.silu(wide))
        return made.half(), made.sum(0)

    values = [torch.zeros(*size).half() for size in ((8192, 256), (256, 1024), (8192, 1024))]
    assert "E1017" in row_of(derivative, *values).reason
    assert not estimated(lambda *x: derivative(*x)[0], ((6304, 768), (768, 3072), (6304, 3072)), torch.float16).wins
    torch._dynamo.reset()
    assert row_of(once, *values).fused


def test_few_tiles_of_many_terms_are_shared_elsewhere() -> None:
    """In the gradient of a weight, the library lets several processors sum a tile's terms; our kernels do not."""

    def gradient(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (g.t() @ x).float()

    long = row_of(gradient, torch.zeros(8192, 768).half(), torch.zeros(8192, 768).half())
    assert "E1017" in long.reason
    torch._dynamo.reset()
    assert row_of(gradient, torch.zeros(1024, 4096).half(), torch.zeros(1024, 4096).half()).fused


def with_residual(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w) + residual


def with_gelu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias), approximate="tanh")


def expected(rows: int, columns: int, terms: int, gelu: bool, replayed: bool) -> Benefit:
    further = (columns,) if gelu else (rows, columns)
    shapes = (rows, terms), (columns, terms), further
    return estimated(with_gelu if gelu else with_residual, shapes, torch.bfloat16, replayed=replayed)


#: On an H100 (2026-11-27), bf16: GELU or a residual, columns and terms, and by rows the microseconds of evt's kernel
#: and of the bare product by the library.
MEASURED = (
    (False, 4096, 4096, {16: (22.1, 23.5), 256: (27.3, 27.9), 2048: (101.4, 93.0), 8192: (368.1, 344.4)}),
    (False, 4096, 14336, {1: (55.1, 56.5), 256: (63.3, 67.5), 2048: (302.2, 293.8), 8192: (1206.4, 1174.9)}),
    (False, 28672, 4096, {1: (91.8, 95.5), 256: (123.0, 111.6), 1024: (326.3, 307.7), 4096: (1321.9, 1209.3)}),
    (True, 3072, 768, {8192: (66.2, 62.0)}),
    (True, 6144, 4096, {1: (28.2, 30.6), 16: (29.2, 29.2), 384: (44.7, 35.8), 4096: (273.8, 259.8)}),
)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize(("gelu", "columns", "terms", "times"), MEASURED)
def test_no_measured_product_loses(
    gelu: bool, columns: int, terms: int, times: dict[int, tuple[float, float]], replayed: bool
) -> None:
    """A fused product is no slower than the library's with a kernel after it, and clear wins are fused."""
    for rows, (fused, product) in times.items():
        moved = rows * columns * 2 * (2 if gelu else 3)
        ratio = fused / (product + moved / 3.6e6 + LAUNCH)
        wins = expected(rows, columns, terms, gelu, replayed).wins
        assert not wins or ratio <= 1.02, (rows, ratio)
        assert wins or ratio >= 0.95 or rows < 2048, (rows, ratio)


def test_an_own_product_loses_the_difference_of_two_models() -> None:
    """The estimate of evt's kernel with its epilogue, without the residual's traffic, beyond the library's."""
    drawn = random.Random(0)
    for _ in range(40):
        rows, columns, terms = (64 * drawn.randint(1, 64) for _ in range(3))
        benefit = expected(rows, columns, terms, False, True)
        size = Size(rows, columns, 2 * terms, 4.0, PROCESSORS)
        own = min(microseconds(tile, size) for tile in tiles_of(ProductClass(BF16))[0])
        lost = own - library_microseconds(size) - rows * columns * 2 / 3.6e6
        assert benefit.lost == pytest.approx(max(0.0, lost))
        assert benefit.saved == pytest.approx(2 * 2 * rows * columns / 3.6e6 + LAUNCH + max(0.0, -lost))


def test_an_error_function_is_slow_elsewhere_too() -> None:
    """A kernel of Inductor's waits for it, rather than for memory: a product of few steps is fused all the same."""

    def with_bias(function: Callable[..., torch.Tensor]) -> ProductReport:
        torch._dynamo.reset()
        given = torch.zeros(100352, 96).half(), torch.zeros(96, 384).half(), torch.zeros(384).half()
        return row_of(lambda x, w, bias: function(torch.addmm(bias, x, w)), *given)

    gelu, tanh = with_bias(torch.nn.functional.gelu), with_bias(torch.tanh)
    assert gelu.fused
    assert gelu.benefit is not None
    assert tanh.benefit is not None
    assert gelu.benefit.saved > tanh.benefit.saved
    assert gelu.benefit.lost == tanh.benefit.lost


def test_a_function_of_sums_is_no_work_for_each_element() -> None:
    """The RMS statistics of Llama's norm: a square of each element, and a root of each row's mean."""

    def normed(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x @ w + residual
        return z, z * torch.rsqrt(z.float().pow(2).mean(-1, keepdim=True) + 1e-6).half()

    def scaled(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x @ w + residual
        return z, z * z.float().pow(2).mean(-1, keepdim=True).half()

    given = torch.zeros(2048, 2048).half(), torch.zeros(2048, 2048).half(), torch.zeros(2048, 2048).half()
    roots = row_of(normed, *given)
    torch._dynamo.reset()
    means = row_of(scaled, *given)
    assert roots.benefit is not None
    assert means.benefit is not None
    assert roots.benefit.lost == means.benefit.lost


def test_what_lies_in_another_order_is_copied() -> None:
    """The residual of torchvision's ViT has its rows in another order than the product, whose result is permuted."""

    def added(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        z = (x.reshape(-1, 1024) @ w).view(64, 32, 1024)
        return (z.transpose(0, 1) + residual).relu()

    def lost(*shape: int, stride: tuple[int, ...]) -> float:
        torch._dynamo.reset()
        residual = torch.zeros(64 * 32 * 1024).half().as_strided(shape, stride)
        row = row_of(added, torch.zeros(64, 32, 1024).half(), torch.zeros(1024, 1024).half(), residual)
        assert row.benefit is not None
        return row.benefit.lost

    copy = 2 * 64 * 32 * 1024 * 2 / 3.6e6 + LAUNCH
    as_the_product = lost(32, 64, 1024, stride=(1024, 32 * 1024, 1))
    other = lost(32, 64, 1024, stride=(64 * 1024, 1024, 1))
    assert other - as_the_product == pytest.approx(copy)  # and the result lies as the product does in both
