"""The values of the members of a GEMM kernel's parameters: ``shape(plan, sizes, multiprocessors) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/gemm.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from evt.launch.shape import Shape, TensorMap, tensor_map
from evt.plan import Plan
from evt.plan.gemm import MAX_ROW_BYTES, rows_of_part
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import FILTERS, SHARED_BYTES, WARP_GROUP
from evt.plan.plan import Matrix, OwnProduct, Tensor
from evt.plan.signature import bytes_of

_SIZES = ("rows", "columns", "k_blocks", "row_clusters", "column_clusters", "group", "grid", "encoded")
MEMBERS = ("a", "b", "source", "destination", *_SIZES)
_CONSUMERS = 2
#: A row of a block of C and D in shared memory: 64 elements of 16 bits.
_EPILOGUE_ROW = 2 * FILTERS
_STRIPS = FILTERS // 16


def shape(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Shape:
    """Return the launch for the sizes of a call."""
    loop, config = plan.mainloop, plan.config
    assert isinstance(loop, OwnProduct)
    (rows, columns, depth), (down, across, splits) = config.tile, config.cluster
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    cluster, tall, wide = down * across * splits, rows * down, columns * across
    row_clusters, column_clusters = ceil_div(m, tall), ceil_div(n, wide)
    clusters = work = row_clusters * column_clusters
    if splits == 1:
        clusters = min(work, max(multiprocessors // cluster, 1))
    group = 1
    while group < row_clusters and group * group * tall < clusters * wide:
        group += 1
    numbers = (m, n, max(ceil_div(k, depth), 1), row_clusters, column_clusters, group, clusters * cluster, 1)
    box = min(depth, MAX_ROW_BYTES // bytes_of(loop.a.dtype))
    maps = [
        _operand("a", loop.a, sizes, (k, m), (box, rows // across)),
        _operand("b", loop.b, sizes, *_filters(loop, n, k, box)),
    ]
    part = rows_of_part(rows, splits, config.schedule == "own_pingpong")
    for name, tensor in (("source", plan.source), ("destination", plan.destination)):
        if tensor is not None:
            maps.append(_block(name, tensor, sizes, part))
    tiles = row_clusters * down * splits, ceil_div(n, FILTERS) * _STRIPS
    threads = (1 + _CONSUMERS) * WARP_GROUP
    return Shape(
        dict(zip(_SIZES, numbers, strict=True)), tuple(maps), tiles, clusters * cluster, threads, SHARED_BYTES, cluster
    )


def _filters(loop: OwnProduct, n: int, k: int, depth: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the extents of B and of the box of a block of 64 columns, the contiguous dimension first."""
    if loop.transposes_filters:
        return (n, k), (FILTERS, depth)
    return (k, n), (depth, FILTERS)


def _operand(
    member: str, matrix: Matrix, sizes: Mapping[str, int], extents: tuple[int, int], box: tuple[int, int]
) -> TensorMap:
    row_bytes = box[0] * bytes_of(matrix.dtype)
    return tensor_map(member, matrix.pointer, matrix.dtype, extents, (sizes[matrix.leading.name],), box, row_bytes)


def _block(member: str, tensor: Tensor, sizes: Mapping[str, int], rows: int) -> TensorMap:
    extents, stride = (sizes["n"], sizes["m"]), sizes[str(tensor.strides[0])]
    return tensor_map(member, tensor.pointer, tensor.dtype, extents, (stride,), (FILTERS, rows), _EPILOGUE_ROW)
