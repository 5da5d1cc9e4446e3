"""One operation as a PyTorch user writes it: functions, casts, packed bits, products of 8-bit operands.

Values are proxies of tensors with their dtypes, or Python numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional

from evt.functions import TABLE, Fact, Function
from evt.functions.single import round_f32, shortest
from evt.functions.target import Target, read_target
from evt.ir import Const, Operand
from evt.ir.dtype import B1, E4M3, I8, I32, DType
from evt.reference.rounding import round_to

#: A proxy of a tensor with its dtype, or a number.
Tensor: TypeAlias = tuple[Any, torch.dtype]
Value: TypeAlias = Tensor | float | int


class UnwrittenError(Exception):
    """An error for a part of the program that PyTorch cannot express."""


def torch_type(dtype: DType) -> torch.dtype:
    """Return the dtype in which a PyTorch user keeps values of a type: bits are bool until they are packed."""
    found: torch.dtype = torch.bool if dtype == B1 else getattr(torch, dtype.torch)
    return found


def multiply(left: Any, right: Any, operands: Sequence[Operand], result: DType, device: str, batched: bool) -> Tensor:
    """Return the product of A and B, ``[.., m, k]`` and ``[.., k, n]``.

    For 8-bit operands it is PyTorch's own on CUDA, in int32 or in the type of ``result``; on the CPU it is computed in
    int32 or f32.
    """
    a = operands[0].dtype
    if a.bits > 8:
        return left @ right, torch_type(a)
    summed = torch.float32 if a.is_float else torch.int32
    if device != "cuda":
        return left.to(summed) @ right.to(summed), summed
    check_product(operands, batched)
    if not a.is_float:
        return torch._int_mm(left, right), summed
    stored = torch_type(result) if result.name in ("f16", "bf16", "f32") else torch.bfloat16
    one = left.new_ones((), dtype=torch.float32)
    return torch._scaled_mm(left, right, one, one, out_dtype=stored), stored


def scaled_product(
    a: torch.Tensor, b: torch.Tensor, scales: Sequence[Any], bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return torch._scaled_mm of 8-bit floats with scales of rows ``[m, 1]``, of columns ``[n]``, and numbers.

    On the CPU it is computed in f32, and rounded once.
    """
    if not a.is_cuda:
        value = a.float() @ b.float()
        for scale in scales:
            value = value * scale
        return (value if bias is None else value + bias).to(dtype)
    row, column = a.new_ones((), dtype=torch.float32), a.new_ones((), dtype=torch.float32)
    for scale in scales:
        if isinstance(scale, torch.Tensor) and scale.dim() == 1 and scale.shape[0] == b.shape[1]:
            column = column * scale
        else:
            row = row * scale
    if row.dim() or column.dim():
        row, column = row.expand(a.shape[0], 1).contiguous(), column.expand(1, b.shape[1]).contiguous()
    return torch._scaled_mm(a, b, row, column, bias=None if bias is None else bias.flatten(), out_dtype=dtype)


def check_product(operands: Sequence[Operand], batched: bool) -> None:
    """Raise UnwrittenError unless PyTorch multiplies these 8-bit operands on CUDA."""
    a, b = (operand.dtype for operand in operands)
    if (a, b) != (I8, I8) and E4M3 not in (a, b):
        raise UnwrittenError(f"PyTorch has no product of {a} and {b} operands")
    if batched:
        raise UnwrittenError("PyTorch has no batched product of 8-bit operands")


def apply(name: str, operands: Sequence[Value], domain: DType) -> Value:
    """Return a function of the table that computes in ``domain``, in the tensors' own dtypes."""
    row = TABLE[name]
    numbers = [float(value) for value in operands if isinstance(value, float | int)]
    if len(numbers) == len(operands):
        return _number(row.fold(*numbers), domain)
    if name == "where":
        return _where(operands[0], operands[1], operands[2], domain)
    values = [value if slot in row.conditions else _convert(value, domain) for slot, value in enumerate(operands)]
    if domain.is_float and not (_operator(row) is not None and _is_mixed(values)):
        values = [_to_float(value, domain) for value in values]
    plain = [value if isinstance(value, float | int) else value[0] for value in values]
    found = [value[1] for value in values if not isinstance(value, float | int)]
    result = torch.bool if row.result == "predicate" else reduce(torch.promote_types, found)
    return _call(row, plain), result


def cast(value: Value, dtype: DType) -> Value:
    """Return a value rounded to a type; 8-bit types and integers saturate."""
    if isinstance(value, float | int):
        return _number(round_to(dtype, torch.tensor(value, dtype=torch.float64)).item(), dtype)
    tensor, found = value
    wanted = torch_type(dtype)
    if found == wanted:
        return value
    if dtype == B1:
        return tensor != 0, wanted
    if dtype.saturates and found != torch.bool:
        if found.is_floating_point and found.itemsize == 1:
            tensor = tensor.float()
        if found.is_floating_point and not dtype.is_float:
            tensor = (tensor.double() if dtype == I32 else tensor).round()  # f32 has no number at i32's upper end
        tensor = tensor.clamp(int(dtype.least), int(dtype.largest))
        if not found.is_floating_point and dtype.is_float:
            tensor = tensor.float()
    return tensor.to(wanted), wanted


def constant(node: Const) -> float | int:
    """Return a constant as it was written: a whole number, or the shortest decimal for it."""
    if node.is_integer:
        return int(node.value)
    if round_f32(node.value) != node.value:
        return node.value
    return float(shortest(node.value))


def pack_bits(mask: torch.Tensor) -> torch.Tensor:
    """Return truth values ``[..., n]`` packed into bytes; bit i of byte j is column 8j + i."""
    if mask.shape[-1] % 8:
        mask = functional.pad(mask, (0, -mask.shape[-1] % 8))
    octets = mask.to(torch.uint8).reshape(*mask.shape[:-1], -1, 8)
    return (octets << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1, dtype=torch.uint8)


def unpack_bits(packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the truth values of packed bytes, with the number of columns of ``like``."""
    bits = (packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten(-2)[..., : like.shape[-1]].to(torch.bool)


def _where(condition: Value, x: Value, y: Value, domain: DType) -> Value:
    if isinstance(condition, float | int):
        return _convert(x if condition else y, domain)
    tensor, dtype = condition
    chosen, other = _convert(x, domain), _convert(y, domain)
    dtypes = [value[1] for value in (chosen, other) if not isinstance(value, float | int)]
    plain = [value if isinstance(value, float | int) else value[0] for value in (chosen, other)]
    if not dtypes:
        dtypes = [torch_type(domain)]
        plain[0] = torch.full_like(tensor, plain[0], dtype=dtypes[0])
    return torch.where(tensor if dtype == torch.bool else tensor != 0, *plain), reduce(torch.promote_types, dtypes)


def _convert(value: Value, domain: DType) -> Value:
    """Return an operand converted for i32 or b1 arithmetic, or a float for its number in float arithmetic."""
    if isinstance(value, float | int):
        return _number(value, domain)
    tensor, dtype = value
    if domain == I32 and dtype != torch.int32:
        return tensor.to(torch.int32), torch.int32
    return value


def _to_float(value: Value, domain: DType) -> Value:
    """Return integers, truth values and 8-bit floats as f32 or f64; PyTorch has no arithmetic for them."""
    if isinstance(value, float | int):
        return value
    tensor, dtype = value
    if dtype.is_floating_point and dtype.itemsize > 1:
        return value
    return tensor.to(torch_type(domain)), torch_type(domain)


def _is_mixed(values: Sequence[Value]) -> bool:
    """Return whether PyTorch's promotion makes the tensors f32, integers among them."""
    dtypes = [value[1] for value in values if not isinstance(value, float | int)]
    return torch.float32 in dtypes and not any(dtype.is_floating_point and dtype.itemsize == 1 for dtype in dtypes)


def _number(value: float, domain: DType) -> float | int:
    return float(value) if domain.is_float else int(value)


def _call(row: Function, operands: Sequence[Any]) -> Any:
    """Return a function of the table over proxies and numbers; numbers become tensors if torch takes none."""
    numbers = tuple(isinstance(value, float | int) for value in operands)
    written = _written(row, numbers)
    if written is not None:
        return written(*operands)
    like = operands[numbers.index(False)]
    tensors = (like.new_full((), value) if number else value for value, number in zip(operands, numbers, strict=True))
    return row.torch(torch, *tensors)


@cache
def _written(row: Function, numbers: tuple[bool, ...]) -> Callable[..., Any] | None:
    """Return the user's form of a function with numbers in these places: one of the row's targets, or its definition.

    Return None if torch takes no numbers there.
    """
    if (operation := _operator(row)) is not None:
        return operation
    choices: list[Callable[..., Any]] = [partial(row.torch, torch), *_functions(row, "torch")]
    if not numbers[0] and all(numbers[1:]):
        choices[:0] = (partial(_by_name, row, each) for each in _functions(row, "torch", "nn", "functional"))
    for function in choices:
        if _takes(function, numbers):
            return function
    if Fact.COMMUTATIVE in row.facts and numbers == (True, False):
        exchanged = _written(row, (False, True))
        return None if exchanged is None else partial(_exchanged, exchanged)
    return None


def _exchanged(function: Callable[..., Any], x: Any, y: Any) -> Any:
    return function(y, x)


def _operator(row: Function) -> Callable[..., Any] | None:
    """Return Python's operator for a function of two values, or None. It takes numbers, and integers with floats."""
    targets = map(read_target, row.targets if len(row.parameters) == 2 else ())
    name = next((target.path[1] for target in targets if target.path[0] == "operator"), None)
    found: Callable[..., Any] | None = None if name is None else getattr(operator, name)
    return found


def _by_name(row: Function, function: Callable[..., Any], x: Any, *numbers: float) -> Any:
    """Return a call of a function with the parameters after the first by name."""
    names = [parameter.name for parameter in row.parameters[1:]]
    return function(x, **dict(zip(names, numbers, strict=True)))


def _functions(row: Function, *module: str) -> list[Callable[..., Any]]:
    """Return the targets of a row in a module that take its parameters in the row's order."""
    targets = [target for target in map(read_target, row.targets) if target.path[:-1] == module and not target.order]
    return [partial(_resolved(target), **dict(target.given)) for target in targets]


def _resolved(target: Target) -> Callable[..., Any]:
    found: Any = torch
    for name in target.path[1:]:
        found = getattr(found, name)
    function: Callable[..., Any] = found
    return function


@cache
def _takes(function: Callable[..., Any], numbers: tuple[bool, ...]) -> bool:
    """Return whether a function takes Python floats in these places."""
    try:
        function(*(0.5 if number else torch.ones(1) for number in numbers))
    except (TypeError, RuntimeError):
        return False
    return True
