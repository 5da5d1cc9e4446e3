"""The gradient of a program for one kind of call: ``gradient_of(request, operands, absent, wanted) -> Gradient``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, EvtError, ProgramError, TargetError
from evt.gradient.derive import Gradient, derive
from evt.gradient.reverse import ACCUMULATOR, differentiable_outputs
from evt.ir import TypedDag
from evt.ir.dag import Dag, factors, reads_accumulator
from evt.ir.dtype import PACKED_OPERANDS
from evt.ir.lower.derivative import NoDerivativeError
from evt.ir.node import Operand, Reduce, index_of
from evt.ir.operand import epilogue_of
from evt.plan import plan
from evt.request import Request, packed_problem, typed_for, typed_graph
from evt.request.request import remembered


@remembered
def gradient_of(
    request: Request,
    operands: tuple[Operand, ...],
    absent: tuple[str, ...],
    wanted: tuple[str, ...],
    arriving: tuple[str, ...] | None = None,
) -> Gradient:
    """Return the gradient of a program for calls with these operands that omit the ``absent`` inputs.

    ``wanted`` are inputs and :data:`ACCUMULATOR`; ``arriving`` are the outputs with a gradient, by default all.
    Mainloop fusions are not part of the program: their values are the operands. Raise ArgumentError (E0614).
    """
    if request.ragged:
        raise refused("autograd does not record grouped products", "pass the tensors detached")
    precise = replace(request, settings=replace(request.settings, numerics="precise"))
    dag = epilogue_of(typed_for(precise, operands, absent))
    refuse_blocks(request.dag)
    for message, help_text in _missing(dag, wanted):
        raise refused(message, help_text)
    try:
        found = derive(
            dag, differentiable_outputs(dag), wanted, recompute=request.settings.recompute, arriving=arriving
        )
        if reads_accumulator(found.backward):
            typed_for(backward_of(request, found), operands)
    except NoDerivativeError as error:
        raise refused(f"the program has no gradient: {error}", "register the function with its derivative") from None
    except ProgramError as error:
        raise _no_kernel(error) from None
    return found


def whole_gradient(request: Request, a: str | None, b: str | None) -> Gradient:
    """Return the gradient of the accumulator and of all floating-point inputs. Raise ArgumentError (E0614)."""
    if request.grouped:
        raise refused("autograd does not record grouped products", "derive the program of one group: --op gemm")
    dag = epilogue_of(typed_graph(request, a, b))
    wanted = (ACCUMULATOR, *(each.name for each in dag.inputs if each.dtype is not None and each.dtype.is_float))
    found = gradient_of(request, dag.operands, (), wanted)
    if not found.leaving:
        raise refused(
            "no output has a gradient",
            "an output has a gradient if its type is floating-point and its value is not constant",
        )
    return found


@remembered
def forward_of(request: Request, gradient: Gradient) -> Request:
    """Return the program that runs instead of a program whose gradient is requested."""
    if len(gradient.forward.outputs) == len(request.outputs):
        return request
    return Request(declared(gradient.forward), request.settings, request.convolution)


@remembered
def backward_of(request: Request, gradient: Gradient) -> Request:
    """Return a backward program that computes the product again."""
    return Request(declared(gradient.backward), replace(request.settings, route=None, config=None), request.convolution)


@remembered
def has_kernel(request: Request, gradient: Gradient, arch: str) -> bool:
    """Return whether a target's kernel recomputes the product. Raise ArgumentError (E0614) without such a kernel."""
    if not reads_accumulator(gradient.backward):
        return False
    try:
        plan(packed_problem(backward_of(request, gradient), arch))
    except TargetError as error:
        raise _no_kernel(error) from None
    return True


def _no_kernel(error: EvtError) -> ArgumentError:
    message = f"no kernel computes the gradient with the product: {error.diagnostics[0].message}"
    return refused(message, "leave out recompute=True")


def declared(dag: Dag) -> Dag:
    """Return a typed graph with declared operands, inputs and outputs."""
    return Dag(**{each.name: getattr(dag, each.name) for each in fields(Dag)})


_WITHOUT = "multiply in a separate kernel, or call the program under torch.no_grad()"


def refuse_blocks(dag: Dag) -> None:
    """Raise ArgumentError (E0614) for factors of blocks of k, and for reductions of images or groups of columns.

    Products of A and inputs have no gradient, either.
    """
    if factors(dag):
        raise refused(f"`matmul(A, {factors(dag)[0]})` has no gradient", _WITHOUT)
    if dag.scales:
        names = " and ".join(f"`{name}`" for name in dag.scales)
        raise refused(f"factors for blocks of k, of {names}, have no gradient", _WITHOUT)
    if any(isinstance(op, Reduce) and op.is_within for op, _ in dag.table):
        message = "reductions within images or groups of columns have no gradient"
        raise refused(message, "reduce in a separate kernel, or call the program under torch.no_grad()")


def refuse_zero_points(dag: TypedDag) -> None:
    """Raise ArgumentError (E0614) for a program with a formula of a packed operand's elements."""
    if "B" in dag.feeds and dag.operands[1].dtype in PACKED_OPERANDS:
        raise refused("the zero point of `B`, which is packed, has no gradient", _WITHOUT)


def refused(message: str, help_text: str) -> ArgumentError:
    return ArgumentError(Diagnostic("E0614", message, help=help_text))


def _missing(dag: TypedDag, wanted: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the inputs and operands that have no gradient, with a remedy."""
    dtype = dag.operands[0].dtype
    if ACCUMULATOR in wanted and not (dtype.is_float and dtype.bits >= 16):
        yield f"A and B are {dtype}, and gradients have at least 16 bits", "pass them detached"
    for name in wanted:
        named = [index_of(mode) for mode in dag.input[name].modes if index_of(mode)] if name != ACCUMULATOR else []
        if len(named) > 1:
            yield f"`{name}` requires grad, and two indices gather it", f"pass {name}.detach()"
        elif any("l" in dag.input[index].modes for index in named):
            yield f"`{name}` requires grad, and its index has batches", f"pass {name}.detach()"
