"""Variances and means of graphs that regions have changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evt.fx.aten import operator_name
from evt.fx.moments import join_moments, split_moments
from tests.fx.compiling import traced


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 24), nn.LayerNorm(7)], ids=lambda norm: type(norm).__name__)
def test_moments_are_joined_where_the_first_of_them_is_read(norm: nn.Module) -> None:
    """A region that reads the mean moves it, and a reader, before the variance."""
    norm = norm.half().eval()
    x = torch.randn(2, 24, 9, 7).half().contiguous(memory_format=torch.channels_last)
    made = traced(norm, x)
    want = made(x)
    split_moments(made.graph)
    (variance,) = (node for node in made.graph.nodes if operator_name(node) == "var.correction")
    (mean,) = (node for node in made.graph.nodes if operator_name(node) == "mean.dim")
    for node in (mean, next(iter(mean.users))):
        variance.prepend(node)
    join_moments(made.graph)
    made.graph.lint()
    made.recompile()
    torch.testing.assert_close(made(x), want, rtol=2e-3, atol=2e-3)
