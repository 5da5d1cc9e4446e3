"""Calls of kernels as their launchers take them: pointers, numbers and sizes, without tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from evt.ir.convolution import Convolution
from evt.plan import Field, Plan
from evt.plan.overwritten import overwritten


def arguments(plan: Plan, sizes: Mapping[str, int], alpha: int = 0, *, in_place: bool = False) -> bytes:
    """Return a call: pointers are apart, unless outputs are ``in_place``, and a stride is the least one."""
    same = {out.name: read.name for out, read in overwritten(plan)} if in_place else {}
    places = {field.name: index for index, field in enumerate(plan.fields)}
    partner = getattr(plan.mainloop, "partner", None)
    operands = ("A", "B", partner.name if partner else "")

    def size(field: Field) -> int:
        if field.name in sizes:
            return sizes[field.name]
        if field.tensor and field.tensor in operands:
            rows = field.tensor == "A" or field.role == "n"  # of k elements
            return sizes.get(f"{field.tensor} {field.role}", sizes["k" if rows else "n"])
        return sizes["n"] if field.role == "m" else 1

    words = []
    for field in plan.fields:
        match field.kind:
            case "pointer":
                place = 0x700000000000 + 0x1000000 * places[same.get(field.name, field.name)]
                words.append(struct.pack("Q", alpha if field.tensor == "alpha" else place))
            case "number":
                words.append(struct.pack("d", -3.0))
            case "integer":
                words.append(struct.pack("q", -(1 << 40) - 7))
            case "size":
                words.append(struct.pack("q", size(field)))
    return b"".join(words)


def of_product(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k, "l": 1}


def of_convolution(plan: Plan, geometry: Convolution, x: tuple[int, ...], w: tuple[int, ...]) -> dict[str, int]:
    """Return the sizes of a convolution of packed tensors, channels last."""
    found = dict(geometry.problem(x, w).sizes)
    found |= {"tile_rows": 0, "tile_columns": 0}
    if geometry.operator != "wgrad":
        found |= {"l": 1, "n": found["filters"], "m": 1, "k": 1}
        for name, value in found.items():
            if name.startswith("output_"):
                found["m"] *= value
        found["m"] *= found["images"]
    for tensor, shape in (("A", x), ("B", w)):
        strides = [shape[1]]
        for extent in shape[:1:-1]:
            strides.append(strides[-1] * extent)
        given = [field.role for field in plan.fields if field.tensor == tensor and field.kind == "size"]
        found |= {f"{tensor} {role}": stride for role, stride in zip(given, strides[::-1], strict=True)}
    return found
