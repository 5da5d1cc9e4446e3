"""What a call gives, checked: ``bind(program, A, B, inputs, buffers) -> Bound``.

Only metadata is looked at (shapes, strides, dtypes, devices, addresses), so this serves CPU and GPU calls alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, TypeGuard

import torch

from evt.diagnostics import Diagnostic, closest
from evt.errors import ArgumentError
from evt.ir import Dag, Input, Operand, Output, TypedDag, infer
from evt.ir.dtype import OPERANDS, STORAGE, TF32, DType, from_torch_name
from evt.plan import Layout, Signature
from evt.runtime.layout import TensorArgument, classify, strides_of

if TYPE_CHECKING:
    from evt.program import Program

#: Largest extent and leading stride: CUTLASS counts both in int32.
_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Bound:
    """A checked call. ``sizes`` has m, n, k, l; ``leads`` the dimensions that m and l stand for in shapes."""

    dag: TypedDag
    sizes: Mapping[str, int]
    leads: Mapping[str, tuple[int, ...]]
    device: torch.device
    tensors: Mapping[str, TensorArgument] = field(default_factory=dict)

    @property
    def signature(self) -> Signature:
        values: tuple[Input | Output, ...] = (*self.dag.inputs, *self.dag.outputs)
        named = [(value.name, self.tensors[value.name].layout) for value in values if set(value.modes) & {"m", "n"}]
        a, b = (self.tensors[operand.name].layout for operand in self.dag.operands)
        return Signature(a, b, tuple(named))

    def output_shape(self, output: Output) -> tuple[int, ...]:
        """The shape of an output: its modes' dimensions, after the batch's where no ``l`` is written."""
        modes = output.modes if "l" in output.modes else ("l", *output.modes)
        return tuple(size for mode in modes for size in self.leads[mode])


class _Report:
    """Collects what is wrong, to report together."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def __call__(self, code: str, message: str, hint: str = "") -> None:
        self.diagnostics.append(Diagnostic(code, message, help=hint))

    def check(self) -> None:
        if self.diagnostics:
            raise ArgumentError(self.diagnostics)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _fits_double(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def bind(program: Program, a: object, b: object, inputs: Mapping[str, object], buffers: Mapping[str, object]) -> Bound:
    """Check a call's arguments against a program.

    Raises ArgumentError (E06xx) with everything that does not fit, and ProgramError when types that the program
    leaves open come out unsupported.
    """
    report = _Report()
    _check_names(program.dag, inputs, buffers, report)
    operands = {"A": a, "B": b}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in (*operands.items(), *inputs.items(), *buffers.items()):
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif name in program.dag.input and program.dag.input[name].is_scalar and is_number(value):
            if not _fits_double(value):
                report("E0607", f"`{name}` is a number beyond the range of a double")
        else:
            wanted = "a number or a one-element tensor" if _is_scalar(program.dag, name) else "a tensor"
            report("E0607", f"`{name}` is {_describe(value)}; expected {wanted}")
    report.check()
    _check_devices(tensors, report)
    _check_grad(tensors, report)
    report.check()
    typed = infer(program.dag, _operand_types(program, tensors, report))
    sizes, leads = _sizes(program, tensors["A"], tensors["B"], report)
    report.check()
    bound = Bound(typed, sizes, leads, tensors["A"].device)
    result = {operand.name: _operand(bound, operand, tensors[operand.name], report) for operand in typed.operands}
    for value in typed.inputs:
        if value.name in tensors:
            argument = _input(bound, value, tensors[value.name], report)
            if argument is not None:
                result[value.name] = argument
    for output in typed.outputs:
        if output.name in tensors:
            argument = _buffer(bound, output, tensors[output.name], report)
        else:
            argument = _fresh(bound, output)
        if argument is not None:
            result[output.name] = argument
    report.check()
    found = {name: argument for name, argument in result.items() if argument is not None}
    return Bound(typed, sizes, leads, tensors["A"].device, found)


# Names, kinds, devices, dtypes


def _check_names(dag: Dag, inputs: Mapping[str, object], buffers: Mapping[str, object], report: _Report) -> None:
    for name in inputs:
        if name not in dag.input:
            guess = closest(name, [i.name for i in dag.inputs if i.name not in inputs])
            known = ", ".join(i.name for i in dag.inputs) or "none"
            report(
                "E0602",
                f"the program has no input `{name}`",
                f"did you mean `{guess}`?" if guess else f"inputs: {known}",
            )
    for value in dag.inputs:
        if value.name not in inputs and value.default is None:
            kind = "a number or a one-element tensor" if value.is_scalar else "a tensor"
            report(
                "E0601",
                f"the input `{value.name}` is missing",
                f"pass {value.name}=..., {kind} of [{', '.join(value.modes)}]",
            )
    for name in buffers:
        if name not in dag.output:
            outputs = ", ".join(o.name for o in dag.outputs)
            report("E0602", f"the program has no output `{name}`", f"outputs: {outputs}")


def _is_scalar(dag: Dag, name: str) -> bool:
    return name in dag.input and dag.input[name].is_scalar


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if is_number(value):
        return "a number"
    return f"of type {type(value).__name__}"


def _check_devices(tensors: Mapping[str, torch.Tensor], report: _Report) -> None:
    device = tensors["A"].device
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            report("E0606", f"`{name}` is a {kind} tensor; only dense tensors are supported")
        elif tensor.device != device:
            report("E0605", f"`{name}` is on {tensor.device}, A is on {device}", f"move it: {name}.to('{device}')")
    if device.type not in ("cpu", "cuda"):
        report("E0605", f"A is on {device}", "tensors must be on a CUDA device, or on the CPU for the reference")


def _check_grad(tensors: Mapping[str, torch.Tensor], report: _Report) -> None:
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                report(
                    "E0610",
                    f"`{name}` requires grad; gradients are not supported yet",
                    f"call under torch.no_grad(), or pass {name}.detach()",
                )


def dtype_of(tensor: torch.Tensor) -> DType | None:
    """The language's type of a tensor's elements, or None."""
    return from_torch_name(str(tensor.dtype).removeprefix("torch."))


def _operand_types(program: Program, tensors: Mapping[str, torch.Tensor], report: _Report) -> tuple[Operand, ...]:
    declared = {operand.name: operand for operand in program.dag.operands}
    operands = []
    for name, modes in zip(("A", "B"), program.operand_modes, strict=True):
        found = dtype_of(tensors[name])
        operand = declared.get(name)
        if operand is not None:
            if found is None or operand.dtype.torch != found.torch:
                report(
                    "E0603",
                    f"`{name}` is {tensors[name].dtype}; the program declares {operand.dtype}",
                    f"convert it: {name}.to(torch.{operand.dtype.torch})",
                )
            operands.append(operand)
        elif found is None or found not in OPERANDS:
            names = ", ".join(f"torch.{t.torch}" for t in OPERANDS if t != TF32)
            report("E0603", f"`{name}` is {tensors[name].dtype}; operands may be {names}")
        else:
            operands.append(Operand(name, found, modes))
    if len(operands) == 2 and operands[0].dtype.torch != operands[1].dtype.torch:
        report("E0603", f"A is {tensors['A'].dtype} and B is {tensors['B'].dtype}; both must have one dtype")
    report.check()
    return tuple(operands)


def _check_dtype(value: Input | Output, tensor: torch.Tensor, report: _Report) -> bool:
    assert value.dtype is not None
    found = dtype_of(tensor)
    if found is not None and found in STORAGE and found.torch == value.dtype.torch:
        return True
    keyword = "in" if isinstance(value, Input) else "out"
    subscript = f"[{', '.join(value.modes)}]"
    help_text = f"convert it: {value.name}.to(torch.{value.dtype.torch})"
    if found is not None and found in STORAGE:
        help_text += f", or declare it in the program: `{keyword} {value.name}: {found}{subscript}`"
    report("E0603", f"`{value.name}` is {tensor.dtype}; expected torch.{value.dtype.torch}", help_text)
    return False


# Sizes


def _sizes(
    program: Program, a: torch.Tensor, b: torch.Tensor, report: _Report
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Extents by mode, and the dimensions that each mode stands for.

    ``linear`` folds all leading dimensions of A into m, as torch.nn.functional.linear does; otherwise leading
    dimensions are batches, broadcast as in torch.matmul.
    """
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dim() < 2 and not (program.operation == "linear" and name == "A" and tensor.dim() == 1):
            report("E0604", f"`{name}` has shape {_shape(tensor)}; expected at least two dimensions")
    report.check()
    modes_a, modes_b = program.operand_modes
    if program.operation == "linear" and modes_a == ("m", "k"):
        leads = {"l": (), "m": tuple(a.shape[:-1]), "k": (a.shape[-1],)}
        if b.dim() != 2:
            report("E0604", f"`B` has shape {_shape(b)}; the weight of a linear map has two dimensions")
            report.check()
    else:
        leads = {mode: (size,) for mode, size in zip(modes_a, a.shape[-2:], strict=True)}
        try:
            leads["l"] = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))  # type: ignore[no-untyped-call]
        except RuntimeError:
            report(
                "E0604",
                f"the batches of A {tuple(a.shape[:-2])} and B {tuple(b.shape[:-2])} do not broadcast together",
            )
            report.check()
    sizes_b = dict(zip(modes_b, b.shape[-2:], strict=True))
    leads["n"] = (sizes_b["n"],)
    if leads["k"] != (sizes_b["k"],):
        report(
            "E0604",
            f"A is {_shape(a)} and B is {_shape(b)}: k is {leads['k'][0]} in A and {sizes_b['k']} in B",
            f"A has the modes [{', '.join(modes_a)}] and B [{', '.join(modes_b)}]",
        )
    sizes = {mode: math.prod(dims) for mode, dims in leads.items()}
    for mode, size in sizes.items():
        if size > _LIMIT:
            report("E0604", f"the extent of mode {mode} is {size}; at most {_LIMIT} is supported")
    return sizes, leads


def _shape(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


# Tensors


def _operand(bound: Bound, operand: Operand, tensor: torch.Tensor, report: _Report) -> TensorArgument | None:
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
    if max(stride for mode, stride in argument.strides.items() if mode != "l") > _LIMIT:
        report("E0606", f"`{operand.name}` has a stride beyond {_LIMIT}")
    return argument


#: A shape as (mode, the dimensions it stands for).
_Groups = list[tuple[str, tuple[int, ...]]]


def _shapes(bound: Bound, value: Input | Output) -> list[_Groups]:
    """The shapes that an input or output may have, as (mode, dimensions) groups."""
    own: _Groups = [(mode, bound.leads[mode]) for mode in value.modes]
    flat: _Groups = [(mode, (bound.sizes[mode],)) for mode in value.modes]
    if not (value.batchable and bound.leads["l"]):
        return [own, flat]
    batched: _Groups = [("l", bound.leads["l"]), *own]
    return [batched] if isinstance(value, Output) else [batched, own]


def _input(bound: Bound, value: Input, tensor: torch.Tensor, report: _Report) -> TensorArgument | None:
    if not _check_dtype(value, tensor, report):
        return None
    name, dtype = value.name, value.dtype
    assert dtype is not None
    if value.is_scalar and "l" not in value.modes:
        if tensor.numel() != 1:
            report("E0604", f"`{name}` has shape {_shape(tensor)}; expected a number or one element")
            return None
        return TensorArgument(name, {"l": 0}, Layout(None, 1))
    for groups in _shapes(bound, value):
        strides = strides_of(tensor, groups)
        if strides is None:
            continue
        if isinstance(strides, str):
            report("E0606", f"the leading dimensions of `{name}` have no single stride", f"pass {name}.contiguous()")
            return None
        if value.is_scalar:
            return TensorArgument(name, strides, Layout(None, 1))
        argument = classify(bound.sizes, name, dtype, tensor, value.modes, strides)
        if not value.is_tile and argument.layout.contiguous is None:
            report("E0606", f"the vector `{name}` has a stride other than 1", f"pass {name}.contiguous()")
            return None
        return argument
    _wrong_shape(bound, value, tensor, "E0604", report)
    return None


def _wrong_shape(bound: Bound, value: Input | Output, tensor: torch.Tensor, code: str, report: _Report) -> None:
    wanted = _shapes(bound, value)[0]
    shape = ", ".join(str(size) for _, dims in wanted for size in dims)
    report(
        code,
        f"`{value.name}` has shape {_shape(tensor)}; expected [{shape}]",
        f"`{value.name}` has the modes [{', '.join(mode for mode, _ in wanted)}]",
    )


def _buffer(bound: Bound, output: Output, tensor: torch.Tensor, report: _Report) -> TensorArgument | None:
    """An output buffer of the caller's."""
    if not _check_dtype(output, tensor, report):
        return None
    assert output.dtype is not None
    for groups in _shapes(bound, output):
        strides = strides_of(tensor, groups)
        if isinstance(strides, dict):
            for mode, stride in strides.items():
                if stride == 0 and bound.sizes[mode] > 1:
                    report("E0608", f"the buffer `{output.name}` is expanded: its elements share memory")
                    return None
            argument = classify(bound.sizes, output.name, output.dtype, tensor, output.modes, strides)
            if output.name == "D" and argument.layout.contiguous is None:
                report("E0608", f"the buffer `D` has strides {tuple(tensor.stride())}; one of them must be 1")
                return None
            return argument
    _wrong_shape(bound, output, tensor, "E0608", report)
    return None


def _fresh(bound: Bound, output: Output) -> TensorArgument:
    """An output that the call allocates, packed."""
    strides: dict[str, int] = {"l": 0}
    step = 1
    modes = output.modes if "l" in output.modes else ("l", *output.modes)
    for mode in reversed(modes):
        strides[mode] = step
        step *= bound.sizes[mode]
    assert output.dtype is not None
    return classify(bound.sizes, output.name, output.dtype, None, output.modes, strides)
