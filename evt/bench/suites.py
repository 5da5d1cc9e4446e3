"""Cases by name: ``suite("gemm") -> cases``."""

from __future__ import annotations

from collections.abc import Iterator

from evt.bench.case import Case, convolution_case
from evt.diagnostics import Source
from evt.program import Program

#: The formula and the shapes of the performance bars.
FORMULA = "D = relu(alpha*acc + beta*C) + residual"
_SHAPES = ((6304, 3072, 768, 0.70), (16384, 1024, 1024, 0.70), (4096, 14336, 4096, 1.0))
_EPILOGUES = {
    "bias": "D = acc + bias",
    "bias+gelu": "D = gelu(acc + bias)",
    "two residuals": "D = acc + bias + residual_1 + residual_2",
    "row+column scale": "in scale_a: f32[m], scale_b: f32[n]\nD = scale_a * (scale_b * acc)",
    "aux store": "out D, Z\nZ = acc + bias\nD = gelu(Z)",
}

#: Epilogues whose costs are measured, the bare store first.
_COSTS = {
    "bare store": "D = acc",
    "bias": "D = acc + bias",
    "bias+gelu": "D = gelu(acc + bias)",
    "two residuals": "D = acc + residual_1 + residual_2",
    "row+column scale": "in scale_a: f32[m], scale_b: f32[n]\nD = scale_a * (scale_b * acc)",
    "aux store": "out D, Z\nZ = acc\nD = relu(acc)",
    "amax": "out D, amax: f32\nD = acc\namax = max[m, n](abs(acc))",
    "row sum": "out D, total: f32[m]\nD = acc\ntotal = sum[n](acc)",
    "column sum": "out D, total: f32[n]\nD = acc\ntotal = sum[m](acc)",
    "bit mask": "out D, mask: b1[m, n]\nD = relu(acc)\nmask = acc > 0",
    "dropout": "D = dropout(acc, 0.1, seed, offset)",
}
_COST_SHAPES = ((4096, 4096, 4096), (16384, 1024, 1024))

#: The epilogues of ResNet-50: those after a 3x3 and a 1x1 convolution, with the bar of each.
_RESIDUAL, _PLAIN = "D = relu(acc + bias) + residual", "D = relu(acc + bias)"
_BAR_3X3, _BAR_1X1 = 1.1, 0.80
#: (channels, output channels, output height and width): the 3x3 convolutions, and the 1x1 ones of the bottlenecks.
_SHAPES_3X3 = ((64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7))
_SHAPES_1X1 = (
    (64, 256, 56),
    (256, 64, 56),
    (128, 512, 28),
    (512, 128, 28),
    (256, 1024, 14),
    (1024, 256, 14),
    (512, 2048, 7),
    (2048, 512, 7),
)
IMAGES = 256  #: the batch size

SUITES = ("gemm", "epilogue", "resnet")


def suite(name: str, dtype: str | None = None, images: int = IMAGES) -> tuple[Case, ...]:
    """Return the cases of a suite; those of ``epilogue`` by size, the bare store first.

    ``dtype`` is bf16 by default, and f16 for ``resnet``, whose batch size is ``images``. Raise KeyError for a name
    that is not in :data:`SUITES`.
    """
    if name not in SUITES:
        raise KeyError(name)
    if name == "resnet":
        return tuple(_resnet(dtype or "f16", images))
    dtype = dtype or "bf16"
    if name == "epilogue":
        programs = {title: Program(Source(text)) for title, text in _COSTS.items()}
        return tuple(
            Case(title, program, m, n, k, dtype=dtype)
            for m, n, k in _COST_SHAPES
            for title, program in programs.items()
        )
    main = Program(Source(FORMULA))
    cases = [Case("relu+residual", main, m, n, k, dtype=dtype, bar=bar) for m, n, k, bar in _SHAPES]
    for title, text in _EPILOGUES.items():
        program = Program(Source(text))
        cases += [Case(title, program, m, n, k, dtype=dtype) for m, n, k, _ in _SHAPES[:2]]
    return tuple(cases)


def _resnet(dtype: str, images: int) -> Iterator[Case]:
    """Yield the convolutions of ResNet-50's bottlenecks; cases of one text and geometry share a program."""
    groups = (
        (3, _SHAPES_3X3, _RESIDUAL, "relu+residual", _BAR_3X3),
        (1, _SHAPES_1X1, _RESIDUAL, "relu+residual", _BAR_1X1),
        (1, _SHAPES_1X1, _PLAIN, "relu", _BAR_1X1),
    )
    for taps, sizes, text, title, bar in groups:
        program = Program(Source(text), "conv2d", padding=taps // 2)
        for channels, filters, side in sizes:
            shapes = (images, channels, side, side), (filters, channels, taps, taps)
            name = f"{taps}x{taps} {channels}->{filters} @{side} {title}"
            yield convolution_case(name, program, shapes, dtype=dtype, bar=bar)
