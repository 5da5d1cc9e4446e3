"""Programs of many features of the language together, and data for them.

Operands are small whole numbers, so that accumulators are exact, and with them places, comparisons and whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import evt
from evt.ir.dag import index_inputs
from evt.ir.dtype import BY_NAME
from evt.ir.node import base, divisor, index_of
from evt.request import typed_graph


@dataclass(frozen=True)
class Case:
    """A program, the type of A and B, and the sizes (batch, m, n, k); ``views``: strides of all kinds."""

    text: str
    dtype: str
    sizes: tuple[tuple[int, ...], int, int, int] = ((), 203, 192, 96)
    operation: str = "gemm"
    views: bool = False


CASES = {
    "tokens": Case(
        "in x: bf16[index[m], n], w: f32[index[m]], on: bool[m], count: i64[m]\n"
        "out D[to[m], n], rms: f32[m], best: i32[m], any: bool[n], total: i32\n"
        "D = where(on, acc*w + x, 0)\n"
        "rms = where(on, rsqrt(sum[n](acc*acc)/size(n) + 0.5*count), 0)\n"
        "best = argmax[n](acc) + count; any = max[m](acc > 30); total = sum[m, n](acc > 0)",
        "bf16",
        ((), 203, 160, 88),
    ),
    "rotary": Case(
        "in c: f32[m, n/2], s: f16[m, n/2], mask: bool[m, n]\n"
        "out D, amax: f32[m, n/64], joined: bf16[m, n/2], top: f32[n/2], where_top: i32[n]\n"
        "x = even(acc); y = odd(acc)\n"
        "D = where(mask, interleave(x*c - y*s, x*s + y*c), 0)\n"
        "amax = max[n%64](abs(acc)); joined = x*y/64; top = max[m](x); where_top = argmin[m](acc)",
        "f16",
    ),
    "far pairs": Case(
        "in g: bf16[m, n/2], b: f32[q[n]], on: bool[n]\n"
        "out D, w: f32[m, n/64], least: bool[m], sums: f32[n/64]\n"
        "z = acc + where(on, b, 1)\n"
        "D = interleave(even(z, 32)*g, odd(z, 32), 32)\n"
        "w = max[n%32](abs(even(z, 32))); least = min[n](on && z > -20); sums = sum[m](w)",
        "bf16",
    ),
    "statistics": Case(
        "in zero: i64[l, m], on: bool[m], scale: bool\n"
        "out s: i32[m], best: i32[n], average: f32[m], any: bool, t: f16[n]\n"
        "s = sum[n](acc*on) - zero; best = argmax[m](where(on, acc, -1000)) + 1\n"
        "average = mean[n](acc)*where(scale, 0.25, 2) + zero; any = max[m, n](acc > 100); t = max[m](acc)",
        "i8",
        ((3,), 135, 144, 80),
    ),
    "quantised": Case(
        "in on: bool[m], most: i64\n"
        "out D: e4m3[m, n], sf: f32[m, n/128], keep: bool[m, n], first: i32[m], amax: f32\n"
        "a = max[n%128](abs(acc)); sf = a/448\n"
        "D = where(on, acc*(448/max(a, 1)), 0); keep = acc > 0 && on\n"
        "first = min(argmax[n](acc > 5), most); amax = max[m, n](abs(acc))",
        "e4m3",
        ((), 203, 256, 112),
    ),
    "random": Case(
        "in seed: i64, offset: i64, given: b1[l, m, n], on: bool[l]\n"
        "out D, keep: bool[m, n], bits: b1[m, n], kept: i32[m], r: f32[m, n/32]\n"
        "keep = rand(seed, offset) >= 0.25; bits = keep && acc > 0\n"
        "D = where(keep && given && on, acc/0.75, -1); kept = sum[n](keep)\n"
        "r = max[n%32](rand(seed, 3))",
        "f16",
        ((3,), 136, 160, 80),
    ),
    "other shapes": Case(
        "in s: f32[m], on: bool[n], big: i64[m]\n"
        "out D: f32[n, m], E: bf16[n, index[m]], rows: f32[m], columns: f16[n], one: f32, yes: bool[n]\n"
        "D = acc*s; E = where(on, D, big); rows = sqrt(s*s)*alpha + big; columns = where(on, 2, bias)\n"
        "one = 3*alpha + size(k); yes = on || bias > 1",
        "f32",
        ((), 204, 156, 84),
        "linear",
    ),
    "blocks of inputs": Case(
        "in x: bf16[m, n], q: i8[m, n], on: bool[m, n]\n"
        "out D, w: f32[m, n/16], sums: i32[m, n/32], count: i32[m, n/8]\n"
        "w = max[n%16](x); sums = sum[n%32](q); count = sum[n%8](on); D = acc + w + sums",
        "f16",
    ),
    "truth values in blocks": Case(
        "in on: bool[m]\n"
        "out D, most: f32[m, n/32], count: i32[m, n/16], every: bool[m, n/8], none: f16[m, n/64]\n"
        "most = max[n%32](acc > 40); count = sum[n%16](acc > 0); every = min[n%8](on || acc > -30)\n"
        "none = max[n%32](even(on && 2 < 1)); D = acc + count + most",
        "f16",
    ),
    "moments": Case(  # the mean is 1,000 standard deviations
        "out D, mu: f32[m], rstd: f32[m], centre: f32[l, n], spread: f32[l, n], evens: f32[n/2]\n"
        "out all: f32[], w: f32[m, n/32]\n"
        "x = acc + 20000; D = acc\n"
        "mu = mean[n](x); rstd = rsqrt(var[n](x) + 0.00001); centre = mean[m](x); spread = sqrt(var[m](x, 1))\n"
        "evens = var[m](even(x)); all = var[l, m, n](x); w = var[n%32](x)",
        "f16",
        ((3,), 135, 160, 80),
    ),
    "moments of pixels": Case(
        "in on: bool[m]\n"
        "out D, centre: f32[n], spread: f32[n], mu: f16[m], all: f32\n"
        "D = acc; x = where(on, acc, 1000*acc)\n"
        "centre = mean[m](acc + 50000); spread = var[m](acc + 50000); mu = mean[n](x)/sqrt(var[n](x))\n"
        "all = var[m, n](x, 1)",
        "f16",
        operation="conv2d",
    ),
    "pixels": Case(
        "in mask: bool[m, n], x: f16[index[m], n], on: bool[m], count: i64[n]\n"
        "out D, best: i32[m], average: f32[n], hits: i32[n]\n"
        "D = where(mask, relu(acc + bias), x*on); best = argmax[n](acc)\n"
        "average = mean[m](acc) + count; hits = sum[m](mask)",
        "f16",
        operation="conv2d",
    ),
    "channels": Case(
        "in s: f32[n], on: bool[m]\n"
        "out D, w: f32[m, n/32], joined: f32[m, n/2], top: bool[n]\n"
        "x = even(acc*s); y = odd(acc)\n"
        "D = interleave(where(on, x, y), x + y); w = max[n%32](abs(acc)); joined = x - y; top = max[m](acc > 10)",
        "bf16",
        operation="conv2d",
    ),
    "views": Case(
        "in mask: bool[l, m, n], s: i64[m], b: bool[n], x: f32[l, n, m]\n"
        "out D: f32[m, n], E: f32[n, m], joined: f16[m, n/2]\n"
        "D = where(mask, acc*s + x, b); E = D > x; joined = even(acc) + odd(acc)",
        "f16",
        ((2, 3), 136, 160, 80),
        views=True,
    ),
}
ROWS = 251


def program(name: str, family: str) -> evt.Program:
    case = CASES[name]
    prefix = "conv-" if case.operation == "conv2d" else ""
    return getattr(evt, case.operation)(case.text, route=f"{prefix}evt-{family}")


def random(shape, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """Return quarters, of integers small ones and of i64 now and then one beyond i32; bits of b1."""
    low, high = {"bool": (0, 2), "u8": (0, 5), "i64": (0, 6), "b1": (0, 256)}.get(dtype, (-12, 13))
    made = torch.randint(low, high, tuple(shape), device=generator.device, generator=generator).double()
    made = made / 4 if BY_NAME[dtype].is_float else made
    if dtype == "i64" and made.numel() > 4:
        made.view(-1)[3] = 2.0**40
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same values and other strides: rows and columns with gaps, all batches between rows."""
    *lead, rows, columns = tensor.shape if tensor.dim() > 1 else (1, *tensor.shape)
    larger = torch.zeros(rows, *lead, columns + 8, dtype=tensor.dtype, device=tensor.device)
    part = larger[..., :columns].movedim(0, -2)
    part.copy_(tensor)
    return part if tensor.dim() > 1 else part[0]


def tensors(name: str, op: evt.Program, device: str):
    """Return A, B, the inputs, and buffers for scattered outputs."""
    case = CASES[name]
    generator = torch.Generator(device).manual_seed(len(name))

    def whole(*shape):
        made = torch.randint(-2, 3, shape, device=generator.device, generator=generator)
        return made.to(getattr(torch, BY_NAME[case.dtype].torch))

    batch, m, n, k = case.sizes
    image = case.operation == "conv2d"
    if image:
        a, b = evt.channels_last(whole(2, 32, 13, 11)), evt.channels_last(whole(96, 32, 3, 3))
        m, n = 2 * 11 * 9, 96
    else:
        a, b = whole(*batch, m, k), whole(n, k)
        b = b if case.operation == "linear" else b.T if BY_NAME[case.dtype].bits == 8 else b.T.contiguous()
    typed = typed_graph(op.request, case.dtype, case.dtype)
    sizes = {"m": (m,), "n": (n,), "l": batch or (1,)}
    scattered = {index_of(mode) for output in typed.outputs for mode in output.modes} - {""}

    def shape_of(value):
        groups = [
            (ROWS,) if index_of(mode) else tuple(size // divisor(mode) for size in sizes[base(mode)])
            for mode in value.modes
        ]
        return [size for group in groups for size in group]

    inputs: dict[str, Any] = {}
    for value in typed.inputs:
        shape, dtype = shape_of(value), str(value.dtype)
        if dtype == "b1":
            shape = [*shape[:-1], -(-shape[-1] // 8)]
        if value.batchable:
            shape = [*batch, *shape]
        if value.name in ("seed", "offset"):
            inputs[value.name] = 2**63 - 5 if value.name == "seed" else -(2**40)
        elif value.name in index_inputs(typed):
            at = torch.randperm(ROWS, device=generator.device, generator=generator)[: shape[0]].to(torch.int32)
            at = at if value.name in scattered else at // 2
            at[:2] = torch.tensor([-1, ROWS], device=device)
            inputs[value.name] = at
        else:
            inputs[value.name] = random(shape, dtype, generator)
        if image and value.modes == ("m",):
            inputs[value.name] = inputs[value.name].reshape(2, 11, 9)
        elif image and value.modes == ("m", "n"):
            inputs[value.name] = inputs[value.name].reshape(2, 11, 9, n).movedim(-1, 1)
    if case.views:
        a = moved(a)
        inputs = {key: value if "/" in str(value.shape) else moved(value) for key, value in inputs.items()}
    held = {each.name: random(shape_of(each), str(each.dtype), generator) for each in typed.outputs if each.is_indexed}
    return a, b, inputs, held


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).fill_(float("nan") if tensor.dtype.is_floating_point else 0x55)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
