"""The oracle: what a program means, in PyTorch, on any device.

``evaluate`` walks a typed graph over an accumulator; ``reference`` forms the accumulator first. Products are summed in
f64 and rounded once. What kernels compute in f32 then is computed in f32, or in f64 as a yardstick for them; integers
and f64 as they are. Casts are real rounding points in both. This module imports torch; nothing imports it until a
program is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from evt.functions import TABLE
from evt.ir.convolution import Convolution
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, I32, DType, accumulator
from evt.ir.infer import domain, met, reduced_type
from evt.ir.node import (
    ELEMENT_MODES,
    MODES,
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Fold,
    Index,
    Input,
    Load,
    Output,
    Pick,
    Random,
    Reduce,
    Store,
    ValueType,
    base,
    divisor,
)
from evt.ir.operand import epilogue_of, formula_of
from evt.reference import functions
from evt.reference.convolution import convolve, from_view, to_view
from evt.reference.neutral import neutral
from evt.reference.philox import uniform
from evt.reference.rounding import pack_bits, packed, round_to, unpack_bits, working

__all__ = ["evaluate", "operand_values", "reference"]

#: The dimensions that each mode stands for in shapes: a batch may have several, and the rows of ``linear``.
Leads = Mapping[str, tuple[int, ...]]


def reference(
    dag: TypedDag,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    inputs: Mapping[str, Any],
    *,
    float64: bool = False,
    convolution: Convolution | None = None,
) -> dict[str, torch.Tensor]:
    """The outputs of a program by name, in ``out`` order.

    A and B have their operand's modes in their last two dimensions; the dimensions before them are batches,
    which broadcast as in torch.matmul. A of ``linear`` has any number of row dimensions instead. Those of a
    ``convolution`` are [N, C, ...] and [K, C, ...], and so are the tensors with the accumulator's modes [m, n].
    """
    dtype = torch.float64 if float64 else torch.float32
    with neutral(A.device):
        if convolution is not None:
            return _convolution(dag, A, B, inputs, convolution, dtype)
        return _product(dag, A, B, inputs, dtype)


def _product(
    dag: TypedDag, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    modes_a, modes_b = (operand.modes for operand in dag.operands)
    a, b = a if modes_a == ("m", "k") else a.mT, b.mT if modes_b == ("k", "n") else b
    a = _operand_values(dag, "A", a, inputs, dtype).to(torch.float64)
    b = _operand_values(dag, "B", b, inputs, dtype).to(torch.float64).mT
    leads: Leads
    if dag.operation == "linear" and modes_a == ("m", "k"):
        leads = {"l": (), "m": tuple(a.shape[:-1]), "n": (b.shape[-1],)}
        acc = a.reshape(math.prod(leads["m"]), a.shape[-1]) @ b
    else:
        acc = a @ b
        leads = _leads(acc)
    return _evaluate(dag, _accumulated(dag, acc, dtype), leads, inputs, dtype)


def _accumulated(dag: TypedDag, acc: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sums in f64, which has those of integers exactly, as the accumulator's type: i32 wraps."""
    wanted = working(accumulator(dag.operands[0].dtype), dtype)
    return acc.to(wanted if wanted.is_floating_point else torch.int64).to(wanted)


def _convolution(
    dag: TypedDag,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    geometry: Convolution,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    problem = geometry.problem(a.shape, b.shape)
    if "A" in dag.feeds:  # before padding, whose zeros are not worked on
        a = from_view(_operand_values(dag, "A", to_view(a), inputs, dtype))
    acc = convolve(geometry, problem, a.to(torch.float64), b.to(torch.float64))
    views = {name: as_view(dag.input.get(name), value, geometry) for name, value in inputs.items()}
    results = _evaluate(dag, _accumulated(dag, acc, dtype), problem.leads, views, dtype)
    return {name: as_image(dag.output[name], result) for name, result in results.items()}


def is_image(value: Input | Output) -> bool:
    """Whether a convolution's input or output is [N, C, ...], as PyTorch shapes it: one of the accumulator's modes.

    Bits stay packed, channels last.
    """
    return value.modes == ("m", "n") and value.dtype != B1


def as_view(value: Input | Output | None, given: Any, geometry: Convolution) -> Any:
    """What a call gives for an input or output: seen as the implicit GEMM's, channels last, where it is an image."""
    image = value is not None and is_image(value) and isinstance(given, torch.Tensor)
    return to_view(given) if image and given.dim() == geometry.rank + 2 else given


def as_image(output: Output, result: torch.Tensor) -> torch.Tensor:
    """An output of the implicit GEMM as PyTorch shapes it."""
    return from_view(result) if is_image(output) else result


def operand_values(
    dag: TypedDag, name: str, tensor: torch.Tensor, inputs: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """What is multiplied in the place of an operand: its formula of each element, rounded to the operand's type.

    ``tensor`` has k as its last dimension; the dimensions before are batches and then m (of A) or n (of B), which for
    a vector along it may be several. With ``dtype`` f64 floats are not rounded. Without a formula the tensor comes
    back.
    """
    with neutral(tensor.device):
        return _operand_values(dag, name, tensor, inputs, dtype)


def _operand_values(
    dag: TypedDag, name: str, tensor: torch.Tensor, inputs: Mapping[str, Any], dtype: torch.dtype
) -> torch.Tensor:
    if name not in dag.feeds:
        return tensor
    outer, k = ELEMENT_MODES[name]
    dims = tuple(tensor.shape[:-1])
    leads = {outer: dims if dag.operation == "linear" and name == "A" else dims[-1:], k: tuple(tensor.shape[-1:])}
    operand = next(each.dtype for each in dag.operands if each.name == name)
    batch = math.prod(dims[: len(dims) - len(leads[outer])])
    elements = tensor.reshape(batch, math.prod(leads[outer]), tensor.shape[-1])
    values: dict[int, torch.Tensor] = {}
    for node in formula_of(dag, name):
        operands = [values[each] for each in dag.arguments(node)]
        match dag[node]:
            case Element():
                values[node] = elements.to(working(operand, dtype))
            case Load(loaded):
                values[node] = _load(dag.input[loaded], inputs, leads, tensor.device, dtype, (outer, k))
            case Const() as constant:
                values[node] = torch.tensor(constant.value, dtype=torch.float64, device=tensor.device)
            case Apply(function):
                types = [dag.types[each] for each in dag.arguments(node)]
                values[node] = _apply(dag, function, operands, types, dtype)
            case Cast(to):
                source = dag.types[dag.arguments(node)[0]]
                values[node] = round_to(to, _met(operands[0], source, to, dtype)).to(working(to, dtype))
            case op:
                raise AssertionError(op)
    fed = dag.arguments(dag.feeds[name])[0]
    value = _met(values[fed], dag.types[fed], operand, dtype)
    exact = dtype == torch.float64 and operand.is_float
    value = value.to(working(operand, dtype)) if exact else round_to(operand, value)
    return value.expand(elements.shape).reshape(tensor.shape)


def evaluate(
    dag: TypedDag, acc: torch.Tensor, inputs: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """The outputs by name for an accumulator ``[..., m, n]``.

    ``inputs`` are what a call gives: tensors in the order of their modes, with the batch's dimensions before
    them where a program leaves that open; scalars as numbers or one-element tensors. With ``dtype`` f32 each
    output is rounded to its type; with f64 the outputs stay f64. Raises ValueError for a shape that does not
    fit.
    """
    with neutral(acc.device):
        acc = acc.to(working(accumulator(dag.operands[0].dtype), dtype))
        return _evaluate(dag, acc, _leads(acc), inputs, dtype)


def _leads(acc: torch.Tensor) -> Leads:
    return {"l": tuple(acc.shape[:-2]), "m": (acc.shape[-2],), "n": (acc.shape[-1],)}


def _evaluate(
    dag: TypedDag, acc: torch.Tensor, leads: Leads, inputs: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Walk the epilogue's graph in id order. Values are ``[l, m, n]``, with 1 where they do not vary, or 0-d."""
    dag = epilogue_of(dag)
    sizes = {mode: math.prod(leads[mode]) for mode in MODES}
    acc = acc.reshape([sizes[mode] for mode in MODES])
    last_use = [max(users, default=node) for node, users in enumerate(dag.users)]
    values: dict[int, torch.Tensor] = {}
    results: dict[str, torch.Tensor] = {}
    for node in range(len(dag)):
        arguments = dag.arguments(node)
        operands = [values[operand] for operand in arguments]
        types = [dag.types[operand] for operand in arguments]
        match dag[node]:
            case Acc():
                values[node] = acc
            case Load(name):
                values[node] = _load(dag.input[name], inputs, leads, acc.device, dtype)
            case Const(_, modes) as constant:
                extents = {base(mode): sizes[base(mode)] // divisor(mode) for mode in modes}
                value = torch.tensor(constant.value, dtype=torch.float64, device=acc.device)
                values[node] = value.expand([extents.get(mode, 1) for mode in MODES] if modes else [])
            case Apply(function):
                values[node] = _apply(dag, function, operands, types, dtype)
            case Cast(to):
                values[node] = round_to(to, _met(operands[0], types[0], to, dtype)).to(working(to, dtype))
            case Reduce(kind, modes):
                value = _spread(operands[0]).to(working(reduced_type(dag, types[0]), dtype))
                full = value.expand([sizes[mode] if mode in modes else extent for mode, extent in _extents(value)])
                values[node] = _reduced(kind, full, [MODES.index(mode) for mode in modes])
            case Fold(kind, width):
                value = _spread(operands[0]).to(working(reduced_type(dag, types[0]), dtype))
                blocks = value.unsqueeze(3).expand(*value.shape, width)  # of a value that is the same in all columns
                if "n" in types[0].modes:
                    blocks = value.reshape(*value.shape[:2], _divide(sizes["n"], width), width)
                values[node] = _reduced(kind, blocks, [3]).squeeze(3)
            case Pick(member, block):
                value = _spread(operands[0])
                if "n" not in types[0].modes:
                    values[node] = value
                    continue
                pairs = value.reshape(*value.shape[:2], _divide(sizes["n"], 2 * block), 2, block)
                values[node] = pairs[:, :, :, member].flatten(2)
            case Index(mode):
                shape = [-1 if each == mode else 1 for each in MODES]
                values[node] = torch.arange(sizes[mode], dtype=torch.int32, device=acc.device).reshape(shape)
            case Random():
                seed, offset = (int(operand) for operand in operands)
                values[node] = uniform(seed, offset, [sizes[mode] for mode in MODES], acc.device).to(dtype)
            case Store(name):
                output = dag.output[name]
                assert output.dtype is not None
                value = _met(operands[0], types[0], output.dtype, dtype)
                results[name] = _store(output, value, leads, exact=dtype == torch.float64)
        for operand in set(arguments):
            if last_use[operand] == node:
                del values[operand]
    return {output.name: results[output.name] for output in dag.outputs}


def _apply(
    dag: TypedDag, function: str, operands: Sequence[torch.Tensor], types: Sequence[ValueType], dtype: torch.dtype
) -> torch.Tensor:
    """One function, on operands converted to the type that it computes in; block values meet whole columns."""
    row = TABLE[function]
    to = working(domain(dag, function, types), dtype)
    converted = [
        operand.to(torch.bool if slot in row.conditions else to) for slot, operand in enumerate(_aligned(operands))
    ]
    result: torch.Tensor
    if not row.source:
        result = row.torch(functions, *converted)
    else:
        with torch.device("cpu"):  # PyTorch's own default, for what a user's function makes
            result = row.torch(torch, *converted)
    return result


def _met(value: torch.Tensor, have: ValueType, dtype: DType, computed: torch.dtype) -> torch.Tensor:
    """What is cast or stored as a type: a constant, which is kept as it is written, in the type that it then has."""
    return value.to(working(met(have, dtype), computed)) if have.constant else value


def _aligned(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Operands that broadcast: a value of each block of columns is repeated for the block's columns."""
    columns = max((operand.shape[2] for operand in operands if operand.dim() == 3), default=1)
    return [
        operand.repeat_interleave(columns // operand.shape[2], 2)
        if operand.dim() == 3 and operand.shape[2] not in (0, 1, columns)
        else operand
        for operand in operands
    ]


def _reduced(kind: str, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """A reduction that keeps the dimensions and the type of its operand; NaN wins in max and min.

    By halves, so that the order, and with it the last bit of a sum, depends on the extents alone.
    """
    kept = [dim for dim in range(value.dim()) if dim not in dims]
    rest = value.permute(*kept, *dims).flatten(len(kept))
    while (count := rest.shape[-1]) > 1:
        half = count // 2
        combined = _COMBINED[kind](rest[..., :half], rest[..., half : 2 * half])
        rest = torch.cat([combined, rest[..., 2 * half :]], -1) if count % 2 else combined
    if not count:
        rest = torch.full((*rest.shape[:-1], 1), _identity(kind, value.dtype), dtype=value.dtype, device=value.device)
    elif kind == "sum":
        rest = rest + 0  # to which kernels add
    return rest.reshape([1 if dim in dims else size for dim, size in enumerate(value.shape)])


_COMBINED: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": functions.maximum,
    "min": functions.minimum,
}


def _identity(kind: str, dtype: torch.dtype) -> float:
    """The reduction of nothing."""
    if kind == "sum":
        return 0
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


def _spread(value: torch.Tensor) -> torch.Tensor:
    """A value of three dimensions, also where it is a single one."""
    return value if value.dim() == 3 else value.reshape(1, 1, 1)


def _extents(value: torch.Tensor) -> list[tuple[str, int]]:
    return list(zip(MODES, value.shape, strict=True))


def _divide(columns: int, width: int) -> int:
    if columns % width:
        raise ValueError(f"{columns} columns do not divide into blocks of {width}")
    return columns // width


def _load(
    value: Input,
    inputs: Mapping[str, Any],
    leads: Leads,
    device: torch.device,
    dtype: torch.dtype,
    order: Sequence[str] = MODES,
) -> torch.Tensor:
    """An input with the dimensions ``order``, 1 where it does not vary, or 0-d for a scalar."""
    if value.name not in inputs and value.default is None:
        raise ValueError(f"the input {value.name} is missing")
    assert value.dtype is not None
    given = inputs.get(value.name, value.default)
    number = not isinstance(given, torch.Tensor)
    tensor = _number(value.dtype, given) if number else given
    tensor = tensor.to(device)
    if value.dtype != B1:
        tensor = tensor.to(working(value.dtype, dtype))
    if not value.modes:
        return tensor.reshape(())
    if number or (value.flexible and tensor.numel() == 1):
        have = {base(mode): math.prod(_dims(mode, leads)) for mode in value.modes}
        return tensor.reshape(()).expand([have.get(mode, 1) for mode in order])
    batch = [] if "l" in value.modes or not value.batchable else ["l"]
    for modes in ([*batch, *value.modes], value.modes):
        flat = [math.prod(_dims(mode, leads)) for mode in modes]
        if value.dtype == B1 and tuple(tensor.shape) in (packed(_shape(modes, leads)), packed(flat)):
            tensor = unpack_bits(tensor, leads["n"][0])
        if tuple(tensor.shape) in (_shape(modes, leads), tuple(flat)):
            places = sorted(range(len(modes)), key=lambda position: order.index(base(modes[position])))
            have = {base(mode): size for mode, size in zip(modes, flat, strict=True)}
            return tensor.reshape(flat).permute(places).reshape([have.get(mode, 1) for mode in order])
    shape, expected = tuple(tensor.shape), _shape(value.modes, leads)
    raise ValueError(f"the input {value.name} has shape {shape}; expected {expected}")


def _number(dtype: DType, given: float) -> torch.Tensor:
    """A number in an input's type, as a kernel receives it; a seed beyond i32 is given by its 32 bits."""
    if dtype == I32 and float(given).is_integer():
        given = (int(given) + 2**31) % 2**32 - 2**31
    return round_to(dtype, torch.tensor(float(given), dtype=torch.float64, device="cpu"))


def _store(output: Output, value: torch.Tensor, leads: Leads, exact: bool) -> torch.Tensor:
    """A value broadcast to the output's modes, in their order, packed; rounded, but for floats where ``exact``."""
    modes = output.memory_modes
    names = {base(mode): mode for mode in modes}
    value = _spread(value)
    value = value.expand([math.prod(_dims(names[mode], leads)) if mode in names else 1 for mode in MODES])
    order = [MODES.index(base(mode)) for mode in (*modes, *(mode for mode in MODES if mode not in names))]
    result = value.permute(order).clone(memory_format=torch.contiguous_format).reshape(_shape(modes, leads))
    assert output.dtype is not None
    if exact and output.dtype.is_float:
        return result.to(torch.float64)
    result = round_to(output.dtype, result)
    return pack_bits(result) if output.dtype == B1 else result


def _dims(mode: str, leads: Leads) -> tuple[int, ...]:
    """The dimensions of a mode, of which one may be divided."""
    if divisor(mode) == 1:
        return leads[mode]
    return (_divide(leads[base(mode)][0], divisor(mode)),)


def _shape(modes: Sequence[str], leads: Leads) -> tuple[int, ...]:
    return tuple(size for mode in modes for size in _dims(mode, leads))
