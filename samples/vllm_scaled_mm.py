"""vLLM's cutlass_scaled_mm and cutlass_scaled_mm_azp by evt: ``python samples/vllm_scaled_mm.py``.

The functions have the signatures and the meaning of vllm/_custom_ops.py: scales of tensors, tokens and channels, zero
points of tensors and tokens, an optional bias, f16 and bf16 results. Scales for blocks of k are refused.
On a CUDA GPU the kernels run; elsewhere the PyTorch reference does.
"""

from __future__ import annotations

from functools import cache

import torch

import evt

#: evt's names of the operands' and results' types.
NAMES = {
    torch.float8_e4m3fn: "e4m3",
    torch.int8: "i8",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}
#: The formulas of cutlass_scaled_mm, and of cutlass_scaled_mm_azp without and with a zero point for each token.
FORMULAS = {
    "scaled": ("", "scale_a*(scale_b*acc) + bias"),
    "azp": (", azp_adj: i32[n]", "scale_a*(scale_b*(acc - azp_adj)) + bias"),
    "azp of tokens": (", azp_adj: i32[n], azp: i32[m]", "scale_a*(scale_b*(acc - azp*azp_adj)) + bias"),
}


@cache
def program(kind: str, operand: str, result: str) -> evt.Program:
    """Return the program of a function. Scales are vectors or single values, as each call decides."""
    inputs, formula = FORMULAS[kind]
    return evt.gemm(
        f"gemm(A: {operand}[m, k], B: {operand}[k, n])\n"
        f"in  scale_a: f32[m?], scale_b: f32[n?], bias: {result}[n] = 0{inputs}\n"
        f"out D: {result}[m, n]\n"
        f"D = {formula}"
    )


def cutlass_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``((scale_a * a) @ (scale_b * b) + bias).to(out_dtype)`` for a ``[m, k]`` and b ``[k, n]`` of 8 bits.

    ``scale_a`` is a single value or ``[m, 1]``, ``scale_b`` a single value or ``[1, n]``.
    """
    check(a, b, scale_a, scale_b, out_dtype, bias)
    op = program("scaled", NAMES[a.dtype], NAMES[out_dtype])
    return op(a, b, scale_a=vector(scale_a), scale_b=vector(scale_b), bias=bias)


def cutlass_scaled_mm_azp(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
    azp_adj: torch.Tensor,
    azp: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``(scale_a * (a - azp)) @ (scale_b * b) + bias`` for asymmetric int8 activations.

    ``azp_adj`` ``[n]`` has the sums of b's columns, times the zero point of a tensor. ``azp`` ``[m]`` has the zero
    points of tokens.
    """
    check(a, b, scale_a, scale_b, out_dtype, bias)
    if azp_adj.numel() != b.shape[1] or (azp is not None and azp.numel() != a.shape[0]):
        raise ValueError("azp_adj has an element for each column, and azp one for each row")
    given = {"scale_a": vector(scale_a), "scale_b": vector(scale_b), "azp_adj": azp_adj.flatten(), "bias": bias}
    if azp is None:
        return program("azp", NAMES[a.dtype], NAMES[out_dtype])(a, b, **given)
    return program("azp of tokens", NAMES[a.dtype], NAMES[out_dtype])(a, b, azp=azp.flatten(), **given)


def check(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None,
) -> None:
    """Raise ValueError for arguments that vLLM's function refuses, and for scales of blocks."""
    if b.shape[0] % 16 or b.shape[1] % 16:
        raise ValueError("k and n are multiples of 16")
    if out_dtype not in (torch.float16, torch.bfloat16):
        raise ValueError("the result is float16 or bfloat16")
    if bias is not None and (bias.numel() != b.shape[1] or bias.dtype != out_dtype):
        raise ValueError("the bias has an element for each column, of the result's type")
    if scale_a.numel() not in (1, a.shape[0]) or scale_b.numel() not in (1, b.shape[1]):
        raise ValueError("scales are of tensors, tokens and channels; evt has no scales of blocks yet")


def vector(scale: torch.Tensor) -> torch.Tensor:
    """Return a scale without the dimensions that broadcast it."""
    return scale.flatten()


def reference(a, b, scale_a, scale_b, out_dtype, bias=None, zero_point=None):  # type: ignore[no-untyped-def]
    """Return the meaning in float64: the operands are dequantised, then multiplied."""
    shifted = a.double() if zero_point is None else a.double() - zero_point.double().reshape(-1, 1)
    product = (scale_a.double().reshape(-1, 1) * shifted) @ (b.double() * scale_b.double().reshape(1, -1))
    return (product if bias is None else product + bias.double()).to(out_dtype)


def main() -> None:
    """Compare each kind of scale and zero point with the reference."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    m, n, k = 33, 64, 128
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8, device=device) for shape in ((m, k), (n, k)))
    b = b.t()
    tokens, channels = torch.rand(m, 1, device=device) / 64, torch.rand(1, n, device=device) / 64
    azp = torch.randint(-9, 10, (m,), dtype=torch.int32, device=device)
    bias = torch.randn(n, device=device).bfloat16()
    scaled = cutlass_scaled_mm(a, b, tokens, channels, torch.bfloat16, bias)
    shifted = cutlass_scaled_mm_azp(a, b, tokens, channels, torch.bfloat16, b.sum(0, dtype=torch.int32), azp, bias)
    for name, got, zero_point in (("scaled", scaled, None), ("azp", shifted, azp)):
        want = reference(a, b, tokens, channels, torch.bfloat16, bias, zero_point)
        print(f"{name}: relative error {float((got - want).double().norm() / want.double().norm()):.1e}")
        print(evt.supports(program("scaled", "i8", "bf16"), "h100", ((m, k), (k, n))))


if __name__ == "__main__":
    main()
