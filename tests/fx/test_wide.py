"""Products of the library that write the float32 that a graph returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from evt.fx.cost_model import estimate
from evt.fx.regions import find_regions
from evt.fx.wide import widen

aten, convert = torch.ops.aten, torch.ops.prims.convert_element_type.default


def graph_of(
    device: str,
    dtype: torch.dtype,
    conversions: int,
    is_read: bool = False,
    sizes: tuple[int, int, int] = (4, 8, 16),
) -> tuple[Graph, Node]:
    """Return a graph of a product that is converted to float32 and returned."""
    graph = Graph()
    rows, depth, columns = sizes
    with FakeTensorMode():
        a, b = (graph.placeholder(name) for name in "ab")
        for each, shape in ((a, (rows, depth)), (b, (depth, columns))):
            each.meta["val"] = torch.empty(shape, device=device, dtype=dtype)
        product = graph.call_function(aten.mm.default, (a, b))
        product.meta["val"] = torch.empty((rows, columns), device=device, dtype=dtype)
        results = [graph.call_function(convert, (product, torch.float32)) for _ in range(conversions)]
        for each in results:
            each.meta["val"] = torch.empty((rows, columns), device=device)
        if is_read:
            results.append(graph.call_function(aten.relu.default, (results[0],)))
    graph.output((*results,))
    return graph, product


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_product_writes_what_the_graph_returns(dtype: torch.dtype) -> None:
    graph, product = graph_of("cuda", dtype, 1)
    widen(graph)
    graph.lint()
    assert product.target is aten.mm.dtype
    assert product.args[2] is torch.float32
    assert product.meta["val"].dtype == torch.float32
    (output,) = graph.find_nodes(op="output")
    assert output.args[0] == (product,)


@pytest.mark.parametrize(
    ("device", "dtype", "conversions", "is_read"),
    [
        ("cpu", torch.bfloat16, 1, False),  # PyTorch has no such product there
        ("cuda", torch.float64, 1, False),
        ("cuda", torch.bfloat16, 1, True),  # Inductor's kernel reads half as much
        ("cuda", torch.bfloat16, 0, False),
        ("cuda", torch.bfloat16, 2, False),  # the caller expects two tensors
    ],
)
def test_other_products_stay(device: str, dtype: torch.dtype, conversions: int, is_read: bool) -> None:
    graph, product = graph_of(device, dtype, conversions, is_read)
    widen(graph)
    assert product.target is aten.mm.default


@pytest.mark.parametrize("sizes", [(8192, 2048, 2048), (32000, 2048, 2048), (512, 8192, 512)])
def test_a_region_that_only_converts_gains_nothing(sizes: tuple[int, int, int]) -> None:
    """The alternative is the library's product that writes float32, not a product and a conversion."""
    graph, _ = graph_of("cuda", torch.bfloat16, 1, sizes=sizes)
    (outcome,) = find_regions(graph).outcomes
    assert outcome.fused is not None
    assert not estimate(outcome.fused, "sm90", replayed=True).wins


@pytest.mark.parametrize(
    "options", [{"cpp_wrapper": True}, {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}]
)
def test_graphs_that_do_not_call_the_library_stay(options: dict[str, Any]) -> None:
    graph, product = graph_of("cuda", torch.bfloat16, 1)
    with torch._inductor.config.patch(options):
        widen(graph)
    assert product.target is aten.mm.default
