"""A call of a program: operands and inputs as arrays for the evaluator and as tensors for evt, and outputs as arrays.

Only here and in the checks is torch imported; values are rounded by :mod:`.rounding` before they become tensors.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .dtypes import RANGE_OF_DATA, TYPES, compute, primary
from .rounding import FLOATS, RANGES, rounded
from .tree import Expression, Input, Output, Program, Read, Reduce, Sizes, children, index_name

Array = np.ndarray
_ALL = ("l", "m", "n", "k")
#: The rows, or columns, of which an index names some.
_ROWS = 7


@dataclass(frozen=True)
class Loaded:
    """An input's values [l, m, n, k], of one element where it does not vary; ``columns``: it varies along n."""

    array: Array
    type: str
    modes: frozenset[str]

    def along(self, order: Sequence[str]) -> Array:
        """Return the values with three axes; the input has no other mode."""
        axes = [_ALL.index(mode) for mode in order]
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
    places: dict[str, Array] = field(default_factory=dict)  # what an index says, by mode
    contraction: int | None = None  # of a convolution what its sums run over, where k are channels

    @property
    def extents(self) -> dict[str, int]:
        """What `size` says of each mode."""
        return self.sizes | ({} if self.contraction is None else {"k": self.contraction})


def problems(program: Program) -> list[Data]:
    """Return the data of a program's call: one problem, or one for each group."""
    if program.operation == "grouped_gemm":
        return [_problem(program, sizes, index) for index, sizes in enumerate(program.groups)]
    return [_problem(program, program.sizes, 0)]


def _problem(program: Program, sizes: Sizes, index: int) -> Data:
    source = random.Random(f"{program.seed} data {index}")
    maker = _Maker(np.random.default_rng(source.getrandbits(63)), program.data)
    data = _convolution(program, maker) if program.geometry else _matrices(program, sizes, maker)
    for mode in {mode: None for value in program.inputs for mode in value.indexed}:
        data.places[mode] = maker.random.integers(-2, _ROWS + 2, dims(data, mode))
    for value in program.inputs:
        data.inputs[value.name], data.given[value.name] = _input(program, value, data, maker)
    return data


def _matrices(program: Program, sizes: Sizes, maker: _Maker) -> Data:
    rows = math.prod(sizes.rows)
    modes_a, modes_b = program.operand_modes
    batch = sizes.batch
    of_a = batch if maker.random.random() < 0.7 else ()
    of_b = batch if of_a != batch or maker.random.random() < 0.6 else ()
    extents = {"m": rows, "n": sizes.n, "k": sizes.k}
    a = maker.operand(program.a, (*of_a, *(extents[mode] for mode in modes_a)))
    b = maker.operand(program.b, (*of_b, *(extents[mode] for mode in modes_b)))
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


def _convolution(program: Program, maker: _Maker) -> Data:
    g = program.geometry
    assert g is not None
    activation = (g.images, g.channels, *g.pixels)
    output = (g.images, g.filters, *g.results)
    weight = (g.filters, g.channels // g.groups, *g.filter)
    shapes = {"fprop": (activation, weight), "dgrad": (output, weight), "wgrad": (output, activation)}[g.operator]
    # Whether padding is multiplied with what is no number is nobody's promise.
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
    """Return the dimensions of a mode, which may be divided: n/2."""
    name, _, number = mode.partition("/")
    return (data.sizes[name] // int(number),) if number else data.leads[mode]


def type_of(program: Program, value: Input) -> str:
    """Return the type of an input."""
    if value.type is not None:
        return value.type
    if not set(value.modes) - {"l"}:
        return "f64" if compute(program.a) == "f64" else "f32"
    return tensor_type(program)


def _input(program: Program, value: Input, data: Data, maker: _Maker) -> tuple[Loaded, Any]:
    dtype = type_of(program, value)
    if value.given == "absent":
        return Loaded(rounded(dtype, np.full((1, 1, 1, 1), float(value.default))), dtype, frozenset()), None
    if value.given in ("number", "element"):
        number = maker.scalar(dtype, value.name)
        array = number if value.given == "number" else np.full(maker.pick(((), (1,))), number)
        return Loaded(np.full((1, 1, 1, 1), number), dtype, frozenset()), array
    modes = value.modes
    batch = value.given == "batched"
    written = ("l", *modes) if batch else modes
    own = {mode: (_ROWS,) if mode in value.indexed else dims(data, mode) for mode in written}
    shape = [size for mode in written for size in own[mode]]
    index = next((mode for mode in data.places if value.name == index_name(mode)), None)
    tensor = maker.values(dtype, tuple(shape)) if index is None else data.places[index].astype(float)
    flat = tensor.reshape([math.prod(own[mode]) for mode in written])
    bases = [mode.partition("/")[0] for mode in written]
    order = sorted(range(len(bases)), key=lambda axis: _ALL.index(bases[axis]))
    extents = {base: flat.shape[axis] for axis, base in enumerate(bases)}
    array = flat.transpose(order).reshape([extents.get(mode, 1) for mode in _ALL])
    for mode in value.indexed:
        array = _read_at(array, data.places[mode].reshape(-1), _ALL.index(mode))
    if program.geometry and modes == ("m", "n") and dtype != "b1" and not value.indexed:
        tensor = np.moveaxis(tensor, -1, 1)
    return Loaded(array, dtype, frozenset(bases)), tensor


def _read_at(array: Array, places: Array, axis: int) -> Array:
    """Return the elements at places along an axis, zeros where there is none."""
    found = np.zeros([len(places) if each == axis else size for each, size in enumerate(array.shape)])
    for at, place in enumerate(places):
        if 0 <= place < array.shape[axis]:
            found.swapaxes(0, axis)[at] = array.swapaxes(0, axis)[place]
    return found


class _Maker:
    """Makes values of a kind: ``"plain"`` quarters, ``"normal"``, or ``"edge"`` with what is rare or no number."""

    def __init__(self, generator: np.random.Generator, kind: str) -> None:
        self.random = generator
        self.kind = kind

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def operand(self, dtype: str, shape: tuple[int, ...], rare: float = 0.01) -> Array:
        return self.values(dtype, shape, rare)

    def scalar(self, dtype: str, name: str) -> float:
        if name in ("seed", "offset"):
            return float(self.pick((0, 1, 7, 2**31 - 1, -1, -(2**31), 2**32 - 1, 123456789)))
        return float(self.values(dtype, (1,))[0])

    def values(self, dtype: str, shape: tuple[int, ...], rare: float = 0.2) -> Array:
        kind = TYPES[dtype].kind
        if kind == "bit":
            return self.random.integers(0, 2, shape).astype(float)
        if kind == "integer":
            low, high = RANGE_OF_DATA[dtype] if self.kind != "plain" else (-5, 5)
            found = self.random.integers(0 if dtype == "u8" else low, high + 1, shape).astype(float)
            special: Sequence[float] = (*RANGES[dtype], 0.0, 1.0)
        elif self.kind == "plain":
            return rounded(dtype, self.random.integers(-12, 13, shape) / 4)
        else:
            found = self.random.normal(size=shape) * self.pick((1.0, 1.0, 0.1, 8.0))
            special = _specials(dtype)
        if self.kind == "edge":
            chosen = np.array(special)[self.random.integers(0, len(special), shape)]
            found = np.where(self.random.random(shape) < rare, chosen, found)
        return rounded(dtype, found) if dtype != "e5m2" else np.where(np.isinf(found), found, rounded(dtype, found))


def _specials(dtype: str) -> tuple[float, ...]:
    """Values at which something happens: those that are no number, the ends of the range, zeros, halves."""
    if dtype == "f64":
        fraction, least, largest = 52, -1022, 1.7976931348623157e308
    else:
        fraction, least, largest, _ = FLOATS[dtype]
    tiny, normal = math.ldexp(1.0, least - fraction), math.ldexp(1.0, least)
    ends = [sign * size for sign, size in itertools.product((1.0, -1.0), (largest, tiny, normal, 0.0, 1.0, 0.5))]
    infinite = () if dtype == "e4m3" else (math.inf, -math.inf)
    return (math.nan, *infinite, *ends, 3.0, 6.0, 20.0, 100.0, -100.0)


def tensor(dtype: str, values: Array) -> Any:
    """Return a tensor of the type, of values that it has."""
    import torch

    target = getattr(torch, TYPES[dtype].torch)
    if dtype == "b1":
        bits = np.packbits(values.astype(np.uint8), axis=-1, bitorder="little")
        values = bits
    kind = {"integer": np.int64, "bit": np.uint8, "float": np.float64}[TYPES[dtype].kind]
    made = torch.empty(values.shape, dtype=target)
    made.copy_(torch.from_numpy(np.array(values, dtype=kind, order="C")))
    words = {"f64": torch.int64, "f32": torch.int32, "f16": torch.int16, "bf16": torch.int16}
    if dtype in words and made.isnan().any():  # CUDA's NaN has every bit set
        bits = made.view(words[dtype])
        bits[made.isnan()] = torch.iinfo(words[dtype]).max
    return made


def arguments(program: Program, data: Data) -> tuple[Any, Any, dict[str, Any]]:
    """Return A, B and the inputs as evt is called with them."""
    operands = []
    for name, dtype, swap in zip("AB", (program.a, program.b), program.transposed, strict=True):
        made = tensor(dtype, data.given[name])
        leads = data.leads["l"] if name == "A" and program.operation != "linear" else data.leads["m"][1:]
        operands.append(made.mT.contiguous().mT if swap and (leads == () or name == "B") else made)
    inputs: dict[str, Any] = {}
    for value in program.inputs:
        given = data.given[value.name]
        if value.given == "absent":
            continue
        dtype = data.inputs[value.name].type
        if isinstance(given, float):
            whole = dtype == "i32"
            inputs[value.name] = int(given) if whole else given
        else:
            inputs[value.name] = tensor(dtype, given)
    return operands[0], operands[1], inputs


# Outputs


def reductions(program: Program) -> dict[str, frozenset[str]]:
    """Return the modes over which each output is reduced, of outputs that are reductions or computed of some."""
    values = {each.name: each.value for each in program.assigns}
    found = {}
    for output in program.outputs:
        stack, seen = [output.name], {output.name}
        while stack:
            for node in walk_values(values[stack.pop()]):
                if isinstance(node, Reduce):
                    found[output.name] = frozenset(node.modes)
                elif isinstance(node, Read) and node.name in values and node.name not in seen:
                    seen.add(node.name)
                    stack.append(node.name)
    return found


def walk_values(node: Expression) -> Iterator[Expression]:
    """Return what an expression is made of, without what its reductions reduce."""
    yield node
    if not isinstance(node, Reduce):
        for child in children(node):
            yield from walk_values(child)


def output_type(program: Program, output: Output, reduction: str | None) -> str:
    """Return the type of an output; ``reduction`` is the type that one is computed in, where it is one."""
    return output.type or reduction or tensor_type(program)


def main_output(program: Program) -> Output:
    """D, or what takes its part: the first matrix of whole elements, or the first output."""
    named = [each for each in program.outputs if each.name == "D"]
    whole = [each for each in program.outputs if set(each.modes) - {"l"} == {"m", "n"} and each.type != "b1"]
    return (*named, *whole, *program.outputs)[0]


def tensor_type(program: Program) -> str:
    """Return the type of undeclared tensors."""
    main = main_output(program)
    follows = main.name == "D" or set(main.modes) - {"l"} == {"m", "n"}
    return primary(program.a, main.type if follows and main.type != "b1" else None)


def memory_modes(output: Output, reduced: frozenset[str]) -> tuple[str, ...]:
    """Return the modes of an output's tensor: an implied batch comes first, where matrices and reductions have one."""
    has_batches = bool(reduced) or len(output.modes) > 1
    implied = has_batches and "l" not in output.modes and "l" not in reduced
    return ("l", *output.modes) if implied else output.modes


def shape_of(program: Program, data: Data, output: Output, dtype: str, reduced: frozenset[str]) -> tuple[int, ...]:
    """Return the shape of an output as a call returns it."""
    shape = tuple(size for mode in memory_modes(output, reduced) for size in dims(data, mode))
    if dtype == "b1":
        return (*shape[:-1], -(-shape[-1] // 8))
    if is_image(program, output):
        return (shape[0], shape[-1], *shape[1:-1])
    return shape


def is_image(program: Program, output: Output) -> bool:
    """Return whether an output, not of bits, is [N, C, ...]."""
    return program.geometry is not None and output.modes == ("m", "n")


def canonical(program: Program, data: Data, output: Output, dtype: str, reduced: frozenset[str], found: Any) -> Array:
    """Return an output's values [l, m, n], in doubles, with one element where it has no such mode."""
    import torch

    if dtype == "b1":
        columns = dims(data, output.modes[-1])[-1]
        values = np.unpackbits(found.numpy(), axis=-1, count=columns, bitorder="little").astype(float)
    else:
        values = found.to(torch.float64).numpy()
        if is_image(program, output):
            values = np.moveaxis(values, 1, -1)
    modes = memory_modes(output, reduced)
    flat = values.reshape([math.prod(dims(data, mode)) for mode in modes])
    bases = [mode.partition("/")[0] for mode in modes]
    order = sorted(range(len(bases)), key=lambda axis: _ALL.index(bases[axis]))
    extents = {base: flat.shape[axis] for axis, base in enumerate(bases)}
    return flat.transpose(order).reshape([extents.get(mode, 1) for mode in ("l", "m", "n")])
