"""The checks of a call's arguments: ``bind(request, a, b, inputs, buffers) -> Bound``.

Only metadata is read (shapes, strides, dtypes, devices, addresses), so this serves CPU and GPU calls alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Dag, Input, Interleave, Operand, Output, TypedDag
from evt.ir.dtype import OPERANDS, PACKED_OPERANDS, TF32
from evt.ir.node import base, distance, divisor, is_divided, written
from evt.ir.operand import epilogue_of
from evt.ir.operand_types import MAY_DIFFER, are_multiplied
from evt.layout import span
from evt.request import Request, typed_for
from evt.request.given import as_keyword
from evt.request.shapes import transposed_hint
from evt.runtime.batch_strides import aligned, outer_batches, spread, unfolded
from evt.runtime.bound import Bound
from evt.runtime.convolution import convolution_views
from evt.runtime.given import given_buffers, given_inputs, is_absent
from evt.runtime.layout import LIMIT, TensorArgument, modes_of, repeated
from evt.runtime.ragged import check_groups, check_operands, of_all_groups
from evt.runtime.report import CallDiagnostics
from evt.runtime.tensor_checks import fault, plain, tracing_fault
from evt.runtime.tensors import (
    buffer_argument,
    dtype_of,
    fresh_argument,
    input_argument,
    operand_argument,
    operand_shapes,
    shaped_operands,
    shapes_of,
    squeezed,
)
from evt.runtime.values import check_devices, check_names, check_number, is_number_of, refuse_kind

_NOTHING: Mapping[str, object] = {}


def bind(
    request: Request,
    a: object,
    b: object,
    inputs: Mapping[str, object],
    buffers: Mapping[str, object],
    *,
    memory: bool = True,
) -> Bound:
    """Check a call's arguments against a program.

    Without ``memory``, tensors may be on the meta device: all count as aligned as far as their strides allow.

    Raise ArgumentError (E06xx) with everything that does not fit, and ProgramError when types that the program
    leaves open turn out to be unsupported.
    """
    report = CallDiagnostics()
    bound, tensors = _outline(request, a, b, inputs, buffers, report, memory)
    leads = bound.leads
    if request.convolution is None:
        bound, tensors = _batches(bound, tensors)
    else:
        bound, tensors = _convolution(bound, tensors, report)
    typed = bound.dag
    check_divides(bound.dag, bound.sizes["n"], report)
    report.check()
    result = {
        operand.name: operand_argument(bound, operand, tensors[operand.name], report) for operand in typed.operands
    }
    for value in typed.inputs:
        if value.name in tensors:
            result[value.name] = input_argument(bound, value, tensors[value.name], report)
    for output in typed.outputs:
        if output.name in tensors:
            result[output.name] = buffer_argument(bound, output, tensors[output.name], report)
        elif output.is_indexed:
            name, shape = output.name, ", ".join(written(mode) for mode in output.modes)
            message = f"`{name}` is stored as [{shape}], and the call gives no buffer that has the rows"
            report(
                "E0608",
                message,
                f"pass {as_keyword(name)}, or out=...; what no index names keeps what the buffer holds",
            )
        else:
            result[output.name] = fresh_argument(bound, output)
    if request.ragged:
        check_groups(bound, tensors, report)
    report.check()
    found = {name: argument for name, argument in result.items() if argument is not None}
    if bound.offsets:
        found = {name: _moved(argument, bound.offsets[name], tensors[name]) for name, argument in found.items()}
    bound = replace(bound, tensors=found, leads=leads)
    return of_all_groups(bound, tensors["B"]) if request.ragged else bound


def outline(
    request: Request, a: object, b: object, inputs: Mapping[str, object], buffers: Mapping[str, object] = _NOTHING
) -> Bound:
    """Check names, kinds, devices, types and sizes, which do not depend on memory. Sizes may be symbols.

    The result has the shapes of the outputs. Raise the errors of :func:`bind`.
    """
    return _outline(request, a, b, inputs, buffers, CallDiagnostics(), False)[0]


def _outline(
    request: Request,
    a: object,
    b: object,
    inputs: Mapping[str, object],
    buffers: Mapping[str, object],
    report: CallDiagnostics,
    memory: bool,
) -> tuple[Bound, dict[str, torch.Tensor]]:
    """Return a call with its sizes, and its tensors."""
    inputs, buffers = given_inputs(request.dag, inputs), given_buffers(buffers)
    check_names(request.dag, inputs, buffers, report)
    known = request.dag.input.keys() | request.dag.output.keys()
    named = ((name, value) for name, value in (*inputs.items(), *buffers.items()) if name in known)
    values: dict[str, object] = {"A": a, "B": b, **dict(named)}
    tensors = _tensors(request.dag, values, buffers, report, memory)
    values |= tensors
    tensors = shaped_operands(request.dag, tensors, report)
    absent = tuple(value.name for value in request.dag.inputs if is_absent(value, inputs))
    typed = typed_for(request, _operand_types(request, tensors, report), absent)
    bound = Bound(
        typed,
        {},
        {},
        tensors["A"].device,
        values=values,
        absent=absent,
        invariant=request.settings.batch_invariant,
        ragged=request.ragged,
    )
    if request.convolution is None:
        sizes, leads = _sizes(request, tensors["A"], tensors["B"], report)
        report.check()
        return _squeezed(replace(bound, sizes=sizes, leads=leads), tensors)
    problem = request.convolution.problem(tensors["A"].shape, tensors["B"].shape)
    _check_limits(problem.sizes, "of", report)
    return _squeezed(replace(bound, sizes=problem.sizes, leads=problem.leads, convolution=problem), tensors)


def _squeezed(bound: Bound, tensors: dict[str, torch.Tensor]) -> tuple[Bound, dict[str, torch.Tensor]]:
    """Return a call, and its tensors: inputs with all batches, and vectors without dimensions of one element."""
    given = ((value, tensors[name]) for name, value in bound.dag.input.items() if name in tensors)
    inputs = {
        value.name: spread(squeezed(bound, value, tensor), shapes_of(bound, value, tensor)) for value, tensor in given
    }
    return replace(bound, values={**bound.values, **inputs}), {**tensors, **inputs}


def _tensors(
    dag: Dag, values: Mapping[str, object], buffers: Mapping[str, object], report: CallDiagnostics, memory: bool
) -> dict[str, torch.Tensor]:
    """Return the tensors among a call's values, by name; report other values that are not numbers.

    With ``memory``, the tensors are returned as plain memory.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        declared = dag.input.get(name)
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif declared is not None and (declared.is_scalar or declared.flexible) and is_number_of(declared, value):
            check_number(dag, declared, value, report)
        else:
            refuse_kind(name, value, declared, report)
    report.check()
    if not memory:
        check_devices(tensors, buffers, ("cpu", "cuda", "meta"), report)
        report.check()
        return tensors
    report.add(tracing_fault())
    report.check()
    report.add(*(fault(name, tensor, written=name in buffers) for name, tensor in tensors.items()))
    report.check()
    check_devices(tensors, buffers, ("cpu", "cuda"), report)
    report.check()
    tensors = {name: plain(tensor) for name, tensor in tensors.items()}
    for name in buffers:
        if reason := repeated(tensors[name]):
            report("E0608", f"the buffer `{name}` cannot be written to: {reason}", "pass a packed buffer")
    report.check()
    return tensors


# Types of operands


def _operand_types(
    request: Request, tensors: Mapping[str, torch.Tensor], report: CallDiagnostics
) -> tuple[Operand, ...]:
    declared = {operand.name: operand for operand in request.dag.operands}
    operands = []
    for name, modes in zip(("A", "B"), request.operand_modes, strict=True):
        found = dtype_of(tensors[name])
        operand = declared.get(name)
        if operand is not None:
            if operand.dtype not in PACKED_OPERANDS and (found is None or operand.dtype.torch != found.torch):
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
            operands.append(Operand(name, found, modes, None, ("type", "modes")))
    types = [operand.dtype for operand in operands]
    alike = len({each.torch for each in types}) == 1
    if len(types) == 2 and not alike and not are_multiplied(*types, convolved=request.convolution is not None):
        message = f"A is {tensors['A'].dtype} and B is {tensors['B'].dtype}, which are not multiplied with each other"
        report("E0603", message, f"convert one; {MAY_DIFFER} may differ")
    report.check()
    return tuple(operands)


# Sizes


def _convolution(
    bound: Bound, tensors: Mapping[str, torch.Tensor], report: CallDiagnostics
) -> tuple[Bound, dict[str, torch.Tensor]]:
    """Return the call of a convolution, and its tensors as the implicit GEMM sees them."""
    assert bound.convolution is not None
    views, copied = convolution_views(bound.dag, bound.convolution, tensors, report)
    report.check()
    spans = [span(modes_of(view))[1] * view.element_size() for view in (views["A"], views["B"])]
    return replace(bound, copied=copied, operand_bytes=max(spans)), views


def _check_limits(sizes: Mapping[str, int], kind: str, report: CallDiagnostics) -> None:
    """Report extents that are too large. A symbolic extent is checked when it has a value."""
    for name, size in sizes.items():
        if isinstance(size, int) and size > LIMIT:
            report("E0604", f"the extent {kind} {name} is {size}; at most {LIMIT} is supported")


def _sizes(
    request: Request, a: torch.Tensor, b: torch.Tensor, report: CallDiagnostics
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Return extents by mode, and the dimensions of m and l.

    ``linear`` flattens all leading dimensions of A into m, as torch.nn.functional.linear does; otherwise leading
    dimensions are batches, broadcast as in torch.matmul.
    """
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dim() < 2 and not (request.dag.operation == "linear" and name == "A" and tensor.dim() == 1):
            report("E0604", f"`{name}` has shape {_shape(tensor)}; expected at least two dimensions")
    report.check()
    if request.ragged:
        check_operands(a, b, report)
        report.check()
    modes_a, modes_b = request.operand_modes
    if request.dag.operation == "linear" and modes_a == ("m", "k"):
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
            f"A has the modes [{', '.join(modes_a)}] and B [{', '.join(modes_b)}]"
            + (f"; {hint}" if (hint := transposed_hint(request, leads["k"][0], b.shape)) else ""),
        )
    sizes = {mode: math.prod(dims) for mode, dims in leads.items()}
    _check_limits(sizes, "of mode", report)
    return sizes, leads


def _batches(bound: Bound, tensors: dict[str, torch.Tensor]) -> tuple[Bound, dict[str, torch.Tensor]]:
    """Return the call with all batches of every tensor. If it takes several launches, describe the first launch."""
    dag = bound.dag
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    shapes = {operand.name: operand_shapes(bound, operand) for operand in dag.operands}
    shapes |= {value.name: shapes_of(bound, value, tensors.get(value.name)) for value in values}
    if bound.leads["l"]:
        tensors |= {each.name: spread(tensors[each.name], shapes[each.name]) for each in dag.operands}
    mode = "l" if bound.leads["l"] else "m"  # of a linear map
    lead = bound.leads[mode]
    if len(lead) < 2:
        return bound, tensors
    fresh = {output.name: _unallocated(bound, output) for output in dag.outputs if output.name not in tensors}
    whole = {name: unfolded(tensor, shapes[name]) for name, tensor in {**tensors, **fresh}.items()}
    outer = outer_batches(dag, mode, lead, whole, shapes)
    if outer is None:
        return bound, tensors
    if any(base(each) == "m" and divisor(each) > 1 for value in dag.inputs for each in value.modes):
        message = "the rows of a tensor have no single stride, and an input has a value for each block of rows"
        raise ArgumentError(Diagnostic("E0606", message, help="pass contiguous tensors"))
    offsets = {name: outer.offsets(name, tensor) for name, tensor in whole.items()}
    sizes, leads = {**bound.sizes, mode: math.prod(outer.inner)}, {**bound.leads, mode: outer.inner}
    bound = replace(bound, sizes=sizes, leads=leads, offsets=offsets)
    return bound, {name: outer.first(name, tensor) for name, tensor in whole.items()}


def _unallocated(bound: Bound, output: Output) -> torch.Tensor:
    """Return an output that the call will allocate, packed."""
    assert output.dtype is not None
    return torch.empty(bound.output_shape(output), dtype=getattr(torch, output.dtype.torch), device="meta")


def _moved(argument: TensorArgument, offsets: Sequence[int], tensor: torch.Tensor) -> TensorArgument:
    """Return an argument whose layout holds at the addresses of all launches."""
    return replace(argument, layout=aligned(argument.layout, offsets, tensor.element_size()))


def _shape(tensor: torch.Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


def check_divides(dag: TypedDag, columns: int, report: CallDiagnostics) -> None:
    """Check that columns divide evenly into the program's pairs and blocks."""
    found = {mode for value in epilogue_of(dag).types for mode in value.modes if is_divided(mode)}
    modes = sorted(found | {f"n/2@{op.block}" for op, _ in dag.table if isinstance(op, Interleave)})
    for mode in modes:
        apart = distance(mode)
        width = divisor(mode) * apart if base(mode) == "n" else 1
        if columns % width:
            pairs = "pairs of columns" if apart == 1 else f"pairs of columns {apart} apart"
            what = pairs if written(mode) == "n/2" else f"blocks of {width} columns"
            report("E0604", f"n is {columns}, which does not divide into {what}", f"n must be a multiple of {width}")
