"""The WGMMA instruction of the halo kernel as text: ``multiplication(plan) -> MultiplicationText``."""

from __future__ import annotations

from evt.emission.expressions import REGISTER
from evt.emission.text import MultiplicationText
from evt.ir.dtype import BF16, E4M3, E5M2, F16, F32, I8, I32, TF32, U8, DType
from evt.launch.shape import MAP_TYPES
from evt.plan import Plan
from evt.plan.geometry.halo import DEPTH_BYTES, FILTERS
from evt.plan.plan import HaloConvolution, OwnProduct

#: The threads that share the sums, and the sums in a line of text.
_THREADS, _SUMS_A_LINE = 128, 6
#: The names of operand types in the instruction.
_MULTIPLIED = {
    F16: "f16",
    BF16: "bf16",
    F32: "tf32",
    TF32: "tf32",
    E4M3: "e4m3",
    E5M2: "e5m2",
    I8: "s8",
    U8: "u8",
}
#: The sums: their type in the instruction, and their constraint in an asm statement.
_SUMS = {F32: ("f32", "+f"), I32: ("s32", "+r")}


def multiplication(plan: Plan) -> MultiplicationText:
    """Return the instruction that multiplies filters by pixels; the sums are registers of the asm statement."""
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution | OwnProduct)
    a, b, transposed = loop.a.dtype, loop.b.dtype, loop.transposes_filters
    pixels, size = plan.config.tile[0], a.bits // 8
    count = FILTERS * pixels // _THREADS
    of_pixels, of_filters = _MULTIPLIED[a], _MULTIPLIED[b]
    of_sums, change = _SUMS[plan.accumulator]
    return MultiplicationText(
        element_bytes=size,
        accumulator=REGISTER[plan.accumulator],
        map_type=f"CU_TENSOR_MAP_DATA_TYPE_{MAP_TYPES[a][0]}",
        transposed=transposed,
        pixels=pixels,
        instruction=f"wgmma.mma_async.sync.aligned.m{FILTERS}n{pixels}k{DEPTH_BYTES // size}"
        f".{of_sums}.{of_filters}.{of_pixels}",
        registers=_lines([f"%{i}" for i in range(count)]),
        operands=_lines([f'"{change}"(sums[{i}])' for i in range(count)]),
        a=f"{{%{count}, %{count + 2}}}",
        b=f"{{%{count + 1}, %{count + 3}}}",
        adds=f"%{count + 4}",
        flags=_flags(a, transposed),
    )


def _flags(operand: DType, transposed: bool) -> str:
    """Return the instruction's last words: the signs of the operands, and for 16 bits their transposition."""
    if not operand.is_float:
        return ""
    return f", 1, 1, {int(transposed)}, 0" if operand.bits == 16 else ", 1, 1"


def _lines(words: list[str]) -> tuple[str, ...]:
    return tuple(", ".join(words[i : i + _SUMS_A_LINE]) for i in range(0, len(words), _SUMS_A_LINE))
