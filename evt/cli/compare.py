"""An output against the oracle: ``compare(output, out, answers, n, slack) -> OutputResult``.

Floats of 16 bits and more are compared by their norm, types of few values (bits, integers, 8-bit floats) step by
step. Sums in another order may come out on the other side of a threshold, or round to a neighbour; so each element
may be as far off as the oracle itself gets when the accumulator changes by that little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from evt.bench.tensors import as_numbers, as_steps, is_quantised
from evt.ir import Acc, Apply, Builder, Const, Operand, Output, Reduce, Store, TypedDag, infer
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.dag import prune
from evt.ir.dtype import B1, F64, I32, DType
from evt.reference.rounding import round_to

#: What the f32 operations of an epilogue change, relatively.
_ROUNDING = 4 * 2.0**-24
#: Steps of an 8-bit float between a number and its double, at most: how much finer than its values its steps are.
_STEPS = {"e4m3": 8, "e5m2": 4}


@dataclass(frozen=True)
class OutputResult:
    """One output: its distance from the oracle, ||out - ref|| / ||ref||, and the most that rounding explains.

    ``unexpected`` counts elements that are NaN or infinite and should not be; the distance is inf then. Outputs that
    are compared step by step have ``unequal``, how many elements no answer of the oracle's explains, and ``allowed``,
    how many of these the rounding of the epilogue does; ``unexpected`` are those further off.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    relative_error: float
    bound: float
    unexpected: int
    unequal: int | None = None
    allowed: int | None = None

    @property
    def ok(self) -> bool:
        if self.unequal is None or self.allowed is None:
            return self.relative_error <= self.bound
        return self.unequal <= self.allowed and not self.unexpected


@dataclass(frozen=True)
class Answers:
    """What the oracle says of one output: in f64, and in f32 and rounded, as a kernel computes it.

    ``shaken`` are answers in f64 for an accumulator that is a little off. ``magnitude``: of a sum, the f64 sum of
    absolute values.
    """

    precise: torch.Tensor
    rounded: torch.Tensor
    shaken: tuple[torch.Tensor, ...] = ()
    magnitude: torch.Tensor | None = None


def compare(output: Output, out: torch.Tensor, answers: Answers, n: int, slack: float) -> OutputResult:
    """An output as it was written. ``slack``: how far, relatively, f32 sums in another order may be off."""
    assert output.dtype is not None
    dtype, shape = output.dtype, tuple(out.shape)
    if is_quantised(dtype):
        difference, precise = _difference(as_numbers(out, dtype, n), as_numbers(answers.precise, dtype, n))
        distance = _ratio(difference, precise) if bool(difference.isfinite().all()) else math.inf
        unequal, allowed, unexpected = _by_steps(dtype, out, answers, n, slack)
        return OutputResult(output.name, str(dtype), shape, distance, math.inf, unexpected, unequal, allowed)
    precise, rounded = answers.precise, answers.rounded
    bound = 2 * relative_error(rounded, precise, rounded)[0] + slack
    if answers.shaken:
        spread = _spread(precise, answers.shaken)
        out = torch.where(spread.isinf(), rounded, out)
        explained = torch.minimum((out.double() - precise).abs(), spread)
        usual = rounded.isfinite() & precise.isfinite() & explained.isfinite()
        bound += _ratio(torch.where(usual, explained, 0.0), torch.where(usual, precise, 0.0))
    error, unexpected = relative_error(out, precise, rounded)
    if answers.magnitude is not None:
        norm = float(answers.precise.norm())
        bound += slack * float(answers.magnitude.norm()) / norm if norm else math.inf
    return OutputResult(output.name, str(dtype), shape, error, bound, unexpected)


def relative_error(out: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> tuple[float, int]:
    """||out - exact|| / ||exact||, and how many elements are not finite where ``rounded`` is.

    Elements of ``exact`` that no finite number in the output's type stands for (NaN; too large) are compared
    with ``rounded``, which is what f32 arithmetic makes of them, and do not count in the norms.
    """
    same = (out == rounded) | (out.isnan() & rounded.isnan())
    alike = ~rounded.isfinite() & same
    difference = torch.where(alike, 0.0, out.double() - exact)
    unexpected = int((~difference.isfinite()).sum())
    if unexpected:
        return math.inf, unexpected
    return _ratio(difference, torch.where(exact.isfinite() & ~alike, exact, 0.0)), 0


def is_exact(dag: TypedDag, output: str) -> bool:
    """Whether an output is made of integers and truth values alone, which no order of sums changes."""
    return all(dag.types[node].dtype.compute in (I32, B1) for node in _ancestors(dag, output))


def _ancestors(dag: TypedDag, output: str) -> set[int]:
    """The nodes that an output is made of, without its store."""
    found: set[int] = set()
    stack = list(dag.arguments(dag.stores[output]))
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(dag.arguments(node))
    return found


def magnitudes(dag: TypedDag) -> TypedDag | None:
    """The program of the sums of absolute values in the place of the sums, in f64; None without a sum of floats."""
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
    """The program of the accumulator itself, in f64, of the same operands and the work on them."""
    builder, renamed = Builder(), dict[int, int]()
    for node in range(len(dag)):
        if not isinstance(dag[node], Store):
            renamed[node] = builder.add(dag[node], *(renamed[operand] for operand in dag.arguments(node)))
    builder.add(Store("D"), builder.add(Acc()))
    output = Output("D", F64, ("m", "n"), dag.operation not in CONVOLUTIONS)
    return infer(prune(builder.finish(dag.operation, dag.operands, dag.inputs, [output])), dag.operands)


def shifted(dag: TypedDag, off: float) -> TypedDag:
    """The program of an accumulator that is ``off``, the same everywhere."""
    builder, renamed = Builder(), dict[int, int]()
    for node in range(len(dag)):
        op = dag[node]
        renamed[node] = builder.add(op, *(renamed[operand] for operand in dag.arguments(node)))
        if isinstance(op, Acc):
            renamed[node] = builder.add(Apply("add"), renamed[node], builder.add(Const.of(off)))
    return infer(builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs), dag.operands)


def _by_steps(dtype: DType, out: torch.Tensor, answers: Answers, n: int, slack: float) -> tuple[int, int, int]:
    """How many elements are unequal, how many may be, and how many are further off than rounding explains."""

    def steps(precise: torch.Tensor) -> torch.Tensor:
        return as_steps(round_to(dtype, precise) if dtype.is_float else precise, dtype, n)

    wanted, got = steps(answers.precise), as_steps(out, dtype, n)
    if not slack:
        unequal = int((got != wanted).sum())
        return unequal, 0, unequal
    low = high = wanted
    for other in (as_steps(answers.rounded, dtype, n), *map(steps, answers.shaken)):
        low, high = torch.minimum(low, other), torch.maximum(high, other)
    distance = torch.maximum(low - got, got - high).clamp(min=0)
    if dtype == B1:
        scale = 1.0
    else:
        scale = float(_STEPS[dtype.name]) if dtype.is_float else max(1.0, float(wanted.double().square().mean().sqrt()))
    allowed = int(wanted.numel() * min(1.0, 2 * _ROUNDING * scale))  # that near to the middle between two steps
    return int((distance > 0).sum()), allowed, int((distance > 1 + int(8 * slack * scale)).sum())


def _difference(out: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without the elements that both are NaN or the same infinity in."""
    alike = (out == exact) | (out.isnan() & exact.isnan())
    return torch.where(alike, 0.0, out - exact), torch.where(exact.isfinite(), exact, 0.0)


def _spread(precise: torch.Tensor, shaken: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """How far each element gets; infinite where one of the answers is no number and another is."""
    furthest = torch.zeros_like(precise)
    for other in shaken:
        difference, _ = _difference(other, precise)
        furthest = torch.maximum(furthest, difference.abs().nan_to_num(nan=math.inf, posinf=math.inf))
    return furthest


def _ratio(difference: torch.Tensor, exact: torch.Tensor) -> float:
    norm, distance = float(exact.norm()), float(difference.norm())
    return distance / norm if norm else math.inf if distance else 0.0
