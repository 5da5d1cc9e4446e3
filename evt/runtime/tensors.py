"""Checking a call's tensors: their shapes against the program's modes, their strides against kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from evt.ir import Input, Operand, Output
from evt.ir.dtype import B1, STORAGE, DType, from_torch_name
from evt.ir.node import base, written
from evt.plan import Layout
from evt.runtime.bound import Bound, packed
from evt.runtime.convolution import convolution_operand
from evt.runtime.layout import LIMIT, TensorArgument, classify, strides_of
from evt.runtime.report import Report


def operand_argument(bound: Bound, operand: Operand, tensor: torch.Tensor, report: Report) -> TensorArgument | None:
    """Return A or B as the kernel will see it."""
    if bound.convolution is not None:
        return convolution_operand(bound.convolution, operand, tensor, report)
    batch = bound.leads["l"]
    groups = [(mode, bound.leads[mode]) for mode in operand.modes]
    inner = sum(len(dims) for _, dims in groups)
    own = tuple(tensor.shape[:-inner]) if inner else ()
    if own and own != batch:
        if math.prod(own) == 1:  # the same for every batch
            tensor, own = tensor.reshape(tensor.shape[len(own) :]), ()
        else:
            tensor, own = tensor.expand(*batch, *tensor.shape[len(own) :]), batch
    strides = strides_of(tensor, [("l", own), *groups])
    help_text = f"pass {operand.name}.contiguous()"
    if not isinstance(strides, dict):
        report("E0606", f"the leading dimensions of `{operand.name}` have no single stride", help_text)
        return None
    argument = classify(bound.sizes, operand.name, operand.dtype, tensor, operand.modes, strides)
    if argument.layout.contiguous is None:
        shown = tuple(tensor.stride())
        report("E0606", f"`{operand.name}` has strides {shown}; one of its last two must be 1", help_text)
        return None
    if max(stride for mode, stride in argument.strides.items() if mode != "l") > LIMIT:
        report("E0606", f"`{operand.name}` has a stride beyond {LIMIT}")
    return argument


#: A shape as (mode, the dimensions it stands for).
_Groups = list[tuple[str, tuple[int, ...]]]


def _shapes(bound: Bound, value: Input | Output) -> list[_Groups]:
    """Return the shapes that an input or output may have in memory, as (mode, dimensions) groups."""
    own: _Groups = [(base(mode), bound.dims(mode)) for mode in value.modes]
    flat: _Groups = [(base(mode), (bound.extent(mode),)) for mode in value.modes]
    shapes = [own, flat]
    if value.batchable and bound.leads["l"]:
        batched: _Groups = [("l", bound.leads["l"]), *own]
        shapes = [batched] if isinstance(value, Output) else [batched, own]
    if value.dtype == B1:
        shapes = [[*groups[:-1], (groups[-1][0], packed(groups[-1][1]))] for groups in shapes]
    return shapes


def has_own_columns(value: Input | Output) -> bool:
    """Return whether its columns are bits, or fewer than the accumulator's."""
    return value.dtype == B1 or any("/" in mode for mode in value.modes)


def input_argument(bound: Bound, value: Input, tensor: torch.Tensor, report: Report) -> TensorArgument | None:
    """Return an input as the kernel will see it."""
    if not _check_dtype(value, tensor, report):
        return None
    name, dtype = value.name, value.dtype
    assert dtype is not None
    single = tensor.numel() == 1 and (value.flexible or (value.is_scalar and "l" not in value.modes))
    if single:
        return TensorArgument(name, {"l": 0, **dict.fromkeys(value.modes, 0)}, Layout(None, 1))
    if value.is_scalar and "l" not in value.modes:
        report("E0604", f"`{name}` has shape {_shape(tensor)}; expected a number or one element")
        return None
    for groups in _shapes(bound, value):
        strides = strides_of(tensor, groups)
        if strides is None:
            continue
        if isinstance(strides, str):
            report("E0606", f"the leading dimensions of `{name}` have no single stride", f"pass {name}.contiguous()")
            return None
        if value.is_scalar:
            return TensorArgument(name, strides, Layout(None, 1))
        if has_own_columns(value):
            if strides["n"] != 1 and groups[-1][1] != (1,):
                report("E0606", f"the columns of `{name}` have a stride other than 1", f"pass {name}.contiguous()")
                return None
            return _own_columns(bound, name, strides)
        argument = classify(bound.sizes, name, dtype, tensor, value.modes, strides)
        if not value.is_tile and argument.layout.contiguous is None:
            report("E0606", f"the vector `{name}` has a stride other than 1", f"pass {name}.contiguous()")
            return None
        if value.flexible:
            return TensorArgument(name, argument.strides, Layout(None, 1))
        return argument
    _wrong_shape(bound, value, tensor, "E0604", report)
    return None


def _own_columns(bound: Bound, name: str, strides: Mapping[str, int]) -> TensorArgument:
    shared = bound.sizes["l"] > 1 and not strides.get("l")
    return TensorArgument(name, {"l": 0, **strides}, Layout("n", 1, "shared" if shared else "strided"))


def _wrong_shape(bound: Bound, value: Input | Output, tensor: torch.Tensor, code: str, report: Report) -> None:
    wanted = _shapes(bound, value)[0]
    shape = ", ".join(str(size) for _, dims in wanted for size in dims)
    modes = ", ".join([*(["l"] if len(wanted) > len(value.modes) else []), *map(written, value.modes)])
    bits = ", eight columns to a byte" if value.dtype == B1 else ""
    single = ", or is a single value" if isinstance(value, Input) and value.flexible else ""
    report(
        code,
        f"`{value.name}` has shape {_shape(tensor)}; expected [{shape}]",
        f"`{value.name}` has the modes [{modes}]{bits}{single}",
    )


def buffer_argument(bound: Bound, output: Output, tensor: torch.Tensor, report: Report) -> TensorArgument | None:
    """Return an output buffer of the caller's as the kernel will see it."""
    if not _check_dtype(output, tensor, report):
        return None
    assert output.dtype is not None
    for groups in _shapes(bound, output):
        strides = strides_of(tensor, groups)
        if isinstance(strides, str):
            shown = tuple(tensor.stride())
            message = f"the buffer `{output.name}` has strides {shown}: its leading dimensions have no single stride"
            report("E0608", message, "pass a contiguous one")
            return None
        if strides is not None:
            sizes = {mode: math.prod(dims) for mode, dims in groups}
            packs = not output.is_tile or has_own_columns(output)
            needs_unit = [mode for mode, _ in groups if mode != "l"][-1:] if packs else []
            if any(strides[mode] != 1 and sizes[mode] > 1 for mode in needs_unit):
                shown = tuple(tensor.stride())
                report("E0608", f"the buffer `{output.name}` has strides {shown}; the last must be 1")
                return None
            argument = _classified(bound, output, tensor, strides)
            if output.name == "D" and output.is_tile and argument.layout.contiguous is None:
                report("E0608", f"the buffer `D` has strides {tuple(tensor.stride())}; one of them must be 1")
                return None
            return argument
    _wrong_shape(bound, output, tensor, "E0608", report)
    return None


def fresh_argument(bound: Bound, output: Output) -> TensorArgument:
    """Return an output that the call allocates, packed, as the kernel will see it."""
    strides: dict[str, int] = {"l": 0}
    step = 1
    for mode in reversed(output.memory_modes):
        strides[base(mode)] = step
        extent = bound.extent(mode)
        step *= -(-extent // 8) if output.dtype == B1 and base(mode) == "n" else extent
    return _classified(bound, output, None, strides)


def _classified(bound: Bound, output: Output, tensor: torch.Tensor | None, strides: dict[str, int]) -> TensorArgument:
    assert output.dtype is not None
    if has_own_columns(output):
        return _own_columns(bound, output.name, strides)
    if not set(map(base, output.modes)) & {"m", "n"}:
        return TensorArgument(output.name, {"l": 0, **strides}, Layout(None, 1))
    return classify(bound.sizes, output.name, output.dtype, tensor, output.modes, strides)


def dtype_of(tensor: torch.Tensor) -> DType | None:
    """Return the language's type of a tensor's elements, or None."""
    return from_torch_name(str(tensor.dtype).removeprefix("torch."))


def _check_dtype(value: Input | Output, tensor: torch.Tensor, report: Report) -> bool:
    assert value.dtype is not None
    found = dtype_of(tensor)
    if found is not None and found in STORAGE and found.torch == value.dtype.torch:
        return True
    keyword = "in" if isinstance(value, Input) else "out"
    subscript = f"[{', '.join(map(written, value.modes))}]"
    help_text = f"convert it: {value.name}.to(torch.{value.dtype.torch})"
    if value.dtype == B1:
        help_text = "b1 is packed in uint8, eight columns to a byte: evt.pack_bits(mask)"
    elif found is not None and found in STORAGE:
        help_text += f", or declare it in the program: `{keyword} {value.name}: {found}{subscript}`"
    report("E0603", f"`{value.name}` is {tensor.dtype}; expected torch.{value.dtype.torch}", help_text)
    return False


def _shape(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"
