"""A cost model that decides whether fusing a region pays: ``estimate(fused, target, replayed) -> Benefit``.

The objective is the time of the model. The alternative to a region is a product of PyTorch's libraries, followed by a
kernel of Inductor's. Compared with it, a region

    saves   memory traffic / bandwidth, and the launch of Inductor's kernel if that becomes superfluous
    loses   time of the product * the expected slowdown against the library, and the copies that it needs

The region is fused if it saves more than it loses by at least :data:`LEAST_GAIN`. Traffic without the region: the
library writes the product; Inductor's kernel reads it, computes the region's operators, and any others that need no
further product, and writes the results that are needed later. Traffic with the region: its kernel writes its results,
and Inductor's kernel, if there is one left, reads them; no launch is saved then. Without the region, sums over rows
need a separate kernel, since they read the elements in another order. A kernel of Inductor's that evaluates an
error function is bound by this function and not by memory.

The time of a matrix product by evt's GEMM kernel, and that of the library, are estimates of :mod:`evt.plan.gemm_speed`.
A kernel of CUTLASS loses to the library in three ways (fitted on an H100 to 48 cases of 1 to 8192 rows, 2026-11):

    partial last wave    the library chooses from more tile shapes, and loses about half as much
    long sums, few waves a multiprocessor fills its pipeline and drains it once a wave, while the library splits k or
                         takes larger tiles; the loss grows with k and falls with the number of waves
    few rows             both are memory bound, and the library reads a little faster for large k

The GPU waits for the host during kernels of a few microseconds. So without CUDA graphs, the times of both alternatives
are at least the host's times for their calls. ``waiting`` is the resulting change of the difference: a gain if the
region makes a call less, a loss if the GPU would wait during the saved time. A region must also gain on the GPU alone.

Unmeasured kernels have no estimate: see :mod:`evt.fx.covered`. The constants below are round figures, from the rates
that GPUs reach and from whole models on an H200, 2026-11, unless a comment names another source. ``evt.tune`` and
``mode="max-autotune"`` measure the times instead (:mod:`evt.fx.measure`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import dataclass

import torch
from torch.fx import Node

from evt.errors import EvtError
from evt.functions import TRANSCENDENTAL
from evt.fx.aten import dtype_of, shape_of, type_name
from evt.fx.build import RegionProgram
from evt.fx.copied import copied
from evt.fx.covered import FEW_CHANNELS, is_aligned, uncovered
from evt.fx.example import bytes_of, hint
from evt.fx.halves import is_half
from evt.fx.kernels import PROCESSORS, Calls, reason_of, shared_request
from evt.fx.norms import Candidate
from evt.fx.reductions import by_inductor, in_epilogue, norm_saves, reductions
from evt.fx.stand_in import beside
from evt.fx.traffic import Followers, second_weights, traffic_of, turned_by_library
from evt.fx.upsampling import is_upsampled
from evt.fx.wide import is_widened
from evt.ir import Apply, TypedDag
from evt.ir.convolution import ConvolutionProblem
from evt.ir.dtype import from_torch_name
from evt.ir.node import base
from evt.plan.cards import CARDS
from evt.plan.epilogue.cost import cost
from evt.plan.gemm_speed import Size, library_microseconds
from evt.plan.plan import DepthwiseConvolution, FilterGradient, HaloConvolution, OwnProduct, Plan
from evt.plan.speed import duration, product_microseconds
from evt.plan.unaligned import library_microseconds as unaligned_microseconds
from evt.plan.wgrad import library_microseconds as filter_gradient_microseconds
from evt.request.graphs import optimised_graph

#: The key in ``node.meta`` of a product's part of the gain of its norm, in microseconds.
NORM_GAIN = "evt_norm_gain"
#: Bytes, and 16-bit multiply-adds, per microsecond that kernels reach on sm90, the only measured target.
_MOVED, _MULTIPLIED = 3.6e6, 3.2e8
#: Bytes per microsecond of folds, which read and write weights.
_FOLDED = 8e5
#: The least estimated gain of a region in microseconds; the estimate is no more exact.
LEAST_GAIN = 1.0
#: The gain of one launch less in a stream, in microseconds.
LAUNCH = 1.5
#: The host's time to call a kernel from Inductor's code, in microseconds, for kernels of evt and of others.
CALL = 5.0
#: Slowdown of a product against the library: (largest number of rows or columns, factor), and the factor beyond.
_SLOWER = ((64, 0.35), (256, 0.12), (512, 0.06))
_SLOWER_ELSE, _SLOWER_GRADIENT = 0.03, 0.05
#: Partial last waves: the tile's side, the multiprocessors, and the loss as a fraction of the idle time.
_TILE, _PROCESSORS, _UNEVEN = 128, PROCESSORS, 0.5
#: Long sums: the slowdown is k / (k + _TERMS) times _LONG_SUMS / waves, or times _SLOWER_ROWS for few rows.
_TERMS, _LONG_SUMS, _FEW_ROWS, _SLOWER_ROWS = 4096, 1.2, 64, 0.2
#: Microseconds on sm90 for each element. A product takes the first constant at least, and the second one for each
#: transcendental function of its epilogue. A kernel of Inductor's with an error function takes the third.
_ELEMENT, _TRANSCENDENTAL, _ERROR_FUNCTION = 1.0e-6, 1.0e-6, 1.6e-6
#: Microseconds of an own kernel's epilogue for each element of a second or further matrix. For a second or further
#: transcendental function of an own product, beyond its estimate: GELU's derivative by erf and exp of 6304 x 3072
#: elements took 103 us, not 70, and 88 by the library and Inductor, on an H100, 2026-11.
_FURTHER, _FURTHER_FUNCTION = 1e-6, 1.7e-6
#: Groups of a power of two of channels: the loss against the library's bare convolution in microseconds, and as a
#: fraction of its time. The library takes at least twice its time for other groups. Fitted to 30 layers of 32 images on
#: an H100, 2026-11.
_GROUPED, _SLOWER_GROUPED = 2.5, 0.15
#: Microseconds that CUTLASS's kernel loses for a 1x1 convolution with more channels than the halo kernel takes.
_LONG, _LONG_CHANNELS = 2.0, 512
#: First layers: microseconds of CUTLASS's kernels per pixel, and the fraction of its usual speed that the library
#: reaches.
_FIRST_PIXEL, _FIRST_SPEED = 2.7e-4, 0.15
#: First layers: microseconds of the halo kernel per pixel and 64 filters; of the library per pixel at least, and per
#: element. Fitted to five layers of 1 to 64 images on an H200, with 16 to 320 filters.
_FIRST_HALO, _FIRST_LIBRARY, _FIRST_ELEMENT = 7.5e-5, 5.5e-5, 1.75e-6
#: The library with 3-d convolutions: (channels or filters, TFLOP/s) at most, and TFLOP/s for more. Fitted on an
#: H100 to 22 layers of 32 to 512 channels, 2026-11. The last constant is the error of evt's estimates of volumes. By
#: these rates evt computes 22 of 34 other layers with nothing to fuse, and is faster in all of them (2026-11-28).
_VOLUME_RATES, _VOLUME_RATE, _VOLUME_DOUBT = ((32, 310.0), (96, 440.0)), 640.0, 1.05
#: The least measured ratio of the library's time with 1-d convolutions, without its copies, to the estimate of evt's
#: time: ten layers of wav2vec 2.0, Whisper and a vocoder on an H200, 2026-11-29.
_LINE = 0.75
#: The error of the estimates of convolutions of small images that are upsampled.
_DOUBT = 1.2
#: The library with first layers of volumes, in TFLOP/s at most: nine layers of 1 to 8 channels on an H200, 2026-11-29.
_FIRST_VOLUME_RATE = 80.0
#: The errors of the estimates of filter gradients, and of convolutions of unaligned pixels: see :mod:`evt.plan.wgrad`
#: and :mod:`evt.plan.unaligned` for the cards.
_GRADIENT_DOUBT, _UNALIGNED_DOUBT = 1.1, 1.1
#: Microseconds that evt's 16-bit depthwise kernel saves per element and tap: without a stride, with a stride, and for a
#: gradient. Layers of EfficientNet and ConvNeXt on an H200 gave 4.7e-8 to 1.1e-7, 1.3e-7 to 6.5e-7, and 1.8e-8 to
#: 2.9e-7. The last constant is the largest slowdown in f32.
_DEPTHWISE, _DEPTHWISE_STRIDED, _DEPTHWISE_GRADIENT, _SLOWER_DEPTHWISE = 5e-8, 1.3e-7, 2e-8, 0.1
#: Microseconds that the kernel of 16 bits saves for each element of a 1-d result: 7 layers of 3 to 31 taps on an H200,
#: 2026-11-29.
_DEPTHWISE_LINE = 7e-6


@dataclass(frozen=True)
class Benefit:
    """The microseconds that a region saves and loses. If ``measured``, they are the times unfused and fused.

    ``bytes`` is the saved memory traffic. ``waiting`` is the time by which the GPU waits less for the host, negative if
    it waits more, and None under CUDA graphs. ``unknown`` is the reason why there is no estimate. ``code`` is the code
    under which a region that loses is skipped.
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
        on_gpu = self.saved - self.lost
        return on_gpu > 0 if self.measured or on_gpu <= 0 else self.gain > LEAST_GAIN

    @property
    def gain(self) -> float:
        """The microseconds that a region gains; the host may hide the GPU's gain."""
        on_gpu = self.saved - self.lost
        both = on_gpu + (self.waiting or 0.0)
        return on_gpu if abs(both) < 1e-6 else both

    def __str__(self) -> str:
        if self.unknown:
            return self.unknown
        if self.measured:
            return f"measured: {self.lost:.1f} us fused, {self.saved:.1f} us unfused"
        megabytes, saved = round(self.bytes / 1e6, 2) + 0.0, round(self.saved, 1) + 0.0  # no -0.0
        said = f"saves {megabytes:.2f} MB, about {saved:.1f} us; loses about {self.lost:.1f} us"
        if self.waiting is None or abs(self.waiting) < 0.05:
            return said
        return f"{said}; the GPU waits {abs(self.waiting):.1f} us {'less' if self.waiting > 0 else 'more'} for the host"


def norm_gain(norm: Candidate, frozen: bool) -> tuple[float, float]:
    """Return the microseconds that a norm in its products saves, and the microseconds of its folds.

    Inductor's kernel reads the operand and writes the norm. Without it, the product that makes the operand gives its
    statistics, or a kernel of Inductor's reads the operand for them. A CUDA graph that a user captures folds the
    weights in each replay, unless they are frozen.
    """
    elements = math.prod(map(hint, shape_of(norm.x)))
    results = sum(math.prod(map(hint, shape_of(each))) for each in norm.products)
    folding = sum(2 * bytes_of(each) / _FOLDED + LAUNCH for each in norm.weights)
    return norm_saves(elements, results, has_mean=norm.has_mean, is_made=norm.is_made), 0.0 if frozen else folding


def estimate(
    fused: RegionProgram,
    target: str,
    replayed: bool = False,
    *,
    here: bool = False,
    computed: Set[Node] = frozenset(),
    followers: Followers | None = None,
    calls: Calls | None = None,
) -> Benefit:
    """Estimate the gain and the loss of a region on a target, for the sizes of the call that is compiled.

    ``replayed`` means that a CUDA graph replays the kernel, so that the host makes no calls. ``here`` means that this
    machine builds the kernel. ``computed`` are the nodes that all regions of the graph compute, ``followers`` those
    behind its products, and ``calls`` its kernels: the estimates of one graph share them.
    """
    product = fused.region.product
    followers = Followers(product.node.graph) if followers is None else followers
    result = bytes_of(product.node)
    convolution = product.is_convolution
    of_norm = product.node.meta.get(NORM_GAIN, 0.0)
    alone = len(fused.nodes) == 1 and not convolution  # the library computes alpha and the terms as well
    if (alone and not of_norm) or is_widened(product.node, fused.nodes):
        return Benefit(0.0, LAUNCH)
    try:
        kernel = (calls or Calls()).fastest(fused, target, _PROCESSORS, here=here)
    except EvtError as error:
        return Benefit(0.0, 0.0, unknown=reason_of(error), code="E1018")
    if unknown := uncovered(kernel, product):
        return Benefit(0.0, 0.0, unknown=unknown, code="E1022")
    before, after, read = traffic_of(fused, computed, followers)
    summed = _sums_rows(fused)
    saved = before - after + (result if summed else 0)
    operands = sum(bytes_of(each) for each in (product.a, product.b, *second_weights(fused)))
    elements = _elements(fused)
    time = max(_multiplications(fused) / _MULTIPLIED, (operands + result) / _MOVED)
    if not convolution:
        time = max(time, elements * _ELEMENT)
    spared = saved / _MOVED
    if _calls(fused, "gelu", "erf"):
        spared = max(spared, elements * _ERROR_FUNCTION)
    copies = copied(fused, computed)
    copying = _copying(copies)
    launches = (not read) + summed + sum(each.target is beside and not is_half(each) for each in fused.nodes)
    if alone:
        saved, spared, launches = 0, 0.0, 0
    if (statistics := by_inductor(reductions(_graph(fused)), elements, read)) is not None:  # by another kernel
        spared += statistics - LAUNCH - result / _MOVED
    by_product = isinstance(kernel.mainloop, OwnProduct) or not convolution
    lost = (_lost_by_product if by_product else _lost_by_convolution)(fused, kernel, time)
    gain, loss = spared + launches * LAUNCH + max(0.0, -lost) + of_norm, max(0.0, lost) + copying
    if replayed:
        return Benefit(gain, loss, saved)
    difference = max(time + gain, CALL * (1 + launches)) - max(time + loss, CALL * (1 + len(copies)))
    return Benefit(gain, loss, saved, waiting=difference - (gain - loss))


def _copying(tensors: Collection[Node]) -> float:
    """Return the microseconds of a kernel for each tensor that copies it."""
    return 2 * sum(map(bytes_of, tensors)) / _MOVED + len(tensors) * LAUNCH


def _lost_by_product(fused: RegionProgram, kernel: Plan, time: float) -> float:
    """Return the microseconds that a region's kernel takes longer than the library, whose product takes ``time``."""
    rows, columns = _matrix(fused)
    elements = _elements(fused)
    members = 1 + len(second_weights(fused))
    terms = round(_multiplications(fused) / elements / members)
    if isinstance(kernel.mainloop, OwnProduct):
        groups = 1 if fused.region.product.ends is None else hint(shape_of(fused.region.product.b)[0])
        batches = max(1, elements // max(1, rows * columns))
        sizes = {"m": rows, "n": columns, "k": terms, "l": max(groups, batches)}
        bytes_of_k = terms * kernel.operand_bits // 8
        # Two products of the library take hardly less than one with the columns of both.
        library = library_microseconds(
            Size(rows, members * columns, bytes_of_k, 2.0, _PROCESSORS, groups=groups, batches=batches)
        )
        inputs = elements * kernel.read_bytes / _MOVED  # which the kernel after the library's reads as well
        own = product_microseconds(kernel, sizes, _PROCESSORS)
        functions = elements * max(0, _evaluated(fused) - 1) * _FURTHER_FUNCTION
        return own - library - inputs + functions + _of_reductions(fused)
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
    seen = epilogue / (max(epilogue, time) or 1.0)  # other tiles' multiplications hide the rest
    return time * factor + functions * seen


def _lost_by_convolution(fused: RegionProgram, kernel: Plan, time: float) -> float:
    """Return the loss of :func:`_lost_by_product` for a convolution; it is negative if the library is slower."""
    product, loop = fused.region.product, kernel.mainloop
    further = _further(fused)
    if isinstance(loop, DepthwiseConvolution):
        if loop.a.dtype.bits > 16:
            return time * _SLOWER_DEPTHWISE + further
        if product.operation.startswith("conv1d"):
            return further - _elements(fused) * _DEPTHWISE_LINE
        return further - _multiplications(fused) * _gained_by_depthwise(loop)
    if is_upsampled(product.node):
        return further - _gained_by_upsampling(fused, kernel)
    further -= _copying(turned_by_library(product))
    if product.operation.endswith("dgrad"):
        return time * _SLOWER_GRADIENT + further
    if isinstance(loop, FilterGradient):
        return further - _gained_by_filter_gradient(fused, kernel)
    filters, channels, *taps = map(hint, product.b.meta["val"].shape)
    if isinstance(loop, HaloConvolution) and loop.groups in ("single", "multiple"):
        suits_library = channels & (channels - 1) == 0
        return further + (_GROUPED + time * _SLOWER_GROUPED if suits_library else -time)
    if isinstance(loop, HaloConvolution) and loop.rank == 3:
        return further - _gained_by_volume(fused, kernel)
    if product.operation == "conv1d":
        return further - _gained_by_line(fused, kernel)
    if isinstance(loop, HaloConvolution) and not (is_aligned(product) or loop.windows):
        return further - _gained_by_unaligned(fused, kernel)
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


def _convolved(fused: RegionProgram, kernel: Plan) -> tuple[ConvolutionProblem, float]:
    """Return the problem of a convolution, and the microseconds of evt's kernel on an H100."""
    convolution = shared_request(fused).convolution
    assert convolution is not None
    a, b = (tuple(map(hint, each.meta["val"].shape)) for each in (fused.region.product.a, fused.region.product.b))
    problem = convolution.problem(a, b)
    return problem, duration(kernel, problem.sizes, CARDS["H100"]).total


def _gained_by_volume(fused: RegionProgram, kernel: Plan) -> float:
    """Return the microseconds that evt's kernel saves at least for a 3-d convolution of several taps and no stride."""
    problem, own = _convolved(fused, kernel)
    if problem.channels <= FEW_CHANNELS:
        return max(0.0, 2 * _multiplications(fused) / _FIRST_VOLUME_RATE / 1e6 - _VOLUME_DOUBT * own)
    if math.prod(problem.filter_size[-2:]) == 1 or not problem.geometry.is_unit_stride:
        return 0.0
    rate = next((rate for most, rate in _VOLUME_RATES if min(problem.filters, problem.channels) <= most), _VOLUME_RATE)
    return max(0.0, 2 * _multiplications(fused) / rate / 1e6 - _VOLUME_DOUBT * own)


def _gained_by_line(fused: RegionProgram, kernel: Plan) -> float:
    """Return the microseconds that evt's kernel saves at least for a 1-d convolution; negative if it loses."""
    _, own = _convolved(fused, kernel)
    return max(_multiplications(fused) / _MULTIPLIED, _LINE * own) - own


def _gained_by_unaligned(fused: RegionProgram, kernel: Plan) -> float:
    """Return the microseconds that evt's kernel saves at least for unaligned pixels; negative if it loses."""
    problem, own = _convolved(fused, kernel)
    inputs = _elements(fused) * kernel.read_bytes / _MOVED  # which the kernel after the library's reads as well
    return unaligned_microseconds(problem.sizes) + inputs - _UNALIGNED_DOUBT * own


def _gained_by_upsampling(fused: RegionProgram, kernel: Plan) -> float:
    """Return the microseconds that the convolution of a small image saves against upsampling and a 3x3 convolution."""
    product, (problem, own), taps = fused.region.product, _convolved(fused, kernel), 9
    small, result, filters = map(bytes_of, (product.a, product.node, product.b))
    library = max(_elements(fused) * problem.channels * taps / _MULTIPLIED, (4 * small + result) / _MOVED)
    return library + (small + 4 * small) / _MOVED - 2 * filters / _MOVED - _DOUBT * own  # each has a further kernel


def _gained_by_filter_gradient(fused: RegionProgram, kernel: Plan) -> float:
    """Return the microseconds that evt's kernel saves at least for the gradient of a filter; negative if it loses."""
    problem, own = _convolved(fused, kernel)
    return filter_gradient_microseconds(problem.sizes) - _GRADIENT_DOUBT * own


def _gained_by_depthwise(loop: DepthwiseConvolution) -> float:
    """Return the microseconds that evt's 16-bit kernel saves for each multiplication."""
    gained = _DEPTHWISE if max(loop.filter.stride) == 1 else _DEPTHWISE_STRIDED
    return _DEPTHWISE_GRADIENT if loop.operator == "dgrad" else gained


def _elements(fused: RegionProgram) -> int:
    """Return the number of elements of the product."""
    return math.prod(map(hint, fused.region.product.node.meta["val"].shape))


def _evaluated(fused: RegionProgram) -> int:
    """Count the transcendental functions of each element; functions of reduced values do not count.

    Functions of equal operands count once: the sigmoid and the SiLU of an element share an exponential.
    """
    dag = _graph(fused)
    tiles = (node for node in range(len(dag)) if {"m", "n"} <= set(map(base, dag.types[node].modes)))
    return len({dag.arguments(node) for node in tiles if cost(dag[node]) >= TRANSCENDENTAL})


def _calls(fused: RegionProgram, *functions: str) -> bool:
    """Return whether the program calls one of some functions."""
    ops = (op for op, _ in _graph(fused).table)
    return any(isinstance(op, Apply) and op.function in functions for op in ops)


def _graph(fused: RegionProgram) -> TypedDag:
    """Return the optimised graph of the program."""
    return optimised_graph(shared_request(fused), *_types(fused))


def _types(fused: RegionProgram) -> tuple[str, str]:
    """Return the types of A and B."""
    product = fused.region.product
    a, b = (str(from_torch_name(type_name(dtype_of(each)))) for each in (product.a, product.b))
    return a, b


def _further(fused: RegionProgram) -> float:
    """Return the microseconds of an epilogue's second and further matrices, and of its reductions."""
    dag, elements = fused.program.request.dag, _elements(fused)
    read, written = (sum(value.is_tile for value in values) for values in (dag.inputs, dag.outputs))
    return elements * (max(read - 1, 0) + max(written - 1, 0)) * _FURTHER + _of_reductions(fused)


def _of_reductions(fused: RegionProgram) -> float:
    """Return the microseconds of an epilogue's reductions."""
    columns, convolved = _matrix(fused)[1], fused.region.product.is_convolution
    return sum(in_epilogue(op, _elements(fused), columns, convolved=convolved) for op in reductions(_graph(fused)))


def _sums_rows(fused: RegionProgram) -> bool:
    """Return whether a region saves a kernel for sums over rows; new Inductors merge row and column sums."""
    reduced = {index_map.reduced for index_map in fused.region.index_maps.values()}
    both = getattr(torch._inductor.config.triton, "mix_order_reduction", False)
    return any("m" in map(base, modes) for modes in reduced) and not (both and ("n",) in reduced)


def _multiplications(fused: RegionProgram) -> float:
    product = fused.region.product
    filters = math.prod(map(hint, product.b.meta["val"].shape[1:]))
    if product.operation.endswith("dgrad"):
        return math.prod(map(hint, product.a.meta["val"].shape)) * filters
    if product.operation.endswith("wgrad"):
        gradient = math.prod(map(hint, product.node.meta["val"].shape[1:]))
        return math.prod(map(hint, product.a.meta["val"].shape)) * gradient
    terms = hint(product.a.meta["val"].shape[-1]) * (1 + len(second_weights(fused)))
    return math.prod(map(hint, product.node.meta["val"].shape)) * (filters if product.is_convolution else terms)


def _matrix(fused: RegionProgram) -> tuple[int, int]:
    """Return the rows and columns of one batch of the product."""
    sizes = dict.fromkeys(("", "l", "m", "n"), 1)
    for dim in fused.region.product.index_map.dims:
        sizes[dim.mode] *= hint(dim.size)
    return sizes["m"], sizes["n"]
