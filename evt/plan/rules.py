"""The routes to a kernel and the rules that admit them; ``evt explain`` prints both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evt.ir import TypedDag
from evt.plan.signature import Layout, Signature
from evt.plan.target import Target

#: Inputs and outputs of one kernel: each is a visitor, whose templates nest, and takes kernel parameters.
MAX_TENSORS = 48


@dataclass(frozen=True, slots=True)
class Problem:
    """What the rules look at."""

    dag: TypedDag
    signature: Signature
    target: Target

    @property
    def operand_bytes(self) -> int:
        return self.dag.operands[0].dtype.bits // 8

    def tensor_bytes(self, name: str) -> int:
        value = self.dag.input.get(name) or self.dag.output[name]
        assert value.dtype is not None
        return value.dtype.bits // 8


#: A rule: its statement, and the reason why a problem fails it, or None.
@dataclass(frozen=True, slots=True)
class Rule:
    statement: str
    failure: Callable[[Problem], str | None]


@dataclass(frozen=True, slots=True)
class Route:
    """A way to compile a program. Routes are tried in the order of :data:`ROUTES`."""

    name: str
    family: str
    summary: str
    rules: tuple[Rule, ...]

    def failures(self, problem: Problem) -> tuple[str, ...]:
        """Why this route does not apply; empty when it does."""
        return tuple(reason for rule in self.rules if (reason := rule.failure(problem)))


def _runs_on(family: str) -> Rule:
    def failure(problem: Problem) -> str | None:
        target = problem.target
        return None if family in target.families else f"{target.name} runs CUTLASS {', '.join(target.families)}"

    return Rule(f"the target runs CUTLASS {family} kernels", failure)


def _tma(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    for operand, layout in zip(dag.operands, (signature.a, signature.b), strict=True):
        reason = _not_tma(operand.name, layout, problem.operand_bytes)
        if reason:
            return reason
    return _not_tma("D", signature["D"], problem.tensor_bytes("D"))


def _not_tma(name: str, layout: Layout, size: int) -> str | None:
    if layout.contiguous is None:
        return f"`{name}` has no mode with stride 1"
    if layout.alignment * size < 16:
        return (
            f"`{name}` is aligned to {layout.alignment * size} bytes: address, strides and extent along "
            f"`{layout.contiguous}` must be multiples of 16 bytes"
        )
    return None


def _contiguous(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    layouts = [(o.name, layout) for o, layout in zip(dag.operands, (signature.a, signature.b), strict=True)]
    for name, layout in (*layouts, ("D", signature["D"])):
        if layout.contiguous is None:
            return f"`{name}` has no mode with stride 1"
    return None


def _few_tensors(problem: Problem) -> str | None:
    count = len(problem.dag.inputs) + len(problem.dag.outputs)
    return f"there are {count} inputs and outputs; at most {MAX_TENSORS}" if count > MAX_TENSORS else None


_FEW_TENSORS = Rule(f"there are at most {MAX_TENSORS} inputs and outputs", _few_tensors)

ROUTES: tuple[Route, ...] = (
    Route(
        "evt-3x",
        "3x",
        "visitor tree in a TMA warp-specialised persistent kernel (CUTLASS 3.x)",
        (
            _runs_on("3x"),
            _FEW_TENSORS,
            Rule(
                "A, B and D can be moved by TMA: 16-byte aligned addresses, strides and contiguous extents",
                _tma,
            ),
        ),
    ),
    Route(
        "evt-2x",
        "2x",
        "visitor tree in a multistage tensor-op kernel (CUTLASS 2.x)",
        (
            _runs_on("2x"),
            _FEW_TENSORS,
            Rule("A, B and D have a mode with stride 1", _contiguous),
        ),
    ),
)
