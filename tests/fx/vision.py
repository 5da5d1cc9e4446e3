"""Models of our own as torchvision has them: ResNets and a vision transformer, small enough for a CPU."""

from __future__ import annotations

import torch
from torch import nn


def _norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm with other statistics than a fresh one."""
    made = nn.BatchNorm2d(channels)
    nn.init.uniform_(made.running_mean, -0.5, 0.5)
    nn.init.uniform_(made.running_var, 0.5, 1.5)
    nn.init.uniform_(made.weight, 0.5, 1.0)
    nn.init.uniform_(made.bias, -0.2, 0.2)
    return made


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = _norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = _norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(channels, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = _norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = _norm(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = _norm(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(channels, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


def _shortcut(channels: int, out: int, stride: int) -> nn.Module | None:
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), _norm(out))


class ResNet(nn.Module):
    """A residual network, with a sixteenth of the usual channels."""

    def __init__(self, block: type[BasicBlock | _Bottleneck], layers: tuple[int, ...], width: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = _norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        channels, blocks = width, []
        for stage, count in enumerate(layers):
            for place in range(count):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(block(channels, width * 2**stage, stride))
                channels = width * 2**stage * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.relu(self.bn1(self.conv1(x)))))
        out: torch.Tensor = self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))
        return out


def resnet18() -> nn.Module:
    return ResNet(BasicBlock, (2, 2, 2, 2)).eval()


def resnet50() -> nn.Module:
    return ResNet(_Bottleneck, (3, 4, 6, 3)).eval()


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """Patches of 8x8 pixels, a class token, and layers that normalise first."""

    def __init__(self, width: int = 32, layers: int = 3, heads: int = 4, size: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // 8) ** 2 + 1, width))
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        out: torch.Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return out


def vit() -> nn.Module:
    return VisionTransformer().eval()
