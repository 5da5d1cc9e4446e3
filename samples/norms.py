"""A layer norm inside the two products around it: ``python samples/norms.py``.

The first product stores the residual stream, and the mean and 1/sigma of each row. The second product reads x
without normalisation; the norm is a row factor and a correction of rank one in its epilogue:

    layer_norm(x, g, b) @ W.T  =  rstd[m] * (x @ V.T - mean[m]*sums[n]) + constant[n]

V is g*W less the mean of each row, ``sums`` are the sums of V's rows after rounding, and ``constant`` is W @ b. The
rows may have large means: the example adds 100 standard deviations.
On a CUDA GPU the kernels run; elsewhere the PyTorch reference does.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional

import evt

HERE = Path(__file__).parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WIDTH, HIDDEN, EPS = 200, 256, 512, 1e-5
KIND = {"device": DEVICE, "dtype": torch.bfloat16}


def fold(
    weight: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return V, its row sums after rounding, and the constant."""
    scaled = weight.float() * gain.float()
    folded = (scaled - scaled.mean(1, keepdim=True)).to(weight.dtype)
    return folded, folded.float().sum(1), weight.float() @ shift.float() + bias.float()


def main() -> None:
    """Compare both products with PyTorch's in float64, beside eager PyTorch in bfloat16."""
    torch.manual_seed(0)
    a, residual = torch.randn(ROWS, WIDTH, **KIND), 100 + torch.randn(ROWS, WIDTH, **KIND)
    down, up = torch.randn(WIDTH, WIDTH, **KIND) / WIDTH**0.5, torch.randn(HIDDEN, WIDTH, **KIND) / WIDTH**0.5
    bias, gain, shift = torch.randn(WIDTH, **KIND), 1 + torch.randn(WIDTH, **KIND) / 5, torch.randn(WIDTH, **KIND)
    up_bias = torch.randn(HIDDEN, **KIND)

    moments = evt.load(HERE / "norm_moments.evt", "linear")
    stream = moments(a, down, bias=bias, residual=residual, eps=EPS)
    applied = evt.load(HERE / "norm_applied.evt", "linear")
    folded, sums, constant = fold(up, gain, shift, up_bias)
    found = applied(stream.D, folded, mean=stream.mean, rstd=stream.rstd, sums=sums, constant=constant)

    def rest(x: torch.Tensor) -> torch.Tensor:
        scale, offset, weight, last = (each.to(x.dtype) for each in (gain, shift, up, up_bias))
        return functional.gelu(functional.linear(functional.layer_norm(x, (WIDTH,), scale, offset, EPS), weight, last))

    exact = rest(stream.D.double())
    for name, each in (("evt", found), ("eager PyTorch", rest(stream.D))):
        print(f"{name}: relative error {float((each.double() - exact).norm() / exact.norm()):.1e}")


if __name__ == "__main__":
    main()
