"""Random graphs over every type: fused and compiled equal eager, to the bit where that is exact."""

from __future__ import annotations

import pytest
import torch

from evt.fx.fuse import fuse, fusion

from .fusing import Function, formulas
from .random_types import FLOATS, check, check_compiled, check_decomposed

#: The number of checks here; ``python -m tests.fx.random_types`` checks more.
COUNT, DECOMPOSED, COMPILED = 10, 6, 2
EIGHT = torch.randint(-128, 128, (32, 32), generator=torch.Generator().manual_seed(3), dtype=torch.int8)


@pytest.mark.parametrize("seed", range(COUNT))
def test_fused_is_eager(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(DECOMPOSED))
def test_what_the_pass_fuses_is_eager(seed: int) -> None:
    check_decomposed(seed)


@pytest.mark.slow
def test_many_fused_are_eager() -> None:
    for seed in range(1000):
        check(seed)
        check_decomposed(seed)


@pytest.mark.filterwarnings("ignore")  # PyTorch's warning about a future removal
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "seed", [*range(COMPILED), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(COMPILED, 60))]
)
def test_compiled_is_eager(seed: int) -> None:
    check_compiled(seed)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype: torch.dtype) -> None:
    """Roots of infinities, NaN, and the sign of a zero are eager's to the bit."""
    numbers = torch.tensor([torch.inf, -torch.inf, -0.0, 0.0, 4.0, -1.0, torch.nan], dtype=dtype)
    a, b = numbers[:, None], torch.ones(1, 8, dtype=dtype)
    signs = torch.tensor([[1.0], [1.0], [-1.0], [1.0], [1.0], [1.0], [1.0]], dtype=dtype)

    def run(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.copysign(a @ b, s)  # a sum of products has no -0
        x = torch.where(a < 0, -x, x)
        return x**0.5, x**-0.5, x.relu(), x.clamp(min=0), torch.nn.functional.relu6(x), x.isinf(), x.sqrt()

    module = Function(run).eval()
    made = fuse(module, (a, b, signs)).eval()
    with torch.no_grad():
        for wanted, found in zip(module(a, b, signs), made(a, b, signs), strict=True):
            assert torch.equal(wanted.isnan(), found.isnan())
            known = ~wanted.isnan()
            assert torch.equal(wanted[known], found[known])
            assert torch.equal(wanted[known].signbit(), found[known].signbit())
    assert formulas(fusion(made))


@pytest.mark.parametrize(
    ("dtype", "formula"),
    [(torch.int8, "D = wrap_i8(acc)"), (torch.uint8, "D = wrap_u8(acc)"), (torch.float16, "D = f16(acc)")],
    ids=str,
)
def test_casts_of_integers(dtype: torch.dtype, formula: str) -> None:
    module = Function(lambda a, b: torch._int_mm(a, b).to(dtype)).eval()
    made = fuse(module, (EIGHT, EIGHT)).eval()
    with torch.no_grad():
        assert torch.equal(made(EIGHT, EIGHT), module(EIGHT, EIGHT))
    assert formulas(fusion(made)) == [formula]


def test_casts_of_floats_to_uint8_go_through_int64() -> None:
    numbers = torch.tensor([[300.0], [-1.0], [256.9], [3e9], [-3e9], [2.0**40]])
    module = Function(lambda a, b: (a @ b).to(torch.uint8)).eval()
    made = fuse(module, (numbers, torch.ones(1, 8))).eval()
    with torch.no_grad():
        assert torch.equal(made(numbers, torch.ones(1, 8)), module(numbers, torch.ones(1, 8)))
    assert formulas(fusion(made)) == ["D = i32(wrap_u8(acc))"]
