"""A program's gradients by PyTorch's autograd: the program's graph in f64, computed by PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

import evt
from evt.ir import Cast, Dag, TypedDag, infer
from evt.ir.dag import Builder
from evt.ir.dtype import F64, DType
from evt.program import program_of
from evt.runtime.arguments import outline
from evt.runtime.autograd import run_in_pytorch
from evt.spec import Spec


def widened(spec: Spec, dag: TypedDag) -> evt.Program:
    """Return a program with f64 in the place of every floating-point type, and without rounding."""
    builder, renamed = Builder(), list[int]()
    for op, operands in dag.table:
        rounds = isinstance(op, Cast) and op.dtype.is_float and dag.types[operands[0]].dtype.is_float
        new = [renamed[each] for each in operands]
        op = Cast(F64) if isinstance(op, Cast) and op.dtype.is_float else op
        renamed.append(new[0] if rounds else builder.add(op, *new))
    wide: Any = lambda dtype: F64 if isinstance(dtype, DType) and dtype.is_float else dtype  # noqa: E731
    operands = [replace(each, dtype=F64) for each in dag.operands]
    inputs = [replace(each, dtype=wide(each.dtype)) for each in dag.inputs]
    outputs = [replace(each, dtype=wide(each.dtype)) for each in dag.outputs]
    made: Dag = builder.finish(dag.operation, operands, inputs, outputs)
    infer(made)
    return program_of(Spec(made, spec.settings, spec.convolution))


def plainly(op: evt.Program, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a program's outputs, recorded by autograd operation by operation."""
    bound = outline(op.spec, a, b, inputs)
    return dict(zip(op.outputs, run_in_pytorch(op.spec, bound, a, b, inputs), strict=True))
