"""Decoders of variational autoencoders.

The decoder of images follows Rombach et al. 2022, High-Resolution Image Synthesis with Latent Diffusion Models. The
decoder of videos is causal in time as in Yu et al. 2024, Language Model Beats Diffusion.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _CausalConv3d(nn.Conv3d):
    """A convolution of [N, C, T, H, W] that pads time before the first frame only."""

    def __init__(self, channels: int, width: int, size: int = 3) -> None:
        super().__init__(channels, width, size, padding=(0, size // 2, size // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = self.kernel_size[0] - 1
        return super().forward(functional.pad(x, (0, 0, 0, 0, frames, 0)) if frames else x)


class _ChannelNorm(nn.Module):
    """Divide each pixel by the root mean square of its channels, and multiply each channel by a weight."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: float = x.shape[1] ** 0.5
        return functional.normalize(x, dim=1) * scale * self.weight.reshape(-1, 1, 1, 1)


def _conv(volume: bool, channels: int, width: int, size: int = 3) -> nn.Module:
    if volume:
        return _CausalConv3d(channels, width, size)
    return nn.Conv2d(channels, width, size, padding=size // 2)


def _norm(volume: bool, channels: int) -> nn.Module:
    return _ChannelNorm(channels) if volume else nn.GroupNorm(32, channels, eps=1e-6)


class ResidualBlock(nn.Module):
    """Norm, SiLU and convolution, twice, and the input or a 1x1 convolution of it added."""

    def __init__(self, channels: int, width: int, *, volume: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(_norm(volume, channels), nn.SiLU(), _conv(volume, channels, width))
        self.second = nn.Sequential(_norm(volume, width), nn.SiLU(), _conv(volume, width, width))
        self.beside = nn.Identity() if channels == width else _conv(volume, channels, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.beside(x) + self.second(self.first(x))
        return result


class _Attention(nn.Module):
    """Attention with one head over the pixels of an image, and the image added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.project = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.norm(x).permute(0, 2, 3, 1).flatten(1, 2)
        q, k, v = self.project(rows).chunk(3, -1)
        rows = self.out(functional.scaled_dot_product_attention(q, k, v))
        return x + rows.transpose(1, 2).reshape(x.shape)


class Decoder(nn.Module):
    """Latents to pixels: [N, C, H, W] to [N, 3, 8H, 8W], or with ``volume`` [N, C, T, H, W] to [N, 3, 4T, 8H, 8W].

    Each of four levels has three residual blocks. The last three levels begin with nearest upsampling and a
    convolution; the first two of these upsample time as well.
    """

    def __init__(
        self, latents: int = 4, widths: tuple[int, ...] = (512, 512, 256, 128), *, volume: bool = False
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            _conv(volume, latents, widths[0]),
            ResidualBlock(widths[0], widths[0], volume=volume),
        ]
        if not volume:
            layers.append(_Attention(widths[0]))
        layers.append(ResidualBlock(widths[0], widths[0], volume=volume))
        for level, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            if level:
                grow = (2 if level < 3 else 1, 2, 2) if volume else (2, 2)
                layers += [nn.Upsample(scale_factor=tuple(map(float, grow))), _conv(volume, before, before)]
            layers += [ResidualBlock(before if not block else width, width, volume=volume) for block in range(3)]
        layers += [_norm(volume, widths[-1]), nn.SiLU(), _conv(volume, widths[-1], 3)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels: torch.Tensor = self.layers(x)
        return pixels
