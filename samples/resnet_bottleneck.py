"""A ResNet bottleneck as three convolutions with fused epilogues: ``python samples/resnet_bottleneck.py``.

The convolutions are 1x1 with relu, 3x3 with relu, and 1x1 with the shortcut added before relu. The scales of the batch
norms are folded into the weights, and the rest into biases. On a CUDA GPU the kernels run, at batch 256; elsewhere the
PyTorch reference computes a small problem. The results of evt and of PyTorch's modules are compared with float64.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import evt

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.bfloat16
#: Images, pixels along a side, channels, channels of the 3x3 convolution.
PROBLEM = (256, 56, 256, 64) if DEVICE == "cuda" else (2, 14, 64, 16)


class Bottleneck(nn.Module):
    """The block as nine PyTorch operations."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        sizes = ((channels, width, 1), (width, width, 3), (width, channels, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(c, k, taps, padding="same", bias=False) for c, k, taps in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(k) for _, k, _ in sizes)
        for norm in self.norms:  # as if it had been trained
            norm.weight.data.uniform_(0.5, 1.5)
            norm.bias.data.normal_()
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        """Run the operations in order."""
        y = x
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = torch.relu(y + x if number == 2 else y)
        return y


class Fused:
    """The block as three kernels, one for each convolution."""

    def __init__(self, block: Bottleneck) -> None:
        self.weights, self.biases = zip(*map(folded, block.convolutions, block.norms), strict=True)
        self.first = evt.conv2d("D = relu(acc + bias)")
        self.second = evt.conv2d("D = relu(acc + bias)", padding=1)
        self.third = evt.conv2d("D = relu(acc + bias + shortcut)")

    def __call__(self, x: Tensor) -> Tensor:
        y = self.first(x, self.weights[0], bias=self.biases[0])
        y = self.second(y, self.weights[1], bias=self.biases[1])
        return self.third(y, self.weights[2], bias=self.biases[2], shortcut=x)


def folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the channels_last weight and the bias of a convolution with the norm after it folded in."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = convolution.weight * scale[:, None, None, None]
    bias = norm.bias - norm.running_mean * scale
    return evt.channels_last(weight.detach().to(DTYPE)), bias.detach().to(DTYPE)


@torch.no_grad()
def main() -> None:
    """Compare the two blocks, and print the kernels of the fused one."""
    torch.manual_seed(0)
    images, pixels, channels, width = PROBLEM
    block = Bottleneck(channels, width).eval().to(DEVICE)
    x = evt.channels_last(torch.randn(images, channels, pixels, pixels, device=DEVICE, dtype=DTYPE))
    fused = Fused(block)

    few = x[:8].double()  # float64 is slow on GPUs
    exact = copy.deepcopy(block).double()(few)
    eager = copy.deepcopy(block).to(DTYPE)(x)
    for name, found in (("evt", fused(x)), ("PyTorch", eager)):
        error = float((found[:8].double() - exact).norm() / exact.norm())
        print(f"{name}: {list(found.shape)}, relative error {error:.1e}")
        assert error < 1e-2
    for op, weight in zip((fused.first, fused.second, fused.third), fused.weights, strict=True):
        shape = (images, weight.shape[1], pixels, pixels)
        plan = op.plan("sm90", shapes=(shape, weight.shape))
        print(f"{weight.shape[2]}x{weight.shape[3]} on sm90: {plan.template}, {plan.config.name}")


if __name__ == "__main__":
    main()
