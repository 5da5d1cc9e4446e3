"""Group norms and SiLU by one kernel: the graphs that are taken, the graphs that stay, and the compiled model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import evt.fx.backend
from evt.fx.choose import RegionPass
from evt.fx.fused_group_norms import GROUP_NORM, fuse_group_norms
from tests.fx.compiling import compiled, traced


class OnGpu(nn.GroupNorm):
    """A group norm by the operators of its decomposition for GPUs, which copies the image."""

    def forward(self, x: Tensor) -> Tensor:
        images, channels, *sides = x.shape
        wide = x.clone(memory_format=torch.contiguous_format).float()
        parts = wide.view(images, self.num_groups, channels // self.num_groups, -1)
        variance, mean = torch.var_mean(parts, (2, 3), correction=0, keepdim=True)
        made = ((parts - mean) * torch.rsqrt(variance + self.eps)).view(images, channels, *sides)
        if self.affine:
            made = made * self.weight[None, :, None, None] + self.bias[None, :, None, None]
        return made.to(x.dtype)


class Changed(nn.Module):
    """A norm whose result, statistics or SiLU have other readers."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.norm, self.conv, self.change = OnGpu(4, 32), nn.Conv2d(32, 16, 3), change

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.norm(x)
        if self.change == "sum":
            return self.conv(nn.functional.silu(y)) + y.sum()
        if self.change == "relu":
            return self.conv(y.relu())
        if self.change == "upsampled":
            return self.conv(nn.functional.interpolate(nn.functional.silu(y), scale_factor=1.5))
        return self.conv(y), y


def image(dtype: torch.dtype = torch.float16, channels: int = 32) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 9, 7) * 3 + 5
    return x.to(dtype).to(memory_format=torch.channels_last)


def fused(model: nn.Module, x: Tensor, joint: bool = False) -> tuple[GraphModule, list[tuple[object, ...]]]:
    """Return a model's graph after the pass, and the arguments of its norms behind the tensors.

    ``joint``: no tensor is converted to 16 bits and back, as Inductor's pass over the joint graph leaves it.
    """
    made = traced(model, x)
    for node in made.graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        if joint and node.args[1] == torch.float32 and node.args[0].target is node.target:
            node.args = (node.args[0].args[0], torch.float32)
    fuse_group_norms(made.graph, {"cpu"})
    made.recompile()
    return made, [each.args[3:] for each in made.graph.find_nodes(op="call_function", target=GROUP_NORM)]


@pytest.mark.parametrize(("silu", "joint"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_norm_and_its_silu_are_one_operator(dtype: torch.dtype, affine: bool, silu: bool, joint: bool) -> None:
    norm = OnGpu(4, 32, eps=1e-6, affine=affine)
    for each in norm.parameters():
        nn.init.normal_(each)
    model = nn.Sequential(norm, *[nn.SiLU()] * silu, nn.Conv2d(32, 16, 3)).to(dtype)
    x = image(dtype)
    made, found = fused(model, x, joint)
    assert found == [(4, 1e-6, silu)]
    assert not made.graph.find_nodes(op="call_function", target=torch.ops.aten.var_mean.correction)
    exact = copy.deepcopy(model).double()(x.double())
    errors = [(each.double() - exact).norm() / exact.norm() for each in (made(x), model(x))]
    assert errors[0] <= 1.2 * errors[1]


@pytest.mark.parametrize(
    "stays", ["sum", "relu", "upsampled", "float32", "contiguous", "few channels", "other device", "double gain"]
)
def test_norms_that_stay_with_inductor(stays: str) -> None:
    """Inductor's kernel computes the norm's other readers at the same time, or the kernel has no such image."""
    norm = nn.Sequential(OnGpu(8 if stays == "few channels" else 4, 32), nn.Conv2d(32, 16, 3))
    model: nn.Module = Changed(stays) if stays in ("sum", "relu", "upsampled") else norm
    dtype = torch.float32 if stays == "float32" else torch.float16
    model, x = model.to(dtype), image(dtype)
    if stays == "double gain":
        norm[0].double()
    x = x.contiguous() if stays == "contiguous" else x
    if stays == "other device":
        made = traced(model, x)
        fuse_group_norms(made.graph, {"cuda"})
        assert not made.graph.find_nodes(op="call_function", target=GROUP_NORM)
    else:
        assert not fused(model, x)[1]


def test_a_result_of_the_graph_is_a_norm() -> None:
    assert fused(Changed("result").half(), image())[1] == [(4, 1e-5, False)]


def test_gains_of_float32_are_read_as_they_are() -> None:
    model = OnGpu(4, 32)
    made, found = fused(model, image())
    assert found == [(4, 1e-5, False)]
    (node,) = made.graph.find_nodes(op="call_function", target=GROUP_NORM)
    assert [each.meta["val"].dtype for each in node.args[1:3]] == [torch.float32] * 2


@pytest.mark.parametrize("grad", [False, True])
def test_a_compiled_model_takes_the_operator_without_gradients(monkeypatch: pytest.MonkeyPatch, grad: bool) -> None:
    """The convolution before the norm adds its bias; the statistics are the norm's."""
    chosen, seen = RegionPass.choose, list[object]()

    def choose(self: RegionPass, graph: torch.fx.Graph) -> object:
        result = chosen(self, graph)
        seen.extend(node.target for node in graph.nodes)
        return result

    monkeypatch.setattr(RegionPass, "choose", choose)
    convs = [nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 8, 3)]
    model = nn.Sequential(convs[0], OnGpu(4, 32), nn.SiLU(), convs[1]).half().to(memory_format=torch.channels_last)
    x = image(channels=16)
    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        run = compiled(model)
        torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)
    assert (GROUP_NORM in seen) == (not grad)
    if not grad:
        assert [row.fused for row in evt.report(run).rows] == [True, True]
        assert "var" not in evt.report(run).rows[0].formula
