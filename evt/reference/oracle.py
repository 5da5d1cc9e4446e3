"""The results of programs: ``reference`` computes the accumulator, ``evaluate`` starts from one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from evt.ir.convolution import Convolution
from evt.ir.dag import TypedDag, factors
from evt.ir.dtype import accumulator
from evt.ir.node import ELEMENT_MODES, MODES, Input
from evt.ir.operand import epilogue_of, factor_of, formula_of
from evt.reference.convolution import as_image, as_view, convolve, from_view, to_view
from evt.reference.exact import Exact
from evt.reference.extents import Extents, Leads
from evt.reference.int4 import unpacked
from evt.reference.neutral import neutral
from evt.reference.rounding import working
from evt.reference.translate import translate


def reference(
    dag: TypedDag,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    inputs: Mapping[str, Any],
    *,
    float64: bool = False,
    convolution: Convolution | None = None,
) -> dict[str, torch.Tensor]:
    """Return the outputs of a program by name, in ``out`` order.

    The last two dimensions of A and B are their operand's modes. The dimensions before them are batches, which
    broadcast as in torch.matmul; in ``linear``, A has any number of row dimensions instead. A B of 4 bits is packed or
    prepared: see :mod:`evt.reference.int4`. The operands of a
    ``convolution`` are [N, C, ...] and [K, C, ...], and so are the tensors with the accumulator's modes [m, n]. For a
    scattered output, ``inputs`` have the buffer, whose other rows are kept.
    """
    dtype = torch.float64 if float64 else torch.float32
    with neutral(A.device):
        if convolution is not None:
            return _convolution(dag, A, B, inputs, convolution, dtype)
        return _product(dag, A, unpacked(dag.operands[1].dtype, B), inputs, dtype)


def evaluate(
    dag: TypedDag,
    acc: torch.Tensor,
    inputs: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    k: int | None = None,
) -> dict[str, torch.Tensor]:
    """Return the outputs by name for an accumulator ``[..., m, n]``; ``k`` is the length of its sums.

    ``inputs`` are a call's arguments: tensors in the order of their modes, after the batch's dimensions if a program
    leaves them open; scalars as numbers or one-element tensors. With ``dtype`` f32 each output is rounded to its type;
    with f64 the outputs remain f64. Raise ValueError for a shape that does not fit, and for a program with products of
    A and inputs.
    """
    if factors(dag):
        raise ValueError(f"an accumulator is not enough: the program reads matmul(A, {factors(dag)[0]})")
    with neutral(acc.device):
        acc = acc.to(working(accumulator(dag.operands[0].dtype), dtype))
        return _epilogue(dag, acc, _leads(acc), inputs, dtype, k)


def operand_values(
    dag: TypedDag, name: str, tensor: torch.Tensor, inputs: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the operand after its mainloop fusion: its formula for each element, rounded to the operand's type.

    A factor that is constant over blocks of k is not rounded: the result is then f64. The last dimension of ``tensor``
    is k. The dimensions before are batches, and then m (of A) or n (of B), which may be several for a vector along
    them. With ``dtype`` f64 floats are not rounded. Without a formula, return the tensor.
    """
    with neutral(tensor.device):
        return fed_operand(dag, name, tensor, inputs, dtype, {})


def _product(
    dag: TypedDag, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    modes_a, modes_b = (operand.modes for operand in dag.operands)
    a, b = a if modes_a == ("m", "k") else a.mT, b.mT if modes_b == ("k", "n") else b
    rows, k = dag.operation == "linear" and modes_a == ("m", "k"), a.shape[-1]
    batch = () if rows else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    sizes = {"l": math.prod(batch), "m": math.prod(a.shape[:-1]) if rows else a.shape[-2], "n": b.shape[-2], "k": k}
    a = fed_operand(dag, "A", a, inputs, dtype, sizes).to(torch.float64)
    b = fed_operand(dag, "B", b, inputs, dtype, sizes).to(torch.float64).mT
    left: torch.Tensor = a
    leads: Leads = {}
    if rows:
        leads = {"l": (), "m": tuple(a.shape[:-1]), "n": (b.shape[-1],)}
        left = a.reshape(math.prod(leads["m"]), a.shape[-1])
    acc = _accumulated(dag, left @ b, dtype)
    others = {name: _accumulated(dag, left @ _factor(dag.input[name], inputs[name]), dtype) for name in factors(dag)}
    return _epilogue(dag, acc, leads or _leads(acc), inputs, dtype, k, others)


def _factor(value: Input, given: torch.Tensor) -> torch.Tensor:
    """Return a matrix that A is multiplied with, [k, n], in f64."""
    return (given if value.modes == ("k", "n") else given.mT).to(torch.float64)


def _convolution(
    dag: TypedDag,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    geometry: Convolution,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    problem = geometry.problem(a.shape, b.shape)
    if "A" in dag.feeds:  # before padding, whose zeros remain zero
        sizes = {**problem.sizes, "k": problem.contraction}
        a = from_view(fed_operand(dag, "A", to_view(a), inputs, dtype, sizes))
    acc = convolve(geometry, problem, a.to(torch.float64), b.to(torch.float64))
    views = {name: as_view(dag.input.get(name), value, geometry) for name, value in inputs.items()}
    results = _epilogue(dag, _accumulated(dag, acc, dtype), problem.leads, views, dtype, problem.contraction)
    return {name: as_image(dag.output[name], result) for name, result in results.items()}


def _leads(acc: torch.Tensor) -> Leads:
    return {"l": tuple(acc.shape[:-2]), "m": (acc.shape[-2],), "n": (acc.shape[-1],)}


def _accumulated(dag: TypedDag, acc: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return sums in f64, which are exact for integers, in the accumulator's type: i32 wraps."""
    wanted = working(accumulator(dag.operands[0].dtype), dtype)
    return acc.to(wanted if wanted.is_floating_point else torch.int64).to(wanted)


def _epilogue(
    dag: TypedDag,
    acc: torch.Tensor,
    leads: Leads,
    inputs: Mapping[str, Any],
    dtype: torch.dtype,
    k: int | None,
    others: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    sizes = {**{mode: math.prod(leads[mode]) for mode in MODES}, **({} if k is None else {"k": k})}
    dag, extents = epilogue_of(dag), Extents(leads, sizes=sizes)
    shape = [extents[mode] for mode in MODES]
    products = {name: each.reshape(shape) for name, each in (others or {}).items()}
    results = translate(dag, Exact(dag, acc.reshape(shape), extents, inputs, dtype, products))
    return {output.name: results[output.name] for output in dag.outputs}


def fed_operand(
    dag: TypedDag,
    name: str,
    tensor: torch.Tensor,
    inputs: Mapping[str, Any],
    dtype: torch.dtype,
    sizes: Mapping[str, int],
    dialect: type[Exact] = Exact,
) -> torch.Tensor:
    """Return :func:`operand_values` for a call with these sizes, as a dialect computes them."""
    if name not in (*dag.feeds, *dag.scales):
        return tensor
    outer, k = ELEMENT_MODES[name]
    dims = tuple(tensor.shape[:-1])
    leads = {outer: dims if dag.operation == "linear" and name == "A" else dims[-1:], k: tuple(tensor.shape[-1:])}
    operand = next(each.dtype for each in dag.operands if each.name == name)
    batch = math.prod(dims[: len(dims) - len(leads[outer])])
    elements = tensor.reshape(batch, math.prod(leads[outer]), tensor.shape[-1]).to(working(operand, dtype))
    computed = dialect(dag, elements, Extents(leads, (outer, k), sizes), inputs, dtype)
    fed = elements
    if name in dag.feeds:
        fed = translate(dag, computed, [*formula_of(dag, name), dag.feeds[name]])[name]
    if name in dag.scales:
        factor: torch.Tensor = translate(dag, computed, [*factor_of(dag, name), dag.scales[name]])[name]
        fed = fed.to(torch.float64) * factor.to(torch.float64)
    return fed.reshape(tensor.shape)
