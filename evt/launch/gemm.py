"""The values of the members of a GEMM kernel's parameters: ``shape(plan, sizes, multiprocessors) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/gemm.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evt.ir.dtype import F16, DType
from evt.launch.shape import Shape, TensorMap, aligned, tensor_map
from evt.plan import Field, Plan
from evt.plan.epilogue.values import Stride
from evt.plan.gemm import (
    FEW_ROWS,
    FEW_SHARED_BYTES,
    MAX_ROW_BYTES,
    PACKED_DEPTH,
    RESIDENT_OF_FEW,
    STRIP,
    Tile,
    rows_of_box,
    shares_multiprocessors,
    tile_of,
)
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import FILTERS, SHARED_BYTES, STEP_PIXELS, WARP_GROUP
from evt.plan.moved import moved, moved_bytes
from evt.plan.pairs import product_columns
from evt.plan.plan import Matrix, OwnProduct, RowCopy, Tensor
from evt.plan.signature import bytes_of

_SIZES = ("rows", "columns", "k_blocks", "row_clusters", "column_clusters", "band", "grid", "encoded")
_BATCHES = ("batches", "a_step", "b_step")
#: The descriptors of the epilogue's matrices: C and further ones, D and further ones.
_MOVED = ("loads", "stores")
_CONSUMERS = 2
#: The bytes of A that stay in L2 while B is read, and of L2: kKeptBytes and kL2Bytes of kit/gemm_params.hpp.
_KEPT_BYTES, _L2_BYTES = 20_000_000, 50_000_000
#: Columns of a tile of a packed B.
_PACKED_COLUMNS = 8
#: Columns of a pair.
_MEMBERS = 2
#: Bytes that a warp copies at a time, the warps of a block, and the most blocks: rows.hpp.
_PIECE_BYTES, _COPYING_WARPS, _MOST_COPYING_BLOCKS = 1024, 8, 1 << 20


def members(plan: Plan) -> tuple[str, ...]:
    """Return the members of the parameters."""
    loop = plan.mainloop
    assert isinstance(loop, OwnProduct)
    staged = [name for name, _ in _moved(plan)]
    if loop.unaligned:
        staged = [f"{name}.{part}" for name in staged for part in ("pointer", "stride")]
    steps = [f"load_steps[{i}]" for i in range(len(moved(plan)[0]))]
    many = ["ends", "groups"] if loop.ends is not None else [*_BATCHES, *steps] if loop.batched else []
    of_columns = ["last"] if _loads_few_columns(loop) else ["partner"] if loop.partner else []
    return ("a", "b", *of_columns, *staged, *_SIZES, "once", *many)


def _loads_few_columns(loop: OwnProduct) -> bool:
    """Return whether a stage has only the columns that exist: as kLoadsFewColumns of kit/gemm_traits.hpp."""
    return not (loop.pairs or loop.is_packed or loop.transposes_filters) and loop.ends is None


def _moved(plan: Plan) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices of the epilogue that the kernel moves, with their members."""
    for name, each in zip(_MOVED, moved(plan), strict=True):
        for i, tensor in enumerate(each):
            yield f"{name}[{i}]", tensor


def pointers(plan: Plan) -> Mapping[str, Field]:
    """Return the members that are addresses of a call."""
    loop = plan.mainloop
    assert isinstance(loop, OwnProduct)
    found = {} if loop.ends is None else {"ends": loop.ends}
    if loop.unaligned:
        found |= {f"{name}.pointer": tensor.pointer for name, tensor in _moved(plan)}
    return found


def pitch_of(copy: RowCopy, sizes: Mapping[str, int]) -> int:
    """Return the elements from one row of a copy to the next."""
    return ceil_div(sizes[copy.columns.name], copy.line) * copy.line


def copy_blocks(copy: RowCopy, sizes: Mapping[str, int]) -> int:
    """Return the blocks of the job that makes a copy: see rows.hpp."""
    pieces = ceil_div(sizes[copy.columns.name], _PIECE_BYTES // bytes_of(copy.matrix.dtype))
    return min(ceil_div(_rows_of(copy, sizes) * pieces, _COPYING_WARPS), _MOST_COPYING_BLOCKS)


def copies_of(plan: Plan, sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the offset of each copy in the workspace, and the end of the copies."""
    offsets, end = {}, 0
    for copy in plan.row_copies:
        offsets[copy.name] = end
        end += aligned(_rows_of(copy, sizes) * pitch_of(copy, sizes) * bytes_of(copy.matrix.dtype))
    return offsets, end


def _rows_of(copy: RowCopy, sizes: Mapping[str, int]) -> int:
    return sizes[copy.rows.name] * (sizes[copy.batches.name] if copy.batches else 1)


class _Operand(NamedTuple):
    """The matrix that TMA loads, or its copy: the pointer and the elements before it, and the strides.

    ``of_batch`` is 0 if batches share the matrix.
    """

    dtype: DType
    pointer: Field
    leading: int
    of_batch: int
    before: int = 0


def _operand_of(plan: Plan, loop: OwnProduct, matrix: Matrix, sizes: Mapping[str, int]) -> _Operand:
    """Return A or B, or its copy."""
    copy = loop.copy_of(matrix)
    of_batch = _batch_stride(matrix.batch, sizes)
    if copy is None:
        return _Operand(matrix.dtype, matrix.pointer, sizes[matrix.leading.name], of_batch)
    workspace = next(field for field in plan.fields if field.role == "workspace")
    pitch, before = pitch_of(copy, sizes), -copies_of(plan, sizes)[0][copy.name] // bytes_of(matrix.dtype)
    return _Operand(matrix.dtype, workspace, pitch, sizes[copy.rows.name] * pitch * bool(copy.batches), before)


def shape(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Shape:
    """Return the launch for the sizes of a call."""
    loop, config = plan.mainloop, plan.config
    assert isinstance(loop, OwnProduct)
    (rows, columns, depth), (down, across, splits) = config.tile, config.cluster
    m, n, k = sizes["m"], product_columns(loop, sizes["n"]), sizes["k"]
    cluster, tall, wide = down * across * splits, rows * down, columns * across
    ragged = loop.ends is not None
    row_clusters, column_clusters = m // tall + sizes["l"] if ragged else ceil_div(m, tall), ceil_div(n, wide)
    clusters = work = row_clusters * column_clusters * (sizes["l"] if loop.batched else 1)
    few = loop.converts and rows <= FEW_ROWS  # warps multiply by themselves
    if splits == 1:
        resident = RESIDENT_OF_FEW if few else 1
        clusters = min(work, max(resident * multiprocessors // cluster, 1))
    shares = few and shares_multiprocessors(clusters * cluster, cluster, multiprocessors)
    band = 1
    while band < row_clusters and band * band * tall < clusters * wide:
        band += 1
    a_bytes, b_bytes = (extent * k * bytes_of(loop.a.dtype) for extent in (m, n))
    if not ragged and not loop.converts and a_bytes <= _KEPT_BYTES and b_bytes > _L2_BYTES:
        band = row_clusters
    numbers = (m, n, max(ceil_div(k, depth), 1), row_clusters, column_clusters, band, clusters * cluster, 1)
    values = dict(zip(_SIZES, numbers, strict=True)) | ({"groups": sizes["l"]} if ragged else {})
    if loop.batched:
        steps = (int(_batch_stride(each, sizes) != 0) for each in (loop.a.batch, loop.b.batch))
        values |= dict(zip(_BATCHES, (sizes["l"], *steps), strict=True))
        for i, each in enumerate(moved(plan)[0]):
            values[f"load_steps[{i}]"] = int(_batch_stride(each.strides[2], sizes) != 0)
    tile = tile_of(config, bytes_of(loop.a.dtype))
    box = min(depth, MAX_ROW_BYTES // bytes_of(loop.a.dtype))
    a = _operand_of(plan, loop, loop.a, sizes)
    loaded = min(m, rows) if down * across == 1 and not ragged else rows // across
    maps = [
        _operand("a", a, sizes, (k, m), (box, loaded), has_many=loop.batched),
        *_maps_of_filters(plan, loop, sizes, depth if loop.converts else box, tile.block_columns),
    ]
    box_rows = rows_of_box(tile, moved_bytes(plan), ragged=ragged)
    stored = n // _MEMBERS if loop.pairs else n
    for name, tensor in _moved(plan):
        part = _columns_of_box(tile, tensor), box_rows
        if loop.unaligned:
            values[f"{name}.stride"] = sizes[str(tensor.strides[0])]
        elif ragged and name.startswith("stores"):
            maps.append(_masked_block(name, tensor, sizes, part, stored))
        else:
            maps.append(_block(name, tensor, sizes, part, stored, batched=loop.batched))
    strips = ceil_div(n, tile.block_columns) * tile.block_columns // STRIP
    tiles = row_clusters * down * (rows // STEP_PIXELS if tile.by_rows else splits), strips
    threads = (1 + _CONSUMERS) * WARP_GROUP
    shared = FEW_SHARED_BYTES if shares else SHARED_BYTES
    return Shape(values, tuple(maps), tiles, clusters * cluster, threads, shared, cluster)


def _batch_stride(stride: Stride, sizes: Mapping[str, int]) -> int:
    """Return the elements from one batch to the next; 0 if batches share the matrix."""
    return sizes[stride.name] if isinstance(stride, Field) else 0


def _with_batches(
    extents: tuple[int, ...], stride: int, box: tuple[int, ...], of_batch: int, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the extents, strides and box of a matrix with a dimension of batches, or of one that batches share."""
    return (*extents, sizes["l"] if of_batch else 1), (stride, of_batch or stride), (*box, 1)


def _maps_of_filters(
    plan: Plan, loop: OwnProduct, sizes: Mapping[str, int], depth: int, columns: int
) -> list[TensorMap]:
    """Return the descriptors of B and its last columns, and of the matrix of the second columns of pairs if not B."""
    if loop.is_packed:
        return [_packed(loop.b, sizes)]
    b = _operand_of(plan, loop, loop.b, sizes)
    if loop.partner is not None:
        partner = _operand_of(plan, loop, loop.partner, sizes)
        return [_filters(loop, b, sizes, depth), _filters(loop, partner, sizes, depth, "partner")]
    if loop.pairs:
        return [_pairs(loop, b, sizes, depth)]
    maps = [_filters(loop, b, sizes, depth, columns=columns)]
    if _loads_few_columns(loop) and (last := sizes["n"] % columns):
        maps.append(_filters(loop, b, sizes, depth, "last", last))
    return maps


def _filters(
    loop: OwnProduct, b: _Operand, sizes: Mapping[str, int], depth: int, member: str = "b", columns: int = FILTERS
) -> TensorMap:
    """Return the descriptor of a matrix like B, in boxes of some columns, the contiguous dimension first."""
    extents, box = (sizes["k"], sizes["n"]), (depth, columns)
    if loop.transposes_filters:
        extents, box = extents[::-1], box[::-1]
    return _operand(member, b, sizes, extents, box, has_many=loop.has_many)


def _packed(matrix: Matrix, sizes: Mapping[str, int]) -> TensorMap:
    """Return the descriptor of a packed B: PackedRows of kit/converted.hpp."""
    along, rows = 2 * sizes["k"], sizes["n"] // _PACKED_COLUMNS
    extents, box = [along, rows], [2 * PACKED_DEPTH, FILTERS // _PACKED_COLUMNS]
    if isinstance(matrix.batch, Field):
        extents, box = [*extents, sizes["l"]], [*box, 1]
    strides = [along, rows * along][: len(extents) - 1]
    return tensor_map("b", matrix.pointer, F16, extents, strides, box, 4 * PACKED_DEPTH)


def _operand(
    member: str,
    given: _Operand,
    sizes: Mapping[str, int],
    extents: tuple[int, ...],
    box: tuple[int, ...],
    *,
    has_many: bool,
) -> TensorMap:
    row_bytes = box[0] * bytes_of(given.dtype)
    strides: tuple[int, ...] = (given.leading,)
    if has_many:
        extents, strides, box = _with_batches(extents, given.leading, box, given.of_batch, sizes)
    return tensor_map(member, given.pointer, given.dtype, extents, strides, box, row_bytes, before=given.before)


def _pairs(loop: OwnProduct, b: _Operand, sizes: Mapping[str, int], depth: int) -> TensorMap:
    """Return the descriptor of B for pairs of columns: a box has the first, or the second columns of 64 pairs.

    The first columns are runs, whose length is the distance of a pair's columns, and so are the second ones.
    """
    run = loop.pairs * b.leading
    pairs = _MEMBERS * run
    extents = [sizes["k"], sizes["n"] // (_MEMBERS * loop.pairs), _MEMBERS, sizes["l"] if b.of_batch else 1]
    strides, box = [pairs, run, b.of_batch or pairs], [depth, FILTERS // loop.pairs, 1, 1]
    if loop.pairs > 1:
        extents.insert(1, loop.pairs)
        strides.insert(0, b.leading)
        box.insert(1, loop.pairs)
    return tensor_map("b", b.pointer, b.dtype, extents, strides, box, depth * bytes_of(b.dtype), before=b.before)


def _columns_of_box(tile: Tile, tensor: Tensor) -> int:
    """Return the columns of a matrix that TMA moves at a time: kBoxColumns of kit/staged.hpp."""
    columns = tile.block_columns
    return columns if columns % FILTERS else min(columns, MAX_ROW_BYTES // bytes_of(tensor.dtype))


def _block(
    member: str, tensor: Tensor, sizes: Mapping[str, int], part: tuple[int, int], columns: int, *, batched: bool
) -> TensorMap:
    """Return the descriptor of C or D with these columns, in parts of some columns and rows."""
    extents: tuple[int, ...] = (columns, sizes["m"])
    pitch = sizes[str(tensor.strides[0])]
    box: tuple[int, ...] = part
    strides: tuple[int, ...] = (pitch,)
    if batched:
        of_batch = _batch_stride(tensor.strides[2], sizes)
        extents, strides, box = _with_batches(extents, pitch, box, of_batch, sizes)
    row_bytes = part[0] * bytes_of(tensor.dtype)
    return tensor_map(member, tensor.pointer, tensor.dtype, extents, strides, box, row_bytes, rounds=False)


def _masked_block(
    member: str, tensor: Tensor, sizes: Mapping[str, int], part: tuple[int, int], columns: int
) -> TensorMap:
    """Return the descriptor of D whose parts end at any row: see kit/gemm.hpp."""
    stride = sizes[str(tensor.strides[0])]
    rows = part[1]
    extents, box = (columns, rows, sizes["m"] + 1), (*part, 1)
    strides, before = (stride, stride), rows * stride
    row_bytes = part[0] * bytes_of(tensor.dtype)
    return tensor_map(member, tensor.pointer, tensor.dtype, extents, strides, box, row_bytes, before=before)
