"""The convolutions of common networks: ``NETWORKS["resnet"].layers``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """A square convolution, padded so that it keeps the image's size at stride 1; ``side`` is the input's."""

    taps: int
    channels: int
    filters: int
    side: int
    stride: int = 1
    groups: int = 1

    @property
    def padding(self) -> int:
        return self.taps // 2

    def __str__(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        channels = f"{self.channels}->{self.filters}" if self.groups == 1 else f"{self.channels} depthwise"
        return f"{self.taps}x{self.taps}{stride} {channels} @{self.side}"


@dataclass(frozen=True, slots=True)
class Network:
    """The distinct layers of a network, and its usual batch size."""

    images: int
    layers: tuple[Layer, ...]


def _bottlenecks(side: int, channels: int, width: int, stride: int) -> tuple[Layer, ...]:
    """Return the layers of a stage of ResNet-50, whose second layer has the stride."""
    inside, wide = side // stride, 4 * width
    shortcut = Layer(1, channels, wide, side, stride)
    expand = Layer(1, width, wide, inside)
    layers = (
        Layer(1, channels, width, side),
        Layer(3, width, width, side, stride),
        Layer(3, width, width, inside),
        expand,
        shortcut,
        Layer(1, wide, width, inside),
    )
    return tuple(dict.fromkeys(layers))


def _depthwise(taps: int, channels: int, side: int, stride: int = 1) -> Layer:
    return Layer(taps, channels, channels, side, stride, groups=channels)


#: ResNet-50 v1.5 at 224 x 224 (torchvision), the U-Net of Stable Diffusion 1.5 at latents of 64 x 64, a detector like
#: YOLOv8-s at 640 x 640, and the depthwise layers of EfficientNet-B0, and of ConvNeXt-T, at 224 x 224.
NETWORKS = {
    "resnet": Network(
        256,
        (
            Layer(7, 3, 64, 224, 2),
            *_bottlenecks(56, 64, 64, 1),
            *_bottlenecks(56, 256, 128, 2),
            *_bottlenecks(28, 512, 256, 2),
            *_bottlenecks(14, 1024, 512, 2),
        ),
    ),
    "unet": Network(
        2,
        (
            Layer(3, 4, 320, 64),
            Layer(3, 320, 320, 64),
            Layer(3, 320, 320, 64, 2),
            Layer(3, 320, 640, 32),
            Layer(1, 320, 640, 32),
            Layer(3, 640, 640, 32),
            Layer(3, 640, 640, 32, 2),
            Layer(3, 640, 1280, 16),
            Layer(3, 1280, 1280, 16),
            Layer(3, 1280, 1280, 8),
            Layer(3, 2560, 1280, 16),
            Layer(3, 640, 320, 64),
        ),
    ),
    "detector": Network(
        1,
        (
            Layer(3, 3, 32, 640, 2),
            Layer(3, 32, 64, 320, 2),
            Layer(1, 64, 64, 160),
            Layer(3, 32, 32, 160),
            Layer(3, 64, 128, 160, 2),
            Layer(3, 64, 64, 80),
            Layer(3, 128, 256, 80, 2),
            Layer(3, 128, 128, 40),
            Layer(3, 256, 512, 40, 2),
            Layer(3, 256, 256, 20),
            Layer(1, 512, 512, 20),
        ),
    ),
    "depthwise": Network(
        32,
        (
            _depthwise(3, 32, 112),
            _depthwise(3, 96, 112, 2),
            _depthwise(3, 144, 56),
            _depthwise(5, 144, 56, 2),
            _depthwise(5, 240, 28),
            _depthwise(3, 240, 28, 2),
            _depthwise(3, 480, 14),
            _depthwise(5, 480, 14),
            _depthwise(5, 672, 14),
            _depthwise(5, 672, 14, 2),
            _depthwise(5, 1152, 7),
            _depthwise(3, 1152, 7),
            _depthwise(7, 96, 56),
            _depthwise(7, 192, 28),
            _depthwise(7, 384, 14),
            _depthwise(7, 768, 7),
        ),
    ),
}
