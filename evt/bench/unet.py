"""A U-Net for segmentation (Ronneberger, Fischer, Brox 2015), with batch norm."""

from __future__ import annotations

import torch
from torch import nn


def _twice(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions, each with batch norm and relu."""
    layers: list[nn.Module] = []
    for taken in (channels, width):
        layers += [nn.Conv2d(taken, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Images [N, 3, H, W] to scores [N, classes, H, W]; H and W are multiples of 2 to the number of widths less 1."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024), classes: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(_twice, (3, *widths), widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in reversed(widths[:-1]))
        self.up = nn.ModuleList(_twice(2 * each, each) for each in reversed(widths[:-1]))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for block in self.down:
            x = block(x if not kept else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for grow, block, beside in zip(self.grow, self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([beside, grow(x)], 1))
        scores: torch.Tensor = self.head(x)
        return scores
