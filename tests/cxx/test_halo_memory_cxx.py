"""The halo kernel's shared memory on the host: its instructions find each element where TMA has put it.

TMA's swizzle and WGMMA's canonical layouts are written down here as the PTX manual has them. The numbers of the kernel
come from its headers.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import conv2d, pad

from evt.ir.convolution import Convolution
from evt.plan.halo import forward
from tests.cxx.gxx import MARKS, build_program
from tests.cxx.halo_problems import MEMBERS, PLANE, drawn, expected, line_of, tensors

pytestmark = MARKS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program("halo_memory", tmp_path_factory.mktemp("halo"))


def run(program: Path, what: str, lines: list[str] | None = None) -> list[str]:
    done = subprocess.run([program, what], input="\n".join(lines or []), capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if not line.startswith("ERROR: cast_smem_ptr")]  # CuTe's


# Operands


class Operand(NamedTuple):
    """The filters of a tap; ``rows`` of ``length`` elements, and the words of their descriptors."""

    size: int
    plane: int
    transposed: int
    rows: int
    length: int
    row_bytes: int
    bytes: int
    layout: int
    next_k: int
    layout_by_cute: int


def swizzled(address: int, bits: int) -> int:
    """Return where TMA puts, and WGMMA looks for, the byte that would be at an address."""
    return address ^ ((address >> 7) & ((1 << bits) - 1)) << 4


def put_by_tma(operand: Operand, base: int, tap: int) -> dict[int, tuple[int, int, int]]:
    """Return the first byte of each element of a box: its filter, its channel, its tap."""
    bits = {128: 3, 64: 2, 32: 1}[operand.row_bytes]
    found = {}
    for row in range(operand.rows):
        for column in range(operand.length):
            address = swizzled(base + row * operand.row_bytes + column * operand.size, bits)
            found[address] = (column, row, tap) if operand.transposed else (row, column, tap)
    return found


def read_by_wgmma(lower: int, upper: int, operand: Operand) -> Iterator[tuple[int, int, int]]:
    """Yield (m, k, address of the element) of an operand of 64 rows and 32 bytes of k.

    See "Canonical layouts" of the asynchronous warpgroup-level matrix instructions in the PTX manual.
    """
    start, stride = (lower & 0x3FFF) << 4, (upper & 0x3FFF) << 4
    assert lower >> 16 == 1
    assert upper >> 14 & 0xFFFF == 0  # no base offset
    bits = {1: 3, 2: 2, 3: 1}[upper >> 30]
    width = 16 << bits  # bytes of a swizzled row
    for m in range(64):
        for k in range(32 // operand.size):
            across, along = (k, m) if operand.transposed else (m, k)
            assert along * operand.size < width
            offset = across % 8 * width + across // 8 * stride + along * operand.size
            yield m, k, swizzled(start + offset, bits)


def test_filters_are_found_where_they_were_put(program: Path) -> None:
    lines = [line.split() for line in run(program, "operands")]
    operands = [Operand(*map(int, words)) for kind, *words in lines if kind == "operand"]
    words = {int(address): int(word) for kind, address, *rest in lines if kind == "address" for word in rest}
    assert {(each.size, each.plane, each.transposed) for each in operands} >= {
        (2, plane, transposed) for plane in (64, 32, 16) for transposed in (0, 1)
    }
    for operand in operands:
        assert operand.layout == operand.layout_by_cute
        for base, word in words.items():
            taps = range(3)  # of a run
            memory: dict[int, tuple[int, int, int]] = {}
            for tap in taps:
                memory |= put_by_tma(operand, base + tap * operand.bytes, tap)
            assert len(memory) == 3 * 64 * operand.plane
            depth = 32 // operand.size
            for tap in taps:
                for step in range(operand.plane // depth):
                    lower = word + tap * (operand.bytes >> 4) + step * operand.next_k
                    for m, k, address in read_by_wgmma(lower, operand.layout, operand):
                        assert memory[address] == (m, step * depth + k, tap)


# Taps


class Tile:
    """A tile as the kernel arranges it, from a line of numbers."""

    def __init__(self, line: str) -> None:
        (self.images, self.rows, self.columns, *rest) = map(int, line.split())
        self.pitch, self.sum_pitch, self.next_eight, self.box_rows, self.guard, groups, taps, *rest = rest
        self.starts = [(rest[2 * i + 1], rest[2 * i]) for i in range(groups)]
        rest = rest[2 * groups :]
        self.taps = [rest[4 * i : 4 * i + 4] for i in range(taps)]
        rest = rest[4 * taps :]
        self.planes = [rest[i : i + 4] for i in range(0, len(rest), 4)]

    @property
    def operand(self) -> torch.Tensor:
        """The addresses in a box of the pixels that an instruction multiplies, from the first one of a tap on."""
        pixels = torch.arange((self.rows * self.images - 1) * self.sum_pitch + self.columns)
        return pixels // 8 * self.next_eight + pixels % 8

    def stored(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the pixels [image, row, column] of the tile among the multiplied ones."""
        sums = pad(sums, (0, 0, 0, self.rows * self.images * self.sum_pitch - len(sums)))
        return sums.unflatten(0, (self.rows, self.images, self.sum_pitch)).transpose(0, 1)[..., : self.columns, :]


def computed(tile: Tile, x: torch.Tensor, filters: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    """Return the output that the kernel computes of pixels [n, h, w, c] and filters [taps y, taps x, c, filter]."""
    images, rows, columns = sizes["images"], sizes["output_height"], sizes["output_width"]
    steps = sizes["stride_height"], sizes["stride_width"]
    out = torch.full((images, rows, columns, sizes["filters"]), torch.nan, dtype=x.dtype)
    margin, behind = 16, (tile.pitch * steps[1], tile.box_rows * steps[0])
    padded = pad(x, (0, 0, margin, margin + behind[0], margin, margin + behind[1], 0, tile.images))
    for image in range(0, images, tile.images):
        for y0 in range(0, rows, tile.rows):
            for x0 in range(0, columns, tile.columns):
                boxes = []
                for down, right in tile.starts:
                    first = (margin + y0 * steps[0] + down, margin + x0 * steps[1] + right)
                    box = padded[image : image + tile.images, first[0] :: steps[0], first[1] :: steps[1]]
                    box = box[:, : tile.box_rows, : tile.pitch].transpose(0, 1).reshape(-1, x.shape[-1])
                    boxes.append(torch.cat((box, x.new_zeros((tile.guard, x.shape[-1])))))
                sums, group = x.new_zeros((len(tile.operand), sizes["filters"])), -1
                for shift, across, below, enters in tile.taps:
                    group += enters
                    sums += boxes[group][shift + tile.operand] @ filters[below, across]
                sums = tile.stored(sums)
                to = out[image : image + tile.images, y0 : y0 + tile.rows, x0 : x0 + tile.columns]
                to[:] = sums[: to.shape[0], : to.shape[1], : to.shape[2]]
    return out


def computed_volume(tile: Tile, x: torch.Tensor, filters: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    """Return the volume's sums of pixels [n, d, h, w, c] and filters [taps z, taps y, taps x, c, filter]."""
    out = x.new_zeros((*(sizes[name] for name in ("images", *OUTPUT)), sizes["filters"]))
    blocks = Counter(slice_ for slice_, *_ in tile.planes)
    parts = max(part for *_, part, _ in tile.planes) + 1
    assert blocks.keys() == set(range(sizes["output_depth"]))
    for slice_, z, part, tap in tile.planes:
        channels = slice(part * PLANE, (part + 1) * PLANE)
        if 0 <= z < x.shape[1]:
            out[:, slice_] += computed(tile, x[:, z, ..., channels], filters[tap, ..., channels, :], sizes)
        else:
            assert blocks[slice_] == parts  # the only tap of a slice that no tap reaches
    return out


OUTPUT = ("output_depth", "output_height", "output_width")


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("operator", ["fprop", "dgrad"])
def test_taps_multiply_their_pixels(operator: str, dimensions: int, program: Path) -> None:
    """The sums over a tile's boxes, shifted by its taps, are the convolution, or the gradient of its input."""
    backwards, volumes = operator == "dgrad", dimensions == 3
    problems = [drawn(seed, backwards, dimensions) for seed in range(20 if volumes else 60)]
    all_sizes = [dict(forward(operator, each.sizes)) for each in problems]
    kept = [
        (problem, sizes)
        for problem, sizes in zip(problems, all_sizes, strict=True)
        if min(size for name, size in sizes.items() if name.startswith("pad_")) >= 0
    ]
    pixels = [(64, 104, 176)[i % 3] for i in range(len(kept))]
    lines = [line_of(sizes, n, backwards) for (_, sizes), n in zip(kept, pixels, strict=True)]
    found = run(program, "taps", lines)
    assert len(found) == len(kept) > len(problems) / 3
    several, eights, spatial = 0, 0, range(2, 2 + dimensions)
    for line, (problem, sizes) in zip(found, kept, strict=True):
        tile = Tile(line)
        several += tile.images > 1
        eights += tile.next_eight != 8
        x, y, weight = tensors(problem)
        want = expected(problem, operator)
        operand, filters = (y, weight.permute(*spatial, 0, 1)) if backwards else (x, weight.permute(*spatial, 1, 0))
        got = (computed_volume if volumes else computed)(tile, operand.movedim(1, -1), filters, sizes)
        assert torch.equal(got.movedim(-1, 1), want), (line, problem)
    assert several > 1
    assert volumes or eights > 1


def computed_by_residues(tile: Tile, x: torch.Tensor, filters: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    """Return the gradient of the input of a convolution with a stride: each residue class by some of the taps."""
    steps = [sizes[f"stride_{name}"] for name in ("height", "width")]
    results = [sizes[f"output_{name}"] for name in ("height", "width")]
    out = torch.full((sizes["images"], *results, sizes["filters"]), torch.nan, dtype=x.dtype)
    all_taps, counts = tile.taps, [number for *_, number in tile.planes]
    assert sum(counts) == len(all_taps)
    assert counts == sorted(counts, reverse=True)
    for row, column, first, number in tile.planes:
        tile.taps = all_taps[first : first + number]
        high, wide = -(-(results[0] - row) // steps[0]), -(-(results[1] - column) // steps[1])
        of_class = {**sizes, "output_height": high, "output_width": wide, "stride_height": 1, "stride_width": 1}
        out[:, row :: steps[0], column :: steps[1]] = computed(tile, x, filters, of_class)
    return out


@pytest.mark.parametrize("seed", range(40))
def test_residue_classes_make_the_gradient(seed: int, program: Path) -> None:
    draw = random.Random(seed)
    taps, steps = (draw.randint(1, 5), draw.randint(1, 5)), draw.choice(((2, 2), (2, 1), (1, 2), (1, 4)))
    dilation = draw.randint(1, 2), draw.randint(1, 3)
    reach = [each * (count - 1) for each, count in zip(dilation, taps, strict=True)]
    pads = [(draw.randint(0, each), draw.randint(0, each)) for each in reach]
    sizes = [draw.randint(each + 1, 30) for each in reach]
    given = {"stride": steps, "padding": pads, "dilation": dilation}
    problem = Convolution.of("conv2d", given).problem((3, 20, *sizes), (5, 20, *taps))
    moved = dict(forward("dgrad", problem.sizes))
    (line,) = run(program, "taps", [line_of(moved, (64, 104, 176)[seed % 3], False, residues=True)])
    _, y, weight = tensors(problem)
    x = torch.zeros(3, 20, *sizes, dtype=y.dtype, requires_grad=True)
    out = conv2d(pad(x, [*pads[1], *pads[0]]), weight, stride=steps, dilation=dilation)
    (want,) = torch.autograd.grad(out, x, y)
    got = computed_by_residues(Tile(line), y.movedim(1, -1), weight.permute(2, 3, 0, 1), moved)
    assert torch.equal(got.movedim(-1, 1), want)


# Windows

#: The elements of a pixel of 16 bytes.
PART = 8


def test_a_row_of_windows_is_read_where_the_next_pixels_are(program: Path) -> None:
    """Without a swizzle, rows of an operand are 16 bytes apart, and its k goes on into those after it."""
    lines = [line.split() for line in run(program, "operands")]
    (upper,) = (int(word) for kind, word, *_ in lines if kind == "windows")
    (lower,) = (int(word) for kind, address, *rest in lines if (kind, address) == ("address", "0") for word in rest)
    stride, leading = (upper & 0x3FFF) << 4, (lower >> 16 & 0x3FFF) << 4
    assert upper >> 30 == 0
    for m in range(64):
        for k in range(0, 32, 2):
            assert m % 8 * 16 + m // 8 * stride + k // 16 * leading + k % 16 == 16 * m + k


def computed_of_windows(tile: Tile, copy: torch.Tensor, filters: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    """Return the output of a copy [n, h, parts, 8] and filters [taps y, window, filter], without padding above."""
    shape = (sizes["images"], sizes["output_height"], sizes["output_width"], sizes["filters"])
    out, step, window = torch.full(shape, torch.nan).double(), sizes["stride_height"], filters.shape[1] // PART
    margin, behind = 16, tile.box_rows * step
    padded = pad(copy, (0, 0, 0, tile.pitch, margin, margin + behind, 0, tile.images))
    for image in range(0, shape[0], tile.images):
        for y0 in range(0, shape[1], tile.rows):
            for x0 in range(0, shape[2], tile.columns):
                sums, group = copy.new_zeros((len(tile.operand), shape[3])), -1
                boxes = []
                for down, right in tile.starts:
                    box = padded[image : image + tile.images, margin + y0 * step + down :: step, x0 + right :]
                    box = box[:, : tile.box_rows, : tile.pitch].transpose(0, 1).reshape(-1)
                    boxes.append(torch.cat((box, box.new_zeros(tile.guard * PART))))
                for shift, across, below, enters in tile.taps:
                    group += enters
                    assert across == 0
                    rows = boxes[group].unfold(0, window * PART, PART)[shift + tile.operand]
                    sums += rows @ filters[below]
                sums = tile.stored(sums)
                to = out[image : image + tile.images, y0 : y0 + tile.rows, x0 : x0 + tile.columns]
                to[:] = sums[: to.shape[0], : to.shape[1], : to.shape[2]]
    return out


@pytest.mark.parametrize("seed", range(40))
def test_windows_are_the_taps_of_a_row(seed: int, program: Path) -> None:
    """The sums over a padded copy, of windows that overlap, are the convolution of the input of few channels."""
    draw = random.Random(seed)
    stride = draw.choice((1, 2))
    channels, padded = draw.randint(1, 8 // stride), 8 // stride
    taps = draw.randint(1, 5), draw.randint(1, 8)
    pads = [(draw.randrange(3), draw.randrange(4)) for _ in range(2)]
    given: dict[str, Any] = {
        "stride": (draw.choice((1, 2, 3)), stride),
        "padding": pads,
        "dilation": (draw.choice((1, 2)), 1),
    }
    sizes = [draw.randint(given["dilation"][0] * (taps[0] - 1) + 1, 20), draw.randint(taps[1], 30)]
    problem = Convolution.of("conv2d", given).problem((3, channels, *sizes), (5, channels, *taps))
    x, _, weight = tensors(problem)
    window = next(each for each in (16, 32, 64) if each >= taps[1] * padded)
    copy = pad(x.movedim(1, -1), (0, padded - channels, *pads[1]))
    copy = pad(copy, (0, 0, 0, copy.shape[2] * padded % PART // padded)).flatten(2).unflatten(2, (-1, PART))
    filters = pad(weight.permute(2, 3, 1, 0), (0, 0, 0, padded - channels)).flatten(1, 2)
    filters = pad(filters, (0, 0, 0, window - filters.shape[1]))
    numbers = (*(problem.sizes[name] for name in MEMBERS), 1, 1, 1, 0, 1, 1, 1, 104, window, 2, 0, 0, 0)
    line = " ".join(map(str, numbers))
    tile = Tile(run(program, "taps", [line])[0])
    got = computed_of_windows(tile, copy, filters, problem.sizes)
    want = conv2d(pad(x, [*pads[1], *pads[0]]), weight, stride=given["stride"], dilation=given["dilation"])
    assert torch.equal(got.movedim(-1, 1), want)
