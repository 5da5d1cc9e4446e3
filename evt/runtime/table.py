"""The table of a grouped launch: words, a row for each member of the kernel's arguments; and the launch."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evt.ir import Output
from evt.ir.dtype import I32, I64
from evt.plan import Signature
from evt.plan.fields import Field
from evt.plan.plan import GroupedPlan
from evt.runtime.bound import Bound
from evt.runtime.fresh import prototype_of
from evt.runtime.groups import Group
from evt.runtime.library import Library, launch_failure
from evt.runtime.overlap import Overlap

#: The number of addresses of one combination that are kept before all are dropped.
_MAX_PLACES = 256


class Places(set[tuple[int, ...]]):
    """The addresses of groups' tensors when their memory was checked: a tuple for each group.

    A tensor without its memory has another address: 0, or an offset from 0.
    """

    def remember(self, addresses: tuple[int, ...]) -> None:
        """Add the addresses of a group; drop all others first if they are too many."""
        if len(self) >= _MAX_PLACES:
            self.clear()
        self.add(addresses)


@dataclass(slots=True)
class Known:
    """A checked group: its metadata, and the words that it contributes to the rows of the last plan that asked.

    ``places`` are the addresses of such groups' tensors, ``overlap`` the facts that decide whether these share memory,
    ``prototypes`` the prototypes of outputs that calls allocate.
    """

    bound: Bound
    signature: Signature
    empty: bool
    places: Places = field(default_factory=Places)
    overlap: Overlap | None = None
    prototypes: dict[str, torch.Tensor] = field(default_factory=dict)
    last: tuple[GroupedPlan, tuple[int, ...]] | None = None

    def prototype(self, output: Output) -> torch.Tensor:
        """Return the prototype of an output."""
        found = self.prototypes.get(output.name)
        if found is None:
            found = self.prototypes[output.name] = prototype_of(self.bound, output)
        return found

    def sizes(self, plan: GroupedPlan) -> tuple[int, ...]:
        """Return the words of the plan's rows of sizes, in order."""
        last = self.last
        if last is None or last[0] is not plan:
            words = tuple(_size(self.bound, field) for field in plan.group_fields if field.kind == "size")
            last = self.last = plan, words
        return last[1]


def _size(bound: Bound, field: Field) -> int:
    """Return an extent, or the stride of a tensor along a mode."""
    return bound.tensors[field.tensor].strides.get(field.role, 0) if field.tensor else bound.sizes[field.role]


def make_table(plan: GroupedPlan, groups: Sequence[Group], known: Sequence[Known]) -> bytes:
    """Return the rows of the plan's table, one after the other, with a word for each group."""
    rows: list[bytes] = []
    sizes = list(zip(*(each.sizes(plan) for each in known), strict=True))
    taken = 0
    inputs = known[0].bound.dag.input
    for member in plan.group_fields:
        name = member.tensor
        if member.kind == "size":
            rows.append(struct.pack(f"={len(groups)}q", *sizes[taken]))
            taken += 1
            continue
        values = _values(groups, name)
        if member.kind == "pointer":
            addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else 0 for value in values]
            rows.append(struct.pack(f"={len(groups)}Q", *addresses))
        else:
            declared = inputs[name]
            default = 0 if declared.default is None else declared.default
            numbers = [value if isinstance(value, int | float) else default for value in values]
            if declared.dtype == I64:
                numbers = [min(max(value, I32.least), I32.largest) for value in numbers]
            rows.append(struct.pack(f"={len(groups)}d", *map(float, numbers)))
    return b"".join(rows)


def _values(groups: Sequence[Group], name: str) -> list[Any]:
    """Return a tensor or number of each group; None if the call omits it. All groups have buffers of all outputs."""
    if name in ("A", "B"):
        return [group.a for group in groups] if name == "A" else [group.b for group in groups]
    if name in groups[0].buffers:
        return [group.buffers[name] for group in groups]
    return [group.inputs.get(name) for group in groups]


def launch(
    plan: GroupedPlan, library: Library, table: bytes, groups: int, varies: Mapping[str, bool], device: torch.device
) -> None:
    """Launch on the current stream of the current device. Raise LaunchError."""
    address = ctypes.cast(ctypes.c_char_p(table), ctypes.c_void_p).value or 0
    workspace = 0

    def arguments() -> bytes:
        values = {"table": address, "workspace": workspace, "groups": groups}
        words = [
            int(varies[field.role.removeprefix("varies ")])
            if field.role.startswith("varies ")
            else values.get(field.role, 0)
            for field in plan.fields
        ]
        return struct.pack(f"={library.form}", *words)

    needed = library.workspace(arguments())
    memory = torch.empty(needed, dtype=torch.uint8, device=device)  # the allocator keeps it until the kernel is done
    workspace = memory.data_ptr()
    packed = arguments()
    code = library.run(packed, len(packed), torch.cuda.current_stream().cuda_stream)
    if code:
        raise launch_failure(code)
