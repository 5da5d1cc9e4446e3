"""Whether a region wins: ``estimate(fused, target, replayed) -> Benefit``.

The objective is the time of the model. Beside leaving the product to PyTorch's libraries, and what follows it to one
kernel of Inductor's, a region

    saves   bytes that no kernel moves any more / bandwidth, and the launch of the kernel that it makes superfluous
    loses   time of the product * how much slower than the library's it is expected to be, and copies that it needs

and it is taken where it saves more than it loses, by :data:`LEAST_GAIN`. Without the region, the product is written,
and read by a kernel of Inductor's, which does the region's work and whatever else needs no other product; it writes
what is needed later. With it, the region's results are written, and read if there is still such a kernel: then no
launch is saved. Sums over rows are a kernel of their own without the region, as its elements are read in another order
for them. A kernel of Inductor's that evaluates an error function waits for that rather than for memory.

A matrix product loses to the library in three ways, by measurements on an H100 (48 cases of 1 to 8192 rows, 2026-11):

    tiles that do not fill their last wave: the library has other tiles to choose from, and loses about half as much
    long sums in few waves: a processor fills its pipeline, sums k terms and stores, once a wave, while the library
        shares the terms of a tile, or takes larger tiles. The loss grows with k and falls with the number of waves
    few rows: both wait for memory, and the library reads it a little faster where k is long

A kernel of a few microseconds waits for the host, which takes longer to call it. So without CUDA graphs, a region's
time and that of what it replaces are each at least the host's, and ``waiting`` is what this adds to the difference: it
is a gain where a call less is made, and a loss where the time that the region saves would be waited for. A region that
would only gain on the host, and lose on the GPU, is left.

Kernels that no measurement covers have no estimate: see :mod:`evt.fx.covered`. The numbers below are round figures: of
what GPUs reach, and of what was measured of whole models on an H200. ``evt.tune`` and ``mode="max-autotune"`` measure
the GPU's time instead (:mod:`evt.fx.measure`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch._inductor.lowering import fallbacks
from torch.fx import Node

from evt.errors import EvtError
from evt.functions import TRANSCENDENTAL
from evt.fx.aten import dtype_of, type_name
from evt.fx.build import RegionProgram
from evt.fx.copied import copied
from evt.fx.covered import FEW_CHANNELS, uncovered
from evt.fx.example import bytes_of, hint
from evt.fx.kernels import PROCESSORS, kernel_of, reason_of
from evt.fx.product import find_product
from evt.fx.views import readers
from evt.ir import Apply, TypedDag
from evt.ir.dtype import from_torch_name
from evt.ir.node import base
from evt.plan.epilogue.cost import cost
from evt.plan.plan import DepthwiseConvolution, HaloConvolution, Mainloop
from evt.request.graphs import optimised_graph

#: Bytes and 16-bit multiply-adds per microsecond that a kernel reaches on sm90, the one target that is measured.
_MOVED, _MULTIPLIED = 3.6e6, 3.2e8
#: What a region has to save by the estimate, which is not more exact, in microseconds.
LEAST_GAIN = 1.0
#: What one kernel less in a stream saves, in microseconds.
LAUNCH = 1.5
#: What a call of a kernel out of Inductor's code takes the host, in microseconds: ours as well as others.
CALL = 5.0
#: How much slower than the library's a product is assumed to be: of up to so many rows or columns, and of more.
_SLOWER = ((64, 0.35), (256, 0.12), (512, 0.06))
_SLOWER_ELSE, _SLOWER_GRADIENT = 0.03, 0.05
#: Tiles that do not fill their last wave, as a part of what they leave idle.
_TILE, _PROCESSORS, _UNEVEN = 128, PROCESSORS, 0.5
#: Long sums: k / (k + _TERMS) of the following, in one wave, and of few rows, which memory bounds.
_TERMS, _LONG_SUMS, _FEW_ROWS, _SLOWER_ROWS = 4096, 1.2, 64, 0.2
#: What the following takes on sm90, in microseconds. A product at least, for each element of its result, and how much
#: more with each transcendental function of its epilogue. An element of a kernel of Inductor's with an error function.
_ELEMENT, _TRANSCENDENTAL, _ERROR_FUNCTION = 1.0e-6, 1.0e-6, 1.6e-6
#: A convolution's epilogue, for each element of a matrix that is not the first one it reads or writes, and for each
#: that a reduction combines.
_FURTHER = 1e-6
#: A convolution of one tap and more channels than the halo kernel takes, by a kernel of CUTLASS beside the library's.
_LONG, _LONG_CHANNELS = 2.0, 512
#: A first layer, of so few channels, by CUTLASS's kernels for each pixel of its result, and how much of its speed the
#: library reaches there.
_FIRST_PIXEL, _FIRST_SPEED = 2.7e-4, 0.15
#: A first layer by the halo kernel, for each pixel of its result and 64 filters; by the library, for each pixel at
#: least, or for each element: fits to five layers of 1 to 64 images on an H200, with few filters (16) and many (320).
_FIRST_HALO, _FIRST_LIBRARY, _FIRST_ELEMENT = 7.5e-5, 5.5e-5, 1.75e-6
#: What our depthwise kernel of 16 bits saves for each element of its result and each tap, with a stride, and that of a
#: gradient: of layers of EfficientNet and ConvNeXt on an H200, 4.7e-8 to 1.1e-7, 1.3e-7 to 6.5e-7, and 1.8e-8 to
#: 2.9e-7. In f32 our kernel took at most 1.1 times as long as the library's.
_DEPTHWISE, _DEPTHWISE_STRIDED, _DEPTHWISE_GRADIENT, _SLOWER_DEPTHWISE = 5e-8, 1.3e-7, 2e-8, 0.1


@dataclass(frozen=True)
class Benefit:
    """What a region saves and loses, in microseconds; ``measured`` where both were timed.

    ``waiting`` is what the GPU waits less for the host, more where it is negative; None under CUDA graphs. ``unknown``
    says why there is no estimate. A region that does not win is left to the libraries under the code ``code``.
    """

    saved: float
    lost: float
    bytes: int = 0
    measured: bool = False
    waiting: float | None = None
    unknown: str = ""
    code: str = "E1017"

    @property
    def wins(self) -> bool:
        if self.unknown:
            return False
        gain = self.saved - self.lost
        if self.measured or gain <= 0:
            return gain > 0
        difference = gain + (self.waiting or 0.0)
        return (gain if abs(difference) < 1e-6 else difference) > LEAST_GAIN  # the host may hide what the GPU gains

    def __str__(self) -> str:
        if self.unknown:
            return self.unknown
        if self.measured:
            return f"measured: {self.lost:.1f} us fused, {self.saved:.1f} us unfused"
        said = f"saves {self.bytes / 1e6:.2f} MB, about {self.saved:.1f} us; loses about {self.lost:.1f} us"
        if self.waiting is None or abs(self.waiting) < 0.05:
            return said
        return f"{said}; the GPU waits {abs(self.waiting):.1f} us {'less' if self.waiting > 0 else 'more'} for the host"


def estimate(fused: RegionProgram, target: str, replayed: bool = False) -> Benefit:
    """Return what a region is expected to save and lose on a target, at the sizes of the call that is compiled.

    ``replayed``: by a CUDA graph, so that the host calls no kernel.
    """
    product = fused.region.product
    result = bytes_of(product.node)
    convolution = product.is_convolution
    if len(fused.nodes) == 1 and not convolution:  # the library adds what belongs to the product
        return Benefit(0.0, LAUNCH)
    try:
        kernel = kernel_of(fused, target, _PROCESSORS)
    except EvtError as error:
        return Benefit(0.0, 0.0, unknown=reason_of(error), code="E1018")
    if unknown := uncovered(kernel, product):
        return Benefit(0.0, 0.0, unknown=unknown, code="E1022")
    before, after, read = _traffic(fused)
    summed = _sums_rows(fused)
    saved = before - after + (result if summed else 0)
    operands = sum(bytes_of(each) for each in (product.a, product.b))
    elements = _elements(fused)
    time = max(_multiplications(fused) / _MULTIPLIED, (operands + result) / _MOVED)
    if not convolution:
        time = max(time, elements * _ELEMENT)
    spared = saved / _MOVED
    if _calls(fused, "gelu", "erf"):
        spared = max(spared, elements * _ERROR_FUNCTION)
    copies = copied(fused)
    copying = 2 * sum(map(bytes_of, copies)) / _MOVED + len(copies) * LAUNCH
    launches = (not read) + summed
    lost = _lost_by_convolution(fused, kernel.mainloop, time) if convolution else _lost_by_product(fused, time)
    gain, loss = spared + launches * LAUNCH + max(0.0, -lost), max(0.0, lost) + copying
    if replayed:
        return Benefit(gain, loss, saved)
    calls = 1 + len(copies)
    difference = max(time + gain, CALL * (1 + launches)) - max(time + loss, CALL * calls)
    return Benefit(gain, loss, saved, waiting=difference - (gain - loss))


def _lost_by_product(fused: RegionProgram, time: float) -> float:
    """Return how much longer than the library's product of that time a region's kernel takes, in microseconds."""
    rows, columns = _matrix(fused)
    elements, terms = _elements(fused), hint(fused.region.product.a.meta["val"].shape[-1])
    batches = max(1, elements // max(1, rows * columns))
    long = terms / (terms + _TERMS)
    if rows <= _FEW_ROWS and batches == 1:
        factor = _SLOWER_ROWS * long
    else:
        tiles = -(-rows // _TILE) * -(-columns // _TILE) * batches
        waves = -(-tiles // _PROCESSORS)
        factor = next((factor for most, factor in _SLOWER if min(rows, columns) <= most), _SLOWER_ELSE)
        factor += _LONG_SUMS * long / waves
        if waves > 1:
            factor += _UNEVEN * (waves * _PROCESSORS / tiles - 1)
    functions = elements * _evaluated(fused) * _TRANSCENDENTAL
    epilogue = elements * _ELEMENT + functions
    seen = epilogue / (max(epilogue, time) or 1.0)  # the rest hides behind the multiplications of other tiles
    return time * factor + functions * seen


def _lost_by_convolution(fused: RegionProgram, loop: Mainloop, time: float) -> float:
    """Return the same as :func:`_lost_by_product` for a convolution; it is less than 0 where the library is slower."""
    product = fused.region.product
    further = _further(fused) * _FURTHER
    if isinstance(loop, DepthwiseConvolution):
        if loop.a.dtype.bits > 16:
            return time * _SLOWER_DEPTHWISE + further
        return further - _multiplications(fused) * _gained_by_depthwise(loop)
    if product.operation.endswith("dgrad"):
        return time * _SLOWER_GRADIENT + further
    filters, channels, *taps = map(hint, product.b.meta["val"].shape)
    if math.prod(taps) == 1 and channels > _LONG_CHANNELS:
        further += _LONG
    if channels > FEW_CHANNELS:
        return further
    result = product.node.meta["val"].shape
    pixels = math.prod(map(hint, result)) // hint(result[1])
    if isinstance(loop, HaloConvolution):
        library = max(_FIRST_LIBRARY, filters * _FIRST_ELEMENT)
        return pixels * (-(-filters // 64) * _FIRST_HALO - library) + further
    library = max(time, _multiplications(fused) / _MULTIPLIED / _FIRST_SPEED)
    return max(0.0, pixels * _FIRST_PIXEL - library) + further


def _gained_by_depthwise(loop: DepthwiseConvolution) -> float:
    """Return what our kernel of 16 bits saves for each multiplication, in microseconds."""
    if loop.operator == "dgrad":
        return _DEPTHWISE_GRADIENT
    return _DEPTHWISE if max(loop.filter.stride) == 1 else _DEPTHWISE_STRIDED


def _elements(fused: RegionProgram) -> int:
    """Return the elements of the product."""
    return math.prod(map(hint, fused.region.product.node.meta["val"].shape))


def _evaluated(fused: RegionProgram) -> int:
    """Return how many transcendental functions are computed of each element, and not only of sums.

    Those of the same operands count once, as the sigmoid and the SiLU of an element share their exponential.
    """
    dag = _graph(fused)
    tiles = (node for node in range(len(dag)) if {"m", "n"} <= set(map(base, dag.types[node].modes)))
    return len({dag.arguments(node) for node in tiles if cost(dag[node]) >= TRANSCENDENTAL})


def _calls(fused: RegionProgram, *functions: str) -> bool:
    """Return whether the program calls one of some functions."""
    ops = (op for op, _ in _graph(fused).table)
    return any(isinstance(op, Apply) and op.function in functions for op in ops)


def _graph(fused: RegionProgram) -> TypedDag:
    """Return the program's graph as it is compiled."""
    return optimised_graph(fused.program.request, *_types(fused))


def _types(fused: RegionProgram) -> tuple[str, str]:
    """Return the types of A and B."""
    product = fused.region.product
    a, b = (str(from_torch_name(type_name(dtype_of(each)))) for each in (product.a, product.b))
    return a, b


def _further(fused: RegionProgram) -> int:
    """Return the elements of an epilogue's further matrices, and those that its reductions combine."""
    dag = fused.program.request.dag
    read, written = (sum(value.is_tile for value in values) for values in (dag.inputs, dag.outputs))
    return _elements(fused) * (max(read - 1, 0) + max(written - 1, 0) + len(dag.outputs) - written)


def _sums_rows(fused: RegionProgram) -> bool:
    """Return whether a region saves a kernel that sums over rows; newer Inductors sum over rows and columns in one."""
    reduced = {index_map.reduced for index_map in fused.region.index_maps.values()}
    both = getattr(torch._inductor.config.triton, "mix_order_reduction", False)
    return any("m" in modes for modes in reduced) and not (both and ("n",) in reduced)


def _traffic(fused: RegionProgram) -> tuple[int, int, bool]:
    """Return the bytes of results that are moved without a region and with it, and whether a kernel reads those."""
    product, follows = fused.region.product.node, _follows(fused)
    before, after, read = 2 * bytes_of(product), 0, False
    for node in (each.node for each in fused.results):
        users = {user for user in readers(node) if user not in fused.region}
        joined = {user for user in users & follows if _is_loose(user, fused)}
        read |= bool(joined)
        after += bytes_of(node) * (2 if joined else 1)
        if users - joined and node is not product:  # it is needed later
            before += bytes_of(node)
    return before, after, read


def _follows(fused: RegionProgram) -> set[Node]:
    """Return the nodes that need a region's product, and no other product of what it is: of Inductor's next kernels."""
    product = fused.region.product.node
    found: set[Node] = {product}
    later: set[Node] = set()
    node = product.next
    while node.op != "root":
        operands = node.all_input_nodes
        if not later.isdisjoint(operands):
            later.add(node)
        elif not found.isdisjoint(operands):
            (found if find_product(node) is None else later).add(node)
        node = node.next
    return found


def _is_loose(user: Node, fused: RegionProgram) -> bool:
    """Return whether a kernel of Inductor's reads a result: no library's does, nor the graph's output."""
    if user in fused.region or user.op != "call_function" or user.target in fallbacks:
        return False
    return find_product(user) is None


def _multiplications(fused: RegionProgram) -> float:
    product = fused.region.product
    filters = math.prod(map(hint, product.b.meta["val"].shape[1:]))
    if product.operation.endswith("dgrad"):
        return math.prod(map(hint, product.a.meta["val"].shape)) * filters
    result = math.prod(map(hint, product.node.meta["val"].shape))
    return result * (filters if product.is_convolution else hint(product.a.meta["val"].shape[-1]))


def _matrix(fused: RegionProgram) -> tuple[int, int]:
    """Return the rows and columns of the product, those of one batch."""
    sizes = dict.fromkeys(("", "l", "m", "n"), 1)
    for dim in fused.region.product.index_map.dims:
        sizes[dim.mode] *= hint(dim.size)
    return sizes["m"], sizes["n"]
