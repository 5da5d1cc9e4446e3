"""Products of the library that write float32: ``widen(graph)``, in place.

Under autocast the gradient of a weight is a 16-bit product that is converted to the weight's float32. The library can
write float32 itself, without rounding to 16 bits before:

    convert(mm(a, b), float32)    becomes    mm(a, b, float32)
"""

from __future__ import annotations

import inspect
from collections.abc import Collection

import torch
from torch._inductor import config
from torch._inductor.kernel import mm as kernels
from torch._inductor.utils import use_aten_gemm_kernels
from torch.fx import Graph, Node

from evt.fx.aten import dtype_of

_PRODUCT = torch.ops.aten.mm.default
_CONVERT = torch.ops.prims.convert_element_type.default
_NARROW = (torch.float16, torch.bfloat16)


def widen(graph: Graph) -> None:
    """Let products on GPUs write float32 that the graph returns."""
    for node in graph.find_nodes(op="call_function", target=_PRODUCT):
        if _is_widened(node):
            (convert,) = node.users
            node.target, node.args = torch.ops.aten.mm.dtype, (*node.args, torch.float32)
            node.meta["val"] = convert.meta["val"]
            convert.replace_all_uses_with(node)
            graph.erase_node(convert)


def is_widened(product: Node, region: Collection[Node]) -> bool:
    """Return whether a region computes no more than a product whose float32 the library writes."""
    return len(region) == 2 and _is_widened(product)


def _is_widened(node: Node) -> bool:
    known = "out_dtype" in inspect.signature(kernels.tuned_mm).parameters
    if node.target is not _PRODUCT or not known or config.cpp_wrapper or not use_aten_gemm_kernels():
        return False
    readers = list(node.users)
    narrow = node.meta["val"].device.type == "cuda" and dtype_of(node) in _NARROW
    return narrow and len(readers) == 1 and _is_returned(readers[0])


def _is_returned(node: Node) -> bool:
    """Return whether a node converts to float32, and only the graph's caller reads it."""
    converts = node.target is _CONVERT and dtype_of(node) == torch.float32
    return converts and all(user.op == "output" for user in node.users)


__all__ = ["is_widened", "widen"]
