"""The values of the members of a GEMM kernel's parameters: ``shape(plan, sizes, multiprocessors) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/gemm.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from evt.ir.dtype import F16
from evt.launch.shape import Shape, TensorMap, tensor_map
from evt.plan import Field, Plan
from evt.plan.gemm import MAX_ROW_BYTES, PACKED_DEPTH, rows_of_part, tile_of
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import FILTERS, SHARED_BYTES, STEP_PIXELS, WARP_GROUP
from evt.plan.plan import Matrix, OwnProduct, Tensor
from evt.plan.signature import bytes_of

_SIZES = ("rows", "columns", "k_blocks", "row_clusters", "column_clusters", "band", "grid", "encoded")
_CONSUMERS = 2
#: A row of a block of C and D in shared memory: 64 elements of 16 bits.
_EPILOGUE_ROW = 2 * FILTERS
_STRIPS = FILTERS // 16
#: Columns of a tile of a packed B.
_PACKED_COLUMNS = 8


def members(loop: OwnProduct) -> tuple[str, ...]:
    """Return the members of the parameters."""
    return ("a", "b", "source", "destination", *_SIZES, *(() if loop.ends is None else ("ends", "groups")))


def pointers(loop: OwnProduct) -> Mapping[str, Field]:
    """Return the members that are addresses of a call."""
    return {} if loop.ends is None else {"ends": loop.ends}


def shape(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Shape:
    """Return the launch for the sizes of a call."""
    loop, config = plan.mainloop, plan.config
    assert isinstance(loop, OwnProduct)
    (rows, columns, depth), (down, across, splits) = config.tile, config.cluster
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    cluster, tall, wide = down * across * splits, rows * down, columns * across
    ragged = loop.ends is not None
    row_clusters, column_clusters = m // tall + sizes["l"] if ragged else ceil_div(m, tall), ceil_div(n, wide)
    clusters = work = row_clusters * column_clusters
    if splits == 1:
        clusters = min(work, max(multiprocessors // cluster, 1))
    band = 1
    while band < row_clusters and band * band * tall < clusters * wide:
        band += 1
    numbers = (m, n, max(ceil_div(k, depth), 1), row_clusters, column_clusters, band, clusters * cluster, 1)
    values = dict(zip(_SIZES, numbers, strict=True)) | ({"groups": sizes["l"]} if ragged else {})
    box = min(depth, MAX_ROW_BYTES // bytes_of(loop.a.dtype))
    maps = [
        _operand("a", loop.a, sizes, (k, m), (box, rows // across)),
        _filters(loop, sizes, depth if loop.converts else box),
    ]
    tile = tile_of(config, bytes_of(loop.a.dtype))
    part = rows_of_part(tile)
    for name, tensor in (("source", plan.source), ("destination", plan.destination)):
        if tensor is not None:
            maps.append(_block(name, tensor, sizes, part, masks=ragged and name == "destination"))
    tiles = row_clusters * down * (rows // STEP_PIXELS if tile.by_rows else splits), ceil_div(n, FILTERS) * _STRIPS
    threads = (1 + _CONSUMERS) * WARP_GROUP
    return Shape(values, tuple(maps), tiles, clusters * cluster, threads, SHARED_BYTES, cluster)


def _filters(loop: OwnProduct, sizes: Mapping[str, int], depth: int) -> TensorMap:
    """Return the descriptor of B, in boxes of 64 columns, the contiguous dimension first."""
    if loop.is_packed:
        return _packed(loop.b, sizes)
    extents, box = (sizes["k"], sizes["n"]), (depth, FILTERS)
    if loop.transposes_filters:
        extents, box = extents[::-1], box[::-1]
    if isinstance(loop.b.batch, Field):
        return _operand("b", loop.b, sizes, (*extents, sizes["l"]), (*box, 1))
    return _operand("b", loop.b, sizes, extents, box)


def _packed(matrix: Matrix, sizes: Mapping[str, int]) -> TensorMap:
    """Return the descriptor of a packed B: PackedRows of kit/converted.hpp."""
    along, rows = 2 * sizes["k"], sizes["n"] // _PACKED_COLUMNS
    extents, box = [along, rows], [2 * PACKED_DEPTH, FILTERS // _PACKED_COLUMNS]
    if isinstance(matrix.batch, Field):
        extents, box = [*extents, sizes["l"]], [*box, 1]
    strides = [along, rows * along][: len(extents) - 1]
    return tensor_map("b", matrix.pointer, F16, extents, strides, box, 4 * PACKED_DEPTH)


def _operand(
    member: str, matrix: Matrix, sizes: Mapping[str, int], extents: tuple[int, ...], box: tuple[int, ...]
) -> TensorMap:
    row_bytes = box[0] * bytes_of(matrix.dtype)
    strides = [sizes[each.name] for each in (matrix.leading, matrix.batch) if isinstance(each, Field)]
    return tensor_map(member, matrix.pointer, matrix.dtype, extents, strides, box, row_bytes)


def _block(member: str, tensor: Tensor, sizes: Mapping[str, int], rows: int, *, masks: bool) -> TensorMap:
    """Return the descriptor of C or D. If it ``masks``, a part ends at any row: see kit/gemm.hpp."""
    stride = sizes[str(tensor.strides[0])]
    if masks:
        extents, box = (sizes["n"], rows, sizes["m"] + 1), (FILTERS, rows, 1)
        strides, before = (stride, stride), rows * stride
        return tensor_map(member, tensor.pointer, tensor.dtype, extents, strides, box, _EPILOGUE_ROW, before=before)
    extents_of_all = sizes["n"], sizes["m"]
    return tensor_map(member, tensor.pointer, tensor.dtype, extents_of_all, (stride,), (FILTERS, rows), _EPILOGUE_ROW)
