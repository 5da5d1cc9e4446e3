"""One epilogue for a linear map and for convolutions: ``python samples/one_epilogue.py``.

A convolution is a matrix product: a row of D is an output pixel, and a row of A holds the pixels under the filter. So
the same formula, loaded once as ``linear`` and once as ``conv2d``, gives the same numbers. For 1x1 filters the rows of
A are the pixels; for 3x3 filters they are the patches of torch.nn.functional.unfold.
On a CUDA GPU the kernels run; elsewhere the PyTorch reference does.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional

import evt

EPILOGUE = Path(__file__).with_suffix(".evt")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMAGES, CHANNELS, FILTERS, PIXELS = 2, 32, 48, 12


def compare(taps: int) -> None:
    """Compare the convolution by a ``taps`` x ``taps`` filter with the linear map of its patches."""
    kind = {"device": DEVICE, "dtype": torch.float16}
    x = evt.channels_last(torch.randn(IMAGES, CHANNELS, PIXELS, PIXELS, **kind))
    weight = evt.channels_last(torch.randn(FILTERS, CHANNELS, taps, taps, **kind) / (CHANNELS * taps * taps) ** 0.5)
    residual = evt.channels_last(torch.randn(IMAGES, FILTERS, PIXELS, PIXELS, **kind))
    vectors = {name: torch.rand(FILTERS, device=DEVICE) for name in ("scale", "bias")}

    conv = evt.load(EPILOGUE, "conv2d", padding="same")
    of_images = conv(x, weight, residual=residual, **vectors)

    linear = evt.load(EPILOGUE, "linear")
    patches = functional.unfold(x, taps, padding=taps // 2).mT.contiguous()  # [N, pixels, C * taps]
    rows = residual.flatten(2).mT.contiguous()  # [N, pixels, K]
    of_rows = linear(patches, weight.flatten(1).contiguous(), residual=rows, **vectors)

    as_images = of_rows.D.mT.unflatten(2, (PIXELS, PIXELS))
    difference = float((as_images.double() - of_images.D.double()).norm() / of_images.D.double().norm())
    print(f"{taps}x{taps} filters: peaks {float(of_images.peak):.4f} and {float(of_rows.peak):.4f},", end=" ")
    print(f"relative difference {difference:.1e}")
    assert difference < 5e-4


def main() -> None:
    """Compare the results, and print the kernel of each operation."""
    torch.manual_seed(0)
    for taps in (1, 3):
        compare(taps)
    shapes = ((IMAGES, CHANNELS, PIXELS, PIXELS), (FILTERS, CHANNELS, 3, 3))
    for name, plan in (
        ("linear", evt.load(EPILOGUE, "linear").plan("sm90")),
        ("conv2d, 1x1", evt.load(EPILOGUE, "conv2d").plan("sm90", shapes=(shapes[0], (FILTERS, CHANNELS, 1, 1)))),
        ("conv2d, 3x3", evt.load(EPILOGUE, "conv2d", padding="same").plan("sm90", shapes=shapes)),
    ):
        print(f"{name} on sm90: {plan.template}, {plan.config.name}")


if __name__ == "__main__":
    main()
