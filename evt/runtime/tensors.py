"""Checking a call's tensors: their shapes against the program's modes, their strides against kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from evt.ir import Dag, Input, Load, Operand, Output
from evt.ir.completed import read_when_complete
from evt.ir.dag import index_inputs
from evt.ir.dtype import B1, BOOL, I32, I64, OUTPUTS, PACKED_OPERANDS, SCALARS, STORAGE, DType, from_torch_name
from evt.ir.interface import declaration
from evt.ir.node import base, direct, index_of, is_divided, written
from evt.ir.operand import formula_of
from evt.plan import LayoutClass
from evt.plan.signature import alignment_of, bytes_of
from evt.plan.staged import ALIGNED_BYTES
from evt.reference import int4
from evt.runtime.batch_strides import spread
from evt.runtime.bound import Bound, packed
from evt.runtime.convolution import convolution_operand
from evt.runtime.layout import LIMIT, TensorArgument, classify, strides_of
from evt.runtime.report import CallDiagnostics, copied_back


def shaped_operands(dag: Dag, tensors: dict[str, torch.Tensor], report: CallDiagnostics) -> dict[str, torch.Tensor]:
    """Return the tensors with a packed B as a tensor of its elements' shape. Kernels read a prepared one."""
    declared = {operand.name: operand.dtype for operand in dag.operands}
    if declared.get("B") not in PACKED_OPERANDS:
        return tensors
    report.add(*int4.check("B", tensors["B"], prepared=tensors["B"].device.type == "cuda"))
    report.check()
    return {**tensors, "B": int4.shaped(tensors["B"])}


def operand_argument(
    bound: Bound, operand: Operand, tensor: torch.Tensor, report: CallDiagnostics
) -> TensorArgument | None:
    """Return A or B as the kernel will see it."""
    if bound.convolution is not None:
        return convolution_operand(bound.convolution, operand, tensor, report)
    if operand.dtype in PACKED_OPERANDS:  # a packed B has no strides of elements
        has_batches = int4.has_batches(bound.values[operand.name])
        layout = LayoutClass("k", 32, "strided" if has_batches or bound.sizes["l"] == 1 else "shared")
        step = bound.sizes["n"] * bound.sizes["k"] // 2 if has_batches else 0  # bytes of a matrix
        return TensorArgument(operand.name, {"l": step, "n": bound.sizes["k"], "k": 1}, layout)
    batch = bound.leads["l"]
    groups = [(mode, bound.leads[mode]) for mode in operand.modes]
    inner = sum(len(dims) for _, dims in groups)
    own = batch if tensor.dim() > inner else ()
    help_text = f"pass {operand.name}.contiguous()"
    strides = strides_of(tensor, [("l", own), *groups])
    if not isinstance(strides, dict):
        report("E0606", f"the leading dimensions of `{operand.name}` have no single stride", help_text)
        return None
    argument = classify(
        bound.sizes, operand.name, operand.dtype, tensor, operand.modes, strides, invariant=bound.invariant
    )
    if argument.layout.contiguous is None:
        shown = tuple(tensor.stride())
        expanded = any(strides[mode] == 0 and bound.sizes[mode] > 1 for mode in operand.modes)
        rule = "it must not be expanded along rows or columns" if expanded else "one of its last two must be 1"
        report("E0606", f"`{operand.name}` has strides {shown}; {rule}", help_text)
        return None
    if max(stride for mode, stride in argument.strides.items() if mode != "l") > LIMIT:
        report("E0606", f"`{operand.name}` has a stride beyond {LIMIT}")
    return argument


#: The word for the elements of a tensor along a mode in which an index names places.
_ANY = {"m": "rows", "n": "columns"}
#: A shape as (mode, the dimensions it stands for).
_Groups = list[tuple[str, tuple[int, ...]]]


def operand_shapes(bound: Bound, operand: Operand) -> list[_Groups]:
    """Return the shape in memory of an operand that has all batches."""
    batch: _Groups = [("l", bound.leads["l"])] if bound.leads["l"] else []
    return [[*batch, *((mode, bound.leads[mode]) for mode in operand.modes)]]


def shapes_of(bound: Bound, value: Input | Output, tensor: torch.Tensor | None) -> list[_Groups]:
    """Return the shapes that an input or output may have in memory, as (mode, dimensions) groups.

    Along a mode where an index names places, the extent is the tensor's own.
    """
    if value.is_indexed:
        return _indexed_shapes(bound, value, tensor) if tensor is not None else []
    own: _Groups = [(base(mode), bound.dims(mode)) for mode in value.modes]
    flat: _Groups = [(base(mode), (bound.extent(mode),)) for mode in value.modes]
    shapes = [own, flat]
    if value.batchable and bound.leads["l"] and not bound.ragged:
        batched: _Groups = [("l", bound.leads["l"]), *own]
        shapes = [batched] if isinstance(value, Output) else [batched, own]
    if value.dtype == B1:
        shapes = [[*groups[:-1], (groups[-1][0], packed(groups[-1][1]))] for groups in shapes]
    return shapes


def _indexed_shapes(bound: Bound, value: Input | Output, tensor: torch.Tensor) -> list[_Groups]:
    modes = bound.memory_modes(value) if isinstance(value, Output) else value.modes
    shapes = []
    for dims in (bound.dims, lambda mode: (bound.extent(mode),)):
        groups: _Groups = []
        for mode in modes:
            place = sum(len(each) for _, each in groups)
            groups.append((base(mode), tuple(tensor.shape[place : place + 1]) if index_of(mode) else dims(mode)))
        shapes.append(groups)
    return shapes


def _indexed_extents(value: Input | Output, groups: _Groups) -> dict[str, int]:
    """Return the extents of the modes where an index names places."""
    found = dict(groups)
    return {base(mode): math.prod(found[base(mode)]) for mode in value.modes if index_of(mode)}


def squeezed(bound: Bound, value: Input, tensor: torch.Tensor) -> torch.Tensor:
    """Return a vector without the dimensions of one element that broadcasting gives it: ``[m, 1]``, ``[1, n]``.

    A tensor of any other shape is returned unchanged.
    """
    if value.is_tile or value.is_indexed or value.is_blocked:
        return tensor
    shapes = shapes_of(bound, value, tensor)
    known = [tuple(size for _, dims in groups for size in dims) for groups in shapes]
    if tuple(tensor.shape) in known:
        return tensor
    modes = set(map(base, value.modes))
    for axes in _axes(bound, "k" in modes):
        places = axes[len(axes) - tensor.dim() :] if tensor.dim() <= len(axes) else ()
        lacking = tuple(place for place, mode in enumerate(places) if mode not in modes)
        if lacking and all(tensor.shape[place] == 1 for place in lacking):
            found = tensor.squeeze(lacking)
            if tuple(spread(found, shapes).shape) in known:
                return found
    return tensor


def _axes(bound: Bound, summed: bool) -> list[tuple[str, ...]]:
    """Return the mode of each dimension of the result; of both operands for a vector along k, if it is ``summed``."""
    batches, rows = ("l",) * len(bound.leads["l"]), ("m",) * len(bound.leads["m"])
    if bound.convolution is not None:  # [N, C, ...]
        return [("m", "k" if summed else "n", *rows[1:])]
    return [(*batches, *rows, "k"), (*batches, "k", "n")] if summed else [(*batches, *rows, "n")]


def has_own_columns(value: Input | Output) -> bool:
    """Return whether its columns are bits, or fewer than the accumulator's."""
    return value.dtype == B1 or any(is_divided(mode) for mode in value.modes)


def input_argument(bound: Bound, value: Input, tensor: torch.Tensor, report: CallDiagnostics) -> TensorArgument | None:
    """Return an input as the kernel will see it."""
    if value.is_scalar and "l" not in value.modes and tensor.numel() != 1:
        fitting = _modes_of(bound, tensor) or (("m", "n") if tensor.dim() > 1 else ("n",))
        declared = declaration(value.name, dtype_of(tensor), fitting)
        help_text = f"an input without a subscript is a scalar; declare what this is: `in {declared}`"
        report("E0604", f"`{value.name}` has shape {_shape(tensor)}, and the program declares a scalar", help_text)
        return None
    if not _check_dtype(bound.dag, value, tensor, report):
        return None
    name, dtype = value.name, value.dtype
    assert dtype is not None
    if tensor.numel() == 1 and (value.flexible or (value.is_scalar and "l" not in value.modes)):
        return TensorArgument(name, {"l": 0, **dict.fromkeys(value.modes, 0)}, LayoutClass(None, 1))
    for groups in shapes_of(bound, value, tensor):
        strides = strides_of(tensor, groups)
        if strides is None:
            continue
        if isinstance(strides, str):
            report("E0606", f"the leading dimensions of `{name}` have no single stride", f"pass {name}.contiguous()")
            return None
        if value.is_scalar or value.is_blocked:
            return TensorArgument(name, strides, LayoutClass(None, 1))
        if has_own_columns(value):
            if strides["n"] != 1 and groups[-1][1] != (1,):
                report("E0606", f"the columns of `{name}` have a stride other than 1", f"pass {name}.contiguous()")
                return None
            return _own_columns(bound, value, strides, tensor)
        extents = _indexed_extents(value, groups)
        modes = [direct(mode) for mode in value.modes]
        argument = classify({**bound.sizes, **extents}, name, dtype, tensor, modes, strides, extents, bound.invariant)
        if not value.is_tile and argument.layout.contiguous is None and _needs_stride_1(bound, value):
            report("E0606", f"the vector `{name}` has a stride other than 1", f"pass {name}.contiguous()")
            return None
        if value.flexible:
            return TensorArgument(name, argument.strides, LayoutClass(None, 1))
        return argument
    _wrong_shape(bound, value, tensor, "E0604", report)
    return None


def _needs_stride_1(bound: Bound, value: Input) -> bool:
    """Whether a vector is an index, or read as whole accesses, or by one kernel for vectors and single values alike."""
    dag = bound.dag
    if value.name in index_inputs(dag):
        return True
    worked = (dag[node] for name in dag.feeds for node in formula_of(dag, name))
    return value.flexible or value.name in read_when_complete(dag) or any(op == Load(value.name) for op in worked)


def _own_columns(
    bound: Bound, value: Input | Output, strides: Mapping[str, int], tensor: torch.Tensor | None
) -> TensorArgument:
    """Return a tensor of bits or of fewer columns as the kernel will see it. TMA moves one of half the columns."""
    assert value.dtype is not None
    legal, alignment = {"l": 0, **strides}, 1
    batched, is_half = bound.sizes["l"] > 1, value.is_tile and written(value.modes[-1]) == "n/2"
    if is_half:
        extent = bound.extent(value.modes[-1])
        if bound.sizes["m"] == 1:
            legal["m"] = -(-extent // 16) * 16  # never used to step, but TMA needs a multiple of 16 bytes
        others = {mode: legal[mode] for mode in ("m", *(("l",) if batched and legal["l"] else ()))}
        address = tensor.data_ptr() if tensor is not None else 0
        widest = alignment_of(value.dtype, "n", address, others, extent)
        alignment = widest if widest * bytes_of(value.dtype) >= ALIGNED_BYTES else 1
    shared = batched and not strides.get("l")
    return TensorArgument(value.name, legal, LayoutClass("n", alignment, "shared" if shared else "strided"))


def _wrong_shape(bound: Bound, value: Input | Output, tensor: torch.Tensor, code: str, report: CallDiagnostics) -> None:
    wanted = shapes_of(bound, value, tensor)[0]
    indexed = {base(mode) for mode in value.modes if index_of(mode)}
    shape = ", ".join(word for mode, dims in wanted for word in ([_ANY[mode]] if mode in indexed else map(str, dims)))
    batched = len(wanted) > len(value.modes) and bound.leads["l"]
    modes = ", ".join([*(["l"] if batched else []), *map(written, value.modes)])
    bits = ", eight columns to a byte" if value.dtype == B1 else ""
    single = ", or is a single value" if isinstance(value, Input) and value.flexible else ""
    own = () if indexed else tuple(size for mode in value.modes for size in bound.dims(mode))
    help_text = f"`{value.name}` has the modes [{modes}]{bits}{single}"
    if bound.dag.operation == "linear" and "l" in value.modes:
        help_text += "; the leading dimensions of a linear map are rows: for batches, use evt.gemm"
    elif (
        isinstance(value, Input)
        and "l" not in modes
        and not indexed
        and tuple(tensor.shape) == (*bound.leads["l"], *own)
    ):
        declared = declaration(value.name, value.dtype, ("l", *value.modes))
        help_text += f"; one for each batch is declared `in {declared}`"
    elif value.dtype != B1 and not indexed and (fitting := _modes_of(bound, tensor)):
        help_text += f"; a tensor of this shape is `{value.name}[{', '.join(fitting)}]`"
    elif (
        bound.convolution is None
        and not (bits or indexed)
        and tensor.numel() == math.prod(size for _, dims in wanted for size in dims)
    ):
        sizes = [size for _, dims in wanted for size in dims]
        new = shape or "()"
        if tensor.dim() == 2 and sizes == [*reversed(tensor.shape)]:
            help_text += f"; pass {value.name}.mT"
        elif isinstance(value, Input) or _is_viewable(tensor, sizes):
            help_text += f"; pass {value.name}.{'reshape' if isinstance(value, Input) else 'view'}({new})"
        else:
            help_text += f"; {copied_back(value.name, f'reshape({new})', f'.view({_shape(tensor)[1:-1]})')}"
    report(code, f"`{value.name}` has shape {_shape(tensor)}; expected [{shape}]", help_text)


def _is_viewable(tensor: torch.Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor can be viewed as another shape."""
    try:
        torch.empty_strided(tensor.shape, tensor.stride(), device="meta").view(tuple(shape))
    except RuntimeError:
        return False
    return True


def _modes_of(bound: Bound, tensor: torch.Tensor) -> tuple[str, ...]:
    """Return the modes that a tensor of this shape would have, if it would have any."""
    for modes in (("n",), ("m",), ("m", "n"), ("n", "m"), ("l", "n"), ("l", "m"), ("l", "m", "n"), ("l", "n", "m")):
        dims = [bound.dims(mode) for mode in modes]
        if all(dims) and tuple(tensor.shape) == tuple(size for each in dims for size in each):
            return modes
    return ()


def buffer_argument(
    bound: Bound, output: Output, tensor: torch.Tensor, report: CallDiagnostics
) -> TensorArgument | None:
    """Return an output buffer of the caller's as the kernel will see it."""
    if not _check_dtype(bound.dag, output, tensor, report):
        return None
    assert output.dtype is not None
    for groups in shapes_of(bound, output, tensor):
        strides = strides_of(tensor, groups)
        if isinstance(strides, str):
            shown = tuple(tensor.stride())
            message = f"the buffer `{output.name}` has strides {shown}: its leading dimensions have no single stride"
            report("E0608", message, copied_back(output.name, "contiguous()"))
            return None
        if strides is not None:
            sizes = {mode: math.prod(dims) for mode, dims in groups}
            packs = not output.is_tile or has_own_columns(output)
            needs_unit = [mode for mode, _ in groups if mode != "l"][-1:] if packs else []
            if any(strides[mode] != 1 and sizes[mode] > 1 for mode in needs_unit):
                shown = tuple(tensor.stride())
                report(
                    "E0608",
                    f"the buffer `{output.name}` has strides {shown}; the last must be 1",
                    copied_back(output.name, "contiguous()"),
                )
                return None
            return _classified(bound, output, tensor, strides, _indexed_extents(output, groups))
    _wrong_shape(bound, output, tensor, "E0608", report)
    return None


def fresh_argument(bound: Bound, output: Output) -> TensorArgument:
    """Return an output that the call allocates, packed, as the kernel will see it."""
    strides: dict[str, int] = {"l": 0}
    step = 1
    for mode in reversed(bound.memory_modes(output)):
        strides[base(mode)] = step
        extent = bound.extent(mode)
        step *= -(-extent // 8) if output.dtype == B1 and base(mode) == "n" else extent
    return _classified(bound, output, None, strides)


def _classified(
    bound: Bound,
    output: Output,
    tensor: torch.Tensor | None,
    strides: dict[str, int],
    extents: Mapping[str, int] = MappingProxyType({}),
) -> TensorArgument:
    assert output.dtype is not None
    if has_own_columns(output):
        return _own_columns(bound, output, strides, tensor)
    if not set(map(base, output.modes)) & {"m", "n"}:
        return TensorArgument(output.name, {"l": 0, **strides}, LayoutClass(None, 1))
    modes = [direct(mode) for mode in output.modes]
    return classify(
        {**bound.sizes, **extents}, output.name, output.dtype, tensor, modes, strides, extents, bound.invariant
    )


def dtype_of(tensor: torch.Tensor) -> DType | None:
    """Return the language's type of a tensor's elements, or None."""
    return from_torch_name(str(tensor.dtype).removeprefix("torch."))


def _may_have(dag: Dag, value: Input | Output, dtype: DType) -> bool:
    """Return whether the program may declare a value with another type."""
    if isinstance(value, Output):
        return dtype in OUTPUTS
    if value.is_scalar:
        return dtype in SCALARS and (value.dtype != I64 or dtype == I32)  # seeds and offsets are integers
    return dtype in STORAGE and value.name not in index_inputs(dag)


def _check_dtype(dag: Dag, value: Input | Output, tensor: torch.Tensor, report: CallDiagnostics) -> bool:
    assert value.dtype is not None
    found = dtype_of(tensor)
    if found is not None and found in STORAGE and found.torch == value.dtype.torch:
        return True
    keyword = "in" if isinstance(value, Input) else "out"
    convert = f"to(torch.{value.dtype.torch})"
    help_text = f"convert it: {value.name}.{convert}" if keyword == "in" else copied_back(value.name, convert)
    if value.dtype == B1:
        help_text = "b1 is packed in uint8, eight columns to a byte: evt.pack_bits(mask)"
        if found == BOOL:
            declared = declaration(value.name, BOOL, value.modes)
            help_text += f", or declare a byte for each element: `{keyword} {declared}`"
    elif found is not None and _may_have(dag, value, found):
        declared = declaration(value.name, found, value.modes, isinstance(value, Input) and value.flexible)
        help_text += f", or declare it in the program: `{keyword} {declared}`"
    report("E0603", f"`{value.name}` is {tensor.dtype}; expected torch.{value.dtype.torch}", help_text)
    return False


def _shape(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"
