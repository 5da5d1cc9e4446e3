"""A call of a program: operands and inputs as arrays for the evaluator and as tensors for evt, and outputs as arrays.

Values are rounded by :mod:`.rounding` before they become tensors.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import evt

from .dtypes import PACKED, TYPES
from .interface import counts, is_factor, memory_modes, output_type, type_of
from .rounding import rounded
from .tree import Expression, Input, Number, Output, Program, Read, Sizes, index_name
from .values import Array, Maker, tensor
from .views import Views

MODES = ("l", "m", "n", "k")
#: The rows, or columns, of a tensor that an index reads.
_ROWS = 7


@dataclass(frozen=True)
class Loaded:
    """An input's values [l, m, n, k], of one element where it does not vary; ``columns``: it varies along n."""

    array: Array
    type: str
    modes: frozenset[str]

    def along(self, order: Sequence[str]) -> Array:
        """Return the values with three axes; the input has no other mode."""
        axes = [MODES.index(mode) for mode in order]
        return self.array.transpose(*axes, *(axis for axis in range(4) if axis not in axes))[..., 0]


@dataclass(frozen=True)
class Data:
    """One problem. ``a`` and ``b`` are [l, m, k] and [l, n, k], or a convolution's tensors as PyTorch shapes them."""

    sizes: dict[str, int]
    leads: dict[str, tuple[int, ...]]
    a: Array
    b: Array
    elements: dict[str, Array]
    inputs: dict[str, Loaded]
    given: dict[str, Any] = field(default_factory=dict)  # the call: A, B and inputs, as numbers and arrays in shape
    places: dict[str, Array] = field(default_factory=dict)  # values of an index, by its modes
    held: dict[str, Array] = field(default_factory=dict)  # the buffers of outputs that are scattered
    contraction: int | None = None  # for a convolution, the length of its sums; k are channels

    def counter(self, node: Expression) -> tuple[int, int]:
        """Return a seed or an offset, a literal or an input, and its number of bits."""
        if isinstance(node, Number):
            return int(node.value), 32
        assert isinstance(node, Read)
        return int(np.asarray(self.given[node.name]).item()), 64 if self.inputs[node.name].type == "i64" else 32

    def rows(self, mode: str) -> int:
        """Return the number of rows, or columns, of a buffer that an index addresses."""
        return self.sizes[mode] + 2

    def along(self, index: str) -> Array:
        """Return the values of an index, [l, m] or [l, n]; one batch if all batches share them."""
        return self.places[index].reshape(self.sizes["l"] if "l" in index else 1, -1)

    @property
    def extents(self) -> dict[str, int]:
        """The value of `size` for each mode."""
        return self.sizes | ({} if self.contraction is None else {"k": self.contraction})


def problems(program: Program) -> list[Data]:
    """Return the data of a program's call: one problem, or one for each group."""
    if program.operation == "grouped_gemm":
        groups = [_problem(program, sizes, index) for index, sizes in enumerate(program.groups)]
        return with_shared_numbers(program, groups) if program.by_offsets else groups
    return [_problem(program, program.sizes, 0)]


def is_shared(value: Input, data: Data) -> bool:
    """Return whether a call gives one number for all groups of consecutive rows."""
    return isinstance(data.given[value.name], float | int) or (value.given == "element" and bool(value.modes))


def with_shared_numbers(program: Program, groups: list[Data]) -> list[Data]:
    """Return the problems of groups whose inputs are equal where a call gives one number for all groups."""
    names, first = [value.name for value in program.inputs if is_shared(value, groups[0])], groups[0]
    shared, given = ({name: of[name] for name in names} for of in (first.inputs, first.given))
    return [replace(each, inputs={**each.inputs, **shared}, given={**each.given, **given}) for each in groups]


def _problem(program: Program, sizes: Sizes, number: int) -> Data:
    source = random.Random(f"{program.seed} data {number}")
    maker = Maker(np.random.default_rng(source.getrandbits(63)), program.data)
    data = _convolution(program, maker) if program.geometry else _matrices(program, sizes, maker)
    stored = {index for output in program.outputs for index in output.indexed}
    indexed = [*(each.indexed for each in program.inputs), *(each.indexed for each in program.outputs)]
    for index in dict.fromkeys(index for each in indexed for index in each):
        data.places[index] = _places(data, index, index in stored, maker)
    for value in program.inputs:
        data.inputs[value.name], data.given[value.name] = _input(program, value, data, maker)
    for output in program.outputs:
        if output.indexed:
            own = {index[-1]: (data.rows(index[-1]),) for index in output.indexed}
            shape = [size for mode in memory_modes(output, frozenset()) for size in own.get(mode) or dims(data, mode)]
            data.held[output.name] = maker.values(output_type(program, output, None), tuple(shape))
    return data


def _places(data: Data, index: str, once: bool, maker: Maker) -> Array:
    """Return the values of an index, some out of range; with ``once``, no two rows have the same value."""
    shape = tuple(size for mode in index for size in dims(data, mode))
    if not once:
        return maker.random.integers(-2, _ROWS + 2, shape)
    lead, count = data.sizes["l"] if "l" in index else 1, data.sizes[index[-1]]
    named = [maker.random.permutation(np.arange(-2, data.rows(index[-1]) + 1))[:count] for _ in range(lead)]
    return np.array(named, dtype=np.int64).reshape(shape)


def _matrices(program: Program, sizes: Sizes, maker: Maker) -> Data:
    rows = math.prod(sizes.rows)
    modes_a, modes_b = program.operand_modes
    batch = sizes.batch
    of_a = batch if maker.random.random() < 0.7 else ()
    of_b = batch if of_a != batch or maker.random.random() < 0.6 else ()
    if len(batch) > 1 and of_a == of_b and maker.random.random() < 0.4 and not counts(program, "l"):
        of_a, of_b = (batch[0], 1), (1, *batch[1:])
    extents = {"m": rows, "n": sizes.n, "k": sizes.k}
    rare = min(0.01, 0.2 / max(sizes.k, 1))  # so that most sums are finite
    a = maker.operand(program.a, (*of_a, *(extents[mode] for mode in modes_a)), rare)
    b = maker.operand(program.b, (*of_b, *(extents[mode] for mode in modes_b)), rare)
    count = math.prod(batch)

    def whole(array: Array, swap: bool) -> Array:
        array = array.swapaxes(-1, -2) if swap else array
        return np.broadcast_to(array, (*batch, *array.shape[-2:])).reshape(count, *array.shape[-2:])

    first, second = whole(a, modes_a == ("k", "m")), whole(b, modes_b == ("k", "n"))
    leads = {"l": batch, "m": sizes.rows, "n": (sizes.n,), "k": (sizes.k,)}
    if len(sizes.rows) > 1:  # of linear
        a = a.reshape(*sizes.rows, sizes.k)
    given = {"A": a, "B": b}
    return Data({"l": count, **extents}, leads, first, second, {"A": first, "B": second}, {}, given)


def _convolution(program: Program, maker: Maker) -> Data:
    g = program.geometry
    assert g is not None
    activation = (g.images, g.channels, *g.pixels)
    output = (g.images, g.filters, *g.results)
    weight = (g.filters, g.channels // g.groups, *g.filter)
    shapes = {"fprop": (activation, weight), "dgrad": (output, weight), "wgrad": (output, activation)}[g.operator]
    # Whether padding is multiplied by NaN or infinity is unspecified.
    a, b = maker.operand(program.a, shapes[0], 0.0), maker.operand(program.b, shapes[1], 0.0)
    leads = {
        "fprop": {"m": (g.images, *g.results), "n": (g.filters,), "k": (g.channels,)},
        "dgrad": {"m": (g.images, *g.pixels), "n": (g.channels,), "k": (g.filters,)},
        "wgrad": {"m": (g.filters,), "n": (*g.filter, g.channels // g.groups), "k": (1,)},
    }[g.operator]
    leads["l"] = ()
    sizes = {mode: math.prod(dims) for mode, dims in leads.items()}
    elements = {"A": np.moveaxis(a, 1, -1).reshape(1, -1, a.shape[1])}
    taps, channels = math.prod(g.filter), {"fprop": g.channels, "dgrad": g.filters}.get(g.operator, 0) // g.groups
    contraction = taps * channels if g.operator != "wgrad" else g.images * math.prod(g.results)
    return Data(sizes, leads, a, b, elements, {}, {"A": a, "B": b}, contraction=contraction)


def dims(data: Data, mode: str) -> tuple[int, ...]:
    """Return the dimensions of a mode, which may be divided: n/2; the last block of a factor may be partial."""
    name, _, number = mode.partition("/")
    return (-(-data.sizes[name] // int(number)),) if number else data.leads[mode]


def _input(program: Program, value: Input, data: Data, maker: Maker) -> tuple[Loaded, Any]:
    dtype = type_of(program, value)
    if value.given == "absent":
        return Loaded(rounded(dtype, np.full((1, 1, 1, 1), float(value.default))), dtype, frozenset()), None
    if value.given in ("number", "element"):
        number = maker.scalar(dtype, value.name, value.given == "element")
        array = number if value.given == "number" else np.full(maker.pick(((), (1,))), number)
        return Loaded(np.full((1, 1, 1, 1), float(number)), dtype, frozenset()), array
    modes = value.modes
    batch = value.given == "batched"
    written = ("l", *modes) if batch else modes
    gathered = {index[-1] for index in value.indexed}
    own = {mode: (_ROWS,) if mode in gathered else dims(data, mode) for mode in written}
    shape = [size for mode in written for size in own[mode]]
    index = next((mode for mode in data.places if value.name == index_name(mode)), None)
    tensor = maker.values(dtype, tuple(shape)) if index is None else data.places[index].astype(float)
    flat = tensor.reshape([math.prod(own[mode]) for mode in written])
    bases = [mode.partition("/")[0] for mode in written]
    order = sorted(range(len(bases)), key=lambda axis: MODES.index(bases[axis]))
    if is_factor(value):  # its sums must not overflow
        tensor = rounded(dtype, maker.random.uniform(0.5, 2.0, tuple(shape)))
        flat = tensor.reshape([math.prod(own[mode]) for mode in written])
        for axis, mode in enumerate(written):
            base, _, width = mode.partition("/")
            flat = flat.repeat(int(width or 1), axis).take(range(data.sizes[base]), axis)
    extents = {base: flat.shape[axis] for axis, base in enumerate(bases)}
    array = flat.transpose(order).reshape([extents.get(mode, 1) for mode in MODES])
    for each in value.indexed:
        array = read_at(array, data.along(each), MODES.index(each[-1]))
    if program.geometry and modes == ("m", "n") and dtype != "b1" and not value.indexed:
        tensor = np.moveaxis(tensor, -1, 1)
    return Loaded(array, dtype, frozenset(bases)), tensor


def scaled_elements(program: Program, data: Data, name: str) -> Array:
    """Return the elements of an operand times its factors, which are not rounded."""
    x, order = data.elements[name], ("l", "m" if name == "A" else "n", "k")
    for each in program.factors:
        if each.operand == name:
            factor = data.inputs[each.name].along(order)
            x = x / factor if each.divides else x * factor
    return x


def read_at(array: Array, places: Array, axis: int) -> Array:
    """Return the elements at places [l, m] or [l, n] along an axis, zeros where there is none."""
    layers = len(places) if len(places) != 1 else len(array)
    source, places = (np.broadcast_to(each, (layers, *each.shape[1:])) for each in (array, places))
    shape = [places.shape[1] if each == axis else size for each, size in enumerate(source.shape)]
    found = np.zeros(shape)
    for layer, at in np.ndindex(places.shape):
        if 0 <= (place := places[layer, at]) < array.shape[axis]:
            found[layer].swapaxes(0, axis - 1)[at] = source[layer].swapaxes(0, axis - 1)[place]
    return found


def arguments(program: Program, data: Data) -> tuple[Any, Any, dict[str, Any]]:
    """Return A, B and the inputs as evt is called with them."""
    layouts = Views(program, data)
    operands = []
    for name, dtype, swap in zip("AB", (program.a, program.b), program.transposed, strict=True):
        made = tensor(dtype, data.given[name])
        leads = data.leads["l"] if name == "A" and program.operation != "linear" else data.leads["m"][1:]
        made = made.mT.contiguous().mT if swap and (leads == () or name == "B") else made
        if dtype in PACKED:
            operands.append(evt.prepare(evt.pack_int4(made, signed=dtype == "i4")))
            continue
        operands.append(layouts.operand(made))
    inputs: dict[str, Any] = {}
    for value in program.inputs:
        given = data.given[value.name]
        if value.given == "absent":
            continue
        dtype = data.inputs[value.name].type
        if isinstance(given, float | int):
            inputs[value.name] = int(given) if TYPES[dtype].kind != "float" else given
        else:
            inputs[value.name] = layouts.input(value, tensor(dtype, given))
    return operands[0], operands[1], inputs


def buffers(program: Program, data: Data) -> dict[str, Any]:
    """Return buffers with initial values for the scattered outputs."""
    layouts = Views(program, data)
    outputs = (output for output in program.outputs if output.indexed)
    return {each.name: layouts.output(each, _held(program, data, each)) for each in outputs}


def _held(program: Program, data: Data, output: Output) -> Any:
    return tensor(output_type(program, output, None), data.held[output.name])
