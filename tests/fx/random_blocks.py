"""Random blocks of models in 16 bits: ``check(seed)`` compares one compiled with one in float64.

A block is a norm, readers of the norm, and a residual. Readers are attention, gated units of one weight or of two, and
feed-forward layers. Each linear layer has a bias or none. Blocks share norms, scale residuals, and take shifts and
scales of a condition. Only products of 16 bits have a second product beside them in their kernel.

    python -m tests.fx.random_blocks --count 1000
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from evt.fx.records import RECORDS

from .seeds import Value, check_seeds
from .training import fused

WIDTH, HEADS = 16, 2
#: The largest error relative to eager's, and to the norm of the result.
_FACTOR, _ERROR = 2.0, 2e-3
_ACTIVATIONS: Sequence[Callable[[Value], Value]] = (
    functional.silu, functional.gelu, torch.relu, torch.sigmoid, torch.tanh, lambda x: x,
    lambda x: functional.gelu(x, approximate="tanh"), lambda x: functional.relu(x).square(),
)  # fmt: skip


class _WrittenNorm(nn.Module):
    """An RMS norm in float32, as models of transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Value) -> Value:
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        result: Value = self.weight * wide.to(x.dtype)
        return result


class _Attention(nn.Module):
    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self.whole, self.causal = choose.random() < 0.5, choose.random() < 0.5
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, choose.random() < 0.5)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, choose.random() < 0.5) for _ in range(3))
        self.norm = nn.RMSNorm(WIDTH // HEADS) if choose.random() < 0.3 else nn.Identity()
        self.out = nn.Linear(WIDTH, WIDTH, choose.random() < 0.5)

    def forward(self, x: Value) -> Value:
        parts = self.qkv(x).chunk(3, -1) if self.whole else [part(x) for part in self.parts]
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(self.norm(q), self.norm(k), v, is_causal=self.causal)
        result: Value = self.out(y.transpose(1, 2).flatten(2))
        return result


class _Gated(nn.Module):
    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        hidden = choose.choice([8, 24, 28])
        self.kind, self.swapped = choose.choice(["two", "two", "halves", "slices", "glu"]), choose.random() < 0.5
        self.gate, self.up = (nn.Linear(WIDTH, hidden, choose.random() < 0.5) for _ in range(2))
        self.both = nn.Linear(WIDTH, 2 * hidden, choose.random() < 0.5)
        self.down = nn.Linear(hidden, WIDTH, choose.random() < 0.5)
        self.activation, self.hidden = choose.choice(_ACTIVATIONS), hidden

    def forward(self, x: Value) -> Value:
        if self.kind == "glu":
            y = functional.glu(self.both(x))
        else:
            gate, up = (self.gate(x), self.up(x)) if self.kind == "two" else self.halves(self.both(x))
            y = up * self.activation(gate) if self.swapped else self.activation(gate) * up
        result: Value = self.down(y)
        return result

    def halves(self, y: Value) -> Sequence[Value]:
        return y.chunk(2, -1) if self.kind == "halves" else (y[..., self.hidden :], y[..., : self.hidden])


class _Forward(nn.Module):
    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(*sizes, choose.random() < 0.5) for sizes in ((WIDTH, 40), (40, WIDTH)))
        self.activation = choose.choice(_ACTIVATIONS)

    def forward(self, x: Value) -> Value:
        result: Value = self.down(self.activation(self.up(x)))
        return result


class _Block(nn.Module):
    """``x + scale * sum of reader(norm(x))``, perhaps with a shift and scales of the condition."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        norms = (lambda: nn.LayerNorm(WIDTH), lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), _WrittenNorm)
        self.norm = choose.choice([*norms, lambda: nn.RMSNorm(WIDTH), nn.Identity])()
        self.readers = nn.ModuleList(
            choose.choice([_Attention, _Gated, _Gated, _Forward])(choose) for _ in range(choose.choice([1, 1, 2]))
        )
        self.conditioned = nn.Linear(WIDTH, 3 * WIDTH) if choose.random() < 0.2 else None
        self.scale = nn.Parameter(torch.rand(WIDTH)) if choose.random() < 0.3 else None
        self.after = nn.RMSNorm(WIDTH) if choose.random() < 0.2 else nn.Identity()

    def forward(self, x: Value, condition: Value) -> Value:
        y = self.norm(x)
        if self.conditioned is not None:
            shift, factor, gate = self.conditioned(functional.silu(condition))[:, None].chunk(3, -1)
            y = y * (1 + factor) + shift
        y = sum((reader(y) for reader in self.readers), torch.zeros((), dtype=x.dtype))
        y = self.after(y if self.scale is None else y * self.scale)
        return x + (y if self.conditioned is None else y * gate)


class _Blocks(nn.Module):
    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(choose) for _ in range(choose.choice([1, 2, 2])))
        self.stream = choose.choice(["x", "x", "every"])

    def forward(self, x: Value, condition: Value) -> tuple[Value, ...]:
        found = []
        for block in self.blocks:
            x = block(x, condition)
            found.append(x)
        return tuple(found) if self.stream == "every" else (x,)


def check(seed: int) -> int:
    """Assert that random blocks are as near to float64 compiled as in eager mode; return how many regions they have."""
    model, inputs, dynamic = make(seed)
    exact = copy.deepcopy(model).double()
    RECORDS.clear()
    torch._dynamo.reset()
    made = fused(model, dynamic)
    with torch.no_grad():
        for given in inputs:
            wanted = exact(*(each.double() for each in given))
            for got, eager, want in zip(made(*given), model(*given), wanted, strict=True):
                assert (got.dtype, got.shape) == (eager.dtype, eager.shape)
                errors = [float((each.double() - want).norm()) for each in (got, eager)]
                assert errors[0] <= _FACTOR * errors[1] + _ERROR * float(want.norm()), errors
    return sum(row.fused for record in RECORDS for row in record.rows)


def make(seed: int) -> tuple[nn.Module, list[tuple[Value, Value]], bool]:
    """Return random blocks, inputs for some calls, and whether their sizes are symbolic."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    dtype, dynamic = choose.choice([torch.bfloat16, torch.float16]), choose.random() < 0.2
    model = _Blocks(choose).to(dtype).eval()
    batch = choose.randint(1, 3)
    lengths = [choose.randint(1, 9) for _ in range(3 if dynamic else 1)]
    return (
        model,
        [(torch.randn(batch, n, WIDTH).to(dtype), torch.randn(batch, WIDTH).to(dtype)) for n in lengths],
        dynamic,
    )


if __name__ == "__main__":
    check_seeds(__doc__, {"fused": check})
