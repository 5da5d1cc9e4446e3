"""The WGMMA instruction of an own kernel as text: ``multiplication(plan) -> MultiplicationText``."""

from __future__ import annotations

from typing import Any

from evt.emission.expressions import REGISTER
from evt.emission.text import MultiplicationText
from evt.ir.dtype import BF16, E4M3, E5M2, F16, F32, I8, I32, TF32, U8, DType
from evt.launch.shape import MAP_TYPES
from evt.plan import Plan
from evt.plan.gemm import ProductClass, multiplies_halves, tile_of
from evt.plan.geometry.halo import DEPTH_BYTES, FILTERS
from evt.plan.plan import FilterGradient, HaloConvolution, OwnProduct

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
    """Return the instruction that multiplies filters by pixels. The accumulators are operands of the asm statement.

    The instruction of a filter gradient multiplies filters by channels, and sums over pixels.
    """
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution | OwnProduct | FilterGradient)
    a, b, size, by_rows = loop.a.dtype, loop.b.dtype, loop.a.dtype.bits // 8, plan.config.schedule == "own_rows"
    over_pixels = isinstance(loop, FilterGradient)
    if isinstance(loop, FilterGradient):
        transposed, pixels = True, loop.part.group * FILTERS
    else:
        transposed, pixels = loop.transposes_filters, plan.config.tile[1 if by_rows else 0]
    if isinstance(loop, OwnProduct) and multiplies_halves(tile_of(plan.config, size), product_class(plan, loop)):
        pixels //= 2
    count = FILTERS * pixels // _THREADS
    converts = isinstance(loop, OwnProduct) and loop.converts
    of_pixels, of_filters = _MULTIPLIED[a], _MULTIPLIED[a if converts else b]
    first, second = (of_pixels, of_filters) if by_rows else (of_filters, of_pixels)
    of_sums, change = _SUMS[plan.accumulator]
    return MultiplicationText(
        element_bytes=size,
        accumulator=REGISTER[plan.accumulator],
        map_type=f"CU_TENSOR_MAP_DATA_TYPE_{MAP_TYPES[a][0]}",
        transposed=transposed,
        pixels=pixels,
        columns="channels" if over_pixels else "pixels",
        depth=f"{DEPTH_BYTES // size} pixels" if over_pixels else f"{DEPTH_BYTES} bytes of channels",
        instruction=f"wgmma.mma_async.sync.aligned.m{FILTERS}n{pixels}k{DEPTH_BYTES // size}"
        f".{of_sums}.{first}.{second}",
        registers=_lines([f"%{i}" for i in range(count)]),
        operands=_lines([f'"{change}"(sums[{i}])' for i in range(count)]),
        **(_converted if converts else _described)(count),
        flags=", 1, 1, 0" if converts else _flags(a, transposed, over_pixels),
    )


def product_class(plan: Plan, loop: OwnProduct) -> ProductClass:
    """Return the properties that decide how sums are promoted."""
    scaled = any(each.role == "factor" for each in loop.factors)
    return ProductClass(
        loop.a.dtype,
        scaled=scaled,
        converted=loop.converts,
        packed=loop.is_packed,
        fast_sums=plan.options.fast_sums,
    )


def _described(first: int) -> dict[str, Any]:
    """Return the parts of an instruction whose operands are in shared memory; ``first`` is its first input."""
    return {
        "a": "a",
        "remark": (
            "`a` and `b` are the lower words of the operands' descriptors. Their",
            "layouts are the upper words.",
        ),
        "parameters": "uint32_t a, uint32_t b, uint32_t layout_of_a, uint32_t layout_of_b",
        "inputs": '"r"(a), "r"(b), "r"(layout_of_a), "r"(layout_of_b)',
        "declared": ".reg .b64 a, b;",
        "moves": f"mov.b64 a, {{%{first}, %{first + 2}}};\\nmov.b64 b, {{%{first + 1}, %{first + 3}}};",
        "adds": f"%{first + 4}",
    }


def _converted(first: int) -> dict[str, Any]:
    """Return the parts of an instruction whose filters are in registers."""
    return {
        "a": f"{{%{first}, %{first + 1}, %{first + 2}, %{first + 3}}}",
        "remark": (
            "`a` are registers of the filters, and `b` is the lower word of the",
            "other operand's descriptor. Its layout is the upper word.",
        ),
        "parameters": "uint32_t const (&a)[4], uint32_t b, uint32_t layout_of_b",
        "inputs": '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(layout_of_b)',
        "declared": ".reg .b64 b;",
        "moves": f"mov.b64 b, {{%{first + 4}, %{first + 5}}};",
        "adds": f"%{first + 6}",
    }


def _flags(operand: DType, *transposed: bool) -> str:
    """Return the instruction's last words: the signs of the operands, and for 16 bits their transposition."""
    if not operand.is_float:
        return ""
    return ", 1, 1, " + ", ".join(str(int(each)) for each in transposed) if operand.bits == 16 else ", 1, 1"


def _lines(words: list[str]) -> tuple[str, ...]:
    return tuple(", ".join(words[i : i + _SUMS_A_LINE]) for i in range(0, len(words), _SUMS_A_LINE))
