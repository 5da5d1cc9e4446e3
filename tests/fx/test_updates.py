"""Small buffers that a graph updates, such as running statistics, are updated together."""

from __future__ import annotations

import copy
import operator

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from evt.fx.updates import join_updates

aten = torch.ops.aten


def test_small_updates_are_joined() -> None:
    """A value that Inductor computes is copied where it is computed."""
    graph, like = Graph(), torch.zeros(3)

    def made(node: Node, value: object) -> Node:
        node.meta["val"] = value
        return node

    buffers = [made(graph.placeholder(f"buffer{i}"), like) for i in range(5)]
    counts = [made(graph.placeholder(f"count{i}"), torch.tensor(1)) for i in range(2)]
    results = graph.call_function(torch.unbind, (graph.call_function(torch.outer, tuple(buffers[:2])),))
    results.meta["evt"] = "a region"
    values = [made(graph.call_function(operator.getitem, (results, i)), like) for i in range(3)]
    values.append(made(graph.call_function(aten.mul.Tensor, (buffers[3], 2)), like))
    steps = [made(graph.call_function(aten.add.Tensor, (each, 1)), torch.tensor(2)) for each in counts]
    for buffer, value in zip((*buffers[:4], *counts), (*values, *steps), strict=True):
        graph.call_function(aten.copy_.default, (buffer, value))
    graph.output((values[0], buffers[4]))
    before = GraphModule(nn.Module(), copy.deepcopy(graph))
    join_updates(graph, ("cpu",))
    graph.lint()
    targets = [str(node.target) for node in graph.nodes if "_" in str(node.target) and "aten" in str(node.target)]
    assert targets == ["aten._foreach_copy_.default", "aten.copy_.default", "aten._foreach_add_.Scalar"]
    given = [[torch.arange(3.0) + i for i in range(5)] + [torch.tensor(4), torch.tensor(7)] for _ in range(2)]
    for run, inputs in zip((before, GraphModule(nn.Module(), graph)), given, strict=True):
        run(*inputs)
    torch.testing.assert_close(given[1], given[0])


def test_large_updates_and_other_devices_stay() -> None:
    for device, size in (("cpu", 1 << 17), ("meta", 4)):
        graph = Graph()
        for i in range(2):
            buffer = graph.placeholder(f"buffer{i}")
            value = graph.call_function(aten.add.Tensor, (buffer, 1))
            buffer.meta["val"] = value.meta["val"] = torch.zeros(size, device=device)
            graph.call_function(aten.copy_.default, (buffer, value))
        graph.output(())
        join_updates(graph, ("cpu",))
        assert len(graph.find_nodes(op="call_function", target=aten.copy_.default)) == 2
