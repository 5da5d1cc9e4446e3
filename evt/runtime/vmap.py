"""``torch.vmap`` of a call: ``run_batched(info, in_dims, ...)`` makes one launch of all its elements, or refuses.

The dimension that vmap adds becomes a batch of a matrix product, rows of a linear map, or images of a convolution. A
launch has one weight of a linear map or a convolution, and one of each column vector and scalar: these may not have the
dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Index, Input, Output, Random, Reduce
from evt.ir.node import base
from evt.request import Request, read_request


def run_batched(
    info: Any,
    in_dims: Sequence[Any],
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    program: str,
    names: Sequence[str] | None = None,
    floats: Sequence[float] | None = None,
    integers: Sequence[int] | None = None,
) -> tuple[list[torch.Tensor], list[int]]:
    """Return the results of all elements, and where each result has them. Raise ArgumentError (E0611)."""
    request = read_request(program)
    count: int = info.batch_size
    dims_a, dims_b, dims = in_dims[:3]
    of_tensors = tuple(request.inputs if names is None else names)[: len(tensors)]
    given = dict(zip(of_tensors, zip(tensors, dims or [None] * len(tensors), strict=True), strict=True))
    _check(request, {name: dim is not None for name, (_, dim) in given.items()}, dims_b is not None)
    if request.operation == "gemm":
        outer = max(a.dim() - (dims_a is not None), b.dim() - (dims_b is not None)) - 2
        a, b = (_first(x, dim, outer + 2) for x, dim in ((a, dims_a), (b, dims_b)))
        if dims_a is None and dims_b is None:
            a = a.expand((count, *[1] * (outer + 2 - a.dim()), *a.shape))
        moved = [_first(x, dim, _rank(request.dag.input[name], outer)) for name, (x, dim) in given.items()]
    else:
        a = _all(a, dims_a, count)
        moved = [
            _all(x, dim, count) if _has_rows(request.dag.input[name]) and x.dim() else x
            for name, (x, dim) in given.items()
        ]
    if request.convolution is not None:
        a = a.flatten(0, 1)
        rows = [_has_rows(request.dag.input[name]) and x.dim() > 1 for name, x in zip(given, moved, strict=True)]
        moved = [x.flatten(0, 1) if has else x for x, has in zip(moved, rows, strict=True)]
    results = torch.ops.evt.run(a, b, moved, program, names, floats, integers)
    if request.convolution is not None:
        results = [x.view(count, x.shape[0] // count, *x.shape[1:]) for x in results]
    return results, [_place(request, each) for each in request.dag.outputs]


def refuse_batched(info: Any, in_dims: Any, *given: Any) -> Any:
    """Raise ArgumentError (E0611): a call into buffers has no batches."""
    raise _refused("it writes into buffers; leave them out")


def _check(request: Request, batched: Mapping[str, bool], weights: bool) -> None:
    """Refuse a call that is not a single launch."""
    matrices = request.operation == "gemm"
    mode = "l" if matrices else "m"
    if not matrices and weights:
        raise _refused("B is another one for each element")
    if request.operation == "conv2d_wgrad" or (
        request.convolution is not None and request.convolution.operator == "wgrad"
    ):
        raise _refused("the gradient of a weight sums over the images")
    for name, has in batched.items():
        declared = request.dag.input[name]
        if has and not (_has_rows(declared) if not matrices else declared.batchable or "l" in declared.modes):
            raise _refused(f"`{name}` is another one for each element, and the program has it once")
    for output in request.dag.outputs:
        if output.is_indexed or mode not in map(base, output.memory_modes):
            raise _refused(f"`{output.name}` is one for all elements")
    for op, _ in request.dag.table:
        if isinstance(op, Random) or op == Index(mode) or (isinstance(op, Reduce) and mode in map(base, op.modes)):
            raise _refused("the program reads or reduces over the places of its rows")


def _refused(why: str) -> ArgumentError:
    message = f"this call is inside of torch.vmap, and is no single launch: {why}"
    return ArgumentError(
        Diagnostic("E0611", message, help="call the program in a loop, or write the batch as `[l, ...]`")
    )


def _rank(value: Input, outer: int) -> int:
    """Return the dimensions that an input has with all batches of an element."""
    return outer + len([mode for mode in value.modes if base(mode) != "l"])


def _first(tensor: torch.Tensor, dim: int | None, rank: int) -> torch.Tensor:
    """Return a tensor with vmap's dimension first, before ``rank`` others; unchanged if it has no such dimension."""
    if dim is None:
        return tensor
    moved = tensor.movedim(dim, 0)
    ones = [1] * max(0, rank + 1 - moved.dim())
    return moved.reshape((moved.shape[0], *ones, *moved.shape[1:]))


def _all(tensor: torch.Tensor, dim: int | None, count: int) -> torch.Tensor:
    """Return a tensor with vmap's dimension first, repeated in memory where it has none."""
    if dim is None:
        return tensor.expand((count, *tensor.shape)).contiguous()
    return tensor.movedim(dim, 0)


def _has_rows(value: Input) -> bool:
    return "m" in map(base, value.modes)


def _place(request: Request, output: Output) -> int:
    """Return where an output has vmap's dimension: columns before the rows are one dimension."""
    if request.operation == "gemm" or request.convolution is not None:
        return 0
    return [base(mode) for mode in output.modes].index("m")
