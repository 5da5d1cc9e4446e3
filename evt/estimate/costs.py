"""The costs of a problem, independent of its kernel: ``costs_of(dag, sizes, shapes) -> Costs``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evt.ir import Input, Output, TypedDag
from evt.ir.dag import factors
from evt.ir.node import base, blocks_of


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a problem, independent of its kernel.

    A multiply-add counts as two operations, padding included. Each operand, input of the epilogue and output is moved
    once; all are in bytes.
    """

    sizes: Mapping[str, int]
    flops: int
    operand_bytes: int
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        return self.operand_bytes + self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    def to_json(self) -> dict[str, object]:
        return {
            "sizes": dict(self.sizes),
            "flops": self.flops,
            "bytes": {"operands": self.operand_bytes, "read": self.read_bytes, "written": self.written_bytes},
            "flops_per_byte": round(self.intensity, 3),
        }

    def __str__(self) -> str:
        modes = ("groups", "m", "n", "k", "l")
        sizes = " ".join(f"{mode}={self.sizes[mode]}" for mode in modes if self.sizes.get(mode, 1) != 1)
        parts = (("A and B", self.operand_bytes), ("read", self.read_bytes), ("written", self.written_bytes))
        moved = " + ".join(f"{_scaled(count)}B {what}" for what, count in parts if count)
        return (
            f"costs of {sizes or 'one element'}: {_scaled(self.flops)}FLOP, at least {_scaled(self.bytes)}B ({moved}), "
            f"{self.intensity:.1f} FLOP a byte"
        )


def costs_of(dag: TypedDag, sizes: Mapping[str, int], shapes: tuple[Sequence[int], Sequence[int]]) -> Costs:
    """Return the costs of a problem. ``sizes`` are its extents, and the other sizes of a convolution."""
    modes = {mode: max(1, sizes[mode]) if mode == "l" else sizes[mode] for mode in ("m", "n", "k", "l")}

    def bytes_of(value: Input | Output) -> int:
        assert value.dtype is not None
        elements = math.prod(blocks_of(mode, modes[base(mode)]) for mode in value.modes)
        if value.batchable and "l" not in value.modes and (isinstance(value, Output) or value.is_tile):
            elements *= modes["l"]
        return -(-elements * value.dtype.bits // 8)

    elements = map(math.prod, shapes)
    operands = sum(count * operand.dtype.bits // 8 for operand, count in zip(dag.operands, elements, strict=True))
    read, written = (sum(map(bytes_of, values)) for values in (dag.inputs, dag.outputs))
    products = math.prod(modes.values())
    if "filters" in sizes:  # for a convolution, k counts only the channels
        extents = [size for name, size in sizes.items() if name.startswith(("output_", "filter_"))]
        products = math.prod((sizes["images"], sizes["filters"], sizes["channels"], *extents)) // sizes["groups"]
        modes["k"] = max(1, products // max(1, modes["m"] * modes["n"]))
    products *= 1 + len(factors(dag))
    return Costs(modes, 2 * products, operands, read, written)


def total(products: Sequence[Costs]) -> Costs:
    """Return the total costs of several products, with the sizes that they have in common."""
    if len(products) == 1:
        return products[0]
    first = products[0].sizes
    common = {mode: first[mode] for mode in first if len({each.sizes[mode] for each in products}) == 1}
    return Costs(
        {"groups": len(products), **common},
        sum(each.flops for each in products),
        sum(each.operand_bytes for each in products),
        sum(each.read_bytes for each in products),
        sum(each.written_bytes for each in products),
    )


def _scaled(count: int) -> str:
    """Return a count with a unit prefix: ``34.4 G``."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {prefix}"
    return f"{count} "
