"""Products whose epilogues read and write several matrices, which TMA moves: generated programs, compared bit by bit.

Operands and matrices are small whole numbers, so that every sum is exact. Outputs are poisoned with NaN or overwrite a
matrix that is read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import evt
from evt.diagnostics import Source
from evt.ir.dtype import BY_NAME
from evt.plan import survey
from evt.request import packed_problem
from tests.support.one_config import with_config
from tests.support.patterns import same_bits

pytestmark = pytest.mark.gpu

#: Types of matrices, with the elements of 16 bytes, and types of operands.
MATRICES = {"bf16": 8, "f16": 8, "f32": 4, "i32": 4, "e4m3": 16, "i8": 16}
OPERANDS = ("bf16", "f16", "e4m3", "i8")
#: The bounds of whole numbers in operands, in matrices, and in outputs of 8 bits.
SMALL, VALUES, BYTE = 2, 6, 100
SIZES = ((333, 272, 136), (1, 16, 1040), (257, 528, 144), (1001, 144, 336), (63, 1104, 208), (9000, 48, 80))


@dataclass(frozen=True)
class Case:
    """A generated program: its matrices as (name, type), and its text. Batches share some loaded matrices."""

    loads: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]
    stores: tuple[tuple[str, str], ...]
    operand: str
    text: str

    @classmethod
    def draw(cls, seed: int, *, batched: bool = False) -> Case:
        draw = random.Random(f"staged {seed}")
        types = list(MATRICES)
        loads = tuple((f"x{i}", draw.choice(types)) for i in range(draw.randint(0, 4)))
        stores = tuple((f"y{i}", draw.choice(types)) for i in range(draw.randint(1, 4)))
        operand = draw.choice(OPERANDS)
        lines = [f"gemm(A: {operand}[m, k], B: {operand}[k, n])"]
        shared = tuple(name for name, _ in loads if batched and draw.random() < 0.5)
        modes = {name: "l, m, n" if batched and name not in shared else "m, n" for name, _ in loads}
        lines += [f"in {name}: {dtype}[{modes[name]}]" for name, dtype in loads]
        lines += [f"out {name}: {dtype}[m, n]" for name, dtype in stores]
        for i, (name, dtype) in enumerate(stores):
            terms = [
                f"{draw.choice((1, 2, -1, 3))}*{other}"
                for other, _ in loads
                if draw.random() < 0.7 or i + 1 == len(stores)
            ]
            value = " + ".join([draw.choice(("acc", "2*acc", "max(acc, 3)")), *terms, str(i)])
            narrow = dtype in ("e4m3", "i8")
            lines.append(f"{name} = min(max({value}, -{BYTE}), {BYTE})" if narrow else f"{name} = {value}")
        return cls(loads, shared, stores, operand, "\n".join(lines))


def dtype_of(name: str) -> torch.dtype:
    """Return a type of torch."""
    found: torch.dtype = getattr(torch, BY_NAME[name].torch)
    return found


def poisoned(shape: tuple[int, ...], name: str) -> torch.Tensor:
    """Return an output of NaN, or of a number that no result has."""
    value = float("nan") if BY_NAME[name].is_float else BYTE + 20
    return torch.full(shape, value, device="cuda").to(dtype_of(name))


def numbers(shape: tuple[int, ...], dtype: str, bound: int, generator: torch.Generator) -> torch.Tensor:
    """Return whole numbers of a type."""
    drawn = torch.randint(-bound, bound + 1, shape, device="cuda", generator=generator)
    return drawn.to(torch.float32).to(dtype_of(dtype))


def check(case: Case, op: evt.Program, size: tuple[int, int, int], seed: int, batches: int = 0) -> None:
    """Run a kernel into poisoned or overwritten buffers, and compare all bits with float64."""
    m, n, k = size
    generator, draw = torch.Generator("cuda").manual_seed(seed), random.Random(seed)
    many = (batches,) if batches else ()
    a, b = (numbers((*many, rows, k), case.operand, SMALL, generator) for rows in (m, n))
    given = {
        name: numbers((m, n) if name in case.shared else (*many, m, n), dtype, VALUES, generator)
        for name, dtype in case.loads
    }
    b = b.mT  # contiguous along k
    exact: Any = op.reference(a, b, float64=True, **given)
    exact = exact if isinstance(exact, tuple) else (exact,)
    buffers: dict[str, torch.Tensor] = {}
    free = {name: dtype for name, dtype in case.loads if not batches}
    for name, dtype in case.stores:
        same = next((other for other, kind in free.items() if kind == dtype), None)
        if same is not None and draw.random() < 0.5:
            buffers[name] = given[same]
            del free[same]
        else:
            buffers[name] = poisoned((*many, m, n), dtype)
    op(a, b, **given, **buffers)
    for (name, dtype), value in zip(case.stores, exact, strict=True):
        right = same_bits(buffers[name], value.to(dtype_of(dtype)))
        assert bool(right.all()), (case.text, size, name, int((~right).sum()))


@pytest.mark.parametrize("seed", range(40))
def test_generated(seed: int) -> None:
    """A few configurations of a generated program, for sizes that are no multiples of tiles."""
    case, draw = Case.draw(seed), random.Random(seed)
    op = evt.Program(Source(case.text), "gemm", route="gemm-own-3x")
    (found,) = survey(packed_problem(op.request, "sm90", shapes=((64, 128), (128, 256))), "gemm-own-3x").asked
    first, *rest = found.default_configs
    for config in (first, *draw.sample(rest, 3)):
        able = [size for size in SIZES if size[2] > config.cluster[2] * config.tile[2]]
        for size in draw.sample(able, min(len(able), 2)):
            check(case, with_config(op, config.name), size, seed)


#: Tiles of cooperating consumers, which keep C of their last parts in registers, and pingpong ones.
KEPT = ("256x128x64_1x2", "256x128x64_2x1", "128x256x64", "160x256x64_2x1", "176x128x64", "192x128x64_1x2")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("tile", [*(f"own_cooperative_{each}" for each in KEPT), "own_pingpong_192x128x64_1x2"])
def test_several_tiles_of_a_cta(tile: str, dtype: str) -> None:
    """C of the next tile is loaded while D of the tile before is stored."""
    case = Case(
        (("x0", dtype),), (), (("y0", "bf16"),), "bf16", f"in x0: {dtype}[m, n]; out y0: bf16[m, n]; y0 = acc + x0"
    )
    op = with_config(
        evt.Program(Source(f"gemm(A: bf16[m, k], B: bf16[k, n]); {case.text}"), "gemm", route="gemm-own-3x"), tile
    )
    for size in ((3152, 4112, 64), (3000, 4112, 72), (6304, 2064, 328)):
        check(case, op, size, 0)


@pytest.mark.parametrize("seed", range(40, 52))
def test_generated_batches(seed: int) -> None:
    """Batches of a generated program in one launch."""
    case, draw = Case.draw(seed, batched=True), random.Random(seed)
    op = evt.Program(Source(case.text), "gemm", route="gemm-own-batches")
    for size in draw.sample(SIZES[:5], 2):
        check(case, op, size, seed, batches=3)


@pytest.mark.parametrize("seed", range(52, 62))
def test_generated_unaligned(seed: int) -> None:
    """Rows whose addresses TMA refuses: threads move these matrices, and TMA the others."""
    case, draw = Case.draw(seed), random.Random(seed)
    op = evt.Program(Source(case.text), "gemm", route="gemm-own-3x")
    for n in (4, 116, 264, 331):
        check(case, op, (draw.choice((77, 300)), n, 144), seed)
