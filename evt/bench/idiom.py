"""One operation as a PyTorch user writes it: functions, casts, packed bits, products of 8-bit operands.

Values are proxies of tensors with their dtypes, or Python numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional

from evt.functions import TABLE
from evt.functions.single import round_f32
from evt.ir import Const, Operand
from evt.ir.dtype import B1, E4M3, I8, I32, DType
from evt.reference.rounding import round_to

#: A proxy of a tensor with its dtype, or a number.
Tensor: TypeAlias = tuple[Any, torch.dtype]
Value: TypeAlias = Tensor | float | int

#: The values at which casts saturate.
_RANGE = {"i8": (-128, 127), "u8": (0, 255), "i32": (-(2**31), 2**31 - 1), "e4m3": (-448, 448), "e5m2": (-57344, 57344)}
#: Operators that PyTorch applies to an integer and a float tensor in one kernel.
_MIXED = ("add", "sub", "mul", "div")
_LOGICAL = ("logical_and", "logical_or", "logical_not")


class UnwrittenError(Exception):
    """PyTorch has nothing that a user would write for a part of the program."""


def torch_type(dtype: DType) -> torch.dtype:
    """The dtype that a PyTorch user keeps values of a type in: bits are bool until they are packed."""
    found: torch.dtype = torch.bool if dtype == B1 else getattr(torch, dtype.torch)
    return found


def multiply(left: Any, right: Any, operands: Sequence[Operand], result: DType, device: str, batched: bool) -> Tensor:
    """The product of A and B, ``[.., m, k]`` and ``[.., k, n]``.

    That of 8-bit operands is PyTorch's own on CUDA, in int32 or in the type of ``result``; on the CPU it is formed
    in int32 or f32.
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


def check_product(operands: Sequence[Operand], batched: bool) -> None:
    """Whether PyTorch multiplies these 8-bit operands on CUDA. Raises UnwrittenError."""
    a, b = (operand.dtype for operand in operands)
    if (a, b) != (I8, I8) and E4M3 not in (a, b):
        raise UnwrittenError(f"PyTorch has no product of {a} and {b} operands")
    if batched:
        raise UnwrittenError("PyTorch has no batched product of 8-bit operands")


def apply(name: str, operands: Sequence[Value], domain: DType) -> Value:
    """A function of the table, which computes in ``domain``, in the tensors' own dtypes."""
    row = TABLE[name]
    numbers = [float(value) for value in operands if isinstance(value, float | int)]
    if len(numbers) == len(operands):
        return _number(row.fold(*numbers), domain)
    if name == "where":
        return _where(operands[0], operands[1], operands[2], domain)
    values = [value if name in _LOGICAL else _convert(value, domain) for value in operands]
    if domain.is_float and not (name in _MIXED and _is_mixed(values)):
        values = [_to_float(value, domain) for value in values]
    plain = [value if isinstance(value, float | int) else value[0] for value in values]
    found = [value[1] for value in values if not isinstance(value, float | int)]
    result = torch.bool if row.result == "predicate" else reduce(torch.promote_types, found)
    return _call(name, plain), result


def cast(value: Value, dtype: DType) -> Value:
    """A value rounded to a type, where 8-bit types and integers saturate."""
    if isinstance(value, float | int):
        return _number(round_to(dtype, torch.tensor(value, dtype=torch.float64)).item(), dtype)
    tensor, found = value
    wanted = torch_type(dtype)
    if found == wanted:
        return value
    if dtype == B1:
        return tensor != 0, wanted
    if dtype.name in _RANGE and found != torch.bool:
        low, high = _RANGE[dtype.name]
        if found.is_floating_point and found.itemsize == 1:
            tensor = tensor.float()
        if found.is_floating_point and not dtype.is_float:
            tensor = (tensor.double() if dtype == I32 else tensor).round()  # f32 has no number at i32's upper end
        tensor = tensor.clamp(low, high)
        if not found.is_floating_point and dtype.is_float:
            tensor = tensor.float()
    return tensor.to(wanted), wanted


def constant(node: Const) -> float | int:
    """A constant as it was written: a whole number, else the shortest decimal that stands for it."""
    if node.is_integer:
        return int(node.value)
    if round_f32(node.value) != node.value:
        return node.value
    return next(x for x in (float(f"{node.value:.{d}g}") for d in range(1, 10)) if round_f32(x) == node.value)


def pack_bits(mask: torch.Tensor) -> torch.Tensor:
    """Truth values ``[..., n]`` as bytes; bit i of byte j is column 8j + i."""
    if mask.shape[-1] % 8:
        mask = functional.pad(mask, (0, -mask.shape[-1] % 8))
    octets = mask.to(torch.uint8).reshape(*mask.shape[:-1], -1, 8)
    return (octets << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1, dtype=torch.uint8)


def unpack_bits(packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The truth values of packed bytes, as many columns as ``like`` has."""
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
    """An operand in i32 or b1 arithmetic, or a float for the number that it is in float arithmetic."""
    if isinstance(value, float | int):
        return _number(value, domain)
    tensor, dtype = value
    if domain == I32 and dtype != torch.int32:
        return tensor.to(torch.int32), torch.int32
    return value


def _to_float(value: Value, domain: DType) -> Value:
    """Integers, truth values and 8-bit floats, on which PyTorch has no arithmetic, as f32 or f64."""
    if isinstance(value, float | int):
        return value
    tensor, dtype = value
    if dtype.is_floating_point and dtype.itemsize > 1:
        return value
    return tensor.to(torch_type(domain)), torch_type(domain)


def _is_mixed(values: Sequence[Value]) -> bool:
    """Whether PyTorch's own promotion makes f32 of the tensors, integers among them."""
    dtypes = [value[1] for value in values if not isinstance(value, float | int)]
    return torch.float32 in dtypes and not any(dtype.is_floating_point and dtype.itemsize == 1 for dtype in dtypes)


def _number(value: float, domain: DType) -> float | int:
    return float(value) if domain.is_float else int(value)


def _call(name: str, operands: list[Any]) -> Any:
    """A function of the table on proxies and numbers: what torch has ready-made, else the table's meaning."""
    numbers = tuple(isinstance(value, float | int) for value in operands)
    if name in ("min", "max") and any(numbers):
        tensor, bound = sorted(operands, key=lambda value: isinstance(value, float | int))
        return torch.clamp(tensor, **{"max" if name == "min" else "min": bound})
    if name == "div":
        return operands[0] / operands[1]
    if name == "gelu_tanh":
        return functional.gelu(operands[0], approximate="tanh")
    if name != "prelu" and hasattr(functional, name) and not numbers[0] and all(numbers[1:]):
        names = [parameter.name for parameter in TABLE[name].parameters]
        return getattr(functional, name)(operands[0], **dict(zip(names[1:], operands[1:], strict=True)))
    if not _takes_numbers(name, numbers):
        tensor = operands[numbers.index(False)]
        operands = [
            tensor.new_full((), value) if number else value for value, number in zip(operands, numbers, strict=True)
        ]
    return TABLE[name].torch(torch, *operands)


@cache
def _takes_numbers(name: str, numbers: tuple[bool, ...]) -> bool:
    """Whether the torch functions that a meaning is made of take Python floats in these places."""
    try:
        TABLE[name].torch(torch, *(0.5 if number else torch.ones(1) for number in numbers))
    except (TypeError, RuntimeError):
        return False
    return True
