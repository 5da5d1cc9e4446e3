"""The oracle's answers to a call of ``evt run``: ``answers_of(request, ...) -> Answers`` for each output.

The answers are the exact result in f64, the result with the roundings of a kernel, and exact results for a slightly
perturbed accumulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evt.ir import Acc, Apply, Builder, Const, Operand, Output, Reduce, Store, TypedDag, infer
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import prune
from evt.ir.dtype import B1, F32, F64, I32, I64, TF32
from evt.program import program_of
from evt.reference import reference
from evt.reference.compare import NARROW_SUMS, is_quantised, unit
from evt.request import Request


@dataclass(frozen=True)
class Answers:
    """The oracle's answers for one output: exact in f64, and in f32 with the roundings of a kernel.

    ``shaken`` are exact answers for a perturbed accumulator. ``magnitude`` is the f64 sum of absolute values if the
    output is a sum.
    """

    precise: torch.Tensor
    rounded: torch.Tensor
    shaken: tuple[torch.Tensor, ...] = ()
    magnitude: torch.Tensor | None = None


def answers_of(
    request: Request, dag: TypedDag, operands: list[torch.Tensor], inputs: Mapping[str, Any], k: int, kernel: bool
) -> dict[str, Answers]:
    """Return the oracle's answers for each output."""
    program = program_of(request)

    def ask(tensors: list[torch.Tensor], *, float64: bool) -> dict[str, torch.Tensor]:
        found = program.reference(*tensors, float64=float64, **inputs)
        return dict(zip(request.outputs, (found,) if len(request.outputs) == 1 else found, strict=True))

    precise = ask(operands, float64=True)
    rounded = ask([cut_to_tf32(tensor) for tensor in operands] if kernel else operands, float64=False)

    def evaluate(changed: TypedDag) -> dict[str, torch.Tensor]:
        a, b = operands
        return reference(changed, a, b, inputs, float64=True, convolution=request.convolution)

    shaken = []
    if dag.operands[0].dtype.is_float:
        off = slack_of(dag, k, kernel) * float(evaluate(product_alone(dag))["D"].square().mean().sqrt())
        shaken = [evaluate(shifted(dag, sign * off)) for sign in (-1, 1)]
    sums = magnitudes(dag)
    of_sums = evaluate(sums) if sums else {}
    return {
        name: Answers(precise[name], rounded[name], tuple(each[name] for each in shaken), of_sums.get(name))
        for name in request.outputs
    }


def slack_of(dag: TypedDag, k: int, kernel: bool) -> float:
    """Return the relative error that a different order of summation explains.

    For exact sums it is the error of the later roundings in f32.
    """
    operand = dag.operands[0].dtype
    if not operand.is_float:
        return 4 * unit(F32)
    if operand.bits == 64:
        return 4 * math.sqrt(k) * unit(F64)
    narrow = NARROW_SUMS if kernel and operand.bits == 8 else 0.0
    worked = 4 * unit(TF32 if operand == F32 else operand) if dag.feeds else 0.0  # f32 is multiplied as tf32
    return 4 * math.sqrt(k) * unit(F32) + narrow + worked


def cut_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return an f32 operand as the tensor cores read it: without the low 13 bits."""
    if tensor.dtype != torch.float32:
        return tensor
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


def is_exact(dag: TypedDag, output: str) -> bool:
    """Return whether an output depends on integers and truth values only.

    The order of summation does not change such an output.
    """
    return all(dag.types[node].dtype.compute in (I64, I32, B1) for node in _ancestors(dag, output))


def _ancestors(dag: TypedDag, output: str) -> set[int]:
    """Return the nodes that an output depends on, without its store."""
    found: set[int] = set()
    stack = list(dag.arguments(dag.stores[output]))
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(dag.arguments(node))
    return found


def magnitudes(dag: TypedDag) -> TypedDag | None:
    """Return the program with sums of absolute values, in f64, in place of its sums.

    Return None if it has no sum of floats.
    """
    builder, renamed = Builder(), dict[int, int]()
    outputs = []
    for node in range(len(dag)):
        op, arguments = dag[node], dag.arguments(node)
        if not isinstance(op, Store):
            renamed[node] = builder.add(op, *(renamed[operand] for operand in arguments))
            continue
        output, value = dag.output[op.name], dag[arguments[0]]
        assert output.dtype is not None
        if isinstance(value, Reduce) and value.kind == "sum" and not is_quantised(output.dtype):
            absolute = builder.add(Apply("abs"), renamed[dag.arguments(arguments[0])[0]])
            builder.add(op, builder.add(value, absolute))
            outputs.append(Output(output.name, F64, output.modes, output.batchable))
    if not outputs:
        return None
    operands: tuple[Operand, ...] = dag.operands
    return infer(prune(builder.finish(dag.operation, operands, dag.inputs, outputs)), operands)


def product_alone(dag: TypedDag) -> TypedDag:
    """Return the program of the accumulator itself, in f64, with the same operands and mainloop fusions."""
    builder, renamed = Builder(), dict[int, int]()
    for node in range(len(dag)):
        if not isinstance(dag[node], Store):
            renamed[node] = builder.add(dag[node], *(renamed[operand] for operand in dag.arguments(node)))
    builder.add(Store("D"), builder.add(Acc()))
    output = Output("D", F64, ("m", "n"), dag.operation not in CONVOLUTIONS)
    return infer(prune(builder.finish(dag.operation, dag.operands, dag.inputs, [output])), dag.operands)


def shifted(dag: TypedDag, off: float) -> TypedDag:
    """Return the program with ``off`` added to every element of the accumulator."""
    builder, renamed = Builder(), dict[int, int]()
    for node in range(len(dag)):
        op = dag[node]
        renamed[node] = builder.add(op, *(renamed[operand] for operand in dag.arguments(node)))
        if isinstance(op, Acc):
            renamed[node] = builder.add(Apply("add"), renamed[node], builder.add(Const.of(off)))
    return infer(builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs), dag.operands)
