"""Real epilogues: the library, the sample or the refusal, and the meaning of each, written by hand in PyTorch.

``RECORDS`` has one row a record. ``MEANINGS`` are the samples' formulas over an accumulator and inputs in f64, in which
integers up to 2**53 are exact, and do not use evt. ``record_calls`` makes the tensors of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace as Inputs

import torch
from torch import Tensor
from torch.nn import functional

SAMPLES = Path(__file__).parents[2] / "samples"
FLOAT_MAX = 3.4028234663852886e38


@dataclass(frozen=True)
class Refusal:
    """A program that a user would try, and the diagnostic that names the missing feature."""

    program: str
    code: str
    message: str


@dataclass(frozen=True)
class Record:
    """A record: its tier, its architectures, the samples that it became, and its refused parts."""

    tier: int
    archs: str
    samples: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def sample(tier: int, archs: str, *names: str, refused: tuple[Refusal, ...] = ()) -> Record:
    return Record(tier, archs, names, refused)


def refused(tier: int, archs: str, *refusals: tuple[str, str, str]) -> Record:
    return Record(tier, archs, (), tuple(Refusal(*each) for each in refusals))


_E2M1 = ("E0303", "there is no type `e2m1`")

RECORDS: dict[str, Record] = {
    "ait-conv-bias-add-act": sample(1, "sm75 sm80", "conv_bias_residual_hardswish"),
    "bn-stat-dgrad": sample(1, "sm100", "batchnorm_backward_statistics"),
    "cudnn-gemm-amax": sample(1, "sm100", "amax"),
    "cudnn-gemm-dsrelu": sample(2, "sm100", "squared_relu_backward"),
    "cudnn-gemm-srelu": sample(2, "sm100", "squared_relu"),
    "cudnn-gemm-swiglu-quant": sample(3, "sm100", "swiglu_blocks", "swiglu_block_scales"),
    "cutlass-47-streamk-bias-2residual": sample(1, "sm80", "two_residuals"),
    "cutlass-dag-evt-auxstore-max": sample(1, "sm90", "store_and_max"),
    "cutlass-lincomb": sample(1, "sm80 sm90 sm100", "linear_combination"),
    "cutlass-lincomb-blockscale": sample(1, "sm100 sm120", "lincomb_block_scales"),
    "cutlass-lincomb-perrow-reduce": sample(1, "sm90", "lincomb_row_sums"),
    "cutlass-percol-resadd-percolbias-eltact": sample(1, "sm90 sm100", "per_column_residual"),
    "cutlass-percolbias-eltact": sample(1, "sm90 sm100 sm120", "lincomb_bias_clamp", "lincomb_bias_int8_conv"),
    "cutlass-perrowbias-eltact-aux": sample(1, "sm90 sm100", "keep_preactivation"),
    "cutlass-planar-complex": refused(
        *(4, "sm70 sm80"),
        (
            "gemm(A: complex32[m, k], B: complex32[k, n])\nD = alpha*acc + beta*C",
            "E0303",
            "there is no type `complex32`",
        ),
    ),
    "cutlass-py-batched-broadcasts": sample(1, "sm80 sm90", "batched_broadcasts"),
    "cutlass-relu-aux-bitmask": sample(3, "sm90 sm100", "relu_bitmask"),
    "cutlass-topk-softmax-col": refused(
        *(3, "sm90"),
        ("x = alpha*acc + beta*C\nD = where(x >= topk[n](x, 2), exp(x), 0)", "E0201", "there is no reduction `topk`"),
        (
            "x = alpha*acc + beta*C\nD = exp(x - max[n](x))",
            "E0410",
            "a reduction over [n] is complete only when the kernel ends, so it cannot be read at [m, n]",
        ),
    ),
    "evtae-bias-reuse-after-tanh": sample(1, "sm80", "reuse_after_tanh"),
    "evtae-tanh-backward-colsum": sample(1, "sm80", "tanh_backward_column_sums"),
    "fbgemm-f8f8bf16-conv3d": sample(1, "sm100", "fp8_conv_scale"),
    "fbgemm-grouped-wgrad-accum": sample(1, "sm90 sm100", "wgrad_accumulate"),
    "flashinfer-ptrarray-per-token-scale": sample(1, "sm90 sm100", "token_scale"),
    "flashinfer-svdquant-nvfp4": sample(1, "sm100 sm120", "scale_and_bias"),
    "fmms-rowmax": sample(1, "sm90", "column_maximum"),
    "inductor-evt-mixed-dtypes": sample(1, "sm90", "mixed_types"),
    "inductor-return-acc-and-intermediates": sample(1, "sm90", "keep_intermediates"),
    "int-swiglu-store-sm80": sample(3, "sm80", "int8_swiglu_pairs"),
    "layernorm-two-reductions": sample(2, "sm80 sm120", "layernorm_statistics"),
    "mixdq-linear": sample(1, "sm80", "int8_zero_point_f32"),
    "modiff-conv-requant-inplace": sample(1, "sm80", "requantise_in_place"),
    "nunchaku-rmsnorm-rope-pack": refused(
        *(4, "sm80 sm89 sm120"),
        (
            "in w: f16[n%128], eps: f32\nD = acc*rsqrt(mean[n%128](acc*acc) + eps)*w",
            "E0301",
            "there is no mode `n%128` here",
        ),
        ("out q, k, v: f16[m, n/3]\nq = acc\nk = acc\nv = acc", "E0301", "there is no mode `n/3` here"),
    ),
    "qqq-w4a8": sample(1, "sm80", "int8_two_scales"),
    "quack-dgated-moe": sample(
        *(3, "sm90 sm100", "gated_backward_moe"),
        refused=(Refusal("in C: bf16[m, n*2]\nD = acc*even(C)", "E0301", "there is no mode `n*2` here"),),
    ),
    "quack-linear-bias2": sample(1, "sm80 sm90 sm100 sm120", "two_biases"),
    "quack-ln-bwd-apply": sample(1, "sm80 sm90 sm100 sm120", "layernorm_backward_apply"),
    "quack-symmetric": refused(
        *(4, "sm80 sm90 sm100 sm120"),
        ("syrk(A: bf16[m, k])\nD = alpha*acc + beta*C", "E0501", "there is no operation `syrk`"),
        ("V = alpha*acc + beta*C\nD[m, n] = V\nD[n, m] = V", "E0401", "`D` is assigned twice"),
    ),
    "qutlass-mx-absmax": refused(
        *(3, "sm80 sm120"),
        ("out D: e2m1, SF: f32[m, n/32]\ns = max[n%32](abs(acc)) + 1e-8\nSF = s\nD = acc/s*3", *_E2M1),
    ),
    "qutlass-mx-quartet-std": refused(
        *(3, "sm80 sm120"),
        (
            "out D: e2m1, mask: b1\nmean = sum[n%32](acc)/32\ns = sqrt(sum[n%32](acc*acc)/32 - mean*mean)\n"
            "D = acc/s\nmask = abs(D) < 6",
            *_E2M1,
        ),
    ),
    "scalar-broadcast-count2": sample(1, "sm90", "fp8_two_scalars"),
    "sgl-fp8-sm89-bias": sample(1, "sm89", "fp8_scaled_bias"),
    "sgl-int8-sm90-bias": sample(1, "sm90", "int8_scaled_bias"),
    "splittree-residual-rms-producer": sample(2, "sm90 sm100", "residual_rms_producer"),
    "torch-rowwise-scaled-mm-sm90": sample(1, "sm90 sm100 sm120", "rowwise_scaled_mm"),
    "torch-sparse24-colvec-C": sample(1, "sm80", "integer_lincomb_column"),
    "torchint-a8w8-bfp32-ofp32": sample(1, "sm75 sm80", "int8_lincomb_f32", "int8_lincomb_i32"),
    "torchint-a8w8-relu-o8": sample(1, "sm75 sm80", "int8_relu_requantise"),
    "trtllm-lincomb-allreduce": refused(
        4, "sm90 sm100", ("D = allreduce(alpha*acc + beta*C)", "E0201", "there is no function `allreduce`")
    ),
    "trtllm-moe-finalize-2x": sample(
        *(3, "sm90", "moe_finalize"),
        refused=(
            Refusal(
                "in row_map: i32[m], scale: f32[m]\nD[row_map, n] = scale*(alpha*acc + beta*C + bias)",
                "E0301",
                "there is no mode `row_map` here",
            ),
        ),
    ),
    "two-phase-fp8-add": sample(1, "sm120", "partial_product_scaled"),
    "vllm-azp-token": sample(1, "sm80 sm89 sm90 sm120", "int8_zero_point_i32"),
}
#: The record of each sample.
RECORD_OF = {name: record for record, row in RECORDS.items() for name in row.samples}
#: Outputs whose buffer may be the memory of an input: sample -> (output, input).
IN_PLACE = {
    "wgrad_accumulate": ("D", "C"),
    "requantise_in_place": ("D", "codes"),
    "int8_lincomb_f32": ("D", "bias"),
    "int8_lincomb_i32": ("D", "bias"),
    "int8_relu_requantise": ("D", "bias"),
}


def column(vector: Tensor) -> Tensor:
    """One value a row, or a single value."""
    return vector.unsqueeze(-1) if vector.numel() > 1 else vector.reshape(())


def half(x: Tensor) -> Tensor:
    return x.to(torch.float16).double()


def bfloat(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).double()


def integer(x: Tensor, bits: int) -> Tensor:
    """To nearest even, saturating."""
    return x.round().clamp(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)


def bits(x: Tensor) -> Tensor:
    """Truth values ``[m, n]`` as bytes ``[m, ceil(n/8)]``, the lowest bit first."""
    padded = functional.pad(x, (0, -x.shape[-1] % 8))
    return torch.stack([padded[:, bit::8].to(torch.uint8) << bit for bit in range(8)]).sum(0).to(torch.uint8)


def batchnorm_backward(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    norm = (x.y - x.mean) * x.inv_stddev * x.alpha + x.bias
    gate = torch.sigmoid(norm)
    dx = acc * gate * (1 + norm * (1 - gate))
    return dx, dx.sum(0), (x.y * dx).sum(0)


def squared_relu_backward(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    r = functional.relu(x.alpha * acc)
    d = 2 * x.C * column(x.prob) * r
    return d, (r.square() * x.C).sum(1), d.abs().max()


def squared_relu(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    c = x.alpha * acc
    d = functional.relu(c).square() * column(x.prob)
    return d, c, d.abs().max()


def gated_blocks(full: Tensor) -> Tensor:
    blocks = torch.split(full, 32, dim=1)
    value, gate = torch.cat(blocks[0::2], 1), torch.cat(blocks[1::2], 1)
    return value * gate * torch.sigmoid(gate)


def block_scaled(v: Tensor, norm_const: Tensor) -> tuple[Tensor, Tensor]:
    scales = torch.stack([norm_const / 448 * block.abs().amax(1) for block in torch.split(v, 32, dim=1)], 1)
    factor = (norm_const / scales).clamp(max=FLOAT_MAX)
    return v * factor.repeat_interleave(32, 1), scales


def swiglu_blocks(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    full = x.alpha * acc
    d = gated_blocks(full)
    return d, full, d.abs().max()


def swiglu_block_scales(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    full = x.alpha * acc
    d, scales = block_scaled(gated_blocks(full), x.norm_const)
    return d, full, scales


def lincomb_block_scales(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    return block_scaled(functional.silu(x.alpha * acc + x.beta * x.C), x.norm_const)


def relu_bitmask(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    z = x.alpha * acc + x.beta * x.C + column(x.bias)
    return functional.relu(z), bits((z >= 0) | z.isnan())


def int8_swiglu_pairs(acc: Tensor, x: Inputs) -> Tensor:
    y = bfloat(acc * column(x.ra) * x.cs)
    gate, up = y[:, 0::2], y[:, 1::2]
    return bfloat(gate / (1 + torch.exp(-gate))) * up


def requantise(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    value = x.codes * x.s_read + acc * x.alpha * x.w_scale
    return integer(value * x.s_write_inv, 8), value.abs().amax(0)


def gated_backward(acc: Tensor, v: Inputs) -> tuple[Tensor, ...]:
    """As quack writes it, with s the sigmoid: dx = ((s - silu*s)*dout + silu*dout)*y."""
    score = column(v.score)
    dout, s = acc * score, torch.sigmoid(v.x)
    silu = v.x * s
    out = silu * v.y
    dx, dy = ((s - silu * s) * dout + silu * dout) * v.y, silu * dout
    return out * score, dx, dy, (out * acc).sum(1), dx.sum(0), dy.sum(0)


def moe_finalize(acc: Tensor, x: Inputs) -> Tensor:
    rows = x.row_map.long()
    value = column(x.scale[rows]) * (x.alpha * acc + x.beta * x.C + x.bias)
    return torch.empty_like(value).index_copy(0, rows, value)


def layernorm_backward(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    dh = acc * x.w + x.C + x.y * column(x.corr_mul) + column(x.corr_add)
    return dh, (acc * x.y).sum(0), dh.sum(0)


def residual_rms(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    s = half(acc + x.C)
    return functional.relu(s * x.gamma), s.square().sum(1)


def keep_intermediates(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    tmp2 = acc * x.buf1 + x.buf2
    return acc, tmp2, acc + tmp2.square()


def keep_preactivation(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    z = x.alpha * acc + x.beta * x.C + column(x.bias)
    return functional.gelu(z), z


def store_and_max(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    e = x.alpha * acc + x.C
    return e + column(x.bias).clamp(min=0), e


def batched_broadcasts(acc: Tensor, x: Inputs) -> Tensor:
    total: Tensor = acc + x.C + x.aux + x.aux_b + x.row[:, None, :] + x.col[:, :, None] + x.s[:, None, None]
    return total


def tanh_backward(acc: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    d = acc * (1 - x.y * x.y)
    return d, d.sum(0)


#: The meaning of each sample; ``x`` has its inputs in f64, omitted ones as their default.
MEANINGS: dict[str, Callable[[Tensor, Inputs], Tensor | tuple[Tensor, ...]]] = {
    "amax": lambda acc, x: (acc, acc.abs().max()),
    "batched_broadcasts": batched_broadcasts,
    "batchnorm_backward_statistics": batchnorm_backward,
    "column_maximum": lambda acc, x: (acc, acc.amax(0)),
    "conv_bias_residual_hardswish": lambda acc, x: (z := acc + x.bias + x.residual) * functional.relu6(z + 3) / 6,
    "fp8_conv_scale": lambda acc, x: x.scale * acc,
    "fp8_scaled_bias": lambda acc, x: (acc * x.b_scale) * column(x.a_scale) + x.bias,
    "fp8_two_scalars": lambda acc, x: x.scale_a * x.scale_b * acc,
    "gated_backward_moe": gated_backward,
    "int8_lincomb_f32": lambda acc, x: x.alpha * acc + x.beta * x.bias,
    "int8_lincomb_i32": lambda acc, x: x.alpha * acc + x.beta * x.bias,
    "int8_relu_requantise": lambda acc, x: integer(functional.relu(x.alpha * acc + x.beta * x.bias), 8),
    "int8_scaled_bias": lambda acc, x: column(x.x_scale) * (x.w_scale * acc) + x.bias,
    "int8_swiglu_pairs": int8_swiglu_pairs,
    "int8_two_scales": lambda acc, x: acc * x.w_scale * column(x.a_scale),
    "int8_zero_point_f32": lambda acc, x: (acc - x.bias0) * x.scale + x.bias1,
    "int8_zero_point_i32": lambda acc, x: (
        column(x.a_scales) * (x.b_scales * (acc - column(x.azp) * x.azp_adj)) + x.bias
    ),
    "integer_lincomb_column": lambda acc, x: x.alpha * acc + x.beta * column(x.C),
    "keep_intermediates": keep_intermediates,
    "keep_preactivation": keep_preactivation,
    "layernorm_backward_apply": layernorm_backward,
    "layernorm_statistics": lambda acc, x: (acc, acc.sum(1), acc.square().sum(1)),
    "lincomb_bias_clamp": lambda acc, x: torch.clamp(x.alpha * acc + x.bias + x.beta * x.C, x.lower, x.upper),
    "lincomb_bias_int8_conv": lambda acc, x: integer(functional.relu(x.alpha * acc + x.bias + x.beta * x.C), 32),
    "lincomb_block_scales": lincomb_block_scales,
    "lincomb_row_sums": lambda acc, x: ((v := half(x.alpha * acc + x.beta * x.C)), v.sum(1)),
    "linear_combination": lambda acc, x: x.alpha * acc + x.beta * x.C,
    "mixed_types": lambda acc, x: functional.relu(acc) * x.x + x.y,
    "moe_finalize": moe_finalize,
    "partial_product_scaled": lambda acc, x: (x.C + acc) * column(x.x_scale) * x.w_scale,
    "per_column_residual": lambda acc, x: x.beta * x.C + functional.silu(x.alpha * acc + x.bias),
    "relu_bitmask": relu_bitmask,
    "requantise_in_place": requantise,
    "residual_rms_producer": residual_rms,
    "reuse_after_tanh": lambda acc, x: torch.tanh(acc + x.b) + x.b,
    "rowwise_scaled_mm": lambda acc, x: x.bias + x.w_scale * (column(x.x_scale) * acc),
    "scale_and_bias": lambda acc, x: x.alpha * acc + x.bias,
    "squared_relu": squared_relu,
    "squared_relu_backward": squared_relu_backward,
    "store_and_max": store_and_max,
    "swiglu_block_scales": swiglu_block_scales,
    "swiglu_blocks": swiglu_blocks,
    "tanh_backward_column_sums": tanh_backward,
    "token_scale": lambda acc, x: x.token_scale * acc,
    "two_biases": lambda acc, x: x.alpha * acc + x.beta * x.C + x.bias_n + column(x.bias_m),
    "two_residuals": lambda acc, x: half(half(half(acc) + x.bias) + x.C1) + x.C2,
    "wgrad_accumulate": lambda acc, x: x.C + acc,
}
