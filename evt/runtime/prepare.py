"""From a checked call to a launch that only needs addresses and numbers: ``prepare(...) -> Prepared``."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import Any

import torch

from evt.ir import Dag, Input, Operand, Output
from evt.ir.dtype import I64
from evt.plan.fields import Field
from evt.reference import is_image
from evt.request import Request, optimised_for
from evt.runtime.bound import Bound
from evt.runtime.fresh import prototype_of, without_memory
from evt.runtime.kernels import Kernels, device_card
from evt.runtime.library import launch_failure
from evt.runtime.memory_format import copied_channels_last, follows_channels_last
from evt.runtime.overlap import Overlap, find_overlap
from evt.runtime.plans import check_batches, launches_of, route_of
from evt.runtime.values import WHOLE, integer_range

# The public functions check for initialisation at every call, which a CUDA tensor has already proven.
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_address = torch.Tensor.data_ptr
_empty_like = torch.empty_like

#: By the lowest byte of an address: how far it is from a multiple of 16 bytes; no kernel needs a larger alignment.
_ALIGNMENTS = bytes(byte & 15 for byte in range(256))
#: A tensor that replaces another, and the buffer to which it is finally copied, if any.
_Conversion = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True, repr=False, eq=False)  # either would read the prototypes, which have no memory
class Prepared:
    """A launch that only needs addresses and numbers.

    A call's *slots* are the addresses of the given tensors (A, B, inputs, buffers), the given numbers, ``constants`` in
    place of omitted values, the addresses of fresh outputs, and the address of the workspace. ``pick`` takes the
    leading members of the kernel's arguments from the slots, ``pack`` makes these bytes, and ``sizes`` are the
    remaining bytes.

    ``allocations`` are (position among the outputs, prototype) of fresh outputs (:mod:`evt.runtime.fresh`).
    ``workspace`` is a prototype too, or None if the kernel needs no workspace. ``integers`` are (slot, least, most) of
    whole numbers; ``wide`` are the slots of i64 numbers. For a call of several launches, ``steps`` has the numbers that
    each launch adds to the picked members, and the bytes of its sizes.

    In a convolution, ``copied`` are the slots of tensors that are not channels_last, each with the prototype of the
    copy of a buffer, or None for an input. The fresh outputs at the positions ``contiguous`` are copied to contiguous
    memory.
    """

    run: Callable[[bytes, int, int], int]
    length: int
    device: int
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    pack: Callable[..., bytes]
    sizes: bytes
    constants: tuple[float, ...]
    allocations: tuple[tuple[int, torch.Tensor], ...]
    workspace: torch.Tensor | None
    integers: tuple[tuple[int, int, int], ...]
    wide: tuple[int, ...]
    overlap: Overlap
    steps: tuple[tuple[tuple[int, ...], bytes], ...] = ()
    copied: tuple[tuple[int, torch.Tensor | None], ...] = ()
    contiguous: tuple[int, ...] = ()

    def convert(self, tensors: Sequence[torch.Tensor], addresses: list[int]) -> list[_Conversion]:
        """Replace tensors that are not channels_last by copies, which have to live until the launch; return them."""
        made = []
        for slot, prototype in self.copied:
            tensor = tensors[slot]
            other = copied_channels_last(tensor) if prototype is None else torch.empty_like(prototype)
            addresses[slot] = other.data_ptr()
            made.append((other, None if prototype is None else tensor))
        return made

    def launch(self, slots: Sequence[Any]) -> None:
        """Launch on the current stream. Raise LaunchError."""
        if self.steps:
            self.launch_each(slots)
            return
        arguments = self.pack(*self.pick(slots)) + self.sizes
        index = self.device
        if _current_device() == index:
            code = self.run(arguments, self.length, _raw_stream(index))
        else:
            with torch.cuda.device(index):
                code = self.run(arguments, self.length, _raw_stream(index))
        if code:
            raise launch_failure(code)

    def launch_each(self, slots: Sequence[Any]) -> None:
        """Launch for each part of the batches, one after the other."""
        if _current_device() != self.device:
            with torch.cuda.device(self.device):
                return self.launch_each(slots)
        picked, stream = self.pick(slots), _raw_stream(self.device)
        for step, sizes in self.steps:
            code = self.run(self.pack(*map(add, picked, step)) + sizes, self.length, stream)
            if code:
                raise launch_failure(code)
        return None

    def launcher(
        self, addresses: Sequence[int], offsets: Sequence[int], otherwise: Callable[..., None]
    ) -> Callable[..., None]:
        """Return a function that launches a call's tensors, for a call without numbers: the shortest way to a launch.

        The kernel reads each tensor at its address plus its offset of ``offsets``, in bytes. If a tensor is not aligned
        as at these ``addresses``, ``otherwise`` gets the call, which may take another kernel.
        """
        run, length, index, prototype = self.run, self.length, self.device, self.workspace
        current_device, raw_stream = _current_device, _raw_stream
        count = len(addresses)
        picked = self.pick(range(count + len(self.constants) + 1))
        order = [slot for slot in picked if slot < count]
        take, pack, pack_one = itemgetter(*order), struct.Struct(f"={len(order)}Q").pack, struct.Struct("=Q").pack
        moved = [offsets[slot] for slot in order] if any(offsets) else []
        expected = bytes(addresses[slot] + offsets[slot] & 15 for slot in order)
        # The first members are pointers, of tensors and to the workspace; then come numbers, and these are constants.
        split = 8 * (len(order) if prototype is None else picked.index(count + len(self.constants)))
        slots = (*addresses, *self.constants, 0)
        rest = self.pack(*self.pick(slots))[8 * (len(order) + (prototype is not None)) :] + self.sizes

        def launch(*tensors: torch.Tensor) -> None:
            found = map(_address, take(tensors))
            words = pack(*(map(add, found, moved) if moved else found))
            if words[::8].translate(_ALIGNMENTS) != expected:
                return otherwise(*tensors)
            if current_device() != index:
                with torch.cuda.device(index):
                    return launch(*tensors)
            if prototype is not None:
                workspace = _empty_like(prototype)
                words = words[:split] + pack_one(workspace.data_ptr()) + words[split:]
            if code := run(words + rest, length, raw_stream(index)):
                raise launch_failure(code)
            return None

        return launch


def prepare(
    request: Request,
    bound: Bound,
    kernels: Kernels,
    tensors: Sequence[tuple[str, torch.Tensor]],
    numbers: Sequence[str],
    buffers: Iterable[str],
) -> Prepared:
    """Fill in all that a call's metadata decides.

    ``tensors`` and ``numbers`` are the call's values, in the order of its slots; ``buffers`` are the outputs among
    the tensors.
    """
    kernel = kernels.best(bound, device_card(bound.index, kernels.plans[0].target.name))
    chosen, library = kernel.plan, kernel.library
    dag = request.dag
    fresh = [output for output in bound.dag.outputs if output.name not in buffers]
    slots = _Slots(dag, [name for name, _ in tensors], numbers, fresh)
    launches = launches_of(chosen, bound.sizes["l"])
    computed = optimised_for(request, bound.dag.operands, bound.absent)
    check_batches(computed, route_of(chosen), chosen.target, bound.sizes["l"])

    members = [member for member in chosen.fields if member.kind != "size"]
    picked, count = [slots.of(member) for member in members], len(members)
    extents = [member for member in chosen.fields if member.kind == "size"]
    sizes = [
        struct.pack(f"={library.form[count:]}", *(_size(bound, member, batches) for member in extents))
        for _, batches in launches
    ]
    needed = max(library.workspace(bytes(8 * count) + each) for each in sizes)
    moved = [member.tensor if member.kind == "pointer" else "" for member in members]
    steps = tuple(_steps(bound, moved, launches, sizes))
    positions = {output.name: position for position, output in enumerate(bound.dag.outputs)}
    given, problem = dict(tensors), bound.convolution
    contiguous = problem is not None and not follows_channels_last(problem.geometry, given["A"], given["B"])
    contiguous = contiguous and not bound.planar
    return Prepared(
        run=library.run,
        length=8 * len(chosen.fields),
        device=bound.index,
        pick=itemgetter(*picked),
        pack=struct.Struct(f"={library.form[:count]}").pack,
        sizes=sizes[0],
        constants=slots.constants,
        allocations=tuple((positions[output.name], prototype_of(bound, output)) for output in fresh),
        workspace=without_memory(torch.empty(needed, dtype=torch.uint8, device=bound.device)) if needed else None,
        integers=tuple(
            (slots.values[name], *integer_range(dag, name)) for name in numbers if dag.input[name].dtype in WHOLE
        ),
        wide=tuple(slots.values[name] for name in numbers if dag.input[name].dtype == I64),
        overlap=find_overlap(bound, tensors, buffers),
        steps=steps if len(steps) > 1 else (),
        copied=tuple(
            (slot, prototype_of(bound, bound.dag.output[name]) if name in buffers else None)
            for slot, (name, _) in enumerate(tensors)
            if name in bound.copied
        ),
        contiguous=tuple(positions[output.name] for output in fresh if contiguous and is_image(output)),
    )


class _Slots:
    """The numbers of a call's slots, in the order that :class:`Prepared` describes."""

    def __init__(self, dag: Dag, tensors: Sequence[str], numbers: Sequence[str], fresh: Sequence[Output]) -> None:
        self.constants = (0, *(0 if value.default is None else value.default for value in dag.inputs))
        self.null = len(tensors) + len(numbers)  # the first constant, 0
        first_fresh = self.null + len(self.constants)
        self.workspace = first_fresh + len(fresh)
        self.pointers = {name: slot for slot, name in enumerate(tensors)}
        self.pointers |= {output.name: first_fresh + index for index, output in enumerate(fresh)}
        self.values = {value.name: self.null + 1 + index for index, value in enumerate(dag.inputs)}
        self.values |= {name: len(tensors) + index for index, name in enumerate(numbers)}

    def of(self, member: Field) -> int:
        """Return the slot of an address or a number among the kernel's arguments."""
        if member.role == "workspace":
            return self.workspace
        return self.pointers.get(member.tensor, self.null) if member.kind == "pointer" else self.values[member.tensor]


def _size(bound: Bound, member: Field, batches: int) -> int:
    """Return a member that is an extent or a stride, of a launch of some batches.

    It is 0 for the stride of a scalar given as a number, and for a setting that the launcher chooses.
    """
    if member.tensor in bound.tensors:
        return bound.tensors[member.tensor].size(member.role)
    return 0 if member.tensor else batches if member.role == "l" else bound.sizes.get(member.role, 0)


def _steps(
    bound: Bound, names: Sequence[str], launches: Sequence[tuple[int, int]], sizes: Sequence[bytes]
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yield the bytes that each launch adds to the addresses of the tensors with these names, and its sizes."""
    of_batch = {name: argument.strides.get("l", 0) * _bytes_of(bound, name) for name, argument in bound.tensors.items()}
    for outer in range(max(map(len, bound.offsets.values()), default=1)):
        for (first, _), mine in zip(launches, sizes, strict=True):
            found = (bound.offsets[name][outer] if name in bound.offsets else 0 for name in names)
            yield tuple(offset + first * of_batch.get(name, 0) for offset, name in zip(found, names, strict=True)), mine


def _bytes_of(bound: Bound, name: str) -> int:
    """Return the bytes of an element of a tensor; packed bits are bytes."""
    values: tuple[Operand | Input | Output, ...] = (*bound.dag.operands, *bound.dag.inputs, *bound.dag.outputs)
    dtype = next(value.dtype for value in values if value.name == name)
    assert dtype is not None
    found: torch.dtype = getattr(torch, dtype.torch)
    return found.itemsize
