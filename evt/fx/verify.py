"""Check the invariant of a graph's regions before they are replaced: ``verify(graph, fused)``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torch.fx import Graph, Node

from evt.diagnostics import Diagnostic
from evt.errors import InternalError
from evt.fx.build import RegionProgram


def verify(graph: Graph, fused: Sequence[RegionProgram]) -> None:
    """Raise InternalError (E0902) if a region has no results, or if kernels depend on each other in a cycle.

    A kernel is a region, represented by its product, or a node outside of all regions. It reads nodes outside of all
    regions and results of regions, and runs after them.
    """
    owner: dict[Node, Node] = {node: each.region.product.node for each in fused for node in each.nodes}
    results = {result.node for each in fused for result in each.results}
    reads = {node: node.all_input_nodes for node in graph.nodes if node not in owner}
    for each in fused:
        product = each.region.product
        if not each.results:
            raise _malformed(f"nothing reads the region of `{product.node.name}`")
        reads[product.node] = [product.a, product.b, *(argument.node for argument in each.arguments)]
    readers: defaultdict[Node, list[Node]] = defaultdict(list)
    for kernel, operands in reads.items():
        for operand in operands:
            if operand in owner and operand not in results:
                raise _malformed(f"`{kernel.name}` reads `{operand.name}`, which no kernel stores")
            readers[owner.get(operand, operand)].append(kernel)
    waits = {kernel: len(operands) for kernel, operands in reads.items()}
    ready = [kernel for kernel, count in waits.items() if count == 0]
    while ready:
        done = ready.pop()
        del waits[done]
        for reader in readers[done]:
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    if waits:
        raise _malformed(f"these kernels wait for one another: {', '.join(kernel.name for kernel in waits)}")


def _malformed(message: str) -> InternalError:
    return InternalError(Diagnostic("E0902", f"the regions of the graph are malformed: {message}"))


__all__ = ["verify"]
